"""
Reports beside the printed result: requested files, and what CI runners read.

A report that cannot be written causes a warning only: the exit code is the verdict.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from orchestrator.cli.invocation import WatchedStream
from orchestrator.domain.text import without_workflow_commands
from orchestrator.local_files import write_file

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import GateDocument, PlanDocument
    from orchestrator.errors import Problem
    from orchestrator.project import ProjectContext
    from orchestrator.views.page import Paper
    from orchestrator.views.plan_reports import Finding

#: Where GitLab's ``artifacts: reports: terraform`` finds the counts.
GITLAB_REPORT = "gl-terraform-report.json"


def report_options(function: Callable[..., int]) -> Callable[..., int]:
    """
    Add the options that name report files; the command gets them as ``files``, by format.
    """

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> int:
        files = {name: values.pop(name) for name in ("markdown", "junit", "sarif", "json_file")}
        return function(*args, files=files, **values)

    kind = click.Path(path_type=Path, dir_okay=False)
    for name, text in (
        ("--json-file", "Also write the JSON document to FILE."),
        ("--sarif", "Also write SARIF to FILE: warnings and failed checks by file and line."),
        ("--junit", "Also write JUnit XML to FILE, one test case per step."),
        ("--markdown", "Also write Markdown of at most 60,000 characters to FILE."),
    ):
        command = click.option(name, metavar="FILE", type=kind, help=text)(command)
    return command


class Reports(Struct, frozen=True):
    """
    The reports on a plan or a gate: ``files`` by format; ``blueprint`` is its file, relative to the
    project directory ``root``.
    """

    files: Mapping[str, Path]
    root: Path
    blueprint: str
    environ: Mapping[str, str]

    @classmethod
    def take(
        cls, values: Mapping[str, Path | None], project: ProjectContext, blueprint: str
    ) -> Reports:
        """
        Return the reports that the options request.
        """
        files = {
            name: project.directory / path for name, path in values.items() if path is not None
        }
        return cls(files, project.project_dir, blueprint, project.environ)

    def write(
        self, plan: PlanDocument | None, paper: Paper, *, gate: GateDocument | None = None
    ) -> None:
        if not self.files and not any(map(self.environ.get, ("GITHUB_ACTIONS", "GITLAB_CI"))):
            return
        from orchestrator import __version__
        from orchestrator.domain.recovery.command_line import RecordedBlueprint, command_line
        from orchestrator.views.plan_reports import (
            findings,
            gate_findings,
            gitlab_report,
            junit,
            markdown,
            sarif,
        )

        results = [*findings(plan, blueprint=self.blueprint)] if plan else []
        results += gate_findings(gate, blueprint=self.blueprint) if gate else ()
        document = gate or plan
        assert document is not None, "there is something to report"

        def shortened() -> str:
            place = RecordedBlueprint(document.blueprint, document.environment, self.blueprint)
            words = ("plan", "--destroy") if plan and plan.command == "destroy" else ("plan",)
            again = command_line(place, *(words if plan else ("gate",)))
            return markdown(plan, gate, paper=paper, full_text_at=f"the job's log, or `{again}`")

        prefix = repository_prefix(self.root, self.environ)
        texts: Mapping[str, Callable[[], str]] = {
            "markdown": shortened,
            "junit": lambda: junit(plan, gate),
            "sarif": lambda: sarif(results, version=__version__, prefix=prefix),
            "json_file": lambda: document.to_json() + "\n",
        }
        for name, path in self.files.items():
            _write(path, texts[name]())
        if self.environ.get("GITHUB_ACTIONS"):
            self._github(plan, shortened(), document.verdict)
            _annotate(results, prefix)
        if plan is not None and self.environ.get("GITLAB_CI"):
            _write(self.root / GITLAB_REPORT, gitlab_report(plan) + "\n")

    def _github(self, plan: PlanDocument | None, markdown: str, verdict: str) -> None:
        summary, outputs = (self.environ.get(f"GITHUB_{n}") for n in ("STEP_SUMMARY", "OUTPUT"))
        if summary:
            _write(Path(summary), f"\n{markdown}\n", append=True)
        if outputs:
            counts = plan.counts.model_dump(by_alias=True) if plan else {}
            changes = plan is not None and plan.verdict in ("changes", "deferred")
            values = {
                "has_changes": str(changes).lower(),
                "verdict": verdict,
                **{name: str(number) for name, number in counts.items()},
            }
            lines = "".join(f"{name}={value}\n" for name, value in values.items())
            # What is in the file may not have ended its line.
            _write(Path(outputs), f"\n{lines}", append=True)


def repository_prefix(root: Path, environ: Mapping[str, str]) -> str:
    """
    Return the project's path in the repository of a CI job, to be put before file names in reports.
    """
    workspace = environ.get("GITHUB_WORKSPACE") or environ.get("CI_PROJECT_DIR")
    if not workspace:
        return ""
    prefix = os.path.relpath(root, workspace)
    return "" if prefix == "." or prefix.startswith("..") else f"{Path(prefix).as_posix()}/"


def annotate_problems(problems: Iterable[Problem], root: Path, environ: Mapping[str, str]) -> None:
    """
    Under GitHub Actions, annotate the problems of files in the project directory ``root``.
    """
    if not environ.get("GITHUB_ACTIONS"):
        return
    from orchestrator.views.plan_reports import Finding

    annotations = [
        Finding("invalid", "error", "", item.message, item.at.file, item.at.line or None)
        for item in problems
        if item.at is not None and (root / item.at.file).is_file()
    ]
    _annotate(annotations, repository_prefix(root, environ))


#: Annotations of one level that GitHub shows of a step of a job; it drops the others silently.
_ANNOTATIONS = 10


def _annotate(findings: Iterable[Finding], prefix: str) -> None:
    """
    Write the findings as GitHub workflow commands to stderr: stdout holds the result.
    """
    stderr = sys.stderr
    raw = stderr.raw if isinstance(stderr, WatchedStream) else stderr
    by_level: dict[str, list[Finding]] = {}
    for item in findings:
        by_level.setdefault(item.level, []).append(item)
    for level, items in by_level.items():
        shown = items if len(items) <= _ANNOTATIONS else items[: _ANNOTATIONS - 1]
        for item in shown:
            place = f"file={_property(prefix + item.file)}"
            if item.line is not None:
                place += f",line={item.line}"
            message = _data(without_workflow_commands(item.message))
            title = _property(f"{item.step}: {item.rule}" if item.step else item.rule)
            raw.write(f"::{level} {place},title={title}::{message}\n")
        if len(items) > len(shown):
            raw.write(f"::{level}::{len(items) - len(shown)} more: see the log\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _write(path: Path, text: str, *, append: bool = False) -> None:
    try:
        write_file(path, text, append=append)
    except OSError as exc:
        click.echo(f"warning: the report {path} cannot be written: {exc.strerror}", err=True)
