"""
``orchestrator rollback``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, run_command


@click.command("rollback", short_help="Go back to what a named run applied.")
@options.blueprint
@options.environment
@click.option(
    "--to",
    "from_run",
    metavar="RUN",
    required=True,
    allow_from_autoenv=False,
    help="The run to go back to; the steps ended ok in it and were verified.",
)
@options.selection
@options.because(
    "--unverified", "Also to steps that had no checks in that run; the reason is recorded."
)
@options.accept_changed_secret
@options.rerun
@run_command
def command(
    call: RunCall,
    /,
    *,
    from_run: str,
    unverified: str | None,
    accept_changed_secret: tuple[str, ...],
) -> int:
    """
    Apply the steps of BLUEPRINT as a run had them that ended ok and verified: its modules, inputs,
    provider versions and checks, also if the files are gone. Current secrets are used. The checks
    run again at the end.

    \b
    Example:
      orchestrator rollback web-service -e prod --to 20261129T123000123Z-3f9a1c --reason INC-42
    """
    from orchestrator.app.commands.rerun import rollback
    from orchestrator.app.run.request import RollbackRequest
    from orchestrator.cli.rerun import run_again

    request = RollbackRequest(
        options=call.options,
        from_run=from_run,
        unverified=unverified,
        accept_changed_secret=accept_changed_secret,
    )
    return run_again(call, request, rollback)
