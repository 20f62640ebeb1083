"""
From a blueprint's name to a checked `Deployment`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import (
    CommandHook,
    Constraint,
    Deployment,
    EngineKind,
    EngineRequirement,
    Step,
)
from orchestrator.domain.blueprint.check_settings import validate_check
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.values import replace
from orchestrator.errors import Refused
from orchestrator.loading import sources
from orchestrator.loading.behaviour import Behaviour, parse_behaviour
from orchestrator.loading.blueprint_file import (
    environment_variables,
    operations_url,
    read_blueprint,
    resolve_inputs,
    used_inputs,
)
from orchestrator.loading.environments import merge_step
from orchestrator.loading.hooks import RawHook, parse_hooks
from orchestrator.loading.inputs import InputPolicy, check_written
from orchestrator.loading.linking import CheckValidator, ModuleReader, StepLinker, StoredModule
from orchestrator.loading.modules import read_module
from orchestrator.loading.raw_steps import parse_step
from orchestrator.loading.schema import RawBlueprint, without_nulls
from orchestrator.loading.sources import is_from
from orchestrator.loading.state_locations import check_state_locations
from orchestrator.loading.summary import store_location
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.trust import Trust

# The parts of a blueprint that the operator's trust file forbids.


def check_behaviour(
    trust: Trust, behaviour: Behaviour, hooks: Iterable[RawHook], problems: Problems
) -> None:
    """
    Add a problem for each check and hook of a step that would run a program.
    """
    for spec, value in behaviour.checks:
        if spec.kind == "command":
            trust.check_command("verify.command", value.node.at, problems)
    for hook in hooks:
        if hook.argv is not None:
            trust.check_command(f"{hook.kind}.command", hook.argv.node.at, problems)


def check_inputs(trust: Trust, blueprint: RawBlueprint, problems: Problems) -> None:
    """
    Add a problem for each input whose value a program would give, in any environment.
    """
    for node in _values(blueprint):
        if is_from(node) and "command" in node.fields["from"].fields:
            at = node.fields["from"].fields["command"].at
            trust.check_command("from.command", at, problems)


def _values(blueprint: RawBlueprint) -> Iterator[Node]:
    yield from (item.default for item in blueprint.inputs.values() if item.default is not None)
    for environment in blueprint.environments.values():
        if environment.inputs is not None:
            yield from environment.inputs.fields.values()


def check_trusted(trust: Trust, deployment: Deployment) -> None:
    """
    Refused where a step would run a program, also one that is known only from records.
    """
    if trust.commands:
        return
    for step in deployment.steps.values():
        kinds = [f"verify.{check.kind}" for check in step.verify if check.kind == "command"]
        kinds += [
            f"{kind}.command"
            for kind, hook in (
                ("compensate", step.compensate), ("before_destroy", step.before_destroy)
            )
            if isinstance(hook, CommandHook)
        ]  # fmt: skip
        if kinds:
            what = f"{kinds[0]} of step {step.name!r}"
            raise Refused(
                "untrusted",
                trust.forbidden(what, "commands: false"),
                hint="take it out of the blueprint; who runs the tool may allow it",
            )


def load_deployment(
    project: ProjectContext,
    selection: BlueprintSelection,
    input_policy: InputPolicy = InputPolicy.REQUIRED,
    *,
    stored_modules: Mapping[str, StoredModule] | None = None,
    run_command: Callable[[Sequence[str]], str] | None = None,
    read_module: ModuleReader = read_module,
    validate_check: CheckValidator | None = validate_check,
) -> Deployment:
    """
    The blueprint in an environment, with its inputs and modules, checked as a whole.

    ``stored_modules`` are modules of an earlier run in place of those in the project. Invalid with
    all problems found.
    """
    run_command = run_command or sources.commands_of(project)
    reading = read_blueprint(project, selection)
    problems, blueprint = reading.problems, reading.blueprint
    trust = project.settings.trust
    for item in blueprint.environments.values():
        for name, node in item.steps.items():
            merged = merge_step(blueprint.steps[name], node)
            raw_step = parse_step(
                name, merged, blueprint.step_at[name], reading.effective, problems
            )
            behaviour = parse_behaviour(raw_step.fields, {}, problems)
            hooks = parse_hooks(raw_step, problems)
            check_behaviour(trust, behaviour, hooks.values(), problems)
    check_written(blueprint, problems)
    check_inputs(trust, blueprint, problems)
    engine = _engine(reading.effective.settings.engine, problems)
    linker = StepLinker(
        blueprint=blueprint,
        project=reading.project,
        base=reading.path.parent,
        read_module=read_module,
        validate_check=validate_check,
        problems=problems,
        modules_from="recorded" if input_policy is InputPolicy.AVAILABLE else "present",
        stored_modules=stored_modules or {},
        engine=_engine_kind(project, selection, engine),
    )
    linked = linker.link(reading.raw_steps)
    for name, behaviour in linked.behaviours.items():
        check_behaviour(trust, behaviour, linked.hooks[name].values(), problems)
    input_policy = input_policy if reading.environment_is_valid else InputPolicy.CHECK_ONLY
    values = linked.templates()
    env = environment_variables(values, project.environ, need=input_policy, problems=problems)
    # What a hook refers to need not be set before the hook is carried out.
    env |= environment_variables(
        linked.hook_templates(),
        project.environ,
        need=InputPolicy.AVAILABLE,
        problems=problems,
    )
    unavailable: dict[str, str] = {}
    inputs = resolve_inputs(
        reading,
        need=input_policy,
        used=used_inputs(values),
        run_command=run_command,
        secret=used_inputs(linked.sensitive_templates()),
        secrets=list(env.values()),
        unavailable=unavailable,
    )
    linked.check_values(inputs, Problems() if input_policy is InputPolicy.AVAILABLE else problems)
    url = operations_url(reading, need=input_policy)
    if reading.environment_is_valid:
        check_state_locations(reading, inputs)
    problems.check()
    return Deployment(
        project=project.settings.project,
        called_in=project.called_in,
        blueprint=blueprint.name,
        environment=reading.effective.name,
        project_dir=str(reading.project.project_dir),
        path=reading.project.show(reading.path),
        inputs=inputs,
        steps=_with_stored_refs(linked.steps(), stored_modules or {}),
        graph=linked.graph,
        engine=engine,
        operations=store_location(reading, inputs, url or project.settings.operations_url),
        protected=reading.effective.protected,
        policy=reading.policy,
        drift_rules=reading.drift_rules,
        moved_from=blueprint.moved_from,
        env=env,
        unavailable=unavailable,
    )


def _with_stored_refs(
    steps: Mapping[str, Step], stored_modules: Mapping[str, StoredModule]
) -> dict[str, Step]:
    """
    The steps; one with a stored module refers to it as the blueprint did then.
    """
    return {
        name: replace(step, module_ref=stored_modules[name].module_ref)
        if name in stored_modules
        else step
        for name, step in steps.items()
    }


def _engine_kind(
    project: ProjectContext, selection: BlueprintSelection, wanted: EngineRequirement
) -> EngineKind:
    """
    The kind of the engine that will read the modules, as far as files and options tell: an option,
    the blueprint, else what is on PATH. The engine that is chosen in the end is held to it. A
    version manager's program may have a name that tells no kind.
    """
    named = Path(selection.engine_option or project.settings.engine or "").name
    if "tofu" in named:
        return "tofu"
    if "terraform" in named or named == "embedded":
        return "terraform"
    if wanted.kind is not None:
        return wanted.kind
    path = project.environ.get("PATH")
    if shutil.which("terraform", path=path) is None and shutil.which("tofu", path=path):
        return "tofu"
    return "terraform"


def _engine(node: Node | None, problems: Problems) -> EngineRequirement:
    if node is None:
        return EngineRequirement()
    fields = without_nulls(problems.fields(node, ("kind", "version"), what="engine"))
    kind, version = fields.get("kind"), fields.get("version")
    constraint = None
    if version is not None:
        text = problems.text(version, what="engine.version")
        constraint = Constraint(text, version.at) if text else None
    match kind.value if kind else None:
        case "terraform":
            return EngineRequirement("terraform", constraint)
        case "tofu":
            return EngineRequirement("tofu", constraint)
        case None:
            return EngineRequirement(None, constraint)
        case _:
            at = kind.at if kind else node.at
            problems.add("engine.kind must be `terraform` or `tofu`", at)
            return EngineRequirement(None, constraint)
