"""
``orchestrator redeploy``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("redeploy", short_help="A new attempt from the files as they are now.")
@options.of_blueprint
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="The run that this one comes from; by default the failed one that the records name.",
)
@options.rerun
@run_command
def command(call: RunCall, /, *, from_run: str | None) -> int:
    """
    Apply the steps of BLUEPRINT from blueprint, modules and inputs as they are now, as a new
    attempt after a failed run. Refused while something is in doubt.

    \b
    Example:
      orchestrator redeploy web-service -e staging --reason 'fixed the instance type'
    """
    from orchestrator.app.commands.rerun import redeploy
    from orchestrator.app.run.request import RedeployRequest
    from orchestrator.loading.inputs import InputPolicy

    request = RedeployRequest(options=call.options, from_run=from_run)
    return load_and_run(call, request, redeploy, need=InputPolicy.REQUIRED)
