"""
``orchestrator graph``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper
from orchestrator.cli.options import affected, affected_options


@click.command("graph", short_help="Draw which step needs which.")
@options.blueprint
@options.environment
@affected_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "dot", "mermaid", "json", "matrix"]),
    default="text",
    show_default=True,
    help="How to draw; as a matrix: one line of JSON for the jobs of a pipeline.",
)
@click.pass_obj
def command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    form: str,
    *,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
) -> int:
    """
    Draw the steps of BLUEPRINT in the order of an apply.

    A matrix has one entry a step for jobs of their own, each `apply --step STEP`; those of one wave
    may run side by side if they give the same --request-token.

    \b
    Example:
      orchestrator graph web-service --format mermaid
      orchestrator graph web-service --changed-since origin/main --format matrix
    """
    from orchestrator.app.commands.history import graph_document
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.listings import graph_dot, graph_matrix, graph_mermaid, graph_text

    project = invocation.project()
    selection = BlueprintSelection(blueprint, environment)
    touched = None
    if changed_since is not None or affected_by:
        from orchestrator.loading.deployment import load_deployment
        from orchestrator.loading.inputs import InputPolicy

        deployment = load_deployment(project, selection, InputPolicy.AVAILABLE)
        touched = affected(project, deployment, changed_since, affected_by)
    document = graph_document(load_summary(project, selection), touched)
    texts = {
        "text": lambda: graph_text(document, paper(sys.stdout)),
        "dot": lambda: graph_dot(document),
        "mermaid": lambda: graph_mermaid(document),
        "json": lambda: document.to_json(),
        "matrix": lambda: graph_matrix(document),
    }
    click.echo(texts[form]())
    return 0
