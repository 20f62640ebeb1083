"""
``before_destroy``: what a step declares to be done before it is destroyed. If that goes wrong,
nothing of the step is destroyed.

Each destroy does it again for as long as all that it is done for is there; once a destroy has
deleted some of it, the work cannot be repeated, and the next destroy goes on without.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.app.run.hooks import HookRun, check_outcome_known
from orchestrator.app.run.request import DestroyRequest
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.mutation import StepResult
from orchestrator.domain.blueprint.blueprint import ModuleHook
from orchestrator.domain.record.hook_results import (
    completed_before_destroy,
    hook_description,
    hook_skipped,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.recovery.command_line import command_line


def hook_modules(request: DestroyRequest, runner: StepRunner, steps: Iterable[str]) -> list[str]:
    """
    The roots of the modules that these steps will need before they are destroyed, as far as they
    can be made ready now.
    """
    found = []
    for name in steps:
        action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
        if isinstance(action, ModuleHook) and record is not None and _is_due(request, record):
            found.append(action.root.name)
    return [root for root in found if not runner.steps.needs_outputs_first(root)]


def note_before_destroy(request: DestroyRequest, runner: StepRunner, steps: Iterable[str]) -> None:
    """
    Say, before anything is approved, what will be done before which step is destroyed.
    """
    for name in steps:
        action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
        if action is None or record is None:
            continue
        done = completed_before_destroy(record)
        if request.skip_before_destroy is not None:
            runner.services.note(
                f"before_destroy is left out ({request.skip_before_destroy}): "
                f"{hook_description(action)}",
                level="warning",
                step=name,
            )
        elif done is not None:
            runner.services.note(
                f"before_destroy is not repeated: it was {done.verdict} in run {done.run_id}, and "
                "some of what it was for has been deleted since",
                step=name,
            )
        else:
            runner.services.note(f"before it is destroyed: {hook_description(action)}", step=name)


def run_before_destroy(request: DestroyRequest, runner: StepRunner, name: str) -> StepResult | None:
    """
    Do it, for a step whose destroy is approved; None where there is nothing to be done.
    """
    action, known = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
    if action is None or known is None:
        return None
    reason = request.skip_before_destroy
    if reason is not None:
        left_out = hook_skipped(
            known, hook_description(action), runner.session.run_id, runner.services.stamp(), reason
        )
        entry = known.model_copy(update={"before_destroy": left_out})
        return StepResult(record=entry, state=None, mutated=False, fault=None)
    if not _is_due(request, known):
        return None
    if request.repeat is None:
        options = ("--step", name, "--repeat-before-destroy", "WHY")
        check_outcome_known(
            known.before_destroy, name, command_line(runner.deployment, "destroy", *options)
        )
    return HookRun(runner, name, "before_destroy", action, reason=request.repeat).run()


def _is_due(request: DestroyRequest, record: OperationRecord) -> bool:
    return request.skip_before_destroy is None and completed_before_destroy(record) is None
