"""
Surgery: engine calls that change provider state and no remote object.

It never makes ``ok``: status and error are restored, with its evidence beside them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from orchestrator.domain.addresses import parse_address, without_keys
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp
from orchestrator.domain.record.objects import AdoptedObject, Doubt, Resources, SettledDoubt
from orchestrator.domain.record.record import Attempt, Fault, OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.absence import MutationEvidence, engine_fault, unapplied_fault
from orchestrator.domain.transitions.assessment import Assessment, bound_to
from orchestrator.domain.transitions.conclusion import (
    imported_addresses,
    released_object,
    unproven_imports,
)
from orchestrator.domain.transitions.doubts import (
    StateObservation,
    missing_from_state,
    settle_doubts,
    vanished_doubts,
)
from orchestrator.domain.transitions.transitions import failed, restored


def surgery_ended(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
) -> OperationRecord:
    """
    Return the entry that ends the surgery of ``marker``, which was written over ``before``.

    If there was nothing before and the provider state now holds objects, it is ``error`` with the
    code ``unapplied``; if that state cannot be read, ``error`` with the surgery as the failed
    command.
    """
    assert marker.active_command is not None, "a marker names its command"
    command, state = marker.active_command, evidence.state
    fault = None
    if evidence.exit_code != 0 or state is None:
        fault = engine_fault(command, evidence, ())
    elif command == "import":
        fault = _wrong_object(marker, before, state)
    attempt = Attempt(
        command=command,
        run_id=marker.run_id,
        at=stamp.at,
        mutated=evidence.exit_code == 0 or state is None or _state_changed(marker, state),
        error=fault,
    )
    if state is None:
        assert fault is not None, "a state that cannot be read is a fault"
        resources = before.resources if before else marker.resources
    elif before is not None and before.status not in NOTHING_THERE:
        now = _provider_state_now(marker, before, state, stamp)
        now["resources"] = _with_updates(now["resources"], marker, evidence, stamp)
        return restored(marker, before, attempt, stamp, evidence=now)
    elif not state.objects:
        return restored(marker, before, attempt, stamp)
    else:
        resources = Resources(
            planned=marker.resources.planned, inventory=state.inventory, tainted=state.tainted
        )
        fault = unapplied_fault(resources)
    changes: EntryChanges = {
        "last_attempt": attempt,
        "resources": resources,
        **bound_to(marker, state),
    }
    if state is not None:
        changes["adopted"] = unproven_imports(marker, before, state)
    return failed(marker, fault, changes, stamp, command=command)


def _provider_state_now(
    marker: OperationRecord, before: OperationRecord, state: PulledState, stamp: EntryStamp
) -> EntryChanges:
    """
    Return the changes that record the current provider state. An object that surgery removed from
    it stays alive: it stays in the inventory, in doubt, until a person says what happened to it.
    """
    adopted = unproven_imports(marker, before, state)
    imported = imported_addresses(marker)
    settled = _settled_by_surgery(marker, before, state, adopted)
    settled_doubts = [item.doubt for item in settled]  # what a readback says of one has no hash
    keys = {doubt.key for doubt in before.resources.in_doubt}
    unproven = {(item.type, item.id) for item in before.adopted}
    removed = missing_from_state(before, state)
    missing = [ref for ref in removed if (ref.type, ref.id) not in unproven]
    released = [ref for ref in removed if (ref.type, ref.id) in unproven]
    vanished = [ref for ref in missing if ref.key not in keys]
    resources = before.resources.model_copy(
        update={
            "inventory": (*state.inventory, *missing),
            "deleted": tuple(n for n in before.resources.deleted if n not in imported),
            "tainted": state.tainted,
            "in_doubt": (
                *(
                    _beside(d, state, imported)
                    for d in before.resources.in_doubt
                    if d not in settled_doubts
                ),
                *vanished_doubts(vanished),
            ),
            "released": tuple(
                released_object(ref, "forgotten", marker, stamp.at) for ref in released
            ),
        }
    )
    return {
        "resources": resources,
        "settled": (*before.settled, *settled),
        "adopted": (*before.adopted, *adopted),
        "protected": _protected_now(before, state),
        **bound_to(before, state),
    }


def _protected_now(before: OperationRecord, state: PulledState) -> tuple[str, ...]:
    """
    Return the addresses that `prevent_destroy` protects, with those to which a person moved such
    objects in the provider state.
    """
    held = {
        (ref.type, ref.id)
        for ref in before.resources.inventory
        if without_keys(ref.address) in before.protected and ref.id is not None
    }
    now = {without_keys(item.address) for item in state.objects if (item.type, item.id) in held}
    return tuple(sorted({*before.protected, *now}))


def _beside(doubt: Doubt, state: PulledState, imported: Collection[str]) -> Doubt:
    """
    Return a doubt that stays open beside the object that a person imported at its address.
    """
    if doubt.address not in imported or doubt.address not in state.ids:
        return doubt
    why = f"{doubt.why}; {state.ids[doubt.address]}, imported there, is not proven to be it"
    return doubt.model_copy(update={"why": why})


def _with_updates(
    resources: Resources, marker: OperationRecord, evidence: MutationEvidence, stamp: EntryStamp
) -> Resources:
    """
    Return the resources with doubts about updates that a plan made beside its imports.
    """
    ended_well = evidence.exit_code == 0
    planned, before = marker.resources.planned, marker.resources.inventory
    assessed = Assessment(
        planned, evidence.journal, before, evidence.state, ended_well=ended_well
    ).resources()
    keys = {(doubt.address, doubt.action) for doubt in resources.in_doubt}
    fresh = tuple(
        doubt.model_copy(update={"at": stamp.at})
        for doubt in assessed.in_doubt
        if doubt.action == "update" and (doubt.address, doubt.action) not in keys
    )
    return resources.model_copy(update={"in_doubt": (*resources.in_doubt, *fresh)})


def same_content(one: PulledState, other: PulledState) -> bool:
    """
    Return whether two provider states hold the same objects, attributes and outputs. A push may
    raise the serial, and a remote backend that was empty creates a lineage of its own.
    """
    try:
        documents = [json.loads(state.raw) for state in (one, other)]
    except ValueError:  # never written, or printed among warnings
        return False
    for document in documents:
        for name in ("lineage", "serial", "terraform_version"):
            document.pop(name, None)
    return bool(documents[0] == documents[1])


def managing_address(state: PulledState, address: str, object_id: str) -> str | None:
    """
    Return the other address at which the state manages the object with this id, if any.

    Only objects of the type of ``address`` count: ids are unique per type only.
    """
    kind = parse_address(address).type
    others = (
        item.address
        for item in state.objects
        if item.id == object_id and item.type == kind and item.address != address
    )
    return next(others, None)


def _wrong_object(
    marker: OperationRecord, before: OperationRecord | None, state: PulledState
) -> Fault | None:
    """
    Return the fault of an import of another object than the one in doubt, or of one that another
    address manages.
    """
    doubts = {doubt.address: doubt for doubt in before.resources.in_doubt} if before else {}
    for address in imported_addresses(marker):
        object_id = state.ids.get(address)
        twin = managing_address(state, address, object_id) if object_id else None
        doubt = doubts.get(address)
        if twin is not None:
            code, reason = "managed_twice", f"{object_id} is managed at {twin} already"
        elif doubt is not None and doubt.id not in (None, object_id):
            code, reason = "other_object", f"it manages {object_id} now, and {doubt.id} is in doubt"
        else:
            continue
        return Fault(
            code=code, phase="surgery", summary=f"{address}: {reason}", resources=(address,)
        )
    return None


def _state_changed(marker: OperationRecord, state: PulledState) -> bool:
    """
    Return whether the provider state has changed since the marker was written.
    """
    bound = marker.provider_state
    recorded = (bound.lineage, bound.serial) if bound else (None, None)
    return (state.lineage, state.serial if state.lineage else None) != recorded


def _settled_by_surgery(
    marker: OperationRecord,
    before: OperationRecord,
    state: PulledState,
    adopted: Iterable[AdoptedObject],
) -> Iterable[SettledDoubt]:
    """
    Return the doubts that the surgery settled. An import at an address in doubt adopts the object
    if it is proven to be the one in doubt; otherwise the doubt stays.
    """
    unproven = {item.address for item in adopted}
    ids = {
        address: object_id
        for address, object_id in state.ids.items()
        if address not in unproven
        and (object_id is None or managing_address(state, address, object_id) is None)
    }
    observation = StateObservation(
        at=marker.updated_at, run_id=marker.run_id, settling_time=0.0, ids=ids
    )
    _, settled = settle_doubts(before, observation)
    imported = imported_addresses(marker)
    return tuple(
        item.model_copy(update={"how": "adopted"}) if item.doubt.address in imported else item
        for item in settled
    )
