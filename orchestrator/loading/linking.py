"""
Links steps with their modules and with each other, and checks every name that one uses of another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

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
from orchestrator.domain.blueprint.check_settings import validate_check
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
from orchestrator.loading.modules import read_module, split_reference
from orchestrator.loading.project import ProjectFiles
from orchestrator.loading.raw_steps import RawStep, step_graph
from orchestrator.loading.schema import RawBlueprint
from orchestrator.loading.types import ANY, Type, convert, parse_type

#: How sources that are fetched begin: by a scheme, forced to one (``git::``), or by a user's name.
_REMOTE = re.compile(r"[a-z0-9+.-]+:(:|//)|[\w.-]+@", re.IGNORECASE)


class StoredModule(Struct, frozen=True):
    """
    A step's module from an earlier run, used instead of the one in the project: its reference in
    that blueprint, and the text of its ``module.yaml`` ("" if none).
    """

    module: Module
    module_ref: str
    defaults: str


class StepLinker(Struct, frozen=True):
    """
    Links the steps of one blueprint. ``base`` is the directory of the blueprint.

    ``modules_from`` is "recorded"
    for commands that work from recorded snapshots: then it is no problem if a module can no longer
    be read or no longer fits its step. ``stored_modules`` replace those of the project, by step.
    """

    blueprint: RawBlueprint
    project: ProjectFiles
    base: Path
    problems: Problems
    modules_from: Literal["present", "recorded"] = "present"
    stored_modules: Mapping[str, StoredModule] = field(default_factory=dict)
    engine: EngineKind = "terraform"

    def link(self, raw_steps: Mapping[str, RawStep]) -> tuple[dict[str, LinkedStep], Graph]:
        """
        Return the steps with their modules and hooks, and their order; problems are collected.
        """
        cache: dict[tuple[Path, str | None], Module | None] = {}
        steps = {name: self._step(raw_step, cache) for name, raw_step in raw_steps.items()}
        modules = {name: step.module for name, step in steps.items()}
        graph = step_graph(raw_steps, self.problems)
        if self.modules_from == "present":
            for step in steps.values():
                self._check_references(step, modules)
                self._check_variables(step)
                for kind, hook in step.hooks.items() if len(graph) else ():
                    check_references(step.raw, hook, modules, graph, self.problems)
                    if kind in step.hook_steps:
                        self._check_variables(step.hook_steps[kind])
        check_order({name: step.hooks for name, step in steps.items()}, graph, self.problems)
        return steps, graph

    def _step(
        self, raw_step: RawStep, cache: dict[tuple[Path, str | None], Module | None]
    ) -> LinkedStep:
        stored = self.stored_modules.get(raw_step.name)
        module = stored.module if stored else self._module(raw_step, cache)
        written = raw_step.module.text if raw_step.module else ""
        hooks = parse_hooks(raw_step, self.problems)
        return LinkedStep(
            raw=raw_step,
            module=module,
            module_ref=stored.module_ref if stored else written,
            behaviour=self._behaviour(raw_step, module),
            hooks=hooks,
            hook_steps={
                kind: self._step(hook.step, cache)
                for kind, hook in hooks.items()
                if hook.step is not None
            },
        )

    def _module(
        self, raw_step: RawStep, cache: dict[tuple[Path, str | None], Module | None]
    ) -> Module | None:
        if raw_step.module is None:
            return None
        if self.modules_from == "recorded":
            # The recorded module is used, and the current one must not block the command.
            current = replace(self, modules_from="present", problems=Problems())
            place = os.path.normpath(self.base / split_reference(raw_step.module.text)[0])
            stub = Module(directory=place, variables={}, outputs={})
            return current._module(raw_step, cache) or stub
        at = raw_step.module.at
        if _REMOTE.match(raw_step.module.text):
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

    def _directory(self, name: str, at: Location) -> Path | None:
        return self.project.module_directory(name, at, base=self.base, problems=self.problems)

    def _read(self, directory: Path, package: Path | None) -> Module | None:
        try:
            shown = self.project.show(directory)
            return read_module(directory, shown=shown, package=package, engine=self.engine)
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

    def _check_references(self, step: LinkedStep, modules: Mapping[str, Module | None]) -> None:
        raw_step, module, behaviour = step.raw, step.module, step.behaviour
        declared = self.blueprint.inputs
        general = ReferenceRules("a step", inputs=declared, steps=modules, itself=raw_step.name)
        for value in (*raw_step.inputs.values(), *raw_step.providers.values()):
            general.check(value, self.problems)
        variables = module.variables if module else raw_step.inputs
        for what, values in (("identity", behaviour.identity), ("search", behaviour.search)):
            rules = ReferenceRules(what, inputs=variables, each_key=True)
            for value in values.values():
                rules.check(value, self.problems)
        outputs = module.outputs if module else None
        for spec, value in behaviour.checks:
            if outputs is not None:
                rules = ReferenceRules("verify", inputs=variables, outputs=outputs)
                rules.check(value, self.problems)
            if value.literal:
                settings = value.template.resolve(_no_value).value
                for message in validate_check(spec.kind, settings):
                    self.problems.add(f"{spec.kind}: {message}", value.node.at)

    def _check_variables(self, step: LinkedStep) -> None:
        raw_step, module = step.raw, step.module
        if module is None:
            return
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


class LinkedStep(Struct, frozen=True):
    """
    A step with its module (None if it could not be read, which is a problem), the reference of that
    module, and its behaviour. ``hooks`` are as written; ``hook_steps`` are those that are modules.
    """

    raw: RawStep
    module: Module | None
    module_ref: str
    behaviour: Behaviour
    hooks: Mapping[HookKind, RawHook]
    hook_steps: Mapping[HookKind, LinkedStep]

    def templates(self) -> Iterator[LocatedTemplate]:
        """
        Yield the templates of the step, without those of its hooks.
        """
        yield from self.raw.inputs.values()
        yield from self.raw.providers.values()
        yield self.raw.backend.config
        yield from self.behaviour.identity.values()
        yield from self.behaviour.search.values()
        yield from (value for _, value in self.behaviour.checks)

    def sensitive_templates(self) -> Iterator[LocatedTemplate]:
        """
        Yield the templates passed to sensitive or ephemeral variables of the step and its hooks.
        """
        variables = self.module.variables if self.module else {}
        for name, value in self.raw.inputs.items():
            if name in variables and variables[name].secret:
                yield value
        for hook in self.hook_steps.values():
            yield from hook.sensitive_templates()

    def check_values(
        self, rules: ReferenceRules, inputs: Mapping[str, InputValue], problems: Problems
    ) -> None:
        """
        Add a problem for each input value that does not fit the variable it is passed to, and for
        each reference that ``rules`` do not allow in a backend configuration.
        """
        rules.check(self.raw.backend.config, problems)
        for name, item in self.raw.inputs.items():
            variable = self.module.variables.get(name) if self.module else None
            if variable is not None:
                _check_fit(variable, item, inputs, problems)

    def step(self, needs: frozenset[str] = frozenset()) -> Step:
        """
        Return the step as declared. Only for a blueprint without problems.
        """
        raw, module, behaviour = self.raw, self.module, self.behaviour
        if module is None:
            raise ValueError(f"{shown_step(raw.name)} has no module")
        after = self.hooks["compensate"].after if "compensate" in self.hooks else None
        return Step(
            name=raw.name,
            module_ref=self.module_ref,
            module=module,
            inputs={
                key: _convert_literal(item, module.variables.get(key))
                for key, item in raw.inputs.items()
            },
            needs=needs,
            backend=Backend(raw.backend.type, raw.backend.config.template),
            providers={key: item.template for key, item in raw.providers.items()},
            verify=tuple(spec for spec, _ in behaviour.checks),
            retry=behaviour.retry,
            refused_on=behaviour.refused_on,
            timeout=behaviour.timeout,
            identity={key: item.template for key, item in behaviour.identity.items()},
            search={key: item.template for key, item in behaviour.search.items()},
            owned_by=raw.owned_by.text if raw.owned_by else None,
            retain=raw.retain,
            verify_absence=behaviour.verify_absence or raw.verify_absence,
            absence_timeout=behaviour.absence_timeout or raw.absence_timeout,
            compensate=self._hook("compensate"),
            compensate_after=None if after is None else tuple(after),
            before_destroy=self._hook("before_destroy"),
            at=raw.at,
        )

    def _hook(self, kind: HookKind) -> Hook | None:
        if kind in self.hook_steps:
            return ModuleHook(self.hook_steps[kind].step())
        return self.hooks[kind].command() if kind in self.hooks else None


def _type_of(variable: Variable) -> Type:
    """
    Return the variable's type; ``any`` if its expression cannot be parsed here: then the engine
    checks it.
    """
    try:
        return parse_type(variable.type) if variable.type else ANY
    except ValueError:
        return ANY


def _convert_literal(value: LocatedTemplate, variable: Variable | None) -> Template:
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
