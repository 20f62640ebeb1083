"""
``orchestrator redeploy``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("redeploy", short_help="A new attempt from the files as they are now.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="The run that this one comes from; by default the failed one that the records name.",
)
@options.rerun
@click.pass_obj
def command(invocation: Invocation, /, **given: Any) -> int:
    """
    Apply the steps of BLUEPRINT from blueprint, modules and inputs as they are now, as a new
    attempt after a failed run. Refused while something is in doubt.

    \b
    Example:
      orchestrator redeploy web-service -e staging --reason 'fixed the instance type'
    """
    from orchestrator.app.commands.rerun import redeploy
    from orchestrator.cli.running import load_and_run
    from orchestrator.loading.values import Need

    return load_and_run(invocation, "redeploy", redeploy, given, need=Need.VALUES)
