"""
What is retained and was to be looked at again by now.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from orchestrator.domain.documents.documents import OverdueReview
from orchestrator.domain.record.retention import is_overdue
from orchestrator.domain.record.states import Status

if TYPE_CHECKING:
    from orchestrator.ports.store import OperationStore


def overdue_reviews(
    store: OperationStore, project: str, today: datetime.date
) -> tuple[OverdueReview, ...]:
    """
    The overdue reviews of a project's retained targets, sorted by target.
    """
    return tuple(
        OverdueReview(
            target=str(record.target.target),
            owner=record.retained.owner,
            review_by=record.retained.review_by,
        )
        for record in store.records()
        if record.project == project
        and record.status is Status.RETAINED
        and record.retained is not None
        and is_overdue(record.retained, today)
    )
