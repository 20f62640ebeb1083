"""
How an entry follows from the one before it and from evidence.

Every function returns a whole new record and checks the move against the table of statuses; none
of them writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.domain.destroy.absence import (
    FINISHED,
    AbsenceFinding,
    absence,
    absence_with_forgotten,
    describe_remaining,
    unconfirmed_objects,
    update_doubts,
)
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.record.assessment import inventory
from orchestrator.domain.record.doubts import missing_from_state, vanished_doubts
from orchestrator.domain.record.faults import check_fault
from orchestrator.domain.record.record import (
    Absence,
    Actor,
    CheckedObject,
    Command,
    Doubt,
    Fault,
    OperationRecord,
    OutputOrigin,
    PlannedAction,
    ProviderState,
    Resources,
    SettledDoubt,
    Verification,
)
from orchestrator.domain.record.states import Status, Trigger, advance

#: How the absence of what went with its parent was established.
WITH_PARENT = "parent"

#: What a target that is gone no longer has.
CLEARED_FIELDS: Mapping[str, Any] = {
    "active_command": None,
    "failed_command": None,
    "last_error": None,
    "error": None,
    "last_attempt": None,
    "outputs": {},
    "outputs_from": {},
    "sensitive_outputs": (),
    "verification": None,
}


#: What an apply makes a matter of the past: what was done to undo the work before it.
_CLEARED_HOOKS: Mapping[str, Any] = {"compensation": None, "before_destroy": None}


@dataclass(frozen=True, slots=True)
class EntryStamp:
    """
    Who writes the entry, and when: the parts of an entry that do not follow from anything.
    """

    at: datetime
    entry_id: str
    actor: Actor


def follow(
    before: OperationRecord | None, stamp: EntryStamp, trigger: Trigger, **changes: Any
) -> dict[str, Any]:
    """
    The fields that every next entry gets from the one before, with ``changes`` over them.
    """
    status = before.status if before else None
    return {
        "status": advance(status, trigger),
        "previous_status": status,
        "sequence": before.sequence + 1 if before else 1,
        "entry_id": stamp.entry_id,
        "updated_at": stamp.at,
        "actor": stamp.actor,
        **changes,
    }


def next_entry(
    before: OperationRecord, stamp: EntryStamp, trigger: Trigger, **changes: Any
) -> OperationRecord:
    """
    ``before`` moved by ``trigger``, unknown fields kept.
    """
    return before.model_copy(update=follow(before, stamp, trigger, **changes))


def mark(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    stamp: EntryStamp,
    *,
    command: Command,
    planned: Sequence[PlannedAction],
    state: PulledState,
    doubts: Sequence[Doubt] = (),
    settled: Sequence[SettledDoubt] = (),
) -> OperationRecord:
    """
    The intent: ``command`` is about to carry out ``planned`` on objects as in ``state``.

    ``facts`` are the fields that the run knows anew; everything else stays as it was. ``doubts``
    are those that stay open, ``settled`` those that were answered on the way.
    """
    return follow_over(
        before,
        facts,
        stamp,
        Trigger.START,
        active_command=command,
        failed_command=None,
        last_error=None,
        error=None,
        absence=None,
        started_at=stamp.at,
        **(_CLEARED_HOOKS if command == "apply" else {}),
        resources=Resources(
            planned=tuple(planned),
            inventory=(*inventory(state), *unconfirmed_objects(before, doubts)),
            in_doubt=tuple(doubts),
        ),
        settled=(*(before.settled if before else ()), *settled),
    )


def mark_with_parent(
    before: OperationRecord,
    facts: Mapping[str, Any],
    stamp: EntryStamp,
    *,
    state: PulledState,
) -> OperationRecord:
    """
    The intent to empty the provider state of a target whose parent is confirmed gone:
    the objects in ``state`` went with it.
    """
    marker = mark(
        before,
        facts,
        stamp,
        command="destroy",
        planned=[PlannedAction(address=item.address, action="forget") for item in state.objects],
        state=state,
        doubts=before.resources.in_doubt,
    )
    absence = Absence(verdict="unconfirmed", method=WITH_PARENT, at=stamp.at)
    return marker.model_copy(update={"absence": absence})


def unchanged(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    state: PulledState,
    stamp: EntryStamp,
    *,
    verification: Verification,
    settled: Sequence[SettledDoubt] = (),
) -> OperationRecord:
    """
    A plan without changes: ``ok`` without a marker, or ``error`` where a check does not hold.

    ``settled`` are the doubts that the refresh of the plan answered: there is no other.
    """
    changes: dict[str, Any] = {
        "resources": Resources(inventory=inventory(state)),
        "settled": (*(before.settled if before else ()), *settled),
        "verification": verification,
        "absence": None,
        "targets": (),
        **_CLEARED_HOOKS,
        **outputs_of_state(before, facts["run_id"], state, stamp),
    }
    retained = before is not None and before.status is Status.RETAINED
    if verification.verdict == "failed" and not retained:
        fault = check_fault(verification)
        changes.update(failed_command="verify", error=fault, last_error=fault.summary)
        return follow_over(before, facts, stamp, Trigger.CHECK_FAIL, **changes)
    changes.update(failed_command=None, last_error=None, error=None, last_attempt=None)
    return follow_over(before, facts, stamp, Trigger.UNCHANGED, **changes)


def checked(
    before: OperationRecord, verification: Verification, stamp: EntryStamp
) -> OperationRecord:
    """
    The verdict of checks that ran by themselves: ``ok`` or ``error``; what is retained stays so.
    """
    changes: dict[str, Any] = {"verification": verification}
    if before.status is Status.RETAINED:
        return next_entry(before, stamp, Trigger.UNCHANGED, **changes)
    if verification.verdict == "failed":
        fault = check_fault(verification)
        changes.update(failed_command="verify", error=fault, last_error=fault.summary)
        return next_entry(before, stamp, Trigger.CHECK_FAIL, **changes)
    changes.update(failed_command=None, last_error=None, error=None, targets=())
    return next_entry(before, stamp, Trigger.SETTLE, **changes)


def reconciled(
    before: OperationRecord,
    state: PulledState,
    settled: Sequence[SettledDoubt],
    stamp: EntryStamp,
    *,
    sound: Verification | None,
    findings: Sequence[AbsenceFinding] = (),
    run_id: str = "",
) -> OperationRecord:
    """
    What evidence says of a target now, without a mutation.

    ``settled`` are doubts that are none any more. Objects that have left the provider state since
    become doubts. ``sound`` is the result of the checks where a plan with the recorded inputs was
    empty; None where it was not. ``findings`` is what the provider tells the run ``run_id`` now of
    objects that an earlier destroy removed.
    """
    answered = {(item.doubt.address, item.doubt.action) for item in settled}
    findings = [item for item in findings if (item.ref.address, "forget") not in answered]
    before = _with_findings(before, findings, stamp, run_id=run_id)
    known = {doubt.address for doubt in before.resources.in_doubt}
    left = [ref for ref in missing_from_state(before, state) if ref.address not in known]
    kept = tuple(d for d in before.resources.in_doubt if (d.address, d.action) not in answered)
    fresh = tuple(d for d in vanished_doubts(left) if (d.address, d.action) not in answered)
    doubts = (*kept, *fresh)
    resources = before.resources.model_copy(
        update={
            "inventory": (*inventory(state), *unconfirmed_objects(before, kept)),
            "tainted": tuple(item.address for item in state.objects if item.tainted),
            "in_doubt": doubts,
        }
    )
    base = before.model_copy(
        update={
            "resources": resources,
            "settled": (*before.settled, *settled),
            "provider_state": with_serial_of(before.provider_state, state),
        }
    )
    empty = not state.objects and not state.outputs
    if before.absence is not None or (empty and before.status is Status.ERROR):
        told = absence_with_forgotten(before.absence, settled, stamp.at)
        base = base.model_copy(update={"absence": told})
    if empty and before.status is Status.ERROR and (findings or not doubts):
        return gone_without_mutation(base, stamp, findings, run_id=run_id)
    if sound is not None and not doubts:
        outputs = outputs_of_state(base, before.run_id, state, stamp)
        return checked(base.model_copy(update=outputs), sound, stamp)
    # What was in doubt before keeps the error that says how it came to be.
    if fresh and base.status in (Status.OK, Status.ERROR):
        code, said = unconfirmed_reason(resources)
        return next_entry(
            base,
            stamp,
            Trigger.UNCONFIRMED,
            failed_command="reconcile",
            error=Fault(code=code, phase="readback", summary=said),
            last_error=said,
        )
    outputs = (
        {} if base.status is Status.ERROR else outputs_of_state(base, before.run_id, state, stamp)
    )
    return next_entry(base, stamp, Trigger.OBSERVE, **outputs)


def gone_without_mutation(
    before: OperationRecord,
    stamp: EntryStamp,
    findings: Sequence[AbsenceFinding] = (),
    *,
    run_id: str = "",
) -> OperationRecord:
    """
    Provider state holds nothing of the target: ``destroyed`` where a destroy of ours had begun the
    work, ``absent`` where nothing was ever made or it vanished without us, ``error`` while objects
    are in doubt that the state does not know.

    ``findings`` is what the provider tells the run ``run_id`` now of objects that an earlier
    destroy removed.
    """
    before = _with_findings(before, findings, stamp, run_id=run_id)
    doubts = before.resources.in_doubt
    if doubts:
        code, said = unconfirmed_reason(before.resources, findings)
        fault = Fault(
            code=code, phase="destroy", summary=f"the provider state is empty, but {said}"
        )
        return next_entry(
            before,
            stamp,
            Trigger.UNCONFIRMED,
            failed_command="destroy",
            error=fault,
            last_error=fault.summary,
        )
    return next_entry(
        before,
        stamp,
        Trigger.GONE if deleted_before(before) else Trigger.MISSING,
        absence=confirmed("state", before, stamp.at, earlier=before.absence),
        resources=Resources(),
        **CLEARED_FIELDS,
    )


def _with_findings(
    before: OperationRecord, findings: Sequence[AbsenceFinding], stamp: EntryStamp, *, run_id: str
) -> OperationRecord:
    """
    The record with what the provider says now of objects that an earlier destroy removed.
    """
    if not findings:
        return before
    resources = before.resources
    doubts, settled = update_doubts(resources.in_doubt, findings, run_id=run_id, at=stamp.at)
    gone = {item.key for item in findings if item.state == "gone"}
    inventory = (ref for ref in resources.inventory if (ref.address, ref.id) not in gone)
    return before.model_copy(
        update={
            "resources": resources.model_copy(
                update={"in_doubt": doubts, "inventory": tuple(inventory)}
            ),
            "settled": (*before.settled, *settled),
            "absence": absence(findings, (), stamp.at, earlier=before.absence),
        }
    )


def deleted_before(record: OperationRecord | None) -> bool:
    """
    Whether a destroy of ours that failed in the end had deleted what it got at.
    """
    return (
        record is not None and record.failed_command == "destroy" and bool(record.resources.deleted)
    )


def never_applied(facts: Mapping[str, Any], stamp: EntryStamp) -> OperationRecord:
    """
    The first entry of a target that was never applied and whose provider state is empty.
    """
    absence = Absence(verdict="confirmed", method="never_applied", at=stamp.at)
    return follow_over(None, facts, stamp, Trigger.MISSING, absence=absence)


def unconfirmed_reason(
    resources: Resources, findings: Sequence[AbsenceFinding] = ()
) -> tuple[str, str]:
    """
    Code and words for an absence that is not confirmed: ``remaining`` where the provider still has
    an object, ``vanished`` where all in doubt left without us, else ``unconfirmed``.
    """
    there = describe_remaining(findings)
    if there:
        return "remaining", f"the provider still has {there}"
    without_us = all(
        doubt.action == "forget" and doubt.saved is None and doubt.address not in resources.deleted
        for doubt in resources.in_doubt
    )
    return "vanished" if without_us else "unconfirmed", unconfirmed_text(resources.in_doubt)


def unconfirmed_text(doubts: Sequence[Doubt]) -> str:
    """
    What is not confirmed gone, in a few words.
    """
    names = ", ".join(doubt.address for doubt in doubts)
    return f"not confirmed gone: {names} ({doubts[0].why})"


def confirmed(
    method: str, record: OperationRecord, at: datetime, *, earlier: Absence | None = None
) -> Absence:
    """
    The absence of everything that ``record`` knew of, and of what was known ``earlier`` to be gone;
    where that is all, it was established by the earlier method.
    """
    known = (
        {(c.address, c.id): c for c in earlier.checked if c.state in FINISHED} if earlier else {}
    )
    checked = [
        CheckedObject(address=ref.address, id=ref.id, state="gone")
        for ref in record.resources.inventory
        if (ref.address, ref.id) not in known
    ]
    if earlier is not None and not checked and any(c.state == "gone" for c in known.values()):
        method = earlier.method
    return Absence(verdict="confirmed", method=method, checked=(*known.values(), *checked), at=at)


def follow_over(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    stamp: EntryStamp,
    trigger: Trigger,
    **changes: Any,
) -> OperationRecord:
    """
    The entry after ``before``, or the first, with ``changes`` over what a run knows anew.
    """
    fields = {**facts, **follow(before, stamp, trigger, **changes)}
    if before is not None:
        return before.model_copy(update=fields)
    return OperationRecord.model_validate(fields)


def with_serial_of(bound: ProviderState | None, state: PulledState | None) -> ProviderState | None:
    """
    The provider state that a target is bound to, with lineage and serial as read.
    """
    if bound is None or state is None or not state.lineage:
        return bound
    return bound.model_copy(update={"lineage": state.lineage, "serial": state.serial})


def outputs_of_state(
    before: OperationRecord | None, run_id: str, state: PulledState, stamp: EntryStamp
) -> dict[str, Any]:
    """
    All outputs of a sound provider state; their origin moves only where the value is new.
    """
    plain = {name: item.value for name, item in state.outputs.items() if not item.sensitive}
    fresh = OutputOrigin(run_id=run_id, at=stamp.at)
    old, origins_before = (before.outputs, before.outputs_from) if before else ({}, {})
    origins = {
        name: origins_before.get(name, fresh) if old.get(name) == value else fresh
        for name, value in plain.items()
    }
    hidden = tuple(sorted(name for name, item in state.outputs.items() if item.sensitive))
    return {"outputs": plain, "outputs_from": origins, "sensitive_outputs": hidden}
