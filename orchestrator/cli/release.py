"""
``orchestrator release``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("release", short_help="Stop retaining steps.")
@options.blueprint
@options.environment
@options.steps_named
@click.option(
    "--reason",
    metavar="TEXT",
    type=options.NON_EMPTY,
    required=True,
    help="Why they are no longer kept.",
)
@options.orphaned
@options.confirm
@options.at
@options.wait
@options.takeover
@options.verbose
@options.json_lines
@run_command
def command(call: RunCall) -> int:
    """
    Stop retaining steps of BLUEPRINT: they are ok again, and the next destroy takes them down.

    \b
    Example:
      orchestrator release web-service -e prod --step dns --reason 'moved to the new zone'
    """
    from orchestrator.app.commands.retain import release
    from orchestrator.app.run.request import ReleaseRequest
    from orchestrator.loading.inputs import InputPolicy

    request = ReleaseRequest(options=call.options)
    return load_and_run(call, request, release, need=InputPolicy.AVAILABLE)
