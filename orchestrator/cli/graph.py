"""
``orchestrator graph``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.command("graph", short_help="Draw which step needs which.")
@options.blueprint
@options.environment
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "dot", "mermaid", "json"]),
    default="text",
    show_default=True,
    help="How to draw.",
)
@click.pass_obj
def command(invocation: Invocation, blueprint: str, environment: str | None, form: str) -> int:
    """
    Draw the steps of BLUEPRINT in the order of an apply.

    \b
    Example:
      orchestrator graph web-service --format mermaid
    """
    from orchestrator.app.commands.history import graph_document
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.graph import graph_dot, graph_mermaid, graph_text

    outline = load_summary(invocation.project(), BlueprintSelection(blueprint, environment))
    document = graph_document(outline)
    texts = {
        "text": lambda: graph_text(document, paper(sys.stdout)),
        "dot": lambda: graph_dot(document),
        "mermaid": lambda: graph_mermaid(document),
        "json": lambda: document.to_json(),
    }
    click.echo(texts[form]())
    return 0
