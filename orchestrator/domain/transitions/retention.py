"""
Retention: targets kept on purpose when the rest is destroyed, with reason, owner and date of
review.
"""

from __future__ import annotations

import datetime
import re

from orchestrator.domain.blueprint.blueprint import Retain
from orchestrator.domain.record.record import OperationRecord, Retention
from orchestrator.domain.record.states import Status


def is_date(text: str) -> bool:
    """
    Return whether ``text`` is a date such as 2027-06-30.
    """
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None


def is_overdue(retained: Retention | None, today: datetime.date) -> bool:
    """
    Return whether the review date has passed; an unreadable date counts as passed.
    """
    if retained is None:
        return False
    return not is_date(retained.review_by) or retained.review_by < today.isoformat()


def retention(declared: Retain | None, record: OperationRecord | None) -> Retention | None:
    """
    Return a step's retention, as recorded, else as the blueprint declares it; None if not retained.
    """
    if record is not None and record.status is Status.RETAINED and record.retained is not None:
        return record.retained
    if declared is None:
        return None
    return Retention(reason=declared.reason, owner=declared.owner, review_by=declared.review_by)


def same_words(one: Retention, other: Retention) -> bool:
    """
    Return whether both have the same reason, owner and date, whoever set them.
    """
    return (one.reason, one.owner, one.review_by) == (other.reason, other.owner, other.review_by)
