"""
The hooks of a step (``compensate`` and ``before_destroy``): how a run of one begins and ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import CommandHook, Hook
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp, changes_in_run
from orchestrator.domain.record.record import (
    Fault,
    HookResult,
    OperationRecord,
    Phase,
    PriorStatus,
)
from orchestrator.domain.record.states import Trigger
from orchestrator.domain.record.verdicts import last_hook_result
from orchestrator.domain.target import HookKind
from orchestrator.domain.text import scalar_text
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.transitions import NO_FAULT, next_entry, reverted, with_fault

_PHASE: Mapping[HookKind, Phase] = {"compensate": "apply", "before_destroy": "destroy"}
_FAILED: Mapping[HookKind, str] = {
    "compensate": "compensation_failed",
    "before_destroy": "before_destroy_failed",
}

_UNKNOWN: Mapping[HookKind, str] = {
    "compensate": "compensation_unknown",
    "before_destroy": "before_destroy_unknown",
}

HookVerdict = Literal["done", "failed", "unknown"]


class HookOutcome(Struct, frozen=True):
    """
    The outcome of a hook. ``fault`` is None only if it is done.
    """

    verdict: HookVerdict
    fault: Fault | None = None
    exit_code: int | None = None


def hook_description(action: Hook) -> str:
    """
    Return the declaration of a hook, without values.
    """
    if isinstance(action, CommandHook):
        return " ".join(map(scalar_text, action.argv.raw))
    return f"module {action.root.module_ref}"


def active_hook(marker: OperationRecord) -> HookKind:
    match marker.active_command:
        case "compensate" | "before_destroy" as kind:
            return kind
        case other:
            raise ValueError(f"{other} is not a hook")


def hook_skipped(
    record: OperationRecord, by: str, run_id: str, stamp: EntryStamp, reason: str
) -> HookResult:
    """
    Return the result of a hook that a destroy skips for ``reason``.
    """
    on = tuple(ref.address for ref in record.resources.inventory)
    return HookResult(verdict="skipped", by=by, run_id=run_id, at=stamp.at, reason=reason, on=on)


def hook_begun(
    before: OperationRecord,
    kind: HookKind,
    stamp: EntryStamp,
    *,
    by: str,
    run_id: str,
    reason: str | None = None,
    target: str | None = None,
) -> OperationRecord:
    """
    Return the marker of a hook: ``by`` is its declaration without values, ``target`` that of its
    module, None for a command. Everything known of the step is kept.

    If this hook was the last failure, the status to restore is the one before that failure.
    """
    last = last_hook_result(before, kind)
    was = last.was if last is not None and before.failed_command == kind else None
    result = HookResult(
        verdict="running",
        by=by,
        run_id=run_id,
        at=stamp.at,
        reason=reason,
        target=target,
        on=tuple(ref.address for ref in before.resources.inventory),
        was=was or _prior_status(before),
    )
    changes: EntryChanges = {
        **NO_FAULT,
        **_result(kind, result),
        **changes_in_run(run_id),
        "active_command": kind,
        "started_at": stamp.at,
    }
    return next_entry(before, stamp, Trigger.START, changes)


def hook_ended(
    marker: OperationRecord, before: OperationRecord, outcome: HookOutcome, stamp: EntryStamp
) -> OperationRecord:
    """
    Return the entry that ends the hook of ``marker``, which was written over ``before``.

    A hook never makes ``ok``: success restores the status from before, with the hook's result
    beside it; failure makes ``error``.
    """
    kind = active_hook(marker)
    last = last_hook_result(marker, kind)
    assert last is not None, "the marker tells of its hook"
    result = last.model_copy(
        update={
            "verdict": outcome.verdict,
            "exit_code": outcome.exit_code,
            "ended_at": stamp.at,
        }
    )
    if outcome.fault is None:
        was = last.was or _prior_status(before)
        prior: EntryChanges = {
            **_result(kind, result),
            "run_id": was.run_id,
            "run_record": was.run_record,
            "attempt": was.attempt,
            "failed_command": was.failed_command,
            "last_error": was.last_error,
            "error": was.error,
        }
        return next_entry(marker, stamp, Trigger.REVERT, prior, restores=was, content=before)
    changes: EntryChanges = {
        **_result(kind, result),
        **with_fault(kind, outcome.fault),
        "run_id": marker.run_id,
        "run_record": marker.run_record,
        "attempt": marker.attempt,
        "started_at": marker.started_at,
    }
    return next_entry(marker, stamp, Trigger.FAIL, changes, content=before)


def _result(kind: HookKind, result: HookResult) -> EntryChanges:
    return {"compensation": result} if kind == "compensate" else {"before_destroy": result}


def _prior_status(record: OperationRecord) -> PriorStatus:
    return PriorStatus(**{name: getattr(record, name) for name in PriorStatus.model_fields})


def conclude_command(
    marker: OperationRecord, before: OperationRecord, evidence: MutationEvidence, stamp: EntryStamp
) -> OperationRecord:
    """
    Return the entry that ends a command hook. If it never began, the record is as before.
    """
    kind = active_hook(marker)
    if evidence.not_started is not None:
        fault = hook_fault(kind, evidence.not_started, code="not_started")
        return reverted(marker, before, fault, stamp)
    if evidence.never_began:
        fault = hook_fault(kind, "stopped by a signal before it began", code="stopped")
        return reverted(marker, before, fault, stamp)
    last = last_hook_result(marker, kind)
    assert last is not None, "the marker tells of its hook"
    outcome = command_outcome(
        kind,
        last.by,
        evidence.exit_code,
        stderr=evidence.stderr,
        stopped=evidence.stopped,
        timed_out=evidence.timed_out,
    )
    return hook_ended(marker, before, outcome, stamp)


def command_outcome(
    kind: HookKind,
    by: str,
    exit_code: int | None,
    *,
    stderr: str = "",
    stopped: bool = False,
    timed_out: bool = False,
) -> HookOutcome:
    """
    Return the outcome of a command. Without an exit code it was interrupted, and its result is
    unknown. It is unknown, too, if it reports success after a stop: a script continues after the
    program that it waited for was killed.
    """
    if exit_code == 0 and not (stopped or timed_out):
        return HookOutcome("done", exit_code=0)
    tail = f": {stderr}" if stderr else ""
    ended = f" and ended with exit code {exit_code}" if exit_code is not None else ""
    if exit_code and not timed_out:
        summary = f"`{by}` ended with exit code {exit_code}{tail}"
        return HookOutcome("failed", hook_fault(kind, summary), exit_code)
    code, why = _UNKNOWN[kind], "was killed"
    if stopped:
        code, why = "stopped", f"was stopped by a signal{ended}"
    if timed_out:
        code, why = "deadline", f"was stopped{ended}: its timeout passed"
    unknown = "" if exit_code else "; what it had done by then is not known"
    fault = hook_fault(kind, f"`{by}` {why}{unknown}{tail}", code=code)
    return HookOutcome("failed" if exit_code else "unknown", fault, exit_code)


def hook_fault(kind: HookKind, summary: str, *, code: str = "") -> Fault:
    """
    Return the fault of a step whose hook failed.
    """
    return Fault(code=code or _FAILED[kind], phase=_PHASE[kind], summary=summary, hook=kind)


def module_outcome(kind: HookKind, root: OperationRecord, fault: Fault | None) -> HookOutcome:
    """
    Return the outcome of a module hook; its own record holds the details.
    """
    if fault is None:
        return HookOutcome("done")
    fault_of_hook = fault.model_copy(
        update={
            "code": fault.code if fault.code in ("stopped", "deadline") else _FAILED[kind],
            "phase": _PHASE[kind],
            "hook": kind,
            "summary": f"{root.module_ref}: {fault.summary}",
        }
    )
    return HookOutcome("failed", fault_of_hook)
