"""
Links steps with their modules and with each other, and checks every name that one uses of another.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import (
    Backend,
    EngineKind,
    Hook,
    InputValue,
    Module,
    ModuleHook,
    Step,
    Variable,
)
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Resolved, Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Problems, node_of
from orchestrator.domain.target import HookKind, shown_step
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location
from orchestrator.loading.behaviour import Behaviour, parse_behaviour, parse_defaults, read_defaults
from orchestrator.loading.hooks import RawHook, check_order, check_references, parse_hooks
from orchestrator.loading.located_templates import LocatedTemplate, ReferenceRules
from orchestrator.loading.modules import split_reference
from orchestrator.loading.project import ProjectFiles
from orchestrator.loading.raw_steps import RawStep, backend_rules, step_graph
from orchestrator.loading.schema import RawBlueprint
from orchestrator.loading.types import ANY, Type, convert, parse_type

#: How sources that are fetched begin: by a scheme, or forced to one (``git::``).
_REMOTE = re.compile(r"^[a-z0-9+.-]+:(:|//)|^git@", re.IGNORECASE)


class ModuleReader(Protocol):
    """
    Reads a module as `orchestrator.loading.modules.read_module` does.
    """

    def __call__(
        self,
        directory: Path,
        *,
        shown: str,
        package: Path | None = None,
        engine: EngineKind = "terraform",
    ) -> Module: ...


class StoredModule(Struct, frozen=True):
    """
    A step's module from an earlier run, used instead of the one in the project: its reference in
    that blueprint, and the text of its ``module.yaml`` ("" if none).
    """

    module: Module
    module_ref: str
    defaults: str


CheckValidator = Callable[[str, Mapping[str, object]], Sequence[str]]


class StepLinker(Struct, frozen=True):
    """
    Links the steps of one blueprint. ``base`` is the directory of the blueprint.

    ``validate_check`` returns the problems of a check's settings. ``modules_from`` is "recorded"
    for commands that work from recorded snapshots: then it is no problem if a module can no longer
    be read or no longer fits its step. ``stored_modules`` replace those of the project, by step.
    """

    blueprint: RawBlueprint
    project: ProjectFiles
    base: Path
    read_module: ModuleReader
    validate_check: CheckValidator | None
    problems: Problems
    modules_from: Literal["present", "recorded"] = "present"
    stored_modules: Mapping[str, StoredModule] = field(default_factory=dict)
    engine: EngineKind = "terraform"

    def link(self, raw_steps: Mapping[str, RawStep]) -> LinkedSteps:
        """
        Return the steps with their modules; problems are collected.
        """
        cache: dict[tuple[Path, str | None], Module | None] = {}
        modules = {name: self._module(raw_step, cache) for name, raw_step in raw_steps.items()}
        behaviours = {
            name: self._behaviour(raw_step, modules[name]) for name, raw_step in raw_steps.items()
        }
        actions = {
            name: parse_hooks(raw_step, self.problems) for name, raw_step in raw_steps.items()
        }
        roots = {
            action.step.name: self._hook_module(action.step, cache)
            for own in actions.values()
            for action in own.values()
            if action.step is not None
        }
        for name, raw_step in raw_steps.items():
            if self.modules_from == "recorded":
                continue
            module = modules[name]
            self._check_references(raw_step, behaviours[name], modules)
            if module is not None:
                self._check_variables(raw_step, module)
        graph = step_graph(raw_steps, self.problems)
        if self.modules_from == "present" and len(graph):
            self._check_hooks(raw_steps, actions, roots, modules, graph)
        check_order(actions, graph, self.problems)
        return LinkedSteps(self.blueprint, raw_steps, modules, behaviours, actions, roots, graph)

    def _hook_module(
        self, root: RawStep, cache: dict[tuple[Path, str | None], Module | None]
    ) -> tuple[Module | None, Behaviour]:
        module = self._module(root, cache)
        return module, self._behaviour(root, module)

    def _check_hooks(
        self,
        raw_steps: Mapping[str, RawStep],
        actions: Mapping[str, Mapping[HookKind, RawHook]],
        roots: Mapping[str, tuple[Module | None, Behaviour]],
        modules: Mapping[str, Module | None],
        graph: Graph,
    ) -> None:
        for name, own in actions.items():
            for action in own.values():
                check_references(raw_steps[name], action, modules, graph, self.problems)
                module = roots[action.step.name][0] if action.step is not None else None
                if action.step is not None and module is not None:
                    self._check_variables(action.step, module)

    def _module(
        self, raw_step: RawStep, cache: dict[tuple[Path, str | None], Module | None]
    ) -> Module | None:
        if raw_step.module is None:
            return None
        if raw_step.name in self.stored_modules:
            return self.stored_modules[raw_step.name].module
        if self.modules_from == "recorded":
            return self._module_or_stub(raw_step.module.text, raw_step.module.at)
        at = raw_step.module.at
        if _REMOTE.search(raw_step.module.text):
            hint = "fetch it into the project first; modules are local directories"
            message = f"the module {raw_step.module.text!r} is not a local directory"
            self.problems.add(message, at, hint)
            return None
        name, package = split_reference(raw_step.module.text)
        directory = self._directory(name, at)
        around = self._directory(package, at) if package else None
        if directory is None or (package and around is None):
            return None
        key = (directory, str(around) if around else None)
        if key not in cache:
            cache[key] = self._read(directory, around)
        return cache[key]

    def _module_or_stub(self, reference: str, at: Location) -> Module:
        """
        Return the module, or an empty one if it cannot be read: the recorded module is used, and
        the current one must not block the command.
        """
        name, package = split_reference(reference)
        directory = self.project.module_directory(name, at, base=self.base, problems=Problems())
        if directory is not None:
            with contextlib.suppress(Invalid):
                around = self.base / package if package else None
                return self.read_module(
                    directory, shown=str(directory), package=around, engine=self.engine
                )
        return Module(directory=os.path.normpath(self.base / name), variables={}, outputs={})

    def _directory(self, name: str, at: Location) -> Path | None:
        return self.project.module_directory(name, at, base=self.base, problems=self.problems)

    def _read(self, directory: Path, package: Path | None) -> Module | None:
        try:
            shown = self.project.show(directory)
            return self.read_module(directory, shown=shown, package=package, engine=self.engine)
        except Invalid as exc:
            self.problems.extend(exc.problems)
            return None

    def _behaviour(self, raw_step: RawStep, module: Module | None) -> Behaviour:
        if module is None:
            return parse_behaviour(raw_step.fields, {}, self.problems)
        directory = Path(module.directory)
        shown = self.project.show(directory)
        stored = self.stored_modules.get(raw_step.name)
        if stored is not None:
            defaults = parse_defaults(stored.defaults, shown=shown, problems=self.problems)
        else:
            defaults = read_defaults(directory, shown=shown, problems=self.problems)
        return parse_behaviour(raw_step.fields, defaults, self.problems)

    def _check_references(
        self, raw_step: RawStep, behaviour: Behaviour, modules: Mapping[str, Module | None]
    ) -> None:
        declared = self.blueprint.inputs
        general = ReferenceRules("a step", inputs=declared, steps=modules, itself=raw_step.name)
        for value in (*raw_step.inputs.values(), *raw_step.providers.values()):
            general.check(value, self.problems)
        module = modules[raw_step.name]
        variables = module.variables if module else raw_step.inputs
        for value in behaviour.identity.values():
            ReferenceRules("identity", inputs=variables, each_key=True).check(value, self.problems)
        for value in behaviour.search.values():
            ReferenceRules("search", inputs=variables, each_key=True).check(value, self.problems)
        outputs = module.outputs if module else None
        for spec, value in behaviour.checks:
            if outputs is not None:
                rules = ReferenceRules("verify", inputs=variables, outputs=outputs)
                rules.check(value, self.problems)
            if self.validate_check is not None and value.literal:
                settings = value.template.resolve(_no_value).value
                for message in self.validate_check(spec.kind, settings):
                    self.problems.add(f"{spec.kind}: {message}", value.node.at)

    def _check_variables(self, raw_step: RawStep, module: Module) -> None:
        written = raw_step.fields.get("inputs")
        if written is not None and written.kind != "map" and written.value is not None:
            return  # it is told by itself: which inputs are meant is not known
        what = f"the module of {shown_step(raw_step.name)}"
        for name, value in raw_step.inputs.items():
            variable = module.variables.get(name)
            if variable is None:
                hint = did_you_mean(name, module.variables)
                at = raw_step.input_at[name]
                self.problems.add(f"{what} has no variable {name!r}", at, hint)
            elif value.literal:
                convert(_type_of(variable), value.node, self.problems, what=f"variable {name!r}")
        for variable in module.variables.values():
            if variable.required and variable.name not in raw_step.inputs:
                at = raw_step.module.at if raw_step.module else raw_step.at
                message = f"{shown_step(raw_step.name)} does not set {variable.name!r}"
                hint = f"the module requires it: {variable.at}" if variable.at else ""
                self.problems.add(message, at, hint)


class LinkedSteps(Struct, frozen=True):
    """
    Steps with their modules, behaviour, hooks and order. ``hook_modules`` are the modules of hooks,
    by the name of the hook step. A module that could not be read is None, and a problem.
    """

    blueprint: RawBlueprint
    raw_steps: Mapping[str, RawStep]
    modules: Mapping[str, Module | None]
    behaviours: Mapping[str, Behaviour]
    hooks: Mapping[str, Mapping[HookKind, RawHook]]
    hook_modules: Mapping[str, tuple[Module | None, Behaviour]]
    graph: Graph

    def templates(self) -> list[LocatedTemplate]:
        templates: list[LocatedTemplate] = []
        for name, raw_step in self.raw_steps.items():
            behaviour = self.behaviours[name]
            templates.extend(raw_step.inputs.values())
            templates.extend(raw_step.providers.values())
            templates.append(raw_step.backend.config)
            templates.extend(behaviour.identity.values())
            templates.extend(behaviour.search.values())
            templates.extend(value for _, value in behaviour.checks)
        return templates

    def sensitive_templates(self) -> list[LocatedTemplate]:
        """
        Return the templates passed to sensitive or ephemeral variables of steps and hooks.
        """
        raw_steps = [(raw_step, self.modules[name]) for name, raw_step in self.raw_steps.items()]
        for own in self.hooks.values():
            roots = [action.step for action in own.values() if action.step is not None]
            raw_steps += [(root, self.hook_modules[root.name][0]) for root in roots]
        return [
            value
            for raw_step, module in raw_steps
            if module is not None
            for name, value in raw_step.inputs.items()
            if name in module.variables and module.variables[name].secret
        ]

    def hook_templates(self) -> list[LocatedTemplate]:
        hooks = [action for own in self.hooks.values() for action in own.values()]
        return [value for action in hooks for value in action.values()]

    def check_values(self, inputs: Mapping[str, InputValue], problems: Problems) -> None:
        """
        Add a problem for each input value that does not fit the variable it is passed to, and for
        each reference that a backend configuration may not use.
        """
        rules = backend_rules(self.blueprint, inputs)
        for name, raw_step in self.raw_steps.items():
            module = self.modules[name]
            rules.check(raw_step.backend.config, problems)
            for variable_name, item in raw_step.inputs.items():
                variable = module.variables.get(variable_name) if module else None
                if variable is not None:
                    _check_fit(variable, item, inputs, problems)

    def steps(self) -> dict[str, Step]:
        """
        Return the steps, as declared. Only for a blueprint without problems.
        """
        return {name: self._step(raw_step) for name, raw_step in self.raw_steps.items()}

    def _step(self, raw_step: RawStep) -> Step:
        actions = self.hooks[raw_step.name]
        compensate = actions.get("compensate")
        after = compensate.after if compensate is not None else None
        return replace(
            _step_without_needs(
                raw_step, self.modules[raw_step.name], self.behaviours[raw_step.name]
            ),
            needs=self.graph.needs(raw_step.name),
            compensate=self._hook(compensate),
            compensate_after=None if after is None else tuple(after),
            before_destroy=self._hook(actions.get("before_destroy")),
        )

    def _hook(self, action: RawHook | None) -> Hook | None:
        if action is None or action.step is None:
            return action.command() if action is not None else None
        return ModuleHook(_step_without_needs(action.step, *self.hook_modules[action.step.name]))


def _step_without_needs(raw_step: RawStep, module: Module | None, behaviour: Behaviour) -> Step:
    """
    Return the step with its module, before its upstreams are known.
    """
    if module is None or raw_step.module is None:
        raise ValueError(f"{shown_step(raw_step.name)} has no module")
    return Step(
        name=raw_step.name,
        module_ref=raw_step.module.text,
        module=module,
        inputs={
            key: _typed(item, module.variables.get(key)) for key, item in raw_step.inputs.items()
        },
        needs=frozenset(),
        backend=Backend(raw_step.backend.type, raw_step.backend.config.template),
        providers={key: item.template for key, item in raw_step.providers.items()},
        verify=tuple(spec for spec, _ in behaviour.checks),
        retry=behaviour.retry,
        refused_on=behaviour.refused_on,
        timeout=behaviour.timeout,
        identity={key: item.template for key, item in behaviour.identity.items()},
        search={key: item.template for key, item in behaviour.search.items()},
        owned_by=raw_step.owned_by.text if raw_step.owned_by else None,
        retain=raw_step.retain,
        verify_absence=behaviour.verify_absence or raw_step.verify_absence,
        absence_timeout=behaviour.absence_timeout or raw_step.absence_timeout,
        at=raw_step.at,
    )


def _type_of(variable: Variable) -> Type:
    """
    Return the variable's type; ``any`` if its expression cannot be parsed here: then the engine
    checks it.
    """
    try:
        return parse_type(variable.type) if variable.type else ANY
    except ValueError:
        return ANY


def _typed(value: LocatedTemplate, variable: Variable | None) -> Template:
    """
    Return the template; a literal is converted to the variable's type here, while its notation is
    known (``1.10`` stays text).
    """
    if value.template.uses or variable is None:
        return value.template
    return Template(convert(_type_of(variable), value.node, Problems(), what=""))


def _check_fit(
    variable: Variable, value: LocatedTemplate, inputs: Mapping[str, InputValue], problems: Problems
) -> None:
    use = value.template.uses[0] if value.template.uses else None
    if use is None or not use.whole or use.path or use.reference.kind != "input":
        return
    input_value = inputs.get(use.reference.names[0])
    if input_value is None:
        return
    at = value.location(use)
    try:
        nested = Resolved(input_value.value).at(use.reference.path).value
    except Unresolvable as exc:
        problems.add(f"${{{use.reference}}}: {exc}", at)
        return
    convert(_type_of(variable), node_of(nested, at), problems, what=f"variable {variable.name!r}")


def _no_value(_: object) -> Resolved:
    return Resolved(None)
