"""
``orchestrator plan``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.command("plan", short_help="Show what would change.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option("--destroy", is_flag=True, help="Plan a destroy instead of an apply.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there are changes.")
@options.jobs
@options.engine
@options.allow_engine_change
@options.engine_passthrough
@click.option("--replace", metavar="ADDRESS", multiple=True, help="Plan to replace it.")
@click.option("--target", "targets", metavar="ADDRESS", multiple=True, help="Plan only this.")
@options.accept_vanished
@options.verbose
@options.json_document
@click.pass_obj
def command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    variables: tuple[str, ...],
    input_files: tuple[Path, ...],
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    destroy: bool,
    detailed_exitcode: bool,
    jobs: int | None,
    engine: str | None,
    allow_engine_change: bool,
    parallelism: int | None,
    lock_timeout: str | None,
    refresh: bool,
    replace: tuple[str, ...],
    targets: tuple[str, ...],
    accept_vanished: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Show what an apply of BLUEPRINT would change. Changes nothing, not even records.

    Each step is planned on its own from real outputs. A step that needs outputs of one that was
    never applied is deferred.

    \b
    Example:
      orchestrator plan web-service -e staging
      orchestrator plan web-service --detailed-exitcode --json
    """
    from orchestrator import wiring
    from orchestrator.app.planning import Question, plan
    from orchestrator.app.proposal import Wishes
    from orchestrator.cli.approval import Nobody
    from orchestrator.cli.signals import StopSignals
    from orchestrator.loading.values import Need
    from orchestrator.views.plan import plan_text

    where = invocation.place()
    choice = options.choice(blueprint, environment, variables, input_files)
    deployment = wiring.deployment(where, choice, Need.AVAILABLE if destroy else Need.VALUES)
    question = Question(
        steps=steps,
        exclude=exclude,
        verb="destroy" if destroy else "apply",
        jobs=jobs or where.settings.jobs,
        allow_engine_change=allow_engine_change,
        detailed_exitcode=detailed_exitcode,
        wishes=Wishes(
            refresh=refresh,
            replace=replace,
            targets=targets,
            parallelism=parallelism,
            lock_timeout=lock_timeout,
            accept_vanished=accept_vanished,
        ),
    )
    with (
        StopSignals().installed() as stop,
        wiring.services(
            where,
            deployment,
            engine=engine,
            sink=invocation.quiet_sink(),
            stop=stop,
            approver=Nobody(),
            check_module_versions=not destroy,
        ) as services,
    ):
        document, code = plan(services, deployment, question)
    shown = paper(sys.stdout, verbose=verbose)
    click.echo(document.to_json() if as_json else plan_text(document, shown))
    return code
