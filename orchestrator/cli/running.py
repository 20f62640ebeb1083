"""
What the commands that make a run have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from orchestrator.cli.invocation import Invocation, is_interactive

if TYPE_CHECKING:
    from orchestrator.app.orders import Order
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint import Deployment
    from orchestrator.loading.values import Need
    from orchestrator.wiring import Choice

UseCase = Callable[["Services", "Deployment", "Order"], int]


def carry_out(
    invocation: Invocation,
    choice: Choice,
    order: Order,
    use_case: UseCase,
    *,
    need: Need,
    jobs: int | None,
    engine: str | None,
    as_json: bool,
    verbose: bool,
    check_module_versions: bool = True,
) -> int:
    """
    Load, wire and run; the exit code.
    """
    from dataclasses import replace

    from orchestrator import wiring
    from orchestrator.cli.approval import TerminalApprover
    from orchestrator.cli.signals import StopSignals

    where = invocation.place()
    deployment = wiring.deployment(where, choice, need)
    asks = order.verb in ("apply", "destroy") and not order.wishes.approved and not as_json
    interactive = asks and is_interactive()
    if interactive and deployment.protected and order.confirm is None:
        name = click.prompt(
            f"{deployment.environment} is protected. Type its name to {order.verb}", err=True
        )
        order = replace(order, confirm=name)
    with (
        StopSignals().installed() as stop,
        wiring.services(
            where,
            deployment,
            engine=engine,
            sink=invocation.sink(json=as_json, verbose=verbose),
            stop=stop,
            approver=TerminalApprover(stop),
            check_module_versions=check_module_versions,
        ) as services,
    ):
        order = replace(
            order,
            interactive=interactive,
            inputs_given=bool(choice.variables or choice.input_files),
            jobs=jobs or where.settings.jobs,
        )
        return use_case(services, deployment, order)
