"""
How a hook begins and ends in the record of its step.
"""

from __future__ import annotations

from orchestrator.domain.record.entry_facts import EntryChanges, EntryStamp
from orchestrator.domain.record.record import (
    Attempt,
    Fault,
    HookResult,
    OperationRecord,
    PriorStatus,
)
from orchestrator.domain.record.states import Trigger
from orchestrator.domain.target import HookKind
from orchestrator.domain.transitions.hook_results import (
    HookOutcome,
    HookStart,
    active_hook,
    last_hook_result,
)
from orchestrator.domain.transitions.transitions import (
    NO_FAULT,
    in_run,
    next_entry,
    restored,
    with_fault,
)


def hook_begun(before: OperationRecord, hook: HookStart, stamp: EntryStamp) -> OperationRecord:
    """
    The marker of a hook: it is about to run. All that is known of the step stays.

    Where the hook itself failed last, the status to go back to is the one from before that.
    """
    last = last_hook_result(before, hook.kind)
    repeated = last is not None and before.failed_command == hook.kind
    was = last.was if repeated and last is not None else None
    result = HookResult(
        verdict="running",
        by=hook.by,
        run_id=hook.run_id,
        at=stamp.at,
        reason=hook.reason,
        target=hook.target,
        on=tuple(ref.address for ref in before.resources.inventory),
        was=was or _prior_status(before),
    )
    changes: EntryChanges = {
        **NO_FAULT,
        **_hook(hook.kind, result),
        **in_run(hook.run_id),
        "active_command": hook.kind,
        "started_at": stamp.at,
        "attempt": 1,
    }
    return next_entry(before, stamp, Trigger.START, changes)


def hook_ended(
    marker: OperationRecord, before: OperationRecord, outcome: HookOutcome, stamp: EntryStamp
) -> OperationRecord:
    """
    The entry that ends the hook of ``marker``, which was written over ``before``.

    A hook never makes ``ok``: one that ends well restores how the step stood before, with what was
    done beside it. One that does not makes ``error``.
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
            **_hook(kind, result),
            "run_id": was.run_id,
            "run_record": was.run_record,
            "attempt": was.attempt,
            "failed_command": was.failed_command,
            "last_error": was.last_error,
            "error": was.error,
        }
        return next_entry(marker, stamp, Trigger.REVERT, prior, restores=was, content=before)
    changes: EntryChanges = {
        **_hook(kind, result),
        **with_fault(kind, outcome.fault),
        "run_id": marker.run_id,
        "run_record": marker.run_record,
        "attempt": marker.attempt,
        "started_at": marker.started_at,
    }
    return next_entry(marker, stamp, Trigger.FAIL, changes, content=before)


def hook_reverted(
    marker: OperationRecord, before: OperationRecord, fault: Fault, stamp: EntryStamp
) -> OperationRecord:
    """
    The record from before a hook that never began, or is proven to have changed nothing.
    """
    attempt = Attempt(command=active_hook(marker), run_id=marker.run_id, at=stamp.at, error=fault)
    return restored(marker, before, attempt, stamp)


def _hook(kind: HookKind, result: HookResult) -> EntryChanges:
    return {"compensation": result} if kind == "compensate" else {"before_destroy": result}


def _prior_status(record: OperationRecord) -> PriorStatus:
    return PriorStatus(**{name: getattr(record, name) for name in PriorStatus.model_fields})
