"""
``orchestrator import`` and ``adopt``: start recording existing objects and provider state.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command
from orchestrator.domain.values import replace


@click.command("import", short_help="Import an existing object into a step.")
@click.argument("target", metavar="TARGET")
@click.argument("address", metavar="ADDRESS")
@click.argument("object_id", metavar="ID")
@options.inputs
@options.approval
@options.lock_timeout
@options.engine
@options.allow_engine_change
@options.run
@run_command
def import_command(call: RunCall, /, *, address: str, object_id: str) -> int:
    """
    Import the object with this provider ID at ADDRESS of TARGET (<blueprint>/<environment>/<step>),
    with its current module and inputs. No remote object is changed. The step keeps its status; one
    that was never applied is `error` until an apply or reconcile finds no differences.

    \b
    Example:
      orchestrator import web-service/staging/server aws_instance.this i-0a1b2c3d
    """
    from orchestrator.app.commands.imports import import_one
    from orchestrator.app.run.request import ImportRequest, ImportSpec
    from orchestrator.errors import Usage

    if not (address and object_id):
        raise Usage("ADDRESS and ID cannot be empty", hint="is a variable of the shell not set?")
    options = replace(call.options, jobs=1)
    request = ImportRequest(options=options, adopt=(ImportSpec(address, object_id),))
    return load_and_run(call, request, import_one)


@click.command("adopt", short_help="Start recording existing state.")
@options.of_blueprint
@options.because(
    "--accept-changes",
    "Adopt a step although an apply would change it; it is `error` until that apply.",
)
@options.approval
@options.jobs
@options.engine
@options.run
@run_command
def adopt_command(call: RunCall, /, *, accept_changes: str | None) -> int:
    """
    Start recording existing state of steps of BLUEPRINT, made by somebody else. Nothing is changed:
    a step is adopted only if its plan is empty, or if the changes of an apply are accepted.

    \b
    Example:
      orchestrator adopt web-service -e staging --step network
    """
    from orchestrator.app.commands.imports import adopt
    from orchestrator.app.run.request import AdoptRequest

    request = AdoptRequest(options=call.options, accept_changes=accept_changes)
    return load_and_run(call, request, adopt)
