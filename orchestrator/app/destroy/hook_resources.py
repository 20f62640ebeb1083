"""
What the modules of actions made, taken down: it outlives its step, until somebody names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import recorded_module
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome, run_steps
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of, step_of
from orchestrator.errors import Busy, OrchestratorError


def destroy_hook_resources(runner: StepRunner, roots: Sequence[str]) -> None:
    """
    Destroy these roots, each by itself: nothing needs them, and they need nothing.
    """
    steps = runner.steps
    todo = [root for root in roots if steps.status(root) not in (None, *NOTHING_THERE)]
    for root in roots:
        if root not in todo:
            status = steps.status(root)
            runner.end_skipped(root, f"already {status}" if status else "it made nothing")
    check_hooks_settled(runner, todo)
    failures = steps.prepare_all(todo, recorded_module)
    if failures:
        runner.end_before_work(todo, failures)
        return
    unstarted = run_steps(
        Graph(dict.fromkeys(todo, ())),
        partial(_remove, runner),
        jobs=runner.options.jobs,
        stop=runner.services.stop,
        on_failure=runner.options.on_failure,
    )
    runner.report_unstarted(unstarted)


def check_hooks_settled(runner: StepRunner, names: Sequence[str]) -> None:
    """
    Busy where a root of an action is interrupted: it is settled together with its step.
    """
    unsettled = [
        name for name in names if hook_of(name) and runner.steps.status(name) is Status.RUNNING
    ]
    if unsettled:
        steps = dict.fromkeys(step_of(root) for root in unsettled)
        options = [word for step in steps for word in ("--step", step)]
        raise Busy(
            f"interrupted, and not settled yet: {', '.join(unsettled)}",
            hint=command_line(runner.deployment, "reconcile", *options),
        )


def _remove(runner: StepRunner, root: str) -> Outcome:
    started = runner.services.clock.monotonic()
    try:
        runner.check_saved(root)
        prepared = runner.steps.prepared[root]
        done = StepPipeline(
            runner.session,
            prepared,
            runner.steps.recorded_inputs(prepared),
            runner.options.plan,
            verb="destroy",
            attempt=1,
        ).run()
        runner.steps.update(root, done.record, done.state)
    except OrchestratorError as exc:
        return runner.end_with_error(root, started, exc, 1)
    return runner.end_with_record(root, started, done, 1)
