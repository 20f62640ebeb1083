"""
What a destroy came to, for a person: what is gone and how that is known, what was kept and why,
what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.domain.documents.run import (
    ConfirmedTarget,
    RemainingTarget,
    RetainedTarget,
    TeardownReport,
)
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.views.formats import count, retained_text, utc
from orchestrator.views.outcome import absence_text
from orchestrator.views.page import Page, Part


def teardown_section(page: Page, report: TeardownReport) -> None:
    """
    Add the report, a line for each target; with verbosity every object that was asked for.
    """
    page.gap()
    page.line(("Teardown", "bold"))
    rows: list[list[Part]] = []
    rows += [[("gone", "good"), (item.step, "bold"), _gone_text(item)] for item in report.gone]
    for item in report.retained:
        rows.append([("kept", "magenta"), (item.step, "bold"), _why_retained(item)])
        if item.review_overdue and item.retained:
            text = f"its review was due on {item.retained.review_by}: ask {item.retained.owner}"
            rows.append(["", "", (text, "bad")])
    for remaining in report.left:
        rows.append([("left", "bad"), (remaining.step, "bold"), _remaining_text(remaining)])
    rows += [[("untouched", "dim"), target, "never applied"] for target in report.untouched]
    rows += [
        [("orphaned", "warn"), target, "alive, no longer in the blueprint"]
        for target in report.orphaned
    ]
    page.table(rows, indent=2)
    if page.paper.verbose:
        _checked(page, report)


def _gone_text(item: ConfirmedTarget) -> str:
    absence = item.absence
    how = absence_text(absence)
    objects = f", {count(len(absence.checked), 'object')}" if absence.checked else ""
    forgotten = sum(check.state == "forgotten" for check in absence.checked)
    if forgotten:
        objects += f", {forgotten} forgotten"
    earlier = "" if item.now else "; by an earlier run"
    return f"confirmed {how}{objects}, {utc(absence.at)}{earlier}"


def _why_retained(item: RetainedTarget) -> str:
    why = retained_text(item.retained) if item.retained else item.reason or ""
    return f"{why}; {_alive(item.objects)}"


def _remaining_text(item: RemainingTarget) -> str:
    waits = f"waits for {', '.join(item.blocked_by)}" if item.blocked_by else ""
    doubts = f"{len(item.in_doubt)} in doubt" if item.in_doubt else ""
    parts = (str(item.status), waits, _alive(item.objects), doubts)
    return "; ".join(part for part in parts if part)


def _alive(objects: Sequence[ObjectRef]) -> str:
    if not objects:
        return "no objects known"
    names = [f"{ref.address} [{ref.id}]" if ref.id else ref.address for ref in objects]
    return "alive: " + ", ".join(names)


def _checked(page: Page, report: TeardownReport) -> None:
    for item in report.gone:
        if not item.absence.checked:
            continue
        page.line((item.step, "bold"), indent=4)
        rows: list[list[Part]] = [
            [check.state, check.address, check.id or ""] for check in item.absence.checked
        ]
        page.table(rows, indent=6)
