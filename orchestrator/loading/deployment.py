"""
Loads a checked `Deployment` by the name of its blueprint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from orchestrator.backend_location import location
from orchestrator.domain.blueprint.blueprint import (
    CommandHook,
    Constraint,
    Deployment,
    EngineKind,
    EngineRequirement,
    InputValue,
)
from orchestrator.domain.blueprint.references import Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document
from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Refused
from orchestrator.loading import sources
from orchestrator.loading.behaviour import Behaviour, parse_behaviour
from orchestrator.loading.blueprint_file import (
    ReadBlueprint,
    environment_variables,
    operations_url,
    read_blueprint,
    resolve_inputs,
    used_inputs,
)
from orchestrator.loading.environments import DEFAULT, effective_blueprint, merge_step
from orchestrator.loading.files import read_text
from orchestrator.loading.hooks import RawHook, parse_hooks
from orchestrator.loading.inputs import InputPolicy, check_written
from orchestrator.loading.linking import StepLinker, StoredModule
from orchestrator.loading.located_templates import known_values
from orchestrator.loading.raw_steps import RawStep, backend_rules, parse_backend, parse_step
from orchestrator.loading.schema import RawBlueprint, parse_blueprint
from orchestrator.loading.sources import is_from
from orchestrator.loading.summary import store_location
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.trust import Trust

# Where the provider states of a project lie, as its blueprints say: each place belongs to one
# target.


class _Declared(Struct, frozen=True):
    """
    A target, and where its backend is declared.
    """

    target: Target
    at: Location


def check_state_locations(reading: ReadBlueprint, inputs: Mapping[str, InputValue]) -> None:
    """
    Add a problem for each state location that several targets share, if one of them belongs to this
    blueprint and environment. ``inputs`` are its inputs.

    For other environments and blueprints only values written in files are known; a location that
    depends on command-line inputs is not compared.
    """
    places: dict[str, list[_Declared]] = {}
    for other in _declared_blueprints(reading):
        own = other.path == reading.path and other.effective.name == reading.effective.name
        other = reading if own else other
        values = inputs if own else _written_inputs(other)
        for declared, place in _places(other, values):
            places.setdefault(place, []).append(declared)
    here = (reading.blueprint.name, reading.effective.name)
    for group in places.values():
        targets = sorted({str(item.target) for item in group})
        if len(targets) < 2 or here not in [
            (item.target.blueprint, item.target.environment) for item in group
        ]:
            continue
        first = min(group, key=lambda item: str(item.target))
        reading.problems.add(
            f"{', '.join(targets)} would share one provider state",
            first.at,
            "put ${blueprint.name}, ${environment} and ${step.name} into the backend's settings; "
            "each state belongs to one target",
        )


def _declared_blueprints(reading: ReadBlueprint) -> Iterator[ReadBlueprint]:
    """
    Yield the project's blueprints in each of their environments, this one included.
    """
    yield from _environments(reading, reading.blueprint, reading.path)
    names_places = "backend" in read_text(reading.path, shown=str(reading.path))
    for paths in reading.project.blueprints().values():
        for path in paths:
            if path == reading.path:
                continue
            try:
                text = read_text(path, shown=str(path))
                # Without one its states lie below a directory of its own name.
                if "backend" not in text and not names_places:
                    continue
                shown = reading.project.show(path)
                blueprint = parse_blueprint(parse_document(text, file=shown), Problems())
            except Invalid:
                continue  # it is told when it is loaded itself
            yield from _environments(reading, blueprint, path)


def _environments(
    reading: ReadBlueprint, blueprint: RawBlueprint, path: Path
) -> Iterator[ReadBlueprint]:
    for name in tuple(blueprint.environments) or (DEFAULT,):
        effective, ignored = effective_blueprint(blueprint, name), Problems()
        yield replace(
            reading,
            context=replace(reading.context, environ={}),
            selection=BlueprintSelection(blueprint.name),
            path=path,
            blueprint=blueprint,
            effective=effective,
            raw_steps={
                step: parse_step(step, node, blueprint.step_at[step], effective, ignored)
                for step, node in effective.steps.items()
            },
            backend=parse_backend(effective.settings.backend, ignored),
            problems=ignored,
        )


def _written_inputs(reading: ReadBlueprint) -> Mapping[str, InputValue]:
    """
    Return the values of the inputs that backends refer to, as far as blueprint and input files
    contain them.
    """
    used = used_inputs(step.backend.config for step in reading.raw_steps.values())
    if not used:
        return {}
    return resolve_inputs(
        reading, input_policy=InputPolicy.CHECK_ONLY, used=used, run_command=lambda _: ""
    )


def _places(
    reading: ReadBlueprint, inputs: Mapping[str, InputValue]
) -> Iterator[tuple[_Declared, str]]:
    """
    Yield the targets of a blueprint in an environment (steps and module hooks), each with its state
    location, if known.
    """
    blueprint, environment = reading.blueprint.name, reading.effective.name
    # A secret is no part of an address.
    values = {name: item.value for name, item in inputs.items() if not item.sensitive}
    for step in reading.raw_steps.values():
        hooks = parse_hooks(step, Problems()).values()
        look_up = known_values(blueprint, environment, step=step.name, inputs=values)
        for raw in (step, *(hook.step for hook in hooks if hook.step is not None)):
            backend = raw.backend
            try:
                config = backend.config.template.resolve(look_up).value or {}
                place = location(backend.type, config, reading.project.project_dir)
            except Unresolvable:
                continue  # what is wrong with it is told where the blueprint is loaded itself
            except Invalid as exc:
                if not reading.problems:  # else it may follow from what is wrong already
                    for problem in exc.problems:
                        reading.problems.add(problem.message, _backend_at(raw), problem.hint)
                continue
            if backend.type == "local":
                place = os.path.realpath(reading.project.project_dir / place)
            target = Target(blueprint, environment, raw.name)
            yield _Declared(target, _backend_at(raw)), f"{backend.type} {place}"


def _backend_at(step: RawStep) -> Location:
    at = step.backend.config.node.at
    return at if at.line else step.at


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
    Add a problem for each input, in any environment, whose value comes from a program.
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
    Raise Refused if a step would run a program, also for a step that is only in records.
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
) -> Deployment:
    """
    Load the blueprint in an environment, with its inputs and modules, and check it as a whole.

    ``stored_modules`` replace modules of the project by those of an earlier run. Raises Invalid
    with all problems.
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
        problems=problems,
        modules_from="recorded" if input_policy is InputPolicy.AVAILABLE else "present",
        stored_modules=stored_modules or {},
        engine=_engine_kind(project, selection, engine),
    )
    linked, graph = linker.link(reading.raw_steps)
    for step in linked.values():
        check_behaviour(trust, step.behaviour, step.hooks.values(), problems)
    input_policy = input_policy if reading.environment_is_valid else InputPolicy.CHECK_ONLY
    values = [value for step in linked.values() for value in step.templates()]
    env = environment_variables(
        values, project.environ, input_policy=input_policy, problems=problems
    )
    # What a hook refers to need not be set before the hook is carried out.
    env |= environment_variables(
        [v for step in linked.values() for hook in step.hooks.values() for v in hook.values()],
        project.environ,
        input_policy=InputPolicy.AVAILABLE,
        problems=problems,
    )
    unavailable: dict[str, str] = {}
    inputs = resolve_inputs(
        reading,
        input_policy=input_policy,
        used=used_inputs(values),
        run_command=run_command,
        secret=used_inputs(v for step in linked.values() for v in step.sensitive_templates()),
        secrets=list(env.values()),
        unavailable=unavailable,
    )
    rules = backend_rules(blueprint, inputs)
    for step in linked.values():
        step.check_values(
            rules, inputs, Problems() if input_policy is InputPolicy.AVAILABLE else problems
        )
    url = operations_url(reading, input_policy=input_policy)
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
        steps={name: step.step(graph.needs(name)) for name, step in linked.items()},
        graph=graph,
        engine=engine,
        operations=store_location(reading, inputs, url or project.settings.operations_url),
        protected=reading.effective.protected,
        policy=reading.policy,
        drift_rules=reading.drift_rules,
        moved_from=blueprint.moved_from,
        env=env,
        unavailable=unavailable,
    )


def _engine_kind(
    project: ProjectContext, selection: BlueprintSelection, requirement: EngineRequirement
) -> EngineKind:
    """
    Return the kind of engine that will read the modules: from the option, else the blueprint, else
    what is on PATH. The engine that is chosen later must be of this kind; a version manager's
    program may not show its kind.
    """
    program = Path(selection.engine_option or project.settings.engine or "").name
    if "tofu" in program:
        return "tofu"
    if "terraform" in program or program == "embedded":
        return "terraform"
    if requirement.kind is not None:
        return requirement.kind
    path = project.environ.get("PATH")
    if shutil.which("terraform", path=path) is None and shutil.which("tofu", path=path):
        return "tofu"
    return "terraform"


def _engine(node: Node | None, problems: Problems) -> EngineRequirement:
    fields = problems.settings(node, ("kind", "version"), what="engine")
    kind, version = fields.get("kind"), fields.get("version")
    constraint = None
    if version is not None:
        text = problems.text(version, what="engine.version")
        constraint = Constraint(text, version.at) if text else None
    match kind.value if kind else None:
        case "terraform" | "tofu" | None as known:
            return EngineRequirement(known, constraint)
        case _:
            problems.add("engine.kind must be `terraform` or `tofu`", kind.at if kind else None)
            return EngineRequirement(None, constraint)
