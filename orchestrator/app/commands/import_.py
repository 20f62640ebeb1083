"""
``import``: an object that exists comes under a step, also one that was never applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.app.run.prepared_steps import current_module
from orchestrator.app.run.request import ImportRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import store_deployment
from orchestrator.app.services import Services
from orchestrator.app.surgery.requested_operations import import_object
from orchestrator.app.surgery.state_operation import report_operation
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.errors import OrchestratorError


def import_one(services: Services, deployment: Deployment, request: ImportRequest) -> int:
    """
    Import the one object of the request into the one step selected, with the module and inputs of
    today: it may be new in them. The exit code.
    """
    return run(services, deployment, request, partial(_work, request))


def _work(request: ImportRequest, runner: StepRunner, selected: Sequence[str]) -> None:
    runner.read_records()
    (name,), (wanted,) = selected, request.adopt
    store_deployment(runner)
    failures = runner.steps.prepare_all([name], current_module) | runner.settle_all()
    if failures:
        runner.end_before_work([name], failures)
        return
    started = runner.services.clock.monotonic()
    try:
        runner.check_saved(name)
        inputs = runner.steps.inputs(runner.deployment.steps[name])
        done = import_object(runner, name, wanted.address, wanted.object_id, inputs)
    except OrchestratorError as exc:
        runner.end_with_error(name, started, exc, 1)
        return
    report_operation(runner, name, started, done, f"imported {wanted.address}")
