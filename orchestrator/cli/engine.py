"""
``orchestrator engine`` and ``exec``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, print_document
from orchestrator.cli.running import RunCall, load, load_and_run, reading_services, run_command
from orchestrator.domain.values import replace

if TYPE_CHECKING:
    from orchestrator.domain.engine_commands import EngineCommand


@click.group("engine", short_help="Show the engine that would be used.")
def engine_command() -> None:
    """
    Inspect the engine.

    \b
    Example:
      orchestrator engine info
    """


@engine_command.command("info")
@click.argument("blueprint", metavar="[BLUEPRINT]", required=False)
@options.environment
@options.engine
@options.json_document
@click.pass_obj
def info(
    invocation: Invocation,
    blueprint: str | None,
    environment: str | None,
    engine: str | None,
    as_json: bool,
) -> int:
    """
    Print which engine would be used, for BLUEPRINT or in general, and why.

    \b
    Example:
      orchestrator engine info
      orchestrator engine info web-service -e prod --json
    """
    from orchestrator import composition
    from orchestrator.domain.blueprint.blueprint import EngineRequirement
    from orchestrator.domain.documents.documents import EngineDocument
    from orchestrator.engine.choose import choose_for
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.listings import engine_text

    project = invocation.project()
    requirement, records = EngineRequirement(), []
    if blueprint is not None:
        deployment = load_deployment(
            project, BlueprintSelection(blueprint, environment), InputPolicy.CHECK_ONLY
        )
        requirement = deployment.engine
        # What is wrong with the store is told by those who rely on it.
        with composition.open_store(project, deployment.operations) as store:
            records = store.unwatched.records(deployment.blueprint, deployment.environment)
    used = choose_for(project, engine, requirement, records)
    document = EngineDocument(
        kind=used.kind,
        version=used.version,
        program=used.program,
        source=used.source,
        why=used.why,
    )
    print_document(document, engine_text, as_json=as_json)
    return 0


@click.command(
    "exec",
    short_help="Run an engine command in a target's directory.",
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
def exec_command(call: RunCall, /, *, words: tuple[str, ...]) -> int:
    """
    Run an engine command in the directory of TARGET (<blueprint>/<environment>/<step>), with its
    recorded inputs. A command that may change provider state needs --yes and is recorded before and
    after; apply and destroy are refused. Paths are relative to that directory. Output is masked, so
    that `state pull` is no backup. With --orphaned, TARGET is no longer in the blueprint.

    \b
    Example:
      orchestrator exec web-service/staging/server -- state list
      orchestrator exec web-service/staging/server --yes -- state mv aws_a.old aws_a.new
    """
    from orchestrator.app.commands.exec_ import execute
    from orchestrator.app.run.request import ExecRequest
    from orchestrator.domain.engine_commands import EngineCommand
    from orchestrator.errors import Usage

    engine_command = EngineCommand.parse(words)
    if engine_command.takes_variables and call.options.inputs_given:
        raise Usage(
            "the command works with the inputs that are recorded, not with -i or --input-file",
            hint="`orchestrator plan` and `apply` take them",
        )
    if engine_command.mutates:
        request = ExecRequest(options=replace(call.options, jobs=1), words=words)
        return load_and_run(call, request, execute)
    if call.options.at is not None:
        raise Usage("--at is for what may change provider state, and this only reads")
    return _look(call, engine_command)


def _look(call: RunCall, engine_command: EngineCommand) -> int:
    from orchestrator.app.commands.exec_ import look
    from orchestrator.app.run.request import match_steps
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
