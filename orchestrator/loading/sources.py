"""
Sources of input values other than literals in a blueprint: ``from:``, and input files.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE
from orchestrator.domain.blueprint.yaml_tree import (
    INEXACT,
    MAX_DEPTH,
    Node,
    Problems,
    is_inexact,
    node_of,
    parse_document,
)
from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import Lines, check_nesting, json_value, too_deep
from orchestrator.local_files import MAX_BYTES, read_text
from orchestrator.project import ProjectContext

SourceKind = Literal["env", "command", "file"]
_KINDS: tuple[SourceKind, ...] = ("env", "command", "file")
COMMAND_SECONDS = 120.0


class CommandFailed(Exception):
    """
    A ``from.command`` gave no value; the message never contains its output.
    """


class FromMapping(Struct, frozen=True):
    """
    A ``from:`` as written: an environment variable, a command (argv) or a file. ``digest`` is the
    digest that a rerun file recorded for the value.
    """

    kind: SourceKind
    argument: tuple[str, ...]
    node: Node
    digest: str | None = None

    @property
    def origin(self) -> str:
        what = "environment variable" if self.kind == "env" else self.kind
        return f"{what} {self.argument[0]}"

    def as_reference(self, base: Path) -> Json:
        """
        Return a ``from:`` mapping for the same source that can stand in any file.
        """
        name = self.argument[0]
        values = {"env": name, "command": list(self.argument), "file": str(base / name)}
        return {"from": {self.kind: values[self.kind]}}


def is_from(node: Node) -> bool:
    """
    Return whether a value is a ``from:`` mapping, not just a map with such a key.
    """
    inner = node.fields.get("from")
    return (
        inner is not None
        and node.fields.keys() <= {"from", "digest"}
        and inner.kind == "map"
        and len(inner.fields) == 1
        and inner.fields.keys() <= set(_KINDS)
    )


def parse_from(node: Node, problems: Problems) -> FromMapping | None:
    """
    Return the ``from:`` mapping of a node for which `is_from` is true.
    """
    fields = node.fields["from"].fields
    kind = next(kind for kind in _KINDS if kind in fields)
    value, digest_node = fields[kind], node.fields.get("digest")
    digest = problems.text(digest_node, what="digest") if digest_node else None
    if kind == "command":
        argument = problems.texts(value, what="from.command")
        if value.kind == "list" and not value.items:
            problems.add("from.command names no program", value.at)
    else:
        argument = tuple(filter(None, (problems.text(value, what=f"from.{kind}"),)))
    return FromMapping(kind, argument, value, digest) if argument else None


def fetch(
    source: FromMapping,
    *,
    base: Path,
    inside: Path | None,
    environ: Mapping[str, str],
    run_command: Callable[[Sequence[str]], str],
    problems: Problems,
) -> str | None:
    """
    Return the text from a source, without the final newline; None if there is none.

    A file must lie below ``inside``, if given: a blueprint must not read files outside its project.
    A variable that is not set is no problem here: the caller knows whether the value is required.
    """
    match source.kind:
        case "env":
            return environ.get(source.argument[0])
        case "command":
            try:
                text = run_command(source.argument)
            except CommandFailed as exc:
                hint = "run it yourself to see what it says; its output is not shown here"
                name = source.argument[0]
                problems.add(f"the command {name!r} gave no value: {exc}", source.node.at, hint)
                return None
        case "file":
            name = source.argument[0]
            real = os.path.realpath(base / name) if "\0" not in name else name
            if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
                hint = "give it by --input-file, or with a variable ORCHESTRATOR_INPUT_<name>"
                message = f"from.file {name!r} is outside of the project"
                problems.add(message, source.node.at, hint)
                return None
            try:
                text = read_text(base / name, shown=name)
            except Invalid as exc:
                why = exc.problems[0].message
                problems.add(f"from.file {name!r}: {why}", source.node.at)
                return None
    return text.removesuffix("\n").removesuffix("\r")


def commands_of(project: ProjectContext) -> Callable[[Sequence[str]], str]:
    """
    Return a function that runs the programs for a project's inputs, in its directory. It raises
    CommandFailed if the operator forbids them.
    """
    trust = project.settings.trust

    def run(argv: Sequence[str]) -> str:
        if not trust.commands:
            raise CommandFailed(trust.forbidden("from.command", "commands: false"))
        return run_command(argv, directory=project.project_dir)

    return run


def run_command(argv: Sequence[str], *, directory: Path | None = None) -> str:
    """
    Run a program and return its stdout as UTF-8 text. No shell, no stdin, at most two minutes and
    as much as a file may hold; input values are not in its environment.

    Raises CommandFailed if it cannot be started, does not end, prints more, or exits with a code
    other than 0.
    """
    import subprocess  # here: most commands start none, and reading ones must not wait for it

    deadline = time.monotonic() + COMMAND_SECONDS
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=directory,
            env={k: v for k, v in os.environ.items() if not k.startswith(INPUT_VARIABLE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError) as exc:
        raise CommandFailed("it cannot be started") from exc
    with process:
        try:
            printed = _read_until(deadline, process.stdout)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as exc:
            process.kill()
            raise CommandFailed(f"no answer within {COMMAND_SECONDS:.0f} s") from exc
        except BaseException:
            process.kill()
            raise
    if code:
        raise CommandFailed(f"exit code {code}")
    try:
        return printed.decode()
    except UnicodeDecodeError as exc:
        raise CommandFailed("what it printed is not UTF-8 text") from exc


def _read_until(deadline: float, pipe: IO[bytes] | None) -> bytes:
    import selectors  # here: as subprocess above

    assert pipe is not None
    printed = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(printed) <= MAX_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                return bytes(printed)
            printed += piece
    raise CommandFailed(f"it printed more than {MAX_BYTES >> 20} MiB")


# Input files: YAML, JSON, ``.tfvars`` and ``.tfvars.json``.


_HCL_PLACE = r"(?s)(?:invalid HCL: )?tmp\.hcl:(\d+),(\d+)(?:-[\d,]+)?: (.*)"


def read_values(path: Path, *, shown: str) -> tuple[Mapping[str, Node], Mapping[str, Location]]:
    """
    Return the values in an input file by name, and where each name stands.

    Raises Invalid if the file cannot be read, has an unknown extension, or holds no map.
    """
    text = read_text(path, shown=shown)
    match path.suffix:
        case ".yaml" | ".yml":
            node = parse_document(text, file=shown)
            if node.kind == "scalar" and node.value is None:
                return {}, {}
            if node.kind != "map":
                raise Invalid([Problem(f"must hold a map of inputs, not {node.shape}", node.at)])
            return node.fields, node.key_at
        case ".json":
            return _input_nodes(_json(text, shown), text, shown)
        case ".tfvars":
            return _input_nodes(_tfvars(text, shown), text, shown)
        case _:
            hint = "name it .yaml, .yml, .json, .tfvars or .tfvars.json"
            raise Invalid([Problem("the name has no known ending", Location(shown), hint)])


#: Numbers in JSON, and the texts that may hold the like of one.
_JSON_NUMBER = r'"(?:\\.|[^"\\])*"|(?P<number>-?\d[\d.eE+-]*)'
#: The parts of a .tfvars file; an ``operator`` is what no value is written with.
_TFVARS_PART = (
    r"(?s)(?:#|//)[^\n]*|/\*.*?\*/|\s+"
    r'|(?P<text>"(?:\\.|[^"\\])*"|<<-?(?P<end>\w+)\r?\n.*?\n[ \t]*(?P=end)\b)'
    r"|(?P<word>[^\W\d][\w-]*)|(?P<number>-?\d[\d.]*(?:[eE][+-]?\d+)?)"
    r"|(?P<mark>[=:,\[\]{}])|(?P<operator>.)"
)
#: What an expression has at least one of; a file without is not looked through part by part.
_SIGN_OF_EXPRESSION = r"""[-+*/%!?<>&|(.$]|\bfor\b|["\]}]\s*\[|=="""
#: The beginning of a template in a text, unless it is escaped.
_TEMPLATE = r"(?<!\$)(?:\$\$)*\$\{|(?<!%)(?:%%)*%\{"


def _check_numbers(text: str, shown: str, numbers: str) -> None:
    """
    Raise Invalid, with all places, if a float would round a number.
    """
    found = [
        match.start("number")
        for match in re.finditer(numbers, text)
        if match["number"] and is_inexact(match["number"])
    ]
    if found:
        lines = Lines(text, shown)
        raise Invalid([Problem(INEXACT, lines.at(start)) for start in found])


def _json(text: str, shown: str) -> Json:
    value = json_value(
        text,
        shown,
        object_pairs_hook=_unique,
        parse_constant=_no_constant,
        parse_int=_whole_number,
    )
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        problem = Problem("holds half a character (a lone surrogate)", Location(shown))
        raise Invalid([problem]) from exc
    _check_numbers(text, shown, _JSON_NUMBER)
    _check_depth(value, shown)
    return value


def _whole_number(digits: str) -> Json:
    try:
        return int(digits)
    except ValueError as exc:  # Python reads no more than so many
        raise ValueError(INEXACT) from exc


def _check_depth(value: Json, shown: str) -> None:
    """
    Raise Invalid if a value is nested more deeply than YAML values may be.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise too_deep(shown)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return values


def _no_constant(text: str) -> Json:
    raise ValueError(f"{text} is no JSON")


def _tfvars(text: str, shown: str) -> Json:
    import pygohcl

    check_nesting(text, shown)
    if "\0" in text:  # the parser is C underneath: it would not see what follows
        raise Invalid([Problem("holds a NUL character", Location(shown))])
    try:
        values = pygohcl.attributes_loads(text)
    except RecursionError as exc:
        raise too_deep(shown) from exc
    except pygohcl.HCLParseError as exc:
        match = re.match(_HCL_PLACE, str(exc))
        if match is None:
            raise Invalid([Problem(f"not valid: {exc}", Location(shown))]) from exc
        at = Location(shown, int(match[1]), int(match[2]))
        raise Invalid([Problem(f"not valid: {match[3].strip()}", at)]) from exc
    _check_no_expressions(text, shown)
    _check_numbers(text, shown, _TFVARS_PART)
    _check_depth(values, shown)
    return values


def _check_no_expressions(text: str, shown: str) -> None:
    """
    Raise Invalid if a value is an expression or a template: the parser returns those as text.
    """
    if not re.search(_SIGN_OF_EXPRESSION, text):
        return
    before = ""  # the part before: its text if it is a mark, else its kind
    for match in re.finditer(_TFVARS_PART, text):
        kind, part = match.lastgroup, match[0]
        if kind is None:
            continue
        ended = before in ("text", "number", "]", "}")
        if (
            kind == "operator"
            or (kind == "text" and re.search(_TEMPLATE, part))
            or (kind == "number" and part[0] == "-" and (ended or before == "word"))
            or (part == "[" and ended)
            or (part == "=" == before)
            or (part == "for" and before in ("[", "{"))
        ):
            message = "expressions and templates are not evaluated: write the value itself"
            hint = "a text with ${ in it is written with $${"
            at = Lines(text, shown).at(match.start())
            raise Invalid([Problem(message, at, hint)])
        before = part if kind == "mark" else kind


def _input_nodes(
    values: Json, text: str, shown: str
) -> tuple[Mapping[str, Node], Mapping[str, Location]]:
    if not isinstance(values, dict):
        raise Invalid([Problem("must hold a map of inputs", Location(shown, 1, 1))])
    lines, places = Lines(text, shown), {}
    for name in values:  # where it first stands as a key: the parsers give no positions
        match = re.search(rf'(?:^|[{{,\s])("?{re.escape(name)}"?)\s*[:=]', text)
        places[name] = lines.at(match.start(1)) if match else Location(shown)
    return {name: node_of(value, places[name]) for name, value in values.items()}, places
