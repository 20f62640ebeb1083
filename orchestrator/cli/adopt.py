"""
``orchestrator adopt``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("adopt", short_help="Take existing provider state under records.")
@options.of_blueprint
@options.because(
    "--accept-changes",
    "Adopt it although an apply would change something; it is `error` until that apply.",
)
@options.approval
@options.jobs
@options.engine
@options.run
@run_command
def command(call: RunCall, /, *, accept_changes: str | None) -> int:
    """
    Take the provider state that steps of BLUEPRINT have already, made by somebody else, under
    records. Nothing is changed: a step is adopted only where a plan on it is empty, or where what
    an apply would change is accepted.

    \b
    Example:
      orchestrator adopt web-service -e staging --step network
    """
    from orchestrator.app.commands.adopt import adopt
    from orchestrator.app.run.request import AdoptRequest
    from orchestrator.loading.inputs import InputPolicy

    request = AdoptRequest(options=call.options, accept_changes=accept_changes)
    return load_and_run(call, request, adopt, need=InputPolicy.REQUIRED)
