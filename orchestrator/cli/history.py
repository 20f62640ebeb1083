"""
``orchestrator history``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.command("history", short_help="Every entry of a target's record.")
@click.argument("target", metavar="TARGET")
@options.verbose
@options.json_document
@click.pass_obj
def command(invocation: Invocation, target: str, verbose: bool, as_json: bool) -> int:
    """
    Show every entry of TARGET (<blueprint>/<environment>/<step>), newest first.

    \b
    Example:
      orchestrator history web-service/default/server
    """
    from orchestrator import composition
    from orchestrator.app.commands.history import history_of
    from orchestrator.domain.target import Target
    from orchestrator.errors import Usage
    from orchestrator.loading.catalog import summary_of_target
    from orchestrator.views.runs import history_text

    try:
        parsed = Target.parse(target)
    except ValueError as exc:
        raise Usage(str(exc), hint="`orchestrator status --all` lists the targets") from exc
    project = invocation.project()
    summary = summary_of_target(project, parsed)
    with composition.open_read_context(project, summary.operations if summary else None) as reader:
        document = history_of(reader, parsed)
    shown = paper(sys.stdout, verbose=verbose)
    click.echo(document.to_json() if as_json else history_text(document, shown))
    return 0
