"""
``orchestrator verify``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("verify", short_help="Run the checks only and record their verdict.")
@options.of_blueprint
@options.jobs
@options.engine
@options.run
@run_command
def command(call: RunCall) -> int:
    """
    Run the `verify` checks of what is applied, and record the verdict. Nothing else changes.

    \b
    Example:
      orchestrator verify web-service -e staging
    """
    from orchestrator.app.commands.verify import verify
    from orchestrator.app.run.request import VerifyRequest
    from orchestrator.loading.inputs import InputPolicy

    request = VerifyRequest(options=call.options)
    return load_and_run(call, request, verify, need=InputPolicy.AVAILABLE)
