"""
``orchestrator compensate``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("compensate", short_help="Undo what steps have done, as they declare it.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@options.at
@click.option(
    "--repeat",
    metavar="REASON",
    type=options.NON_EMPTY,
    allow_from_autoenv=False,
    help="Carry it out although it was, or may have been, carried out already.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    help="After a failure start nothing more, or go on with what does not wait for it.",
)
@options.approval
@options.jobs
@options.engine
@options.allow_engine_change
@options.engine_passthrough
@options.accept_replaced
@options.wait
@options.takeover
@options.reason
@options.verbose
@options.json_lines
@run_command
def command(call: RunCall, /, *, repeat: str | None) -> int:
    """
    Carry out what the steps of BLUEPRINT declare as `compensate`: dependents first, unless they say
    otherwise by `after`.

    Only steps with completed work, each once: what is compensated stays so until the next apply.
    After a failure, fix the cause and run the same command again. Needs a --reason.

    \b
    Example:
      orchestrator compensate web-service -e staging --reason 'release 41 is withdrawn'
    """
    from orchestrator.app.commands.compensate import compensate
    from orchestrator.app.run.request import CompensateRequest
    from orchestrator.loading.inputs import InputPolicy

    request = CompensateRequest(options=call.options, repeat=repeat)
    return load_and_run(call, request, compensate, need=InputPolicy.AVAILABLE)
