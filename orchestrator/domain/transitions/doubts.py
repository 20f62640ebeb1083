"""
Doubts from earlier mutations: which are answered by evidence since, and which stay open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.events.journal import ENGINE_ACTIONS
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import (
    Doubt,
    ObjectKey,
    ObjectRef,
    SettledDoubt,
    Settlement,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.assessment import RefusalRules, is_refusal


class StateObservation(Struct, frozen=True):
    """
    The provider state as a run read it: when, by which run, its addresses, and whether they were
    refreshed. ``settling_time`` is how many seconds a request of a dead engine may still be under
    way.

    ``ids`` maps each address to the id of its object. ``forgotten`` and ``accepted`` are a person's
    statements, with ``reason``: these objects do not matter, or objects that the provider did not
    find are gone. The lack of an object in provider state is never evidence. ``deleted`` are
    objects (address, id) that the refresh did not find because an earlier delete removed them.
    """

    at: datetime
    run_id: str
    settling_time: float
    ids: Mapping[str, str | None] = field(default_factory=dict)
    refreshed: bool = False
    forgotten: Collection[str] = ()
    accepted: bool = False
    reason: str | None = None
    deleted: Collection[ObjectKey] = ()


def settle_doubts(
    record: OperationRecord | None, observation: StateObservation
) -> tuple[tuple[Doubt, ...], tuple[SettledDoubt, ...]]:
    """
    Return the doubts that stay open, and those that the observation answers, with the answer.

    A create is settled by a new object at its address in the state, or by a readback that proves
    absence; an object that left the state by the return of the same object; an update or delete by
    a refresh of objects in the state, once no request can be under way. An object that an earlier
    delete removed counts as a doubt about that delete, even if the delete reported an error.
    """
    if record is None:
        return (), ()
    still_open: list[Doubt] = []
    settled: list[SettledDoubt] = []
    doubts = record.resources.in_doubt
    keys = {doubt.key for doubt in doubts if doubt.action == "delete"}
    failed = (
        Doubt(address=address, action="delete", id=id_, why="its delete had ended in an error")
        for address, id_ in observation.deleted
        if (address, id_) not in keys
    )
    for doubt in (*doubts, *failed):
        how = _settlement(doubt, record, observation)
        if how is None:
            still_open.append(doubt)
            continue
        reason = observation.reason if how in ("forgotten", "accepted") else None
        settled.append(
            SettledDoubt(
                doubt=doubt, how=how, reason=reason, run_id=observation.run_id, at=observation.at
            )
        )
    return tuple(still_open), tuple(settled)


def _settlement(
    doubt: Doubt, record: OperationRecord, observation: StateObservation
) -> Settlement | None:
    """
    Return the observation's answer to a doubt, None if it has none.
    """
    if doubt.address in observation.forgotten:
        return "forgotten"
    if doubt.action == "delete" and doubt.key in observation.deleted:
        return "gone"
    if doubt.action == "forget" and doubt.saved is not None and observation.accepted:
        return "accepted"
    object_id = observation.ids.get(doubt.address)
    adopted = any(item.address == doubt.address and item.id == object_id for item in record.adopted)
    in_state = doubt.address in observation.ids
    if in_state and not adopted and _is_object_in_doubt(doubt, record, object_id):
        return "in_state"
    if (
        observation.refreshed
        and (doubt.action in ("update", "delete") or (doubt.action == "unknown" and in_state))
        and settling_seconds_left(doubt, record, observation.at, observation.settling_time) <= 0
    ):
        return "refreshed"
    if doubt.readback is not None and doubt.readback.verdict == "absent":
        return "absent"
    return None


def _is_object_in_doubt(doubt: Doubt, record: OperationRecord, object_id: str | None) -> bool:
    """
    Return whether the object at the doubt's address is the one in doubt.
    """
    if doubt.action == "forget":
        return object_id == doubt.id
    if doubt.action != "create":
        return False
    if doubt.id is not None:
        return object_id == doubt.id
    before = [
        ref.id
        for ref in record.resources.inventory
        if ref.address == doubt.address and ref.deposed is None
    ]
    return not before or (object_id is not None and object_id not in before)


def settling_seconds_left(
    doubt: Doubt, record: OperationRecord, at: datetime, settle: float
) -> float:
    """
    Return for how many seconds a request of the call that left the doubt may still be under way.
    """
    since = doubt.at or record.updated_at
    return settle - (at - since).total_seconds()


def unanswered_deletes(
    record: OperationRecord | None, refusals: RefusalRules
) -> frozenset[ObjectKey]:
    """
    Return the objects (address, id) whose delete was requested by the last mutation and whose
    result provider state does not show: it was interrupted, a destroy reported it but could not
    save its state, or it failed with an error that does not prove that nothing was done. If such an
    object is gone now, that delete is the reason.
    """
    if record is None:
        return frozenset()
    resources = record.resources
    # A refresh settles what was interrupted, also where it does not find the object: until the next
    # apply that delete is still why it is gone.
    destroying = record.failed_command == "destroy"
    refreshed = [item.doubt for item in record.settled if item.how in ("refreshed", "gone")]
    doubts = (*resources.in_doubt, *(refreshed if destroying else ()))
    cut = {doubt.key for doubt in doubts if doubt.of_a_delete}
    diagnostics = record.error.diagnostics if record.error else ()
    tried = [item for item in resources.planned if item.name in resources.failed]
    deletes = {item.name for item in tried if "delete" in ENGINE_ACTIONS.get(item.action, ())}
    # What a replacement was to delete is deposed where its successor was made first.
    replaced = {item.address for item in tried if item.action == "replace"}
    displaced = [ref for ref in resources.inventory if ref.deposed and ref.address in replaced]
    deletes -= {ref.address for ref in displaced}
    failed = {
        ref.key
        for ref in resources.inventory
        if (ref.name in deletes or ref in displaced)
        and not is_refusal(
            [item for item in diagnostics if item.address in (ref.address, None)], refusals
        )
    }
    reported = {ref.key for ref in record.deleted_in_state}
    return frozenset(cut | failed | reported)


def missing_from_state(record: OperationRecord | None, state: PulledState) -> tuple[ObjectRef, ...]:
    """
    Return the recorded objects that are no longer in provider state at any address. They are
    compared by type and id, because another object may have taken the address; without an id by
    address.
    """
    if record is None or record.status in NOTHING_THERE:
        return ()
    ids = {(item.type, item.id) for item in state.objects if item.id is not None}
    return tuple(
        ref
        for ref in record.resources.inventory
        if ((ref.type, ref.id) not in ids if ref.id else ref.address not in state.addresses)
    )


def with_vanished(doubts: Sequence[Doubt], vanished: Iterable[ObjectRef]) -> tuple[Doubt, ...]:
    """
    Return the doubts with one for each object that left the provider state. It replaces a doubt
    about an update or delete, which no refresh can answer any more.
    """
    keys = {d.key for d in doubts if d.action not in ("update", "delete")}
    fresh = vanished_doubts(ref for ref in vanished if ref.key not in keys)
    gone = {doubt.key for doubt in fresh}
    others = (
        doubt
        for doubt in doubts
        if doubt.action not in ("update", "delete") or doubt.key not in gone
    )
    return (*others, *fresh)


def vanished_doubts(vanished: Iterable[ObjectRef]) -> tuple[Doubt, ...]:
    """
    Return doubts for objects that left the provider state without a destroy: they may still exist.
    """
    return tuple(
        Doubt(
            address=ref.address,
            action="forget",
            id=ref.id,
            why="it left the provider state, and not by a delete of this tool",
        )
        for ref in vanished
    )


# Recorded objects that the provider state does not hold: which of them an import can bring back.


class LostObjects(Struct, frozen=True):
    """
    ``importable`` are the objects that can be imported, by address; ``obstacles`` say why the
    others cannot.
    """

    importable: Mapping[str, ObjectRef]
    obstacles: Mapping[ObjectRef, str]


def lost_objects(record: OperationRecord, state: PulledState) -> LostObjects:
    """
    Return the recorded objects, and those in doubt with a known id that were created or have left,
    that are at no address in provider state.
    """
    missing = dict.fromkeys((*missing_from_state(record, state), *_doubted(record, state)))
    importable: dict[str, ObjectRef] = {}
    obstacles: dict[ObjectRef, str] = {}
    for ref in missing:
        rivals = [
            other.id for other in missing if other.address == ref.address and not other.deposed
        ]
        if ref.id is None:
            obstacles[ref] = "its id is not recorded"
        elif ref.deposed is not None:
            obstacles[ref] = "it was deposed: its address is another object's"
        elif ref.address in state.addresses:
            obstacles[ref] = f"its address holds {state.ids[ref.address] or 'another object'}"
        elif len(rivals) > 1:
            obstacles[ref] = f"its address is recorded of {' and '.join(map(str, rivals))}"
        else:
            importable[ref.address] = ref
    return LostObjects(importable, obstacles)


def _doubted(record: OperationRecord, state: PulledState) -> list[ObjectRef]:
    """
    Return the objects in doubt whose id is known and not in the inventory: the create returned it,
    or the object was recorded before it left.
    """
    recorded = {ref.key for ref in record.resources.inventory}
    in_state = {(item.type, item.id) for item in state.objects}
    found = []
    for doubt in record.resources.in_doubt:
        kind = parse_address(doubt.address).type
        if not (doubt.action == "create" or doubt.has_left_state):
            continue
        if doubt.id is None or (kind, doubt.id) in in_state:
            continue
        if doubt.key not in recorded:
            found.append(ObjectRef(address=doubt.address, type=kind, provider="", id=doubt.id))
    return found
