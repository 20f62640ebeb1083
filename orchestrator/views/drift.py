"""
What changed outside the engine, for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.views.formats import count
from orchestrator.views.outcome import fault_text
from orchestrator.views.page import Page, Paper, Part
from orchestrator.views.plan_changes import drifted_objects, plan_diagnostic

if TYPE_CHECKING:
    from orchestrator.domain.documents.gate import DriftDocument, DriftedStep


def drift_text(document: DriftDocument, paper: Paper) -> str:
    """
    The drift of a blueprint, step by step.
    """
    page = Page(paper)
    objects = sum(len(step.resources) for step in document.steps)
    failed = sum(step.status == "failed" for step in document.steps)
    head = f"{count(objects, 'object')} changed" if objects else "none"
    tail = f"; {count(failed, 'step')} could not be looked at" if failed else ""
    target = f"{document.blueprint}/{document.environment}"
    page.line((f"drift of {target}: ", "bold"), head, tail)
    page.gap()
    for step in document.steps:
        _step(page, step)
    for address in document.expired:
        page.line(("warning", "warn"), f": the rule that accepts drift of {address} has expired")
    return page.render()


def _step(page: Page, step: DriftedStep) -> None:
    name: Part = (step.step, "bold")
    accepted = f" ({count(len(step.accepted), 'object')} accepted)" if step.accepted else ""
    match step.status:
        case "failed":
            page.line(name, ": ", (fault_text(step.error) if step.error else "", "bad"), indent=2)
            for item in step.diagnostics:
                plan_diagnostic(page, item, indent=4)
            if step.error and not step.diagnostics:
                page.line(step.error.summary, indent=4)
        case "skipped":
            page.line(name, f": {step.reason}", indent=2)
        case "same":
            page.line(name, ": as it was left", accepted, indent=2)
        case "drifted":
            page.line(name, ":", accepted, indent=2)
            drifted_objects(page, step.resources, indent=4)
