"""
``reconcile``: settle doubts from evidence, including provider queries for what a create may have
left (`app.readback`). By default it changes records only.

A target becomes ``ok`` only by a clean answer or an empty plan, with passing checks; ``destroyed``
or ``absent`` only if provider state is empty and nothing is in doubt; else it stays ``error``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.destroy import check_hooks_settled
from orchestrator.app.run.orphans import check_gone_steps, note_orphans
from orchestrator.app.run.request import ReconcileRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.run_summary import fault_of
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import OnFailure, Outcome
from orchestrator.app.services import Services, stopped
from orchestrator.app.steps.absence import awaiting_confirmation, drop_saved_states, recheck_absence
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.planned_step import CheckedPlan, plan_step
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.app.steps.verification import run_checks
from orchestrator.app.surgery.readback import DoubtReadback, verify_destroyed
from orchestrator.app.surgery.requested_operations import (
    check_requested_operations,
    run_requested_operations,
)
from orchestrator.app.surgery.state_locks import lock_ends, state_lock_error
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import Attempt, OperationRecord, Verification
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.target import HOOK_KINDS, hook_of, hook_step_name
from orchestrator.domain.transitions.absence import AbsenceFinding
from orchestrator.domain.transitions.doubts import StateObservation, settle_doubts
from orchestrator.domain.transitions.reconciliation import reconciled
from orchestrator.domain.transitions.transitions import observed
from orchestrator.errors import (
    CheckFailed,
    EngineFailed,
    InDoubt,
    Invalid,
    OrchestratorError,
    Refused,
    StateDamaged,
    StateLocked,
    StoreUnavailable,
)


def reconcile(services: Services, deployment: Deployment, request: ReconcileRequest) -> int:
    """
    Reconcile the selected steps and return the exit code: 11 if something stays in doubt, 12 if a
    check fails.
    """
    return run(services, deployment, request, _work)


def _work(runner: CommandRunner[ReconcileRequest], selected: Sequence[str]) -> None:
    check_hooks_settled(runner, [name for name in selected if _why_skip(runner, name) is None])
    skipped = [name for name in selected if _why_skip(runner, name) is not None]
    alive = check_gone_steps(runner.steps, skipped)
    for name, exc in alive.items():
        runner.end_with_error(name, exc, attempts=0)
    runner.run(
        [name for name in selected if name not in alive],
        partial(_reconcile_step, runner),
        skip=partial(_why_skip, runner),
        check=partial(check_requested_operations, runner),
        on_failure=OnFailure.CONTINUE,
    )
    _reconcile_hooks(runner, selected)
    if runner.options.orphaned:
        note_orphans(runner)


def _reconcile_hooks(runner: CommandRunner[ReconcileRequest], selected: Sequence[str]) -> None:
    """
    Settle the modules of the steps' hooks after the steps; not if a state operation was requested,
    which is about the steps alone.
    """
    request = runner.request
    plain = ReconcileRequest(options=request.options, verify_destroyed=request.verify_destroyed)
    if request != plain:
        return
    roots = [
        root
        for step in selected
        if hook_of(step) is None
        for root in (hook_step_name(step, kind) for kind in HOOK_KINDS)
        if root in runner.steps.roots and _is_uncertain(runner.steps.records.get(root))
    ]
    runner.run(
        roots,
        partial(_reconcile_step, runner),
        graph=Graph.unordered(roots),
        on_failure=OnFailure.CONTINUE,
    )


def _is_uncertain(record: OperationRecord | None) -> bool:
    unwell = (Status.RUNNING, Status.ERROR)
    return record is not None and (record.status in unwell or bool(record.resources.in_doubt))


def _why_skip(runner: CommandRunner[ReconcileRequest], name: str) -> str | None:
    status = runner.steps.status(name)
    # A run that was killed in its first plan leaves a lock and no record.
    if runner.request.unlock or status not in (None, *NOTHING_THERE):
        return None
    if runner.request.verify_destroyed and status is not None:
        return None
    return f"already {status}" if status else "no record here"


def _reconcile_step(runner: CommandRunner[ReconcileRequest], name: str) -> Outcome:
    request = runner.request
    services = runner.services
    try:
        requested = run_requested_operations(runner, name)
    except StateLocked as exc:
        raise _locked(runner, name, exc, runner.steps.recorded(name)) from exc
    prepared, record = runner.steps.prepared[name], runner.steps.recorded(name)
    if requested is not None and requested.fault is not None:
        return runner.end_with_record(name, requested)
    if record.status in NOTHING_THERE:
        outcome = verify_destroyed(runner, name, record) if request.verify_destroyed else None
        if outcome is None:
            runner.end_settled(name)
            return Outcome(ready=True)
        entry = runner.record(name, outcome)
    else:
        entry = runner.record(name, _evidence(runner, name, prepared, record))
        drop_saved_states(services, entry)
        services.note_reconciled(entry.target)
    if entry.resources.in_doubt:
        runner.session.codes.append(InDoubt.exit_code)
    elif entry.error is not None and entry.error.code == "check_failed":
        runner.session.codes.append(CheckFailed.exit_code)
    return runner.end_with_entry(
        name, entry, absence=entry.absence, verification=entry.verification
    )


def _locked(
    runner: StepRunner, name: str, exc: StateLocked, record: OperationRecord
) -> OrchestratorError:
    """
    Record the lock and return its error with a hint, or the error of recording it.
    """
    services = runner.services
    fault = fault_of(exc, services.masker).model_copy(update={"code": "state_locked"})
    stamp = services.stamp()
    attempt = Attempt(command="reconcile", run_id=runner.session.run_id, at=stamp.at, error=fault)
    try:
        runner.record(name, observed(record, {"last_attempt": attempt}, stamp))
    except OrchestratorError as failed:
        return failed
    hints = filter(None, (exc.hint, lock_ends(runner.steps.prepared[name])))
    return StateLocked(exc.message, lock_id=exc.lock_id, hint="; ".join(hints))


def _evidence(
    runner: CommandRunner[ReconcileRequest],
    name: str,
    prepared: PreparedStep,
    record: OperationRecord,
) -> OperationRecord:
    """
    Return the entry that follows from provider state, a plan with the recorded inputs and the
    checks.
    """
    services, evidence = runner.services, runner.steps.evidence(name)
    runner.check_saved(name)
    try:
        state = pull(services, prepared.work_dir, evidence, "pull")
    except StateDamaged as exc:  # as good as none: it will not be readable later either
        services.note(exc.message, hint=exc.hint, level="warning", step=name)
        state = PulledState(lineage=None, serial=0, objects=(), outputs={})
    hold = partial(check_state, serial_may_fall=True, may_be_missing=True)
    moved = hold(str(prepared.target), record, state, prepared.reconcile)
    if moved is not None and not state.objects:  # else the plan says it
        services.note(moved, level="warning", step=name)
    proposal, checks, inputs, vanished = None, None, None, False
    locked: StateLocked | None = None
    forgotten = any(doubt.address in runner.request.forget for doubt in record.resources.in_doubt)
    if state.objects or record.resources.in_doubt:
        try:
            inputs = runner.steps.values.recorded_inputs(prepared)
        except (Invalid, StoreUnavailable) as exc:
            services.note(f"inputs not available: {exc.message}", level="warning", step=name)
    if state.objects and inputs is not None:
        try:
            proposal = plan_step(
                services,
                prepared,
                inputs,
                runner.options.plan,
                direction="apply",
                evidence=evidence,
                check=hold,
                missing_objects="doubted",
            )
        except StateLocked as exc:
            locked = exc
        except EngineFailed as exc:
            services.note(f"no plan could be made: {exc.message}", level="warning", step=name)
        except Refused as exc:
            # What a person says is taken down all the same; of this provider nothing is asked.
            if exc.reason != "vanished" or not forgotten:
                raise
            vanished = True
            services.note(exc.message, hint=exc.hint, level="warning", step=name)
        else:
            proposal.file.unlink(missing_ok=True)
            checks = _checks(runner, prepared, inputs, state, proposal)
    elif record.resources.in_doubt:
        locked = state_lock_error(runner, name)
    observation = StateObservation(
        at=services.clock.now(),
        run_id=runner.session.run_id,
        settling_time=services.limits.settle,
        ids=state.ids,
        refreshed=proposal is not None,
        forgotten=runner.request.forget,
        reason=runner.options.reason,
        deleted=proposal.deleted if proposal is not None else (),
    )
    doubts, _ = settle_doubts(record, observation)
    if doubts and inputs is not None and not vanished:
        record = DoubtReadback(runner.steps, prepared, record, inputs, state, evidence).ask(doubts)
    if locked is not None:  # what the provider says stays known; nothing is concluded under a lock
        raise _locked(runner, name, locked, record)
    _, settled = settle_doubts(record, observation)
    return reconciled(
        record,
        state,
        settled,
        services.stamp(),
        verification=checks,
        findings=_findings(runner.request.forget, runner, prepared, record),
        run_id=runner.session.run_id,
    )


def _findings(
    forgotten: Sequence[str], runner: StepRunner, prepared: PreparedStep, record: OperationRecord
) -> tuple[AbsenceFinding, ...]:
    """
    Query the provider once about objects that an earlier destroy removed and that are not confirmed
    gone, and return the findings.
    """
    if not awaiting_confirmation(record, forgotten=forgotten):
        return ()
    inputs: StepInputs | None = None
    why = ""
    try:
        inputs = runner.steps.values.recorded_inputs(prepared)
    except Invalid as exc:
        why = exc.message.splitlines()[0]
    directory = runner.steps.evidence(prepared.step.name)
    context = QueryContext(runner.services, prepared, inputs, directory, why)
    return recheck_absence(context, record, forgotten=forgotten, wait=0.0)


def _checks(
    runner: StepRunner,
    prepared: PreparedStep,
    inputs: StepInputs,
    state: PulledState,
    proposal: CheckedPlan,
) -> Verification | None:
    if not proposal.empty:
        return None
    checks = run_checks(runner.services, runner.deployment, prepared.step, inputs, state)
    if checks.verdict == "failed" and runner.services.stop.stopping:
        raise stopped(runner.services.stop)
    return checks
