"""
The documents of ``history``, ``runs`` and ``graph``. They change nothing.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from orchestrator.app.inspection.earlier_runs import find_run, store_of_run, stored_evidence
from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.documents.documents import GraphDocument, GraphStep
from orchestrator.domain.documents.run import (
    AttemptEvidence,
    EvidenceFile,
    HistoryDocument,
    HistoryEntry,
    OverdueReview,
    RunDocument,
    RunLine,
    RunsDocument,
    StepOutcome,
    UnreadRun,
    teardown_report,
)
from orchestrator.domain.documents.status import UnreadStore
from orchestrator.domain.record.run_record import Lease, ProcessIdentity, RunRecord, evidence_blob
from orchestrator.domain.record.states import Status, StepStatus
from orchestrator.domain.target import Target
from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.ports.store import OperationStore


def history_of(reader: ReadContext, target: Target) -> HistoryDocument:
    """
    Return all entries of a target. Raises Invalid if it has none.
    """
    entries = reader.store.history(target)
    if not entries:
        targets = ", ".join(str(record.target) for record in reader.store.records())
        raise Invalid(
            [Problem(f"there is no record of {target}", hint=f"recorded are: {targets or 'none'}")]
        )
    return HistoryDocument(
        project=entries[0].project,
        target=str(target),
        entries=tuple(
            HistoryEntry.of(
                entry,
                in_doubt=entry.resources.in_doubt,
                settled=entry.settled[len(before.settled) if before else 0 :],
            )
            for entry, before in zip_longest(entries, entries[1:])
            if entry is not None
        ),
    )


def newest_runs(
    readers: Sequence[ReadContext], blueprint: str | None, environment: str | None, limit: int
) -> RunsDocument:
    """
    Return the newest runs, at most ``limit``, of this machine and all readable stores. A damaged
    run record counts. Raises StoreUnavailable if no store can be read.
    """
    lines: list[RunLine] = []
    unread: list[UnreadStore] = []
    damaged: list[UnreadRun] = []
    overdue: dict[str, OverdueReview] = {}
    readers_by_run: dict[str, ReadContext] = {}
    for reader in readers:
        try:
            run_ids = reader.run_ids()
            reviews = overdue_reviews(reader.store, reader.project, reader.today)
        except StoreUnavailable as exc:
            if len(unread) + 1 == len(readers):
                raise
            unread.append(UnreadStore(url=reader.store.url, message=exc.message))
            continue
        for run_id in run_ids:
            readers_by_run.setdefault(run_id, reader)
        overdue |= {review.target: review for review in reviews}
    for run_id in sorted(readers_by_run, reverse=True):
        if len(lines) + len(damaged) == limit:
            break
        reader = readers_by_run[run_id]
        try:
            run = find_run(reader.files, reader.store, run_id)
        except StoreUnavailable as exc:
            damaged.append(UnreadRun(run_id=run_id, message=exc.message))
            continue
        if run is None or blueprint not in (None, run.blueprint):
            continue
        if environment not in (None, run.environment):
            continue
        lines.append(RunLine.of(run, steps=tuple(StepOutcome.of(row) for row in run.steps)))
    return RunsDocument(
        project=readers[0].project,
        runs=tuple(lines),
        overdue=tuple(overdue[target] for target in sorted(overdue)),
        unread_stores=tuple(unread),
        unread_runs=tuple(damaged),
    )


def run_details(readers: Sequence[ReadContext], run_id: str) -> RunDocument:
    """
    Return a run with its evidence, from this machine or any store. Raises Invalid if no run has
    that id.
    """
    reader = _reader_of(readers, run_id)
    run = find_run(reader.files, reader.store, run_id)
    if run is None:
        raise Invalid([Problem(f"there is no run {run_id}", hint="`orchestrator runs` lists them")])
    directory = reader.files.directory(run_id)
    lease = reader.store.lease(run_id) if run.ended_at is None else None
    run = _with_begun(run, lease)
    attempts = [item for row in run.steps for item in _attempts(reader, run_id, row.step)]
    return RunDocument(
        run=run,
        directory=str(directory),
        attempts=tuple(attempts),
        teardown=teardown_report(run, reader.today),
        heartbeat=lease,
    )


def _with_begun(run: RunRecord, lease: Lease | None) -> RunRecord:
    """
    Return the run with steps that its heartbeat reports as begun: a run record lists only steps
    that ended.
    """
    begun = lease.targets if lease else ()
    steps = (
        row.model_copy(update={"status": StepStatus.RUNNING})
        if row.status is StepStatus.PENDING and row.target in begun
        else row
        for row in run.steps
    )
    return run.model_copy(update={"steps": tuple(steps)})


def _attempts(reader: ReadContext, run_id: str, step: str) -> list[AttemptEvidence]:
    """
    Return the evidence of a step's attempts: on this machine, else in the operation store.
    """
    local = [
        AttemptEvidence(
            step=step, number=number, directory=str(place), files=tuple(_evidence(place))
        )
        for number, place in reader.files.attempts(run_id, step)
    ]
    stored: dict[int, list[EvidenceFile]] = {}
    here = {item.number for item in local}
    for name, data in stored_evidence(reader.store, run_id, step).items():
        number, _, path = name.partition("/")
        if int(number) not in here:
            stored.setdefault(int(number), []).append(EvidenceFile(name=path, size=len(data)))
    place = f"{reader.store.url}: {evidence_blob(run_id, step)}"
    in_store = [
        AttemptEvidence(step=step, number=number, directory=place, files=tuple(files))
        for number, files in stored.items()
    ]
    return sorted([*local, *in_store], key=lambda item: item.number)


def step_logs(readers: Sequence[ReadContext], run_id: str, step: str) -> dict[str, str]:
    """
    Return the masked logs of a step in a run, by attempt and call, in the order of the calls, from
    this machine, else from a store. Raises Invalid if there are none.
    """
    reader = _reader_of(readers, run_id)
    here = reader.files.masked(run_id, step)
    files = {**stored_evidence(reader.store, run_id, step), **here}
    logs = {name: data for name, data in files.items() if name.endswith(".log")}
    if logs:
        begun = {name: _begun(files, name) for name in logs}
        ordered = sorted(logs, key=lambda name: (begun[name], name))
        return {
            name.removesuffix(".log"): logs[name].decode("utf-8", "replace") for name in ordered
        }
    run = run_details(readers, run_id).run
    hint = f"its steps: {', '.join(row.step for row in run.steps)}"
    raise Invalid([Problem(f"run {run_id} left no logs of step {step!r}", hint=hint)])


def _reader_of(readers: Sequence[ReadContext], run_id: str) -> ReadContext:
    """
    Return the reader whose store has a run; the first one if only this machine has it, or nobody.
    Raises StoreUnavailable if the run is not found and a store could not be read.
    """
    try:
        store = store_of_run((reader.store for reader in readers), run_id)
    except StoreUnavailable:
        if readers[0].files.read_run(run_id) is None:
            raise
        store = None
    return next((reader for reader in readers if reader.store is store), readers[0])


def _begun(files: Mapping[str, bytes], log: str) -> tuple[int, float]:
    """
    Return the attempt of a call and when its process began; calls without a time come last.
    """
    identity = files.get(log.removesuffix(".log") + ".identity.json", b"")
    try:
        began = float(ProcessIdentity.model_validate_json(identity).started)
    except ValueError:
        began = math.inf
    return int(log.partition("/")[0]), began


def _evidence(directory: Path) -> list[EvidenceFile]:
    return [
        EvidenceFile(name=path.relative_to(directory).as_posix(), size=path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def graph_document(
    summary: BlueprintSummary, touched: Mapping[str, tuple[str, ...]] | None = None
) -> GraphDocument:
    """
    Return the steps in the order of an apply; a step's wave is one more than the highest of its
    upstreams. With ``touched``, only steps that a change affects, with the reasons.
    """
    graph = summary.graph if touched is None else summary.graph.subset(touched)
    waves: dict[str, int] = {}
    for step in graph.order:
        waves[step] = 1 + max((waves[up] for up in graph.needs(step)), default=0)
    return GraphDocument(
        blueprint=summary.blueprint,
        environment=summary.environment,
        steps=tuple(
            GraphStep(
                step=step,
                module_ref=summary.steps[step].module_ref,
                wave=waves[step],
                needs=tuple(up for up in graph.order if up in graph.needs(step)),
                owned_by=summary.steps[step].owned_by,
                reasons=(touched or {}).get(step, ()),
            )
            for step in graph.order
        ),
    )


def overdue_reviews(
    store: OperationStore, project: str, today: datetime.date
) -> tuple[OverdueReview, ...]:
    """
    Return the overdue reviews of a project's retained targets, sorted by target.
    """
    return tuple(
        OverdueReview(
            target=str(record.target),
            owner=record.retained.owner,
            review_by=record.retained.review_by,
        )
        for record in store.records()
        if record.project == project
        and record.status is Status.RETAINED
        and record.retained is not None
        and record.retained.is_overdue(today)
    )
