"""
``orchestrator schema``.
"""

from __future__ import annotations

import json

import click


@click.command("schema", short_help="The JSON Schema of a document.")
@click.argument("name", metavar="[NAME]", required=False)
def command(name: str | None) -> int:
    """
    Print the JSON Schema of a document; without NAME the names there are.

    \b
    Example:
      orchestrator schema status
    """
    from orchestrator.domain.documents.schemas import DOCUMENTS
    from orchestrator.domain.text import did_you_mean
    from orchestrator.errors import Usage

    if name is None:
        click.echo("\n".join(sorted(DOCUMENTS)))
        return 0
    if name not in DOCUMENTS:
        raise Usage(f"there is no document {name!r}", hint=did_you_mean(name, DOCUMENTS))
    click.echo(json.dumps(DOCUMENTS[name].model_json_schema(by_alias=True), indent=2))
    return 0
