"""
``orchestrator apply`` and ``destroy``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command, with_approval

_TARGET = "Apply only this address; the step is `ok` only if nothing else is left to change."


@click.command("apply", short_help="Apply the modules of the steps.")
@options.of_blueprint
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="Promote: apply the modules of that run, of this or another environment.",
)
@click.option("--unfinished", is_flag=True, help="Skip steps that are ok.")
@options.on_failure("continue where nothing upstream failed")
@options.approval
@options.approved_plan
@options.jobs
@options.by_engine
@click.option("--replace", metavar="ADDRESS", multiple=True, help="Replace this object.")
@click.option("--target", "targets", metavar="ADDRESS", multiple=True, help=_TARGET)
@options.accept_vanished
@options.accept_adopted
@options.override_policy
@options.because(
    "--skip-preflight", "Start although some steps could not be prepared; the reason is recorded."
)
@options.request_token
@options.run
@run_command
def apply_command(
    call: RunCall,
    /,
    *,
    from_run: str | None,
    unfinished: bool,
    plan_file: Path | None,
    approve_only: tuple[str, ...],
) -> int:
    """
    Apply the steps of BLUEPRINT, each as soon as its upstream steps are done.

    The intent is recorded before anything is changed. After a failure, fix the cause and run the
    same command again: completed work is kept.

    \b
    Example:
      orchestrator apply web-service -e staging -i cidr=10.9.0.0/16
      orchestrator apply web-service --step server+ --yes
      orchestrator apply web-service -e prod --plan approval.json
      orchestrator apply web-service -e prod --from-run 20261129T123000123Z-3f9a1c
    """
    from orchestrator.app.commands.apply import apply
    from orchestrator.app.run.request import ApplyRequest

    call = with_approval(call, plan_file, approve_only)
    request = ApplyRequest(options=call.options, unfinished=unfinished, from_run=from_run)
    if from_run is not None:
        from orchestrator.cli.rerun import promote

        return promote(call, request, from_run)
    return load_and_run(call, request, apply)


@click.command("destroy", short_help="Destroy the steps and confirm that they are gone.")
@options.of_blueprint
@options.orphaned
@options.on_failure("continue where no dependent is left")
@click.option(
    "--verify",
    "verify_absence",
    type=click.Choice(["state", "provider"]),
    help="How absence is confirmed: by provider state, or by querying the provider.",
)
@options.because(
    "--skip-before-destroy",
    "Skip the `before_destroy` hooks of the steps; the reason is recorded.",
)
@options.because(
    "--repeat-before-destroy",
    "Run the hook again although it was interrupted and its result is unknown.",
    to="repeat",
)
@click.option(
    "--unavailable-secret",
    "unavailable_secrets",
    metavar="NAME",
    multiple=True,
    allow_from_autoenv=False,
    help="A secret input that no longer exists, as named in the error; refused if a provider "
    "configuration or `before_destroy` uses it.",
)
@options.approval
@options.approved_plan
@options.jobs
@options.by_engine
@options.accept_vanished
@options.accept_adopted
@options.accept_replaced
@options.override_policy
@options.request_token
@options.run
@run_command
def destroy_command(
    call: RunCall,
    /,
    *,
    skip_before_destroy: str | None,
    repeat: str | None,
    plan_file: Path | None,
    approve_only: tuple[str, ...],
) -> int:
    """
    Destroy the steps of BLUEPRINT, dependents first.

    Uses the inputs and module snapshots of the last apply. All steps are planned first: if one is
    refused, nothing is destroyed; with --on-failure continue, only steps unrelated to it are. A
    step is `destroyed` only once its absence is confirmed; otherwise run the same command again.

    Steps that were removed from the blueprint are reported and kept. With --orphaned they are
    destroyed as they were applied, even if the blueprint file no longer exists.

    \b
    Example:
      orchestrator destroy web-service -e staging
      orchestrator destroy web-service --step bootstrap --yes
      orchestrator destroy web-service -e staging --verify state --yes
      orchestrator destroy web-service --orphaned
      orchestrator destroy web-service --step 'db["@before_destroy"]'
    """
    from orchestrator.app.commands.destroy import destroy
    from orchestrator.app.run.request import DestroyRequest

    call = with_approval(call, plan_file, approve_only)
    request = DestroyRequest(
        options=call.options, skip_before_destroy=skip_before_destroy, repeat=repeat
    )
    return load_and_run(call, request, destroy)
