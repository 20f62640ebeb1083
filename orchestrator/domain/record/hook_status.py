"""
What a record tells of the actions that its step declares: the compensation, and the work before a
destroy.
"""

from __future__ import annotations

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import Status


def is_compensated(record: OperationRecord | None) -> bool:
    """
    Whether what was applied last has been compensated since.
    """
    last = record.compensation if record is not None else None
    return last is not None and last.verdict == "done"


def is_compensation_unknown(record: OperationRecord) -> bool:
    """
    Whether nobody can tell what the step's compensation did: it takes a reason to repeat it.
    """
    return record.compensation is not None and record.compensation.verdict == "unknown"


def is_before_destroy_unknown(record: OperationRecord) -> bool:
    """
    Whether nobody can tell what the work before the destroy did: it takes a reason to repeat it.
    """
    return record.before_destroy is not None and record.before_destroy.verdict == "unknown"


def has_completed_work(record: OperationRecord) -> bool:
    """
    Whether there is completed work to compensate.
    """
    return record.status is not Status.ERROR or bool(
        record.resources.inventory or record.outputs or record.sensitive_outputs
    )
