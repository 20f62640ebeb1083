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


def write_reports(
    requested: Mapping[str, Path | None],
    project: ProjectContext,
    blueprint: str,
    plan: PlanDocument | None,
    paper: Paper,
    *,
    gate: GateDocument | None = None,
) -> None:
    """
    Write the ``requested`` files on a plan, a gate or both, by format, and what the CI runner
    reads. ``blueprint`` is the file, relative to the directory of the project.
    """
    root, environ = project.project_dir, project.environ
    files = {name: project.directory / path for name, path in requested.items() if path is not None}
    if not files and not any(map(environ.get, ("GITHUB_ACTIONS", "GITLAB_CI"))):
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

    results = [*findings(plan, blueprint=blueprint)] if plan else []
    results += gate_findings(gate, blueprint=blueprint) if gate else ()
    document = gate or plan
    assert document is not None, "there is something to report"

    def shortened() -> str:
        place = RecordedBlueprint(document.blueprint, document.environment, blueprint)
        words = ("plan", "--destroy") if plan and plan.command == "destroy" else ("plan",)
        again = command_line(place, *(words if plan else ("gate",)))
        return markdown(plan, gate, paper=paper, full_text_at=f"the job's log, or `{again}`")

    prefix = repository_prefix(root, environ)
    texts: Mapping[str, Callable[[], str]] = {
        "markdown": shortened,
        "junit": lambda: junit(plan, gate),
        "sarif": lambda: sarif(results, version=__version__, prefix=prefix),
        "json_file": lambda: document.to_json() + "\n",
    }
    for name, path in files.items():
        _write(path, texts[name]())
    if environ.get("GITHUB_ACTIONS"):
        if summary := environ.get("GITHUB_STEP_SUMMARY"):
            _write(Path(summary), f"\n{shortened()}\n", append=True)
        if outputs := environ.get("GITHUB_OUTPUT"):
            # What is in the file may not have ended its line.
            _write(Path(outputs), f"\n{_outputs(plan, document.verdict)}", append=True)
        _annotate(results, prefix)
    if plan is not None and environ.get("GITLAB_CI"):
        _write(root / GITLAB_REPORT, gitlab_report(plan) + "\n")


def _outputs(plan: PlanDocument | None, verdict: str) -> str:
    """
    Return the outputs of the step of a GitHub job, a line each.
    """
    values = {
        "has_changes": str(plan is not None and plan.verdict in ("changes", "deferred")).lower(),
        "verdict": verdict,
        **(plan.counts.model_dump(by_alias=True) if plan else {}),
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


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
            location = f"file={_property(prefix + item.file)}"
            if item.line is not None:
                location += f",line={item.line}"
            message = _data(without_workflow_commands(item.message))
            title = _property(f"{item.step}: {item.rule}" if item.step else item.rule)
            raw.write(f"::{level} {location},title={title}::{message}\n")
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
