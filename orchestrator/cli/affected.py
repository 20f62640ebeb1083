"""
The steps that a change touches, as options say which change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.options import NON_EMPTY

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.project import ProjectContext

Function = TypeVar("Function", bound=Callable[..., Any])


def affected_options(function: Function) -> Function:
    """
    The options that name a change.
    """
    for option in (
        click.option(
            "--affected-by",
            metavar="FILE",
            type=click.Path(path_type=Path),
            multiple=True,
            help="Only steps that this file touches, and those that need them; may be repeated.",
        ),
        click.option(
            "--changed-since",
            metavar="REF",
            type=NON_EMPTY,
            help="Only steps whose files or part of the blueprint changed since that git revision, "
            "uncommitted changes included, and those that need them.",
        ),
    ):
        function = option(function)
    return function


def affected(
    project: ProjectContext,
    deployment: Deployment,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
) -> Mapping[str, tuple[str, ...]] | None:
    """
    The steps that are touched, with the reasons; None where no change was named.
    """
    from orchestrator.domain.blueprint.affected_steps import affected_steps
    from orchestrator.errors import Usage
    from orchestrator.loading.changed_files import changes_of, changes_since

    if changed_since is None and not affected_by:
        return None
    if changed_since is not None and affected_by:
        raise Usage("--changed-since and --affected-by both say what changed: give one of them")
    if changed_since is not None:
        change = changes_since(changed_since, deployment)
    else:
        change = changes_of([project.directory / file for file in affected_by], deployment)
    return affected_steps(deployment, change)
