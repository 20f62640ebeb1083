"""
Restores the deployments of earlier runs with current secrets, for retry, rollback and promotion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from orchestrator.app.inspection.earlier_runs import (
    PriorRun,
    check_promotable,
    read_prior_run,
    run_to_retry,
)
from orchestrator.domain.blueprint.blueprint import (
    BlueprintSummary,
    Deployment,
    InputValue,
    Module,
    Policy,
    Step,
)
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import (
    StoredDeployment,
    literal_credentials,
    with_hook_steps,
    with_settings,
)
from orchestrator.domain.blueprint.yaml_tree import Problems, node_of
from orchestrator.domain.recovery.rerun_rules import module_blobs, snapshot_blob
from orchestrator.domain.target import is_name
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import (
    InputPolicy,
    InputResolver,
    InputSource,
    environment_sources,
)
from orchestrator.loading.linking import StoredModule
from orchestrator.loading.modules import split_reference
from orchestrator.loading.schema import Declaration
from orchestrator.loading.sources import commands_of
from orchestrator.loading.steps import FILE
from orchestrator.loading.summary import (
    StoreOpener,
    load_summary,
)
from orchestrator.loading.types import parse_type
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.run_files import RunFiles


def restore_deployment(
    project: ProjectContext,
    stored: StoredDeployment,
    *,
    run_id: str,
    summary: BlueprintSummary | None = None,
    present: Mapping[str, Step] = MappingProxyType({}),
    input_policy: InputPolicy = InputPolicy.REQUIRED,
    run_command: Callable[[Sequence[str]], str] | None = None,
) -> Deployment:
    """
    Return the deployment of run ``run_id``, with the secrets that the inputs and environment have
    now, or the steps that are ``present`` in the blueprint. ``summary`` is the blueprint, if it can
    be read. Raises Invalid, with all problems, if one of its secrets is no longer available; with
    `InputPolicy.AVAILABLE` it is left out instead.
    """
    problems, missing = Problems(), Problems()
    if input_policy is InputPolicy.REQUIRED:
        missing = problems
    at, root = Location(f"run {run_id}"), project.project_dir
    steps = {
        name: _step(step, stored, present, root, at, missing) for name, step in stored.steps.items()
    }
    inputs = _inputs(
        project, stored, at, input_policy, run_command or commands_of(project), problems
    )
    templates = [template for step in steps.values() for template in step.templates()]
    needed = frozenset().union(*(template.names("env") for template in templates))
    for name in sorted(needed - project.environ.keys()):
        missing.add(f"the environment variable {name} is not set", at)
    problems.check()
    path = summary.path if summary else stored.path
    former = (stored.path, *stored.moved_from, *(summary.moved_from if summary else ()))
    return Deployment(
        project=stored.project,
        called_in=summary.called_in if summary else "",
        blueprint=stored.blueprint,
        environment=stored.environment,
        project_dir=str(root),
        path=path,
        inputs=inputs,
        steps=steps,
        graph=Graph({name: step.needs for name, step in steps.items()}),
        engine=stored.engine,
        operations=summary.operations if summary else project.operations,
        protected=stored.protected or (summary is not None and summary.protected),
        policy=summary.policy if summary else Policy(),
        moved_from=tuple(dict.fromkeys(each for each in former if each != path)),
        env={name: project.environ[name] for name in stored.env if name in project.environ},
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
    step: Step,
    stored: StoredDeployment,
    present: Mapping[str, Step],
    project_dir: Path,
    at: Location,
    problems: Problems,
) -> Step:
    """
    Return the step and its module hooks with the withheld secrets filled in.
    """
    inputs: dict[str, Template] = dict(step.inputs)
    settings: dict[str, Json] = {}
    for name in stored.withheld.get(step.name, ()):
        if "." in name and (value := _setting(step.name, name, present)) is not None:
            settings[name] = value
        elif step.name in present and name in present[step.name].inputs:
            inputs[name] = present[step.name].inputs[name]
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
        module=stored_module(stored, step, project_dir),
    )
    return with_hook_steps(
        restored, lambda hook: _step(hook, stored, present, project_dir, at, problems)
    )


def _setting(step: str, name: str, present: Mapping[str, Step]) -> Json:
    """
    Return a credential in the settings of a step as the blueprint has it now; if the step is no
    longer there, the value that all other steps share. None if there is none.
    """
    candidates = [present[step]] if step in present else present.values()
    values = [literal_credentials(item).get(name) for item in candidates]
    return values[0] if values and all(value == values[0] for value in values) else None


def _inputs(
    project: ProjectContext,
    stored: StoredDeployment,
    at: Location,
    input_policy: InputPolicy,
    run_command: Callable[[Sequence[str]], str],
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
            node_of(stored.inputs[name].value, at), str(at), "file", project.project_dir
        )
        for name in secrets
    }
    sources |= environment_sources(secrets, project.environ, project.project_dir, problems)
    resolver = InputResolver(
        blueprint=stored.blueprint,
        environment=stored.environment,
        environ=project.environ,
        run_command=run_command,
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


def repeated_deployment(
    project: ProjectContext,
    selection: BlueprintSelection,
    files: RunFiles,
    open_store: StoreOpener,
    *,
    run_id: str | None,
    steps: Sequence[str],
) -> tuple[PriorRun, Deployment, str]:
    """
    Return the run to repeat, its deployment with current secrets, and a warning if the blueprint
    cannot be read: a run can be repeated without it. The run is the one that is named, else the one
    that the records of the steps name as failed.

    Raises Invalid if the blueprint cannot be read, and is given as a path, because that does not
    tell its name, or has no records.
    """
    summary, unreadable = None, None
    try:
        summary = load_summary(project, selection)
        blueprint, environment = summary.blueprint, summary.environment
    except Invalid as exc:
        if not is_name(selection.blueprint):
            problem = Problem(
                "the path leads to no blueprint that can be read",
                hint="give the blueprint by its name: then its file is not needed",
            )
            raise Invalid([*exc.problems, problem]) from exc
        blueprint, environment = selection.blueprint, selection.environment or "default"
        unreadable = exc
    with open_store(summary.operations if summary else project.operations) as store:
        if unreadable is not None and not store.records(blueprint, environment):
            raise unreadable
        prior = read_prior_run(
            files,
            store,
            run_to_retry(store, blueprint, environment, steps) if run_id is None else run_id,
            project=project.settings.project,
            blueprint=blueprint,
            environment=environment,
        )
    stored = prior.deployment
    present: Mapping[str, Step] = {}
    if stored.withheld:
        modules = {
            name: StoredModule(
                stored_module(stored, step, project.project_dir), step.module_ref, ""
            )
            for name, step in stored.steps.items()
        }
        with suppress(Invalid):
            present = load_deployment(
                project, selection, InputPolicy.CHECK_ONLY, stored_modules=modules
            ).steps_and_hooks()
    deployment = restore_deployment(
        project, stored, run_id=prior.record.run_id, summary=summary, present=present
    )
    warning = ""
    if unreadable is not None:
        why = unreadable.message.splitlines()[0]
        warning = f"the blueprint cannot be read as it is now, and is not needed: {why}"
    return prior, deployment, warning


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
    names = [name for row in prior.record.steps for name in module_blobs(row)]
    stored_blobs = {name: store.blob(name) for name in dict.fromkeys(names)}
    blobs = {name: data for name, data in stored_blobs.items() if data is not None}
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
