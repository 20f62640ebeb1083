"""
Reports on a plan: whatever providers wrote in them, they fit, parse, and steer no runner.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.reports import annotate_problems
from orchestrator.domain.documents.plan import GateDocument, GateReason, PlanDocument, PlannedStep
from orchestrator.domain.plan.changes import AttributeChange, PlanDiagnostic, ResourceChange
from orchestrator.domain.plan.violations import Violation
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.record.record import Fault
from orchestrator.errors import Location, Problem
from orchestrator.views.page import Paper
from orchestrator.views.plan import plan_summary
from orchestrator.views.plan_reports import LIMIT, Finding, findings, junit, markdown, sarif
from tests.fakes.read_context import outline
from tests.golden.samples import NOW


def planned(number: int, text: str, *, objects: int = 1, action: Action = "update") -> PlannedStep:
    addresses = [f"aws_instance.i{n}" for n in range(objects)]
    return PlannedStep(
        step=f"s{number}",
        target=f"web/prod/s{number}",
        status="planned",
        actions=tuple(PlannedAction(address=name, action=action) for name in addresses),
        resources=tuple(
            ResourceChange(
                address=name,
                type="aws_instance",
                name=name,
                action=action,
                attributes=(AttributeChange(path="a", before=text, after="x"),),
            )
            for name in addresses
        ),
        diagnostics=(PlanDiagnostic(severity="warning", summary=text, file="a.tf", line=3),),
    )


def document(*steps: PlannedStep) -> PlanDocument:
    return PlanDocument.of_steps(outline(), steps, command="apply")


def markdown_of(*steps: PlannedStep) -> str:
    return markdown(document(*steps), paper=Paper(now=NOW), full_text_at="the job's log")


@pytest.mark.parametrize("action", ["update", "delete"])
@pytest.mark.parametrize(("steps", "objects"), [(1, 5000), (300, 20), (3000, 1), (2, 600)], ids=str)
def test_markdown_is_cut_and_says_so(steps: int, objects: int, action: Action) -> None:
    """
    A comment that is too long fails the job: it is shortened, with a pointer to the whole, also
    where what would be lost alone is too long.
    """
    text = markdown_of(*(planned(n, "größe", objects=objects, action=action) for n in range(steps)))
    assert LIMIT / 2 < len(text) <= LIMIT
    assert text.rstrip().endswith("In full: the job's log")
    assert text.count("<details>") == text.count("</details>")
    assert len(re.findall("^```", text, re.MULTILINE)) % 2 == 0


def test_a_gate_with_too_many_reasons_is_cut_too() -> None:
    """
    Without a plan, as where the blueprint is wrong, its reasons are all there is.
    """
    reasons = tuple(
        GateReason(severity="fail", code="invalid", message=f"problem {n}") for n in range(5000)
    )
    gate = GateDocument(
        project="p", blueprint="web", environment="prod", verdict="fail", reasons=reasons
    )

    text = markdown(None, gate, paper=Paper(now=NOW), full_text_at="the job's log")

    assert len(text) <= LIMIT
    assert text.startswith("## gate: fail")
    assert text.rstrip().endswith("```\n\nShortened to 60,000 characters. In full: the job's log")


def test_markdown_that_fits_is_whole() -> None:
    """
    Nothing is said of what was not cut.
    """
    text = markdown_of(planned(1, "value"))
    assert "Shortened" not in text


NASTY = st.text(st.sampled_from("`~<>&\n:#@|x\x00\x1b\ud800\u202e"), min_size=1, max_size=40)


@given(text=NASTY | st.just("::error file=x::no\n```\n@all </details>\n``````\n##[error]x"))
def test_no_text_leaves_its_fence_and_no_report_is_broken(text: str) -> None:
    """
    Markdown of others stays text; XML and JSON parse.
    """
    clean = text.encode("utf-8", "replace").decode()
    failed = PlannedStep(
        step="f",
        target="web/prod/f",
        status="failed",
        error=Fault(code="engine_failed", phase="plan", summary=clean),
    )
    steps = (planned(1, clean), failed)
    outside, fence = [], ""
    for line in markdown_of(*steps).splitlines():
        mark = re.fullmatch("(`{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif line == fence:
            fence = ""
        elif not fence:
            outside.append(line)
    assert fence == ""
    assert not [line for line in outside if "@" in line or "::" in line]
    suite = ElementTree.fromstring(junit(document(*steps)))
    assert [case.get("name") for case in suite.iter("testcase")] == ["s1", "f"]
    results = json.loads(sarif(findings(document(*steps), blueprint="b.yaml"), version="1"))
    levels = [item["level"] for item in results["runs"][0]["results"]]
    assert levels == ["warning", "error"]


def test_what_names_no_file_is_found_in_the_blueprint() -> None:
    """
    Each finding has a place that a reviewer can be led to.
    """
    failed = PlannedStep(step="f", target="web/prod/f", status="failed", reason="no")
    found = list(findings(document(planned(1, "w"), failed), blueprint="blueprints/web.yaml"))
    assert [(item.file, item.line, item.level) for item in found] == [
        ("a.tf", 3, "warning"),
        ("blueprints/web.yaml", None, "error"),
    ]


def test_sarif_names_files_as_a_repository_does() -> None:
    """
    A URI reference from the repository, also where the project lies within it.
    """
    found = [Finding("r", "error", "s", "m", "modules/größer als/main.tf", 3)]
    (run,) = json.loads(sarif(found, version="1", prefix="infra/"))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "infra/modules/gr%C3%B6%C3%9Fer%20als/main.tf"
    assert place["region"]["startLine"] == 3


def test_what_junit_counts_is_what_it_holds() -> None:
    """
    Also of a step that is deferred, and forbidden by the policy.
    """
    steps = (
        planned(1, "value"),
        PlannedStep(step="later", target="web/prod/later", status="deferred", reason="no outputs"),
        PlannedStep(step="f", target="web/prod/f", status="failed", reason="no"),
    )
    broken = [
        Violation(rule="protected_steps", verdict="fail", step="later", message="is protected")
    ]
    whole = document(*steps).model_copy(update={"policy": tuple(broken)})
    (suite,) = ElementTree.fromstring(junit(whole))
    counted = {name: int(suite.get(name) or 0) for name in ("tests", "failures", "skipped")}
    held = {name: len(suite.findall(f"testcase/{name}")) for name in ("failure", "skipped")}
    assert counted == {"tests": 3, "failures": held["failure"], "skipped": held["skipped"]}
    assert (held["failure"], held["skipped"]) == (2, 0)


@pytest.mark.parametrize(
    ("unchanged", "said"),
    [(0, "1 step could not be planned"), (1, "no changes in 1 step; 1 step could not be planned")],
)
def test_nothing_is_said_of_the_changes_of_what_could_not_be_planned(
    unchanged: int, said: str
) -> None:
    """
    "No changes" is about the steps that were planned.
    """
    failed = PlannedStep(step="f", target="web/prod/f", status="failed", reason="no")
    same = PlannedStep(step="u", target="web/prod/u", status="unchanged")
    assert plan_summary(document(failed, *[same] * unchanged)) == said


@pytest.mark.parametrize(("problems", "lines"), [(10, 10), (12, 10)])
def test_what_github_would_drop_is_counted(
    problems: int, lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    It shows ten annotations of a level.
    """
    (tmp_path / "b.yaml").touch()
    found = [Problem(f"no {n}", Location("b.yaml", n + 1)) for n in range(problems)]

    annotate_problems(found, tmp_path, {"GITHUB_ACTIONS": "true"})

    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    assert told[0] == "::error file=b.yaml,line=1,title=invalid::no 0"
    assert (told[-1] == "::error::3 more: see the log") is (problems > lines)
