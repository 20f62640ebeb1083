"""
The operation store in an object store: S3, Google Cloud Storage or Azure Blob Storage.

Layout, version 1, below the prefix of the URL::

    1/PROJECT/heads/BLUEPRINT/ENVIRONMENT/STEP            the newest entry of a target
    1/PROJECT/entries/BLUEPRINT/ENVIRONMENT/STEP/NUMBER   older entries: history
    1/PROJECT/claims/BLUEPRINT/ENVIRONMENT                the claim; empty: nobody holds it
    1/PROJECT/leases/RUN                                  heartbeat; its time is the object's own
    1/PROJECT/blobs/NAME
    1/PROJECT/conditional-writes                          written once conditional writes are proven

A head is created or updated only on condition that it is the one that was read: that single request
commits an entry. The entry that it replaces is copied into the history *before* (its bytes never
change, so several writers may do so), so that a crash between the two loses nothing.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.bucket import Bucket, StoredObject, Version, etag
from orchestrator.stores.stored_entries import (
    NEWER,
    check_chain,
    fenced_error,
    read_entry,
    read_model,
)

_LAYOUT = "1"
#: What says that writers raced here. A later layout writes something else there: nobody who knows
#: only this one gets past it.
_PROOF, _PROVEN = "conditional-writes", b"proven\n"
#: Requests at once where many objects are read.
_AT_ONCE = 16
#: Tries to take a claim that changes while it is looked at.
_TRIES = 5


class _Head(Struct, frozen=True):
    text: str
    sequence: int
    version: Version


class ObjectsStore:
    """
    Operation records of one project in a bucket or container.
    """

    def __init__(self, bucket: Bucket, *, project: str) -> None:
        self._bucket = replace(bucket, directory=f"{_LAYOUT}/{path_name(project)}")
        self._lock = threading.Lock()
        self._heads: dict[Target, _Head] = {}

    @property
    def url(self) -> str:
        return self._bucket.url

    def probe(self) -> None:
        """
        Write an object of the size of a record and remove it. At the first use of a store,
        conditional writes are proven as well: a store that lets two writers win would lose entries.
        """
        proof = self._bucket.get(_PROOF)
        if proof is None:
            self._bucket.prove_conditional_writes()
            self._bucket.put(_PROOF, _PROVEN)
        elif proof.data != _PROVEN:
            raise StoreUnavailable(
                f"{self.url}: of another layout than {_LAYOUT}, which this version knows",
                hint=NEWER,
            )
        name = f"probes/{uuid.uuid4().hex}"
        self._bucket.put(name, bytes(64 * 1024))
        self._bucket.delete(name)

    def newest(self, target: Target) -> OperationRecord | None:
        head = self._read_head(target)
        return self._entry(target, head.sequence, head.text) if head else None

    def newest_known(self, target: Target) -> OperationRecord | None:
        head = self._known_head(target)
        return self._entry(target, head.sequence, head.text) if head else self.newest(target)

    def append(self, record: OperationRecord) -> None:
        target = record.target
        head = self._known_head(target)
        if head is None and record.sequence > 1:
            head = self._read_head(target)
        if self._commit(record, head):
            return
        # Somebody else has written since, or it was our own write whose answer was lost.
        rival = self._rival(record)
        if rival is not None and rival.entry_id == record.entry_id:
            return
        head = self._read_head(target)
        if rival is None and self._commit(record, head):
            return
        raise fenced_error(record, rival)

    def _commit(self, record: OperationRecord, head: _Head | None) -> bool:
        """
        Make ``record`` the head if it follows ``head``, the current one as far as known. Returns
        whether it did.
        """
        target = record.target
        if record.sequence != (head.sequence if head else 0) + 1:
            return False
        if head is not None:
            self._bucket.put(_entry_name(target, head.sequence), head.text.encode())
        text = record.to_json()
        version = self._bucket.put_if(
            _head_name(target), text.encode(), head.version if head else None
        )
        with self._lock:
            if version is None:
                self._heads.pop(target, None)
                return False
            self._heads[target] = _Head(text, record.sequence, version)
        return True

    def _rival(self, record: OperationRecord) -> OperationRecord | None:
        """
        Return the stored entry with the sequence of ``record``, None if there is none.
        """
        target = record.target
        head = self._read_head(target)
        if head is None or head.sequence < record.sequence:
            return None
        if head.sequence == record.sequence:
            return self._entry(target, head.sequence, head.text)
        return self._older(target, record.sequence)

    def history(self, target: Target) -> list[OperationRecord]:
        head = self._read_head(target)
        if head is None:
            return []
        older = self._each(
            lambda sequence: self._older(target, sequence), range(head.sequence - 1, 0, -1)
        )
        entries = [self._entry(target, head.sequence, head.text), *older]
        return check_chain(entries, location=self.url)

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        prefix = "heads/"
        if blueprint is not None:
            prefix += f"{path_name(blueprint)}/"
            if environment is not None:
                prefix += f"{path_name(environment)}/"
        listed = ((_target(name), tag) for name, tag in self._bucket.listing(prefix))
        tags = {target: tag for target, tag in listed if target is not None}
        targets = sorted(t for t in tags if environment in (None, t.environment))

        def read(target: Target) -> OperationRecord | None:
            # The listing tells which heads are still the ones that were read or written here.
            head = self._known_head(target)
            if head is not None and etag(head.version) == tags[target] is not None:
                return self._entry(target, head.sequence, head.text)
            return self.newest(target)

        records = self._each(read, targets)
        return [record for record in records if record is not None]

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        name = _claim_name(claim.blueprint, claim.environment)
        for _ in range(_TRIES):
            item = self._bucket.get(name)
            current = self._parse_claim(item)
            if current is not None and current.run_id != claim.run_id and current != replaces:
                return current
            version = item.version if item else None
            if self._bucket.put_if(name, claim.model_dump_json().encode(), version) is not None:
                return None
        raise StoreUnavailable(
            f"{self.url}: the claim of {claim.blueprint}/{claim.environment} changes faster than "
            "it can be taken",
            hint="several runs start at once: try again",
        )

    def drop_claim(self, claim: Claim) -> None:
        name = _claim_name(claim.blueprint, claim.environment)
        item = self._bucket.get(name)
        current = self._parse_claim(item)
        if item is not None and current is not None and current.run_id == claim.run_id:
            # Emptied, not deleted: a deletion cannot be made conditional.
            self._bucket.put_if(name, b"", item.version)

    def claim(self, blueprint: str, environment: str) -> Claim | None:
        return self._parse_claim(self._bucket.get(_claim_name(blueprint, environment)))

    def put_lease(self, lease: Lease) -> None:
        self._bucket.put(_lease_name(lease.run_id), lease.model_dump_json().encode())

    def lease(self, run_id: str) -> Lease | None:
        item = self._bucket.get(_lease_name(run_id))
        if item is None:
            return None
        lease = read_model(Lease, item.data, what=f"the lease of {run_id}", location=self.url)
        # Both times are told in whole seconds.
        age = float(max(0, int((self._bucket.now() - item.written).total_seconds())))
        return lease.model_copy(update={"age": age})

    def drop_lease(self, run_id: str) -> None:
        self._bucket.delete(_lease_name(run_id))

    def put_blob(self, name: str, data: bytes) -> None:
        self._bucket.put(f"blobs/{path_name(name)}", data)

    def create_blob(self, name: str, data: bytes) -> bytes:
        self._bucket.put_if(f"blobs/{path_name(name)}", data, None)
        return self.blob(name) or b""

    def blob(self, name: str) -> bytes | None:
        item = self._bucket.get(f"blobs/{path_name(name)}")
        return item.data if item else None

    def drop_blob(self, name: str) -> None:
        self._bucket.delete(f"blobs/{path_name(name)}")

    def blobs(self, prefix: str) -> list[str]:
        directory = prefix.rpartition("/")[0]
        listed = self._bucket.listing(f"blobs/{path_name(directory)}/" if directory else "blobs/")
        names = (parse_name(name.partition("/")[2]) for name, _ in listed)
        return sorted(name for name in names if name is not None and name.startswith(prefix))

    def close(self) -> None:
        """
        Drop the cache. A later call reads again.
        """
        with self._lock:
            self._heads.clear()

    def _parse_claim(self, item: StoredObject | None) -> Claim | None:
        if item is None or not item.data:
            return None
        return read_model(Claim, item.data, what="a claim", location=self.url)

    def _known_head(self, target: Target) -> _Head | None:
        with self._lock:
            return self._heads.get(target)

    def _read_head(self, target: Target) -> _Head | None:
        item = self._bucket.get(_head_name(target))
        if item is None:
            return None
        text = item.data.decode("utf-8", "replace")
        record = read_entry(text, target=target, sequence=None, location=self.url)
        head = _Head(text, record.sequence, item.version)
        with self._lock:
            self._heads[target] = head
        return head

    def _older(self, target: Target, sequence: int) -> OperationRecord:
        item = self._bucket.get(_entry_name(target, sequence))
        if item is None:
            raise StoreUnavailable(
                f"{self.url}: entry {sequence} of {target} is missing",
                hint="the store was edited by hand or is damaged; restore it from a backup",
            )
        return self._entry(target, sequence, item.data.decode("utf-8", "replace"))

    def _entry(self, target: Target, sequence: int, text: str) -> OperationRecord:
        return read_entry(text, target=target, sequence=sequence, location=self.url)

    def _each(self, read: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) < 2:
            return [read(item) for item in items]
        with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
            return list(pool.map(read, items))


# Names of ours as keys of objects: reversible, and of characters that every object store keeps.


def path_name(name: str) -> str:
    """
    Return a name as a key; ``/`` still separates. An empty part is ``=``.

    >>> path_name('a["x.y"]/b'), path_name("a//")
    ('a=5B=22x.y=22=5D/b', 'a/=/=')
    """
    return "/".join(_key_part(part) for part in name.split("/"))


def parse_name(key: str) -> str | None:
    """
    Return the name of a key, None if somebody else made the key.

    >>> parse_name(path_name('ä/../%41//')) == 'ä/../%41//'
    True
    >>> parse_name('.DS_Store'), parse_name('=ZZ'), parse_name('€')
    (None, None, None)
    """
    with suppress(ValueError):
        parts = ("" if part == "=" else part for part in key.split("/"))
        name = "/".join(unquote(x.replace("=", "%"), errors="surrogateescape") for x in parts)
        return name if path_name(name) == key else None
    return None


def _key_part(part: str) -> str:
    name = quote(part, safe="", errors="surrogateescape").replace("~", "%7E").replace("%", "=")
    # A dot may stand anywhere but first: `.` and `..` are taken apart by clients.
    return f"=2E{name[1:]}" if name.startswith(".") else name or "="


def _head_name(target: Target) -> str:
    return f"heads/{path_name(str(target))}"


def _entry_name(target: Target, sequence: int) -> str:
    return f"entries/{path_name(str(target))}/{sequence:010d}"


def _target(name: str) -> Target | None:
    """
    Return the target of a head, None if somebody else put the object there.
    """
    names = [parse_name(part) for part in name.split("/", 3)[1:]]
    match names:
        case [str(blueprint), str(environment), str(step)]:
            return Target(blueprint, environment, step)
        case _:
            return None


def _claim_name(blueprint: str, environment: str) -> str:
    return f"claims/{path_name(blueprint)}/{path_name(environment)}"


def _lease_name(run_id: str) -> str:
    return f"leases/{path_name(run_id)}"
