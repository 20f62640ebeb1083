"""
Settles a record that is ``running`` although its run is gone, from evidence alone.

The engine outlives us and leaves its result on disk, so that most of what a killed run left can be
concluded exactly as the run would have concluded it.
"""

from __future__ import annotations

from msgspec import Struct

from orchestrator.app.inspection.read_context import LivenessProbe
from orchestrator.app.services import Services, await_others
from orchestrator.app.steps.engine_calls import call_spec, pull
from orchestrator.app.steps.mutation import conclude_engine_call, end_mutation, gather
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.app.steps.verification import run_checks
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Attempt, Check, Fault, OperationRecord, Verification
from orchestrator.domain.record.states import Condition, Liveness, Status
from orchestrator.domain.recovery.command_line import command_line, reconcile_command
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.ownership import imported_addresses
from orchestrator.domain.transitions.transitions import restored
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, Refused, StateDamaged
from orchestrator.ports.engine import CallResult, CallSpec, RecoveredCall
from orchestrator.ports.workdir import WorkDir

#: Stands for what an engine said when the secrets it may quote are not known any more.
NOT_SHOWN = "(not shown: the secrets of that run are not known any more)"


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
    probe = LivenessProbe.of(services)
    announced = False
    while True:
        condition = probe.condition(record)
        if condition is not Condition.LIVE:
            break
        if wait and not announced:
            services.note(f"waiting for run {record.run_id}", step=record.target.step)
            announced = True
        busy = Busy(
            f"{record.target.target}: {record.active_command} of run {record.run_id} "
            "is still in progress",
            hint="wait for it (--wait), or look at it with "
            f"`{command_line(deployment, 'recover')}`",
        )
        await_others(services, busy, wait=wait, seconds=1.0)
    if condition is Condition.SILENT and takeover is None:
        raise Busy(
            f"{record.target.target}: run {record.run_id} has no recent heartbeat, and from this "
            "machine nobody can tell whether it is dead",
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
    marker = prepared.record
    assert marker is not None, "only a record can be settled"
    spec = _spec(services, prepared, marker, recalled)
    outcome = _outcome(services, deployment, prepared, recalled, spec)
    outcome = end_mutation(services, marker, outcome, spec)
    why = f": {outcome.last_error}" if outcome.last_error else ""
    services.note(
        f"run {marker.run_id} was interrupted during {marker.active_command}; "
        f"from what it left this is `{outcome.status}`{why}",
        level="warning",
        step=prepared.step.name,
    )
    return outcome


def _spec(
    services: Services, prepared: PreparedStep, marker: OperationRecord, recalled: RecalledInputs
) -> CallSpec:
    evidence = services.files.attempt(marker.run_id, marker.target.step, marker.attempt)
    leftovers = (evidence / "plan.tfplan", evidence / "inputs.tfvars.json")
    spec = call_spec(services, prepared.work_dir, evidence, "apply", delete_after=leftovers)
    return spec if recalled.secrets_known else replace(spec, mask=lambda _: NOT_SHOWN)


def _outcome(
    services: Services,
    deployment: Deployment,
    prepared: PreparedStep,
    recalled: RecalledInputs,
    spec: CallSpec,
) -> OperationRecord:
    marker = prepared.record
    assert marker is not None, "only a record can be settled"
    entries = services.store.history(marker.target.target)
    before = next((e for e in entries if e.sequence == marker.sequence - 1), None)
    recollection = services.engine.recover_call(spec, complete_log=recalled.secrets_known)
    if recollection.liveness is Liveness.ALIVE:
        raise Busy(
            f"{marker.target.target}: the engine of run {marker.run_id} is still at work",
            hint="wait for it (--wait)",
        )
    lease = services.store.lease(marker.run_id)
    heartbeat = lease.of(str(marker.target.target), marker.sequence) if lease else None
    heard = heartbeat is not None and (heartbeat.in_flight or heartbeat.completed)
    never_began = not recollection.started and not heard
    if never_began and services.files.read_run(marker.run_id) is not None:
        fault = Fault(
            code="never_started",
            phase="record",
            summary="the run was killed before the engine started",
        )
        attempt = Attempt(
            command=marker.active_command or "apply",
            run_id=marker.run_id,
            at=services.clock.now(),
            error=fault,
        )
        return restored(marker, before, attempt, services.stamp())
    evidence = _evidence(services, prepared.work_dir, marker, recollection, spec)
    evidence = replace(evidence, secrets_known=recalled.secrets_known)
    if heartbeat is not None and evidence.journal.extent != "complete":
        evidence = replace(evidence, journal=evidence.journal.with_heartbeat(heartbeat))
    undone = tuple(PlannedAction(address=f"all but {t}", action="noop") for t in marker.targets)
    return conclude_engine_call(
        QueryContext(services, prepared, recalled.inputs, spec.evidence, recalled.why),
        marker,
        before,
        evidence,
        checks=lambda state: _checks(services, deployment, prepared, recalled, state),
        left_undone=lambda: undone,
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
            f"{marker.target.target}: the provider state has lineage {state.lineage}, not {bound}",
            hint="it is another state than the one that was applied; restore the right one",
        )
    services.workdirs.make_state_private(root)
    # Of a call that never began there is no result: its journal is missing, not complete.
    no_result = CallResult(exit_code=None, messages=(), complete=False)
    result = recovered.result if recovered.started else no_result
    errored = services.workdirs.errored_state(root)
    return gather(services, spec, result, state=state, state_error=why, errored=errored)


def _checks(
    services: Services,
    deployment: Deployment,
    prepared: PreparedStep,
    recalled: RecalledInputs,
    state: PulledState,
) -> Verification | None:
    if recalled.inputs is not None:
        return run_checks(services, deployment, prepared.step, recalled.inputs, state)
    if not prepared.step.verify:
        return None
    unable = Check(name="checks", passed=False, detail=f"not run: {recalled.why}")
    return Verification(verdict="failed", checks=(unable,), at=services.clock.now())
