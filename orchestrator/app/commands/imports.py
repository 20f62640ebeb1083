"""
``adopt`` and ``import``: start recording existing provider state and objects.

Nothing is mutated by `adopt`. A step becomes `ok` only if a plan with its current module and inputs
is empty, so that the record is true. If the user accepts the changes of an apply, it is `error`
until that apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import current_module
from orchestrator.app.run.request import AdoptRequest, ImportRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import OnFailure, Outcome
from orchestrator.app.services import Services
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.app.steps.preparation import store_deployment
from orchestrator.app.surgery.imports import import_object
from orchestrator.app.surgery.state_operation import report_operation
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.errors import Refused


def adopt(services: Services, deployment: Deployment, request: AdoptRequest) -> int:
    """
    Adopt the selected steps without a record and return the exit code.
    """
    return run(services, deployment, request, _work)


def _work(runner: CommandRunner[AdoptRequest], selected: Sequence[str]) -> None:
    store_deployment(runner.session)

    def why_skip(name: str) -> str | None:
        status = runner.steps.status(name)
        return None if status in (None, *NOTHING_THERE) else f"recorded already: {status}"

    runner.run(
        selected,
        partial(_adopt_step, runner, runner.request.accept_changes),
        skip=why_skip,
        source=current_module,
        settles=False,
        early=lambda name: not runner.steps.values.needs_outputs_first(name),
        on_failure=OnFailure.CONTINUE,
    )


def _adopt_step(runner: StepRunner, accepted: str | None, name: str) -> Outcome:
    prepared = runner.steps.prepare(name, current_module)
    target, inputs = prepared.target, runner.steps.values.inputs(prepared.step)
    try:
        options = runner.options.plan
        pipeline = StepPipeline(runner.session, prepared, inputs, options, verb="apply")
        result = pipeline.adopt(accepted=accepted)
    except Refused as exc:
        if exc.reason == "nothing_to_adopt":
            runner.services.note_reconciled(target)
        if exc.reason != "nothing_to_adopt" or runner.options.steps:
            raise
        runner.end_skipped(name, "nothing to adopt: its provider state holds nothing")
        return Outcome(ready=False)
    runner.steps.update(name, result.record, result.state)
    runner.services.note_reconciled(target)
    outcome = runner.end_with_record(name, result)
    unapplied = result.fault is not None and result.fault.code == "unapplied"
    return Outcome(ready=True) if unapplied else outcome  # its outputs are there all the same


# ``import``: an object that exists comes under a step, also one that was never applied.


def import_one(services: Services, deployment: Deployment, request: ImportRequest) -> int:
    """
    Import one object into the selected step, with the current module and inputs, in which it may be
    new, and return the exit code.
    """
    return run(services, deployment, request, _import)


def _import(runner: CommandRunner[ImportRequest], selected: Sequence[str]) -> None:
    store_deployment(runner.session)
    runner.run(selected, partial(_import_into, runner), source=current_module)


def _import_into(runner: CommandRunner[ImportRequest], name: str) -> Outcome:
    (adoption,) = runner.request.adopt
    runner.check_saved(name)
    inputs = runner.steps.values.inputs(runner.deployment.steps[name])
    result = import_object(runner, name, adoption.address, adoption.object_id, inputs)
    return report_operation(runner, name, result, f"imported {adoption.address}")
