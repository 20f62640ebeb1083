"""
The entries of a step whose declared action is carried out: intent and answer.

An action never makes ``ok``: one that ends well restores how the step stood before, with what was
done beside it. One that does not makes ``error``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.domain.blueprint.blueprint import Action, CommandAction
from orchestrator.domain.blueprint.references import scalar_text
from orchestrator.domain.record.conclusion import revert
from orchestrator.domain.record.entries import EntryStamp, next_entry
from orchestrator.domain.record.faults import MutationEvidence
from orchestrator.domain.record.record import (
    Attempt,
    Fault,
    HookResult,
    OperationRecord,
    Phase,
    PriorStatus,
)
from orchestrator.domain.record.states import Trigger, advance
from orchestrator.domain.target import ActionKind

#: The field of the record that tells of an action.
_FIELD: Mapping[ActionKind, str] = {
    "compensate": "compensation",
    "before_destroy": "before_destroy",
}
_PHASE: Mapping[ActionKind, Phase] = {"compensate": "apply", "before_destroy": "destroy"}
_FAILED: Mapping[ActionKind, str] = {
    "compensate": "compensation_failed",
    "before_destroy": "before_destroy_failed",
}

_UNKNOWN: Mapping[ActionKind, str] = {
    "compensate": "compensation_unknown",
    "before_destroy": "before_destroy_unknown",
}

HookVerdict = Literal["done", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """
    How an action ended. ``fault`` is None only where it is done.
    """

    verdict: HookVerdict
    fault: Fault | None = None
    exit_code: int | None = None


def hook_description(action: Action) -> str:
    """
    An action as the blueprint writes it, without values.
    """
    if isinstance(action, CommandAction):
        return " ".join(map(scalar_text, action.argv.raw))
    return f"module {action.root.module_ref}"


def last_hook_result(record: OperationRecord, kind: ActionKind) -> HookResult | None:
    """
    What became of the action the last time since the last apply.
    """
    return record.compensation if kind == "compensate" else record.before_destroy


def hook_begun(
    before: OperationRecord,
    stamp: EntryStamp,
    kind: ActionKind,
    *,
    by: str,
    run_id: str,
    reason: str | None = None,
    target: str | None = None,
) -> OperationRecord:
    """
    The intent: the action is about to be carried out. All that is known of the step stays.
    """
    last = last_hook_result(before, kind)
    again = last is not None and before.failed_command == kind
    was = last.was if again and last is not None else None
    action = HookResult(
        verdict="running",
        by=by,
        run_id=run_id,
        at=stamp.at,
        reason=reason,
        target=target,
        on=tuple(ref.address for ref in before.resources.inventory),
        was=was or _prior_status(before),
    )
    return next_entry(
        before,
        stamp,
        Trigger.START,
        active_command=kind,
        failed_command=None,
        last_error=None,
        error=None,
        started_at=stamp.at,
        run_id=run_id,
        run_record=f"runs/{run_id}",
        attempt=1,
        **{_FIELD[kind]: action},
    )


def hook_ended(
    marker: OperationRecord,
    before: OperationRecord,
    stamp: EntryStamp,
    kind: ActionKind,
    how: HookOutcome,
) -> OperationRecord:
    """
    The entry that ends the action of ``marker``, which was written over ``before``.
    """
    action = last_hook_result(marker, kind)
    assert action is not None, "the marker tells of the action"
    ending = action.model_copy(
        update={"verdict": how.verdict, "exit_code": how.exit_code, "ended_at": stamp.at}
    )
    changes: dict[str, Any] = {
        "sequence": marker.sequence + 1,
        "entry_id": stamp.entry_id,
        "previous_status": marker.status,
        "updated_at": stamp.at,
        "actor": stamp.actor,
        _FIELD[kind]: ending,
    }
    if how.fault is None:
        was = action.was or _prior_status(before)
        restored = {name: getattr(was, name) for name in PriorStatus.model_fields}
        status = advance(marker.status, Trigger.REVERT, before=was.status)
        return before.model_copy(update={**changes, **restored, "status": status})
    return before.model_copy(
        update={
            **changes,
            "status": advance(marker.status, Trigger.FAIL),
            "run_id": marker.run_id,
            "run_record": marker.run_record,
            "attempt": marker.attempt,
            "started_at": marker.started_at,
            "failed_command": kind,
            "error": how.fault,
            "last_error": how.fault.summary,
        }
    )


def hook_skipped(
    record: OperationRecord, by: str, run_id: str, stamp: EntryStamp, reason: str
) -> HookResult:
    """
    That a destroy leaves the work before it undone, and why.
    """
    on = tuple(ref.address for ref in record.resources.inventory)
    return HookResult(verdict="skipped", by=by, run_id=run_id, at=stamp.at, reason=reason, on=on)


def command_outcome(
    kind: ActionKind,
    by: str,
    exit_code: int | None,
    *,
    said: str = "",
    stopped: bool = False,
    timed_out: bool = False,
) -> HookOutcome:
    """
    What the end of a command says. Without an exit code, because something ended it in the middle,
    nobody can tell what it did.
    """
    if exit_code == 0:
        return HookOutcome("done", exit_code=0)
    tail = f": {said}" if said else ""
    if exit_code is not None:
        summary = f"`{by}` ended with exit code {exit_code}{tail}"
        return HookOutcome("failed", hook_fault(kind, summary), exit_code)
    code, why = _UNKNOWN[kind], "was killed"
    if stopped:
        code, why = "stopped", "was stopped by a signal"
    if timed_out:
        code, why = "deadline", "was stopped: its timeout passed"
    summary = f"`{by}` {why}; what it had done by then is not known{tail}"
    return HookOutcome("unknown", hook_fault(kind, summary, code=code))


def conclude_command(
    marker: OperationRecord,
    before: OperationRecord,
    stamp: EntryStamp,
    kind: ActionKind,
    evidence: MutationEvidence,
) -> OperationRecord:
    """
    The entry that ends the hook's command of ``marker``, lived through or found on disk. One that
    never began leaves the record from before.
    """
    if evidence.not_started is not None:
        fault = hook_fault(kind, evidence.not_started, code="not_started")
        return hook_reverted(marker, before, stamp, kind, fault)
    if evidence.never_began:
        fault = hook_fault(kind, "stopped by a signal before it began", code="stopped")
        return hook_reverted(marker, before, stamp, kind, fault)
    action = last_hook_result(marker, kind)
    assert action is not None, "the marker tells of the hook"
    how = command_outcome(
        kind,
        action.by,
        evidence.exit_code,
        said=evidence.stderr,
        stopped=evidence.stopped,
        timed_out=evidence.timed_out,
    )
    return hook_ended(marker, before, stamp, kind, how)


def hook_reverted(
    marker: OperationRecord,
    before: OperationRecord,
    stamp: EntryStamp,
    kind: ActionKind,
    fault: Fault,
) -> OperationRecord:
    """
    The record from before a hook that never began, or is proven to have changed nothing.
    """
    attempt = Attempt(command=kind, run_id=marker.run_id, at=stamp.at, error=fault)
    return revert(marker, before, stamp, attempt)


def hook_fault(kind: ActionKind, summary: str, *, code: str = "") -> Fault:
    """
    The fault of a step whose action did not end well.
    """
    return Fault(code=code or _FAILED[kind], phase=_PHASE[kind], summary=summary)


def module_outcome(kind: ActionKind, root: OperationRecord, fault: Fault | None) -> HookOutcome:
    """
    What the end of an action's module says: its own record tells the whole.
    """
    if fault is None:
        return HookOutcome("done")
    named = fault.model_copy(
        update={
            "code": fault.code if fault.code in ("stopped", "deadline") else _FAILED[kind],
            "phase": _PHASE[kind],
            "summary": f"{root.module_ref}: {fault.summary}",
        }
    )
    return HookOutcome("failed", named)


def completed_before_destroy(record: OperationRecord) -> HookResult | None:
    """
    The work before a destroy that was done and is not to be repeated: since then a destroy has
    deleted, or may have, some of what it was done for.
    """
    last = record.before_destroy
    if last is None or last.verdict not in ("done", "skipped"):
        return None
    left = {ref.address for ref in record.resources.inventory}
    doubtful = any(doubt.action == "delete" for doubt in record.resources.in_doubt)
    return last if doubtful or not left.issuperset(last.on) else None


def _prior_status(record: OperationRecord) -> PriorStatus:
    return PriorStatus(**{name: getattr(record, name) for name in PriorStatus.model_fields})
