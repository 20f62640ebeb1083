"""
What the commands have in common that start from an earlier run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestrator.cli.running import RunCall, run_use_case
from orchestrator.errors import Invalid

if TYPE_CHECKING:
    from orchestrator.app.inspection.run_lookup import PriorRun
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
    An earlier run, what it meant to do, and a warning about how that was read.
    """
    from orchestrator import composition
    from orchestrator.loading.reruns import find_prior_run, repeated_deployment, summary_if_readable

    project, selection = call.project, call.selection
    readable = summary_if_readable(project, selection)
    summary = None if isinstance(readable, Invalid) else readable
    with composition.open_store(project, summary.operations if summary else None) as store:
        prior = find_prior_run(
            composition.run_files(project),
            store,
            project,
            selection,
            readable,
            run_id=run_id,
            steps=steps,
        )
    warning = ""
    if isinstance(readable, Invalid):
        why = readable.message.splitlines()[0]
        warning = f"the blueprint cannot be read as it is now, and is not needed: {why}"
    return prior, repeated_deployment(project, selection, prior, summary), warning


def promote(call: RunCall, request: ApplyRequest, run_id: str) -> int:
    """
    Apply the modules of another run, of this environment or of another one, whose operation store
    may be another; the exit code.
    """
    from orchestrator import composition
    from orchestrator.app.commands.rerun import promote
    from orchestrator.app.inspection.run_lookup import store_of_run
    from orchestrator.engine.workdir.snapshot import read_archived
    from orchestrator.loading.catalog import store_locations
    from orchestrator.loading.reruns import promoted_deployment
    from orchestrator.loading.summary import load_summary

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
