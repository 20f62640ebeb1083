"""
``orchestrator reconcile``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.app.run.request import ImportSpec


def adoptions(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> tuple[ImportSpec, ...]:
    """
    The adoptions that the texts name; a usage error for one that names none.
    """
    if not given:
        return ()
    from orchestrator.app.run.request import ImportSpec

    try:
        return tuple(ImportSpec.parse(text) for text in given)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command("reconcile", short_help="Settle what is uncertain from evidence.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@options.orphaned
@click.option(
    "--forget",
    metavar="ADDRESS",
    multiple=True,
    allow_from_autoenv=False,
    help="An object in doubt that is known not to exist, or not to matter; needs --reason.",
)
@click.option(
    "--adopt",
    metavar="ADDRESS=ID",
    multiple=True,
    allow_from_autoenv=False,
    callback=adoptions,
    help="Import the object with this ID at an address in doubt.",
)
@click.option(
    "--untaint",
    metavar="ADDRESS",
    multiple=True,
    allow_from_autoenv=False,
    help="A tainted object that is sound: it is not replaced.",
)
@click.option(
    "--push-errored-state",
    is_flag=True,
    allow_from_autoenv=False,
    help="Save the provider state that the engine could not save.",
)
@click.option(
    "--dismiss-errored-state",
    metavar="REASON",
    type=options.NON_EMPTY,
    allow_from_autoenv=False,
    help="Put that state aside, unsaved; the file is kept with the run.",
)
@click.option(
    "--unlock",
    metavar="LOCK_ID",
    allow_from_autoenv=False,
    help="Release a state lock that a dead run of ours left; needs --reason.",
)
@options.approval
@options.lock_timeout
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
    provider state, a plan with the recorded inputs, and the provider, which is asked for what a
    create may have left. Only the record changes, unless it is asked to change provider state: then
    that comes first, each change recorded before it is made. With --orphaned it is about the steps
    that left the blueprint.

    \b
    Example:
      orchestrator reconcile web-service -e staging
      orchestrator reconcile web-service --forget aws_instance.this --reason 'console shows none'
      orchestrator reconcile web-service --adopt aws_instance.this=i-0a1b2c3d
    """
    from orchestrator.app.commands.reconcile import reconcile
    from orchestrator.cli.running import load_and_run
    from orchestrator.loading.values import Need

    return load_and_run(invocation, "reconcile", reconcile, given, need=Need.AVAILABLE)
