"""
``import``: an object that exists comes under a step, also one that was never applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import current_module
from orchestrator.app.run.request import ImportRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepPolicy, StepRunner
from orchestrator.app.run.stored_deployment import store_deployment
from orchestrator.app.schedule import Outcome
from orchestrator.app.services import Services
from orchestrator.app.surgery.imports import import_object
from orchestrator.app.surgery.state_operation import report_operation
from orchestrator.domain.blueprint.blueprint import Deployment


def import_one(services: Services, deployment: Deployment, request: ImportRequest) -> int:
    """
    Import the one object of the request into the one step selected, with the module and inputs of
    today: it may be new in them. The exit code.
    """
    return run(services, deployment, request, partial(_work, request))


def _work(request: ImportRequest, runner: StepRunner, selected: Sequence[str]) -> None:
    runner.read_records()
    store_deployment(runner)
    runner.run(selected, StepPolicy(partial(_import_into, request, runner), source=current_module))


def _import_into(request: ImportRequest, runner: StepRunner, name: str) -> Outcome:
    (adoption,) = request.adopt
    runner.check_saved(name)
    inputs = runner.steps.values.inputs(runner.deployment.steps[name])
    result = import_object(runner, name, adoption.address, adoption.object_id, inputs)
    return report_operation(runner, name, result, f"imported {adoption.address}")
