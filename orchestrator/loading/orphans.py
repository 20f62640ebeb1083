"""
Orphans: targets whose step, environment or blueprint is gone from the project, found by their
records, with the deployments that they were applied from.
"""

from __future__ import annotations

from functools import partial

from orchestrator.app.inspection.read_context import alive_orphans, check_owner
from orchestrator.domain.blueprint.blueprint import (
    Deployment,
    EngineRequirement,
    ModuleHook,
    Step,
)
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.stored_deployment import (
    Orphan,
    StoredDeployment,
    UnreadableDeployment,
    parse_deployment,
    with_hook_steps,
)
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.target import step_of
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Problem, Refused, StoreUnavailable
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.restore import restore_deployment
from orchestrator.loading.summary import (
    StoreOpener,
    environment_names,
    load_summary,
    seen_locations,
    store_locations,
)
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext


def deployment_with_orphans(
    project: ProjectContext, selection: BlueprintSelection, open_store: StoreOpener, *, whole: bool
) -> Deployment:
    """
    Return the blueprint as far as it still exists, with its orphans as they were applied:
    ``whole``, or only what a destroy needs. ``open_store`` opens an operation store.

    A blueprint or environment that no longer exists is found by its records in the operation stores
    of the project and of its other blueprints. An orphan has its recorded inputs and current
    secrets, as far as available, and depends on the same steps as when it was applied, if they
    still exist.

    Raises Invalid if they form a cycle, which is possible as they were applied at different times.
    """
    gone = gone_deployment(project, selection, open_store)
    base = gone or load_deployment(project, selection, InputPolicy.AVAILABLE)
    with open_store(base.operations) as store:
        orphans = find_orphans(store, base)
    names = {*base.steps, *orphans}
    steps, env = dict(base.steps), dict(base.env)
    for name, orphan in orphans.items():
        # What the blueprint retained it no longer does: only what is recorded as retained is.
        step = replace(orphan.stored.steps[name], retain=None)
        if not whole:  # of a compensation only the objects of a module can be destroyed
            compensation = step.compensate if isinstance(step.compensate, ModuleHook) else None
            step = replace(step, verify=(), identity={}, search={}, compensate=compensation)
        restored = restore_deployment(
            project,
            _alone(orphan.stored, step),
            run_id=orphan.run_id,
            present=base.steps_and_hooks(),
            input_policy=InputPolicy.AVAILABLE,
        )
        orphan_step = replace(restored.steps[name], needs=step.needs & names, given=restored.inputs)
        given = partial(replace, given=restored.inputs)
        steps[name] = with_hook_steps(orphan_step, given)
        env = {**restored.env, **env}
    try:
        graph = Graph({name: step.needs for name, step in steps.items()})
    except CycleFound as exc:
        hint = "they were applied at different times; put one of them back into the blueprint"
        raise Invalid([Problem(str(exc), hint=hint)]) from exc
    return replace(
        base,
        steps=steps,
        graph=graph,
        env=env,
        protected=base.protected or any(o.stored.protected for o in orphans.values()),
        orphans=frozenset(orphans),
    )


def gone_deployment(
    project: ProjectContext, selection: BlueprintSelection, open_store: StoreOpener
) -> Deployment | None:
    """
    Return the deployment, without steps, of a blueprint or environment that only records know. None
    if it exists, or if nothing is recorded: then loading it reports what is wrong.
    """
    environment = selection.environment
    try:
        project.find_blueprint(selection.blueprint)
    except Invalid:
        locations = store_locations(project)
        former = seen_locations(
            project, locations, lambda name, _: name == selection.blueprint, open_store
        )
        for location in (*locations, *former):
            with open_store(location) as store:
                gone = gone_blueprint(
                    store, project.settings.project, selection.blueprint, environment
                )
            if gone is not None:
                _check_file_gone(project, gone)
                return replace(gone, operations=location)
        raise
    if environment is None:
        return None
    declared = environment_names(project, selection.blueprint)
    if environment in declared:
        return None
    summary = load_summary(project, BlueprintSelection(selection.blueprint, declared[0]))
    locations = [*store_locations(project, summary.blueprint), project.operations]
    blueprint = (summary.blueprint, environment)
    former = seen_locations(project, locations, lambda *former: former == blueprint, open_store)
    for location in (*locations, *former):
        with open_store(location) as store:
            is_recorded = bool(store.records(*blueprint))
        if is_recorded:
            return without_steps(
                project.settings.project,
                *blueprint,
                summary.path,
                moved_from=summary.moved_from,
                operations=location,
            )
    return None


def _check_file_gone(project: ProjectContext, gone: Deployment) -> None:
    """
    Raise Invalid if the blueprint's file still exists under another name than was asked for: then
    its steps are no orphans.
    """
    if not (project.project_dir / gone.path).is_file():
        return
    declared = environment_names(project, gone.path)
    summary = load_summary(project, BlueprintSelection(gone.path, declared[0]))
    if summary.blueprint == gone.blueprint:
        hint = f"name the file: {gone.path}"
        raise Invalid([Problem(f"the blueprint {gone.blueprint} is not gone", hint=hint)])


def _alone(stored: StoredDeployment, step: Step) -> StoredDeployment:
    """
    Return the deployment with one step only and what it refers to, so that the secrets of other
    steps are not required.
    """
    used = {
        (ref.kind, ref.names)
        for template in (*step.templates(), *step.hook_templates())
        for ref in template.references
    }
    return replace(
        stored,
        steps={step.name: replace(step, needs=frozenset())},
        inputs={n: item for n, item in stored.inputs.items() if ("input", (n,)) in used},
        env={n: item for n, item in stored.env.items() if ("env", (n,)) in used},
    )


def find_orphans(store: OperationStore, base: Deployment) -> dict[str, Orphan]:
    """
    Return the orphans of a deployment, each with the deployment it was applied from. A destroyed
    step counts if its hook's module may have left objects.

    Raises Refused if an orphan belongs to another project or file, or if the store lacks its
    deployment; StoreUnavailable if that cannot be read.
    """
    orphans, missing = {}, []
    for record in alive_orphans(base, store.records(base.blueprint, base.environment)):
        check_owner(record, base.project, (base.path, *base.moved_from))
        step = step_of(record.target.step)
        if step != record.target.step:
            own = store.newest(base.target(step))
            if own is None or own.status not in NOTHING_THERE:
                continue  # the step is an orphan itself
            record = own if record.deployment is None else record
        digest = record.deployment
        text = store.blob(deployment_blob(digest)) if digest else None
        if digest is None or text is None:
            missing.append(str(record.target))
            continue
        try:
            frozen = parse_deployment(text, digest)
        except UnreadableDeployment as exc:
            raise StoreUnavailable(
                f"what {record.target} was applied from cannot be read: {exc}",
                hint="another version of the tool wrote it, or the operation store is damaged",
            ) from exc
        if step not in frozen.steps:
            missing.append(str(record.target))
            continue
        orphans[step] = Orphan(step, record.run_id, frozen)
    if missing:
        raise Refused(
            "not_kept",
            f"the operation store does not have what was applied: {', '.join(missing)}",
            hint="put the steps back into the blueprint, apply them, and remove them again; or "
            "destroy them while they are in it",
        )
    return orphans


def gone_blueprint(
    store: OperationStore, project: str, wanted: str, environment: str | None
) -> Deployment | None:
    """
    Return a blueprint without steps that has records but no file; None without records. ``wanted``
    is its name or the former path of its file.

    Raises Refused if the records are of several files, Invalid if none is of the environment.
    """
    records = [
        record
        for record in store.records()
        if record.project == project
        and wanted in (record.target.blueprint, record.source.blueprint_path)
    ]
    if not records:
        return None
    name, chosen = records[0].target.blueprint, environment or "default"
    paths = sorted({record.source.blueprint_path for record in records})
    if len(paths) > 1:
        raise Refused(
            "foreign_record",
            f"{wanted} is recorded for several blueprint files: {', '.join(paths)}",
            hint="put the right one back",
        )
    environments = sorted({record.target.environment for record in records})
    if chosen not in environments:
        hint = f"recorded are: {', '.join(environments)}"
        raise Invalid([Problem(f"nothing is recorded of {name}/{chosen}", hint=hint)])
    return without_steps(project, name, chosen, paths[0])


def without_steps(
    project: str,
    blueprint: str,
    environment: str,
    path: str,
    *,
    moved_from: tuple[str, ...] = (),
    operations: StoreLocation | None = None,
) -> Deployment:
    """
    Return the deployment of a blueprint in an environment of which only records are left.
    """
    return Deployment(
        project=project,
        blueprint=blueprint,
        environment=environment,
        project_dir="",
        path=path,
        inputs={},
        steps={},
        graph=Graph({}),
        engine=EngineRequirement(),
        operations=operations or StoreLocation(),
        moved_from=moved_from,
    )
