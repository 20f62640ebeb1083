"""
``orchestrator reconcile``, ``verify`` and ``compensate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command

if TYPE_CHECKING:
    from orchestrator.app.run.request import ImportSpec


def _parse_import_specs(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[ImportSpec, ...]:
    """
    Parse each text as ADDRESS=ID, or report a usage error.
    """
    if not texts:
        return ()
    from orchestrator.app.run.request import ImportSpec

    try:
        return tuple(ImportSpec.parse(text) for text in texts)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command("reconcile", short_help="Settle interrupted runs and doubts from evidence.")
@options.of_blueprint
@options.orphaned
@click.option(
    "--forget",
    metavar="ADDRESS",
    multiple=True,
    allow_from_autoenv=False,
    help="Forget an object in doubt that does not exist or does not matter; needs --reason and "
    "approval.",
)
@click.option(
    "--adopt",
    metavar="ADDRESS=ID",
    multiple=True,
    allow_from_autoenv=False,
    callback=_parse_import_specs,
    help="Import the object with this ID at an address in doubt.",
)
@click.option(
    "--adopt-proven",
    is_flag=True,
    allow_from_autoenv=False,
    help="Import every object in doubt that is proven ours, with one approval.",
)
@click.option(
    "--rebuild-state",
    is_flag=True,
    allow_from_autoenv=False,
    help="Import every recorded object that the provider state lacks, in one plan.",
)
@click.option(
    "--untaint",
    metavar="ADDRESS",
    multiple=True,
    allow_from_autoenv=False,
    help="Untaint an object, so that it is not replaced.",
)
@click.option(
    "--push-errored-state",
    is_flag=True,
    allow_from_autoenv=False,
    help="Push the provider state that the engine could not save (errored.tfstate).",
)
@options.because(
    "--dismiss-errored-state",
    "Set that state aside without pushing it; the file is kept with the run.",
)
@click.option(
    "--unlock",
    type=options.NON_EMPTY,
    metavar="LOCK_ID",
    allow_from_autoenv=False,
    help="Release a state lock that a dead run of ours left; needs --reason.",
)
@click.option(
    "--verify",
    type=click.Choice(["state", "provider"]),
    default="state",
    allow_from_autoenv=False,
    help="Check steps that are recorded as gone: by provider state, or by querying the provider.",
)
@options.approval
@options.lock_timeout
@options.jobs
@options.engine
@options.run
@run_command
def reconcile_command(
    call: RunCall,
    /,
    *,
    forget: tuple[str, ...],
    adopt: tuple[ImportSpec, ...],
    adopt_proven: bool,
    rebuild_state: bool,
    untaint: tuple[str, ...],
    push_errored_state: bool,
    dismiss_errored_state: str | None,
    unlock: str | None,
    verify: str,
) -> int:
    """
    Settle interrupted runs and objects in doubt, from the engine's result, its journal, the
    provider state, a plan with the recorded inputs, and queries to the provider for what a create
    may have left. Changes only records, unless options ask for changes of provider state: those
    come first, each recorded before it is made. With --orphaned it reconciles steps that were
    removed from the blueprint.

    \b
    Example:
      orchestrator reconcile web-service -e staging
      orchestrator reconcile web-service --forget aws_instance.this --reason 'console shows none'
      orchestrator reconcile web-service --adopt aws_instance.this=i-0a1b2c3d
      orchestrator reconcile web-service --adopt-proven
      orchestrator reconcile web-service --step network --rebuild-state
      orchestrator reconcile web-service --verify provider
    """
    from orchestrator.app.commands.reconcile import reconcile
    from orchestrator.app.run.request import ReconcileRequest

    request = ReconcileRequest(
        options=call.options,
        verify_destroyed=verify == "provider",
        forget=forget,
        adopt=adopt,
        adopt_proven=adopt_proven,
        rebuild_state=rebuild_state,
        untaint=untaint,
        push_errored_state=push_errored_state,
        dismiss_errored_state=dismiss_errored_state,
        unlock=unlock,
    )
    return load_and_run(call, request, reconcile)


@click.command("verify", short_help="Run the checks and record their verdict.")
@options.of_blueprint
@options.jobs
@options.engine
@options.run
@run_command
def verify_command(call: RunCall) -> int:
    """
    Run the `verify` checks of the applied steps and record the verdict. Nothing else changes.

    \b
    Example:
      orchestrator verify web-service -e staging
    """
    from orchestrator.app.commands.verify import verify
    from orchestrator.app.run.request import VerifyRequest

    request = VerifyRequest(options=call.options)
    return load_and_run(call, request, verify)


@click.command("compensate", short_help="Run the compensations that steps declare.")
@options.of_blueprint
@options.because("--repeat", "Run it again although it ran, or may have run, already.")
@options.on_failure("continue with what does not wait for it")
@options.approval
@options.jobs
@options.by_engine
@options.accept_replaced
@options.run
@run_command
def compensate_command(call: RunCall, /, *, repeat: str | None) -> int:
    """
    Run the `compensate` hooks of the steps of BLUEPRINT: dependents first, unless their `after`
    says otherwise.

    Only steps with completed work, each once: a compensated step stays so until the next apply.
    After a failure, fix the cause and run the same command again. Needs a --reason.

    \b
    Example:
      orchestrator compensate web-service -e staging --reason 'release 41 is withdrawn'
    """
    from orchestrator.app.commands.compensate import compensate
    from orchestrator.app.run.request import CompensateRequest

    request = CompensateRequest(options=call.options, repeat=repeat)
    return load_and_run(call, request, compensate)
