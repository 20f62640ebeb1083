"""
The documents of ``runs``, ``runs show`` and ``history``, with the report of a destroy.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.documents.status import UnreadStore
from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.record.objects import Absence, Doubt, ObjectRef, SettledDoubt
from orchestrator.domain.record.record import (
    Actor,
    Attempt,
    Command,
    HookResult,
    Lineage,
    Retention,
)
from orchestrator.domain.record.run_record import Lease, RunRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status, StepStatus
from orchestrator.domain.text import Word

GONE = tuple(StepStatus(status) for status in NOTHING_THERE)


class EvidenceFile(JsonModel):
    """
    A file of an attempt: name relative to the attempt's directory, size in bytes.
    """

    name: Word
    size: int


class AttemptEvidence(JsonModel):
    """
    The evidence of one attempt of a step, numbered from 1.
    """

    step: Word
    number: int
    directory: Word
    files: tuple[EvidenceFile, ...] = ()


class ConfirmedTarget(JsonModel):
    """
    A target that is confirmed gone: the method, the time, and the objects. ``now``: confirmed by
    this run, not an earlier one.
    """

    step: Word
    target: Word
    now: bool
    absence: Absence


class RetainedTarget(JsonModel):
    """
    A target that a destroy left alone: ``retained``, or (None) because something retained needs it.
    """

    step: Word
    target: Word
    reason: str | None = None
    retained: Retention | None = None
    review_overdue: bool = False
    objects: tuple[ObjectRef, ...] = ()


class RemainingTarget(JsonModel):
    """
    A target that was to be destroyed and is not confirmed gone, with the objects that may be alive.
    """

    step: Word
    target: Word
    status: StepStatus
    reason: str | None = None
    blocked_by: tuple[Word, ...] = ()
    objects: tuple[ObjectRef, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()


class TeardownReport(JsonModel):
    """
    The result of a destroy by target. ``untouched`` are targets that were never applied and have no
    record, ``orphaned`` those that are alive and no longer in the blueprint.
    """

    gone: tuple[ConfirmedTarget, ...] = ()
    retained: tuple[RetainedTarget, ...] = ()
    left: tuple[RemainingTarget, ...] = ()
    untouched: tuple[Word, ...] = ()
    orphaned: tuple[Word, ...] = ()


class RunDocument(JsonDocument):
    """
    The result of ``runs show``: the run record, the location of its evidence, the report of a
    destroy, and the last heartbeat of a run that has not ended.
    """

    schema_: Literal["orchestrator.run_details/1"] = Field(
        "orchestrator.run_details/1", alias="schema"
    )
    run: RunRecord
    directory: Word
    attempts: tuple[AttemptEvidence, ...] = ()
    teardown: TeardownReport | None = None
    heartbeat: Lease | None = None


def teardown_report(run: RunRecord, today: date) -> TeardownReport | None:
    """
    Return the report of a destroy, None for any other command.
    """
    if run.command != "destroy":
        return None
    gone, retained, remaining, untouched = [], [], [], []
    for row in run.steps:
        if row.absence is not None and row.absence.verdict == "confirmed":
            gone.append(ConfirmedTarget.of(row, now=row.status in GONE))
        elif row.status is not StepStatus.SKIPPED:
            reason = row.last_error or row.reason
            remaining.append(RemainingTarget.of(row, reason=reason, objects=row.remaining))
        elif row.sequence is not None:
            overdue = row.retained is not None and row.retained.is_overdue(today)
            retained.append(RetainedTarget.of(row, review_overdue=overdue, objects=row.remaining))
        else:
            untouched.append(row.target)
    return TeardownReport(
        gone=tuple(gone),
        retained=tuple(retained),
        left=tuple(remaining),
        untouched=tuple(untouched),
        orphaned=run.orphaned,
    )


# The documents of ``history`` and ``runs``: entries of a record, and runs.


class HistoryEntry(JsonModel):
    """
    An entry of a target's record, without what does not change from entry to entry. ``settled`` are
    the doubts that it settled.
    """

    sequence: int
    entry_id: Word
    status: Status
    previous_status: Status | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    run_id: Word
    updated_at: datetime
    actor: Actor
    in_doubt: tuple[Doubt, ...] = ()
    lineage: Lineage | None = None
    last_attempt: Attempt | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    absence: Absence | None = None
    settled: tuple[SettledDoubt, ...] = ()


class HistoryDocument(JsonDocument):
    """
    All entries of a target, newest first.
    """

    schema_: Literal["orchestrator.history/1"] = Field("orchestrator.history/1", alias="schema")
    project: Word
    target: Word
    entries: tuple[HistoryEntry, ...]


class StepOutcome(JsonModel):
    step: Word
    status: StepStatus


class RunLine(JsonModel):
    """
    A run in a list. ``exit_code`` and ``ended_at`` are None if it has not ended, or was killed.
    """

    run_id: Word
    blueprint: Word
    environment: Word
    command: Word
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    actor: Actor
    reason: str | None = None
    lineage: Lineage | None = None
    steps: tuple[StepOutcome, ...] = ()


class OverdueReview(JsonModel):
    """
    A retained target whose date of review has passed.
    """

    target: Word
    owner: str
    review_by: Word


class UnreadRun(JsonModel):
    """
    A run whose record cannot be read, and why.
    """

    run_id: Word
    message: str


class RunsDocument(JsonDocument):
    """
    The result of ``runs``: runs of all readable stores, newest first, and the project's retained
    targets whose review is overdue.
    """

    schema_: Literal["orchestrator.runs/1"] = Field("orchestrator.runs/1", alias="schema")
    project: Word
    runs: tuple[RunLine, ...]
    overdue: tuple[OverdueReview, ...] = ()
    unread_stores: tuple[UnreadStore, ...] = ()
    unread_runs: tuple[UnreadRun, ...] = ()

    @property
    def is_whole(self) -> bool:
        """
        Whether all could be read that was looked for.
        """
        return not (self.unread_stores or self.unread_runs)
