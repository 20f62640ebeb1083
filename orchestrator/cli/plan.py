"""
``orchestrator plan``.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper


@click.command("plan", short_help="Show what would change.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option("--destroy", is_flag=True, help="Plan a destroy instead of an apply.")
@options.orphaned
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
def command(invocation: Invocation, /, **given: Any) -> int:
    """
    Show what an apply of BLUEPRINT would change. Changes nothing, not even records.

    Each step is planned on its own from real outputs. A step that needs outputs of one that was
    never applied is deferred.

    \b
    Example:
      orchestrator plan web-service -e staging
      orchestrator plan web-service --detailed-exitcode --json
    """
    from orchestrator import composition
    from orchestrator.app.commands.plan import PlanRequest, plan
    from orchestrator.cli.approval import Nobody
    from orchestrator.cli.running import plan_options_of
    from orchestrator.cli.signals import StopSignals
    from orchestrator.errors import Usage
    from orchestrator.loading.values import Need
    from orchestrator.orphans import deployment_with_orphans
    from orchestrator.views.plan import plan_text

    project, destroying = invocation.project(), given["destroy"]
    need = Need.AVAILABLE if destroying else Need.VALUES
    if given["orphaned"] and not destroying:
        raise Usage("--orphaned goes with --destroy")
    selection = options.blueprint_selection(given)
    if given["orphaned"]:
        deployment = deployment_with_orphans(project, selection, whole=False)
    else:
        deployment = composition.load_deployment(project, selection, need)
    question = PlanRequest(
        steps=given["steps"],
        exclude=given["exclude"],
        orphaned=given["orphaned"],
        verb="destroy" if destroying else "apply",
        jobs=given["jobs"] or project.settings.jobs,
        allow_engine_change=given["allow_engine_change"],
        detailed_exitcode=given["detailed_exitcode"],
        plan_options=plan_options_of(given),
    )
    with (
        StopSignals().installed() as stop,
        composition.open_services(
            project,
            deployment,
            engine=given["engine"],
            sink=invocation.quiet_sink(),
            stop=stop,
            approver=Nobody(),
            check_module_versions=not destroying,
        ) as services,
    ):
        document, code = plan(services, deployment, question)
    shown = paper(sys.stdout, verbose=given["verbose"])
    click.echo(document.to_json() if given["as_json"] else plan_text(document, shown))
    return code
