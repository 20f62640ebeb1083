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


class RegoRules:
    """
    Implements the port `PolicyRules` with programs in the PATH of an environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def violations(
        self, rules: Sequence[Path], document: str, *, stop: StopToken
    ) -> list[Violation]:
        """
        Return the violations of the rules by a plan document. Rules that could not be evaluated are
        a violation, too: what was not checked is not allowed.
        """
        paths = (shutil.which(name, path=self._environ.get("PATH")) for name in _PROGRAMS)
        program = next((path for path in paths if path is not None), None)
        if program is None:
            return [_unasked(f"neither {' nor '.join(_PROGRAMS)} is on PATH")]
        ask = _conftest if Path(program).name == "conftest" else _opa
        with tempfile.TemporaryDirectory(prefix="orchestrator-policy-") as place:
            plan = Path(place) / "plan.json"
            plan.write_text(document, encoding="utf-8")
            try:
                code, output, errors = self._run(
                    [program, *ask.arguments(rules, plan)], place, stop
                )
                return list(ask.violations(code, json.loads(output)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
                text = (errors or output).strip() if isinstance(exc, ValueError) else str(exc)
                why = next(iter(text.splitlines()), "") or "it gave no result"
                return [_unasked(f"{Path(program).name}: {why}")]

    def _run(self, argv: Sequence[str], place: str, stop: StopToken) -> tuple[int, str, str]:
        out, err = (Path(place) / name for name in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(self._environ),
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


class _Conftest:
    """
    ``conftest test``: exit 0, or 1 if a rule denies; no JSON means that it failed.
    """

    def arguments(self, rules: Sequence[Path], plan: Path) -> list[str]:
        policies = [word for path in rules for word in ("--policy", str(path))]
        options = ["--output", "json", "--no-color", "--all-namespaces"]
        return ["test", *options, *policies, str(plan)]

    def violations(self, code: int, results: Json) -> Iterator[Violation]:
        counted = 0
        for result in results:
            failures, warnings = result.get("failures") or (), result.get("warnings") or ()
            counted += result.get("successes", 0) + len(failures) + len(warnings)
            counted += len(result.get("exceptions") or ()) + len(result.get("skipped") or ())
            for item in failures:
                yield _violation({**(item.get("metadata") or {}), "msg": item["msg"]}, "fail")
            for item in warnings:
                yield _violation({**(item.get("metadata") or {}), "msg": item["msg"]}, "warn")
        if code not in (0, 1) or not counted:
            yield _unasked("conftest found no rule `deny`, `violation` or `warn`")


class _Opa:
    """
    ``opa eval`` of all rules: exit 0, or 2 with ``errors``.
    """

    def arguments(self, rules: Sequence[Path], plan: Path) -> list[str]:
        data = [word for path in rules for word in ("--data", str(path))]
        return ["eval", "--format", "json", *data, "--input", str(plan), "data"]

    def violations(self, code: int, document: Json) -> Iterator[Violation]:
        if code != 0 or document.get("errors"):
            messages = [str(item.get("message")) for item in document.get("errors") or ()]
            yield _unasked(f"opa: {'; '.join(messages) or f'exit code {code}'}")
            return
        values = [
            item["value"] for row in document.get("result") or () for item in row["expressions"]
        ]
        rules = [rule for value in values for rule in _rules(value)]
        if not rules:
            yield _unasked("opa found no rule `deny`, `violation` or `warn`")
        for name, items in rules:
            verdict: Literal["fail", "warn"] = "warn" if name.startswith("warn") else "fail"
            for item in items:
                yield _violation(item if isinstance(item, dict) else {"msg": item}, verdict)


_conftest, _opa = _Conftest(), _Opa()


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
