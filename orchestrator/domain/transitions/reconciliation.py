"""
Entries from evidence without a mutation: after an empty plan, an empty provider state, or a
reconcile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.objects import (
    Absence,
    AdoptedObject,
    CheckedObject,
    Doubt,
    ObjectRef,
    Readback,
    Resources,
    SettledDoubt,
)
from orchestrator.domain.record.record import Fault, OperationRecord, Verification
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.transitions.absence import (
    FINISHED,
    AbsenceFinding,
    absence,
    absence_with_forgotten,
    describe_remaining,
    unconfirmed_objects,
    update_doubts,
    weakest_method,
)
from orchestrator.domain.transitions.assessment import (
    bound_to,
    outputs_of_state,
)
from orchestrator.domain.transitions.doubts import (
    missing_from_state,
    vanished_doubts,
    with_vanished,
)
from orchestrator.domain.transitions.transitions import checked, gone, observed, unconfirmed


def reconciled(
    before: OperationRecord,
    state: PulledState,
    settled: Sequence[SettledDoubt],
    stamp: EntryStamp,
    *,
    verification: Verification | None,
    findings: Sequence[AbsenceFinding] = (),
    run_id: str = "",
) -> OperationRecord:
    """
    Return the entry that a reconcile writes.

    ``settled`` are the doubts that it answered. Objects that have left the provider state since
    become doubts. ``verification`` is the result of the checks if a plan with the recorded inputs
    was empty, else None. ``findings`` are the provider's answers, in the run ``run_id``, about
    objects that an earlier destroy removed. No provider state may be waiting to be saved.
    """
    before = _without_saved_file(before)
    settled_keys = {(item.doubt.address, item.doubt.action) for item in settled}
    findings = [item for item in findings if (item.ref.address, "forget") not in settled_keys]
    before = _with_findings(before, findings, stamp, run_id=run_id)
    unanswered = tuple(
        d for d in before.resources.in_doubt if (d.address, d.action) not in settled_keys
    )
    # A refresh answers for what the provider state holds: not for what has left it.
    closed = {item.doubt.key for item in settled if item.how != "refreshed"}
    vanished = [ref for ref in missing_from_state(before, state) if ref.key not in closed]
    strangers = _in_another_place(before, vanished, state, run_id, stamp.at)
    doubts = with_vanished(unanswered, vanished)
    fresh = any(doubt not in unanswered for doubt in doubts)
    resources = before.resources.model_copy(
        update={
            "inventory": (*state.inventory, *unconfirmed_objects(before, doubts)),
            "tainted": state.tainted,
            "in_doubt": doubts,
        }
    )
    base = before.model_copy(
        update={
            "resources": resources,
            "settled": (*before.settled, *settled),
            "adopted": (*before.adopted, *strangers),
            **bound_to(before, state),
        }
    )
    empty = not state.objects and not state.outputs
    if before.absence is not None or (empty and before.status is Status.ERROR):
        absence = absence_with_forgotten(before.absence, settled, stamp.at)
        base = base.model_copy(update={"absence": absence})
    is_gone = empty and before.status is Status.ERROR and (findings or not doubts)
    held = before.resources.inventory or before.resources.in_doubt
    # Of an apply that failed before it made anything nothing can be gone.
    if is_gone and (settled or findings or held or before.failed_command != "apply"):
        return gone_without_mutation(base, stamp, findings, run_id=run_id)
    if verification is not None and not doubts:
        outputs = outputs_of_state(base, before.run_id, state, stamp)
        return checked(base.model_copy(update=outputs), verification, stamp)
    # What was in doubt before keeps the error that says how it came to be.
    if (doubts and base.status is Status.OK) or (fresh and base.status is Status.ERROR):
        return _doubted(base, stamp)
    if base.status is Status.ERROR:
        return observed(base, {}, stamp)
    return observed(base, outputs_of_state(base, before.run_id, state, stamp), stamp)


def not_taken_back(
    before: OperationRecord, obstacles: Mapping[ObjectRef, str], stamp: EntryStamp
) -> OperationRecord:
    """
    Return the entry with the reasons why objects that left the provider state cannot be imported;
    they stay in doubt.
    """
    doubts = {doubt.key: doubt for doubt in before.resources.in_doubt}
    old_keys = set(doubts)
    for doubt in vanished_doubts(obstacles):
        doubts.setdefault(doubt.key, doubt)
    for ref, why in obstacles.items():
        doubt = doubts[ref.key]
        if doubt.saved is None:  # else the provider is still asked for it
            answer = Readback(verdict="unknown", method="id", why=why, at=stamp.at)
            doubts[ref.key] = doubt.model_copy(update={"readback": answer})
    resources = before.resources.model_copy(update={"in_doubt": tuple(doubts.values())})
    base = before.model_copy(update={"resources": resources})
    fresh = doubts.keys() > old_keys
    if base.status is Status.OK or (fresh and base.status is Status.ERROR):
        return _doubted(base, stamp)
    return observed(base, {}, stamp)


def objects_of_last_life(entries: Sequence[OperationRecord]) -> tuple[ObjectRef, ...]:
    """
    Return the objects that a destroyed target had since it was last created; ``entries`` are newest
    first.

    Of several objects at one address the newest counts: a destroy removed that one.
    """
    objects: dict[tuple[str, str | None], ObjectRef] = {}
    alive = False
    for entry in entries:
        if entry.status in NOTHING_THERE:
            if alive:
                break
            continue
        alive = True
        for ref in entry.resources.inventory:
            objects.setdefault((ref.address, ref.deposed), ref)
    return tuple(objects.values())


def found_again(
    before: OperationRecord, objects: Mapping[ObjectRef, Readback], stamp: EntryStamp
) -> OperationRecord:
    """
    Return the entry of a target that is recorded as gone although the provider has these objects:
    ``error``, with each of them in doubt.
    """
    doubts = tuple(
        Doubt(
            address=ref.address,
            action="forget",
            at=stamp.at,
            id=ref.id,
            why=answer.why,
            readback=answer,
        )
        for ref, answer in objects.items()
    )
    resources = before.resources.model_copy(
        update={"in_doubt": doubts, "inventory": tuple(objects), "deleted": ()}
    )
    listed = ", ".join(f"{ref.address} ({ref.id})" for ref in objects)
    fault = Fault(
        code="remaining",
        phase="readback",
        summary=f"it is recorded as {before.status}, and the provider has {listed}",
    )
    base = before.model_copy(update={"resources": resources, "absence": None})
    return unconfirmed(base, fault, stamp, command="destroy")


def confirmed_by_provider(
    before: OperationRecord, objects: Iterable[ObjectRef], stamp: EntryStamp
) -> OperationRecord | None:
    """
    Return the entry of a target that is recorded as gone and of whose ``objects`` the provider has
    none; None if that was confirmed before.
    """
    if before.absence is not None and before.absence.method == "provider":
        return None
    findings = [AbsenceFinding(ref, "gone") for ref in objects]
    confirmed_now = absence(findings, (), stamp.at, earlier=before.absence)
    return observed(before, {"absence": confirmed_now}, stamp)


def _doubted(record: OperationRecord, stamp: EntryStamp) -> OperationRecord:
    """
    Return the entry of a record whose objects turned out to be in doubt.
    """
    code, reason = unconfirmed_reason(record.resources)
    fault = Fault(code=code, phase="readback", summary=reason)
    return unconfirmed(record, fault, stamp, command="reconcile")


def _without_saved_file(record: OperationRecord) -> OperationRecord:
    """
    Return the record without its error about an unsaved provider state: the file was pushed or set
    aside.
    """
    if record.error is None or record.error.code != "errored_state":
        return record
    summary = "the engine could not save the provider state; its file has been set aside since"
    fault = record.error.model_copy(update={"code": "state_put_aside", "summary": summary})
    return record.model_copy(update={"error": fault, "last_error": summary})


def _in_another_place(
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


def gone_without_mutation(
    before: OperationRecord,
    stamp: EntryStamp,
    findings: Sequence[AbsenceFinding] = (),
    *,
    run_id: str = "",
) -> OperationRecord:
    """
    Return the entry of a target with an empty provider state: ``destroyed`` if a destroy of ours
    had begun, ``absent`` if nothing was ever made or it vanished without us, ``error`` while there
    are doubts that the state cannot answer.

    ``findings`` are the provider's answers, in the run ``run_id``, about objects that an earlier
    destroy removed.
    """
    before = _with_findings(before, findings, stamp, run_id=run_id)
    doubts = before.resources.in_doubt
    if doubts:
        code, reason = unconfirmed_reason(before.resources, findings)
        fault = Fault(
            code=code, phase="destroy", summary=f"the provider state is empty, but {reason}"
        )
        return unconfirmed(before, fault, stamp, command="destroy")
    return gone(
        before,
        confirmed("state", before, stamp.at, earlier=before.absence),
        {"resources": Resources()},
        stamp,
        destroyed=deleted_before(before),
    )


def _with_findings(
    before: OperationRecord, findings: Sequence[AbsenceFinding], stamp: EntryStamp, *, run_id: str
) -> OperationRecord:
    """
    Return the record with the provider's current answers about objects that an earlier destroy
    removed.
    """
    if not findings:
        return before
    resources = before.resources
    doubts, settled = update_doubts(resources, findings, run_id=run_id, at=stamp.at)
    gone = {item.key for item in findings if item.state == "gone"}
    inventory = (ref for ref in resources.inventory if ref.key not in gone)
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
    Return whether a failed destroy of ours had deleted any objects.
    """
    return (
        record is not None and record.failed_command == "destroy" and bool(record.resources.deleted)
    )


def unconfirmed_reason(
    resources: Resources, findings: Sequence[AbsenceFinding] = ()
) -> tuple[str, str]:
    """
    Return code and text for an unconfirmed absence: ``remaining`` if the provider still has an
    object, ``vanished`` if all in doubt left without us, else ``unconfirmed``.
    """
    remaining = describe_remaining(findings)
    if remaining:
        return "remaining", f"the provider still has {remaining}"
    without_us = all(
        doubt.has_left_state and doubt.address not in resources.deleted
        for doubt in resources.in_doubt
    )
    by_reason: dict[str, list[str]] = {}
    for doubt in resources.in_doubt:
        by_reason.setdefault(doubt.why, []).append(doubt.address)
    reasons = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    return "vanished" if without_us else "unconfirmed", f"not confirmed gone: {reasons}"


def confirmed(
    method: str, record: OperationRecord, at: datetime, *, earlier: Absence | None = None
) -> Absence:
    """
    Return the absence of everything in ``record`` and of what was known ``earlier`` to be gone; if
    the record adds nothing, the earlier method stays.
    """
    by_key = {c.key: c for c in earlier.checked if c.state in FINISHED} if earlier else {}
    checked = [
        CheckedObject(address=ref.address, id=ref.id, state="gone")
        for ref in record.resources.inventory
        if ref.key not in by_key
    ]
    if earlier is not None and not checked and any(c.state == "gone" for c in by_key.values()):
        method = earlier.method
    method = weakest_method(method, by_key.values())
    return Absence(verdict="confirmed", method=method, checked=(*by_key.values(), *checked), at=at)
