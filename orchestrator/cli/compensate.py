"""
``orchestrator compensate``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command


@click.command("compensate", short_help="Undo what steps have done, as they declare it.")
@options.of_blueprint
@options.because("--repeat", "Carry it out although it was, or may have been, carried out already.")
@options.on_failure("go on with what does not wait for it")
@options.approval
@options.jobs
@options.by_engine
@options.accept_replaced
@options.run
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
