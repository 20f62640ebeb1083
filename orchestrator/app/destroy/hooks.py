"""
What the modules of actions made, taken down: it outlives its step, until somebody names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from orchestrator.app.run.hooks import HookRun, check_outcome_known
from orchestrator.app.run.request import DestroyRequest
from orchestrator.app.run.step_runner import StepPolicy, StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of, step_of
from orchestrator.domain.transitions.hook_results import (
    completed_before_destroy,
    hook_description,
    hook_skipped,
)
from orchestrator.errors import Busy, OrchestratorError


def destroy_hook_resources(runner: StepRunner, roots: Sequence[str]) -> None:
    """
    Destroy the modules of hooks, in any order: no target depends on them.
    """
    policy = StepPolicy(
        partial(_destroy_root, runner),
        skip=lambda root: _why_skip(runner.steps.status(root)),
        graph=Graph(dict.fromkeys(roots, ())),
    )
    check_hooks_settled(
        runner, [root for root in roots if _why_skip(runner.steps.status(root)) is None]
    )
    runner.run(roots, policy)


def _why_skip(status: Status | None) -> str | None:
    if status is None:
        return "it made nothing"
    return f"already {status}" if status in NOTHING_THERE else None


def check_hooks_settled(runner: StepRunner, names: Sequence[str]) -> None:
    """
    Busy where a root of an action is interrupted and its step with it: they are settled together.
    """
    unsettled = [
        name
        for name in names
        if hook_of(name)
        and runner.steps.status(name) is Status.RUNNING
        and runner.steps.status(step_of(name)) is Status.RUNNING
    ]
    if unsettled:
        steps = dict.fromkeys(step_of(root) for root in unsettled)
        options = [word for step in steps for word in ("--step", step)]
        raise Busy(
            f"interrupted, and not settled yet: {', '.join(unsettled)}",
            hint=command_line(runner.deployment, "reconcile", *options),
        )


def _destroy_root(runner: StepRunner, root: str) -> Outcome:
    runner.check_saved(root)
    prepared = runner.steps.prepared[root]
    result = StepPipeline(
        runner.session,
        prepared,
        runner.steps.values.recorded_inputs(prepared),
        runner.options.plan,
        verb="destroy",
        attempt=1,
    ).run()
    runner.steps.update(root, result.record, result.state)
    return runner.end_with_record(root, result)


# ``before_destroy``: what a step declares to be done before it is destroyed. If that goes wrong,
# nothing of the step is destroyed.
#
# Each destroy does it again for as long as all that it is done for is there; once a destroy has
# deleted some of it, the work cannot be repeated, and the next destroy goes on without.


def before_destroy_failures(
    request: DestroyRequest, runner: StepRunner, steps: Iterable[str]
) -> dict[str, OrchestratorError]:
    """
    The errors of ``before_destroy`` hooks that are known before the first of them runs, by step.
    """
    failures: dict[str, OrchestratorError] = {}
    for name in steps:
        try:
            hook = _due_hook(request, runner, name)
            if hook is not None:
                hook.check()
        except OrchestratorError as exc:
            failures[name] = exc
    return failures


def note_before_destroy(request: DestroyRequest, runner: StepRunner, steps: Iterable[str]) -> None:
    """
    Say, before anything is approved, what will be done before which step is destroyed.
    """
    for name in steps:
        action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
        if action is None or record is None:
            continue
        completed = completed_before_destroy(record)
        if request.skip_before_destroy is not None:
            runner.services.note(
                f"before_destroy is left out ({request.skip_before_destroy}): "
                f"{hook_description(action)}",
                level="warning",
                step=name,
            )
        elif completed is not None:
            runner.services.note(
                f"before_destroy is not repeated: it was {completed.verdict} in run "
                f"{completed.run_id}, and some of what it was for has been deleted since",
                step=name,
            )
        else:
            runner.services.note(f"before it is destroyed: {hook_description(action)}", step=name)


def run_before_destroy(request: DestroyRequest, runner: StepRunner, name: str) -> StepResult | None:
    """
    Run the ``before_destroy`` hook of a step whose destroy is approved; None where none is due.
    """
    action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
    if action is None or record is None:
        return None
    reason = request.skip_before_destroy
    if reason is not None:
        left_out = hook_skipped(
            record, hook_description(action), runner.session.run_id, runner.services.stamp(), reason
        )
        entry = record.model_copy(update={"before_destroy": left_out})
        return StepResult(record=entry, state=None, mutated=False, fault=None)
    hook = _due_hook(request, runner, name)
    return hook.run() if hook is not None else None


def _due_hook(request: DestroyRequest, runner: StepRunner, name: str) -> HookRun | None:
    """
    The hook that a destroy of the step begins with; Refused where it is not known what was done
    before.
    """
    action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
    if action is None or record is None or not _is_due(request, record):
        return None
    if request.repeat is None:
        check_before_destroy_known(runner.deployment, record, name)
    return HookRun(runner, name, "before_destroy", action, reason=request.repeat)


def check_before_destroy_known(deployment: Deployment, record: OperationRecord, name: str) -> None:
    """
    Refused where the last run of the hook was cut short.
    """
    options = ("--step", name, "--repeat-before-destroy", "WHY")
    again = command_line(deployment, "destroy", *options)
    check_outcome_known(record.before_destroy, name, again)


def _is_due(request: DestroyRequest, record: OperationRecord) -> bool:
    return request.skip_before_destroy is None and completed_before_destroy(record) is None
