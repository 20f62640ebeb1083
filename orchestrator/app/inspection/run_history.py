"""
The newest runs of a blueprint in an environment: what they tell of a step, and which of them can be
done again. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.app.inspection.run_lookup import find_run
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.record.record import Attempt, Fault, OperationRecord
from orchestrator.domain.record.run_record import RunRecord, StepRun
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.recovery.rerun_rules import (
    APPLYING,
    Blocker,
    Skip,
    deployment_blob,
    failed_attempt,
    failed_run,
    newest_finding,
    retry_blocker,
    rollback_blocker,
    run_blocker,
    snapshot_blob,
)
from orchestrator.errors import InDoubt, StoreUnavailable

#: How many runs are looked back for the last verified one, and for one to roll back to; and how
#: many of whatever blueprint are read for that.
RUNS, READ = 50, 400


class RunHistory:
    """
    The runs; each is read once, when it is first asked for.
    """

    def __init__(self, reader: ReadContext, summary: BlueprintSummary) -> None:
        self._reader = reader
        self._project = summary.project
        self._place = (summary.blueprint, summary.environment)

    @cached_property
    def runs(self) -> list[RunRecord]:
        """
        The newest runs of the blueprint in the environment, newest first, at most `RUNS`.
        """
        runs = []
        for run_id in self._reader.run_ids()[:READ]:
            try:
                run = find_run(self._reader.files, self._reader.store, run_id)
            except StoreUnavailable:
                continue  # a run record that cannot be read hides no operation record
            if run is not None and (run.blueprint, run.environment) == self._place:
                runs.append(run)
            if len(runs) == RUNS:
                break
        return runs

    def last_run(self, step: str) -> tuple[RunRecord, StepRun] | None:
        """
        The newest run that had the step, and what became of it there.
        """
        return next(self._rows(step), None)

    def _rows(self, step: str) -> Iterator[tuple[RunRecord, StepRun]]:
        return ((run, row) for run in self.runs for row in run.steps if row.step == step)

    def finding(self, step: str) -> tuple[RunRecord, StepRun] | None:
        """
        The newest run that tells what became of the step, or what is there of it.
        """
        return newest_finding(self._rows(step))

    def failed_attempt(self, step: str) -> Attempt | None:
        """
        The newest attempt of the step, where it failed in a way that the status does not show.
        """
        return failed_attempt(self.finding(step))

    def is_destroying(self, step: str) -> bool:
        """
        Whether the newest run that had the step was a destroy.
        """
        last = self.last_run(step)
        return last is not None and last[0].command == "destroy"

    @cached_property
    def _stored(self) -> frozenset[str]:
        """
        The names of what the operation store keeps to do runs again.
        """
        blobs = self._reader.store.blobs
        return frozenset((*blobs(deployment_blob("")), *blobs(snapshot_blob(""))))

    def _run_blocker(self, run_id: str, run: RunRecord | None) -> Blocker | None:
        blueprint, environment = self._place
        return run_blocker(
            run_id,
            run,
            self._stored,
            project=self._project,
            blueprint=blueprint,
            environment=environment,
        )

    def retry(self, step: str, record: OperationRecord | None) -> tuple[str | None, Blocker | None]:
        """
        The failed run that the step can be retried from, and the blocker of that retry.
        """
        last = self.last_run(step)
        run_id = failed_run(record) if record else None
        if record is None and last is not None and last[0].command in APPLYING:
            run_id = last[0].run_id
        if run_id is None:
            return None, None
        run = self._run(run_id)
        blocker = self._run_blocker(run_id, run)
        if run is None or blocker is not None:
            return run_id, blocker
        obstacle = retry_blocker(run, step, record, self._stored)
        return (None, None) if isinstance(obstacle, Skip) else (run_id, obstacle)

    def _run(self, run_id: str) -> RunRecord | None:
        """
        A run, however long ago; None where nobody knows it, or its record cannot be read.
        """
        recent = next((run for run in self.runs if run.run_id == run_id), None)
        with suppress(StoreUnavailable):
            return recent or find_run(self._reader.files, self._reader.store, run_id)
        return None

    def rollback(
        self, step: str, record: OperationRecord | None
    ) -> tuple[str | None, Blocker | None]:
        """
        The newest earlier run that the step can be rolled back to; else the blocker of the newest
        run in which the step ended ok.
        """
        nearest = None
        for run in self.runs:
            if record is None or run.run_id >= record.run_id:
                continue
            blocker = self._run_blocker(run.run_id, run)
            blocker = blocker or rollback_blocker(run, step, self._stored, unverified=False)
            if blocker is None:
                return run.run_id, None
            if nearest is None and blocker.reason in ("unverified", "snapshot_missing"):
                nearest = (run.run_id, blocker)
        return nearest or (None, None)

    def lock_fault(self, step: str) -> Fault | None:
        """
        The lock that the newest run met which touched the provider state of the step: one that was
        refused for what is in doubt did not.
        """
        for run in self.runs:
            row = next((row for row in run.steps if row.step == step), None)
            if row is None or row.status in (StepStatus.PENDING, StepStatus.SKIPPED):
                continue
            if row.error is None or row.error.phase == "lock":
                return row.error
            if row.error.code != InDoubt.code:
                return None
        return None

    def fault(self, step: str, record: OperationRecord | None) -> Fault | None:
        """
        The newest fault: of a run that left no entry, of the record, or of an attempt that changed
        nothing.
        """
        last = self.finding(step)
        if last is not None and last[1].error is not None:
            return last[1].error
        if record is None:
            return None
        attempt = record.last_attempt
        if attempt is not None and last is not None and attempt.run_id < last[0].run_id:
            attempt = None  # a later run had the step, and ended without a fault of its own
        return record.error or (attempt.error if attempt else None)
