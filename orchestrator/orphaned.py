"""
The composition of what is settled or destroyed after it left the blueprint: the deployment is what
the project still has, with the orphans made again from the operation store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.errors import Invalid, Problem
from orchestrator.wiring import (
    BlueprintSelection,
    backend_of,
    environments,
    load_deployment,
    open_store,
    summarize,
)

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.wiring import ProjectContext


def deployment_with_orphans(
    where: ProjectContext, choice: BlueprintSelection, *, whole: bool
) -> Deployment:
    """
    The blueprint as far as it is still there, and the steps that left it as they were applied:
    ``whole``, or only as far as a destroy needs them.

    A blueprint or an environment that is gone altogether is known by its records in the project's
    own operation store.
    """
    from orchestrator.app.run.orphans import find_orphans
    from orchestrator.loading.orphans import with_orphans
    from orchestrator.loading.restore import Present
    from orchestrator.loading.sources import run_command

    base = _still_there(where, choice)
    store, _ = open_store(where, backend_of(base), base.operations_url)
    try:
        found = find_orphans(store, base)
    finally:
        store.close()
    present = Present(
        root=where.project_dir,
        environ=where.environ,
        run_command=partial(run_command, directory=where.project_dir),
    )
    return with_orphans(base, found, present, whole=whole)


def _still_there(where: ProjectContext, choice: BlueprintSelection) -> Deployment:
    from orchestrator.app.run.orphans import gone_blueprint, without_steps
    from orchestrator.loading.project import Project
    from orchestrator.loading.values import Need

    project = Project(where.project_dir, where.settings.module_roots)
    try:
        project.find(choice.blueprint, directory=where.directory)
    except Invalid:
        store, _ = open_store(where, "local", None)
        try:
            gone = gone_blueprint(
                store, where.settings.project, choice.blueprint, choice.environment
            )
        finally:
            store.close()
        if gone is None:
            raise
        _check_file_gone(where, gone)
        return gone
    declared = environments(where, choice.blueprint)
    if choice.environment is None or choice.environment in declared:
        return load_deployment(where, choice, Need.AVAILABLE)
    known = summarize(where, BlueprintSelection(choice.blueprint, declared[0]))
    store, _ = open_store(where, known.backend.type, known.operations_url)
    try:
        if not store.records(known.blueprint, choice.environment):
            return load_deployment(where, choice, Need.AVAILABLE)  # it says what is wrong
    finally:
        store.close()
    return without_steps(
        where.settings.project,
        known.blueprint,
        choice.environment,
        known.path,
        moved_from=known.moved_from,
        operations_url=known.operations_url,
    )


def _check_file_gone(where: ProjectContext, gone: Deployment) -> None:
    """
    Invalid where the blueprint's file is there under another name than was asked for: what it still
    has is no orphan.
    """
    if not (where.project_dir / gone.path).is_file():
        return
    declared = environments(where, gone.path)
    if summarize(where, BlueprintSelection(gone.path, declared[0])).blueprint == gone.blueprint:
        hint = f"name the file: {gone.path}"
        raise Invalid([Problem(f"the blueprint {gone.blueprint} is not gone", hint=hint)])
