"""
``orchestrator apply``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.approved import with_approval
from orchestrator.cli.running import RunCall, load_and_run, run_command

_TARGET = "Apply only this; the step is `ok` only if nothing else is left to change."


@click.command("apply", short_help="Bring the steps to what their modules say.")
@options.of_blueprint
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="Promote: the very modules of that run, of this or another environment.",
)
@click.option("--unfinished", is_flag=True, help="Leave out the steps that are ok already.")
@options.on_failure("go on where nothing upstream failed")
@options.approval
@options.approved_plan
@options.jobs
@options.by_engine
@click.option("--replace", metavar="ADDRESS", multiple=True, help="Have the engine replace it.")
@click.option("--target", "targets", metavar="ADDRESS", multiple=True, help=_TARGET)
@options.accept_vanished
@options.accept_adopted
@options.override_policy
@options.because(
    "--skip-preflight", "Start although some steps could not be made ready; the reason is recorded."
)
@options.request_token
@options.run
@run_command
def command(
    call: RunCall,
    /,
    *,
    from_run: str | None,
    unfinished: bool,
    plan_file: Path | None,
    approve_only: tuple[str, ...],
) -> int:
    """
    Apply the steps of BLUEPRINT, each as soon as the steps it needs are done.

    The intent is recorded before anything is changed. After a failure, fix the cause and run the
    same command again: what is done stays done.

    \b
    Example:
      orchestrator apply web-service -e staging -i cidr=10.9.0.0/16
      orchestrator apply web-service --step server+ --yes
      orchestrator apply web-service -e prod --plan approval.json
      orchestrator apply web-service -e prod --from-run 20261129T123000123Z-3f9a1c
    """
    from orchestrator.app.commands.apply import apply
    from orchestrator.app.run.request import ApplyRequest
    from orchestrator.loading.inputs import InputPolicy

    call = with_approval(call, plan_file, approve_only)
    request = ApplyRequest(options=call.options, unfinished=unfinished, from_run=from_run)
    if from_run is not None:
        from orchestrator.cli.rerun import promote

        return promote(call, request, from_run)
    return load_and_run(call, request, apply, need=InputPolicy.REQUIRED)
