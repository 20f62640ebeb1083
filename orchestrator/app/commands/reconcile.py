"""
``reconcile``: settle what is uncertain from evidence, the provider asked for what a create may have
left (`app.readback`). By itself it changes records only.

A target becomes ``ok`` only by a clean answer or an empty plan, with passing checks; ``destroyed``
or ``absent`` only where provider state is empty and nothing is in doubt; else it stays ``error``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.destroy.hook_resources import check_settled
from orchestrator.app.run.orphans import tell_orphans
from orchestrator.app.run.prepared_steps import as_recorded
from orchestrator.app.run.request import Order
from orchestrator.app.run.run import run
from orchestrator.app.run.run_summary import fault_of
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.absence import awaited, drop_saved, recheck
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.planned_step import Proposal, propose
from orchestrator.app.steps.preparation import Prepared, pull, stopped
from orchestrator.app.steps.provider_query import Asker
from orchestrator.app.steps.recording import record as write
from orchestrator.app.steps.verification import run_checks
from orchestrator.app.surgery.readback import Readback
from orchestrator.app.surgery.requested_operations import check_asked, perform
from orchestrator.app.surgery.state_locks import way_out
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.destroy.absence import Finding
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.record.doubts import Look, open_doubts, settle_doubts
from orchestrator.domain.record.entries import next_entry, reconciled
from orchestrator.domain.record.record import Attempt, OperationRecord, Verification
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus, Trigger
from orchestrator.domain.target import action_of
from orchestrator.errors import (
    CheckFailed,
    EngineFailed,
    InDoubt,
    Invalid,
    OrchestratorError,
    Refused,
    StateLocked,
)


def reconcile(services: Services, deployment: Deployment, order: Order) -> int:
    """
    Reconcile the selected steps; 11 where something stays in doubt, 12 where a check fails.
    """
    return run(services, deployment, order, _work)


def _work(crew: StepRunner, selected: Sequence[str]) -> None:
    crew.read_records()
    # A run that was killed in its first plan leaves a lock and no record.
    locked = selected if crew.order.unlock else ()
    todo = [
        s for s in selected if s in locked or crew.steps.status(s) not in (None, *NOTHING_THERE)
    ]
    for step in selected:
        if step not in todo:
            status = crew.steps.status(step)
            crew.end_skipped(step, f"already {status}" if status else "never applied")
    check_settled(crew, todo)
    failures = crew.steps.prepare_all(todo, as_recorded) | crew.settle_all()
    if failures:
        crew.end_before_work(todo, failures)
        return
    check_asked(crew, todo)
    unstarted = run_steps(
        _order(crew, todo),
        partial(_reconcile_step, crew),
        jobs=crew.order.jobs,
        stop=crew.services.stop,
        on_failure=OnFailure.CONTINUE,
    )
    crew.report_unstarted(unstarted)
    if crew.order.orphaned:
        tell_orphans(crew)


def _order(crew: StepRunner, todo: Sequence[str]) -> Graph:
    """
    Upstreams first; roots of actions need nothing.
    """
    if any(action_of(name) for name in todo):
        return Graph(dict.fromkeys(todo, ()))
    return crew.deployment.graph.subset(todo)


def _reconcile_step(crew: StepRunner, name: str) -> Outcome:
    services, started = crew.services, crew.services.clock.monotonic()
    try:
        done = perform(crew, name)
        prepared = crew.steps.prepared[name]
        record = prepared.record
        assert record is not None, "only recorded steps are reconciled"
        if done is not None and done.fault is not None:
            return crew.end_with_record(name, started, done.told, 1)
        if record.status in NOTHING_THERE:
            crew.end_settled(name)
            return Outcome(ready=True)
        entry = write(services, _evidence(crew, name, prepared, record))
        drop_saved(services, entry)
    except StateLocked as exc:
        return crew.end_with_error(name, started, _locked(crew, name, exc), 1)
    except OrchestratorError as exc:
        return crew.end_with_error(name, started, exc, 1)
    crew.steps.know(name, entry)
    if entry.resources.in_doubt:
        crew.session.fail(InDoubt.exit_code)
    elif entry.error is not None and entry.error.code == "check_failed":
        crew.session.fail(CheckFailed.exit_code)
    crew.end(
        name,
        started,
        StepStatus(str(entry.status)),
        attempts=1,
        sequence=entry.sequence,
        error=entry.error,
        last_error=entry.last_error,
        in_doubt=entry.resources.in_doubt,
        absence=entry.absence,
        verification=entry.verification,
    )
    return Outcome(ready=True)


def _locked(crew: StepRunner, name: str, exc: StateLocked) -> OrchestratorError:
    """
    The error, with the way out, once the record tells of the lock; what went wrong with that.
    """
    services, record = crew.services, crew.steps.records[name]
    assert record is not None, "only recorded steps are reconciled"
    fault = fault_of(exc, services.masker).model_copy(update={"code": "state_locked"})
    stamp = services.stamp()
    attempt = Attempt(command="reconcile", run_id=crew.session.run_id, at=stamp.at, error=fault)
    try:
        entry = next_entry(record, stamp, Trigger.OBSERVE, last_attempt=attempt)
        crew.steps.know(name, write(services, entry))
    except OrchestratorError as failed:
        return failed
    hint = f"{exc.hint}; {way_out(crew, name, exc.lock_id)}"
    return StateLocked(exc.message, lock_id=exc.lock_id, hint=hint)


def _evidence(
    crew: StepRunner, name: str, prepared: Prepared, record: OperationRecord
) -> OperationRecord:
    """
    The entry that provider state, a plan with the recorded inputs and the checks add up to.
    """
    services, evidence = crew.services, crew.steps.evidence(name)
    crew.check_saved(name)
    state = pull(services, prepared.root, evidence, "pull")
    target = str(crew.deployment.target(name))
    hold = partial(check_state, serial_may_fall=True)
    hold(target, record, state)
    proposal, checks, inputs, vanished = None, None, None, False
    answered = any(doubt.address in crew.order.forget for doubt in record.resources.in_doubt)
    if state.objects or record.resources.in_doubt:
        try:
            inputs = crew.steps.recorded_inputs(prepared)
        except Invalid as exc:
            services.note(f"its inputs cannot be had: {exc.message}", level="warning", step=name)
    if state.objects and inputs is not None:
        try:
            proposal = propose(
                services,
                prepared,
                inputs,
                crew.order.wishes,
                target=target,
                direction="apply",
                evidence=evidence,
                hold=hold,
            )
        except EngineFailed as exc:
            services.note(f"no plan could be made: {exc.message}", level="warning", step=name)
        except Refused as exc:
            # What a person says is taken down all the same; of this provider nothing is asked.
            if exc.reason != "vanished" or not answered:
                raise
            vanished = True
            services.note(exc.message, hint=exc.hint, level="warning", step=name)
        else:
            proposal.file.unlink(missing_ok=True)
            checks = _checks(crew, prepared, inputs, state, proposal)
    look = Look(
        at=services.clock.now(),
        run_id=crew.session.run_id,
        settle=services.limits.settle,
        held=state.ids,
        refreshed=proposal is not None,
        forgotten=crew.order.forget,
        reason=crew.order.reason,
    )
    doubts = open_doubts(record, look)
    if doubts and inputs is not None and not vanished:
        record = Readback(crew.steps, prepared, record, inputs, state, evidence).ask(doubts)
    settled = settle_doubts(record, look)
    return reconciled(
        record,
        state,
        settled,
        services.stamp(),
        sound=checks,
        findings=_findings(crew, prepared, record),
        run_id=crew.session.run_id,
    )


def _findings(crew: StepRunner, prepared: Prepared, record: OperationRecord) -> tuple[Finding, ...]:
    """
    What the provider says, once, of what an earlier destroy removed and it has not confirmed.
    """
    forgotten = crew.order.forget
    if not awaited(record, forgotten=forgotten):
        return ()
    inputs: StepInputs | None = None
    why = ""
    try:
        inputs = crew.steps.recorded_inputs(prepared)
    except Invalid as exc:
        why = exc.message.splitlines()[0]
    place = crew.steps.evidence(prepared.step.name)
    asker = Asker(crew.services, prepared, inputs, place, why)
    return recheck(asker, record, forgotten=forgotten, patience=0.0)


def _checks(
    crew: StepRunner, prepared: Prepared, inputs: StepInputs, state: PulledState, proposal: Proposal
) -> Verification | None:
    if not proposal.empty:
        return None
    checks = run_checks(crew.services, crew.deployment, prepared.step, inputs, state)
    if checks.verdict == "failed" and crew.services.stop.stopping:
        raise stopped(crew.services.stop)
    return checks
