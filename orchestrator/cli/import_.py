"""
``orchestrator import``.
"""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command
from orchestrator.domain.values import replace


@click.command("import", short_help="Take an object that exists into a step.")
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
def command(call: RunCall, /, *, address: str, object_id: str) -> int:
    """
    Import the object with this provider ID at ADDRESS of TARGET (<blueprint>/<environment>/<step>),
    with its current module and inputs. Nothing remote is changed. The step keeps its status; one
    that was never applied is `error` until an apply or reconcile finds it as described.

    \b
    Example:
      orchestrator import web-service/staging/server aws_instance.this i-0a1b2c3d
    """
    from orchestrator.app.commands.import_ import import_one
    from orchestrator.app.run.request import ImportRequest, ImportSpec
    from orchestrator.errors import Usage
    from orchestrator.loading.inputs import InputPolicy

    if not (address and object_id):
        raise Usage("ADDRESS and ID cannot be empty", hint="is a variable of the shell not set?")
    options = replace(call.options, jobs=1)
    request = ImportRequest(options=options, adopt=(ImportSpec(address, object_id),))
    return load_and_run(call, request, import_one, need=InputPolicy.REQUIRED)
