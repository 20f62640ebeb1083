"""
Earlier runs, made ready to be done again: the part of the composition that starts from the
operation store instead of a blueprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import composition
from orchestrator.errors import Invalid, Problem

if TYPE_CHECKING:
    from orchestrator.app.inspection.run_lookup import PriorRun
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.blueprint.summary import BlueprintSummary
    from orchestrator.project import BlueprintSelection, ProjectContext


@dataclass(frozen=True, slots=True)
class Rerun:
    """
    An earlier run of a blueprint, and the blueprint as it can still be read; ``unread`` says why it
    cannot.
    """

    earlier: PriorRun
    outline: BlueprintSummary | None
    unread: str = ""


def find_rerun(
    project: ProjectContext, selection: BlueprintSelection, run_id: str | None, steps: Sequence[str]
) -> Rerun:
    """
    The run of this blueprint and environment that is to be done again: the one that is named, else
    the one that the records of the steps name as failed.

    It needs no blueprint file. Where that cannot be read, the run is looked for in the project's
    own operation store; if nothing of the blueprint is there, Invalid says what is wrong with the
    file.
    """
    from orchestrator.app.inspection.run_lookup import read_prior_run, run_to_retry
    from orchestrator.domain.target import is_name

    found, unread = None, None
    try:
        found = composition.summarize(project, selection)
    except Invalid as exc:
        if not is_name(selection.blueprint):
            way = "give the blueprint by its name: then its file is not needed"
            raise Invalid(
                [
                    *exc.problems,
                    Problem("the path leads to no blueprint that can be read", hint=way),
                ]
            ) from exc
        unread = exc
    blueprint = found.blueprint if found else selection.blueprint
    environment = found.environment if found else selection.environment or "default"
    with composition.open_archive(project, found) as (files, store):
        if unread is not None and not store.records(blueprint, environment):
            raise unread
        named = run_to_retry(store, blueprint, environment, steps) if run_id is None else run_id
        then = read_prior_run(
            files,
            store,
            named,
            project=project.settings.project,
            blueprint=blueprint,
            environment=environment,
        )
    return Rerun(then, found, unread.message.splitlines()[0] if unread else "")


def restored_deployment(
    project: ProjectContext, selection: BlueprintSelection, of: Rerun
) -> Deployment:
    """
    What an earlier run meant to do, ready to run with the secrets of today.
    """
    from orchestrator.loading.linking import StoredModule
    from orchestrator.loading.restore import CurrentSources, restore_deployment, stored_module
    from orchestrator.loading.sources import run_command
    from orchestrator.loading.values import InputPolicy

    frozen, roots = of.earlier.deployment, None
    if frozen.withheld:
        kept = {
            name: StoredModule(
                stored_module(frozen, step, project.project_dir), step.module_ref, ""
            )
            for name, step in frozen.steps.items()
        }
        with suppress(Invalid):
            roots = composition.load_deployment(
                project, selection, InputPolicy.CHECK_ONLY, kept
            ).steps_and_hooks()
    present = CurrentSources(
        project_dir=project.project_dir,
        environ=project.environ,
        run_command=partial(run_command, directory=project.project_dir),
        summary=of.outline,
        steps=roots,
        operations_url=of.outline.operations_url if of.outline else project.settings.operations_url,
    )
    return restore_deployment(frozen, present, run_id=of.earlier.record.run_id)


def promotion(
    project: ProjectContext,
    selection: BlueprintSelection,
    run_id: str,
    *,
    steps: Sequence[str],
    exclude: Sequence[str],
) -> tuple[PriorRun, Deployment]:
    """
    A run of the blueprint in any environment, and the blueprint in this one with the modules of
    that run. Refused where the run does not have them for all of the steps.
    """
    from orchestrator.app.inspection.run_lookup import check_promotable, read_prior_run
    from orchestrator.domain.recovery.rerun_rules import snapshot_blob
    from orchestrator.engine.workdir.snapshot import text_of, unpack
    from orchestrator.loading.behaviour import FILE
    from orchestrator.loading.linking import StoredModule
    from orchestrator.loading.restore import stored_module
    from orchestrator.loading.values import InputPolicy

    found = composition.summarize(project, selection)
    kept: dict[str, StoredModule] = {}
    with composition.open_archive(project, found) as (files, store):
        then = read_prior_run(
            files,
            store,
            run_id,
            project=found.project,
            blueprint=found.blueprint,
            environment=None,
        )
        check_promotable(store, then.record, found.graph.select(steps, exclude))
        for row in then.record.steps:
            step = then.deployment.steps.get(row.step)
            archive = store.blob(snapshot_blob(row.module_digest)) if row.module_digest else None
            if step is not None and archive is not None:
                defaults = text_of(unpack(archive), FILE)
                module = stored_module(then.deployment, step, project.project_dir)
                kept[row.step] = StoredModule(module, step.module_ref, defaults)
    return then, composition.load_deployment(project, selection, InputPolicy.REQUIRED, kept)
