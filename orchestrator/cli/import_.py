"""
``orchestrator import``.
"""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("import", short_help="Take an object that exists into a step.")
@click.argument("target", metavar="TARGET")
@click.argument("address", metavar="ADDRESS")
@click.argument("object_id", metavar="ID")
@options.inputs
@options.approval
@options.lock_timeout
@options.engine
@options.allow_engine_change
@options.wait
@options.takeover
@options.at
@options.reason
@options.verbose
@options.json_lines
@click.pass_obj
def command(
    invocation: Invocation, /, target: str, address: str, object_id: str, **given: Any
) -> int:
    """
    Import the object with this provider ID at ADDRESS of TARGET (<blueprint>/<environment>/<step>),
    with its current module and inputs. Nothing remote is changed. The step keeps its status; one
    that was never applied is `error` until an apply or reconcile finds it as described.

    \b
    Example:
      orchestrator import web-service/staging/server aws_instance.this i-0a1b2c3d
    """
    from orchestrator.app.commands.import_ import import_one
    from orchestrator.app.run.request import ImportSpec
    from orchestrator.cli.running import load_and_run
    from orchestrator.errors import Usage
    from orchestrator.loading.values import Need

    if not (address and object_id):
        raise Usage("ADDRESS and ID cannot be empty", hint="is a variable of the shell not set?")
    chosen = (
        given
        | options.target(invocation, target)
        | {"adopt": (ImportSpec(address, object_id),), "jobs": 1}
    )
    return load_and_run(invocation, "import", import_one, chosen, need=Need.VALUES)
