"""
Breaks the program in one place after the other and counts what no test notices.

    python -m tests.mutation [--places 300] [--seed 1] [--place FILE:NUMBER ...] [-- TESTS ...]

The places are drawn from the function bodies in ``orchestrator/domain`` and ``orchestrator/app``;
each is printed as it ends, with the name by which ``--place`` breaks it again.
Tests are collected once and run once, to learn which functions each of them runs; then each mutant
is a fork of this process in which one function has another code, and the tests that run that
function are run until one fails, the quickest first and at most ``--most``. Runs of the tool that
`tests.server` forks are broken, and looked at, as well. A test that fails counts only if it passes
in such a fork without the change.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pygohcl
import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("domain", "app")
TESTS = ("tests/unit", "tests/golden")
#: Variables by which a fork of `tests.server` learns which place to break, as FILE:NUMBER, or into
#: which file to write the functions that it runs.
BREAK, SEEN = "MUTATION_BREAK", "MUTATION_SEEN"
#: How many times longer than without a change the tests may take, and some seconds more, before a
#: mutant that made something endless counts as noticed.
ENDLESS = 6

SWAPPED: dict[type[ast.AST], type[Any]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One change: ``what`` at ``line`` of ``file``, in the function of that line.
    """

    file: Path
    line: int
    number: int
    what: str
    tree: ast.Module

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(REPOSITORY)}:{self.number}"

    def __str__(self) -> str:
        return f"{self.place}  (line {self.line}) {self.what}"


def places_of(file: Path) -> list[int]:
    """
    The nodes of a file that can be broken, by their number in the order of the tree.
    """
    return [
        number
        for number, node in enumerate(ast.walk(ast.parse(file.read_text())))
        if _broken(copy.deepcopy(node)) is not None
    ]


def mutant(file: Path, number: int) -> Mutant:
    tree = ast.parse(file.read_text())
    node = list(ast.walk(tree))[number]
    before = ast.unparse(node)
    broken = _broken(node)
    assert broken is not None
    line: int = node.lineno  # type: ignore[attr-defined]
    return Mutant(file, line, number, f"{before}  ->  {broken}"[:150], tree)


def _broken(node: ast.AST) -> str | None:
    """
    Break a node in place; what stands there now, or None where nothing of it can be broken.
    """
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            node.ops = [SWAPPED[type(op)]()]
        case ast.BoolOp(op=op):
            node.op = SWAPPED[type(op)]()
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            node.op = SWAPPED[type(op)]()
        case ast.UnaryOp(op=ast.Not()):
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.If(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
            return f"if {ast.unparse(node.test)}"
        case ast.Return(value=ast.Constant(value=None)):
            return None
        case ast.Return(value=ast.expr()):
            node.value = ast.Constant(None)
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.Expr(value=ast.Call()):
            node.value = ast.Constant(None)
        case _:
            return None
    return ast.unparse(ast.fix_missing_locations(node))


def function_of(changed: Mutant) -> tuple[FunctionType, CodeType] | None:
    """
    The function, as it is loaded, that the change is in, and its changed code; None where the
    change is in no body of a function that can be reached by its name.
    """
    ast.fix_missing_locations(changed.tree)
    code: CodeType = compile(changed.tree, str(changed.file), "exec", dont_inherit=True)
    name = ".".join(changed.file.relative_to(REPOSITORY).with_suffix("").parts)
    found: Any = importlib.import_module(name.removesuffix(".__init__"))
    while True:
        inner = [
            each
            for each in code.co_consts
            if isinstance(each, CodeType) and _spans(each, changed.line)
        ]
        if len(inner) != 1:
            return None
        (code,) = inner
        found = vars(found).get(code.co_name)
        while not isinstance(found, FunctionType | type):
            found = (
                getattr(found, "__func__", None)
                or getattr(found, "fget", None)
                or getattr(found, "func", None)
                or getattr(found, "__wrapped__", None)
            )
            if found is None:
                return None
        if isinstance(found, FunctionType):
            found = getattr(found, "__wrapped__", found)
            return (found, code) if found.__code__.co_name == code.co_name else None


def _spans(code: CodeType, line: int) -> bool:
    lines = [number for _, _, number in code.co_lines() if number]
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return min(lines) <= line <= max(lines) or any(_spans(each, line) for each in inner)


#: A test, and the seconds that it usually takes.
_Timed = tuple[float, pytest.Item]


class Runner:
    """
    A pytest plugin that runs the collected tests once, and then for each mutant those that matter.
    """

    def __init__(self, mutants: Iterable[Mutant], places: int, most: int) -> None:
        self._mutants = mutants
        self._places = places
        self._most = most
        self.results: Counter[str] = Counter()
        self._passes: dict[pytest.Item, bool] = {}
        Hcl()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        run_by: dict[tuple[str, int], list[tuple[float, pytest.Item]]] = {}
        for item in session.items:
            seen: set[tuple[str, int]] = set()
            began = time.monotonic()
            if _fails(item, seen):
                continue  # it would be noticed whatever is broken
            for key in seen:
                run_by.setdefault(key, []).append((time.monotonic() - began, item))
        for changed in self._mutants:
            place = function_of(changed)
            if place is None:
                continue
            function, code = place
            key = (function.__code__.co_filename, function.__code__.co_firstlineno)
            by_time = sorted(run_by.get(key, ()), key=lambda each: each[0])
            tests = [each for each in by_time if self._passes.get(each[1], True)][: self._most]
            began = time.monotonic()
            result = self._outcome(changed, function, code, tests)
            self.results[result] += 1
            print(
                f"{result}  {changed}  ({len(tests)} of {len(by_time)} tests, "
                f"{time.monotonic() - began:.1f} s)",
                flush=True,
            )
            if self.results.total() >= self._places:
                break
        return True

    def _outcome(
        self, changed: Mutant, function: FunctionType, code: CodeType, tests: Sequence[_Timed]
    ) -> str:
        """
        Whether a test fails, or they do not end, with the change only.
        """

        def change() -> None:
            function.__code__ = code
            os.environ[BREAK] = changed.place

        while tests:
            result = _first_failure(tests, change)
            if not isinstance(result, pytest.Item):
                return result
            if result not in self._passes:
                self._passes[result] = _first_failure([(0.0, result)], lambda: None) == "survives"
            if self._passes[result]:
                return "noticed"
            tests = [each for each in tests if self._passes.get(each[1], True)]
        return "untested"


def drawn(seed: int) -> Iterator[Mutant]:
    """
    All places in an order that ``seed`` decides.
    """
    places = [
        (file, number)
        for folder in FOLDERS
        for file in sorted((REPOSITORY / "orchestrator" / folder).rglob("*.py"))
        for number in places_of(file)
    ]
    random.Random(seed).shuffle(places)
    return (mutant(file, number) for file, number in places)


def named(place: str) -> Mutant:
    file, number = place.rsplit(":", 1)
    return mutant(REPOSITORY / file, int(number))


class Hcl:
    """
    pygohcl, whose Go runtime does not survive a fork: a fork of this process has what is new to it
    parsed by `tests.server`, which forks before it parses anything.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._known: dict[tuple[str, str], Any] = {}
        for name in ("loads", "attributes_loads"):
            setattr(pygohcl, name, partial(self._parsed, name, getattr(pygohcl, name)))

    def _parsed(self, name: str, parse: Callable[[str], Any], text: str) -> Any:
        if (name, text) not in self._known:
            here = os.getpid() == self._process
            self._known[name, text] = _tried(parse, text) if here else _elsewhere(name, text)
        error, result = self._known[name, text]
        if error:
            raise getattr(pygohcl, error)(result)
        return copy.deepcopy(result)


def _tried(parse: Callable[[str], Any], text: str) -> tuple[str, Any]:
    """
    The name of the exception that it raises and its message, or "" and what it returns.
    """
    try:
        return "", parse(text)
    except (pygohcl.HCLParseError, pygohcl.HCLInternalError) as exc:
        return type(exc).__name__, str(exc)


def _elsewhere(name: str, text: str) -> tuple[str, Any]:
    from tests.server import tool_server

    environ = {key: value for key, value in os.environ.items() if key not in (BREAK, SEEN)}
    run = tool_server().start(
        "tests.mutation:print_parsed",
        [name, text],
        environ=environ,
        directory=REPOSITORY,
        seconds=60,
    )
    error, result = json.loads(run.communicate()[0])
    return error, result


def print_parsed(name: str, text: str) -> int:
    print(json.dumps(_tried(getattr(pygohcl, name), text)))
    return 0


def _fails(item: pytest.Item, seen: set[tuple[str, int]] | None = None) -> bool:
    """
    Run one test; ``seen`` gets the file and first line of each function that it runs.
    """
    from _pytest.runner import runtestprotocol

    if seen is None:
        return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))
    with tempfile.NamedTemporaryFile("r") as file:
        os.environ[SEEN] = file.name
        sys.setprofile(partial(_note, seen))
        try:
            return _fails(item)
        finally:
            sys.setprofile(None)
            del os.environ[SEEN]
            seen.update((name, int(line)) for name, line in map(str.split, file))


def _note(seen: set[tuple[str, int]], frame: FrameType, event: str, _argument: object) -> None:
    if event == "call" and "/orchestrator/" in frame.f_code.co_filename:
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))


def watched(environ: Mapping[str, str], call: Callable[[], int]) -> int:
    """
    ``call()`` in a fork of `tests.server`, broken and looked at as ``environ`` says.
    """
    if BREAK in environ:
        place = function_of(named(environ[BREAK]))
        assert place is not None
        place[0].__code__ = place[1]
    if SEEN not in environ:
        return call()
    seen: set[tuple[str, int]] = set()
    threading.setprofile(partial(_note, seen))
    sys.setprofile(partial(_note, seen))
    try:
        return call()
    finally:
        sys.setprofile(None)
        with Path(environ[SEEN]).open("a") as written:
            written.writelines(f"{name} {line}\n" for name, line in seen.copy())


def _first_failure(tests: Sequence[_Timed], change: Callable[[], None]) -> pytest.Item | str:
    """
    The first of the tests that fails in a fork after the ``change``; else whether it ``survives``
    all of them, or they are ``endless``.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        with suppress(BaseException):
            change()
            failed = next((n for n, (_, item) in enumerate(tests) if _fails(item)), len(tests))
            os.write(writer, b"%d" % failed)
        os._exit(0)
    os.close(writer)
    usual = sum(seconds for seconds, _ in tests)
    told = select.select([reader], [], [], ENDLESS * (5 + usual))[0]
    text = os.read(reader, 100) if told else b""
    os.close(reader)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not text:
        return "endless"
    return tests[int(text)][1] if int(text) < len(tests) else "survives"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--place", action="append", help="break this one, and no drawn ones")
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest takes, after `--`")
    given = parser.parse_args()
    chosen = map(named, given.place) if given.place else drawn(given.seed)
    runner = Runner(chosen, given.places, given.most)
    pytest.main(["-q", "-p", "no:cacheprovider", "-o", "timeout=0", *given.tests], [runner])
    print(f"seed {given.seed}: {dict(runner.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
