"""
Settles a record that is ``running`` although its run is gone, from evidence alone.

The engine outlives us and leaves its result on disk, so that most of what a killed run left can be
concluded exactly as the run would have concluded it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.app.services import Services, await_others
from orchestrator.app.steps.engine_calls import call_spec, pull
from orchestrator.app.steps.mutation import conclude_engine_call, end_mutation, gather
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Fault, OperationRecord
from orchestrator.domain.record.states import READY, Condition, Liveness, Status
from orchestrator.domain.record.verdicts import last_hook_result
from orchestrator.domain.recovery.command_line import command_line, reconcile_command
from orchestrator.domain.target import HookKind, hook_step_name
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import imported_addresses
from orchestrator.domain.transitions.hooks import (
    conclude_command,
    hook_ended,
    hook_fault,
    module_outcome,
)
from orchestrator.domain.transitions.transitions import reverted
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, Refused, StateDamaged
from orchestrator.ports.engine import CallResult, CallSpec, RecoveredCall
from orchestrator.ports.workdir import WorkDir

#: Stands for what an engine said when the secrets it may quote are not known any more.
NOT_SHOWN = "(not shown: the secrets of that run are not known any more)"
#: Of a call that never began: its journal is missing, not complete.
_NO_RESULT = CallResult(exit_code=None, messages=(), complete=False)


def check_not_live(
    services: Services,
    deployment: Deployment,
    record: OperationRecord | None,
    *,
    wait: bool,
    takeover: str | None,
) -> None:
    """
    Raise Busy while owner or engine of a ``running`` record may be alive; with ``wait``, wait.

    ``takeover`` is the reason to treat a silent one as dead. That its state lock is free is no such
    reason: its engine may not have begun (ADR 13).
    """
    if record is None or record.status is not Status.RUNNING:
        return
    reader = ReadContext.of(services, deployment.project)
    announced = False
    while True:
        condition = reader.condition(record)
        if condition is not Condition.LIVE:
            break
        if wait and not announced:
            services.note(f"waiting for run {record.run_id}", step=record.target.step)
            announced = True
        busy = Busy(
            f"{record.target}: {record.active_command} of run {record.run_id} is still in progress",
            hint="wait for it (--wait), or look at it with "
            f"`{command_line(deployment, 'recover')}`",
        )
        await_others(services, busy, wait=wait, seconds=1.0)
    if condition is Condition.SILENT and takeover is None:
        raise Busy(
            f"{record.target}: run {record.run_id} has no recent heartbeat, and this "
            "machine cannot tell whether it is dead",
            hint="look on the machine it ran on; if it is dead, "
            f"`{reconcile_command(deployment, record.target.step)} --takeover WHY`",
        )


class RecalledInputs(Struct, frozen=True):
    """
    The known inputs of an interrupted run: their values, None for the reason ``why`` if
    unavailable, and whether their secrets are those of the run.
    """

    inputs: StepInputs | None
    secrets_known: bool
    why: str = ""


def settle(
    services: Services, deployment: Deployment, prepared: PreparedStep, recalled: RecalledInputs
) -> OperationRecord:
    """
    Conclude a ``running`` record whose owner and engine are gone, and report the conclusion.

    If the secrets of that run are no longer known, none of its engine's output is repeated, because
    it could not be masked.
    """
    marker, before = _marker(services, prepared)
    evidence = services.files.attempt(marker.run_id, marker.target.step, marker.attempt)
    leftovers = (evidence / "plan.tfplan", evidence / "inputs.tfvars.json")
    spec = call_spec(services, prepared.work_dir, evidence, "apply", delete_after=leftovers)
    if not recalled.secrets_known:
        spec = replace(spec, mask=lambda _: NOT_SHOWN)
    outcome = _outcome(services, deployment, prepared, recalled, marker, before, spec)
    outcome = end_mutation(services, marker, outcome, spec)
    why = f": {outcome.last_error}" if outcome.last_error else ""
    services.note(
        f"run {marker.run_id} was interrupted during {marker.active_command}; "
        f"from what it left this is `{outcome.status}`{why}",
        level="warning",
        step=prepared.step.name,
    )
    return outcome


def settle_hook(
    services: Services,
    prepared: PreparedStep,
    kind: HookKind,
    recalled: RecalledInputs,
    root: OperationRecord | None,
    *,
    knows_outputs: Callable[[], bool],
) -> OperationRecord:
    """
    Conclude a step that is ``running`` a hook whose owner and process are gone, and report the
    conclusion. ``root`` is the settled record of the hook's module; ``knows_outputs`` returns
    whether the secrets among the step's outputs are known, so that the hook's output can be masked.
    """
    marker, before = _marker(services, prepared)
    hook = last_hook_result(marker, kind)
    assert hook is not None, "the marker tells of the hook"
    assert before is not None, "hooks are of recorded steps"
    name = hook_step_name(marker.target.step, kind)
    spec = CallSpec(
        directory=services.root,
        evidence=services.files.attempt(marker.run_id, name, marker.attempt),
        name="apply",
    )
    outcome: OperationRecord | None = None
    if hook.target is None:
        maskable = recalled.secrets_known and knows_outputs()
        evidence = _command_evidence(services, marker, kind, spec, maskable=maskable)
        if evidence is not None:
            outcome = conclude_command(marker, before, evidence, services.stamp())
    elif root is not None and root.run_id == marker.run_id:
        # By the status of the module's own target, if that run has changed it.
        fault = root.error if root.status is Status.ERROR else None
        if root.status in (*READY, Status.ERROR):
            how = module_outcome(kind, root, fault)
            outcome = hook_ended(marker, before, how, services.stamp())
    if outcome is None:
        unbegun = hook_fault(kind, "the run was killed before it began", code="never_started")
        outcome = reverted(marker, before, unbegun, services.stamp())
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


def _marker(
    services: Services, prepared: PreparedStep
) -> tuple[OperationRecord, OperationRecord | None]:
    """
    Return the ``running`` entry of a step, and the entry before it.
    """
    marker = prepared.record
    assert marker is not None, "only a record can be settled"
    entries = services.store.history(marker.target)
    return marker, next((e for e in entries if e.sequence == marker.sequence - 1), None)


def _command_evidence(
    services: Services, marker: OperationRecord, kind: HookKind, spec: CallSpec, *, maskable: bool
) -> MutationEvidence | None:
    """
    Return the evidence of a command hook on disk; None if it certainly never began.
    """
    masked = replace(spec, mask=services.masker.mask if maskable else lambda _: NOT_SHOWN)
    recovered = services.engine.recover_call(masked, complete_log=maskable)
    if recovered.liveness is Liveness.ALIVE:
        raise Busy(
            f"{marker.target}: {kind} of run {marker.run_id} is still at work",
            hint="wait for it (--wait)",
        )
    if not recovered.started and services.files.read_run(marker.run_id) is not None:
        return None
    result = recovered.result if recovered.started else _NO_RESULT
    # Without an exit code nobody can tell what it did, whatever else is complete.
    complete = result.complete and result.exit_code is not None
    return MutationEvidence(
        exit_code=result.exit_code, journal=Journal.of(result.messages, whole=complete), state=None
    )


def _outcome(
    services: Services,
    deployment: Deployment,
    prepared: PreparedStep,
    recalled: RecalledInputs,
    marker: OperationRecord,
    before: OperationRecord | None,
    spec: CallSpec,
) -> OperationRecord:
    recovered = services.engine.recover_call(spec, complete_log=recalled.secrets_known)
    if recovered.liveness is Liveness.ALIVE:
        raise Busy(
            f"{marker.target}: the engine of run {marker.run_id} is still at work",
            hint="wait for it (--wait)",
        )
    lease = services.store.lease(marker.run_id)
    heartbeat = lease.of(str(marker.target), marker.sequence) if lease else None
    heard = heartbeat is not None and (heartbeat.in_flight or heartbeat.completed)
    never_began = not recovered.started and not heard
    if never_began and services.files.read_run(marker.run_id) is not None:
        fault = Fault(
            code="never_started",
            phase="record",
            summary="the run was killed before the engine started",
        )
        return reverted(marker, before, fault, services.stamp())
    evidence = _evidence(services, prepared.work_dir, marker, recovered, spec)
    evidence = replace(evidence, secrets_known=recalled.secrets_known)
    if heartbeat is not None and evidence.journal.extent != "complete":
        evidence = replace(evidence, journal=evidence.journal.with_heartbeat(heartbeat))
    undone = tuple(PlannedAction(address=f"all but {t}", action="noop") for t in marker.targets)
    query = QueryContext(services, prepared, recalled.inputs, spec.evidence, recalled.why)
    return conclude_engine_call(
        deployment, query, marker, before, evidence, left_undone=lambda: undone
    )


def _evidence(
    services: Services,
    root: WorkDir,
    marker: OperationRecord,
    recovered: RecoveredCall,
    spec: CallSpec,
) -> MutationEvidence:
    """
    Return the evidence of the call. An unreadable provider state raises: without it nothing can be
    concluded, so the record stays; a damaged one does not, because it will not be readable later
    either. A call without files on this machine has an empty, incomplete journal.
    """
    state: PulledState | None = None
    why: str | None = None
    try:
        state = pull(services, root, spec.evidence, f"pull-settle-{services.ids.entry_id()[:8]}")
    except StateDamaged as exc:
        why = exc.message
    bound = marker.provider_state.lineage if marker.provider_state else None
    # An import into a state that was lost begins another one.
    imported = frozenset(imported_addresses(marker))
    if (
        state is not None
        and bound is not None
        and state.lineage not in (None, bound)
        and not (imported and state.addresses <= imported)
    ):
        raise Refused(
            "lineage",
            f"{marker.target}: the provider state has lineage {state.lineage}, not {bound}",
            hint="it is another state than the one that was applied; restore the right one",
        )
    services.workdirs.make_state_private(root)
    result = recovered.result if recovered.started else _NO_RESULT
    errored = services.workdirs.errored_state(root)
    return gather(services, spec, result, state=state, state_error=why, errored=errored)
