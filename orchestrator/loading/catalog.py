"""
The blueprints of a project, in each of their environments.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.blueprint.store_location import StoreLocation
from orchestrator.domain.target import Target
from orchestrator.errors import Invalid, Problem
from orchestrator.loading.project import project_files
from orchestrator.loading.summary import environment_names, load_summary
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext


def blueprint_names(project: ProjectContext) -> list[str]:
    """
    The names of the project's blueprints, sorted.
    """
    return sorted(project_files(project).blueprints())


def all_summaries(project: ProjectContext) -> list[BlueprintSummary]:
    """
    Every blueprint of the project in each of its environments; Invalid with the problems of all
    that are wrong.
    """
    summaries: list[BlueprintSummary] = []
    problems: list[Problem] = []
    for name in blueprint_names(project):
        try:
            for environment in environment_names(project, name):
                summaries.append(load_summary(project, BlueprintSelection(name, environment)))
        except Invalid as exc:
            problems += [problem for problem in exc.problems if problem not in problems]
    if problems:
        raise Invalid(problems)
    return summaries


def summary_of_target(project: ProjectContext, target: Target) -> BlueprintSummary | None:
    """
    The blueprint and environment of a target; None where the project no longer has them.
    """
    if target.blueprint not in blueprint_names(project):
        return None
    if target.environment not in environment_names(project, target.blueprint):
        return None
    return load_summary(project, BlueprintSelection(target.blueprint, target.environment))


def store_locations(
    project: ProjectContext, blueprint: str | None = None, environment: str | None = None
) -> list[StoreLocation]:
    """
    The operation stores of the project and of its blueprints, each once; with ``blueprint`` or
    ``environment`` only theirs. A blueprint that cannot be read tells none.
    """
    locations = [] if blueprint or environment else [project.operations]
    for name in blueprint_names(project):
        if blueprint in (None, name):
            with suppress(Invalid):
                for each in environment_names(project, name):
                    if environment in (None, each):
                        location = load_summary(project, BlueprintSelection(name, each)).operations
                        if location not in locations:
                            locations.append(location)
    return locations or [project.operations]


def blueprint_reference(
    project: ProjectContext,
    target: Target,
    open_store: Callable[[StoreLocation], AbstractContextManager[OperationStore]],
) -> str:
    """
    How to name the blueprint of a target: by the path in its record where no blueprint under
    ``blueprints/`` has the name.
    """
    if target.blueprint in blueprint_names(project):
        return target.blueprint
    with open_store(project.operations) as store:
        record = store.newest(target)
    return record.source.blueprint_path if record else target.blueprint
