"""
What the commands have in common that start from an earlier run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestrator.cli.running import RunCall, run_use_case

if TYPE_CHECKING:
    from orchestrator.app.inspection.run_lookup import PriorRun
    from orchestrator.app.run.request import ApplyRequest, RerunRequest
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import Deployment

Request = TypeVar("Request", bound="RerunRequest", contravariant=True)


class RerunUseCase(Protocol[Request]):
    """
    A use case that is given the run it comes from.
    """

    def __call__(
        self, services: Services, deployment: Deployment, request: Request, *, earlier: PriorRun
    ) -> int: ...


def run_again(call: RunCall, request: Request, use_case: RerunUseCase[Request]) -> int:
    """
    Carry out a request on what an earlier run meant to do; the exit code.
    """
    from orchestrator import rerun

    found = rerun.find_rerun(call.project, call.selection, request.from_run, request.options.steps)
    warning = ""
    if found.unread:
        warning = f"the blueprint cannot be read as it is now, and is not needed: {found.unread}"
    return run_use_case(
        call,
        request,
        partial(use_case, earlier=found.earlier),
        rerun.restored_deployment(call.project, call.selection, found),
        warning=warning,
    )


def promote(call: RunCall, request: ApplyRequest, run_id: str) -> int:
    """
    Apply the modules of another run; the exit code.
    """
    from orchestrator import rerun
    from orchestrator.app.commands.rerun import promote

    earlier, deployment = rerun.promotion(
        call.project,
        call.selection,
        run_id,
        steps=request.options.steps,
        exclude=request.options.exclude,
    )
    return run_use_case(call, request, partial(promote, earlier=earlier), deployment)
