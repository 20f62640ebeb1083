"""
A record that says ``running`` although its run is gone: settled from evidence, never guessed.

The engine outlives us and leaves its answer on disk, so most of what a killed run left can be
concluded exactly as the run itself would have concluded it.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.app.conditions import Watch
from orchestrator.app.preparation import Prepared, make_site, pull
from orchestrator.app.recording import record_outcome
from orchestrator.app.services import Services
from orchestrator.app.verification import run_checks
from orchestrator.domain.blueprint import Deployment
from orchestrator.domain.entries import Evidence, conclude, revert
from orchestrator.domain.inputs import StepInputs
from orchestrator.domain.journal import Journal
from orchestrator.domain.messages import PulledState
from orchestrator.domain.record import Attempt, Fault, OperationRecord, Verification
from orchestrator.domain.states import Condition, Status
from orchestrator.errors import Busy
from orchestrator.ports import Liveness, Recollection, Root


def check_not_live(
    services: Services, record: OperationRecord | None, *, wait: bool, takeover: str | None
) -> None:
    """
    Busy while owner or engine of a ``running`` record may be alive; with ``wait``, wait for it.

    ``takeover`` is the reason for which a silent one is taken for dead.
    """
    if record is None or record.status is not Status.RUNNING:
        return
    watch = Watch(services.store, services.files, services.processes, services.limits.silence)
    told = False
    while True:
        condition = watch.condition(record)
        if condition is not Condition.LIVE:
            break
        if not wait or services.stop.stopping:
            raise Busy(
                f"{record.target.target}: {record.active_command} of run {record.run_id} is still "
                "going on",
                hint="wait for it (--wait), or look at it with `orchestrator status`",
            )
        if not told:
            services.note(f"waiting for run {record.run_id}", step=record.target.step)
            told = True
        services.clock.sleep(1.0)
    if condition is Condition.SILENT and takeover is None:
        raise Busy(
            f"{record.target.target}: run {record.run_id} has no recent heartbeat, and from this "
            "machine nobody can tell whether it is dead",
            hint="look on the machine it ran on; if it is dead, `orchestrator reconcile "
            f"{record.target.blueprint} -e {record.target.environment} --takeover REASON`",
        )


def settle(
    services: Services,
    deployment: Deployment,
    prepared: Prepared,
    inputs: StepInputs | None,
) -> OperationRecord:
    """
    Conclude a ``running`` record whose owner and engine are gone, and say what was concluded.

    ``inputs`` are for the step's checks; without them a step that has checks is not called sound.
    """
    marker = prepared.record
    assert marker is not None, "only a record can be settled"
    outcome = _outcome(services, deployment, prepared, marker, inputs)
    outcome = record_outcome(services, outcome)
    why = f": {outcome.last_error}" if outcome.last_error else ""
    services.note(
        f"run {marker.run_id} was interrupted during {marker.active_command}; "
        f"from what it left this is `{outcome.status}`{why}",
        level="warning",
        step=prepared.step.name,
    )
    return outcome


def _outcome(
    services: Services,
    deployment: Deployment,
    prepared: Prepared,
    marker: OperationRecord,
    inputs: StepInputs | None,
) -> OperationRecord:
    step = prepared.step
    before = _entry_before(services, marker)
    recollection = _recollect(services, prepared.root, marker)
    if recollection is not None and not recollection.began:
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
        return revert(marker, before, services.stamp(), attempt)
    evidence = _evidence(services, prepared.root, marker, recollection)
    checks: Verification | None = None
    if marker.active_command == "apply" and evidence.clean and evidence.state is not None:
        checks = _checks(services, deployment, prepared, inputs, evidence.state)
        evidence = replace(evidence, stopped=services.stop.stopping)
    return conclude(
        marker,
        before,
        evidence,
        services.stamp(),
        refused_on=step.refused_on,
        verification=checks,
    )


def _entry_before(services: Services, marker: OperationRecord) -> OperationRecord | None:
    entries = services.store.history(marker.target.target)
    return next((entry for entry in entries if entry.sequence == marker.sequence - 1), None)


def _recollect(services: Services, root: Root, marker: OperationRecord) -> Recollection | None:
    """
    What the interrupted call left on this machine; None where the run was never here.
    """
    if not services.files.directory(marker.run_id).exists():
        return None
    evidence = services.files.attempt(marker.run_id, marker.target.step, marker.attempt)
    recollection = services.engine.recollect(make_site(services, root, evidence, "apply"))
    if recollection.liveness is Liveness.ALIVE:
        raise Busy(
            f"{marker.target.target}: the engine of run {marker.run_id} is still at work",
            hint="wait for it (--wait)",
        )
    for leftover in ("plan.tfplan", "inputs.tfvars.json"):
        (evidence / leftover).unlink(missing_ok=True)
    return recollection


def _evidence(
    services: Services, root: Root, marker: OperationRecord, recollection: Recollection | None
) -> Evidence:
    """
    What there is to judge by. A provider state that cannot be read raises: the record stays as it
    is, because without it nothing can be concluded.
    """
    evidence = services.files.attempt(marker.run_id, marker.target.step, marker.attempt)
    state = pull(services, root, evidence, f"pull-settle-{services.ids.entry_id()[:8]}")
    services.workdirs.protect(root)
    errored = services.workdirs.errored_state(root)
    answer = recollection.answer if recollection else None
    return Evidence(
        exit_code=answer.exit_code if answer else None,
        journal=Journal.of(
            answer.messages if answer else (), whole=answer.whole if answer else False
        ),
        state=state,
        lock=answer.lock if answer else None,
        errored_state=str(errored) if errored else None,
    )


def _checks(
    services: Services,
    deployment: Deployment,
    prepared: Prepared,
    inputs: StepInputs | None,
    state: PulledState,
) -> Verification | None:
    if inputs is None:
        return (
            Verification(verdict="failed", at=services.clock.now())
            if prepared.step.verify
            else None
        )
    return run_checks(services, deployment, prepared.step, inputs, state)
