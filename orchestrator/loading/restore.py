"""
Restores stored deployments, with current secrets: those of earlier runs, and orphans: targets whose
step, environment or blueprint is gone from the project, found by their records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from orchestrator.app.inspection.read_context import alive_orphans, check_owner
from orchestrator.domain.blueprint.blueprint import (
    BlueprintSummary,
    Deployment,
    EngineRequirement,
    InputValue,
    Module,
    ModuleHook,
    Policy,
    Step,
)
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import (
    Orphan,
    StoredDeployment,
    UnreadableDeployment,
    literal_credentials,
    parse_deployment,
    with_hook_steps,
    with_settings,
)
from orchestrator.domain.blueprint.yaml_tree import Problems, node_of
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.target import step_of
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem, Refused, StoreUnavailable
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import (
    InputPolicy,
    InputResolver,
    InputSource,
    environment_sources,
)
from orchestrator.loading.modules import split_reference
from orchestrator.loading.schema import Declaration
from orchestrator.loading.sources import commands_of
from orchestrator.loading.summary import (
    StoreOpener,
    environment_names,
    load_summary,
    seen_locations,
    store_locations,
)
from orchestrator.loading.types import parse_type
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext


class CurrentSources(Struct, frozen=True):
    """
    The present values that a stored deployment needs: the process environment, the blueprint as far
    as it can be read, and the steps whose inputs hold secrets that only the blueprint has.
    """

    project_dir: Path
    environ: Mapping[str, str]
    run_command: Callable[[Sequence[str]], str]
    summary: BlueprintSummary | None = None
    steps: Mapping[str, Step] | None = None
    operations: StoreLocation = field(default_factory=StoreLocation)


def restore_deployment(
    stored: StoredDeployment,
    current: CurrentSources,
    *,
    run_id: str,
    input_policy: InputPolicy = InputPolicy.REQUIRED,
) -> Deployment:
    """
    Return the deployment of run ``run_id``. Raises Invalid, with all problems, if one of its
    secrets is no longer available; with `InputPolicy.AVAILABLE` it is left out instead.
    """
    problems, missing = Problems(), Problems()
    if input_policy is InputPolicy.REQUIRED:
        missing = problems
    at = Location(f"run {run_id}")
    steps = {name: _step(step, stored, current, at, missing) for name, step in stored.steps.items()}
    inputs = _inputs(stored, current, at, input_policy, problems)
    env = _environment(stored, steps, current, at, missing)
    problems.check()
    summary = current.summary
    return Deployment(
        project=stored.project,
        called_in=summary.called_in if summary else "",
        blueprint=stored.blueprint,
        environment=stored.environment,
        project_dir=str(current.project_dir),
        path=summary.path if summary else stored.path,
        inputs=inputs,
        steps=steps,
        graph=Graph({name: step.needs for name, step in steps.items()}),
        engine=stored.engine,
        operations=current.operations,
        protected=stored.protected or (summary is not None and summary.protected),
        policy=summary.policy if summary else Policy(),
        moved_from=_former_paths(stored, summary),
        env=env,
    )


def stored_module(stored: StoredDeployment, step: Step, project_dir: Path) -> Module:
    """
    Return the recorded module of a step, with its directory in the project, if it has one.
    """
    name, package = split_reference(step.module_ref)
    base = (project_dir / stored.path).parent
    return replace(
        step.module, directory=str(base / name), package=str(base / package) if package else None
    )


def _step(
    step: Step, stored: StoredDeployment, current: CurrentSources, at: Location, problems: Problems
) -> Step:
    """
    Return the step and its module hooks with the withheld secrets filled in.
    """
    current_step = (current.steps or {}).get(step.name)
    inputs: dict[str, Template] = dict(step.inputs)
    settings: dict[str, Json] = {}
    for name in stored.withheld.get(step.name, ()):
        if "." in name and (value := _setting(step.name, name, current)) is not None:
            settings[name] = value
        elif current_step is not None and name in current_step.inputs:
            inputs[name] = current_step.inputs[name]
        else:
            problems.add(
                f"the secret {name!r} of step {step.name!r} was written in the blueprint only, and "
                "has been removed from it",
                at,
                "put it back, or let it come from an input or a variable: `orchestrator redeploy`",
            )
    restored = replace(
        with_settings(step, settings),
        inputs=inputs,
        module=stored_module(stored, step, current.project_dir),
    )
    return with_hook_steps(restored, lambda root: _step(root, stored, current, at, problems))


def _setting(step: str, name: str, current: CurrentSources) -> Json:
    """
    Return a credential in the settings of a step as the blueprint has it now; if the step is no
    longer there, the value that all other steps share. None if there is none.
    """
    steps = current.steps or {}
    candidates = [steps[step]] if step in steps else steps.values()
    values = [literal_credentials(item).get(name) for item in candidates]
    return values[0] if values and all(value == values[0] for value in values) else None


def _inputs(
    stored: StoredDeployment,
    current: CurrentSources,
    at: Location,
    input_policy: InputPolicy,
    problems: Problems,
) -> dict[str, InputValue]:
    """
    Return the stored inputs with current secrets: from ``ORCHESTRATOR_INPUT_<name>``, else from the
    source of each.
    """
    secrets = {
        name: Declaration(
            name=name, at=at, type=parse_type(item.type), type_text=item.type, sensitive=True
        )
        for name, item in stored.inputs.items()
        if item.sensitive and item.value is not None
    }
    sources = {
        name: InputSource(
            node_of(stored.inputs[name].value, at), at, str(at), "file", current.project_dir
        )
        for name in secrets
    }
    sources |= environment_sources(secrets, current.environ, current.project_dir, problems)
    resolver = InputResolver(
        blueprint=stored.blueprint,
        environment=stored.environment,
        environ=current.environ,
        run_command=current.run_command,
        input_policy=input_policy,
        used=frozenset(secrets),
        problems=problems,
    )
    today = resolver.resolve(secrets.values(), sources)
    return {
        name: replace(today[name], digest=None)  # which of them differ is judged for all at once
        if name in today
        else InputValue(item.value, item.sensitive, str(at), type=item.type)
        for name, item in stored.inputs.items()
        if name in today or name not in secrets
    }


def _environment(
    stored: StoredDeployment,
    steps: Mapping[str, Step],
    current: CurrentSources,
    at: Location,
    problems: Problems,
) -> dict[str, str]:
    """
    Return the recorded environment variables with current values; one that a step needs must be
    set.
    """
    templates = [template for step in steps.values() for template in step.templates()]
    needed = frozenset().union(*(template.names("env") for template in templates))
    for name in sorted(needed - current.environ.keys()):
        problems.add(f"the environment variable {name} is not set", at)
    return {name: current.environ[name] for name in stored.env if name in current.environ}


def _former_paths(stored: StoredDeployment, summary: BlueprintSummary | None) -> tuple[str, ...]:
    """
    Return all other files whose records belong to this blueprint.
    """
    now = summary.path if summary else stored.path
    paths = (stored.path, *stored.moved_from, *(summary.moved_from if summary else ()))
    return tuple(dict.fromkeys(path for path in paths if path != now))


def deployment_with_orphans(
    project: ProjectContext, selection: BlueprintSelection, open_store: StoreOpener, *, whole: bool
) -> Deployment:
    """
    Return the blueprint as far as it still exists, with its orphans as they were applied:
    ``whole``, or only what a destroy needs. ``open_store`` opens an operation store.

    A blueprint or environment that no longer exists is found by its records in the operation stores
    of the project and of its other blueprints.
    """
    gone = gone_deployment(project, selection, open_store)
    base = gone or load_deployment(project, selection, InputPolicy.AVAILABLE)
    with open_store(base.operations) as store:
        orphans = find_orphans(store, base)
    current = CurrentSources(
        project_dir=project.project_dir,
        environ=project.environ,
        run_command=commands_of(project),
        steps=base.steps_and_hooks(),
    )
    return with_orphans(base, orphans, current, whole=whole)


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
    place = (summary.blueprint, environment)
    former = seen_locations(project, locations, lambda *former: former == place, open_store)
    for location in (*locations, *former):
        with open_store(location) as store:
            is_recorded = bool(store.records(*place))
        if is_recorded:
            return without_steps(
                project.settings.project,
                *place,
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


def with_orphans(
    base: Deployment, orphans: Mapping[str, Orphan], current: CurrentSources, *, whole: bool
) -> Deployment:
    """
    Return the deployment with its orphans, each with its recorded inputs and current secrets, as
    far as available. An orphan depends on the same steps as when it was applied, if they still
    exist. Unless ``whole``, orphans can be destroyed, but neither planned nor checked.

    Raises Invalid if they form a cycle, which is possible as they were applied at different times.
    """
    names = {*base.steps, *orphans}
    steps, env = dict(base.steps), dict(base.env)
    for name, orphan in orphans.items():
        # What the blueprint retained it no longer does: only what is recorded as retained is.
        step = replace(orphan.stored.steps[name], retain=None)
        step = step if whole else _bare(step)
        alone = _alone(orphan.stored, step)
        restored = restore_deployment(
            alone, current, run_id=orphan.run_id, input_policy=InputPolicy.AVAILABLE
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


def _bare(step: Step) -> Step:
    """
    Return the step with what a destroy needs. Of its compensation only the objects of a module can
    be destroyed.
    """
    compensation = step.compensate if isinstance(step.compensate, ModuleHook) else None
    return replace(step, verify=(), identity={}, search={}, compensate=compensation)


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
