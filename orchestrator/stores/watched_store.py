"""
Remembers the entries of an operation store that this machine has seen, and detects a store that has
gone back, or that others do not find.

Law: a record that has gone back is noticed. A store that was restored from a backup, or created
anew, is older than what a machine has seen of it; to trust it would duplicate or forget objects.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim
from orchestrator.domain.recovery.command_line import (
    RecordedBlueprint,
    accept_restored_command,
    copy_records_command,
)
from orchestrator.domain.store_location import OWN_STORE, PREFIX, StoreLocation
from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from orchestrator.errors import StoreUnavailable
from orchestrator.local_files import make_private, read_regular, write_durably
from orchestrator.ports.store import IDENTITY_BLOB, OperationStore
from orchestrator.run_files import RunFiles, RunTrace

_SCHEMA = "orchestrator.sequence_memory/1"


class SeenEntry(Struct, frozen=True, omit_defaults=True):
    """
    The newest entry of a target that this machine has seen. If only its run record names it,
    ``entry_id`` is empty; of a killed run only ``run_id`` is known.
    """

    sequence: int
    entry_id: str = ""
    run_id: str = ""


class SeenStore(Struct, frozen=True):
    """
    What this machine has seen of the store at a URL: its identity, the newest run that told of it,
    and the newest entry of each target.

    ``reconciled`` has the targets whose record in the store is older, with its newest entry when
    they were reconciled; None if it had none and the provider state was empty.
    """

    schema: str = _SCHEMA
    store: str = ""
    identity: str | None = None
    run_id: str = ""
    targets: dict[str, SeenEntry] = field(default_factory=dict)
    reconciled: dict[str, str | None] = field(default_factory=dict)


class SequenceMemory:
    """
    What this machine has seen of a store, in a file below ``directory``. The ``runs`` since that
    file was written, or all if there is none, are read from their records.

    Other processes may write the same file. A file that cannot be read or written is ignored: it
    must not block anybody's work.
    """

    def __init__(self, directory: Path, url: str, runs: RunFiles | None = None) -> None:
        self._file = directory / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
        self._url = url
        self._runs = runs
        self._traces: tuple[RunTrace, ...] | None = None

    def read(self) -> SeenStore:
        """
        Return what the file and the runs since then say.
        """
        try:
            seen = msgspec.json.decode(read_regular(self._file), type=SeenStore)
        except (OSError, ValueError, msgspec.MsgspecError):
            seen = SeenStore(store=self._url)
        if self._traces is None:
            traces = self._runs.traces(self._url, seen.run_id) if self._runs else ()
            self._traces = tuple(traces)
        targets, run_id = dict(seen.targets), seen.run_id
        for trace in self._traces:
            entry = targets.get(trace.target, SeenEntry(0))
            if trace.sequence is None:
                targets[trace.target] = replace(entry, run_id=trace.run_id)
            elif trace.sequence > entry.sequence:
                targets[trace.target] = SeenEntry(trace.sequence)
            run_id = max(run_id, trace.run_id)
        return replace(seen, targets=targets, run_id=run_id)

    def add(
        self, records: Iterable[OperationRecord], identity: str | None = None, run_id: str = ""
    ) -> None:
        """
        Remember the entries that are newer than the remembered ones, the store's identity, and the
        run of this machine that wrote them.
        """
        new = _newest(records)
        if not new and identity is None:
            return
        with suppress(OSError), self._locked():
            seen = self.read()
            targets = dict(seen.targets)
            for target, entry in new.items():
                known = targets.get(target, SeenEntry(0))
                if (known.sequence, known.entry_id != "") < (entry.sequence, True):
                    targets[target] = entry
            identity = identity or seen.identity
            if (targets, identity) != (seen.targets, seen.identity):
                run_id = max(run_id, seen.run_id)
                self._write(replace(seen, targets=targets, identity=identity, run_id=run_id))

    def replace(self, records: Iterable[OperationRecord], identity: str | None) -> None:
        """
        Forget all entries, and remember these as the newest, with this store's identity.
        """
        with self._locked():
            targets, seen = _newest(records), self.read()
            self._write(replace(seen, targets=targets, identity=identity, reconciled={}))

    def note_reconciled(self, target: Target, record: OperationRecord | None) -> None:
        """
        Remember that a target was reconciled, and its newest entry at that time.
        """
        with self._locked():
            seen = self.read()
            noted = {str(target): record.entry_id if record else None}
            self._write(replace(seen, reconciled=seen.reconciled | noted))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private(self._file.parent, durable=True)
        # Without O_NONBLOCK a FIFO in its place would block.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK
        with os.fdopen(os.open(self._file.with_suffix(".lock"), flags, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, seen: SeenStore) -> None:
        """
        Write the file. It includes what run records said, so that they are not read again.
        """
        targets = dict(sorted(seen.targets.items()))
        document = replace(seen, schema=_SCHEMA, store=self._url, targets=targets)
        write_durably(self._file, json.dumps(msgspec.to_builtins(document), indent=2).encode())


def _newest(records: Iterable[OperationRecord]) -> dict[str, SeenEntry]:
    return {str(record.target): SeenEntry(record.sequence, record.entry_id) for record in records}


#: The commands that bring a record up to date from the provider state: what else mutates waits
#: until a store that has gone back is accepted.
_UPDATING = ("reconcile", "adopt")


class WatchedStore:
    """
    A store whose newest entries are compared with what this machine has seen, and its ``location``
    with that of the provider states and with the records in ``own_file``, the SQLite file of this
    machine. ``called_in`` is the directory for the commands that errors name.

    If it has gone back, or other machines look for the records elsewhere, ``tell`` is called once
    and no claim is given out, so that mutating commands end before they do anything. Only mutating
    commands remember what they see: reading leaves no file.
    """

    def __init__(
        self,
        store: OperationStore,
        memory: SequenceMemory,
        location: StoreLocation,
        own_file: Path,
        tell: Callable[[str], None],
        *,
        called_in: str = "",
    ) -> None:
        self._store = self.unwatched = store
        # What needs no watching is the store's own.
        self.url = store.url
        self.newest_known, self.probe, self.close = store.newest_known, store.probe, store.close
        self.claim, self.drop_claim = store.claim, store.drop_claim
        self.put_lease, self.lease, self.drop_lease = store.put_lease, store.lease, store.drop_lease
        self.put_blob, self.blob, self.drop_blob = store.put_blob, store.blob, store.drop_blob
        self.blobs = store.blobs
        self._memory = memory
        self._location = location
        self._own_file = own_file
        self._tell = tell
        self._called_in = called_in
        self._lock = threading.Lock()
        self._gone_back: dict[Target | None, str] = {}  # None: the store itself
        self._told_placement = self._told_gone_back = False
        self._misplacement: StoreUnavailable | None = None
        self._known_identity: str | None = None
        self._claimed: dict[tuple[str | None, str | None], list[OperationRecord]] = {}
        self._place: tuple[str, str] | None = None

    def gone_back(self) -> tuple[str, ...]:
        """
        Return the evidence that the store has gone back: another identity, and each target whose
        seen entry is newer than its current one, with both.
        """
        return tuple(self._gone_back.values())

    def refusal(self) -> StoreUnavailable | None:
        """
        Return the error that a mutating command on the blueprint that was read last ends with; None
        if it may rely on the store.
        """
        if self._misplacement is None and self._gone_back:
            return self._gone_back_error()
        return self._misplacement

    def note_reconciled(self, target: Target) -> None:
        """
        If the store's record of the target is older than the seen one, remember that the target was
        reconciled with its provider state.
        """
        if target in self._gone_back:
            self._memory.note_reconciled(target, self._store.newest(target))

    def unreconciled(self) -> dict[Target, OperationRecord | None]:
        """
        Return the targets whose record has gone back and that were not reconciled since, with that
        record.
        """
        noted = self._memory.read().reconciled
        unreconciled: dict[Target, OperationRecord | None] = {}
        for target in filter(None, self._gone_back):
            entries = self._store.history(target)
            entry_ids = {entry.entry_id for entry in entries} if entries else {None}
            if str(target) not in noted or noted[str(target)] not in entry_ids:
                unreconciled[target] = entries[0] if entries else None
        return unreconciled

    def accept(self) -> list[OperationRecord]:
        """
        Trust the store as it is, and return its newest entries.
        """
        records = self._store.records()
        self._memory.replace(records, self._identity())
        self._gone_back.clear()
        return records

    def newest(self, target: Target) -> OperationRecord | None:
        self._place = target.blueprint, target.environment
        record = self._store.newest(target)
        self._check({target: record})
        self._tell_gone_back()
        return record

    def history(self, target: Target) -> list[OperationRecord]:
        self._place = target.blueprint, target.environment
        entries = self._store.history(target)
        self._check({target: entries[0] if entries else None})
        self._tell_gone_back()
        return entries

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        if blueprint is not None and environment is not None:
            self._place = blueprint, environment
        claimed = self._claimed.pop((blueprint, environment), None)
        records = self._read(blueprint, environment) if claimed is None else claimed
        self._tell_gone_back()
        misplaced = self._misplaced(blueprint, environment, records)
        if blueprint is not None:
            self._misplacement = misplaced
        if misplaced is not None and not self._told_placement:
            self._told_placement = True
            self._tell(f"{misplaced.message}; {misplaced.hint}")
        return records

    def _read(self, blueprint: str | None, environment: str | None) -> list[OperationRecord]:
        seen = self._memory.read()
        if seen.identity is not None and seen.identity != self._identity():
            # A store that was created anew knows nothing of what others did in the one before.
            now = self._identity() or "one that nobody has used"
            message = f"this machine saw the store of run {seen.identity}, and this is {now}"
            self._note_gone_back(None, message)
        records = self._store.records(blueprint, environment)
        expected: dict[Target, OperationRecord | None] = {}
        for name in seen.targets:
            with suppress(ValueError):
                target = Target.parse(name)
                if blueprint in (None, target.blueprint) and environment in (
                    None,
                    target.environment,
                ):
                    expected[target] = None
        self._check({**expected, **{record.target: record for record in records}})
        if blueprint is None:
            self._check_histories(records)
        return records

    def _misplaced(
        self,
        blueprint: str | None = None,
        environment: str | None = None,
        records: Sequence[OperationRecord] = (),
    ) -> StoreUnavailable | None:
        """
        Return an error if provider states are shared but records would not be, or if a shared store
        has no records of a blueprint that this machine has records of.
        """
        if self._location.lacks_shared_store:
            return StoreUnavailable(
                f"no operation store is known for the backend {self._location.backend!r}: the "
                "records would stay on this machine only, and nobody else would see them",
                hint="name one that everybody reaches: "
                f'`operations: {{url: "s3://BUCKET/{PREFIX}"}}` '
                "(or postgres://, gs://, az://) in the blueprint or orchestrator.yaml, and take "
                f"along what this machine has with `orchestrator store copy sqlite:{OWN_STORE} "
                "URL`; or say that this machine is enough: "
                f'`operations: {{url: "sqlite:{OWN_STORE}"}}`',
                reason="no_shared_store",
            )
        if blueprint is None or environment is None or records or not self._location.is_shared:
            return None
        if not self._own_file.exists():
            return None
        from orchestrator.stores.sqlite import SqliteStore

        with closing(SqliteStore(self._own_file)) as own:
            targets = own.records(blueprint, environment)
        if not targets:
            return None
        command = copy_records_command(self._address(blueprint, environment))
        return StoreUnavailable(
            f"{self.url}: nothing is recorded of {blueprint}/{environment}, and this "
            f"machine knows {len(targets)} of its targets ({OWN_STORE})",
            hint=f"move them: `{command}`",
            reason="records_elsewhere",
        )

    def _address(self, blueprint: str, environment: str) -> RecordedBlueprint:
        return RecordedBlueprint(blueprint, environment, called_in=self._called_in)

    def append(self, record: OperationRecord) -> None:
        self._claimed.clear()
        self._store.append(record)
        if record.target not in self._gone_back:  # else it is not newer, but another
            self._memory.add([record], run_id=record.run_id)

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        current = self._store.take_claim(claim, replaces=replaces)
        if current is not None:
            return current
        blueprint = claim.blueprint, claim.environment
        try:
            records = self._read(*blueprint)
            misplaced = self._misplaced(*blueprint, records)
            if misplaced is not None:
                raise misplaced
            self._check_histories(records)
            if self._gone_back and claim.command not in _UPDATING:
                self._told_gone_back = True  # by this
                self._place = blueprint
                raise self._gone_back_error()
        except StoreUnavailable:
            self._store.drop_claim(claim)
            raise
        identity = self._identity()
        if identity is None:
            name = self._store.create_blob(IDENTITY_BLOB, claim.run_id.encode())
            identity = self._known_identity = name.decode("utf-8", "replace")
        if not self._gone_back:
            self._memory.add(records, identity)
        # Nobody else writes while the claim is held: what was read is read once.
        self._claimed = {blueprint: records}
        return None

    def _identity(self) -> str | None:
        """
        Return the identity of the store, None before the first claim. Read once.
        """
        if self._known_identity is None:
            data = self._store.blob(IDENTITY_BLOB)
            self._known_identity = data.decode("utf-8", "replace") if data else None
        return self._known_identity

    def _check(self, records: Mapping[Target, OperationRecord | None]) -> None:
        """
        Compare the newest entries with the seen ones: an older one, none, or another one with the
        same sequence is noted.
        """
        targets = self._memory.read().targets
        for target, record in records.items():
            seen = targets.get(str(target))
            if seen is None:
                continue
            sequence = record.sequence if record else 0
            now = f"entry {sequence}" if record else "none"
            saw = f"{target}: this machine saw"
            is_another = record is not None and seen.entry_id not in ("", record.entry_id)
            if sequence < seen.sequence:
                message = f"{saw} entry {seen.sequence}, the store has {now}"
                self._note_gone_back(target, message)
            elif sequence == seen.sequence and is_another:
                self._note_gone_back(target, _another_entry(target, seen))
            elif seen.run_id:
                runs = {entry.run_id for entry in self._store.history(target)}
                if seen.run_id not in runs:
                    message = f"{saw} run {seen.run_id} write one, the store has {now}"
                    self._note_gone_back(target, message)

    def _check_histories(self, records: Iterable[OperationRecord]) -> None:
        """
        Compare the entries that others have written since with the seen ones: in the same store
        they follow them. In another store, or one that was restored and went on, they do not.
        """
        targets = self._memory.read().targets
        for record in records:
            target = record.target
            seen = targets.get(str(target))
            if seen is None or not seen.entry_id or record.sequence <= seen.sequence:
                continue
            for entry in self._store.history(target):
                if entry.sequence == seen.sequence and entry.entry_id != seen.entry_id:
                    self._note_gone_back(target, _another_entry(target, seen))

    def _note_gone_back(self, target: Target | None, message: str) -> None:
        with self._lock:
            self._gone_back[target] = message

    def _tell_gone_back(self) -> None:
        with self._lock:
            is_news = bool(self._gone_back) and not self._told_gone_back
            self._told_gone_back = self._told_gone_back or is_news
        if is_news:
            error = self._gone_back_error()
            self._tell(f"{error.message}; {error.hint}")

    def _gone_back_error(self) -> StoreUnavailable:
        command = accept_restored_command(self._place and self._address(*self._place))
        return StoreUnavailable(
            f"the operation store {self.url} has gone back: {'; '.join(self.gone_back())}",
            hint="restore its newest copy; if this one is to be believed: `reconcile` what it "
            f"holds, `adopt` what it does not know, then `{command}`",
            reason="store_gone_back",
        )

    def create_blob(self, name: str, data: bytes) -> bytes:
        misplaced = self._misplaced()
        if misplaced is not None:
            raise misplaced
        return self._store.create_blob(name, data)


def _another_entry(target: Target, seen: SeenEntry) -> str:
    return f"{target}: entry {seen.sequence} is another than this machine saw"
