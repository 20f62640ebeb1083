"""
Recorded objects that the provider state does not hold: which of them an import can bring back.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.transitions.doubts import missing_from_state


class LostObjects(Struct, frozen=True):
    """
    ``importable`` are the objects to ask an import for, by address; ``obstacles`` say of the others
    why none can bring them back.
    """

    importable: Mapping[str, ObjectRef]
    obstacles: Mapping[ObjectRef, str]


def lost_objects(record: OperationRecord, state: PulledState) -> LostObjects:
    """
    The objects of the record's inventory, and those in doubt whose create returned an id, that the
    provider state does not hold under any address.
    """
    lost = dict.fromkeys((*missing_from_state(record, state), *_created(record, state)))
    importable: dict[str, ObjectRef] = {}
    obstacles: dict[ObjectRef, str] = {}
    for ref in lost:
        rivals = [other.id for other in lost if other.address == ref.address and not other.deposed]
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


def _created(record: OperationRecord, state: PulledState) -> list[ObjectRef]:
    """
    The objects that creates in doubt made: a create returned an id, and the inventory does not hold
    the object.
    """
    recorded = {(ref.address, ref.id) for ref in record.resources.inventory}
    in_state = {(item.type, item.id) for item in state.objects}
    created = []
    for doubt in record.resources.in_doubt:
        kind = parse_address(doubt.address).type
        if doubt.action != "create" or doubt.id is None or (kind, doubt.id) in in_state:
            continue
        if (doubt.address, doubt.id) not in recorded:
            created.append(ObjectRef(address=doubt.address, type=kind, provider="", id=doubt.id))
    return created
