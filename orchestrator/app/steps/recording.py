"""
Records mutations: entries, durable or spooled, and the output of their calls.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.events import DiagnosticMessage, Message
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, ObjectKey, ObjectRef, SavedState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.redaction import redacted
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.assessment import not_deleted
from orchestrator.domain.transitions.ownership import forgotten_refs
from orchestrator.errors import Fenced, OrchestratorError, Spooled, StoreUnavailable

# Provider states from before a destroy, saved until the provider has confirmed what it removed.
#
# They stay on this machine, readable to their owner only: nothing else knows the objects well
# enough to ask for them.


#: The file in the directory of the destroy's attempt. It holds secrets.
STATE_BEFORE = "before.tfstate"


class SavedObjects(Struct, frozen=True):
    """
    Objects whose absence is to be confirmed, and the saved provider state that holds them; ``raw``
    is None if it is not on this machine.
    """

    saved: SavedState
    raw: bytes | None
    objects: tuple[ObjectRef, ...]


def awaiting_confirmation(
    record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[Doubt]:
    """
    Return the doubts that a kept provider state could answer, except at ``forgotten`` addresses.
    """
    doubts = record.resources.in_doubt
    return [d for d in doubts if d.saved is not None and d.address not in forgotten]


def saved_objects(
    services: Services, record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[SavedObjects]:
    """
    Return the objects of a record that earlier destroys removed and that are not confirmed gone, by
    saved state; none at ``forgotten`` addresses.
    """
    by_state: dict[SavedState, set[ObjectKey]] = {}
    for doubt in awaiting_confirmation(record, forgotten=forgotten):
        if doubt.saved is not None:
            by_state.setdefault(doubt.saved, set()).add(doubt.key)
    return [
        SavedObjects(
            saved,
            _read(services, record.target.step, saved),
            tuple(ref for ref in record.resources.inventory if ref.key in keys),
        )
        for saved, keys in by_state.items()
    ]


def removed_objects(
    services: Services, marker: OperationRecord, saved: SavedState, evidence: MutationEvidence
) -> SavedObjects:
    """
    Return the objects that the destroy of a marker removed from provider state and that were not in
    doubt before.
    """
    inventory = marker.resources.inventory
    if evidence.state is not None:
        remaining = {item.key for item in evidence.state.objects}
    else:
        ended_well = evidence.exit_code == 0
        refs = not_deleted(inventory, evidence.journal, ended_well=ended_well)
        remaining = {ref.key for ref in refs}
    remaining |= {d.key for d in marker.resources.in_doubt if d.action == "forget"}
    remaining |= {ref.key for ref in forgotten_refs(marker)}  # they live on
    removed = tuple(ref for ref in inventory if ref.key not in remaining)
    return SavedObjects(saved, _read(services, marker.target.step, saved), removed)


def _read(services: Services, step: str, saved: SavedState) -> bytes | None:
    place = _place(services, step, saved.run_id, saved.attempt)
    try:
        return place.read_bytes() if place else None
    except OSError:
        return None


def _place(services: Services, step: str, run_id: str, attempt: int) -> Path | None:
    """
    Return the file of the provider state that an attempt saved on this machine, None if there is
    none.
    """
    attempts = dict(services.files.attempts(run_id, step))
    return attempts[attempt] / STATE_BEFORE if attempt in attempts else None


def drop_saved_states(
    services: Services, entry: OperationRecord, *, marker: OperationRecord | None = None
) -> None:
    """
    Remove the kept provider states that no doubt of ``entry`` needs any more: of its own run, of
    the ``marker`` it follows, and of settled doubts. Once nothing exists, the engine's backup of a
    local state is removed, too.
    """
    needed = {(d.saved.run_id, d.saved.attempt) for d in entry.resources.in_doubt if d.saved}
    settled = (item.doubt.saved for item in entry.settled if item.doubt.saved is not None)
    saved = {(entry.run_id, entry.attempt), *((s.run_id, s.attempt) for s in settled)}
    if marker is not None:
        saved.add((marker.run_id, marker.attempt))
    for run_id, attempt in sorted(saved - needed):
        place = _place(services, entry.target.step, run_id, attempt)
        if place is not None:
            with contextlib.suppress(OSError):  # not ours to remove any more
                place.unlink(missing_ok=True)
    if entry.status in NOTHING_THERE and entry.provider_state is not None:
        services.workdirs.drop_state_backup(entry.provider_state)


#: Waits in seconds between tries to record an outcome; the last one again and again, while a store
#: that is away is waited for.
PATIENCE = (0.2, 0.5, 1.0)


def record_entry(services: Services, entry: OperationRecord) -> OperationRecord:
    """
    Make an entry durable, redacted, and return it.

    If this raises for a marker, the mutation must not start.

    Law: no record, no mutation.
    """
    return _append(services, redacted(entry, services.masker))


def record_outcome(services: Services, outcome: OperationRecord) -> OperationRecord:
    """
    Make the outcome of a mutation durable, in the store or else in the spool.

    Law: spooled outcome.

    Raises Spooled if the store stayed unavailable and the outcome is in the spool; raises Fenced if
    another writer took over the target: then the outcome is kept beside the run as evidence and
    overwrites nothing.
    """
    outcome, clock = redacted(outcome, services.masker), services.clock
    grace, began = services.limits.store_grace, clock.monotonic()
    for tries in itertools.count():
        try:
            return _append(services, outcome)
        except Fenced:
            write_late_outcome(services, outcome)
            raise
        except StoreUnavailable as exc:
            remaining = began + grace - clock.monotonic()
            if tries >= len(PATIENCE) and remaining <= 0:
                raise _spooled(services, outcome, exc) from exc
            if tries == len(PATIENCE):
                services.note(
                    f"the outcome waits for the operation store, {remaining:.0f} s more at most: "
                    f"{exc.message}",
                    level="warning",
                    step=outcome.target.step,
                )
            clock.sleep(PATIENCE[min(tries, len(PATIENCE) - 1)])
    raise AssertionError("a try returns or raises in the end")


def _append(services: Services, entry: OperationRecord) -> OperationRecord:
    """
    Append an entry with the checksum of the stored entry before it: the one in memory may have been
    judged by newer evidence.
    """
    store, target = services.store, entry.target
    if entry.sequence > 1:
        before = store.newest_known(target)
        if before is None or before.sequence != entry.sequence - 1:
            before = store.newest(target)
        if before is not None and before.entry_id == entry.entry_id:
            return before  # the answer to our own write was lost
        follows = before is not None and before.sequence == entry.sequence - 1
        checksum = before.own_checksum() if before is not None and follows else None
        entry = entry.model_copy(update={"previous_checksum": checksum})
    store.append(entry)
    return entry


def write_events(services: Services, attempt: Path, messages: Iterable[Message]) -> None:
    """
    Write the messages of a mutating call as ``events.jsonl``, masked, beside the attempt's log.
    """
    mask = services.masker.mask_json
    lines = [
        json.dumps(
            {"event": type(message).__name__.lower(), **mask(_fields(message))}, default=_plain
        )
        for message in messages
    ]
    with suppress(StoreUnavailable):
        services.files.write(attempt / "events.jsonl", "".join(f"{line}\n" for line in lines))


def keep_inventory(services: Services, attempt: Path, state: PulledState) -> None:
    """
    Write the objects of a provider state, without attributes, as ``inventory.json`` of an attempt.
    """
    rows = [ref.model_dump(exclude_none=True) for ref in state.inventory]
    with suppress(StoreUnavailable):
        services.files.write(attempt / "inventory.json", json.dumps(rows, indent=2) + "\n")


def _fields(message: Message) -> dict[str, Json]:
    if isinstance(message, DiagnosticMessage):
        return message.diagnostic.model_dump()
    fields: dict[str, Json] = msgspec.to_builtins(message, builtin_types=(datetime,), enc_hook=str)
    return fields


def _plain(value: object) -> Json:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _spooled(services: Services, outcome: OperationRecord, exc: StoreUnavailable) -> Spooled:
    target = outcome.target
    try:
        place = f"it is in {services.spool.put(outcome)}"
    except OrchestratorError as second:
        place = f"nor spooled ({second.message}); the engine's result is in {outcome.run_record}"
    return Spooled(
        f"{target}: the engine finished, but its outcome could not be recorded ({exc.message}); "
        f"{place}",
        hint="make the store writable again; the next mutating command records it first",
    )


def write_late_outcome(services: Services, outcome: OperationRecord) -> None:
    """
    Write an outcome that came too late beside its run, as evidence.
    """
    directory = services.files.directory(outcome.run_id)
    name = f"late-{outcome.target.step}-{outcome.sequence}.json".replace("/", "_")
    try:
        services.files.write(directory / name, outcome.to_json())
        if services.is_shared:
            services.store.put_blob(f"runs/{outcome.run_id}/{name}", outcome.to_json().encode())
    except StoreUnavailable as exc:
        services.note(f"a late outcome could not be kept: {exc.message}", level="warning")


def replay_spool(services: Services, deployment: Deployment) -> None:
    """
    Record spooled outcomes of earlier runs of this blueprint and environment, oldest first.
    """
    ours = (deployment.blueprint, deployment.environment)
    for outcome in services.spool.pending():
        target = outcome.target
        if (target.blueprint, target.environment) != ours:
            continue
        try:
            _append(services, outcome)
            drop_saved_states(services, outcome)
            services.note(f"{target}: recorded the spooled outcome `{outcome.status}`")
        except Fenced:
            write_late_outcome(services, outcome)
            services.note(
                f"{target}: a spooled outcome of run {outcome.run_id} came too late; another run "
                "has recorded since. It is kept beside its run and overwrites nothing",
                level="warning",
            )
        services.spool.drop(outcome)
        services.files.sweep(outcome.run_id, settled=target.step)
