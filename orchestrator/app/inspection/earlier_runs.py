"""
Earlier runs, from this machine or the operation store, and their deployments.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.record.record import CONTRADICTIONS, Attempt, Fault, OperationRecord
from orchestrator.domain.record.run_record import RunRecord, StepRun
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.recovery.rerun_rules import (
    APPLYING,
    deployment_blob,
    failed_run,
    promotion_blocker,
    retry_blocker,
    rollback_blocker,
    run_blocker,
    run_identity_blocker,
    run_to_follow,
    run_to_repeat,
    snapshot_blob,
)
from orchestrator.errors import InDoubt, Refused, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment
    from orchestrator.ports.store import OperationStore
    from orchestrator.run_files import RunFiles


class PriorRun(Struct, frozen=True):
    """
    An earlier applying run and its deployment. ``modules`` are blobs of its snapshots and lock
    files by name, if the new run uses another operation store.
    """

    record: RunRecord
    deployment: StoredDeployment
    modules: Mapping[str, bytes] = {}


def find_run(files: RunFiles, store: OperationStore, run_id: str) -> RunRecord | None:
    """
    Return the record of a run, None if no run has that id.
    """
    local = files.read_run(run_id)
    if local is not None:
        return local
    stored = store.blob(f"runs/{run_id}/run.json")
    if stored is None:
        return None
    try:
        return RunRecord.model_validate_json(stored)
    except ValueError as exc:
        raise StoreUnavailable(
            f"{store.url}: the record of run {run_id} cannot be read",
            hint="a newer version may have written it; the operation records are not affected",
        ) from exc


def store_of_run(stores: Iterable[OperationStore], run_id: str) -> OperationStore | None:
    """
    Return the first store that has a run. Raises StoreUnavailable if none has it and one could not
    be read.
    """
    silent: StoreUnavailable | None = None
    for store in stores:
        try:
            if store.blob(f"runs/{run_id}/run.json") is not None:
                return store
        except StoreUnavailable as exc:
            silent = silent or exc
    if silent is not None:
        raise silent
    return None


def stored_evidence(store: OperationStore, run_id: str, step: str) -> dict[str, bytes]:
    """
    Return the files of a step in a run that the operation store has; empty if none.
    """
    from orchestrator.domain.record.run_record import evidence_blob, unpack_evidence

    data = store.blob(evidence_blob(run_id, step))
    try:
        return unpack_evidence(data) if data else {}
    except ValueError as exc:
        raise StoreUnavailable(
            f"{store.url}: what step {step!r} left in run {run_id} cannot be read: {exc}",
            hint="the operation records are not affected",
        ) from exc


def run_to_retry(
    store: OperationStore, blueprint: str, environment: str, patterns: Sequence[str]
) -> str:
    """
    Return the run that the records of the steps name as failed; if they name none, by the records
    of all steps, because a step that never ran waits for another. Raises Refused if that is not one
    run.
    """
    records = store.records(blueprint, environment)
    chosen = [record for record in records if _matches(record, patterns)]
    return _certain(run_to_repeat(chosen if any(map(failed_run, chosen)) else records))


def run_to_redeploy(
    files: RunFiles,
    store: OperationStore,
    run_id: str | None,
    *,
    project: str,
    blueprint: str,
    environment: str,
    patterns: Sequence[str],
) -> str:
    """
    Return the run that a new attempt follows: ``run_id``, else by the records of the steps, else by
    those of all steps. Raises Refused if that is not one run of the blueprint and environment.
    """
    if run_id is not None:
        run = find_run(files, store, run_id)
        stranger = run_identity_blocker(
            run_id, run, project=project, blueprint=blueprint, environment=environment
        )
        return _certain(stranger or run_id)
    records = store.records(blueprint, environment)
    chosen = [record for record in records if _matches(record, patterns)]
    return _certain(run_to_follow(chosen or records))


def _certain(result: str | Refused) -> str:
    if isinstance(result, Refused):
        raise result
    return result


def read_prior_run(
    files: RunFiles,
    store: OperationStore,
    run_id: str,
    *,
    project: str,
    blueprint: str,
    environment: str | None,
) -> PriorRun:
    """
    Return a run that can be repeated. Raises Refused if `rerun_rules.run_blocker` forbids it,
    StoreUnavailable if its deployment cannot be read.
    """
    from orchestrator.domain.blueprint.stored_deployment import (
        UnreadableDeployment,
        parse_deployment,
    )

    run = find_run(files, store, run_id)
    stored = store.blobs("deployments/")
    blocker = run_blocker(
        run_id, run, stored, project=project, blueprint=blueprint, environment=environment
    )
    if blocker is not None:
        raise blocker
    assert run is not None, "an unknown run is a blocker"
    assert run.deployment is not None, "so is one without a deployment"
    text = store.blob(deployment_blob(run.deployment)) or b""
    try:
        return PriorRun(run, parse_deployment(text, run.deployment))
    except UnreadableDeployment as exc:
        raise StoreUnavailable(
            f"what run {run_id} meant to do cannot be read: {exc}",
            hint="another version of the tool wrote it, or the operation store is damaged",
        ) from exc


def check_promotable(stored: Collection[str], run: RunRecord, steps: Sequence[str]) -> None:
    """
    Raise Refused, with all reasons, if the module of a step cannot be taken from the run and the
    ``stored`` snapshots.
    """
    checks = (promotion_blocker(run, step, stored) for step in steps)
    blockers = [blocker for blocker in checks if blocker is not None]
    if blockers:
        raise refusal(blockers)


def refusal(blockers: Sequence[Refused]) -> Refused:
    """
    Return an error with all blockers, with the reason and hint of the first.
    """
    first = blockers[0]
    return Refused(first.reason, "\n".join(item.message for item in blockers), hint=first.hint)


def _matches(record: OperationRecord, patterns: Sequence[str]) -> bool:
    """
    Return whether a pattern names the step itself, ignoring "+".
    """
    step = record.target.step
    return not patterns or any(fnmatch.fnmatchcase(step, p.strip("+")) for p in patterns)


# The newest runs of a blueprint in an environment: what they tell of a step, and which of them
# can be done again. Reads only.


#: How many runs are looked back for the last verified one, and for one to roll back to; and how
#: many of whatever blueprint are read for that.
RUNS, READ = 50, 400

#: Phases in which a run ends before it has learned anything of what is there.
_EARLY = ("settings", "blueprint", "module", "engine", "init", "plan", "lock")


class RunHistory:
    """
    The runs of a blueprint in an environment; each is read once, when first needed. ``run_ids`` are
    the runs that are looked at, newest first, if not those of this machine and the store.
    """

    def __init__(
        self, reader: ReadContext, summary: BlueprintSummary, run_ids: Sequence[str] | None = None
    ) -> None:
        self._reader = reader
        self._place = (summary.project, summary.blueprint, summary.environment)
        self._ids = reader.run_ids()[:READ] if run_ids is None else run_ids

    @cached_property
    def runs(self) -> list[RunRecord]:
        """
        The newest runs, newest first, at most `RUNS`.
        """
        runs = []
        for run_id in self._ids:
            try:
                run = find_run(self._reader.files, self._reader.store, run_id)
            except StoreUnavailable:
                continue  # a run record that cannot be read hides no operation record
            if run and (run.project, run.blueprint, run.environment) == self._place:
                runs.append(run)
            if len(runs) == RUNS:
                break
        return runs

    def last_run(self, step: str) -> tuple[RunRecord, StepRun] | None:
        """
        Return the newest run with the step, and its row there.
        """
        return next(self._rows(step), None)

    def _rows(self, step: str) -> Iterator[tuple[RunRecord, StepRun]]:
        return ((run, row) for run in self.runs for row in run.steps if row.step == step)

    def finding(self, step: str, since: str = "") -> tuple[RunRecord, StepRun] | None:
        """
        Return the newest run that says what happened to the step, or what exists of it: an earlier
        one that found a state other than recorded, if no later run got far enough to check. Only
        runs after ``since`` count.
        """
        newest = None
        for run, row in self._rows(step):
            if run.run_id <= since:
                break
            newest = newest or (run, row)
            if row.error is not None and row.error.code in CONTRADICTIONS:
                return run, row
            blocked = row.error is None and row.status is StepStatus.PENDING
            if not blocked and (row.error is None or row.error.phase not in _EARLY):
                break
        return newest

    def failed_attempt(self, step: str, since: str = "") -> Attempt | None:
        """
        Return the newest attempt of the step if it came after run ``since`` and failed in a way
        that the status does not show.
        """
        if not any(run_id > since for run_id in self._ids):  # the usual case: none is read
            return None
        run, row = self.finding(step, since) or (None, None)
        if run is None or row is None or row.error is None:
            return None
        command = "apply" if run.command in APPLYING else run.command
        if command not in ("apply", "destroy", "reconcile"):
            return None
        tried = Attempt(command=command, run_id=run.run_id, at=run.started_at, error=row.error)
        return tried if tried.stands_beside else None

    def is_unadopted(self, step: str) -> bool:
        """
        Return whether the newest run that says what exists of the step found objects without a
        record, or failed to adopt them.
        """
        found = self.finding(step)
        if found is None or found[1].error is None:
            return False
        run, code = found[0], found[1].error.code
        return code == "unrecorded_state" or (run.command == "adopt" and code != "nothing_to_adopt")

    def is_moving(self, record: OperationRecord | None) -> bool:
        """
        Return whether a move of the provider state is under way, or was cut short.
        """
        if record is None or record.active_command != "push":
            return False
        run = self._run(record.run_id or "")
        return run is not None and run.command == "move"

    @cached_property
    def _stored(self) -> frozenset[str]:
        """
        The names of the blobs for repeating runs in the operation store.
        """
        blobs = self._reader.store.blobs
        return frozenset((*blobs(deployment_blob("")), *blobs(snapshot_blob(""))))

    def _run_blocker(self, run_id: str, run: RunRecord | None) -> Refused | None:
        project, blueprint, environment = self._place
        return run_blocker(
            run_id,
            run,
            self._stored,
            project=project,
            blueprint=blueprint,
            environment=environment,
        )

    def retry(self, step: str, record: OperationRecord | None) -> tuple[str | None, Refused | None]:
        """
        Return the failed run from which the step can be retried, and the blocker of that retry.
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
        return (None, None) if isinstance(obstacle, str) else (run_id, obstacle)

    def _run(self, run_id: str) -> RunRecord | None:
        """
        Return a run of any age, None if unknown or unreadable.
        """
        recent = next((run for run in self.runs if run.run_id == run_id), None)
        with suppress(StoreUnavailable):
            return recent or find_run(self._reader.files, self._reader.store, run_id)
        return None

    def rollback(
        self, step: str, record: OperationRecord | None
    ) -> tuple[str | None, Refused | None]:
        """
        Return the newest earlier run that the step can be rolled back to, else the blocker of the
        newest run in which the step ended ok.
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
        Return the state lock that the newest run with access to the step's provider state met; a
        run refused over doubts had no access.
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
        Return the newest fault: of a run without an entry, of the record, or of an attempt that
        changed nothing.
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
