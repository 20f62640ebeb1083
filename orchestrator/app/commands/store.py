"""
``store``: check operation stores and transfer records between them.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pydantic import ValidationError

from orchestrator.app.commands.store_holder import (
    StoreHolder,
    busy,
    places_of,
    readable_runs,
    run_of,
)
from orchestrator.domain.blueprint.inputs import KEY_BLOB
from orchestrator.domain.documents.documents import (
    ExportedTarget,
    StoreCheck,
    StoreCheckDocument,
    StoreCopyDocument,
)
from orchestrator.domain.record.record import OperationRecord, UnreadableRecord, parse_record
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.recovery.command_line import RecordedBlueprint, command_line
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.target import Target
from orchestrator.domain.text import count
from orchestrator.errors import Invalid, OrchestratorError, Problem, Refused, StoreUnavailable
from orchestrator.ports.store import IDENTITY_BLOB, OperationStore

WRITERS = 16
ROUNDS = 4
#: Tries of which the median time is told.
_TRIES = 5

Progress = Callable[[str], None]


def check_store(store: OperationStore, claim: Claim) -> StoreCheckDocument:
    """
    Check everything that runs rely on. Each check runs by itself, so that a failed one does not
    hide the next.

    ``claim`` is for a blueprint and environment that nobody uses; it is released at the end.
    """
    lease = Lease(run_id=claim.run_id, owner=claim.owner)
    blob = "store-check"

    def write_and_read_blob() -> None:
        store.put_blob(blob, b"written by store check")
        if store.blob(blob) != b"written by store check":
            raise StoreUnavailable("what was written reads otherwise")

    checks = [
        _check("read records", lambda: store.records(claim.blueprint, claim.environment)),
        _check("write", store.probe, tries=1),
        _check("write and read a blob", write_and_read_blob),
        _check("remove a blob", lambda: store.drop_blob(blob), tries=1),
        _check("write a heartbeat", lambda: store.put_lease(lease)),
        _check("read a heartbeat", lambda: store.lease(lease.run_id)),
        _check("remove a heartbeat", lambda: store.drop_lease(lease.run_id), tries=1),
        _check(
            f"conditional writes: {WRITERS} writers, {ROUNDS} rounds, one winner each",
            lambda: _race(store, claim),
            tries=1,
        ),
    ]
    ok = all(check.ok for check in checks)
    return StoreCheckDocument(url=store.url, ok=ok, checks=tuple(checks))


def _check(name: str, work: Callable[[], object], *, tries: int = _TRIES) -> StoreCheck:
    times = []
    try:
        for _ in range(tries):
            started = time.perf_counter()
            work()
            times.append((time.perf_counter() - started) * 1000)
    except OrchestratorError as exc:
        return StoreCheck(name=name, ok=False, message=exc.message)
    return StoreCheck(name=name, ok=True, milliseconds=round(statistics.median(times), 1))


def _race(store: OperationStore, claim: Claim) -> None:
    """
    Let writers race for one claim, which is created in the first round and taken over in the
    others.
    """
    for _ in range(ROUNDS):
        start = threading.Barrier(WRITERS)
        rivals = [
            claim.model_copy(update={"run_id": f"{claim.run_id}-{number}"})
            for number in range(WRITERS)
        ]

        def take(rival: Claim, start: threading.Barrier = start) -> bool:
            start.wait()
            return store.take_claim(rival) is None

        with ThreadPoolExecutor(WRITERS) as pool:
            won = [
                rival for rival, first in zip(rivals, pool.map(take, rivals), strict=True) if first
            ]
        winner = store.claim(claim.blueprint, claim.environment)
        for rival in won:
            store.drop_claim(rival)
        if len(won) != 1 or winner != won[0]:
            raise StoreUnavailable(
                f"{len(won)} of {WRITERS} writers won one race: entries would be lost there"
            )


def copy_store(
    source: OperationStore,
    destination: OperationStore,
    holder: StoreHolder,
    *,
    blueprint: str | None = None,
    environment: str | None = None,
    progress: Progress = lambda _: None,
) -> StoreCopyDocument:
    """
    Copy the whole history and all blobs, and verify them by count and digest; with ``blueprint``
    and ``environment`` only their entries and runs.

    Can be repeated: existing entries are recognised. The destination's claims are held meanwhile,
    so that nobody relies on half a history. Raises Busy if a run holds a claim in either store,
    Fenced if the destination holds other entries of a target, Invalid if there is nothing to copy.
    """
    records = source.records(blueprint, environment)
    _check_some(records, source.url, f" of {blueprint}/{environment}" if blueprint else "")
    _check_idle(source, records)
    destination.probe()
    with holder.hold(destination, places_of(records)):
        histories = (source.history(record.target) for record in records)
        copied = _append_all(destination, (entries[::-1] for entries in histories), progress)
        names = _copy_blobs(source, destination, blueprint, environment, progress)
        _check_idle(source, records)
        _verify(source, destination, records)
    return StoreCopyDocument(
        source=source.url,
        destination=destination.url,
        targets=len(records),
        entries=copied,
        blobs=len(names),
        digest=digest_of(source, records),
    )


def _copy_blobs(
    source: OperationStore,
    destination: OperationStore,
    blueprint: str | None,
    environment: str | None,
    progress: Progress,
) -> list[str]:
    """
    Copy the blobs, except the store's identity and runs of other blueprints, and return their
    names.
    """
    strangers = _runs_of_others(source, blueprint, environment) if blueprint else frozenset()
    names = [
        name for name in source.blobs("") if run_of(name) not in strangers and name != IDENTITY_BLOB
    ]
    for number, name in enumerate(names, start=1):
        data = source.blob(name)
        if data is not None and name == KEY_BLOB:
            if destination.create_blob(name, data) != data:
                progress("the destination keeps its own project key: secrets read as changed once")
        elif data is not None and destination.blob(name) != data:
            destination.put_blob(name, data)
        if number % 100 == 0:
            progress(f"{number} of {len(names)} blobs")
    return names


def _check_some(items: Sequence[object], place: str, whose: str = "") -> None:
    """
    Raise Invalid if nothing was found: a store that does not exist looks like an empty one.
    """
    if not items:
        problem = f"there are no records{whose} in {place}"
        raise Invalid([Problem(problem, hint="is that the place they are in?")])


def _check_idle(store: OperationStore, records: Sequence[OperationRecord]) -> None:
    for blueprint, environment in sorted(places_of(records)):
        claim = store.claim(blueprint, environment)
        if claim is not None:
            raise busy(claim, store.url)


def _append_all(
    destination: OperationStore,
    histories: Iterable[Sequence[OperationRecord]],
    progress: Progress,
) -> int:
    total = 0
    for entries in histories:
        for entry in entries:
            destination.append(entry)
        total += len(entries)
        if entries:
            progress(f"{entries[-1].target}: {count(len(entries), 'entry')}")
    return total


def _runs_of_others(
    store: OperationStore, blueprint: str, environment: str | None
) -> frozenset[str]:
    """
    Return the ids of runs of other blueprints or environments; one that cannot be read is none.
    """
    return frozenset(
        run_id
        for run_id, run in readable_runs(store, store.blobs("runs/")).items()
        if (run.blueprint, run.environment) != (blueprint, environment)
    )


def _verify(
    source: OperationStore, destination: OperationStore, records: Sequence[OperationRecord]
) -> None:
    """
    Raise StoreUnavailable if a target has other entries in the destination than in the source.
    """
    for record in records:
        target = record.target
        originals, copied = source.history(target), destination.history(target)
        if copied[-len(originals) :] != originals:
            raise StoreUnavailable(
                f"{destination.url}: {target} has {len(copied)} entries that are not those of "
                f"{source.url}",
                hint="copy into an empty store",
            )


def digest_of(store: OperationStore, records: Sequence[OperationRecord]) -> str:
    """
    Return the SHA-256, in hex, over all entries of the targets of ``records``, oldest first.
    """
    digest = hashlib.sha256()
    for record in records:
        for entry in reversed(store.history(record.target)):
            digest.update(entry.to_json().encode())
    return digest.hexdigest()


def export_store(store: OperationStore) -> Iterator[str]:
    """
    Yield one line of JSON for each target, with all its entries.
    """
    for record in store.records():
        target = record.target
        entries = [json.loads(entry.to_json()) for entry in reversed(store.history(target))]
        named = ((name, store.blob(name)) for name in _documents(record))
        blobs = {name: data.decode() for name, data in named if data is not None}
        exported = ExportedTarget(target=str(target), entries=tuple(entries), blobs=blobs)
        yield exported.model_dump_json(by_alias=True)


def _documents(record: OperationRecord) -> list[str]:
    """
    Return the names of the blobs without which no later run can work on a target: its recorded
    inputs, and the deployment that says how to destroy it once it has left the blueprint.
    """
    names = [record.resolved_inputs_file or ""]
    names += [deployment_blob(record.deployment)] if record.deployment else []
    # An imported record may name anything: the project key is no such document.
    return [name for name in names if name.startswith(("runs/", "deployments/"))]


def import_store(
    lines: Iterable[str],
    destination: OperationStore,
    holder: StoreHolder,
    *,
    source: str,
    progress: Progress,
) -> StoreCopyDocument:
    """
    Append the output of ``export_store``. Raises Busy if a run holds a claim there, Invalid, before
    anything is written, if a line is not from an export, Fenced if the store holds other entries of
    a target.
    """
    parsed = [
        _parse_line(line, source, number)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    _check_some(parsed, source)
    histories = [entries for entries, _ in parsed]
    blobs = {name: data for _, documents in parsed for name, data in documents.items()}
    digest = hashlib.sha256()
    for entries in histories:
        for entry in entries:
            digest.update(entry.to_json().encode())
    destination.probe()
    with holder.hold(destination, places_of(entry for entries in histories for entry in entries)):
        for name, data in blobs.items():
            destination.create_blob(name, data)
        total = _append_all(destination, histories, progress)
    return StoreCopyDocument(
        source=source,
        destination=destination.url,
        targets=len(histories),
        entries=total,
        blobs=len(blobs),
        digest=digest.hexdigest(),
    )


def _parse_line(
    line: str, source: str, number: int
) -> tuple[list[OperationRecord], dict[str, bytes]]:
    """
    Return the entries of a line and the documents that the newest one names.
    """
    try:
        exported = ExportedTarget.model_validate_json(line)
        entries = [parse_record(json.dumps(entry)) for entry in exported.entries]
    except (ValidationError, UnreadableRecord, ValueError) as exc:
        reason = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else str(exc)
        raise Invalid(
            [
                Problem(
                    f"{source}:{number}: not a line of `store export`: {reason}",
                    hint="export it again: `orchestrator store export > FILE`",
                )
            ]
        ) from exc
    named = _documents(entries[-1]) if entries else []
    return entries, {n: exported.blobs[n].encode() for n in named if n in exported.blobs}


class RestoredStore(Protocol):
    """
    A store that knows what this machine has seen of it.
    """

    def records(self) -> list[OperationRecord]: ...

    def gone_back(self) -> Sequence[str]:
        """
        Return each target whose newest entry is older than what was seen, with both.
        """

    def unreconciled(self) -> Mapping[Target, OperationRecord | None]:
        """
        Return these targets if they were not reconciled since, with their records.
        """

    def accept(self) -> list[OperationRecord]:
        """
        Forget what was seen: from now on the store's entries are the newest.
        """

    def put_blob(self, name: str, data: bytes) -> None: ...


def accept_restored(
    store: RestoredStore, by: Claim, reason: str, *, lost: Sequence[str] = ()
) -> list[str]:
    """
    Accept the store as it is and return the targets that are older than seen. The actor and the
    reason are stored before anything is forgotten.

    Raises Refused while one of them was not reconciled since: its objects may differ from its
    record. ``lost`` are targets without a record that no blueprint has.
    """
    store.records()
    older = list(store.gone_back())
    unreconciled = store.unreconciled()
    by_name = {str(target): record for target, record in unreconciled.items()}
    given_up = [name for name in lost if name in by_name and by_name[name] is None]
    for name in lost:
        if name not in given_up:
            raise Refused(
                "not_lost", f"{name}: its record is not missing here", hint="leave it out"
            )
    remaining = [target for target in unreconciled if str(target) not in given_up]
    if remaining:
        commands = "; ".join(
            f"`{_update_command(target, unreconciled[target])}`" for target in remaining
        )
        raise Refused(
            "unreconciled",
            f"not reconciled since the store went back: {', '.join(map(str, remaining))}",
            hint=f"first {commands}; --orphaned where the step has left its blueprint, "
            "--lost TARGET where no blueprint knows it and there is no record of it any more",
        )
    if older:
        note = {
            "reason": reason,
            "actor": by.actor.model_dump(),
            "at": by.taken_at.isoformat(),
            "older": older,
            "lost": given_up,
        }
        store.put_blob(f"restored/{by.run_id}.json", json.dumps(note).encode())
        store.accept()
    return older


def _update_command(target: Target, record: OperationRecord | None) -> str:
    """
    Return the command that updates a record from the provider state, or creates one.
    """
    path = record.source.blueprint_path if record else "blueprints/"
    blueprint = RecordedBlueprint(target.blueprint, target.environment, path)
    return command_line(blueprint, "reconcile" if record else "adopt", "--step", target.step)
