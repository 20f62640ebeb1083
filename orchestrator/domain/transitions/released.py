"""
What we made or managed and no longer manage (law: nothing drops out of sight): what a plan forgot,
and what its refresh did not find. It stays in the record, and is never called absent or destroyed.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.domain.record.objects import ObjectRef, ReleasedObject, ReleaseReason, Resources
from orchestrator.domain.record.record import OperationRecord

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.provider_state import PulledState

_REMOVING = frozenset({"delete", "replace", "update"})


def forgotten_refs(marker: OperationRecord) -> tuple[ObjectRef, ...]:
    """
    The objects of a marker that its plan forgets: they leave provider state and live on.
    """
    names = {item.name for item in marker.resources.planned if item.action == "forget"}
    return tuple(ref for ref in marker.resources.inventory if ref.name in names)


def released_objects(
    marker: OperationRecord, state: PulledState | None, resources: Resources, at: datetime
) -> tuple[ReleasedObject, ...]:
    """
    The objects that the mutation of ``marker`` released: its inventory without what ``state`` still
    holds, without what it or an earlier delete removed, and without what is in doubt.
    """
    if state is None:
        return ()
    ids = {(item.type, item.id) for item in state.objects}
    doubts = {(doubt.address, doubt.id) for doubt in resources.in_doubt}
    forgotten = {(ref.address, ref.id) for ref in forgotten_refs(marker)}
    deleted = {
        (item.doubt.address, item.doubt.id)
        for item in marker.settled
        if item.how == "gone" and item.run_id == marker.run_id
    }
    removed = {item.name for item in marker.resources.planned if item.action in _REMOVING}
    released = []
    for ref in marker.resources.inventory:
        key = (ref.address, ref.id)
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
    What is kept of an object that the run of ``marker`` let go.
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
    The resources of the next entry with all objects that were released before.
    """
    keys = {(item.type, item.id, item.address) for item in resources.released}
    others = tuple(
        item for item in earlier.released if (item.type, item.id, item.address) not in keys
    )
    if not others:
        return resources
    return resources.model_copy(update={"released": (*others, *resources.released)})
