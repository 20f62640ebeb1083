"""
Every transition of a record: the previous entry, facts or evidence, and a stamp give the next
entry.

The status follows from the table of statuses alone, and one function writes the header of an entry.
Nothing here judges evidence (`conclusion`, `surgery` and `reconciliation` do) or writes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.domain.provider_state import PulledState, last_writer
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp
from orchestrator.domain.record.objects import (
    Absence,
    Doubt,
    PlannedAction,
    Resources,
    SettledDoubt,
)
from orchestrator.domain.record.record import (
    Attempt,
    Command,
    Diagnostic,
    EngineRef,
    Fault,
    OperationRecord,
    PriorStatus,
    Retention,
    Verification,
)
from orchestrator.domain.record.states import Status, Trigger, advance
from orchestrator.domain.transitions.absence import (
    check_fault,
    unapplied_fault,
    unconfirmed_objects,
)
from orchestrator.domain.transitions.assessment import outputs_of_state

#: How the absence of what went with its parent is established.
WITH_PARENT: Final = "parent"

NO_FAULT: EntryChanges = {"failed_command": None, "last_error": None, "error": None}

#: What a target that is gone no longer has.
_CLEARED: EntryChanges = {
    **NO_FAULT,
    "active_command": None,
    "last_attempt": None,
    "outputs": {},
    "outputs_from": {},
    "masked_outputs": {},
    "sensitive_outputs": (),
    "verification": None,
    "warnings": (),
    "adopted": (),
}

#: An apply is new work: what was done to undo the work before it no longer counts.
_NO_HOOKS: EntryChanges = {"compensation": None, "before_destroy": None}


def next_entry(
    previous: OperationRecord | None,
    stamp: EntryStamp,
    trigger: Trigger,
    changes: EntryChanges,
    *,
    facts: EntryChanges | None = None,
    restores: OperationRecord | PriorStatus | None = None,
    content: OperationRecord | None = None,
) -> OperationRecord:
    """
    Return the entry after ``previous``: its header, then ``changes`` over ``facts`` over
    ``content``, the record whose other fields are kept (``previous`` by default). Unknown fields
    are kept.

    ``restores`` is what a REVERT goes back to.
    """
    before = previous.status if previous else None
    header: EntryChanges = {
        "status": advance(before, trigger, before=restores.status if restores else None),
        "previous_status": before,
        "sequence": previous.sequence + 1 if previous else 1,
        "entry_id": stamp.entry_id,
        "updated_at": stamp.at,
        "actor": stamp.actor,
        "previous_checksum": None,  # told by the store when the entry is appended
    }
    updates: EntryChanges = {**(facts or {}), **changes, **header}
    base = content or previous
    if base is None:
        return OperationRecord.model_validate(updates)
    entry = base.model_copy(update=dict(updates))
    if previous is None or not previous.resources.released:
        return entry
    # In one place for all transitions: what was released stays in sight.
    released = entry.resources.released
    keys = {(item.type, item.id, item.address) for item in released}
    earlier = [
        item
        for item in previous.resources.released
        if (item.type, item.id, item.address) not in keys
    ]
    if not earlier:
        return entry
    resources = entry.resources.model_copy(update={"released": (*earlier, *released)})
    return entry.model_copy(update={"resources": resources})


def with_fault(command: Command, fault: Fault) -> EntryChanges:
    return {"failed_command": command, "error": fault, "last_error": fault.summary}


def mark(
    before: OperationRecord | None,
    facts: EntryChanges,
    state: PulledState,
    stamp: EntryStamp,
    *,
    command: Command,
    planned: Sequence[PlannedAction],
    doubts: Sequence[Doubt] = (),
    settled: Sequence[SettledDoubt] = (),
    warnings: Sequence[Diagnostic] = (),
) -> OperationRecord:
    """
    Return the marker (law: intent first): ``command`` is about to execute ``planned`` on the
    objects in ``state``. ``doubts`` stay open, ``settled`` were answered before; ``warnings`` are
    those of the plan.
    """
    changes: EntryChanges = {
        **NO_FAULT,
        "active_command": command,
        "absence": None,
        "started_at": stamp.at,
        "resources": Resources(
            planned=tuple(planned),
            inventory=(*state.inventory, *unconfirmed_objects(before, doubts)),
            in_doubt=tuple(doubts),
        ),
        "settled": (*(before.settled if before else ()), *settled),
    }
    if command == "apply":
        changes.update({**_NO_HOOKS, "warnings": tuple(warnings)})
    return next_entry(before, stamp, Trigger.START, changes, facts=facts)


def mark_with_parent(
    before: OperationRecord, facts: EntryChanges, state: PulledState, stamp: EntryStamp
) -> OperationRecord:
    """
    Return the marker for emptying the provider state of a target whose parent is confirmed gone
    (law: children follow parents): the objects in ``state`` are gone with it.
    """
    marker = mark(
        before,
        facts,
        state,
        stamp,
        command="destroy",
        planned=[PlannedAction(address=item.address, action="forget") for item in state.objects],
        doubts=before.resources.in_doubt,
    )
    absence = Absence(verdict="unconfirmed", method=WITH_PARENT, at=stamp.at)
    return marker.model_copy(update={"absence": absence})


def succeeded(
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: EntryChanges,
    stamp: EntryStamp,
) -> OperationRecord:
    """
    Return the entry after a successful apply whose checks hold: ``ok``, or still ``retained``.
    """
    retained = before is not None and before.status is Status.RETAINED
    changes: EntryChanges = {
        **evidence,
        **NO_FAULT,
        "active_command": None,
        "last_attempt": None,
        "absence": None,
    }
    return next_entry(marker, stamp, Trigger.KEEP if retained else Trigger.SUCCEED, changes)


def failed(
    marker: OperationRecord,
    fault: Fault,
    evidence: EntryChanges,
    stamp: EntryStamp,
    *,
    command: Command,
) -> OperationRecord:
    """
    Return the entry after a failed mutation: ``error``; what was known is kept, what the mutation
    left is merged in.
    """
    changes: EntryChanges = {**evidence, **with_fault(command, fault), "active_command": None}
    return next_entry(marker, stamp, Trigger.FAIL, changes)


def restored(
    marker: OperationRecord,
    before: OperationRecord | None,
    attempt: Attempt,
    stamp: EntryStamp,
    *,
    evidence: EntryChanges | None = None,
) -> OperationRecord:
    """
    Return the record from before the marker, beside it the attempt that changed no object: one that
    touched nothing, or surgery, with its effect on the provider state as ``evidence``. A target
    without a record becomes ``absent``: its provider state was empty before the marker.
    """
    if before is not None:
        changes: EntryChanges = {**(evidence or {}), "last_attempt": attempt}
        return next_entry(marker, stamp, Trigger.REVERT, changes, restores=before, content=before)
    nothing: EntryChanges = {
        "last_attempt": attempt,
        "active_command": None,
        "resources": Resources(planned=marker.resources.planned),
        "absence": Absence(verdict="confirmed", method="never_applied", at=stamp.at),
    }
    return next_entry(marker, stamp, Trigger.REVERT, nothing)


def reverted(
    marker: OperationRecord, before: OperationRecord | None, fault: Fault, stamp: EntryStamp
) -> OperationRecord:
    """
    Return the record from before a mutation or hook that never began, or provably changed nothing.
    """
    command = marker.active_command or "apply"
    attempt = Attempt(command=command, run_id=marker.run_id, at=stamp.at, error=fault)
    return restored(marker, before, attempt, stamp)


def gone(
    previous: OperationRecord,
    absence: Absence,
    evidence: EntryChanges,
    stamp: EntryStamp,
    *,
    destroyed: bool,
) -> OperationRecord:
    """
    Return the entry of a target whose absence is confirmed: ``destroyed`` if our destroy did it,
    else ``absent``.
    """
    trigger = Trigger.GONE if destroyed else Trigger.MISSING
    return next_entry(previous, stamp, trigger, {**evidence, **_CLEARED, "absence": absence})


def never_applied(facts: EntryChanges, stamp: EntryStamp) -> OperationRecord:
    """
    Return the first entry of a target that was never applied and whose provider state is empty: it
    has neither inputs nor a module.
    """
    changes: EntryChanges = {
        "absence": Absence(verdict="confirmed", method="never_applied", at=stamp.at),
        "module_digest": None,
        "inputs_digest": None,
        "resolved_inputs_file": None,
        "resolved_inputs_digest": None,
        "rerun_inputs_file": None,
    }
    return next_entry(None, stamp, Trigger.MISSING, changes, facts=facts)


def unchanged(
    before: OperationRecord | None,
    facts: EntryChanges,
    state: PulledState,
    stamp: EntryStamp,
    *,
    verification: Verification,
    settled: Sequence[SettledDoubt] = (),
    warnings: Sequence[Diagnostic] = (),
) -> OperationRecord:
    """
    Return the entry after a plan without changes: ``ok`` without a marker, or ``error`` if a check
    fails.

    ``settled`` are the doubts that the plan's refresh answered; there are no others.
    """
    changes: EntryChanges = {
        "resources": Resources(inventory=state.inventory),
        "settled": (*(before.settled if before else ()), *settled),
        "verification": verification,
        "warnings": tuple(warnings),
        "absence": None,
        "targets": (),
        "engine": _engine_of(before, facts, state),
        **_NO_HOOKS,
        **outputs_of_state(before, facts["run_id"], state, stamp, secrets_known=True),
    }
    retained = before is not None and before.status is Status.RETAINED
    if verification.verdict == "failed" and not retained:
        changes.update(with_fault("verify", check_fault(verification)))
        return next_entry(before, stamp, Trigger.CHECK_FAIL, changes, facts=facts)
    cleared: EntryChanges = {**changes, **NO_FAULT, "last_attempt": None}
    return next_entry(before, stamp, Trigger.UNCHANGED, cleared, facts=facts)


def adopted_unapplied(
    before: OperationRecord | None,
    facts: EntryChanges,
    state: PulledState,
    stamp: EntryStamp,
    *,
    changes: Sequence[PlannedAction],
    reason: str,
) -> OperationRecord:
    """
    Return the first entry of objects that somebody else made and that an apply would change, which
    a person accepts for ``reason``: ``error`` with the code ``unapplied``, until that apply.
    """
    resources = Resources(inventory=state.inventory, tainted=state.tainted)
    listed = ", ".join(f"{item.action} {item.address}" for item in changes) or "outputs"
    fault = unapplied_fault(resources, f" (would change: {listed}; accepted: {reason})")
    entry: EntryChanges = {
        **with_fault("adopt", fault),
        "absence": None,
        "resources": resources,
        "engine": _engine_of(before, facts, state),
        **outputs_of_state(None, facts["run_id"], state, stamp, secrets_known=True),
    }
    return next_entry(before, stamp, Trigger.UNAPPLIED, entry, facts=facts)


def _engine_of(
    before: OperationRecord | None, facts: EntryChanges, state: PulledState
) -> EngineRef | None:
    """
    Return the engine that last wrote a provider state which this run did not write.
    """
    return last_writer(state, facts.get("engine"), before.engine if before else None)


def checked(
    before: OperationRecord, verification: Verification, stamp: EntryStamp
) -> OperationRecord:
    """
    Return the entry after checks without a mutation: ``ok`` or ``error``; a retained target stays
    retained.
    """
    changes: EntryChanges = {"verification": verification}
    if before.status is Status.RETAINED:
        return next_entry(before, stamp, Trigger.UNCHANGED, changes)
    if verification.verdict == "failed":
        changes.update(with_fault("verify", check_fault(verification)))
        return next_entry(before, stamp, Trigger.CHECK_FAIL, changes)
    return next_entry(before, stamp, Trigger.SETTLE, {**changes, **NO_FAULT, "targets": ()})


def observed(before: OperationRecord, evidence: EntryChanges, stamp: EntryStamp) -> OperationRecord:
    return next_entry(before, stamp, Trigger.OBSERVE, evidence)


def unconfirmed(
    before: OperationRecord, fault: Fault, stamp: EntryStamp, *, command: Command
) -> OperationRecord:
    """
    Return the entry of a target whose objects turned out to be in doubt without a mutation:
    ``error``.
    """
    return next_entry(before, stamp, Trigger.UNCONFIRMED, with_fault(command, fault))


def retained(
    before: OperationRecord,
    retention: Retention,
    stamp: EntryStamp,
    *,
    run_id: str,
    declared: bool,
) -> OperationRecord:
    """
    Return the entry of a target that a person retains, or that the blueprint has ``declared``
    retained. Retaining it again changes the reason, not the status to restore.
    """
    was = before.retained.was if before.retained else before.status
    changes: EntryChanges = {
        "retained": retention.model_copy(update={"was": was}),
        "retained_as_declared": declared,
        "run_id": run_id,
        "run_record": f"runs/{run_id}",
    }
    return next_entry(before, stamp, Trigger.RETAIN, changes)


def released(before: OperationRecord, stamp: EntryStamp, *, run_id: str) -> OperationRecord:
    """
    Return the entry of a target that is no longer retained.
    """
    changes: EntryChanges = {
        "retained": None,
        "retained_as_declared": False,
        "run_id": run_id,
        "run_record": f"runs/{run_id}",
    }
    return next_entry(before, stamp, Trigger.RELEASE, changes)
