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
    from pydantic import BaseModel

    from orchestrator.domain.documents import DOCUMENTS
    from orchestrator.domain.record import OperationRecord, RunRecord
    from orchestrator.domain.suggestions import did_you_mean
    from orchestrator.errors import Usage

    known: dict[str, type[BaseModel]] = {
        **DOCUMENTS,
        "operation": OperationRecord,
        "run": RunRecord,
    }
    if name is None:
        click.echo("\n".join(sorted(known)))
        return 0
    if name not in known:
        raise Usage(f"there is no document {name!r}", hint=did_you_mean(name, known))
    click.echo(json.dumps(known[name].model_json_schema(by_alias=True), indent=2))
    return 0
