"""
``adopt``: take provider state that somebody else made under a record of ours.

Nothing is mutated. A step is `ok` only where a plan with today's module and inputs is empty, so
that the record says of the objects what is true of them; where a person accepts what an apply would
change it is `error` until that apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import current_module
from orchestrator.app.run.request import AdoptRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import store_deployment
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.errors import OrchestratorError


def adopt(services: Services, deployment: Deployment, request: AdoptRequest) -> int:
    """
    Adopt the selected steps that have no record. Returns the exit code.
    """
    return run(services, deployment, request, partial(_work, request))


def _work(request: AdoptRequest, runner: StepRunner, selected: Sequence[str]) -> None:
    runner.read_records()
    store_deployment(runner)
    graph, steps = runner.deployment.graph, runner.steps
    todo = [step for step in selected if steps.status(step) in (None, *NOTHING_THERE)]
    for step in selected:
        if step not in todo:
            runner.end_skipped(step, f"recorded already: {steps.status(step)}")
    early = [step for step in todo if not steps.needs_outputs_first(step)]
    failures = steps.prepare_all(early, current_module)
    if failures:
        runner.end_before_work(todo, failures)
        return
    unstarted = run_steps(
        graph.subset(todo),
        partial(_adopt_step, runner, request.accept_changes),
        jobs=runner.options.jobs,
        stop=runner.services.stop,
        on_failure=OnFailure.CONTINUE,
    )
    runner.report_unstarted(unstarted)


def _adopt_step(runner: StepRunner, accepted: str | None, name: str) -> Outcome:
    started = runner.services.clock.monotonic()
    try:
        runner.steps.prepare(name, current_module)
        prepared = runner.steps.prepared[name]
        done = StepPipeline(
            runner.session,
            prepared,
            runner.steps.inputs(prepared.step),
            runner.options.plan,
            verb="apply",
            attempt=1,
        ).adopt(accepted=accepted)
        runner.steps.update(name, done.record, done.state)
    except OrchestratorError as exc:
        return runner.end_with_error(name, started, exc, 1)
    outcome = runner.end_with_record(name, started, done, 1)
    unapplied = done.fault is not None and done.fault.code == "unapplied"
    return Outcome(ready=True) if unapplied else outcome  # its outputs are there all the same
