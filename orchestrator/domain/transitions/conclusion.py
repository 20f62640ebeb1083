"""
The end of a mutation: marker and evidence give the next entry.

A run that was observed and one that is found on disk later end by the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.domain.events.journal import lasting_warnings
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp
from orchestrator.domain.record.objects import AdoptedObject, Doubt, PlannedAction, Resources, moves
from orchestrator.domain.record.provider_refusals import NO_RULES, RefusalRules
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
    Assessment,
    bound_to,
    not_deleted,
    outputs_of_state,
    with_serial_of,
)
from orchestrator.domain.transitions.ownership import (
    forgotten_refs,
    released_objects,
    type_of,
    unproven_imports,
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
    resources = resources.model_copy(update={"in_doubt": (*carried, *fresh)})
    released = released_objects(marker, evidence.state, resources, stamp.at)
    resources = resources.model_copy(update={"released": released})
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
        kind = type_of(to) if to != item.address else item.type
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
