"""
What the modules of actions made, taken down: it outlives its step, until somebody names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import as_recorded
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome, run_steps
from orchestrator.app.steps.pipeline import Pipeline
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import action_of, step_of
from orchestrator.errors import Busy, OrchestratorError


def remove(crew: StepRunner, roots: Sequence[str]) -> None:
    """
    Destroy these roots, each by itself: nothing needs them, and they need nothing.
    """
    bench = crew.steps
    todo = [root for root in roots if bench.status(root) not in (None, *NOTHING_THERE)]
    for root in roots:
        if root not in todo:
            status = bench.status(root)
            crew.end_skipped(root, f"already {status}" if status else "it made nothing")
    check_settled(crew, todo)
    failures = bench.prepare_all(todo, as_recorded)
    if failures:
        crew.end_before_work(todo, failures)
        return
    unstarted = run_steps(
        Graph(dict.fromkeys(todo, ())),
        partial(_remove, crew),
        jobs=crew.order.jobs,
        stop=crew.services.stop,
        on_failure=crew.order.on_failure,
    )
    crew.report_unstarted(unstarted)


def check_settled(crew: StepRunner, names: Sequence[str]) -> None:
    """
    Busy where a root of an action is interrupted: it is settled together with its step.
    """
    unsettled = [
        name for name in names if action_of(name) and crew.steps.status(name) is Status.RUNNING
    ]
    if unsettled:
        steps = dict.fromkeys(step_of(root) for root in unsettled)
        options = [word for step in steps for word in ("--step", step)]
        raise Busy(
            f"interrupted, and not settled yet: {', '.join(unsettled)}",
            hint=command_line(crew.deployment, "reconcile", *options),
        )


def _remove(crew: StepRunner, root: str) -> Outcome:
    started = crew.services.clock.monotonic()
    try:
        crew.check_saved(root)
        prepared = crew.steps.prepared[root]
        done = Pipeline(
            crew.session,
            prepared,
            crew.steps.recorded_inputs(prepared),
            crew.order.wishes,
            verb="destroy",
            attempt=1,
        ).run()
        crew.steps.know(root, done.record, done.state)
    except OrchestratorError as exc:
        return crew.end_with_error(root, started, exc, 1)
    return crew.end_with_record(root, started, done, 1)
