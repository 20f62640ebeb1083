"""
``orchestrator retain`` and ``release``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


def _date(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from orchestrator.domain.text import is_date

    if not is_date(text):
        raise click.BadParameter(f"{text!r} is not a date such as 2027-06-30")
    return text


@click.command("retain", short_help="Retain steps when the rest is destroyed.")
@options.blueprint
@options.environment
@options.steps_named
@click.option(
    "--reason", metavar="TEXT", type=options.NON_EMPTY, required=True, help="Why they are retained."
)
@click.option(
    "--owner",
    metavar="WHO",
    type=options.NON_EMPTY,
    required=True,
    help="Who is responsible for them.",
)
@click.option(
    "--review-by",
    metavar="DATE",
    required=True,
    callback=_date,
    help="The date of the next review, such as 2027-06-30.",
)
@options.confirm
@options.at
@options.wait
@options.takeover
@options.verbose
@options.json_lines
@run_command
def retain_command(call: RunCall, /, *, owner: str, review_by: str) -> int:
    """
    Retain steps of BLUEPRINT: no destroy touches them, or their upstream steps, until they are
    released. Only steps that are ok can be retained; repeat the command to set a new review date.

    \b
    Example:
      orchestrator retain web-service -e prod --step dns --reason 'shared zone' --owner net-team
        --review-by 2027-06-30
    """
    from orchestrator.app.commands.retain import retain
    from orchestrator.app.run.request import RetainRequest

    request = RetainRequest(options=call.options, owner=owner, review_by=review_by)
    return load_and_run(call, request, retain)


@click.command("release", short_help="Stop retaining steps.")
@options.blueprint
@options.environment
@options.steps_named
@click.option(
    "--reason",
    metavar="TEXT",
    type=options.NON_EMPTY,
    required=True,
    help="Why they are no longer retained.",
)
@options.orphaned
@options.confirm
@options.at
@options.wait
@options.takeover
@options.verbose
@options.json_lines
@run_command
def release_command(call: RunCall) -> int:
    """
    Stop retaining steps of BLUEPRINT: they are ok again, and the next destroy includes them.

    \b
    Example:
      orchestrator release web-service -e prod --step dns --reason 'moved to the new zone'
    """
    from orchestrator.app.commands.retain import release
    from orchestrator.app.run.request import ReleaseRequest

    request = ReleaseRequest(options=call.options)
    return load_and_run(call, request, release)
