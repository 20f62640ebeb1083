"""
The reading commands: ``status``, ``history``, ``runs``. They change nothing (law 16).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.app.conditions import Watch
from orchestrator.app.earlier import find_run
from orchestrator.app.ownership import check_owner
from orchestrator.app.reviews import overdue_reviews
from orchestrator.domain.commands import command_line
from orchestrator.domain.documents import (
    GraphDocument,
    GraphStep,
    HistoryDocument,
    HistoryEntry,
    RunLine,
    RunsDocument,
    StatusDocument,
    StepOutcome,
    StepState,
)
from orchestrator.domain.outline import Outline
from orchestrator.domain.record import NextCommand, OperationRecord, RunRecord
from orchestrator.domain.retention import is_overdue
from orchestrator.domain.run_document import (
    AttemptEvidence,
    EvidenceFile,
    RunDocument,
    teardown_report,
)
from orchestrator.domain.states import NOTHING_THERE, READY, Condition, Status, StepStatus, verdict
from orchestrator.domain.target import Target
from orchestrator.errors import Invalid, Problem, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.ports import OperationStore, Processes, RunFiles, Spool


@dataclass(frozen=True, slots=True)
class Reader:
    """
    The ports of reading commands. ``work`` is where the targets' working directories are, ``today``
    the date in UTC.
    """

    project: str
    store: OperationStore
    spool: Spool
    files: RunFiles
    processes: Processes
    silence: float
    work: Path
    today: date

    def status(self, outline: Outline, steps: Collection[str] | None = None) -> StatusDocument:
        """
        The status of a blueprint in an environment; with ``steps`` only those are listed. The
        verdict is over what is listed.
        """
        watch = self.watch()
        records = self.records(outline)
        waiting = self.waiting(outline, records)
        runs = self._run_rows(records.values())
        listed = [step for step in outline.graph.order if steps is None or step in steps]
        shown, conditions = [], []
        for step in listed:
            newest = waiting.get(step) or records.get(step)
            condition = watch.condition(newest) if newest else None
            conditions.append((newest.status if newest else None, condition))
            if newest is None:
                shown.append(_pending(outline, outline.target(step), records))
            else:
                state = self._recorded(newest, runs, condition)
                shown.append(state.model_copy(update={"spooled": step in waiting}))
        return StatusDocument(
            project=self.project,
            blueprint=outline.blueprint,
            environment=outline.environment,
            verdict=verdict(conditions),
            steps=tuple(shown),
            orphaned=orphaned(outline, records),
            next=_next(outline, shown),
        )

    def watch(self) -> Watch:
        """
        What tells who is alive.
        """
        return Watch(self.store, self.files, self.processes, self.silence)

    def records(self, outline: Outline) -> dict[str, OperationRecord]:
        """
        The newest records by step, orphans included; Refused where one is somebody else's.
        """
        records = {}
        for found in self.store.records(outline.blueprint, outline.environment):
            check_owner(found, self.project, (outline.path, *outline.moved_from))
            records[found.target.step] = found
        return records

    def waiting(
        self, outline: Outline, records: Mapping[str, OperationRecord]
    ) -> dict[str, OperationRecord]:
        """
        The outcomes that wait on disk and are the next entry of their step.
        """
        place = (outline.blueprint, outline.environment)
        found = {}
        for item in self.spool.pending():
            step = item.target.step
            known = records.get(step)
            ours = (item.target.blueprint, item.target.environment) == place
            if ours and (known is None or item.sequence == known.sequence + 1):
                found[step] = item
        return found

    def left_over(self, declared: Collection[tuple[str, str]]) -> list[StatusDocument]:
        """
        The status of blueprints and environments that have records of this project and no file any
        more: all their targets are orphaned.
        """
        found: dict[tuple[str, str], list[OperationRecord]] = {}
        for record in self.store.records():
            place = (record.target.blueprint, record.target.environment)
            if record.project == self.project and place not in declared:
                found.setdefault(place, []).append(record)
        watch = self.watch()
        documents = []
        for (blueprint, environment), records in sorted(found.items()):
            runs = self._run_rows(records)
            states = [self._recorded(record, runs, watch.condition(record)) for record in records]
            documents.append(
                StatusDocument(
                    project=self.project,
                    blueprint=blueprint,
                    environment=environment,
                    verdict=verdict((record.status, watch.condition(record)) for record in records),
                    steps=tuple(states),
                    orphaned=tuple(
                        str(record.target.target)
                        for record in records
                        if record.status not in NOTHING_THERE
                    ),
                )
            )
        return documents

    def _recorded(
        self,
        record: OperationRecord,
        runs: Mapping[tuple[str, str], StepStatus],
        condition: Condition | None,
    ) -> StepState:
        """
        A step as its newest record tells it.
        """
        target = record.target.target
        lease = self.store.lease(record.run_id) if record.status is Status.RUNNING else None
        flying = lease.in_flight if lease else ()
        directory = self.work / target.blueprint / target.environment / target.step
        return StepState(
            step=target.step,
            target=str(target),
            status=StepStatus(str(record.status)),
            condition=condition,
            sequence=record.sequence,
            run_id=record.run_id,
            last_run_status=runs.get((record.run_id, target.step)),
            module_ref=record.module_ref,
            active_command=record.active_command,
            failed_command=record.failed_command,
            last_error=record.last_error,
            in_doubt=record.resources.in_doubt,
            outputs=record.outputs,
            sensitive_outputs=record.sensitive_outputs,
            verification=record.verification,
            updated_at=record.updated_at,
            directory=str(directory) if directory.exists() else None,
            outputs_from=record.outputs_from,
            in_flight=tuple(item for item in flying if item.target == str(target)),
            tainted=record.resources.tainted,
            retained=record.retained,
            lineage=record.lineage,
            review_overdue=is_overdue(record.retained, self.today),
        )

    def _run_rows(self, records: Iterable[OperationRecord]) -> dict[tuple[str, str], StepStatus]:
        """
        What became of each step in the runs that the records come from; each run is read once. A
        run record that cannot be read hides no operation record.
        """
        runs = []
        for run_id in {record.run_id for record in records}:
            with suppress(StoreUnavailable):
                runs.append(find_run(self.files, self.store, run_id))
        return {(run.run_id, row.step): row.status for run in runs if run for row in run.steps}

    def history(self, target: Target) -> HistoryDocument:
        """
        All entries of a target; Invalid where it has none.
        """
        entries = self.store.history(target)
        if not entries:
            known = ", ".join(str(record.target.target) for record in self.store.records())
            raise Invalid(
                [
                    Problem(
                        f"there is no record of {target}", hint=f"recorded are: {known or 'none'}"
                    )
                ]
            )
        return HistoryDocument(
            project=entries[0].project,
            target=str(target),
            entries=tuple(
                HistoryEntry.model_validate(
                    {
                        name: getattr(entry, name)
                        for name in HistoryEntry.model_fields
                        if name != "in_doubt"
                    }
                    | {"in_doubt": entry.resources.in_doubt}
                )
                for entry in entries
            ),
        )

    def runs(self, blueprint: str | None, environment: str | None, limit: int) -> RunsDocument:
        """
        The newest runs, of this machine and of the store; at most ``limit``.
        """
        lines: list[RunLine] = []
        for run_id in self.run_ids():
            run = find_run(self.files, self.store, run_id)
            if run is None or blueprint not in (None, run.blueprint):
                continue
            if environment not in (None, run.environment):
                continue
            lines.append(_line(run))
            if len(lines) == limit:
                break
        overdue = overdue_reviews(self.store, self.project, self.today)
        return RunsDocument(project=self.project, runs=tuple(lines), overdue=overdue)

    def run_ids(self) -> list[str]:
        """
        The ids of all runs, of this machine and of the store, newest first.
        """
        names = self.store.blobs("runs/")
        stored = {name.split("/")[1] for name in names if name.endswith("/run.json")}
        return sorted({*self.files.runs(), *stored}, reverse=True)

    def run(self, run_id: str) -> RunDocument:
        """
        One run with its evidence; Invalid where there is none of that id.
        """
        run = find_run(self.files, self.store, run_id)
        if run is None:
            raise Invalid(
                [Problem(f"there is no run {run_id}", hint="`orchestrator runs` lists them")]
            )
        directory = self.files.directory(run_id)
        attempts = [
            AttemptEvidence(
                step=row.step,
                number=number,
                directory=str(place),
                files=tuple(_evidence(place)),
            )
            for row in run.steps
            for number, place in self.files.attempts(run_id, row.step)
        ]
        return RunDocument(
            run=run,
            directory=str(directory),
            attempts=tuple(attempts),
            teardown=teardown_report(run, self.today),
        )


def _next(outline: Outline, shown: Iterable[StepState]) -> tuple[NextCommand, ...]:
    """
    Where to go on reading if something is not well.
    """
    unwell = (StepStatus.ERROR, StepStatus.RUNNING)
    if not any(row.status in unwell or row.in_doubt or row.spooled for row in shown):
        return ()
    why = "what is known of every step, and what is safe to do now"
    return (NextCommand(command=command_line(outline, "recover"), why=why),)


def orphaned(outline: Outline, records: Mapping[str, OperationRecord]) -> tuple[str, ...]:
    """
    The targets that may be alive and whose step is no longer in the blueprint.
    """
    return tuple(
        str(record.target.target)
        for step, record in sorted(records.items())
        if step not in outline.graph and record.status not in NOTHING_THERE
    )


def _pending(outline: Outline, target: Target, records: Mapping[str, OperationRecord]) -> StepState:
    """
    A step without a record, and the upstream steps that are not ready, in the order of an apply.
    """
    upstreams = outline.graph.upstreams(target.step)
    blocked = tuple(
        up
        for up in outline.graph.order
        if up in upstreams and (up not in records or records[up].status not in READY)
    )
    return StepState(
        step=target.step, target=str(target), status=StepStatus.PENDING, blocked_by=blocked
    )


def _line(run: RunRecord) -> RunLine:
    shared = {name: getattr(run, name) for name in RunLine.model_fields if name != "steps"}
    steps = tuple(StepOutcome(step=row.step, status=row.status) for row in run.steps)
    return RunLine.model_validate({**shared, "steps": steps})


def _evidence(directory: Path) -> list[EvidenceFile]:
    return [
        EvidenceFile(name=path.relative_to(directory).as_posix(), size=path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def graph_document(outline: Outline) -> GraphDocument:
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
