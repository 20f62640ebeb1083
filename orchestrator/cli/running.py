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
    from orchestrator.app.run.request import Order, Verb
    from orchestrator.app.services import Services
    from orchestrator.app.steps.planned_step import PlanOptions
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.loading.values import Need
    from orchestrator.wiring import Place

UseCase = Callable[["Services", "Deployment", "Order"], int]


def carry_out(
    invocation: Invocation, verb: Verb, use_case: UseCase, given: Mapping[str, Any], *, need: Need
) -> int:
    """
    Load, wire and run; the exit code. ``given`` are the options by the names of what they set.

    Only a command that needs all inputs works with today's modules; then the engine must be one
    that they accept.
    """
    from orchestrator import wiring
    from orchestrator.loading.values import Need

    where, choice = invocation.place(), options.choice(given)
    if given.get("orphaned"):
        from orchestrator.orphaned import orphaned

        deployment = orphaned(where, choice, whole=verb == "reconcile")
    else:
        deployment = wiring.deployment(where, choice, need)
    return conduct(
        invocation,
        verb,
        use_case,
        given,
        where=where,
        deployment=deployment,
        check_module_versions=need is Need.VALUES,
    )


def conduct(
    invocation: Invocation,
    verb: Verb,
    use_case: UseCase,
    given: Mapping[str, Any],
    *,
    where: Place,
    deployment: Deployment,
    check_module_versions: bool = True,
    remark: str = "",
) -> int:
    """
    Wire and run what was loaded; the exit code. ``remark`` is a warning about how it was loaded.
    """
    from dataclasses import replace

    from orchestrator import wiring
    from orchestrator.cli.approval import TerminalApprover
    from orchestrator.cli.signals import StopSignals

    order = order_of(verb, given)
    asks = order.mutates and not order.wishes.approved and not given["as_json"]
    interactive = asks and is_interactive()
    if interactive and deployment.protected and order.confirm is None:
        name = click.prompt(
            f"{deployment.environment} is protected. Type its name to {verb}", err=True
        )
        order = replace(order, confirm=name)
    with (
        StopSignals().installed() as stop,
        wiring.services(
            where,
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
            jobs=given.get("jobs") or where.settings.jobs,
        )
        return use_case(services, deployment, order)


def order_of(verb: Verb, given: Mapping[str, Any]) -> Order:
    """
    The order that the options of a command add up to: each sets the field of its name.
    """
    from dataclasses import fields

    from orchestrator.app.run.request import Order
    from orchestrator.app.schedule import OnFailure

    known = {field.name for field in fields(Order)} & given.keys() - {"jobs", "on_failure"}
    picked = {name: given[name] for name in known}
    if "on_failure" in given:
        picked["on_failure"] = OnFailure(given["on_failure"])
    return Order(verb=verb, wishes=wishes_of(given), **picked)


def wishes_of(given: Mapping[str, Any]) -> PlanOptions:
    """
    What the options of a command say to the engine.
    """
    from dataclasses import fields

    from orchestrator.app.steps.planned_step import PlanOptions

    known = {field.name for field in fields(PlanOptions)} & given.keys()
    return PlanOptions(**{name: given[name] for name in known})
