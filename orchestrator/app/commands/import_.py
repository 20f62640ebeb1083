"""
``import``: an object that exists comes under a step, also one that was never applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.run.prepared_steps import as_it_is
from orchestrator.app.run.request import Order
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import keep_deployment
from orchestrator.app.services import Services
from orchestrator.app.surgery.requested_operations import import_object
from orchestrator.app.surgery.state_operation import report
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.errors import OrchestratorError


def import_one(services: Services, deployment: Deployment, order: Order) -> int:
    """
    Import the one object of the order into the one step selected, with the module and inputs of
    today: it may be new in them. The exit code.
    """
    return run(services, deployment, order, _work)


def _work(crew: StepRunner, selected: Sequence[str]) -> None:
    crew.read_records()
    (name,), (wanted,) = selected, crew.order.adopt
    keep_deployment(crew)
    failures = crew.steps.prepare_all([name], as_it_is) | crew.settle_all()
    if failures:
        crew.end_before_work([name], failures)
        return
    started = crew.services.clock.monotonic()
    try:
        crew.check_saved(name)
        inputs = crew.steps.inputs(crew.deployment.steps[name])
        done = import_object(crew, name, wanted.address, wanted.object_id, inputs)
    except OrchestratorError as exc:
        crew.end_with_error(name, started, exc, 1)
        return
    report(crew, name, started, done, f"imported {wanted.address}")
