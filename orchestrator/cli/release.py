"""
``orchestrator release``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("release", short_help="Let go of retained steps.")
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
@options.at
@options.wait
@options.takeover
@options.verbose
@options.json_lines
@click.pass_obj
def command(invocation: Invocation, /, **given: Any) -> int:
    """
    Let go of retained steps of BLUEPRINT: they are ok again, and the next destroy takes them down.

    \b
    Example:
      orchestrator release web-service -e prod --step dns --reason 'moved to the new zone'
    """
    from orchestrator.app.commands.retain import release
    from orchestrator.cli.running import load_and_run
    from orchestrator.loading.values import Need

    return load_and_run(invocation, "release", release, given, need=Need.AVAILABLE)
