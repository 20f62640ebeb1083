"""
The documents of ``history``, ``runs`` and ``graph``. They change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.app.inspection.overdue_reviews import overdue_reviews
from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.app.inspection.run_lookup import find_run
from orchestrator.domain.blueprint.summary import BlueprintSummary
from orchestrator.domain.documents.documents import (
    GraphDocument,
    GraphStep,
    HistoryDocument,
    HistoryEntry,
    RunLine,
    RunsDocument,
    StepOutcome,
)
from orchestrator.domain.documents.run import (
    AttemptEvidence,
    EvidenceFile,
    RunDocument,
    teardown_report,
)
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.target import Target
from orchestrator.errors import Invalid, Problem

if TYPE_CHECKING:
    pass


def history_of(reader: ReadContext, target: Target) -> HistoryDocument:
    """
    All entries of a target; Invalid where it has none.
    """
    entries = reader.store.history(target)
    if not entries:
        known = ", ".join(str(record.target.target) for record in reader.store.records())
        raise Invalid(
            [Problem(f"there is no record of {target}", hint=f"recorded are: {known or 'none'}")]
        )
    return HistoryDocument(
        project=entries[0].project,
        target=str(target),
        entries=tuple(
            HistoryEntry.of(entry, in_doubt=entry.resources.in_doubt) for entry in entries
        ),
    )


def newest_runs(
    readers: Sequence[ReadContext], blueprint: str | None, environment: str | None, limit: int
) -> RunsDocument:
    """
    The newest runs, of this machine and of all stores; at most ``limit``.
    """
    lines: list[RunLine] = []
    known = [(run_id, reader) for reader in readers for run_id in reader.run_ids()]
    readers_by_run = dict(reversed(known))
    for run_id in sorted(readers_by_run, reverse=True):
        reader = readers_by_run[run_id]
        run = find_run(reader.files, reader.store, run_id)
        if run is None or blueprint not in (None, run.blueprint):
            continue
        if environment not in (None, run.environment):
            continue
        lines.append(_line(run))
        if len(lines) == limit:
            break
    overdue = {
        review.target: review
        for reader in readers
        for review in overdue_reviews(reader.store, reader.project, reader.today)
    }
    return RunsDocument(
        project=readers[0].project,
        runs=tuple(lines),
        overdue=tuple(overdue[target] for target in sorted(overdue)),
    )


def run_details(readers: Sequence[ReadContext], run_id: str) -> RunDocument:
    """
    One run with its evidence, of this machine or of any store; Invalid where there is none of that
    id.
    """
    reader, run = readers[0], None
    for reader in readers:
        run = find_run(reader.files, reader.store, run_id)
        if run is not None:
            break
    if run is None:
        raise Invalid([Problem(f"there is no run {run_id}", hint="`orchestrator runs` lists them")])
    directory = reader.files.directory(run_id)
    attempts = [
        AttemptEvidence(
            step=row.step,
            number=number,
            directory=str(place),
            files=tuple(_evidence(place)),
        )
        for row in run.steps
        for number, place in reader.files.attempts(run_id, row.step)
    ]
    return RunDocument(
        run=run,
        directory=str(directory),
        attempts=tuple(attempts),
        teardown=teardown_report(run, reader.today),
    )


def _line(run: RunRecord) -> RunLine:
    return RunLine.of(run, steps=tuple(StepOutcome.of(row) for row in run.steps))


def _evidence(directory: Path) -> list[EvidenceFile]:
    return [
        EvidenceFile(name=path.relative_to(directory).as_posix(), size=path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def graph_document(outline: BlueprintSummary) -> GraphDocument:
    """
    The steps in the order of an apply; a step's wave is one more than that of what it needs.
    """
    waves: dict[str, int] = {}
    for step in outline.graph.order:
        waves[step] = 1 + max((waves[up] for up in outline.graph.needs(step)), default=0)
    return GraphDocument(
        blueprint=outline.blueprint,
        environment=outline.environment,
        steps=tuple(
            GraphStep(
                step=step,
                module_ref=outline.steps[step].module_ref,
                wave=waves[step],
                needs=tuple(up for up in outline.graph.order if up in outline.graph.needs(step)),
                owned_by=outline.steps[step].owned_by,
            )
            for step in outline.graph.order
        ),
    )
