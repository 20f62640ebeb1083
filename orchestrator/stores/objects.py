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

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.target import Target
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.stored_entries import (
    check_chain,
    fenced_error,
    parse_name,
    path_name,
    read_entry,
    read_model,
)

if TYPE_CHECKING:
    from obstore import PutResult
    from obstore.store import ObjectStore

    from orchestrator.stores.google_client import ClientWithKey

_LAYOUT = "1"
#: What says that writers raced here. A later layout writes something else there: nobody who knows
#: only this one gets past it.
_PROOF, _PROVEN = "conditional-writes", b"proven\n"
#: Requests at once where many objects are read.
_AT_ONCE = 16
#: Tries to take a claim that changes while it is looked at.
_TRIES = 5

#: What the client library calls a request without an answer.
_NO_ANSWER = {"Connect": "cannot be reached", "Timeout": "does not answer"}

#: What S3 and Google, and Azure, say where the bucket is there and the object is not.
_NO_OBJECT = ("NoSuchKey", "BlobNotFound")

Version = dict[str, str | None]


class _Object(Struct, frozen=True):
    """
    Content as it was read, the version for a conditional write, and the time of the write by the
    store's clock.
    """

    data: bytes
    version: Version
    written: datetime


class _Head(Struct, frozen=True):
    text: str
    sequence: int
    version: Version


class ObjectsStore:
    """
    Operation records of one project in ``client``, a bucket or container with its prefix.

    ``url`` names it without credentials; ``now`` is the store's clock.
    """

    def __init__(
        self,
        client: ObjectStore | ClientWithKey,
        *,
        url: str,
        project: str,
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._url = url
        self._base = f"{_LAYOUT}/{path_name(project)}"
        self._now = now
        self._lock = threading.Lock()
        self._heads: dict[Target, _Head] = {}

    @property
    def url(self) -> str:
        return self._url

    def probe(self) -> None:
        """
        Write an object of the size of a record and remove it. At the first use of a store,
        conditional writes are proven as well: a store that lets two writers win would lose entries.
        """
        proof = self._get(_PROOF)
        if proof is None:
            self.prove_conditional_writes()
            self._put(_PROOF, _PROVEN)
        elif proof.data != _PROVEN:
            raise StoreUnavailable(
                f"{self._url}: of another layout than {_LAYOUT}, which this version knows",
                hint="a newer version of orchestrator has written it: use that version or a newer "
                "one",
            )
        name = f"probes/{uuid.uuid4().hex}"
        self._put(name, bytes(64 * 1024))
        self._delete(name)

    def prove_conditional_writes(self, *, writers: int = 16, rounds: int = 4) -> None:
        """
        Let many writers race to create and to update one object, for some rounds.

        Raises StoreUnavailable if more than one of them wins. Two sequential writes would prove
        nothing: some servers are right in sequence and wrong in a race.
        """
        for _ in range(rounds):
            name = f"probes/{uuid.uuid4().hex}"
            try:
                self._race(name, writers, None)
                current = self._get(name)
                assert current is not None, "somebody created it"
                self._race(name, writers, current.version)
            finally:
                self._delete(name)

    def _race(self, name: str, writers: int, version: Version | None) -> None:
        start = threading.Barrier(writers)
        # Bytes of their own: equal ones have equal tags, and a condition on them holds again.
        texts = [uuid.uuid4().bytes for _ in range(writers)]

        def write(number: int) -> bool:
            start.wait()
            return self._put_if(name, texts[number], version) is not None

        with ThreadPoolExecutor(writers) as pool:
            winners = [number for number, won in enumerate(pool.map(write, range(writers))) if won]
        current = self._get(name)
        # None is fine: the answer to the winner may have been lost, and its retry refused.
        if len(winners) > 1 or (winners and current and current.data != texts[winners[0]]):
            what = "created" if version is None else "updated"
            raise StoreUnavailable(
                f"{self._url}: {len(winners)} of {writers} writers {what} one object at once: "
                "conditional writes do not hold there",
                hint="entries would be lost: use another store (PostgreSQL, or a bucket whose "
                "If-None-Match and If-Match hold under a race)",
            )

    def newest(self, target: Target) -> OperationRecord | None:
        head = self._read_head(target)
        return self._entry(target, head.sequence, head.text) if head else None

    def newest_known(self, target: Target) -> OperationRecord | None:
        head = self._known_head(target)
        return self._entry(target, head.sequence, head.text) if head else self.newest(target)

    def append(self, record: OperationRecord) -> None:
        target = record.target.target
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
        target = record.target.target
        if record.sequence != (head.sequence if head else 0) + 1:
            return False
        if head is not None:
            self._put(self._entry_name(target, head.sequence), head.text.encode())
        text = record.to_json()
        version = self._put_if(
            self._head_name(target), text.encode(), head.version if head else None
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
        target = record.target.target
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
        return check_chain(entries, place=self.url)

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        prefix = "heads/"
        if blueprint is not None:
            prefix += f"{path_name(blueprint)}/"
            if environment is not None:
                prefix += f"{path_name(environment)}/"
        listed = ((_target(name), tag) for name, tag in self._list(prefix))
        tags = {target: tag for target, tag in listed if target is not None}
        targets = sorted(t for t in tags if environment in (None, t.environment))

        def read(target: Target) -> OperationRecord | None:
            # The listing tells which heads are still the ones that were read or written here.
            head = self._known_head(target)
            if head is not None and _tag(head.version) == tags[target] is not None:
                return self._entry(target, head.sequence, head.text)
            return self.newest(target)

        records = self._each(read, targets)
        return [record for record in records if record is not None]

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        name = _claim_name(claim.blueprint, claim.environment)
        for _ in range(_TRIES):
            item = self._get(name)
            current = self._parse_claim(item)
            if current is not None and current.run_id != claim.run_id and current != replaces:
                return current
            version = item.version if item else None
            if self._put_if(name, claim.model_dump_json().encode(), version) is not None:
                return None
        raise StoreUnavailable(
            f"{self._url}: the claim of {claim.blueprint}/{claim.environment} changes faster than "
            "it can be taken",
            hint="several runs start at once: try again",
        )

    def drop_claim(self, claim: Claim) -> None:
        name = _claim_name(claim.blueprint, claim.environment)
        item = self._get(name)
        current = self._parse_claim(item)
        if item is not None and current is not None and current.run_id == claim.run_id:
            # Emptied, not deleted: a deletion cannot be made conditional.
            self._put_if(name, b"", item.version)

    def claim(self, blueprint: str, environment: str) -> Claim | None:
        return self._parse_claim(self._get(_claim_name(blueprint, environment)))

    def put_lease(self, lease: Lease) -> None:
        self._put(_lease_name(lease.run_id), lease.model_dump_json().encode())

    def lease(self, run_id: str) -> Lease | None:
        item = self._get(_lease_name(run_id))
        if item is None:
            return None
        lease = read_model(Lease, item.data, what=f"the lease of {run_id}", place=self._url)
        # Both times are told in whole seconds.
        age = float(max(0, int((self._now() - item.written).total_seconds())))
        return lease.model_copy(update={"age": age})

    def drop_lease(self, run_id: str) -> None:
        self._delete(_lease_name(run_id))

    def put_blob(self, name: str, data: bytes) -> None:
        self._put(f"blobs/{path_name(name)}", data)

    def create_blob(self, name: str, data: bytes) -> bytes:
        self._put_if(f"blobs/{path_name(name)}", data, None)
        return self.blob(name) or b""

    def blob(self, name: str) -> bytes | None:
        item = self._get(f"blobs/{path_name(name)}")
        return item.data if item else None

    def drop_blob(self, name: str) -> None:
        self._delete(f"blobs/{path_name(name)}")

    def blobs(self, prefix: str) -> list[str]:
        directory = prefix.rpartition("/")[0]
        listed = self._list(f"blobs/{path_name(directory)}/" if directory else "blobs/")
        names = (parse_name(name.partition("/")[2]) for name, _ in listed)
        return sorted(name for name in names if name is not None and name.startswith(prefix))

    def close(self) -> None:
        """
        Drop the cache. A later call reads again.
        """
        with self._lock:
            self._heads.clear()

    def _parse_claim(self, item: _Object | None) -> Claim | None:
        if item is None or not item.data:
            return None
        return read_model(Claim, item.data, what="a claim", place=self._url)

    def _known_head(self, target: Target) -> _Head | None:
        with self._lock:
            return self._heads.get(target)

    def _read_head(self, target: Target) -> _Head | None:
        item = self._get(self._head_name(target))
        if item is None:
            return None
        text = item.data.decode("utf-8", "replace")
        record = read_entry(text, target=target, sequence=None, place=self._url)
        head = _Head(text, record.sequence, item.version)
        with self._lock:
            self._heads[target] = head
        return head

    def _older(self, target: Target, sequence: int) -> OperationRecord:
        item = self._get(self._entry_name(target, sequence))
        if item is None:
            raise StoreUnavailable(
                f"{self._url}: entry {sequence} of {target} is missing",
                hint="the store was edited by hand or is damaged; restore it from a backup",
            )
        return self._entry(target, sequence, item.data.decode("utf-8", "replace"))

    def _entry(self, target: Target, sequence: int, text: str) -> OperationRecord:
        return read_entry(text, target=target, sequence=sequence, place=self._url)

    def _head_name(self, target: Target) -> str:
        return f"heads/{_target_name(target)}"

    def _entry_name(self, target: Target, sequence: int) -> str:
        return f"entries/{_target_name(target)}/{sequence:010d}"

    def _each(self, read: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) < 2:
            return [read(item) for item in items]
        with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
            return list(pool.map(read, items))

    # Requests

    def _get(self, name: str) -> _Object | None:
        with self._readable_errors(name):
            try:
                answer = self._client.get(f"{self._base}/{name}")
            except FileNotFoundError as exc:
                self._check_bucket(exc)
                return None
            meta = answer.meta
            return _Object(
                bytes(answer.bytes()),
                {"e_tag": meta["e_tag"], "version": meta["version"]},
                meta["last_modified"],
            )

    def _put(self, name: str, data: bytes) -> None:
        with self._readable_errors(name):
            self._client.put(f"{self._base}/{name}", data, use_multipart=False)

    def _put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """
        Create an object, or update the ``version`` that was read. Returns None if another writer
        was first.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if version is None else _condition(version)
        with self._readable_errors(name):
            try:
                done = self._write(name, data, mode)
            except AlreadyExistsError:
                return None
            except (PreconditionError, FileNotFoundError) as exc:
                if "404 Not Found" in str(exc):
                    self._check_bucket(exc)
                return None
            return {"e_tag": done["e_tag"], "version": done["version"]}

    def _write(self, name: str, data: bytes, mode: Any) -> PutResult:
        from obstore.exceptions import GenericError

        path = f"{self._base}/{name}"
        try:
            return self._client.put(path, data, mode=mode, use_multipart=False)
        except GenericError as exc:
            # No answer, on a connection that may be open on this side only. The client does not
            # try conditional writes again; whoever makes them recognises what is theirs.
            if "kind: Timeout" not in str(exc):
                raise
            return self._client.put(path, data, mode=mode, use_multipart=False)

    def _check_bucket(self, missing: Exception) -> None:
        """
        Raise the error of a listing if the bucket is missing, not just the object: the content of a
        missing bucket is not known to be empty.

        Law: unreadable is not empty.
        """
        if not any(f"<Code>{code}</Code>" in str(missing) for code in _NO_OBJECT):
            for _ in self._client.list(f"{self._base}/none/"):
                break

    def _delete(self, name: str) -> None:
        with self._readable_errors(name), suppress(FileNotFoundError):
            self._client.delete(f"{self._base}/{name}")

    def _list(self, prefix: str) -> Iterator[tuple[str, str | None]]:
        """
        Yield the names that begin with ``prefix``, each with its ETag.
        """
        with self._readable_errors(prefix):
            for page in self._client.list(f"{self._base}/{prefix}"):
                for item in page:
                    yield item["path"].partition(f"{self._base}/")[2], _tag(item)

    @contextmanager
    def _readable_errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError) as exc:
            # A listing or a removal that is forbidden is no error of its own to the client library.
            refused = isinstance(exc, PermissionDeniedError | UnauthenticatedError)
            external = re.search(r"External \w+ credential provider: ", str(exc))
            if external is not None:
                why = str(exc)[external.end() :].removeprefix("StoreUnavailable: ")
                why = " ".join(why.partition("Debug source:")[0].split())[:300]
                raise StoreUnavailable(
                    f"{self._url}: no credentials: {why}",
                    hint="log in again, or look at the profile, role or token that they come from",
                ) from exc
            if refused or re.search(r"403 Forbidden|\(code: (403|AccessDenied)\)", str(exc)):
                raise StoreUnavailable(
                    f"{self._url}: {name}: not allowed{_refusal(exc)}",
                    hint="look at the credentials and at the clock of this machine; "
                    "docs/stores.md lists the permissions needed",
                ) from exc
            raise StoreUnavailable(
                f"{self._url}: {name}: {_reason(exc)}",
                hint="look whether the bucket exists and can be reached from here",
            ) from exc


def _condition(version: Version) -> dict[str, str]:
    return {key: value for key, value in version.items() if value is not None}


def _tag(meta: Mapping[str, Any]) -> str | None:
    """
    Return an object's ETag without quotes: it is quoted in a response, bare in a listing.
    """
    tag = meta["e_tag"]
    return tag.strip('"') if tag else None


def _target_name(target: Target) -> str:
    names = (target.blueprint, target.environment, target.step)
    return "/".join(path_name(name) for name in names)


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


def _reason(exc: Exception) -> str:
    """
    Return the server's message, else the first line of the client library's: the rest is about its
    retries.
    """
    text = str(exc).strip()
    if "169.254.169.254" in text:  # the last place to ask, on a machine that is no instance
        return "no credentials: neither in the environment or backend block, nor of the machine"
    address = re.search(r"https?://[^/\s]+", text)
    for kind, words in _NO_ANSWER.items():
        if address is not None and f"kind: {kind}" in text:
            return f"{address[0]} {words}"
    return _server_message(text) or (text.splitlines() or [type(exc).__name__])[0][:300]


def _refusal(exc: Exception) -> str:
    """
    Return the server's reason for a refusal, if it gives one.
    """
    reason = _server_message(str(exc))
    return f": {reason}" if reason else ""


def _server_message(text: str) -> str | None:
    match = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text, re.S)
    return f"{match[1]}: {' '.join(match[2].split())}"[:300] if match else None
