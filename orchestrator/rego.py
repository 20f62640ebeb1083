"""
Evaluates rules in Rego, the language of the Open Policy Agent, for a plan, with `conftest` or
`opa`.

Both evaluate rules `deny`, `violation` and `warn` (also `deny_...`) of any package: sets of texts,
or of objects with `msg`, and optionally `step` and `address`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from orchestrator.domain.plan.violations import Violation
from orchestrator.domain.text import Json
from orchestrator.ports.system import StopToken

_PROGRAMS = ("conftest", "opa")
_RULE = re.compile(r"(deny|violation|warn)(_[a-zA-Z0-9]+)*")
_TICK = 0.1  # seconds
_HINT = "install conftest or opa, and try the rules with it"


def rego_violations(
    environ: Mapping[str, str], rules: Sequence[Path], document: str, stop: StopToken
) -> list[Violation]:
    """
    Return the denials and warnings of the rules in these files and directories for a plan document,
    by a program in the PATH of ``environ``. Rules that could not be evaluated are a violation, too:
    what was not checked is not allowed. Never raises.
    """
    paths = (shutil.which(name, path=environ.get("PATH")) for name in _PROGRAMS)
    program = next((path for path in paths if path is not None), None)
    if program is None:
        return [_unasked(f"neither {' nor '.join(_PROGRAMS)} is on PATH")]
    name, output, errors = Path(program).name, "", ""
    with tempfile.TemporaryDirectory(prefix="orchestrator-policy-") as directory:
        plan = Path(directory) / "plan.json"
        plan.write_text(document, encoding="utf-8")
        if name == "conftest":
            options = ["test", "--output", "json", "--no-color", "--all-namespaces"]
            policies = [word for path in rules for word in ("--policy", str(path))]
            argv, ask = [program, *options, *policies, str(plan)], _conftest
        else:
            data = [word for path in rules for word in ("--data", str(path))]
            options = ["eval", "--format", "json", *data, "--input", str(plan), "data"]
            argv, ask = [program, *options], _opa
        try:
            code, output, errors = _run(argv, environ, Path(directory), stop)
            return list(ask(code, json.loads(output)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            text = (errors or output).strip() if isinstance(exc, ValueError) else str(exc)
            why = next(iter(text.splitlines()), "") or "it gave no result"
            return [_unasked(f"{name}: {why}")]


def _run(
    argv: Sequence[str], environ: Mapping[str, str], directory: Path, stop: StopToken
) -> tuple[int, str, str]:
    out, err = directory / "out", directory / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(environ),
            start_new_session=True,
        )
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TICK)
            if stop.stopping:
                process.kill()
                process.wait()
    texts = [file.read_bytes().decode("utf-8", "replace") for file in (out, err)]
    return process.returncode, texts[0], texts[1]


def _conftest(code: int, found: Json) -> Iterator[Violation]:
    """
    Yield what ``conftest test`` found: exit 0, or 1 if a rule denies; no JSON means that it failed.
    """
    counted = 0
    for result in found:
        failures, warnings = result.get("failures") or (), result.get("warnings") or ()
        counted += result.get("successes", 0) + len(failures) + len(warnings)
        counted += len(result.get("exceptions") or ()) + len(result.get("skipped") or ())
        for item in failures:
            yield _violation({**(item.get("metadata") or {}), "msg": item["msg"]}, "fail")
        for item in warnings:
            yield _violation({**(item.get("metadata") or {}), "msg": item["msg"]}, "warn")
    if code not in (0, 1) or not counted:
        yield _unasked("conftest found no rule `deny`, `violation` or `warn`")


def _opa(code: int, found: Json) -> Iterator[Violation]:
    """
    Yield what ``opa eval`` of all rules found: exit 0, or 2 with ``errors``.
    """
    if code != 0 or found.get("errors"):
        messages = [str(item.get("message")) for item in found.get("errors") or ()]
        yield _unasked(f"opa: {'; '.join(messages) or f'exit code {code}'}")
        return
    values = [item["value"] for row in found.get("result") or () for item in row["expressions"]]
    rules = [rule for value in values for rule in _rules(value)]
    if not rules:
        yield _unasked("opa found no rule `deny`, `violation` or `warn`")
    for name, items in rules:
        verdict: Literal["fail", "warn"] = "warn" if name.startswith("warn") else "fail"
        for item in items:
            yield _violation(item if isinstance(item, dict) else {"msg": item}, verdict)


def _rules(value: Json) -> Iterator[tuple[str, Sequence[Json]]]:
    """
    Yield the rules with results from the tree of packages.
    """
    for name, item in value.items() if isinstance(value, dict) else ():
        if not _RULE.fullmatch(name):
            yield from _rules(item)
        elif isinstance(item, list):
            yield name, item
        else:  # a rule of one value: it holds, or it does not
            yield name, [{"msg": item if isinstance(item, str) else name}] if item else []


def _violation(item: Mapping[str, Json], verdict: Literal["fail", "warn"]) -> Violation:
    fields = {name: item[name] for name in ("step", "address") if isinstance(item.get(name), str)}
    return Violation(rule="rego", verdict=verdict, message=str(item["msg"]), **fields)


def _unasked(why: str) -> Violation:
    return Violation(rule="rego", message=f"the rules could not be asked: {why}; {_HINT}")
