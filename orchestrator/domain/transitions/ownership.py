"""
Objects that a mutation imports instead of creating them, and objects that it releases.

Law: not ours until proven.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from orchestrator.domain.addresses import without_keys
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import (
    AdoptedObject,
    ObjectRef,
    ReleasedObject,
    ReleaseReason,
    Resources,
)
from orchestrator.domain.record.record import OperationRecord


def unproven_imports(
    marker: OperationRecord, before: OperationRecord | None, state: PulledState | None
) -> tuple[AdoptedObject, ...]:
    """
    Return the objects that the mutation of ``marker`` imported and that neither a doubt about that
    very object nor the earlier inventory proves to be ours.
    """
    if state is None:
        return ()
    doubts = {doubt.address: doubt for doubt in before.resources.in_doubt} if before else {}
    owned = {(ref.type, ref.id) for ref in before.resources.inventory} if before else set()
    adopted_before = {(item.type, item.id) for item in before.adopted} if before else set()
    adopted = []
    for address in (*imported_addresses(marker), *_arrived(marker, state)):
        if address not in state.ids:
            continue
        id_, kind = state.ids[address], type_of(address)
        doubt = doubts.get(address)
        if (kind, id_) in owned | adopted_before or (doubt is not None and doubt.is_proven(id_)):
            continue
        readback = doubt.readback if doubt is not None and doubt.readback else None
        same = readback is not None and id_ in readback.ids
        adopted.append(
            AdoptedObject(
                address=address,
                type=kind,
                id=id_,
                ownership=(readback.ownership if readback and same else None) or "found",
                why=(readback.evidence if readback and same else None)
                or f"{_imported_by(marker)}; nothing proves that this target made it",
                run_id=marker.run_id,
                at=marker.updated_at,
            )
        )
    return tuple(adopted)


def in_another_place(
    before: OperationRecord,
    vanished: Iterable[ObjectRef],
    state: PulledState,
    run_id: str,
    at: datetime,
) -> tuple[AdoptedObject, ...]:
    """
    Return the objects that, in a state that moved without us, have taken the addresses of those in
    ``vanished``: nothing proves that they are ours, unless they are already recorded.
    """
    recorded = {ref.key for ref in before.resources.inventory}
    creates = {doubt.address for doubt in before.resources.in_doubt if doubt.action == "create"}
    adopted = {item.key for item in before.adopted}
    return tuple(
        AdoptedObject(
            address=ref.address,
            type=ref.type,
            id=state.ids[ref.address],
            ownership="found",
            why=f"it took the place of {ref.id} in the provider state, and not by this tool",
            run_id=run_id,
            at=at,
        )
        for ref in vanished
        if ref.address in state.ids
        and ref.deposed is None
        and ref.address not in creates
        and (ref.address, state.ids[ref.address]) not in recorded | adopted
    )


def imported_addresses(marker: OperationRecord) -> tuple[str, ...]:
    """
    Return the addresses at which the mutation of ``marker`` imports objects.
    """
    return tuple(item.address for item in marker.resources.planned if item.imports)


def type_of(address: str) -> str:
    """
    Return the resource type in an address.

    >>> type_of('module.a["x.y"].aws_instance.this["k.z"]')
    'aws_instance'
    """
    parts = without_keys(address).split(".")
    return parts[-2] if len(parts) > 1 else ""


def _arrived(marker: OperationRecord, state: PulledState) -> tuple[str, ...]:
    """
    Return the addresses at which an engine command of the user added objects to the provider state.
    """
    if marker.active_command != "exec":
        return ()
    recorded = {(ref.type, ref.id) for ref in marker.resources.inventory}
    return tuple(
        item.address
        for item in state.objects
        if item.deposed is None and (item.type, item.id) not in recorded
    )


def _imported_by(marker: OperationRecord) -> str:
    if marker.active_command == "exec":
        return "an engine command of a person took it in"
    if marker.active_command == "import":
        return "a person imported it"
    return "an import block of the module took it in"


# What we made or managed and no longer manage (law: nothing drops out of sight): what a plan
# forgot, and what its refresh did not find. It stays in the record, and is never called absent or
# destroyed.


_REMOVING = frozenset({"delete", "replace", "update"})


def forgotten_refs(marker: OperationRecord) -> tuple[ObjectRef, ...]:
    """
    Return the objects that the marker's plan forgets: they leave provider state and stay alive.
    """
    names = {item.name for item in marker.resources.planned if item.action == "forget"}
    return tuple(ref for ref in marker.resources.inventory if ref.name in names)


def released_objects(
    marker: OperationRecord, state: PulledState | None, resources: Resources, at: datetime
) -> tuple[ReleasedObject, ...]:
    """
    Return the objects that the mutation of ``marker`` released: its inventory, except what
    ``state`` still holds, what this or an earlier delete removed, and what is in doubt.
    """
    if state is None:
        return ()
    ids = {(item.type, item.id) for item in state.objects}
    doubts = {doubt.key for doubt in resources.in_doubt}
    forgotten = {ref.key for ref in forgotten_refs(marker)}
    deleted = {
        item.doubt.key
        for item in marker.settled
        if item.how == "gone" and item.run_id == marker.run_id
    }
    removed = {item.name for item in marker.resources.planned if item.action in _REMOVING}
    released = []
    for ref in marker.resources.inventory:
        key = ref.key
        if (ref.type, ref.id) in ids or key in doubts or key in deleted:
            continue
        if ref.id is None and ref.address in state.addresses:
            continue
        how: ReleaseReason = "forgotten" if key in forgotten else "vanished"
        if how == "vanished" and ref.name in removed:
            continue
        released.append(released_object(ref, how, marker, at))
    return tuple(released)


def released_object(
    ref: ObjectRef, how: ReleaseReason, marker: OperationRecord, at: datetime
) -> ReleasedObject:
    """
    Return what is recorded of an object that the run of ``marker`` releases.
    """
    return ReleasedObject(
        address=ref.address,
        type=ref.type,
        provider=ref.provider,
        id=ref.id,
        how=how,
        run_id=marker.run_id,
        at=at,
    )


def with_released(resources: Resources, earlier: Resources) -> Resources:
    """
    Return the resources of the next entry with all objects released before.
    """
    keys = {(item.type, item.id, item.address) for item in resources.released}
    others = tuple(
        item for item in earlier.released if (item.type, item.id, item.address) not in keys
    )
    if not others:
        return resources
    return resources.model_copy(update={"released": (*others, *resources.released)})
