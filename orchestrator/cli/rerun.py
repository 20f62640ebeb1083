"""
What the commands have in common that start from an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.app.run.request import Verb


def run_again(
    invocation: Invocation, verb: Verb, use_case: Callable[..., int], given: Mapping[str, Any]
) -> int:
    """
    Run a use case on what an earlier run meant to do; the exit code. ``use_case`` takes that run as
    ``earlier``.
    """
    from orchestrator import rerun
    from orchestrator.cli.running import run_use_case

    project, selection = invocation.project(), options.blueprint_selection(given)
    found = rerun.find_rerun(project, selection, given["from_run"], given["steps"])
    remark = ""
    if found.unread:
        remark = f"the blueprint cannot be read as it is now, and is not needed: {found.unread}"
    return run_use_case(
        invocation,
        verb,
        partial(use_case, earlier=found.earlier),
        given,
        project=project,
        deployment=rerun.restored_deployment(project, selection, found),
        remark=remark,
    )


def promote(invocation: Invocation, given: Mapping[str, Any]) -> int:
    """
    Apply the modules of another run; the exit code.
    """
    from orchestrator import rerun
    from orchestrator.app.commands import rerun as again
    from orchestrator.cli.running import run_use_case

    project = invocation.project()
    earlier, deployment = rerun.promotion(
        project,
        options.blueprint_selection(given),
        given["from_run"],
        steps=given["steps"],
        exclude=given["exclude"],
    )
    use_case = partial(again.promote, earlier=earlier)
    return run_use_case(
        invocation, "apply", use_case, given, project=project, deployment=deployment
    )
