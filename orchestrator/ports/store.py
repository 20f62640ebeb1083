"""
The store of operation records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.record.record import OperationRecord
    from orchestrator.domain.record.run_record import Claim, Lease
    from orchestrator.domain.target import Target

#: The blob that names a store: the run that first claimed anything in it. A copy is another store.
IDENTITY_BLOB = "store-identity"
#: Blobs that name the stores of a blueprint's other environments, as BLUEPRINT/ENVIRONMENT.
NEIGHBOURS = "stores/"


class OperationStore(Protocol):
    """
    Operation records, claims, leases and blobs. Safe to use from several threads.

    Every method raises StoreUnavailable if the store cannot be reached or written, or if its
    content cannot be read; unreadable content is never treated as empty.
    """

    @property
    def url(self) -> str:
        """
        The location, without credentials.
        """

    def probe(self) -> None:
        """
        Prove by a real, durable write that the store is writable; leaves nothing behind.
        """

    def newest(self, target: Target) -> OperationRecord | None:
        """
        Return the newest entry of the target, None if it has none.
        """

    def newest_known(self, target: Target) -> OperationRecord | None:
        """
        Return the newest entry as this store last read or wrote it; others may have written newer
        ones since. If it has not read any, same as `newest`. `append` compares with this entry.
        """

    def append(self, record: OperationRecord) -> None:
        """
        Append entry N for its target if N-1 is the newest and N does not exist.

        Durable when it returns. Of two appends with one sequence exactly one returns; the other
        raises Fenced and changes nothing. Appending the same ``entry_id`` again succeeds: the
        response to our own write was lost.
        """

    def history(self, target: Target) -> list[OperationRecord]:
        """
        Return all entries of the target, newest first.
        """

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        """
        Return the newest entry of every target, sorted by target.
        """

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        """
        Take the claim of a blueprint and environment. Returns None on success, else the claim of
        the holder.

        With ``replaces`` it is taken only if exactly that claim is held, or none any more. Taking a
        claim that the same run holds succeeds.
        """

    def drop_claim(self, claim: Claim) -> None:
        """
        Release the claim; does nothing if another run holds it.
        """

    def claim(self, blueprint: str, environment: str) -> Claim | None: ...

    def put_lease(self, lease: Lease) -> None:
        """
        Write the heartbeat of a run, with the time of the store's clock.
        """

    def lease(self, run_id: str) -> Lease | None:
        """
        Return the lease of a run; its age is by the store's clock.
        """

    def drop_lease(self, run_id: str) -> None: ...

    def put_blob(self, name: str, data: bytes) -> None:
        """
        Store bytes under a name, durable when it returns; an existing blob is replaced.
        """

    def create_blob(self, name: str, data: bytes) -> bytes:
        """
        Store bytes under a name if it has none yet, and return the stored bytes. Concurrent callers
        all return the same bytes.
        """

    def blob(self, name: str) -> bytes | None: ...

    def drop_blob(self, name: str) -> None:
        """
        Remove a blob; does nothing if there is none.
        """

    def blobs(self, prefix: str) -> list[str]:
        """
        Return the sorted names that begin with ``prefix``.
        """

    def close(self) -> None: ...
