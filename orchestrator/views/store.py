"""
Operation stores for a person: what a check found, what was copied.
"""

from __future__ import annotations

from orchestrator.domain.documents.store import (
    StoreCheckDocument,
    StoreCopyDocument,
    StorePruneDocument,
)
from orchestrator.views.formats import moment
from orchestrator.views.page import Page, Paper, Part


def check_text(document: StoreCheckDocument, paper: Paper) -> str:
    """
    Each thing that a store must do: whether it does, how long it takes, or why not; a reason that
    is the one before is not repeated.
    """
    page = Page(paper)
    verdict = "fit for its work" if document.ok else "not usable"
    page.line((document.url, "bold"), f"  {verdict}")
    rows: list[list[Part]] = []
    previous = ""
    for check in document.checks:
        time = f"{check.milliseconds:.1f} ms" if check.milliseconds is not None else ""
        outcome: Part = ("ok", "green") if check.ok else ("failed", "red")
        message = (check.message or time).removeprefix(f"{document.url}: ")
        rows.append(
            [outcome, check.name, message if check.ok or message != previous else "the same"]
        )
        previous = message
    page.table(rows, indent=2)
    if not document.ok:
        page.line("docs/stores.md lists the permissions and grants that are needed")
    return page.render()


def prune_text(document: StorePruneDocument, paper: Paper) -> str:
    """
    Which runs can go, or are gone, and how much goes with them.
    """
    page = Page(paper)
    did = "removed" if document.removed else "can be removed"
    page.line(
        (document.url, "bold"),
        f"  {len(document.runs)} runs and {len(document.blobs)} blobs {did}; "
        f"{document.kept_runs} runs stay, and all entries",
    )
    rows: list[list[Part]] = [
        [
            (run.run_id, "bold"),
            f"{run.command} {run.blueprint}/{run.environment}",
            moment(run.started_at, paper.now),
        ]
        for run in document.runs
    ]
    page.table(rows, indent=2)
    if document.blobs and not document.removed:
        page.line("nothing is removed without --yes")
    return page.render()


def copy_text(document: StoreCopyDocument, paper: Paper) -> str:
    """
    How much is in the other store now.
    """
    page = Page(paper)
    page.line(
        f"{document.entries} entries of {document.targets} targets and {document.blobs} blobs "
        f"are in {document.destination}"
    )
    page.line((f"from {document.source}, verified: sha256 {document.digest}", "dim"))
    return page.render()
