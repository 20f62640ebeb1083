"""
A step whose action was interrupted: settled from what the action left, never guessed.
"""

from __future__ import annotations

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.recording import record_outcome
from orchestrator.app.steps.settling import NOT_SHOWN, RecalledInputs
from orchestrator.domain.record.conclusion import revert
from orchestrator.domain.record.hook_entries import (
    HookOutcome,
    command_outcome,
    hook_ended,
    hook_fault,
    last_hook_result,
    module_outcome,
)
from orchestrator.domain.record.record import Attempt, HookResult, OperationRecord
from orchestrator.domain.record.states import READY, Liveness, Status
from orchestrator.domain.target import ActionKind, action_name
from orchestrator.errors import Busy, OrchestratorError
from orchestrator.ports.engine import CallSpec


def settle_hook(
    steps: PreparedSteps, prepared: PreparedStep, kind: ActionKind, recalled: RecalledInputs
) -> OperationRecord:
    """
    Conclude a step that is ``running`` one of its actions, owner and action gone, and say what was
    concluded. The record of a module's root is settled before.
    """
    services, marker = steps.services, prepared.record
    assert marker is not None, "only a record can be settled"
    action = last_hook_result(marker, kind)
    assert action is not None, "the marker tells of the action"
    entries = services.store.history(marker.target.target)
    before = next(entry for entry in entries if entry.sequence == marker.sequence - 1)
    spec = _spec(steps, marker, kind)
    how = (
        _command(steps, marker, kind, action, spec, recalled)
        if action.target is None
        else _module(steps.records.get(action_name(marker.target.step, kind)), marker, kind)
    )
    if how is None:
        fault = hook_fault(kind, "the run was killed before it began", code="never_started")
        stamp = services.stamp()
        attempt = Attempt(command=kind, run_id=marker.run_id, at=stamp.at, error=fault)
        entry = revert(marker, before, stamp, attempt)
    else:
        entry = hook_ended(marker, before, services.stamp(), kind, how)
    entry = record_outcome(services, entry)
    services.engine.discard(spec)
    told = how.fault.summary if how and how.fault else "it was done" if how else "it never began"
    services.note(
        f"run {marker.run_id} was interrupted during {kind}: {told}; "
        f"from what it left this is `{entry.status}`",
        level="warning",
        step=marker.target.step,
    )
    return entry


def _spec(steps: PreparedSteps, marker: OperationRecord, kind: ActionKind) -> CallSpec:
    services = steps.services
    root = action_name(marker.target.step, kind)
    return CallSpec(
        directory=services.root,
        evidence=services.files.attempt(marker.run_id, root, marker.attempt),
        name="apply",
    )


def _command(
    steps: PreparedSteps,
    marker: OperationRecord,
    kind: ActionKind,
    action: HookResult,
    spec: CallSpec,
    recalled: RecalledInputs,
) -> HookOutcome | None:
    """
    How the command ended; None where it is certain that it never began.
    """
    services, target = steps.services, marker.target.target
    known = recalled.secrets_known and _knows_outputs(steps, target.step)
    masked = CallSpec(
        directory=spec.directory,
        evidence=spec.evidence,
        name=spec.name,
        mask=services.masker.mask if known else lambda _: NOT_SHOWN,
    )
    found = services.engine.recover_call(masked, complete_log=known)
    if found.liveness is Liveness.ALIVE:
        raise Busy(
            f"{target}: {kind} of run {marker.run_id} is still at work", hint="wait for it (--wait)"
        )
    if not found.started and services.files.read_run(marker.run_id) is not None:
        return None
    exit_code = found.result.exit_code if found.started else None
    return command_outcome(kind, action.by, exit_code)


def _knows_outputs(steps: PreparedSteps, step: str) -> bool:
    """
    Whether the secrets among the step's outputs are known, so that what it said can be masked.
    """
    try:
        steps.outputs(step)
    except OrchestratorError:
        return False
    return True


def _module(
    root: OperationRecord | None, marker: OperationRecord, kind: ActionKind
) -> HookOutcome | None:
    """
    How the module's own root stands; None where that run has changed nothing in it.
    """
    if root is None or root.run_id != marker.run_id:
        return None
    if root.status in READY:
        return module_outcome(kind, root, None)
    return module_outcome(kind, root, root.error) if root.status is Status.ERROR else None
