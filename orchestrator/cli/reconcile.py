"""
``orchestrator reconcile``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("reconcile", short_help="Settle what is uncertain from evidence.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option(
    "--forget",
    metavar="ADDRESS",
    multiple=True,
    allow_from_autoenv=False,
    help="An object in doubt that is known not to exist, or not to matter; needs --reason.",
)
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
    Settle interrupted runs and objects in doubt: from the engine's answer, its journal, the
    provider state and a plan with the recorded inputs. Only the record changes.

    \b
    Example:
      orchestrator reconcile web-service -e staging
      orchestrator reconcile web-service --forget aws_instance.this --reason 'console shows none'
    """
    from orchestrator.app.reconcile import reconcile
    from orchestrator.cli.running import carry_out
    from orchestrator.loading.values import Need

    return carry_out(invocation, "reconcile", reconcile, given, need=Need.AVAILABLE)
