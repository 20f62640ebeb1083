"""
``orchestrator retry``, ``redeploy`` and ``rollback``: applies that repeat or follow a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from orchestrator.cli import options
from orchestrator.cli.running import RunCall, load_and_run, run_command, run_use_case

if TYPE_CHECKING:
    from orchestrator.app.inspection.earlier_runs import PriorRun
    from orchestrator.app.run.request import ApplyRequest, RerunRequest
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import Deployment


Request = TypeVar("Request", bound="RerunRequest", contravariant=True)


class RerunUseCase(Protocol[Request]):
    """
    A use case that takes the run to repeat.
    """

    def __call__(
        self, services: Services, deployment: Deployment, request: Request, *, earlier: PriorRun
    ) -> int: ...


def run_again(call: RunCall, request: Request, use_case: RerunUseCase[Request]) -> int:
    """
    Run a request on the deployment of an earlier run and return the exit code.
    """
    prior, deployment, warning = earlier_deployment(call, request.from_run, request.options.steps)
    return run_use_case(
        call, request, partial(use_case, earlier=prior), deployment, warning=warning
    )


def earlier_deployment(
    call: RunCall, run_id: str | None, steps: Sequence[str]
) -> tuple[PriorRun, Deployment, str]:
    """
    Return an earlier run, its deployment, and a warning about how that was loaded.
    """
    from orchestrator import composition
    from orchestrator.loading.restore import repeated_deployment

    files = composition.run_files(call.project)
    open_store = partial(composition.open_store, call.project)
    return repeated_deployment(
        call.project, call.selection, files, open_store, run_id=run_id, steps=steps
    )


def promote(call: RunCall, request: ApplyRequest, run_id: str) -> int:
    """
    Apply the modules of a run of this or another environment, whose operation store may be another,
    and return the exit code.
    """
    from orchestrator import composition
    from orchestrator.app.commands.rerun import promote
    from orchestrator.app.inspection.earlier_runs import store_of_run
    from orchestrator.engine.workdir.snapshot import read_archived
    from orchestrator.loading.restore import promoted_deployment
    from orchestrator.loading.summary import load_summary, store_locations

    project, selection = call.project, call.selection
    summary = load_summary(project, selection)
    others = [
        place
        for place in store_locations(project, summary.blueprint)
        if place != summary.operations
    ]
    with ExitStack() as opened:
        own, *rest = (
            opened.enter_context(composition.open_store(project, place))
            for place in (summary.operations, *others)
        )
        prior, deployment = promoted_deployment(
            composition.run_files(project),
            store_of_run((own, *rest), run_id) or own,
            project,
            selection,
            summary,
            run_id=run_id,
            steps=request.options.steps,
            exclude=request.options.exclude,
            read_archived=read_archived,
        )
    return run_use_case(call, request, partial(promote, earlier=prior), deployment)


@click.command("retry", short_help="Apply what a failed run left undone, as it was.")
@options.blueprint
@options.environment
@options.selection
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="The failed run; by default the one named in the records of the steps.",
)
@options.accept_changed_secret
@options.rerun
@run_command
def retry_command(
    call: RunCall, /, *, from_run: str | None, accept_changed_secret: tuple[str, ...]
) -> int:
    """
    Apply what a failed run of BLUEPRINT left undone, with its modules, inputs and provider
    versions, even if the files have changed since. Steps that are still ok are skipped; current
    secrets are used. Refused while something is in doubt.

    \b
    Example:
      orchestrator retry web-service -e staging --reason 'the quota was raised'
      orchestrator retry web-service --from-run 20261129T123000123Z-3f9a1c --yes
    """
    from orchestrator.app.commands.rerun import retry
    from orchestrator.app.run.request import RetryRequest

    request = RetryRequest(
        options=call.options, from_run=from_run, accept_changed_secret=accept_changed_secret
    )
    return run_again(call, request, retry)


@click.command("redeploy", short_help="Make a new attempt with the current files.")
@options.of_blueprint
@click.option(
    "--from-run",
    metavar="RUN",
    allow_from_autoenv=False,
    help="The run that this one follows; by default the failed one named in the records.",
)
@options.rerun
@run_command
def redeploy_command(call: RunCall, /, *, from_run: str | None) -> int:
    """
    Apply the steps of BLUEPRINT with the current blueprint, modules and inputs, as a new attempt
    after a failed run. Refused while something is in doubt.

    \b
    Example:
      orchestrator redeploy web-service -e staging --reason 'fixed the instance type'
    """
    from orchestrator.app.commands.rerun import redeploy
    from orchestrator.app.run.request import RedeployRequest

    request = RedeployRequest(options=call.options, from_run=from_run)
    return load_and_run(call, request, redeploy)


@click.command("rollback", short_help="Re-apply a named earlier run.")
@options.blueprint
@options.environment
@click.option(
    "--to",
    "from_run",
    metavar="RUN",
    required=True,
    allow_from_autoenv=False,
    help="The run to re-apply; its steps ended ok and verified.",
)
@options.selection
@options.because("--unverified", "Also steps without checks in that run; the reason is recorded.")
@options.accept_changed_secret
@options.rerun
@run_command
def rollback_command(
    call: RunCall,
    /,
    *,
    from_run: str,
    unverified: str | None,
    accept_changed_secret: tuple[str, ...],
) -> int:
    """
    Re-apply an earlier run of BLUEPRINT in which the steps ended ok and verified: its modules,
    inputs, provider versions and checks, even if the files are gone. Current secrets are used. The
    checks run again at the end.

    \b
    Example:
      orchestrator rollback web-service -e prod --to 20261129T123000123Z-3f9a1c --reason INC-42
    """
    from orchestrator.app.commands.rerun import rollback
    from orchestrator.app.run.request import RollbackRequest

    request = RollbackRequest(
        options=call.options,
        from_run=from_run,
        unverified=unverified,
        accept_changed_secret=accept_changed_secret,
    )
    return run_again(call, request, rollback)
