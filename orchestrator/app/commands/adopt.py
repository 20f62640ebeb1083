"""
``adopt``: take provider state that somebody else made under a record of ours.

Nothing is mutated. A step is `ok` only where a plan with today's module and inputs is empty, so
that the record says of the objects what is true of them; where a person accepts what an apply would
change it is `error` until that apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import as_it_is
from orchestrator.app.run.request import Order
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import keep_deployment
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.pipeline import Pipeline
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.errors import OrchestratorError


def adopt(services: Services, deployment: Deployment, order: Order) -> int:
    """
    Adopt the selected steps that have no record. Returns the exit code.
    """
    return run(services, deployment, order, _work)


def _work(crew: StepRunner, selected: Sequence[str]) -> None:
    crew.read_records()
    keep_deployment(crew)
    graph, bench = crew.deployment.graph, crew.steps
    todo = [step for step in selected if bench.status(step) in (None, *NOTHING_THERE)]
    for step in selected:
        if step not in todo:
            crew.end_skipped(step, f"recorded already: {bench.status(step)}")
    early = [step for step in todo if not bench.needs_outputs_first(step)]
    failures = bench.prepare_all(early, as_it_is)
    if failures:
        crew.end_before_work(todo, failures)
        return
    unstarted = run_steps(
        graph.subset(todo),
        partial(_adopt_step, crew),
        jobs=crew.order.jobs,
        stop=crew.services.stop,
        on_failure=OnFailure.CONTINUE,
    )
    crew.report_unstarted(unstarted)


def _adopt_step(crew: StepRunner, name: str) -> Outcome:
    started = crew.services.clock.monotonic()
    try:
        crew.steps.prepare(name, as_it_is)
        prepared = crew.steps.prepared[name]
        done = Pipeline(
            crew.session,
            prepared,
            crew.steps.inputs(prepared.step),
            crew.order.wishes,
            verb="apply",
            attempt=1,
        ).adopt(accepted=crew.order.accept_changes)
        crew.steps.know(name, done.record, done.state)
    except OrchestratorError as exc:
        return crew.end_with_error(name, started, exc, 1)
    outcome = crew.end_with_record(name, started, done, 1)
    unapplied = done.fault is not None and done.fault.code == "unapplied"
    return Outcome(ready=True) if unapplied else outcome  # its outputs are there all the same
