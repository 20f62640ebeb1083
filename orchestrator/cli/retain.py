"""
``orchestrator retain``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


def _date(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from orchestrator.domain.record.retention import is_date

    if not is_date(text):
        raise click.BadParameter(f"{text!r} is not a date such as 2027-06-30")
    return text


@click.command("retain", short_help="Keep steps when the rest is destroyed.")
@options.blueprint
@options.environment
@options.steps_named
@click.option(
    "--reason", metavar="TEXT", type=options.NON_EMPTY, required=True, help="Why they are kept."
)
@click.option(
    "--owner", metavar="WHO", type=options.NON_EMPTY, required=True, help="Who answers for them."
)
@click.option(
    "--review-by",
    metavar="DATE",
    required=True,
    callback=_date,
    help="When somebody looks at it again, such as 2027-06-30.",
)
@options.at
@options.wait
@options.takeover
@options.verbose
@options.json_lines
@click.pass_obj
def command(invocation: Invocation, /, **given: Any) -> int:
    """
    Keep steps of BLUEPRINT: no destroy touches them, or what they need, until they are released.
    Only what is ok can be retained; retained again, it has a new date of review.

    \b
    Example:
      orchestrator retain web-service -e prod --step dns --reason 'shared zone' --owner net-team
        --review-by 2027-06-30
    """
    from orchestrator.app.commands.retain import retain
    from orchestrator.cli.running import load_and_run
    from orchestrator.loading.values import Need

    return load_and_run(invocation, "retain", retain, given, need=Need.AVAILABLE)
