"""
The verdict of a gate, for people.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.views.page import Page, Paper
from orchestrator.views.plan import plan_text
from orchestrator.views.plan_markdown import fenced

if TYPE_CHECKING:
    from orchestrator.domain.documents.gate import GateDocument

_STYLES = {"pass": "good", "warn": "warn", "fail": "bad"}


def gate_text(document: GateDocument, paper: Paper) -> str:
    """
    The verdict with every reason, what fails first, and the plan.
    """
    page = Page(paper)
    gate_reasons(page, document)
    text = page.render()
    if document.plan is None:
        return text
    return f"{text}\n{plan_text(document.plan, paper, extent='possible')}"


def gate_markdown(document: GateDocument) -> str:
    """
    The verdict and its reasons as Markdown, to stand before the plan.
    """
    page = Page(Paper(now=datetime.min, width=100))
    gate_reasons(page, document)
    return f"## gate: {document.verdict}\n\n{fenced(page.render().strip())}\n"


def gate_reasons(page: Page, document: GateDocument) -> None:
    """
    Add the verdict and its reasons.
    """
    target = f"{document.blueprint}/{document.environment}"
    page.line((f"gate {target}: ", "bold"), (document.verdict, _STYLES[document.verdict]))
    for item in sorted(document.reasons, key=lambda reason: reason.severity != "fail"):
        where = f"{item.step}: " if item.step else ""
        page.line(
            (item.severity, _STYLES[item.severity]),
            f" {where}{item.message} ",
            (f"({item.code})", "dim"),
            indent=2,
            hang=7,
        )
        if item.remedy:
            page.next(item.remedy, indent=7)
