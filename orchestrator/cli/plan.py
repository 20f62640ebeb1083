"""
``orchestrator plan`` and ``drift``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import folds, log_group, paper, print_document
from orchestrator.cli.options import affected, affected_options
from orchestrator.cli.reports import report_options, write_reports
from orchestrator.cli.running import (
    RunCall,
    approval_place,
    load,
    reading_services,
    run_command,
    write_approval,
)
from orchestrator.domain.values import replace

if TYPE_CHECKING:
    from orchestrator.app.run.prepared_steps import SourceOf
    from orchestrator.domain.blueprint.blueprint import Deployment


@click.command("plan", short_help="Show what would change.")
@options.of_blueprint
@affected_options
@click.option("--destroy", is_flag=True, help="Plan a destroy instead of an apply.")
@options.orphaned
@click.option(
    "--rerun",
    metavar="RUN",
    allow_from_autoenv=False,
    help="Plan a retry of that run or a rollback to it, with its modules and inputs.",
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there are changes.")
@options.jobs
@options.by_engine
@click.option("--replace", metavar="ADDRESS", multiple=True, help="Plan to replace this object.")
@click.option(
    "--target", "targets", metavar="ADDRESS", multiple=True, help="Plan only this address."
)
@options.accept_vanished
@options.accept_adopted
@options.accept_replaced
@click.option("--separate", is_flag=True, help="Plan each step separately, not all together.")
@click.option(
    "--summary", is_flag=True, help="Only the summary and the objects that would be lost."
)
@options.verbose
@options.json_document
@report_options
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the plan for approval, for `apply --plan FILE`.",
)
@run_command
def plan_command(
    call: RunCall,
    /,
    *,
    destroy: bool,
    rerun: str | None,
    detailed_exitcode: bool,
    separate: bool,
    summary: bool,
    out: Path | None,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
    files: Mapping[str, Path | None],
) -> int:
    """
    Show what an apply of BLUEPRINT would change. Changes nothing, not even records.

    Shows each object's attributes before and after, and what forces a replacement; -v shows all
    attributes. The steps are planned together, so that dependents are planned with what an upstream
    would change or create. A step that cannot be planned with the others is planned separately from
    current outputs, or deferred if an upstream would change first.

    Under GitHub Actions the step summary, outputs and annotations are written as well, under
    GitLab CI gl-terraform-report.json for `artifacts: reports: terraform`.

    \b
    Example:
      orchestrator plan web-service -e staging
      orchestrator plan web-service --detailed-exitcode --json
      orchestrator plan web-service --changed-since origin/main --markdown plan.md
      orchestrator plan web-service --rerun 20261129T123000123Z-3f9a1c
    """
    from orchestrator.app.commands.plan import plan, with_file
    from orchestrator.app.run.prepared_steps import current_module
    from orchestrator.app.run.request import PlanRequest
    from orchestrator.errors import Usage
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.views.formats import planned
    from orchestrator.views.plan import plan_text, step_text

    if call.options.orphaned and not destroy:
        raise Usage("--orphaned goes with --destroy")
    if rerun is not None and (destroy or out or changed_since or affected_by):
        raise Usage("--rerun goes without --destroy, --out, --changed-since and --affected-by")
    approval = approval_place(call.project.directory, out)
    source: SourceOf = current_module
    run_options, warning = call.options, ""
    if rerun is not None:
        from orchestrator.app.commands.rerun import module_of_run
        from orchestrator.cli.rerun import earlier_deployment

        prior, deployment, warning = earlier_deployment(call, rerun, call.options.steps)
        rows = tuple(row.step for row in prior.record.steps)
        source = module_of_run(prior)
        run_options = replace(call.options, steps=call.options.steps or rows)
    else:
        deployment = load(call, InputPolicy.AVAILABLE if destroy else InputPolicy.REQUIRED)
    request = PlanRequest(
        options=run_options,
        verb="destroy" if destroy else "apply",
        detailed_exitcode=detailed_exitcode,
        separate=separate,
        affected=affected(call.project, deployment, changed_since, affected_by),
    )
    # An approval is signed with a key that lasts.
    with reading_services(
        call.invocation,
        call.project,
        deployment,
        engine=call.engine,
        current_modules=not destroy and rerun is None,
        records=out is not None,
    ) as services:
        if warning:
            services.note(warning, level="warning")
        result = plan(services, deployment, request, source=source)
    document = result.document
    if approval is not None and result.approval is not None:
        write_approval(approval, result.approval)
        document = with_file(document, deployment, str(out), _offered_options(call, deployment))
    shown = paper(sys.stdout, verbose=call.verbose)
    write_reports(files, call.project, deployment.path, document, shown)
    if call.as_json:
        click.echo(document.to_json())
        return result.exit_code
    folded = folds() and not summary
    click.echo(plan_text(document, shown, extent="summary" if summary or folded else "changes"))
    for number, step in enumerate(document.steps if folded else ()):
        if step.status == "failed":  # nobody is to unfold that first
            click.echo(step_text(step, shown), nl=False)
        elif step.status == "planned" or step.drift or step.diagnostics:
            with log_group(f"{step.step}: {planned(step.actions)}", number):
                click.echo(step_text(step, shown), nl=False)
    return result.exit_code


def _offered_options(call: RunCall, deployment: Deployment) -> list[str]:
    """
    Return the options of this command line that what was planned is carried out with: engine,
    steps that left the blueprint, inputs without secret values.
    """
    secrets = {name for name, item in deployment.inputs.items() if item.sensitive}
    variables = [
        text for text in call.selection.variables if text.partition("=")[0].strip() not in secrets
    ]
    files = [str(file) for file in call.selection.input_files]
    return [
        *(("--engine", call.options.engine) if call.options.engine else ()),
        *(("--orphaned",) if call.options.orphaned else ()),
        *(word for text in variables for word in ("-i", text)),
        *(word for file in files for word in ("--input-file", file)),
    ]


@click.command("drift", short_help="Show what changed outside the engine.")
@options.of_blueprint
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if there is drift.")
@options.jobs
@options.engine
@options.allow_engine_change
@click.option("--parallelism", type=click.IntRange(1), help="The engine's own parallelism.")
@options.accept_vanished
@options.verbose
@options.json_document
@run_command
def drift_command(call: RunCall, /, *, detailed_exitcode: bool) -> int:
    """
    Show which objects of BLUEPRINT changed or vanished since they were applied, by attribute.
    Changes nothing and takes no lock.

    Accepted drift is declared in the blueprint, under `drift: {ignore: [...]}`.

    \b
    Example:
      orchestrator drift web-service -e prod
      orchestrator drift web-service --detailed-exitcode --json
    """
    from orchestrator.app.commands.drift import drift
    from orchestrator.app.run.request import PlanRequest
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.views.plan import drift_text

    deployment = load_deployment(call.project, call.selection, InputPolicy.AVAILABLE)
    request = PlanRequest(options=call.options, detailed_exitcode=detailed_exitcode)
    with reading_services(
        call.invocation, call.project, deployment, engine=call.engine
    ) as services:
        document, code = drift(services, deployment, request)
    print_document(document, drift_text, as_json=call.as_json, verbose=call.verbose)
    return code
