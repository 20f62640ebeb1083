"""
An operation store in memory, for tests and throw-away runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.target import Target
from orchestrator.stores.stored_entries import check_chain, fenced_error, read_entry

_URL = "memory:"


class MemoryStore:
    """
    Entries as their JSON text in lists; lost when the process ends.

    ``seconds`` is the store's clock; it is monotonic.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._lock = threading.RLock()
        self._entries: dict[Target, list[str]] = {}
        self._claims: dict[tuple[str, str], Claim] = {}
        self._leases: dict[str, tuple[Lease, float]] = {}
        self._blobs: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return _URL

    def probe(self) -> None:
        """
        Do nothing: memory can always be written.
        """

    def newest(self, target: Target) -> OperationRecord | None:
        with self._lock:
            count = len(self._entries.get(target, ()))
            return self._entry(target, count) if count else None

    newest_known = newest

    def append(self, record: OperationRecord) -> None:
        with self._lock:
            entries = self._entries.setdefault(record.target, [])
            if record.sequence == len(entries) + 1:
                entries.append(record.to_json())
                return
            rival = None
            if record.sequence <= len(entries):
                rival = self._entry(record.target, record.sequence)
            if rival is None or rival.entry_id != record.entry_id:
                raise fenced_error(record, rival)

    def history(self, target: Target) -> list[OperationRecord]:
        with self._lock:
            count = len(self._entries.get(target, ()))
            entries = [self._entry(target, sequence) for sequence in range(count, 0, -1)]
            return check_chain(entries, place=_URL)

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        with self._lock:
            return [
                self._entry(target, len(entries))
                for target, entries in sorted(self._entries.items())
                if entries
                and blueprint in (None, target.blueprint)
                and environment in (None, target.environment)
            ]

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        with self._lock:
            current = self._claims.get((claim.blueprint, claim.environment))
            if current is None or current.run_id == claim.run_id or current == replaces:
                self._claims[claim.blueprint, claim.environment] = claim
                return None
            return current

    def drop_claim(self, claim: Claim) -> None:
        with self._lock:
            current = self._claims.get((claim.blueprint, claim.environment))
            if current is not None and current.run_id == claim.run_id:
                del self._claims[claim.blueprint, claim.environment]

    def claim(self, blueprint: str, environment: str) -> Claim | None:
        with self._lock:
            return self._claims.get((blueprint, environment))

    def put_lease(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.run_id] = (lease, self._seconds())

    def lease(self, run_id: str) -> Lease | None:
        with self._lock:
            if run_id not in self._leases:
                return None
            lease, beat = self._leases[run_id]
            return lease.model_copy(update={"age": self._seconds() - beat})

    def drop_lease(self, run_id: str) -> None:
        with self._lock:
            self._leases.pop(run_id, None)

    def put_blob(self, name: str, data: bytes) -> None:
        with self._lock:
            self._blobs[name] = data

    def create_blob(self, name: str, data: bytes) -> bytes:
        with self._lock:
            return self._blobs.setdefault(name, data)

    def blob(self, name: str) -> bytes | None:
        with self._lock:
            return self._blobs.get(name)

    def drop_blob(self, name: str) -> None:
        with self._lock:
            self._blobs.pop(name, None)

    def blobs(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self._blobs if name.startswith(prefix))

    def close(self) -> None:
        """
        Do nothing.
        """

    def _entry(self, target: Target, sequence: int) -> OperationRecord:
        text = self._entries[target][sequence - 1]
        return read_entry(text, target=target, sequence=sequence, place=_URL)
