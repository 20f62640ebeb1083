"""
``plan``: what an apply or destroy would change. Reads only: no record, remote object or provider
state changes. A step that needs outputs which no plan gives is ``deferred``, never planned with
invented values.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.commands.planner import Planner, PlanResult
from orchestrator.app.run.prepared_steps import (
    SourceOf,
    current_module,
    steps_to_read,
)
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_selection import select_steps
from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.documents.plan import PlanDocument
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.recovery.command_line import command_line


def plan(
    services: Services,
    deployment: Deployment,
    request: PlanRequest,
    *,
    source: SourceOf = current_module,
) -> PlanResult:
    """
    Plan the selected steps, from their modules as ``source`` has them.
    """
    selected = select_steps(deployment, request.options, request.verb)
    affected = request.affected
    if affected is not None:
        selected = tuple(step for step in selected if step in affected)
    with steps_to_read(
        services,
        deployment,
        jobs=request.options.jobs,
        allow_engine_change=request.options.allow_engine_change,
        # What `${run.id}` stands for differs from run to run: a plan has one of its own.
        run_id=services.ids.run_id(services.clock.now()),
    ) as steps:
        return Planner(services, steps, request, source=source).plan(selected)


def with_file(
    document: PlanDocument, deployment: Deployment, file: str, inputs: Sequence[str] = ()
) -> PlanDocument:
    """
    The document with the file that it was saved to, and the command that carries it out; ``inputs``
    are the options that gave the plan its values.
    """
    command = command_line(deployment, document.command, "--plan", file, *inputs)
    offered = NextCommand(command=command, why="changes what was approved, and nothing else")
    return document.model_copy(update={"out": file, "next": (offered,)})
