"""
The outputs of steps, for a person.
"""

from __future__ import annotations

import json

from orchestrator.domain.documents.documents import OutputsDocument
from orchestrator.domain.record.states import StepStatus
from orchestrator.views.page import Page, Paper


def outputs_text(document: OutputsDocument, paper: Paper) -> str:
    """
    A line for each output, whole: ``step.name = value``.
    """
    page = Page(paper)
    for step in document.steps:
        note = "" if step.status in (StepStatus.OK, StepStatus.RETAINED) else "  (was known)"
        for name, value in sorted(step.outputs.items()):
            shown = json.dumps(value, ensure_ascii=False)
            page.line(f"{step.step}.{name} = {shown}", (note, "dim"))
        for name in sorted(step.sensitive_outputs):
            page.line(f"{step.step}.{name} = ", ("(sensitive)", "dim"))
    if not any(step.outputs or step.sensitive_outputs for step in document.steps):
        page.line(f"{document.blueprint}/{document.environment}: no output is recorded")
    return page.render()
