"""
The engine in use, for a person.
"""

from __future__ import annotations

import shlex

from orchestrator.domain.documents.documents import EngineDocument
from orchestrator.views.page import Page, Paper


def engine_text(document: EngineDocument, paper: Paper) -> str:
    """
    Kind, version, how it is started, and why it was chosen.
    """
    page = Page(paper)
    page.line((f"{document.kind} {document.version}", "bold"))
    page.table(
        [
            [("started as", "dim"), shlex.join(document.program)],
            [("chosen by", "dim"), f"{document.source}: {document.why}"],
        ],
        indent=2,
    )
    return page.render()
