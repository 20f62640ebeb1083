"""
Steps that left the blueprint, made again from what they were applied from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from orchestrator.app.inspection.orphans import find_orphans, gone_blueprint, without_steps
from orchestrator.domain.blueprint.blueprint import (
    CommandHook,
    Deployment,
    InputValue,
    ModuleHook,
    Step,
)
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import (
    Orphan,
    StoredDeployment,
    with_hook_steps,
)
from orchestrator.domain.blueprint.summary import BlueprintSummary
from orchestrator.errors import Invalid, Problem
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.project import project_files
from orchestrator.loading.restore import CurrentSources, restore_deployment
from orchestrator.loading.sources import run_command
from orchestrator.loading.summary import environment_names, load_summary
from orchestrator.loading.values import InputPolicy
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext

StoreOpener = Callable[
    [BlueprintSummary | Deployment | None], AbstractContextManager[OperationStore]
]


def deployment_with_orphans(
    project: ProjectContext, selection: BlueprintSelection, open_store: StoreOpener, *, whole: bool
) -> Deployment:
    """
    The blueprint as far as it is still there, and the steps that left it as they were applied:
    ``whole``, or only as far as a destroy needs them. ``open_store`` opens the operation store of a
    blueprint, for None the project's own.

    A blueprint or an environment that is gone altogether is known by its records in the project's
    own operation store.
    """
    base = _remaining_deployment(project, selection, open_store)
    with open_store(base) as store:
        orphans = find_orphans(store, base)
    current = CurrentSources(
        project_dir=project.project_dir,
        environ=project.environ,
        run_command=partial(run_command, directory=project.project_dir),
    )
    return with_orphans(base, orphans, current, whole=whole)


def _remaining_deployment(
    project: ProjectContext, selection: BlueprintSelection, open_store: StoreOpener
) -> Deployment:
    try:
        project_files(project).find(selection.blueprint, directory=project.directory)
    except Invalid:
        with open_store(None) as store:
            gone = gone_blueprint(
                store, project.settings.project, selection.blueprint, selection.environment
            )
        if gone is None:
            raise
        _check_file_gone(project, gone)
        return gone
    declared = environment_names(project, selection.blueprint)
    if selection.environment is None or selection.environment in declared:
        return load_deployment(project, selection, InputPolicy.AVAILABLE)
    summary = load_summary(project, BlueprintSelection(selection.blueprint, declared[0]))
    with open_store(summary) as store:
        if not store.records(summary.blueprint, selection.environment):
            # Loading says what is wrong with the name.
            return load_deployment(project, selection, InputPolicy.AVAILABLE)
    return without_steps(
        project.settings.project,
        summary.blueprint,
        selection.environment,
        summary.path,
        moved_from=summary.moved_from,
        operations_url=summary.operations_url,
    )


def _check_file_gone(project: ProjectContext, gone: Deployment) -> None:
    """
    Invalid where the blueprint's file is there under another name than was asked for: what it still
    has is no orphan.
    """
    if not (project.project_dir / gone.path).is_file():
        return
    declared = environment_names(project, gone.path)
    summary = load_summary(project, BlueprintSelection(gone.path, declared[0]))
    if summary.blueprint == gone.blueprint:
        hint = f"name the file: {gone.path}"
        raise Invalid([Problem(f"the blueprint {gone.blueprint} is not gone", hint=hint)])


def with_orphans(
    base: Deployment, orphans: Mapping[str, Orphan], present: CurrentSources, *, whole: bool
) -> Deployment:
    """
    The deployment with its orphans, each with the inputs that it was applied with and the secrets
    of today, as far as there are any; they need what they needed and what is still there. Those
    that are not ``whole`` can be destroyed, and neither asked for nor checked.

    Invalid where they need each other: they were applied at different times.
    """
    names = {*base.steps, *orphans}
    steps, env = dict(base.steps), dict(base.env)
    for name, orphan in orphans.items():
        # What the blueprint retained it no longer does: only what is recorded as retained is.
        step = replace(orphan.stored.steps[name], retain=None)
        step = step if whole else _bare(step)
        alone = _alone(orphan.stored, step)
        thawed = restore_deployment(
            alone, present, run_id=orphan.run_id, input_policy=InputPolicy.AVAILABLE
        )
        made = replace(thawed.steps[name], needs=step.needs & names, given=thawed.inputs)
        steps[name] = with_hook_steps(made, partial(_given, thawed.inputs))
        env = {**thawed.env, **env}
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


def _given(inputs: Mapping[str, InputValue], root: Step) -> Step:
    return replace(root, given=inputs)


def _bare(step: Step) -> Step:
    """
    The step as far as a destroy needs it. Of its compensation only a module has something to take
    down.
    """
    made = step.compensate if isinstance(step.compensate, ModuleHook) else None
    return replace(step, verify=(), identity={}, search={}, compensate=made)


def _alone(frozen: StoredDeployment, step: Step) -> StoredDeployment:
    """
    The deployment with one step only, and with what that step refers to: nobody is asked for the
    secrets of the others.
    """
    used = {(ref.kind, ref.names) for template in _templates(step) for ref in template.references}
    return frozen.model_copy(
        update={
            "steps": {step.name: replace(step, needs=frozenset())},
            "inputs": {n: item for n, item in frozen.inputs.items() if ("input", (n,)) in used},
            "env": {n: item for n, item in frozen.env.items() if ("env", (n,)) in used},
        }
    )


def _templates(step: Step) -> Iterator[Template]:
    yield from step.inputs.values()
    yield from step.providers.values()
    yield step.backend.config
    yield from step.identity.values()
    yield from step.search.values()
    yield from (check.settings for check in step.verify)
    for action in (step.compensate, step.before_destroy):
        match action:
            case ModuleHook(root):
                yield from _templates(root)
            case CommandHook(argv, environment):
                yield from (argv, environment)
            case None:
                pass
