"""
Loads a checked `Deployment` by the name of its blueprint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.backend_location import location
from orchestrator.domain.blueprint.blueprint import (
    CheckSpec,
    CommandHook,
    Constraint,
    Deployment,
    EngineKind,
    EngineRequirement,
    InputValue,
)
from orchestrator.domain.blueprint.references import Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document
from orchestrator.domain.target import HOOK_KINDS, HookKind, Target
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Refused
from orchestrator.loading import sources
from orchestrator.loading.blueprint_file import (
    ReadBlueprint,
    environment_variables,
    operations_url,
    read_blueprint,
    resolve_inputs,
    used_inputs,
)
from orchestrator.loading.inputs import InputPolicy, check_written
from orchestrator.loading.linking import StepLinker, StoredModule, check_values, parse_hooks
from orchestrator.loading.reference_rules import known_values
from orchestrator.loading.schema import (
    DEFAULT,
    effective_blueprint,
    merge_step,
    parse_blueprint,
)
from orchestrator.loading.steps import (
    RawStep,
    backend_rules,
    parse_backend,
    parse_behaviour,
    parse_step,
    parse_steps,
)
from orchestrator.loading.summary import store_location
from orchestrator.local_files import read_text
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.trust import Trust

# Where the provider states of a project lie, as its blueprints say: each place belongs to one
# target.


def check_state_locations(reading: ReadBlueprint, inputs: Mapping[str, InputValue]) -> None:
    """
    Add a problem for each state location that several targets share, if one of them belongs to this
    blueprint and environment. ``inputs`` are its inputs.

    For other environments and blueprints only values written in files are known; a location that
    depends on command-line inputs is not compared.
    """
    places: dict[str, dict[Target, Location]] = {}
    for other in _declared_blueprints(reading):
        values = inputs if other is reading else _written_inputs(other)
        for target, at, address in _places(other, values):
            places.setdefault(address, {}).setdefault(target, at)
    here = (reading.blueprint.name, reading.effective.name)
    for group in places.values():
        targets = sorted(group, key=str)
        if len(targets) < 2 or here not in [(t.blueprint, t.environment) for t in targets]:
            continue
        reading.problems.add(
            f"{', '.join(map(str, targets))} would share one provider state",
            group[targets[0]],
            "put ${blueprint.name}, ${environment} and ${step.name} into the backend's settings; "
            "each state belongs to one target",
        )


def _declared_blueprints(reading: ReadBlueprint) -> Iterator[ReadBlueprint]:
    """
    Yield the project's blueprints in each of their environments, this one included.
    """
    blueprints = {reading.path: reading.blueprint}
    names_places = "backend" in read_text(reading.path, shown=str(reading.path))
    for path in [path for paths in reading.project.blueprints().values() for path in paths]:
        with suppress(Invalid):  # it is told when it is loaded itself
            text = read_text(path, shown=str(path))
            # Without one its states lie below a directory of its own name.
            if path not in blueprints and (names_places or "backend" in text):
                tree = parse_document(text, file=reading.project.show(path))
                blueprints[path] = parse_blueprint(tree, Problems())
    for path, blueprint in blueprints.items():
        for name in tuple(blueprint.environments) or (DEFAULT,):
            if (path, name) == (reading.path, reading.effective.name):
                yield reading
                continue
            effective, ignored = effective_blueprint(blueprint, name), Problems()
            yield replace(
                reading,
                project=replace(reading.project, environ={}),
                selection=BlueprintSelection(blueprint.name),
                path=path,
                blueprint=blueprint,
                effective=effective,
                raw_steps=parse_steps(blueprint, effective, ignored),
                backend=parse_backend(effective.settings.get("backend"), ignored),
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
) -> Iterator[tuple[Target, Location, str]]:
    """
    Yield the targets of a blueprint in an environment (steps and module hooks), each with the place
    of its backend in the file and its state location, if known.
    """
    blueprint, environment = reading.blueprint.name, reading.effective.name
    # A secret is no part of an address.
    values = {name: item.value for name, item in inputs.items() if not item.sensitive}
    for step in reading.raw_steps.values():
        hooks = parse_hooks(step, Problems()).values()
        look_up = known_values(blueprint, environment, step=step.name, inputs=values)
        roots = (hook.work for hook in hooks if isinstance(hook.work, RawStep))
        for raw in (step, *roots):
            backend, at = raw.backend, raw.backend.config.location()
            at = at if at and at.line else raw.at
            try:
                config = backend.config.resolve(look_up).value or {}
                address = location(backend.type, config, reading.project.project_dir)
            except Unresolvable:
                continue  # what is wrong with it is told where the blueprint is loaded itself
            except Invalid as exc:
                if not reading.problems:  # else it may follow from what is wrong already
                    for problem in exc.problems:
                        reading.problems.add(problem.message, at, problem.hint)
                continue
            if backend.type == "local":
                address = os.path.realpath(reading.project.project_dir / address)
            target = Target(blueprint, environment, raw.name)
            yield target, at, f"{backend.type} {address}"


# The parts of a blueprint that the operator's trust file forbids.


def _programs(
    checks: Iterable[CheckSpec], hooks: Mapping[HookKind, object]
) -> Iterator[tuple[str, Template]]:
    """
    Yield the checks and hooks of a step that run a program: what it is, and where.
    """
    for check in checks:
        if check.kind == "command":
            yield "verify.command", check.settings
    for kind, hook in hooks.items():
        if isinstance(hook, CommandHook):
            yield f"{kind}.command", hook.argv


def check_trusted(trust: Trust, deployment: Deployment) -> None:
    """
    Raise Refused if a step would run a program, also for a step that is only in records.
    """
    if trust.commands:
        return
    for step in deployment.steps.values():
        for what, _ in _programs(step.verify, {kind: step.hook(kind) for kind in HOOK_KINDS}):
            raise Refused(
                "untrusted",
                trust.forbidden(f"{what} of step {step.name!r}", "commands: false"),
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
            checks = parse_behaviour(raw_step, {}, problems)["verify"]
            hooks = {kind: hook.work for kind, hook in parse_hooks(raw_step, problems).items()}
            for what, template in _programs(checks, hooks):
                trust.check_command(what, template.location(), problems)
    check_written(blueprint, trust, problems)
    engine = _engine(reading.effective.settings.get("engine"), problems)
    steps, graph = StepLinker(
        reading,
        "recorded" if input_policy is InputPolicy.AVAILABLE else "present",
        stored_modules or {},
        _engine_kind(project, selection, engine),
    ).link()
    for step in steps.values():
        for what, template in _programs(
            step.verify, {kind: step.hook(kind) for kind in HOOK_KINDS}
        ):
            trust.check_command(what, template.location(), problems)
    input_policy = input_policy if reading.environment_is_valid else InputPolicy.CHECK_ONLY
    templates = [template for step in steps.values() for template in step.templates()]
    env = environment_variables(
        templates, project.environ, input_policy=input_policy, problems=problems
    )
    # What a hook refers to need not be set before the hook is carried out.
    env |= environment_variables(
        [template for step in steps.values() for template in step.hook_templates()],
        project.environ,
        input_policy=InputPolicy.AVAILABLE,
        problems=problems,
    )
    unavailable: dict[str, str] = {}
    inputs = resolve_inputs(
        reading,
        input_policy=input_policy,
        used=used_inputs(templates),
        run_command=run_command,
        secret=used_inputs(
            template
            for step in steps.values()
            for root in step.roots()
            for name, template in root.inputs.items()
            if name in root.module.variables and root.module.variables[name].secret
        ),
        secrets=list(env.values()),
        unavailable=unavailable,
    )
    rules = backend_rules(blueprint, inputs)
    misfits = Problems() if input_policy is InputPolicy.AVAILABLE else problems
    for step in steps.values():
        check_values(step, rules, inputs, misfits)
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
        steps=steps,
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
