"""
What the modules of actions made, taken down: it outlives its step, until somebody names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.step_runner import StepPolicy, StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of, step_of
from orchestrator.errors import Busy


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
