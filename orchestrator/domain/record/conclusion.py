"""
The end of a mutation: marker and evidence make the next entry.

A run that was lived through and one that is found on disk later end by the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.domain.destroy.absence import absence, update_doubts
from orchestrator.domain.record.assessment import assess, not_deleted
from orchestrator.domain.record.entries import (
    CLEARED_FIELDS,
    WITH_PARENT,
    EntryStamp,
    confirmed,
    deleted_before,
    next_entry,
    outputs_of_state,
    unconfirmed_reason,
    with_serial_of,
)
from orchestrator.domain.record.faults import (
    STOPPED_CHECKS,
    MutationEvidence,
    check_fault,
    engine_fault,
    targeted_fault,
)
from orchestrator.domain.record.record import (
    Absence,
    Attempt,
    Command,
    Doubt,
    Fault,
    OperationRecord,
    PlannedAction,
    Resources,
    Verification,
)
from orchestrator.domain.record.states import Status, Trigger, advance


def revert(
    marker: OperationRecord, before: OperationRecord | None, stamp: EntryStamp, attempt: Attempt
) -> OperationRecord:
    """
    The record from before the marker, with the attempt that changed nothing beside it.
    """
    status = advance(marker.status, Trigger.REVERT, before=before.status if before else None)
    common = {
        "sequence": marker.sequence + 1,
        "entry_id": stamp.entry_id,
        "previous_status": marker.status,
        "updated_at": stamp.at,
        "actor": stamp.actor,
        "last_attempt": attempt,
    }
    if before is not None:
        return before.model_copy(update={**common, "status": status})
    absence = Absence(verdict="confirmed", method="never_applied", at=stamp.at)
    return marker.model_copy(
        update={
            **common,
            "status": status,
            "active_command": None,
            "resources": Resources(planned=marker.resources.planned),
            "absence": absence,
        }
    )


def conclude(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
    *,
    refused_on: Sequence[str] = (),
    verification: Verification | None = None,
    left: Sequence[PlannedAction] = (),
) -> OperationRecord:
    """
    The entry that ends the mutation of ``marker``.

    Laws: only success makes ok; failure keeps what is known; destroyed means confirmed.

    ``before`` is the entry the marker was written over. ``verification`` is the result of the
    step's checks where the engine ended well; a failed one makes ``error``. ``left`` is
    what a targeted apply left undone: with it the target is not ``ok`` either.
    """
    command = marker.active_command or "apply"
    journal = evidence.journal
    if is_parent_destroy(marker):
        return _end_with_parent(marker, before, evidence, stamp)
    if evidence.touched_nothing:
        fault = engine_fault(command, evidence, ())
        attempt = Attempt(command=command, run_id=marker.run_id, at=stamp.at, error=fault)
        return revert(marker, before, stamp, attempt)
    found = assess(
        marker.resources.planned,
        journal,
        marker.resources.inventory,
        evidence.state,
        refused_on,
        ended_well=evidence.exit_code == 0,
    )
    carried = _carried_doubts(marker.resources.in_doubt, found)
    fresh = (doubt.model_copy(update={"at": stamp.at}) for doubt in found.in_doubt)
    resources = found.model_copy(update={"in_doubt": (*carried, *fresh)})
    changes: dict[str, Any] = {
        "active_command": None,
        "resources": resources,
        "provider_state": with_serial_of(marker.provider_state, evidence.state),
    }
    if command == "destroy":
        return _end_destroy(marker, before, evidence, stamp, changes)
    changes.update(_merged_outputs(marker, evidence, stamp))
    changes["verification"] = verification
    changes["targets"] = marker.targets if left else ()
    shortfall = _apply_fault(command, evidence, resources.in_doubt, verification, left)
    if shortfall is None:
        changes.update(
            failed_command=None, last_error=None, error=None, last_attempt=None, absence=None
        )
        kept = before is not None and before.status is Status.RETAINED
        return next_entry(marker, stamp, Trigger.KEEP if kept else Trigger.SUCCEED, **changes)
    changes.update(failed_command=command, error=shortfall, last_error=shortfall.summary)
    return next_entry(marker, stamp, Trigger.FAIL, **changes)


def is_parent_destroy(marker: OperationRecord) -> bool:
    """
    Whether the mutation of ``marker`` only empties the provider state of what went with its parent.
    """
    return marker.absence is not None and marker.absence.method == WITH_PARENT


def _end_with_parent(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
) -> OperationRecord:
    """
    The provider state alone decides: empty, the target is gone with its parent, whatever the engine
    said; untouched, the record is as it was before, and the next destroy does it again.
    """
    state = evidence.state
    if state is not None and not state.objects:
        known = before if before is not None and not marker.resources.inventory else marker
        return next_entry(
            marker,
            stamp,
            Trigger.GONE,
            absence=confirmed(WITH_PARENT, known, stamp.at),
            resources=Resources(planned=marker.resources.planned, journal=evidence.journal.extent),
            provider_state=with_serial_of(marker.provider_state, state),
            **CLEARED_FIELDS,
        )
    fault = engine_fault("destroy", evidence, ())
    if state is not None:
        attempt = Attempt(command="destroy", run_id=marker.run_id, at=stamp.at, error=fault)
        return revert(marker, before, stamp, attempt)
    return next_entry(
        marker,
        stamp,
        Trigger.FAIL,
        active_command=None,
        failed_command="destroy",
        error=fault,
        last_error=fault.summary,
        absence=None,
    )


def _apply_fault(
    command: Command,
    evidence: MutationEvidence,
    doubts: Sequence[Doubt],
    verification: Verification | None,
    left: Sequence[PlannedAction],
) -> Fault | None:
    """
    What keeps an applied target from being ``ok``; None if nothing does.
    """
    if not evidence.clean or doubts:
        return engine_fault(command, evidence, doubts)
    if left:
        return targeted_fault(left)
    if verification is not None and verification.verdict == "failed":
        return STOPPED_CHECKS if evidence.stopped else check_fault(verification)
    return None


def _end_destroy(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    stamp: EntryStamp,
    changes: dict[str, Any],
) -> OperationRecord:
    findings = evidence.absence_findings
    resources: Resources = changes["resources"]
    remaining = resources.inventory
    if evidence.state is None:
        ended_well = evidence.exit_code == 0
        remaining = not_deleted(remaining, evidence.journal, ended_well=ended_well)
    doubts, settled = update_doubts(resources.in_doubt, findings, run_id=marker.run_id, at=stamp.at)
    held = {(ref.address, ref.id) for ref in remaining}
    unconfirmed = (f.ref for f in findings if f.state != "gone" and f.key not in held)
    resources = resources.model_copy(
        update={"inventory": (*remaining, *unconfirmed), "in_doubt": doubts}
    )
    changes.update(resources=resources, settled=(*marker.settled, *settled), saved_state=None)
    earlier = before.absence if before else None
    if findings or marker.verify_absence == "provider":
        changes["absence"] = absence(findings, remaining, stamp.at, earlier=earlier)
    if evidence.clean and not remaining and not doubts:
        changes.setdefault("absence", confirmed("state", marker, stamp.at, earlier=earlier))
        ours = resources.deleted or deleted_before(before)
        changes.update(CLEARED_FIELDS)
        return next_entry(marker, stamp, Trigger.GONE if ours else Trigger.MISSING, **changes)
    fault = engine_fault("destroy", evidence, doubts)
    if evidence.clean and not evidence.stopped:
        if remaining:
            kept = ", ".join(item.address for item in remaining)
            code, said = "remaining", f"still in the provider state: {kept}"
        else:
            code, said = unconfirmed_reason(resources, findings)
        fault = fault.model_copy(
            update={"code": code, "summary": f"the engine ended well, but {said}"}
        )
    changes.update(failed_command="destroy", error=fault, last_error=fault.summary)
    return next_entry(marker, stamp, Trigger.FAIL, **changes)


def _merged_outputs(
    marker: OperationRecord, evidence: MutationEvidence, stamp: EntryStamp
) -> dict[str, Any]:
    """
    After success what the state holds; after a failure that merged over what was known before.
    """
    if evidence.state is None:
        return {}
    known = outputs_of_state(marker, marker.run_id, evidence.state, stamp)
    if evidence.clean:
        return known
    return {
        "outputs": {**marker.outputs, **known["outputs"]},
        "outputs_from": {**marker.outputs_from, **known["outputs_from"]},
        "sensitive_outputs": tuple(
            sorted({*marker.sensitive_outputs, *known["sensitive_outputs"]} - set(known["outputs"]))
        ),
    }


def _carried_doubts(doubts: Sequence[Doubt], found: Resources) -> list[Doubt]:
    """
    The doubts from before that this mutation did not settle: its own deletes and updates do, for
    objects that provider state held; nothing but evidence or a person settles the others.
    """
    present = {ref.address for ref in found.inventory}
    done = set(found.deleted) | set(found.updated) | set(found.replaced)
    return [
        d
        for d in doubts
        if d.action in ("create", "forget") or (d.address not in done and d.address in present)
    ]
