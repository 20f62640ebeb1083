"""
``orchestrator backend``: where provider state is kept.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command
from orchestrator.domain.values import replace


@click.group("backend", short_help="Move provider state to another backend.")
def command() -> None:
    """
    Where provider state is kept.

    \b
    Example:
      orchestrator backend move web-service/staging/server
    """


@command.command("move", short_help="Take a provider state to where the blueprint says now.")
@click.argument("target", metavar="TARGET")
@options.approval
@options.lock_timeout
@options.engine
@options.allow_engine_change
@options.run
@run_command
def move(call: RunCall, /) -> int:
    """
    Move the provider state of TARGET (<blueprint>/<environment>/<step>) from the backend that its
    record is bound to, to the one that the blueprint names now. Nothing remote is changed; what is
    left at the old place is not deleted: a local file is kept as evidence of the run.

    \b
    Example:
      orchestrator backend move web-service/staging/server --yes
    """
    from orchestrator.app.commands.backend_move import move_state
    from orchestrator.app.run.request import MoveRequest
    from orchestrator.loading.inputs import InputPolicy

    request = MoveRequest(options=replace(call.options, jobs=1))
    return load_and_run(call, request, move_state, need=InputPolicy.AVAILABLE)
