"""
``orchestrator recover``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper
from orchestrator.cli.running import recorded_summary


@click.command("recover", short_help="The facts about every step, and what is safe to do now.")
@options.blueprint
@options.environment
@options.selection
@options.verbose
@options.json_document
@click.pass_obj
def recover_command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Show what is known of BLUEPRINT, and for each step what can be done: wait, reconcile, verify,
    retry, redeploy, rollback, compensate, destroy, or look by hand; each with its reason and the
    exact command. Nothing is changed, and a command is refused if its step has moved on since.

    \b
    Example:
      orchestrator recover web-service -e staging
      orchestrator recover web-service --step server --json
    """
    from orchestrator import composition
    from orchestrator.app.commands.recover import recover
    from orchestrator.app.inspection.read_context import select_targets
    from orchestrator.views.recovery import recovery_text

    project = invocation.project()
    shown = paper(sys.stdout, verbose=verbose)
    summary = recorded_summary(project, blueprint, environment)
    with composition.open_read_context(project, summary.operations) as reader:
        selected = select_targets(reader, summary, steps, exclude)
        document = recover(
            reader, summary, selected, now=shown.now, settle=project.settings.settle_seconds
        )
    click.echo(document.to_json() if as_json else recovery_text(document, shown))
    return 0
