"""
``verify``: run the checks of what is applied, and record their verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import recorded_module
from orchestrator.app.run.request import VerifyRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.preparation import pull, stopped
from orchestrator.app.steps.recording import record_entry
from orchestrator.app.steps.verification import run_checks
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.record.doubts import missing_from_state
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import READY, StepStatus
from orchestrator.domain.record.transitions import checked
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.errors import CheckFailed, InDoubt, OrchestratorError


def verify(services: Services, deployment: Deployment, request: VerifyRequest) -> int:
    """
    Check the selected steps; 12 where a check does not hold.
    """
    return run(services, deployment, request, _work)


def _work(runner: StepRunner, selected: Sequence[str]) -> None:
    runner.read_records()
    graph = runner.deployment.graph
    todo = [step for step in selected if _checkable(runner.steps.records.get(step))]
    for step in selected:
        if step not in todo:
            status = runner.steps.status(step)
            runner.end_skipped(step, f"nothing to check: {status}" if status else "never applied")
    failures = runner.steps.prepare_all(todo, recorded_module)
    if failures:
        runner.end_before_work(todo, failures)
        return
    unstarted = run_steps(
        graph.subset(todo),
        partial(_check_step, runner),
        jobs=runner.options.jobs,
        stop=runner.services.stop,
        on_failure=OnFailure.CONTINUE,
    )
    runner.report_unstarted(unstarted)


def _checkable(record: OperationRecord | None) -> bool:
    """
    Whether the target is applied, or would be but for a check.
    """
    if record is None:
        return False
    return record.status in READY or (record.error is not None and record.error.phase == "verify")


def _check_step(runner: StepRunner, name: str) -> Outcome:
    services, started = runner.services, runner.services.clock.monotonic()
    prepared = runner.steps.prepared[name]
    assert prepared.record is not None, "only recorded steps are checked"
    try:
        state = pull(services, prepared.work_dir, runner.steps.evidence(name), "pull")
        check_state(str(runner.deployment.target(name)), prepared.record, state)
        _check_whole(runner, name, prepared.record, state)
        inputs = runner.steps.recorded_inputs(prepared)
        verification = run_checks(services, runner.deployment, prepared.step, inputs, state)
        if verification.verdict == "failed" and services.stop.stopping:
            raise stopped(services.stop)
        entry = checked(prepared.record, verification, services.stamp())
        entry = record_entry(services, entry)
    except OrchestratorError as exc:
        return runner.end_with_error(name, started, exc, 1)
    runner.steps.update(name, entry, state)
    if verification.verdict == "failed":
        runner.session.fail(CheckFailed.exit_code)
    runner.end(
        name,
        started,
        StepStatus(str(entry.status)),
        attempts=1,
        sequence=entry.sequence,
        error=entry.error,
        last_error=entry.last_error,
        verification=verification,
        reason="it declares no checks" if verification.verdict == "unverified" else None,
    )
    return Outcome(ready=True)


def _check_whole(runner: StepRunner, name: str, known: OperationRecord, state: PulledState) -> None:
    """
    InDoubt where a check could make ok a target of which objects have left the provider state.
    """
    left = missing_from_state(known, state)
    if left and known.status not in READY:
        raise InDoubt(
            f"{name}: these have left the provider state: {', '.join(ref.address for ref in left)}",
            hint="settle it first: " + command_line(runner.deployment, "reconcile", "--step", name),
        )
