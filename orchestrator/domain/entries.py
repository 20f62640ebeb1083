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

from orchestrator.domain.assessment import assess, inventory
from orchestrator.domain.journal import Journal
from orchestrator.domain.messages import PulledState
from orchestrator.domain.record import (
    Absence,
    Actor,
    Attempt,
    CheckedObject,
    Command,
    Doubt,
    Fault,
    OperationRecord,
    Origin,
    Phase,
    PlannedAction,
    ProviderState,
    Resources,
    Settled,
    Verification,
)
from orchestrator.domain.states import Status, Trigger, advance

#: What a target that is gone no longer has.
NOTHING_KNOWN: Mapping[str, Any] = {
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


#: Why a step is in ``error`` whose checks a signal cut short: they neither held nor failed.
STOPPED_CHECKS = Fault(
    code="stopped",
    phase="verify",
    summary="applied; stopped by a signal before its checks held",
    retriable=True,
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    Who writes the entry, and when: the parts of an entry that do not follow from anything.
    """

    at: datetime
    entry_id: str
    actor: Actor


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    What is known of a mutating engine call, lived through or found on disk.

    ``exit_code`` is None where the engine left no answer; ``state`` None where the provider state
    could not be read, with ``state_error`` saying why. ``errored_state`` names a file. ``stopped``:
    a signal came, to the engine or during the checks. ``not_started`` says why the engine could not
    be started at all.
    """

    exit_code: int | None
    journal: Journal
    state: PulledState | None
    stopped: bool = False
    timed_out: bool = False
    lock: str | None = None
    state_error: str | None = None
    errored_state: str | None = None
    not_started: str | None = None

    @property
    def touched_nothing(self) -> bool:
        """
        Whether a complete journal proves that no create, update or delete began.
        """
        return self.exit_code != 0 and self.journal.extent == "complete" and not self.journal.began

    @property
    def clean(self) -> bool:
        """
        Whether the engine said that it did everything, and nothing contradicts it.
        """
        return self.exit_code == 0 and self.journal.extent == "complete" and self.state is not None


def follow(
    before: OperationRecord | None, stamp: Stamp, trigger: Trigger, **changes: Any
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
    before: OperationRecord, stamp: Stamp, trigger: Trigger, **changes: Any
) -> OperationRecord:
    """
    ``before`` moved by ``trigger``, unknown fields kept.
    """
    return before.model_copy(update=follow(before, stamp, trigger, **changes))


def revert(
    marker: OperationRecord, before: OperationRecord | None, stamp: Stamp, attempt: Attempt
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
    evidence: Evidence,
    stamp: Stamp,
    *,
    refused_on: Sequence[str] = (),
    verification: Verification | None = None,
    left: Sequence[PlannedAction] = (),
) -> OperationRecord:
    """
    The entry that ends the mutation of ``marker`` (laws 4, 5, 6, 11).

    ``before`` is the entry the marker was written over. ``verification`` is the result of the
    step's checks where the engine ended well; a failed one makes ``error`` (law 19). ``left`` is
    what a targeted apply left undone: with it the target is not ``ok`` either.
    """
    command = marker.active_command or "apply"
    journal = evidence.journal
    if evidence.touched_nothing:
        fault = _fault(command, evidence, ())
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
    carried = _carried(marker.resources.in_doubt, found)
    resources = found.model_copy(update={"in_doubt": (*carried, *found.in_doubt)})
    changes: dict[str, Any] = {
        "active_command": None,
        "resources": resources,
        "provider_state": _bound(marker.provider_state, evidence.state),
    }
    if command == "destroy":
        return _end_destroy(marker, evidence, stamp, changes)
    changes.update(_outputs(marker, evidence, stamp))
    changes["verification"] = verification
    shortfall = _shortfall(command, evidence, resources.in_doubt, verification, left)
    if shortfall is None:
        changes.update(
            failed_command=None, last_error=None, error=None, last_attempt=None, absence=None
        )
        return next_entry(marker, stamp, Trigger.SUCCEED, **changes)
    changes.update(failed_command=command, error=shortfall, last_error=shortfall.summary)
    return next_entry(marker, stamp, Trigger.FAIL, **changes)


def _shortfall(
    command: Command,
    evidence: Evidence,
    doubts: Sequence[Doubt],
    verification: Verification | None,
    left: Sequence[PlannedAction],
) -> Fault | None:
    """
    What keeps an applied target from being ``ok``; None if nothing does.
    """
    if not evidence.clean or doubts:
        return _fault(command, evidence, doubts)
    if verification is not None and verification.verdict == "failed":
        return STOPPED_CHECKS if evidence.stopped else check_fault(verification)
    return targeted_fault(left) if left else None


def check_fault(verification: Verification) -> Fault:
    """
    The fault of a step whose checks do not hold.
    """
    failed = [check for check in verification.checks if not check.passed]
    said = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    return Fault(
        code="check_failed", phase="verify", summary=said or "a check failed", retriable=True
    )


def targeted_fault(left: Sequence[PlannedAction]) -> Fault:
    """
    The fault of a target of which only a part was applied, as it was asked for.
    """
    names = tuple(item.address for item in left)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    said = f"a targeted apply: left undone {shown or 'changed outputs'}"
    return Fault(code="targeted", phase="apply", summary=said, resources=names, retriable=True)


def _end_destroy(
    marker: OperationRecord,
    evidence: Evidence,
    stamp: Stamp,
    changes: dict[str, Any],
) -> OperationRecord:
    resources: Resources = changes["resources"]
    remaining = resources.inventory if evidence.state is not None else marker.resources.inventory
    if evidence.clean and not remaining and not resources.in_doubt:
        changes.update(absence=confirmed("state", marker, stamp.at), **NOTHING_KNOWN)
        ours = bool(resources.deleted) or not marker.resources.inventory
        return next_entry(marker, stamp, Trigger.GONE if ours else Trigger.MISSING, **changes)
    fault = _fault("destroy", evidence, resources.in_doubt)
    if evidence.clean:
        kept = ", ".join(item.address for item in remaining or resources.in_doubt)
        code = "remaining" if remaining else "unconfirmed"
        fault = fault.model_copy(
            update={
                "code": code,
                "summary": f"the engine ended well, but not confirmed gone: {kept}",
            }
        )
    changes.update(failed_command="destroy", error=fault, last_error=fault.summary)
    return next_entry(marker, stamp, Trigger.FAIL, **changes)


def confirmed(method: str, record: OperationRecord, at: datetime) -> Absence:
    """
    The absence of everything that ``record`` knew of.
    """
    checked = tuple(
        CheckedObject(address=ref.address, id=ref.id, state="gone")
        for ref in record.resources.inventory
    )
    return Absence(verdict="confirmed", method=method, checked=checked, at=at)


def gone_without_mutation(before: OperationRecord, stamp: Stamp) -> OperationRecord:
    """
    Provider state holds nothing of the target: ``destroyed`` where a destroy of ours had begun the
    work, ``absent`` where nothing was ever made or it vanished without us, ``error`` while objects
    are in doubt that the state does not know.
    """
    doubts = before.resources.in_doubt
    if doubts:
        names = ", ".join(doubt.address for doubt in doubts)
        said = f"the provider state is empty, but not confirmed gone: {names}"
        fault = Fault(code="unconfirmed", phase="destroy", summary=said)
        return next_entry(
            before,
            stamp,
            Trigger.UNCONFIRMED,
            failed_command="destroy",
            error=fault,
            last_error=said,
            resources=before.resources.model_copy(update={"inventory": ()}),
        )
    ours = before.failed_command == "destroy"
    return next_entry(
        before,
        stamp,
        Trigger.GONE if ours else Trigger.MISSING,
        absence=confirmed("state", before, stamp.at),
        resources=Resources(),
        **NOTHING_KNOWN,
    )


def checked(before: OperationRecord, verification: Verification, stamp: Stamp) -> OperationRecord:
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
    changes.update(failed_command=None, last_error=None, error=None)
    return next_entry(before, stamp, Trigger.SETTLE, **changes)


def reconciled(
    before: OperationRecord,
    state: PulledState,
    settled: Sequence[Settled],
    stamp: Stamp,
    *,
    sound: Verification | None,
) -> OperationRecord:
    """
    What evidence says of a target now, without a mutation.

    ``settled`` are doubts that are none any more. ``sound`` is the result of the checks where a
    plan with the recorded inputs was empty and nothing is in doubt; None where it was not.
    """
    answered = {(item.doubt.address, item.doubt.action) for item in settled}
    doubts = tuple(d for d in before.resources.in_doubt if (d.address, d.action) not in answered)
    resources = before.resources.model_copy(
        update={
            "inventory": inventory(state),
            "tainted": tuple(item.address for item in state.objects if item.tainted),
            "in_doubt": doubts,
        }
    )
    base = before.model_copy(
        update={
            "resources": resources,
            "settled": (*before.settled, *settled),
            "provider_state": _bound(before.provider_state, state),
        }
    )
    if not state.objects and before.status is Status.ERROR:
        return gone_without_mutation(base, stamp)
    if sound is not None and not doubts:
        known = _known(base, before.run_id, state, stamp)
        return checked(base.model_copy(update=known), sound, stamp)
    outputs = {} if base.status is Status.ERROR else _known(base, before.run_id, state, stamp)
    return next_entry(base, stamp, Trigger.OBSERVE, **outputs)


def mark(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    stamp: Stamp,
    *,
    command: Command,
    planned: Sequence[PlannedAction],
    state: PulledState,
) -> OperationRecord:
    """
    The intent (law 1): ``command`` is about to carry out ``planned`` on objects as in ``state``.

    ``facts`` are the fields that the run knows anew; everything else stays as it was.
    """
    doubts = before.resources.in_doubt if before else ()
    return _over(
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
        resources=Resources(planned=tuple(planned), inventory=inventory(state), in_doubt=doubts),
    )


def unchanged(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    state: PulledState,
    stamp: Stamp,
    *,
    verification: Verification,
) -> OperationRecord:
    """
    A plan without changes: ``ok`` without a marker, or ``error`` where a check does not hold.
    """
    changes: dict[str, Any] = {
        "resources": Resources(inventory=inventory(state)),
        "verification": verification,
        "absence": None,
        **_known(before, facts["run_id"], state, stamp),
    }
    if verification.verdict == "failed":
        fault = check_fault(verification)
        changes.update(failed_command="verify", error=fault, last_error=fault.summary)
        return _over(before, facts, stamp, Trigger.CHECK_FAIL, **changes)
    changes.update(failed_command=None, last_error=None, error=None, last_attempt=None)
    return _over(before, facts, stamp, Trigger.UNCHANGED, **changes)


def _over(
    before: OperationRecord | None,
    facts: Mapping[str, Any],
    stamp: Stamp,
    trigger: Trigger,
    **changes: Any,
) -> OperationRecord:
    fields = {**facts, **follow(before, stamp, trigger, **changes)}
    if before is not None:
        return before.model_copy(update=fields)
    return OperationRecord.model_validate(fields)


def _bound(bound: ProviderState | None, state: PulledState | None) -> ProviderState | None:
    if bound is None or state is None or not state.lineage:
        return bound
    return bound.model_copy(update={"lineage": state.lineage, "serial": state.serial})


def _known(
    before: OperationRecord | None, run_id: str, state: PulledState, stamp: Stamp
) -> dict[str, Any]:
    """
    All outputs of a sound provider state; their origin moves only where the value is new.
    """
    plain = {name: item.value for name, item in state.outputs.items() if not item.sensitive}
    fresh = Origin(run_id=run_id, at=stamp.at)
    old, origins_before = (before.outputs, before.outputs_from) if before else ({}, {})
    origins = {
        name: origins_before.get(name, fresh) if old.get(name) == value else fresh
        for name, value in plain.items()
    }
    hidden = tuple(sorted(name for name, item in state.outputs.items() if item.sensitive))
    return {"outputs": plain, "outputs_from": origins, "sensitive_outputs": hidden}


def _outputs(marker: OperationRecord, evidence: Evidence, stamp: Stamp) -> dict[str, Any]:
    """
    After success what the state holds; after a failure that merged over what was known before.
    """
    if evidence.state is None:
        return {}
    known = _known(marker, marker.run_id, evidence.state, stamp)
    if evidence.clean:
        return known
    return {
        "outputs": {**marker.outputs, **known["outputs"]},
        "outputs_from": {**marker.outputs_from, **known["outputs_from"]},
        "sensitive_outputs": tuple(
            sorted({*marker.sensitive_outputs, *known["sensitive_outputs"]} - set(known["outputs"]))
        ),
    }


def _carried(doubts: Sequence[Doubt], found: Resources) -> list[Doubt]:
    """
    The doubts from before that this mutation did not settle: its own deletes and updates do, for
    objects that provider state held; nothing but evidence or a person settles a create.
    """
    present = {ref.address for ref in found.inventory}
    done = set(found.deleted) | set(found.updated) | set(found.replaced)
    return [
        d
        for d in doubts
        if d.action == "create" or (d.address not in done and d.address in present)
    ]


def _fault(command: Command, evidence: Evidence, doubts: Sequence[Doubt]) -> Fault:
    phase: Phase = "destroy" if command == "destroy" else "apply"
    errors = evidence.journal.errors
    code, said = _reason(evidence, doubts)
    if evidence.lock is not None:
        phase = "lock"
    if errors and code == "engine_failed":
        first = errors[0]
        said = f"{first.address}: {first.summary}" if first.address else first.summary
    return Fault(
        code=code,
        phase=phase,
        summary=said,
        resources=tuple(dict.fromkeys(d.address for d in errors if d.address)),
        diagnostics=errors,
        retriable=not doubts,
    )


def _reason(evidence: Evidence, doubts: Sequence[Doubt]) -> tuple[str, str]:
    if evidence.not_started is not None:
        return "not_started", evidence.not_started
    if evidence.lock is not None:
        return "state_locked", f"the provider state is locked: {evidence.lock}"
    if evidence.errored_state is not None:
        return "errored_state", (
            f"the engine could not save the provider state; it lies in {evidence.errored_state}"
        )
    if evidence.timed_out:
        return "deadline", "its timeout passed; the engine was stopped"
    if evidence.stopped:
        return "stopped", "stopped by a signal"
    if evidence.exit_code is None:
        return "killed", "the engine ended without leaving its answer"
    if evidence.state is None:
        why = evidence.state_error or "no reason given"
        return "state_unreadable", f"the provider state could not be read afterwards: {why}"
    if evidence.exit_code == 0 and doubts:
        names = ", ".join(doubt.address for doubt in doubts)
        return "in_doubt", f"in doubt: {names}"
    return "engine_failed", f"the engine ended with exit code {evidence.exit_code}"
