"""
``orchestrator gate``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import paper, print_document
from orchestrator.cli.options import affected, affected_options
from orchestrator.cli.reports import report_options, write_reports
from orchestrator.cli.running import (
    RunCall,
    approval_place,
    reading_services,
    recorded_summary,
    run_command,
    write_approval,
)

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import GateDocument, PlanDocument
    from orchestrator.domain.plan.approval import Approval
    from orchestrator.errors import OrchestratorError


@click.command("gate", short_help="Decide whether a change may be merged.")
@options.of_blueprint
@affected_options
@click.option(
    "--allow",
    metavar="STEP=CONDITION",
    multiple=True,
    allow_from_autoenv=False,
    help="Only warn about in_doubt, interrupted or silent of that step; may be repeated.",
)
@click.option("--drift", is_flag=True, help="Also warn about drift.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there are changes.")
@options.jobs
@options.by_engine
@options.wait_for_run
@options.verbose
@options.json_document
@report_options
@click.option(
    "--plan-out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the plan for approval, for `apply --plan FILE`; not if the gate fails.",
)
@run_command
def gate_command(
    call: RunCall,
    /,
    *,
    allow: tuple[str, ...],
    drift: bool,
    detailed_exitcode: bool,
    plan_out: Path | None,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
    files: Mapping[str, Path | None],
) -> int:
    """
    Decide whether a change of BLUEPRINT may be merged: pass, warn or fail (exit 4), with every
    reason and what can be done about it.

    Checks the blueprint, the records of its steps, the plan, and the plan against the policy.
    Changes nothing and takes no lock: read-only credentials are enough.

    \b
    Example:
      orchestrator gate web-service -e prod --drift
      orchestrator gate web-service --allow server=in_doubt --json
    """
    from orchestrator.app.commands.gate import failed_gate
    from orchestrator.errors import Invalid, Refused, StoreUnavailable
    from orchestrator.views.plan_reports import gate_text

    project, selection = call.project, call.selection
    place = approval_place(project.directory, plan_out)
    approval, path = None, selection.blueprint
    try:
        document, approval, path = _judge(
            call, allow, changed_since, affected_by, drift=drift, approves=plan_out is not None
        )
    except (Invalid, StoreUnavailable) as exc:
        document = failed_gate(
            exc,
            project=project.settings.project,
            blueprint=selection.blueprint,
            environment=selection.environment or "default",
        )
    shown = paper(sys.stdout, verbose=call.verbose)
    write_reports(files, project, path, document.plan, shown, gate=document)
    if place is not None and approval is not None and document.verdict != "fail":
        write_approval(place, approval)
    changes = document.plan is not None and document.plan.verdict != "no_changes"
    print_document(document, gate_text, as_json=call.as_json, verbose=call.verbose)
    if document.verdict == "fail":
        return Refused.exit_code
    return 2 if detailed_exitcode and changes else 0


def _judge(
    call: RunCall,
    allow: Collection[str],
    changed_since: str | None,
    affected_by: tuple[Path, ...],
    *,
    drift: bool,
    approves: bool,
) -> tuple[GateDocument, Approval | None, str]:
    """
    Return the verdict, the approval of what was planned, and the path of the blueprint. Raises
    Invalid if the blueprint cannot be loaded, StoreUnavailable if its records cannot be read.
    """
    from orchestrator import composition
    from orchestrator.app.commands.gate import gate, parse_allowed, status_to_judge
    from orchestrator.app.commands.plan import plan
    from orchestrator.app.commands.status import status_of
    from orchestrator.app.run.request import PlanRequest
    from orchestrator.errors import OrchestratorError, Usage
    from orchestrator.loading.deployment import load_deployment

    project, selection = call.project, call.selection
    deployment = load_deployment(project, selection)
    try:
        allowed = parse_allowed(allow, deployment.steps)
    except ValueError as exc:
        raise Usage(str(exc)) from exc
    summary = recorded_summary(project, selection.blueprint, selection.environment)
    request = PlanRequest(
        options=call.options,
        locking=False,
        affected=affected(project, deployment, changed_since, affected_by),
    )
    approval = None
    with (
        reading_services(
            call.invocation,
            project,
            deployment,
            engine=call.engine,
            current_modules=True,
            records=approves,  # an approval is signed with a key that lasts
        ) as services,
        composition.open_read_context(project, summary.operations) as reader,
    ):
        status = status_to_judge(
            services, partial(status_of, reader, summary), wait=call.options.wait
        )
        planned: PlanDocument | OrchestratorError
        try:
            result = plan(services, deployment, request)
        except Usage:
            raise  # it is no verdict on the change
        except OrchestratorError as exc:
            planned = exc
        else:
            planned, approval = result.document, result.approval
        today = services.clock.now().date()
    drift_on = today if drift else None
    document = gate(
        deployment, status, planned, allowed=allowed, drift_on=drift_on, refusal=reader.refusal()
    )
    return document, approval, deployment.path
