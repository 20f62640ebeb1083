"""
From a kept deployment back to one that can be run, with the secrets of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Deployment, InputValue, Module, Step
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import StoredDeployment, with_hook_steps
from orchestrator.domain.blueprint.summary import BlueprintSummary
from orchestrator.domain.blueprint.yaml_tree import Problems, node_of
from orchestrator.errors import Location
from orchestrator.loading.input_precedence import CommandInputs, InputSource, add_text_sources
from orchestrator.loading.modules import split_reference
from orchestrator.loading.schema import Declaration
from orchestrator.loading.types import parse_type
from orchestrator.loading.values import InputPolicy, InputResolver


@dataclass(frozen=True, slots=True)
class CurrentSources:
    """
    What a kept deployment takes from today: the process environment, the blueprint as far as it can
    still be read, and the roots whose inputs hold secrets that only the blueprint has.
    """

    project_dir: Path
    environ: Mapping[str, str]
    run_command: Callable[[Sequence[str]], str]
    summary: BlueprintSummary | None = None
    steps: Mapping[str, Step] | None = None
    operations_url: str | None = None


def restore_deployment(
    stored: StoredDeployment,
    current: CurrentSources,
    *,
    run_id: str,
    input_policy: InputPolicy = InputPolicy.REQUIRED,
) -> Deployment:
    """
    The deployment of run ``run_id``. Invalid, with all problems, where a secret of it is not to be
    had any more; where those that are AVAILABLE do, it is left out.
    """
    problems, lacking = Problems(), Problems()
    if input_policy is InputPolicy.REQUIRED:
        lacking = problems
    at = Location(f"run {run_id}")
    steps = {name: _step(step, stored, current, at, lacking) for name, step in stored.steps.items()}
    inputs = _inputs(stored, current, at, input_policy, problems)
    env = _environment(stored, steps, current, at, lacking)
    problems.check()
    outline = current.summary
    return Deployment(
        project=stored.project,
        called_in=outline.called_in if outline else "",
        blueprint=stored.blueprint,
        environment=stored.environment,
        project_dir=str(current.project_dir),
        path=outline.path if outline else stored.path,
        inputs=inputs,
        steps=steps,
        graph=Graph({name: step.needs for name, step in steps.items()}),
        engine=stored.engine,
        operations_url=current.operations_url,
        protected=stored.protected or (outline is not None and outline.protected),
        moved_from=_former_paths(stored, outline),
        env=env,
    )


def stored_module(stored: StoredDeployment, step: Step, project_dir: Path) -> Module:
    """
    What the module of a kept step said of itself, and where it lies in the project if at all.
    """
    name, package = split_reference(step.module_ref)
    base = (project_dir / stored.path).parent
    return replace(
        step.module, directory=str(base / name), package=str(base / package) if package else None
    )


def _step(
    step: Step, frozen: StoredDeployment, present: CurrentSources, at: Location, problems: Problems
) -> Step:
    """
    The step and the roots of its actions, with what was withheld of them.
    """
    known = (present.steps or {}).get(step.name)
    inputs: dict[str, Template] = dict(step.inputs)
    for name in frozen.withheld.get(step.name, ()):
        if known is not None and name in known.inputs:
            inputs[name] = known.inputs[name]
        else:
            problems.add(
                f"the secret {name!r} of step {step.name!r} stands in the blueprint only, and is "
                "not there any more",
                at,
                "put it back, or let it come from an input or a variable: `orchestrator redeploy`",
            )
    whole = replace(step, inputs=inputs, module=stored_module(frozen, step, present.project_dir))
    return with_hook_steps(whole, lambda root: _step(root, frozen, present, at, problems))


def _inputs(
    frozen: StoredDeployment,
    present: CurrentSources,
    at: Location,
    need: InputPolicy,
    problems: Problems,
) -> dict[str, InputValue]:
    """
    The values of then, each secret as it is today: from ``ORCHESTRATOR_INPUT_<name>``, else from
    where it came.
    """
    secrets = {
        name: Declaration(
            name=name, at=at, type=parse_type(item.type), type_text=item.type, sensitive=True
        )
        for name, item in frozen.inputs.items()
        if item.sensitive and item.value is not None
    }
    found = {
        name: InputSource(
            node_of(frozen.inputs[name].value, at), at, str(at), "file", present.project_dir
        )
        for name in secrets
    }
    add_text_sources(
        secrets, CommandInputs((), (), present.environ, present.project_dir), found, problems
    )
    resolver = InputResolver(
        blueprint=frozen.blueprint,
        environment=frozen.environment,
        environ=present.environ,
        run_command=present.run_command,
        policy=need,
        used=frozenset(secrets),
        problems=problems,
    )
    today = resolver.resolve(secrets.values(), found)
    return {
        name: replace(today[name], digest=None)  # which of them differ is judged for all at once
        if name in today
        else InputValue(item.value, item.sensitive, str(at), type=item.type)
        for name, item in frozen.inputs.items()
        if name in today or name not in secrets
    }


def _environment(
    frozen: StoredDeployment,
    steps: Mapping[str, Step],
    present: CurrentSources,
    at: Location,
    problems: Problems,
) -> dict[str, str]:
    """
    The environment variables of then as they are today; one that a step needs must be set.
    """
    needed = {
        reference.names[0]
        for step in steps.values()
        for template in _templates(step)
        for reference in template.references
        if reference.kind == "env"
    }
    for name in sorted(needed - present.environ.keys()):
        problems.add(f"the environment variable {name} is not set", at)
    return {name: present.environ[name] for name in frozen.env if name in present.environ}


def _templates(step: Step) -> Iterator[Template]:
    """
    What is resolved when the step is applied; its actions are not.
    """
    yield from step.inputs.values()
    yield from step.providers.values()
    yield step.backend.config
    yield from step.identity.values()
    yield from step.search.values()
    yield from (check.settings for check in step.verify)


def _former_paths(frozen: StoredDeployment, outline: BlueprintSummary | None) -> tuple[str, ...]:
    """
    All files whose records are those of this blueprint, beside the one it is in now.
    """
    now = outline.path if outline else frozen.path
    known = (frozen.path, *frozen.moved_from, *(outline.moved_from if outline else ()))
    return tuple(dict.fromkeys(path for path in known if path != now))
