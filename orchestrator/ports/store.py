"""
The store of operation records, and the spool of outcomes that could not be recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.record.record import OperationRecord
    from orchestrator.domain.record.run_record import Claim, Lease
    from orchestrator.domain.target import Target

#: The blob that names a store: the run that first claimed anything in it. A copy is another store.
IDENTITY_BLOB = "store-identity"


class OperationStore(Protocol):
    """
    Operation records, claims, leases and blobs. Safe to use from several threads.

    Any method raises StoreUnavailable where the store cannot be reached, written, or holds what
    cannot be read; what cannot be read is never treated as empty.
    """

    @property
    def url(self) -> str:
        """
        Where it is, without credentials.
        """

    def probe(self) -> None:
        """
        Prove by a real, durable write that it can be written; leaves nothing behind.
        """

    def newest(self, target: Target) -> OperationRecord | None:
        """
        Return the newest entry of the target; None if there has never been one.
        """

    def newest_known(self, target: Target) -> OperationRecord | None:
        """
        Return the newest entry as this store last read or wrote it, which others may have followed
        since; as `newest` where it has not. It is the one that an append is held against.
        """

    def append(self, record: OperationRecord) -> None:
        """
        Append entry N for its target if N-1 is the newest and N does not exist.

        Durable when it returns. Of two appends with one sequence exactly one returns; the other
        raises Fenced and changes nothing. Appending the same ``entry_id`` again returns: the answer
        to our own write was lost.
        """

    def history(self, target: Target) -> list[OperationRecord]:
        """
        Return all entries of the target, newest first.
        """

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        """
        Return the newest entry of every target there, sorted by target.
        """

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        """
        Take the claim of a blueprint and environment; None on success, else the holder's.

        With ``replaces`` it is taken only if exactly that one is held, or none any more.
        Taking a claim that the same run holds succeeds.
        """

    def drop_claim(self, claim: Claim) -> None:
        """
        Give the claim up. Nothing happens where another run holds it.
        """

    def claim(self, blueprint: str, environment: str) -> Claim | None: ...

    def put_lease(self, lease: Lease) -> None:
        """
        Write the heartbeat of a run, stamped by the store's clock.
        """

    def lease(self, run_id: str) -> Lease | None:
        """
        Return the lease of a run, its age by the store's clock.
        """

    def drop_lease(self, run_id: str) -> None: ...

    def put_blob(self, name: str, data: bytes) -> None:
        """
        Store bytes under a name, durable when it returns; the same name again replaces them.
        """

    def create_blob(self, name: str, data: bytes) -> bytes:
        """
        Store bytes under a name that has none yet; what it has now. Of several at once all return
        the bytes of one.
        """

    def blob(self, name: str) -> bytes | None: ...

    def drop_blob(self, name: str) -> None:
        """
        Remove what is stored under a name; nothing happens where there is nothing.
        """

    def blobs(self, prefix: str) -> list[str]:
        """
        Return the names that begin with ``prefix``, sorted.
        """

    def close(self) -> None: ...


class Spool(Protocol):
    """
    Outcomes that could not be recorded, on local disk, until they are.
    """

    def put(self, record: OperationRecord) -> Path:
        """
        Keep the record durably; returns the file.
        """

    def pending(self) -> list[OperationRecord]:
        """
        What waits, oldest first.
        """

    def drop(self, record: OperationRecord) -> None: ...
