"""
``compensate``: undo the work of the selected steps by their declared hooks.

No other command starts it: no destroy, rollback or failed apply. A compensated step stays so until
its next apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.hooks import HookRun, check_outcome_known, hook_exit_codes
from orchestrator.app.run.request import CompensateRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import CommandRunner
from orchestrator.app.schedule import Outcome, failures_of
from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import compensation_order
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus
from orchestrator.domain.record.verdicts import has_completed_work, is_compensated
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.errors import OrchestratorError, Refused


def compensate(services: Services, deployment: Deployment, request: CompensateRequest) -> int:
    """
    Compensate the selected steps and return the exit code.
    """
    return run(services, deployment, request, _work)


def _work(runner: CommandRunner[CompensateRequest], selected: Sequence[str]) -> None:
    declared = runner.deployment.steps
    if not (runner.request.options.reason or runner.request.repeat):
        raise Refused(
            "reason_missing",
            "a compensation needs a reason",
            hint="add --reason 'why it is undone'",
        )
    if all(declared[name].compensate is None for name in selected):
        raise Refused(
            "no_compensation",
            f"none of the selected steps declares how it is compensated: {', '.join(selected)}",
            hint="declare `compensate` in the blueprint, or look at `orchestrator recover`",
        )
    after = {
        name: step.compensate_after
        for name, step in declared.items()
        if step.compensate is not None
    }
    runner.run(
        selected,
        partial(_compensate_step, runner),
        skip=partial(_why_not, runner),
        check=partial(_hook_failures, runner),
        graph=compensation_order(runner.deployment.graph, after),
    )


def _hook_failures(
    runner: CommandRunner[CompensateRequest], todo: Sequence[str]
) -> dict[str, OrchestratorError]:
    """
    Return, by step, the errors of compensations that are known before the first of them runs.
    """
    due = [name for name in todo if _why_not(runner, name) is None]
    return failures_of(due, lambda name: _hook_run(runner, name).check())


def _hook_run(runner: CommandRunner[CompensateRequest], name: str) -> HookRun:
    """
    Return the compensation of a step. Raises InDoubt or Refused if the result of its last run is
    unknown.
    """
    action, record = runner.deployment.steps[name].compensate, runner.steps.recorded(name)
    assert action is not None, "only what declares a compensation is compensated"
    runner.check_certain(name)
    if runner.request.repeat is None:
        again = command_line(runner.deployment, "compensate", "--step", name, "--repeat", "WHY")
        check_outcome_known(record.compensation, name, again)
    reason = runner.request.repeat or runner.request.options.reason
    return HookRun(runner, name, "compensate", action, reason=reason)


def _why_not(runner: CommandRunner[CompensateRequest], name: str) -> str | None:
    """
    Return why a step is skipped, None if it is not.
    """
    record = runner.steps.records.get(name)
    if runner.deployment.steps[name].compensate is None:
        return "declares no compensation"
    if record is None:
        return "no record here"
    if record.status in NOTHING_THERE:
        return f"already {record.status}"
    if not has_completed_work(record):
        return "nothing was completed"
    last = record.compensation
    if last is not None and is_compensated(record) and runner.request.repeat is None:
        return f"compensated already, by run {last.run_id}"
    return None


def _compensate_step(runner: CommandRunner[CompensateRequest], name: str) -> Outcome:
    settled = _why_not(runner, name)
    if settled is not None:  # that it was done already came out when it was settled
        runner.end_skipped(name, settled)
        return Outcome(ready=True)
    result = _hook_run(runner, name).run()
    stopped = runner.services.stop.exit_code
    runner.session.codes += hook_exit_codes(result, "compensate", stopped)
    last = result.record.compensation
    runner.end(
        name,
        StepStatus.ERROR if result.fault else StepStatus(result.record.status),
        changed=result.mutated,
        attempts=1,
        sequence=result.record.sequence,
        error=result.fault,
        last_error=result.record.last_error,
        reason=None if result.fault else f"compensated by {last.by if last else ''}",
    )
    return Outcome(ready=result.fault is None)
