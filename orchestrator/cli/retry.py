"""
``orchestrator retry``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, run_command


@click.command("retry", short_help="Do what a failed run left undone, from what it had.")
@options.blueprint
@options.environment
@options.selection
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="The failed run; by default the one that the records of the steps name.",
)
@options.accept_changed_secret
@options.rerun
@run_command
def command(
    call: RunCall, /, *, from_run: str | None, accept_changed_secret: tuple[str, ...]
) -> int:
    """
    Do what a failed run of BLUEPRINT left undone, from the modules, inputs and provider versions
    that it had, whatever has become of the files since. Steps that are still ok are left alone;
    current secrets are used. Refused while something is in doubt.

    \b
    Example:
      orchestrator retry web-service -e staging --reason 'the quota was raised'
      orchestrator retry web-service --from-run 20261129T123000123Z-3f9a1c --yes
    """
    from orchestrator.app.commands.rerun import retry
    from orchestrator.app.run.request import RetryRequest
    from orchestrator.cli.rerun import run_again

    request = RetryRequest(
        options=call.options, from_run=from_run, accept_changed_secret=accept_changed_secret
    )
    return run_again(call, request, retry)
