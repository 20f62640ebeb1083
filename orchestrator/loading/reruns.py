"""
Loads deployments of earlier runs for retry, rollback and promotion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.app.inspection.earlier_runs import (
    PriorRun,
    check_promotable,
    read_prior_run,
    run_to_retry,
)
from orchestrator.domain.blueprint.blueprint import BlueprintSummary, Deployment
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.recovery.rerun_rules import module_blobs, snapshot_blob
from orchestrator.domain.target import is_name
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Problem
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.linking import StoredModule
from orchestrator.loading.restore import CurrentSources, restore_deployment, stored_module
from orchestrator.loading.sources import commands_of
from orchestrator.loading.steps import FILE
from orchestrator.loading.summary import load_summary
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.run_files import RunFiles


def summary_if_readable(
    project: ProjectContext, selection: BlueprintSelection
) -> BlueprintSummary | Invalid:
    """
    Return the blueprint's summary, or the problems of its file: a run can be repeated without it.
    Raises Invalid if the blueprint is given as a path, because that does not tell its name.
    """
    try:
        return load_summary(project, selection)
    except Invalid as exc:
        if is_name(selection.blueprint):
            return exc
        problem = Problem(
            "the path leads to no blueprint that can be read",
            hint="give the blueprint by its name: then its file is not needed",
        )
        raise Invalid([*exc.problems, problem]) from exc


def find_prior_run(
    files: RunFiles,
    store: OperationStore,
    project: ProjectContext,
    selection: BlueprintSelection,
    summary: BlueprintSummary | Invalid,
    *,
    run_id: str | None,
    steps: Sequence[str],
) -> PriorRun:
    """
    Return the run to repeat: the one that is named, else the one that the records of the steps name
    as failed. If the file cannot be read and nothing is recorded, the problems of the file are
    raised.
    """
    if isinstance(summary, Invalid):
        blueprint, environment = selection.blueprint, selection.environment or "default"
        if not store.records(blueprint, environment):
            raise summary
    else:
        blueprint, environment = summary.blueprint, summary.environment
    return read_prior_run(
        files,
        store,
        run_to_retry(store, blueprint, environment, steps) if run_id is None else run_id,
        project=project.settings.project,
        blueprint=blueprint,
        environment=environment,
    )


def repeated_deployment(
    project: ProjectContext,
    selection: BlueprintSelection,
    prior: PriorRun,
    summary: BlueprintSummary | None,
) -> Deployment:
    """
    Return the deployment of an earlier run with current secrets.
    """
    stored, steps = prior.deployment, None
    if stored.withheld:
        modules = {
            name: StoredModule(
                stored_module(stored, step, project.project_dir), step.module_ref, ""
            )
            for name, step in stored.steps.items()
        }
        with suppress(Invalid):
            steps = load_deployment(
                project, selection, InputPolicy.CHECK_ONLY, stored_modules=modules
            ).steps_and_hooks()
    current = CurrentSources(
        project_dir=project.project_dir,
        environ=project.environ,
        run_command=commands_of(project),
        summary=summary,
        steps=steps,
        operations=summary.operations if summary else project.operations,
    )
    return restore_deployment(stored, current, run_id=prior.record.run_id)


def promoted_deployment(
    files: RunFiles,
    store: OperationStore,
    project: ProjectContext,
    selection: BlueprintSelection,
    summary: BlueprintSummary,
    *,
    run_id: str,
    steps: Sequence[str],
    exclude: Sequence[str],
    read_archived: Callable[[bytes, str], str],
) -> tuple[PriorRun, Deployment]:
    """
    Return a run of the blueprint in any environment, and the blueprint in this environment with the
    modules of that run. Raises Refused if the run lacks the module of a step. ``read_archived``
    returns the text of a file in a module archive, "" if there is none.
    """
    prior = read_prior_run(
        files,
        store,
        run_id,
        project=summary.project,
        blueprint=summary.blueprint,
        environment=None,
    )
    blobs = _blobs_of_modules(store, prior.record)
    check_promotable(blobs, prior.record, summary.graph.select(steps, exclude))
    modules: dict[str, StoredModule] = {}
    for row in prior.record.steps:
        step = prior.deployment.steps.get(row.step)
        archive = blobs.get(snapshot_blob(row.module_digest)) if row.module_digest else None
        if step is not None and archive is not None:
            module = stored_module(prior.deployment, step, project.project_dir)
            defaults = read_archived(archive, FILE)
            modules[row.step] = StoredModule(module, step.module_ref, defaults)
    promoted = load_deployment(project, selection, stored_modules=modules)
    return replace(prior, modules=blobs), promoted


def _blobs_of_modules(store: OperationStore, run: RunRecord) -> dict[str, bytes]:
    """
    Return the module snapshots and lock files of a run that the store has, by blob name.
    """
    names = [name for row in run.steps for name in module_blobs(row)]
    blobs = {name: store.blob(name) for name in dict.fromkeys(names)}
    return {name: data for name, data in blobs.items() if data is not None}
