"""
``orchestrator verify``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("verify", short_help="Run the checks only and record their verdict.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@options.jobs
@options.engine
@options.at
@options.wait
@options.takeover
@options.reason
@options.verbose
@options.json_lines
@click.pass_obj
def command(invocation: Invocation, /, **given: Any) -> int:
    """
    Run the `verify` checks of what is applied, and record the verdict. Nothing else changes.

    \b
    Example:
      orchestrator verify web-service -e staging
    """
    from orchestrator.app.commands.verify import verify
    from orchestrator.cli.running import load_and_run
    from orchestrator.loading.values import Need

    return load_and_run(invocation, "verify", verify, given, need=Need.AVAILABLE)
