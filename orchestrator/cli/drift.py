"""
``orchestrator drift``.
"""

from __future__ import annotations

import sys

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import paper
from orchestrator.cli.running import RunCall, reading_services, run_command


@click.command("drift", short_help="Show what changed outside the engine.")
@options.of_blueprint
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there is drift.")
@options.jobs
@options.engine
@options.allow_engine_change
@click.option("--parallelism", type=click.IntRange(1), help="Of the engine.")
@options.accept_vanished
@options.verbose
@options.json_document
@run_command
def command(call: RunCall, /, *, detailed_exitcode: bool) -> int:
    """
    Show which objects of BLUEPRINT changed or vanished since they were applied, by attribute.
    Changes nothing and takes no lock.

    What is known and accepted stands in the blueprint, under `drift: {ignore: [...]}`.

    \b
    Example:
      orchestrator drift web-service -e prod
      orchestrator drift web-service --detailed-exitcode --json
    """
    from orchestrator.app.commands.drift import drift
    from orchestrator.app.run.request import PlanRequest
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.views.drift import drift_text

    deployment = load_deployment(call.project, call.selection, InputPolicy.AVAILABLE)
    request = PlanRequest(options=call.options, detailed_exitcode=detailed_exitcode)
    with reading_services(
        call.invocation, call.project, deployment, engine=call.engine
    ) as services:
        document, code = drift(services, deployment, request)
    text = drift_text(document, paper(sys.stdout, verbose=call.verbose))
    click.echo(document.to_json() if call.as_json else text)
    return code
