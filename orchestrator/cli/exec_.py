"""
``orchestrator exec``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load, load_and_run, reading_services, run_command
from orchestrator.domain.values import replace

if TYPE_CHECKING:
    from orchestrator.domain.engine_commands import EngineCommand


@click.command(
    "exec",
    short_help="Run a command of the engine in a target's directory.",
)
@click.argument("target", metavar="TARGET")
@click.argument("words", metavar="-- ARGS", nargs=-1, type=click.UNPROCESSED)
@options.inputs
@options.orphaned
@options.approval
@options.engine
@options.at
@options.wait
@options.takeover
@options.reason
@options.verbose
@run_command
def command(call: RunCall, /, *, words: tuple[str, ...]) -> int:
    """
    Run a command of the engine in the directory of TARGET (<blueprint>/<environment>/<step>), with
    its recorded inputs. What may change provider state needs --yes and is recorded before and
    after; apply and destroy are refused. Paths are from that directory. What is shown is masked:
    `state pull` by it is no backup. With --orphaned the step has left the blueprint.

    \b
    Example:
      orchestrator exec web-service/staging/server -- state list
      orchestrator exec web-service/staging/server --yes -- state mv aws_a.old aws_a.new
    """
    from orchestrator.app.commands.exec_ import execute
    from orchestrator.app.run.request import ExecRequest
    from orchestrator.domain.engine_commands import EngineCommand
    from orchestrator.errors import Usage
    from orchestrator.loading.inputs import InputPolicy

    engine_command = EngineCommand.parse(words)
    if engine_command.takes_variables and call.options.inputs_given:
        raise Usage(
            "the command works with the inputs that are recorded, not with -i or --input-file",
            hint="`orchestrator plan` and `apply` take them",
        )
    if engine_command.mutates:
        request = ExecRequest(options=replace(call.options, jobs=1), words=words)
        return load_and_run(call, request, execute, need=InputPolicy.AVAILABLE)
    if call.options.at is not None:
        raise Usage("--at is for what may change provider state, and this only reads")
    return _look(call, engine_command)


def _look(call: RunCall, engine_command: EngineCommand) -> int:
    from orchestrator.app.commands.exec_ import look
    from orchestrator.app.run.step_selection import match_steps
    from orchestrator.loading.inputs import InputPolicy

    deployment = load(call, InputPolicy.AVAILABLE, whole=True)
    (step,) = match_steps(deployment, call.options, "exec")
    with reading_services(
        call.invocation, call.project, deployment, engine=call.engine
    ) as services:
        return look(
            services,
            deployment,
            step,
            engine_command,
            say=partial(click.echo, file=sys.stdout),
            say_error=partial(click.echo, err=True),
        )
