"""
A plan as GitHub-flavoured Markdown: for a comment on a pull request, a step summary, a merge
request.

Whatever a provider, a module or a person wrote stands in code fences longer than any in it, so that
it can neither format nor mention anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.views.formats import planned
from orchestrator.views.page import Page, Paper
from orchestrator.views.plan import forbidden, losses, plan_summary, step_plan

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import PlanDocument

#: A comment on GitHub takes 65,536 characters; something is left for what stands around it.
LIMIT = 60_000
_LEAST = 400  # characters that are worth a part of a step
_WIDTH = 100


def plan_markdown(document: PlanDocument, paper: Paper, *, whole: str, head: str = "") -> str:
    """
    The plan in at most `LIMIT` characters, after ``head``; where that is not all of it, ``whole``
    says where the rest is.
    """
    paper = Paper(now=paper.now, width=_WIDTH)
    target = f"{document.blueprint}/{document.environment}"
    head += f"### plan of {document.command} `{target}`: {plan_summary(document)}\n"
    page = Page(paper)
    if document.command == "apply":
        losses(page, document)
    text = page.render().strip("\n")
    if text:
        head += f"\n> [!CAUTION]\n> Objects would be destroyed or replaced.\n\n{fenced(text)}"
    refused = Page(paper)
    forbidden(refused, document)
    if document.policy:
        forbids = any(item.verdict == "fail" for item in document.policy)
        heading = "The policy forbids this." if forbids else "The policy warns of this."
        head += f"\n> [!WARNING]\n> {heading}\n\n"
        head += fenced(refused.render().strip("\n"))
    sections = list(_sections(document, paper))
    rows = "".join(f"| `{item.step}` | {item.outcome} |\n" for item in sections)
    head += f"\n| step | plan |\n|---|---|\n{rows}" if rows else ""
    note = f"\nShortened to {LIMIT:,} characters. The whole plan: {whole}\n"
    if len(head) + len(note) > LIMIT:
        return head[: LIMIT - len(note)].rpartition("\n")[0] + "\n" + note
    document_text, cut = head, False
    for section in sections:
        if not section.body:
            continue
        room = LIMIT - len(document_text) - len(note)
        full = section.text(section.body)
        if len(full) > room:
            cut = True
            beginning = section.body[: max(room - _LEAST, 0)].rpartition("\n")[0]
            full = section.text(f"{beginning}\n...") if len(beginning) > _LEAST else ""
            full = full if len(full) <= room else ""
        document_text += full
    return document_text + (note if cut else "")


class _Section(Struct, frozen=True):
    step: str
    outcome: str
    body: str

    def text(self, body: str) -> str:
        return (
            f"\n<details><summary><b>{self.step}</b>: {self.outcome}</summary>\n\n"
            f"{fenced(body)}\n</details>\n"
        )


def _sections(document: PlanDocument, paper: Paper) -> Iterator[_Section]:
    for step in document.steps:
        outcome = {
            "planned": planned(step.actions) if step.actions else "only outputs change",
            "unchanged": "no changes",
            "deferred": f"deferred: waits for {_names(step.waits_for)}"
            if step.waits_for
            else "deferred",
            "failed": "**could not be planned**",
        }[step.status]
        page = Page(paper)
        if step.reason or step.status not in ("unchanged", "deferred") or step.has_changes:
            step_plan(page, step)
        yield _Section(step.step, outcome, page.render().strip("\n"))


def _names(steps: Iterable[str]) -> str:
    return ", ".join(f"`{step}`" for step in steps)


def fenced(text: str) -> str:
    """
    The text in a code fence that nothing in it ends.
    """
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}\n"
