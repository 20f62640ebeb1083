"""
``orchestrator outputs``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.command("outputs", short_help="The outputs of the steps, as recorded.")
@options.blueprint
@options.environment
@options.selection
@options.json_document
@click.pass_obj
def command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Show the outputs of the steps of BLUEPRINT that their records know. Sensitive ones are named
    only: `orchestrator exec TARGET -- output` asks the engine.

    \b
    Example:
      orchestrator outputs web-service -e staging
      orchestrator outputs web-service --step network --json
    """
    from orchestrator import composition
    from orchestrator.app.commands.status import outputs_of
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.outputs import outputs_text

    project = invocation.project()
    summary = load_summary(project, BlueprintSelection(blueprint, environment))
    selected = summary.graph.select_some(steps, exclude) if steps or exclude else None
    with composition.open_read_context(project, summary.operations) as reader:
        document = outputs_of(reader, summary, selected)
    click.echo(document.to_json() if as_json else outputs_text(document, paper(sys.stdout)))
    return 0
