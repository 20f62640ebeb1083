"""
The composition of what is settled or destroyed after it left the blueprint: the deployment is what
the project still has, with the orphans made again from the operation store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.composition import (
    backend_of,
    environments,
    load_deployment,
    open_store,
    summarize,
)
from orchestrator.errors import Invalid, Problem
from orchestrator.project import BlueprintSelection

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.project import ProjectContext


def deployment_with_orphans(
    project: ProjectContext, selection: BlueprintSelection, *, whole: bool
) -> Deployment:
    """
    The blueprint as far as it is still there, and the steps that left it as they were applied:
    ``whole``, or only as far as a destroy needs them.

    A blueprint or an environment that is gone altogether is known by its records in the project's
    own operation store.
    """
    from orchestrator.app.run.orphans import find_orphans
    from orchestrator.loading.orphans import with_orphans
    from orchestrator.loading.restore import CurrentSources
    from orchestrator.loading.sources import run_command

    base = _still_there(project, selection)
    store, _ = open_store(project, backend_of(base), base.operations_url)
    try:
        found = find_orphans(store, base)
    finally:
        store.close()
    present = CurrentSources(
        project_dir=project.project_dir,
        environ=project.environ,
        run_command=partial(run_command, directory=project.project_dir),
    )
    return with_orphans(base, found, present, whole=whole)


def _still_there(project: ProjectContext, selection: BlueprintSelection) -> Deployment:
    from orchestrator.app.run.orphans import gone_blueprint, without_steps
    from orchestrator.loading.project import ProjectFiles
    from orchestrator.loading.values import InputPolicy

    files = ProjectFiles(project.project_dir, project.settings.module_roots)
    try:
        files.find(selection.blueprint, directory=project.directory)
    except Invalid:
        store, _ = open_store(project, "local", None)
        try:
            gone = gone_blueprint(
                store, project.settings.project, selection.blueprint, selection.environment
            )
        finally:
            store.close()
        if gone is None:
            raise
        _check_file_gone(project, gone)
        return gone
    declared = environments(project, selection.blueprint)
    if selection.environment is None or selection.environment in declared:
        return load_deployment(project, selection, InputPolicy.AVAILABLE)
    known = summarize(project, BlueprintSelection(selection.blueprint, declared[0]))
    store, _ = open_store(project, known.backend.type, known.operations_url)
    try:
        if not store.records(known.blueprint, selection.environment):
            return load_deployment(
                project, selection, InputPolicy.AVAILABLE
            )  # it says what is wrong
    finally:
        store.close()
    return without_steps(
        project.settings.project,
        known.blueprint,
        selection.environment,
        known.path,
        moved_from=known.moved_from,
        operations_url=known.operations_url,
    )


def _check_file_gone(project: ProjectContext, gone: Deployment) -> None:
    """
    Invalid where the blueprint's file is there under another name than was asked for: what it still
    has is no orphan.
    """
    if not (project.project_dir / gone.path).is_file():
        return
    declared = environments(project, gone.path)
    if summarize(project, BlueprintSelection(gone.path, declared[0])).blueprint == gone.blueprint:
        hint = f"name the file: {gone.path}"
        raise Invalid([Problem(f"the blueprint {gone.blueprint} is not gone", hint=hint)])
