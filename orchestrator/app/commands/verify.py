"""
``verify``: run the checks of what is applied and record their verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.request import VerifyRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import OnFailure, Outcome
from orchestrator.app.services import Services, stopped
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.verification import run_checks
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import READY
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.transitions.doubts import missing_from_state
from orchestrator.domain.transitions.transitions import checked
from orchestrator.errors import CheckFailed, InDoubt


def verify(services: Services, deployment: Deployment, request: VerifyRequest) -> int:
    """
    Check the selected steps and return the exit code: 12 if a check fails.
    """
    return run(services, deployment, request, _work)


def _work(runner: StepRunner, selected: Sequence[str]) -> None:
    runner.run(
        selected,
        partial(_check_step, runner),
        skip=lambda name: _why_skip(runner.steps.records.get(name)),
        settles=False,
        on_failure=OnFailure.CONTINUE,
    )


def _why_skip(record: OperationRecord | None) -> str | None:
    """
    Return why there is nothing to check; None if the target is applied, or only a check failed.
    """
    if record is None:
        return "no record here"
    if record.status in READY or (record.error is not None and record.error.phase == "verify"):
        return None
    return f"nothing to check: {record.status}"


def _check_step(runner: StepRunner, name: str) -> Outcome:
    services, prepared = runner.services, runner.steps.prepared[name]
    record = runner.steps.recorded(name)
    state = pull(services, prepared.work_dir, runner.steps.evidence(name), "pull")
    check_state(str(prepared.target), record, state, prepared.reconcile)
    _check_whole(runner, name, record, state)
    inputs = runner.steps.values.recorded_inputs(prepared)
    verification = run_checks(services, runner.deployment, prepared.step, inputs, state)
    if verification.verdict == "failed" and services.stop.stopping:
        raise stopped(services.stop)
    entry = runner.record(name, checked(record, verification, services.stamp()), state)
    if verification.verdict == "failed":
        runner.session.codes.append(CheckFailed.exit_code)
    return runner.end_with_entry(
        name,
        entry,
        verification=verification,
        reason={"unverified": "nothing to check", "verified": "its checks ran"}.get(
            verification.verdict
        ),
    )


def _check_whole(
    runner: StepRunner, name: str, record: OperationRecord, state: PulledState
) -> None:
    """
    Raise InDoubt if objects have left the provider state: then a check must not make the target ok.
    """
    missing = missing_from_state(record, state)
    if missing and record.status not in READY:
        addresses = ", ".join(ref.address for ref in missing)
        raise InDoubt(
            f"{name}: these have left the provider state: {addresses}",
            hint="settle it first: " + command_line(runner.deployment, "reconcile", "--step", name),
            phase="surgery",
        )
