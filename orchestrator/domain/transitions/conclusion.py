"""
The end of a mutation: marker and evidence give the next entry.

A run that was observed and one that is found on disk later end by the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.events.journal import lasting_warnings
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp
from orchestrator.domain.record.objects import (
    AdoptedObject,
    Doubt,
    ObjectRef,
    PlannedAction,
    ReleasedObject,
    ReleaseReason,
    Resources,
    moves,
)
from orchestrator.domain.record.record import (
    Command,
    Fault,
    OperationRecord,
    Verification,
)
from orchestrator.domain.transitions.absence import (
    STOPPED_CHECKS,
    MutationEvidence,
    absence,
    check_fault,
    engine_fault,
    targeted_fault,
    unconfirmed_objects,
    update_doubts,
)
from orchestrator.domain.transitions.assessment import (
    NO_RULES,
    Assessment,
    RefusalRules,
    bound_to,
    not_deleted,
    outputs_of_state,
    with_serial_of,
)
from orchestrator.domain.transitions.reconciliation import (
    confirmed,
    deleted_before,
    unconfirmed_reason,
)
from orchestrator.domain.transitions.transitions import (
    WITH_PARENT,
    failed,
    gone,
    reverted,
    succeeded,
)


def conclude(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
    *,
    refusals: RefusalRules = NO_RULES,
    verification: Verification | None = None,
    undone: Sequence[PlannedAction] = (),
) -> OperationRecord:
    """
    Return the entry that ends the mutation of ``marker``.

    Laws: only success makes ok; failure keeps what is known; destroyed means confirmed.

    ``before`` is the entry that the marker was written over. ``verification`` is the result of the
    step's checks if the engine succeeded; a failed check makes ``error``. ``undone`` is what a
    targeted apply left undone; then the target is not ``ok`` either.
    """
    command = marker.active_command or "apply"
    journal = evidence.journal
    if is_parent_destroy(marker):
        return _end_with_parent(marker, before, evidence, stamp)
    if evidence.touched_nothing:
        return reverted(marker, before, engine_fault(command, evidence, ()), stamp)
    resources = Assessment(
        marker.resources.planned,
        journal,
        marker.resources.inventory,
        evidence.state,
        refusals,
        ended_well=evidence.exit_code == 0,
    ).resources()
    carried = _carried_doubts(marker.resources.in_doubt, resources)
    fresh = (doubt.model_copy(update={"at": stamp.at}) for doubt in resources.in_doubt)
    doubts = (*carried, *fresh)
    released = _released(marker, evidence.state, doubts, stamp.at)
    resources = resources.model_copy(update={"in_doubt": doubts, "released": released})
    if command == "destroy":
        return _end_destroy(marker, before, evidence, resources, stamp)
    findings = evidence.absence_findings
    doubts, _ = update_doubts(resources, findings, run_id=marker.run_id, at=stamp.at)
    remaining = (*resources.inventory, *(item.ref for item in findings))
    resources = resources.model_copy(update={"inventory": remaining, "in_doubt": doubts})
    created = {address for address, action in evidence.journal.completed if action == "create"}
    adopted = (*_moved_along(marker), *unproven_imports(marker, before, evidence.state))
    changes: EntryChanges = {
        "resources": resources,
        # What an apply has replaced is its own now, though a name may be its id as before.
        "adopted": tuple(item for item in adopted if item.address not in created),
        **bound_to(marker, evidence.state),
        "verification": verification,
        "saved_state": None,
        "warnings": lasting_warnings(marker.warnings, journal.warnings),
        "targets": marker.targets if undone else (),
        **_merged_outputs(marker, evidence, stamp),
    }
    shortfall = _apply_fault(command, evidence, resources.in_doubt, verification, undone)
    if shortfall is None:
        return succeeded(marker, before, changes, stamp)
    return failed(marker, shortfall, changes, stamp, command=command)


def _moved_along(marker: OperationRecord) -> Iterator[AdoptedObject]:
    """
    Yield the adopted objects at the addresses, and as of the types, that the plan moved them to.
    """
    moved = moves(marker.resources.planned)
    for item in marker.adopted:
        to = moved.get(item.address, item.address)
        kind = parse_address(to).type if to != item.address else item.type
        yield item.model_copy(update={"address": to, "type": kind})


def is_parent_destroy(marker: OperationRecord) -> bool:
    """
    Return whether the mutation of ``marker`` only empties the provider state of an owned step whose
    parent is gone.
    """
    return marker.absence is not None and marker.absence.method == WITH_PARENT


def _end_with_parent(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
) -> OperationRecord:
    """
    Conclude by provider state alone: if it is empty, the target is gone with its parent, whatever
    the engine reported; if it is unchanged, the record is as before, and the next destroy tries
    again.
    """
    state = evidence.state
    if state is not None and not state.objects:
        record = before if before is not None and not marker.resources.inventory else marker
        return gone(
            marker,
            confirmed(WITH_PARENT, record, stamp.at),
            {
                "resources": Resources(
                    planned=marker.resources.planned, journal=evidence.journal.extent
                ),
                "provider_state": with_serial_of(marker.provider_state, state),
            },
            stamp,
            destroyed=True,
        )
    fault = engine_fault("destroy", evidence, ())
    if state is not None:
        return reverted(marker, before, fault, stamp)
    return failed(marker, fault, {"absence": None}, stamp, command="destroy")


def _apply_fault(
    command: Command,
    evidence: MutationEvidence,
    doubts: Sequence[Doubt],
    verification: Verification | None,
    undone: Sequence[PlannedAction],
) -> Fault | None:
    """
    Return the fault that keeps an applied target from being ``ok``, None if there is none.
    """
    if not evidence.clean or doubts:
        return engine_fault(command, evidence, doubts)
    if undone:
        return targeted_fault(undone)
    if verification is not None and verification.verdict == "failed":
        return STOPPED_CHECKS if evidence.stopped else check_fault(verification)
    return None


def _end_destroy(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    resources: Resources,
    stamp: EntryStamp,
) -> OperationRecord:
    findings = evidence.absence_findings
    remaining = resources.inventory
    if evidence.state is None:
        ended_well = evidence.exit_code == 0
        remaining = not_deleted(remaining, evidence.journal, ended_well=ended_well)
    doubts, settled = update_doubts(resources, findings, run_id=marker.run_id, at=stamp.at)
    keys = {ref.key for ref in remaining}
    unseen = [f.ref for f in findings if f.state != "gone"] + list(
        unconfirmed_objects(marker, doubts)
    )
    unconfirmed = {key: ref for ref in unseen if (key := ref.key) not in keys}
    resources = resources.model_copy(
        update={"inventory": (*remaining, *unconfirmed.values()), "in_doubt": doubts}
    )
    changes: EntryChanges = {
        "resources": resources,
        **bound_to(marker, evidence.state),
        "settled": (*marker.settled, *settled),
        "saved_state": None,
    }
    earlier = before.absence if before else None
    result = None
    if findings or marker.verify_absence == "provider":
        result = absence(findings, remaining, stamp.at, earlier=earlier)
    if evidence.clean and not remaining and not doubts:
        result = result or confirmed("state", _without_released(marker), stamp.at, earlier=earlier)
        forgotten = any(item.how == "forgotten" for item in resources.released)
        ours = bool(resources.deleted) or forgotten or deleted_before(before)
        return gone(marker, result, changes, stamp, destroyed=ours)
    if result is not None:
        changes["absence"] = result
    fault = engine_fault("destroy", evidence, doubts)
    if evidence.clean and not evidence.stopped:
        if remaining:
            names = ", ".join(item.name for item in remaining)
            code, reason = "remaining", f"still in the provider state: {names}"
        else:
            code, reason = unconfirmed_reason(resources, findings)
        fault = fault.model_copy(
            update={"code": code, "summary": f"the engine ended well, but {reason}"}
        )
    return failed(marker, fault, changes, stamp, command="destroy")


def _without_released(marker: OperationRecord) -> OperationRecord:
    """
    Return the marker without the objects that its plan forgets: their absence is not confirmed.
    """
    forgotten = set(forgotten_refs(marker))
    remaining = tuple(ref for ref in marker.resources.inventory if ref not in forgotten)
    return marker.model_copy(
        update={"resources": marker.resources.model_copy(update={"inventory": remaining})}
    )


def _merged_outputs(
    marker: OperationRecord, evidence: MutationEvidence, stamp: EntryStamp
) -> EntryChanges:
    """
    Return the outputs: after success those of the state; after a failure those merged over the
    known ones.
    """
    if evidence.state is None:
        return {}
    state = evidence.state
    if not evidence.secrets_known:
        state = state.with_secrets(lambda _: True)
    outputs = outputs_of_state(marker, marker.run_id, state, stamp, secrets_known=True)
    if evidence.clean:
        return outputs
    return {
        "outputs": {
            name: value
            for name, value in {**marker.outputs, **outputs["outputs"]}.items()
            if name not in outputs["sensitive_outputs"]
        },
        "outputs_from": {**marker.outputs_from, **outputs["outputs_from"]},
        "sensitive_outputs": tuple(
            sorted(
                {*marker.sensitive_outputs, *outputs["sensitive_outputs"]} - set(outputs["outputs"])
            )
        ),
        "masked_outputs": {
            name: shape
            for name, shape in {**marker.masked_outputs, **outputs["masked_outputs"]}.items()
            if name not in outputs["outputs"]
        },
    }


def _carried_doubts(doubts: Sequence[Doubt], resources: Resources) -> list[Doubt]:
    """
    Return the earlier doubts that this mutation did not settle: its deletes and updates settle
    those about objects in the provider state; others need evidence or a person.
    """
    present = {ref.address for ref in resources.inventory}
    done = set(resources.deleted) | set(resources.updated) | set(resources.replaced)
    return [
        d
        for d in doubts
        if d.action in ("create", "forget")
        or (d.address not in done and (d.address in present or d.action == "unknown"))
    ]


# Objects that a mutation imports instead of creating them (law: not ours until proven), and those
# that it releases (law: nothing drops out of sight): what we made or managed and no longer manage,
# because a plan forgot it or its refresh did not find it, stays in the record, and is never called
# absent or destroyed.


_REMOVING = frozenset({"delete", "replace", "update"})
_IMPORTED_BY: Mapping[Command | None, str] = {
    "exec": "an engine command of a person took it in",
    "import": "a person imported it",
}


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
    addresses = imported_addresses(marker)
    if marker.active_command == "exec":  # what it added to the provider state
        recorded = {(ref.type, ref.id) for ref in marker.resources.inventory}
        addresses += tuple(
            item.address
            for item in state.objects
            if item.deposed is None and (item.type, item.id) not in recorded
        )
    by = _IMPORTED_BY.get(marker.active_command, "an import block of the module took it in")
    adopted = []
    for address in addresses:
        if address not in state.ids:
            continue
        id_, kind = state.ids[address], parse_address(address).type
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
                or f"{by}; nothing proves that this target made it",
                run_id=marker.run_id,
                at=marker.updated_at,
            )
        )
    return tuple(adopted)


def imported_addresses(marker: OperationRecord) -> tuple[str, ...]:
    """
    Return the addresses at which the mutation of ``marker`` imports objects.
    """
    return tuple(item.address for item in marker.resources.planned if item.imports)


def forgotten_refs(marker: OperationRecord) -> tuple[ObjectRef, ...]:
    """
    Return the objects that the marker's plan forgets: they leave provider state and stay alive.
    """
    names = {item.name for item in marker.resources.planned if item.action == "forget"}
    return tuple(ref for ref in marker.resources.inventory if ref.name in names)


def _released(
    marker: OperationRecord, state: PulledState | None, doubts: Sequence[Doubt], at: datetime
) -> tuple[ReleasedObject, ...]:
    """
    Return the objects that the mutation of ``marker`` released: its inventory, except what
    ``state`` still holds, what this or an earlier delete removed, and what is in doubt.
    """
    if state is None:
        return ()
    ids = {(item.type, item.id) for item in state.objects}
    doubtful = {doubt.key for doubt in doubts}
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
        if (ref.type, ref.id) in ids or key in doubtful or key in deleted:
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
