"""
``orchestrator engine info``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.group("engine", short_help="The engine that is used.")
def command() -> None:
    """
    About the engine.

    \b
    Example:
      orchestrator engine info
    """


@command.command("info")
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
    from orchestrator.domain.documents.documents import EngineDocument
    from orchestrator.engine.choose import choose_for
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.listings import engine_text

    project = invocation.project()
    deployment, records = None, []
    if blueprint is not None:
        deployment = load_deployment(
            project, BlueprintSelection(blueprint, environment), InputPolicy.CHECK_ONLY
        )
        # What is wrong with the store is told by those who rely on it.
        with composition.open_store(project, deployment.operations) as store:
            records = store.unwatched.records(deployment.blueprint, deployment.environment)
    used = choose_for(project, engine, deployment, records)
    document = EngineDocument(
        kind=used.kind,
        version=used.version,
        program=used.program,
        source=used.source,
        why=used.why,
    )
    click.echo(document.to_json() if as_json else engine_text(document, paper(sys.stdout)))
    return 0
