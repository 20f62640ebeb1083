"""
``store accept-restored``: a store that has gone back is believed, for a reason that it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim


class RestoredStore(Protocol):
    """
    A store that knows what this machine saw of it before.
    """

    def records(self) -> list[OperationRecord]: ...

    def gone_back(self) -> Sequence[str]:
        """
        For each target whose newest entry is older than what was seen, both.
        """

    def accept(self) -> list[OperationRecord]:
        """
        Forget what was seen: from now on the store's entries are the newest.
        """

    def put_blob(self, name: str, data: bytes) -> None: ...


def accept_restored(store: RestoredStore, by: Claim, reason: str) -> list[str]:
    """
    Take the store as it is for the truth; which targets are older than they were, empty where none
    is. Who did it and why is kept in the store before anything is forgotten.
    """
    store.records()
    older = list(store.gone_back())
    if older:
        kept = {
            "reason": reason,
            "actor": by.actor.model_dump(),
            "at": by.taken_at.isoformat(),
            "older": older,
        }
        store.put_blob(f"restored/{by.run_id}.json", json.dumps(kept).encode())
        store.accept()
    return older
