"""
Settles a step whose hook was interrupted, from evidence alone.
"""

from __future__ import annotations

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.services import Services
from orchestrator.app.steps.mutation import end_mutation
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.settling import NOT_SHOWN, RecalledInputs
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import READY, Liveness, Status
from orchestrator.domain.target import HookKind, hook_step_name
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import conclude_command, hook_ended, hook_reverted
from orchestrator.domain.transitions.hook_results import (
    hook_fault,
    last_hook_result,
    module_outcome,
)
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, OrchestratorError
from orchestrator.ports.engine import CallResult, CallSpec


def settle_hook(
    steps: PreparedSteps, prepared: PreparedStep, kind: HookKind, recalled: RecalledInputs
) -> OperationRecord:
    """
    Conclude a step that is ``running`` a hook whose owner and process are gone, and report the
    conclusion. The record of a hook's module is settled before.
    """
    services, marker = steps.services, prepared.record
    assert marker is not None, "only a record can be settled"
    hook = last_hook_result(marker, kind)
    assert hook is not None, "the marker tells of the hook"
    entries = services.store.history(marker.target.target)
    before = next(entry for entry in entries if entry.sequence == marker.sequence - 1)
    spec = _spec(steps, marker, kind)
    if hook.target is None:
        evidence = _command(steps, marker, kind, spec, recalled)
        outcome = (
            conclude_command(marker, before, evidence, services.stamp())
            if evidence is not None
            else _never_started(services, marker, before, kind)
        )
    else:
        root = steps.records.get(hook_step_name(marker.target.step, kind))
        outcome = _conclude_module(services, root, marker, before, kind)
    outcome = end_mutation(services, marker, outcome, spec)
    last = outcome.last_attempt
    error = outcome.last_error or "it was done"
    if last is not None and last.run_id == marker.run_id and last.error is not None:
        error = last.error.summary
    services.note(
        f"run {marker.run_id} was interrupted during {kind}: {error}; "
        f"from what it left this is `{outcome.status}`",
        level="warning",
        step=marker.target.step,
    )
    return outcome


def _spec(steps: PreparedSteps, marker: OperationRecord, kind: HookKind) -> CallSpec:
    services = steps.services
    root = hook_step_name(marker.target.step, kind)
    return CallSpec(
        directory=services.root,
        evidence=services.files.attempt(marker.run_id, root, marker.attempt),
        name="apply",
    )


def _command(
    steps: PreparedSteps,
    marker: OperationRecord,
    kind: HookKind,
    spec: CallSpec,
    recalled: RecalledInputs,
) -> MutationEvidence | None:
    """
    Return the evidence of a command hook on disk; None if it certainly never began.
    """
    services, target = steps.services, marker.target.target
    maskable = recalled.secrets_known and _knows_outputs(steps, target.step)
    masked = replace(spec, mask=services.masker.mask if maskable else lambda _: NOT_SHOWN)
    recovered = services.engine.recover_call(masked, complete_log=maskable)
    if recovered.liveness is Liveness.ALIVE:
        raise Busy(
            f"{target}: {kind} of run {marker.run_id} is still at work", hint="wait for it (--wait)"
        )
    if not recovered.started and services.files.read_run(marker.run_id) is not None:
        return None
    result = (
        recovered.result
        if recovered.started
        else CallResult(exit_code=None, messages=(), complete=False)
    )
    # Without an exit code nobody can tell what it did, whatever else is complete.
    complete = result.complete and result.exit_code is not None
    return MutationEvidence(
        exit_code=result.exit_code, journal=Journal.of(result.messages, whole=complete), state=None
    )


def _knows_outputs(steps: PreparedSteps, step: str) -> bool:
    """
    Return whether the secrets among the step's outputs are known, so that the hook's output can be
    masked.
    """
    try:
        steps.outputs(step)
    except OrchestratorError:
        return False
    return True


def _conclude_module(
    services: Services,
    root: OperationRecord | None,
    marker: OperationRecord,
    before: OperationRecord,
    kind: HookKind,
) -> OperationRecord:
    """
    Conclude the hook by the status of its module's own target, if that run has changed it.
    """
    if root is not None and root.run_id == marker.run_id:
        if root.status in READY:
            how = module_outcome(kind, root, None)
            return hook_ended(marker, before, how, services.stamp())
        if root.status is Status.ERROR:
            how = module_outcome(kind, root, root.error)
            return hook_ended(marker, before, how, services.stamp())
    return _never_started(services, marker, before, kind)


def _never_started(
    services: Services, marker: OperationRecord, before: OperationRecord, kind: HookKind
) -> OperationRecord:
    fault = hook_fault(kind, "the run was killed before it began", code="never_started")
    return hook_reverted(marker, before, fault, services.stamp())
