"""
What the commands that make a run have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, is_interactive

if TYPE_CHECKING:
    from orchestrator.app.run.request import RunRequest, Verb
    from orchestrator.app.services import Services
    from orchestrator.app.steps.planned_step import PlanOptions
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.loading.values import Need
    from orchestrator.project import ProjectContext

UseCase = Callable[["Services", "Deployment", "RunRequest"], int]


def load_and_run(
    invocation: Invocation, verb: Verb, use_case: UseCase, given: Mapping[str, Any], *, need: Need
) -> int:
    """
    Load, wire and run; the exit code. ``given`` are the options by the names of what they set.

    Only a command that needs all inputs works with today's modules; then the engine must be one
    that they accept.
    """
    from orchestrator import composition
    from orchestrator.loading.values import Need

    project, selection = invocation.project(), options.blueprint_selection(given)
    if given.get("orphaned"):
        from orchestrator.orphans import deployment_with_orphans

        deployment = deployment_with_orphans(project, selection, whole=verb == "reconcile")
    else:
        deployment = composition.load_deployment(project, selection, need)
    return run_use_case(
        invocation,
        verb,
        use_case,
        given,
        project=project,
        deployment=deployment,
        check_module_versions=need is Need.VALUES,
    )


def run_use_case(
    invocation: Invocation,
    verb: Verb,
    use_case: UseCase,
    given: Mapping[str, Any],
    *,
    project: ProjectContext,
    deployment: Deployment,
    check_module_versions: bool = True,
    remark: str = "",
) -> int:
    """
    Wire and run what was loaded; the exit code. ``remark`` is a warning about how it was loaded.
    """
    from dataclasses import replace

    from orchestrator import composition
    from orchestrator.cli.approval import TerminalApprover
    from orchestrator.cli.signals import StopSignals

    order = request_of(verb, given)
    asks = order.mutates and not order.plan_options.approved and not given["as_json"]
    interactive = asks and is_interactive()
    if interactive and deployment.protected and order.confirm is None:
        name = click.prompt(
            f"{deployment.environment} is protected. Type its name to {verb}", err=True
        )
        order = replace(order, confirm=name)
    with (
        StopSignals().installed() as stop,
        composition.open_services(
            project,
            deployment,
            engine=given.get("engine"),
            sink=invocation.sink(json=given["as_json"], verbose=given["verbose"]),
            stop=stop,
            approver=TerminalApprover(stop),
            check_module_versions=check_module_versions,
        ) as services,
    ):
        if remark:
            services.note(remark, level="warning")
        order = replace(
            order,
            interactive=interactive,
            inputs_given=bool(given.get("variables") or given.get("input_files")),
            jobs=given.get("jobs") or project.settings.jobs,
        )
        return use_case(services, deployment, order)


def request_of(verb: Verb, given: Mapping[str, Any]) -> RunRequest:
    """
    The order that the options of a command add up to: each sets the field of its name.
    """
    from dataclasses import fields

    from orchestrator.app.run.request import RunRequest
    from orchestrator.app.schedule import OnFailure

    known = {field.name for field in fields(RunRequest)} & given.keys() - {"jobs", "on_failure"}
    picked = {name: given[name] for name in known}
    if "on_failure" in given:
        picked["on_failure"] = OnFailure(given["on_failure"])
    return RunRequest(verb=verb, plan_options=plan_options_of(given), **picked)


def plan_options_of(given: Mapping[str, Any]) -> PlanOptions:
    """
    What the options of a command say to the engine.
    """
    from dataclasses import fields

    from orchestrator.app.steps.planned_step import PlanOptions

    known = {field.name for field in fields(PlanOptions)} & given.keys()
    return PlanOptions(**{name: given[name] for name in known})
