"""
The verdict over the records of a blueprint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.domain.record.record import Attempt, OperationRecord
from orchestrator.domain.record.states import (
    NOTHING_THERE,
    READY,
    Condition,
    Status,
    Verdict,
    verdict,
)


def is_unmade(record: OperationRecord | None) -> bool:
    """
    Return whether nothing of the target is there, and the newest apply or import failed before it
    made anything, or something else is there all the same: its record is that from before, with the
    failed attempt beside it.
    """
    if record is None or record.status not in NOTHING_THERE:
        return False
    attempt = record.last_attempt
    return attempt is not None and attempt.stands_beside


def with_failed_attempt(record: OperationRecord, tried: Attempt | None) -> OperationRecord:
    """
    Return the record of a target of which nothing is there, with the newest attempt that was
    ``tried`` and failed before anything of it was recorded.
    """
    if tried is None or record.status not in NOTHING_THERE or tried.run_id <= record.run_id:
        return record
    return record.model_copy(update={"last_attempt": tried})


def is_partly_applied(record: OperationRecord | None) -> bool:
    """
    Return whether the newest apply did what it was asked for, which was not all of it.
    """
    return record is not None and record.error is not None and record.error.code == "targeted"


def _status(record: OperationRecord | None) -> Status | None:
    if record is None:
        return None
    if is_partly_applied(record) and not record.resources.in_doubt:
        return Status.OK
    in_doubt = record.status in READY and record.resources.in_doubt
    return Status.ERROR if in_doubt or is_unmade(record) else record.status


def verdict_of(
    rows: Iterable[tuple[OperationRecord | None, Condition | None]],
    orphaned: Collection[str] = (),
    beside: Iterable[tuple[OperationRecord | None, Condition | None]] = (),
) -> Verdict:
    """
    Return the verdict over the records of steps, each with its condition. An apply that failed is
    an error although nothing is there, so is what is ok but for an object in doubt; and nothing is
    destroyed as a whole while an orphan is alive.

    ``beside`` are the modules of hooks and what left the blueprint: they count where they went
    wrong. What such a module made stays, and is no reason not to call the steps destroyed. What was
    applied in part, as it was asked for, is no error, and not ok either.
    """
    failing = (Status.ERROR, Status.RUNNING)
    counted = (*rows, *(row for row in beside if row[0] is not None and row[0].status in failing))
    result = verdict((_status(record), condition) for record, condition in counted)
    if result is Verdict.OK and any(is_partly_applied(record) for record, _ in counted):
        return Verdict.PARTIAL
    gone = (Verdict.DESTROYED, Verdict.DESTROYED_WITH_RETAINED)
    return Verdict.PARTIAL if orphaned and result in gone else result
