"""
Links steps with their modules, their hooks and each other, and checks every name that one uses of
another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import (
    Backend,
    CommandHook,
    EngineKind,
    Hook,
    InputValue,
    Module,
    ModuleHook,
    Step,
    Variable,
)
from orchestrator.domain.blueprint.check_settings import validate_check
from orchestrator.domain.blueprint.graph import (
    CycleFound,
    Graph,
    compensation_order,
    derived_backend,
)
from orchestrator.domain.blueprint.references import Resolved, Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, node_of, without_nulls
from orchestrator.domain.target import HOOK_KINDS, HookKind, hook_step_name, shown_step
from orchestrator.domain.text import did_you_mean
from orchestrator.errors import Invalid, Location
from orchestrator.loading.blueprint_file import ReadBlueprint
from orchestrator.loading.modules import read_module, split_reference
from orchestrator.loading.reference_rules import ReferenceRules, template_of
from orchestrator.loading.schema import duration
from orchestrator.loading.steps import (
    Behaviour,
    RawStep,
    parse_behaviour,
    parse_defaults,
    read_defaults,
    step_graph,
)
from orchestrator.loading.types import ANY, Type, convert, parse_type

#: How sources that are fetched begin: by a scheme, forced to one (``git::``), or by a user's name.
_REMOTE = re.compile(r"[a-z0-9+.-]+:(:|//)|[\w.-]+@", re.IGNORECASE)
#: Stands for a module that cannot be read, which is a problem by itself.
_UNREAD = Module(directory="", variables={}, outputs={})


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
    Links the steps of one blueprint.

    ``modules_from`` is "recorded" for commands that work from recorded snapshots: then it is no
    problem if a module can no longer be read or no longer fits its step. ``stored_modules`` replace
    those of the project, by step.
    """

    reading: ReadBlueprint
    modules_from: Literal["present", "recorded"]
    stored_modules: Mapping[str, StoredModule]
    engine: EngineKind
    modules: dict[tuple[Path, Path | None], Module | None] = field(default_factory=dict)

    def link(self) -> tuple[dict[str, Step], Graph]:
        """
        Return the steps with their modules and hooks, and their order; problems are collected.
        """
        raw_steps, problems = self.reading.raw_steps, self.reading.problems
        hooks = {name: parse_hooks(raw_step, problems) for name, raw_step in raw_steps.items()}
        graph = step_graph(raw_steps, problems)
        steps = {
            name: self._step(raw_step, hooks[name], graph) for name, raw_step in raw_steps.items()
        }
        if self.modules_from == "present":
            modules = {
                name: None if step.module is _UNREAD else step.module
                for name, step in steps.items()
            }
            for name, step in steps.items():
                self._check_references(step, modules)
                for root in step.roots():
                    self._check_behaviour(root)
                for hook in hooks[name].values() if len(graph) else ():
                    _check_hook(hook, step, modules, graph, problems)
        _check_order(hooks, graph, problems)
        return steps, graph

    def _step(self, raw: RawStep, hooks: Mapping[HookKind, RawHook], graph: Graph) -> Step:
        """
        Return the step. A literal input is converted to the type of its variable here, while its
        notation is known (``1.10`` stays text).
        """
        problems, stored = self.reading.problems, self.stored_modules.get(raw.name)
        if stored is not None:
            module: Module | None = stored.module
        elif self.modules_from == "recorded" and raw.module is not None:
            # The recorded module is used, and the current one must not block the command.
            directory = self.reading.path.parent / split_reference(raw.module.text)[0]
            stub = Module(directory=os.path.normpath(directory), variables={}, outputs={})
            module = self._module(raw, Problems()) or stub
        else:
            module = self._module(raw, problems)
        misfits = problems if self.modules_from == "present" else Problems()
        if module is not None:
            _check_variables(raw, module, misfits)
        variables = module.variables if module else {}
        linked: dict[HookKind, Hook] = {
            kind: ModuleHook(self._step(hook.work, {}, graph))
            if isinstance(hook.work, RawStep)
            else hook.work
            for kind, hook in hooks.items()
        }
        after = hooks["compensate"].after if "compensate" in hooks else None
        return Step(
            name=raw.name,
            module_ref=stored.module_ref if stored else raw.module_ref,
            module=module or _UNREAD,
            inputs={
                name: _converted(template, variables.get(name), misfits)
                for name, template in raw.inputs.items()
            },
            needs=graph.needs(raw.name) if raw.name in graph else frozenset(),
            backend=raw.backend,
            providers=raw.providers,
            owned_by=raw.owned_by.text if raw.owned_by else None,
            retain=raw.retain,
            compensate=linked.get("compensate"),
            compensate_after=None if after is None else tuple(after),
            before_destroy=linked.get("before_destroy"),
            at=raw.at,
            **self._behaviour(raw, module),
        )

    def _module(self, raw: RawStep, problems: Problems) -> Module | None:
        if raw.module is None:
            return None
        at = raw.module.at
        if _REMOTE.match(raw.module.text):
            hint = "fetch it into the project first; modules are local directories"
            message = f"the module {raw.module.text!r} is not a local directory"
            problems.add(message, at, hint)
            return None
        name, package = split_reference(raw.module.text)
        project, base = self.reading.project, self.reading.path.parent
        directory = project.module_directory(name, at, base=base, problems=problems)
        around = None
        if package:
            around = project.module_directory(package, at, base=base, problems=problems)
        if directory is None or (package and around is None):
            return None
        key = (directory, around)
        if key not in self.modules:
            shown, self.modules[key] = project.show(directory), None
            try:
                self.modules[key] = read_module(
                    directory, shown=shown, package=around, engine=self.engine
                )
            except Invalid as exc:
                problems.extend(exc.problems)
        return self.modules[key]

    def _behaviour(self, raw: RawStep, module: Module | None) -> Behaviour:
        problems, stored = self.reading.problems, self.stored_modules.get(raw.name)
        if module is None:
            return parse_behaviour(raw, {}, problems)
        directory = Path(module.directory)
        shown = self.reading.project.show(directory)
        if stored is not None:
            defaults = parse_defaults(stored.defaults, shown=shown, problems=problems)
        else:
            defaults = read_defaults(directory, shown=shown, problems=problems)
        return parse_behaviour(raw, defaults, problems)

    def _check_references(self, step: Step, modules: Mapping[str, Module | None]) -> None:
        problems, declared = self.reading.problems, self.reading.blueprint.inputs
        general = ReferenceRules("a step", inputs=declared, steps=modules, itself=step.name)
        for template in (*step.inputs.values(), *step.providers.values()):
            general.check(template, problems)

    def _check_behaviour(self, step: Step) -> None:
        """
        Add a problem for each reference in a step's checks and provider queries, or those of the
        module of its hook, that they may not use, and for each setting of a check that is wrong.
        """
        problems = self.reading.problems
        module = None if step.module is _UNREAD else step.module
        variables = module.variables if module else step.inputs
        for what, templates in (("identity", step.identity), ("search", step.search)):
            rules = ReferenceRules(what, inputs=variables, each_key=True)
            for template in templates.values():
                rules.check(template, problems)
        for check in step.verify:
            if module is not None:
                rules = ReferenceRules("verify", inputs=variables, outputs=module.outputs)
                rules.check(check.settings, problems)
            if check.settings.literal:
                settings = check.settings.resolve(lambda _: Resolved(None)).value
                for message in validate_check(check.kind, settings):
                    problems.add(f"{check.kind}: {message}", check.settings.location())


def _check_variables(raw: RawStep, module: Module, problems: Problems) -> None:
    """
    Add a problem for each input that the module has no variable for, and for each variable that it
    requires and is not given.
    """
    written = raw.fields.get("inputs")
    if written is not None and written.kind != "map" and written.value is not None:
        return  # it is told by itself: which inputs are meant is not known
    what = f"the module of {shown_step(raw.name)}"
    for name, at in raw.input_at.items():
        if name not in module.variables:
            hint = did_you_mean(name, module.variables)
            problems.add(f"{what} has no variable {name!r}", at, hint)
    for variable in module.variables.values():
        if variable.required and variable.name not in raw.inputs:
            at = raw.module.at if raw.module else raw.at
            message = f"{shown_step(raw.name)} does not set {variable.name!r}"
            hint = f"the module requires it: {variable.at}" if variable.at else ""
            problems.add(message, at, hint)


def check_values(
    step: Step, rules: ReferenceRules, inputs: Mapping[str, InputValue], problems: Problems
) -> None:
    """
    Add a problem for each input value that does not fit the variable it is passed to, and for each
    reference that ``rules`` do not allow in a backend configuration.
    """
    rules.check(step.backend.config, problems)
    for name, template in step.inputs.items():
        use = template.uses[0] if template.uses else None
        if use is None or not use.whole or use.path or use.reference.kind != "input":
            continue
        variable, given = step.module.variables.get(name), inputs.get(use.reference.names[0])
        at = template.location(use)
        if variable is None or given is None or at is None:
            continue
        try:
            nested = Resolved(given.value).at(use.reference.path).value
        except Unresolvable as exc:
            problems.add(f"${{{use.reference}}}: {exc}", at)
        else:
            convert(_type_of(variable), node_of(nested, at), problems, what=f"variable {name!r}")


def _type_of(variable: Variable) -> Type:
    """
    Return the variable's type; ``any`` if its expression cannot be parsed here: then the engine
    checks it.
    """
    try:
        return parse_type(variable.type) if variable.type else ANY
    except ValueError:
        return ANY


def _converted(template: Template, variable: Variable | None, problems: Problems) -> Template:
    node = template.node
    if not template.literal or node is None or variable is None:
        return template
    what = f"variable {variable.name!r}"
    return Template(convert(_type_of(variable), node, problems, what=what), node)


# The hooks of a step.


_KEYS = ("module", "inputs", "command", "environment", "timeout")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "ORCHESTRATOR_"


class RawHook(Struct, frozen=True):
    """
    A hook as written: a command, or a module as a step. ``after`` are the steps that it names, with
    their places; None if it names none.
    """

    kind: HookKind
    at: Location
    work: CommandHook | RawStep
    after: Mapping[str, Location] | None = None


def parse_hooks(raw_step: RawStep, problems: Problems) -> dict[HookKind, RawHook]:
    """
    Return the hooks of a step; problems are collected.
    """
    hooks: dict[HookKind, RawHook] = {}
    declared = without_nulls(raw_step.fields)
    for kind in HOOK_KINDS:
        if kind not in declared:
            continue
        node = declared[kind]
        what = f"{kind} of step {raw_step.name!r}"
        keys = (*_KEYS, "after") if kind == "compensate" else _KEYS
        fields = problems.settings(node, keys, what=what)
        timeout = duration(fields.get("timeout"), problems, what="timeout")
        after = problems.entries(fields.get("after"), what="after")
        if ("module" in fields) == ("command" in fields):
            hint = "either `module` (with `inputs`) or `command`"
            problems.add(f"{what} says what to do by one of two keys", node.at, hint)
            continue
        for key, other in (("inputs", "module"), ("environment", "command")):
            if key in fields and other not in fields:
                problems.add(f"{what}: `{key}` goes with `{other}`", node.key_at[key])
        work: CommandHook | RawStep
        if "module" in fields:
            work = _hook_step(raw_step, kind, node, fields, problems)
        else:
            argv, environment = fields["command"], fields.get("environment", Node("map", node.at))
            _check_command(argv, environment, problems, what=what)
            work = CommandHook(
                template_of(argv, problems), template_of(environment, problems), timeout
            )
        hooks[kind] = RawHook(
            kind, node.at, work, {s: item.at for s, item in after} if "after" in fields else None
        )
    return hooks


def _hook_step(
    raw_step: RawStep, kind: HookKind, node: Node, fields: Mapping[str, Node], problems: Problems
) -> RawStep:
    """
    Return a module hook as a step: with the providers of its step, and the same backend with
    another name for the state.
    """
    module = fields["module"]
    inputs = fields.get("inputs", Node("map", node.at))
    if inputs.kind != "map":
        problems.add(f"inputs must be a map, not {inputs.shape}", inputs.at)
    backend = raw_step.backend
    config = derived_backend(backend.type, backend.config.raw or {}, kind)
    if config is None and not backend.config.broken:
        problems.add(
            f"{kind} of step {raw_step.name!r}: a module needs a state of its own, and where "
            f"that would be in backend {backend.type!r} is not known",
            node.at,
            "use a `command` here",
        )
    own = Node("map", backend.config.location() or node.at)
    return RawStep(
        name=hook_step_name(raw_step.name, kind),
        at=node.at,
        fields={key: fields[key] for key in ("timeout",) if key in fields},
        module=module if problems.text(module, what="module") else None,
        inputs={key: template_of(item, problems) for key, item in inputs.fields.items()},
        input_at=inputs.key_at,
        backend=Backend(backend.type, Template(config or {}, own)),
        providers=raw_step.providers,
    )


def _check_command(argv: Node, environment: Node, problems: Problems, *, what: str) -> None:
    if argv.kind != "list" or not argv.items:
        problems.add(f"{what}: command must be a list of a program and its arguments", argv.at)
    for item in argv.items:
        if item.kind != "scalar" or item.value is None:
            problems.add(f"each entry of command must be text, not {item.shape}", item.at)
        elif "\0" in str(item.value):
            problems.add("an entry of command holds a NUL character", item.at)
    if environment.kind != "map":
        problems.add(f"environment must be a map, not {environment.shape}", environment.at)
    for name, item in environment.fields.items():
        if not _VARIABLE.fullmatch(name):
            problems.add(f"{name!r} is not the name of a variable", environment.key_at[name])
        elif name.startswith(_OURS):
            problems.add(f"{name}: {_OURS}* is set by this tool", environment.key_at[name])
        if item.kind != "scalar" or item.value is None:
            problems.add(f"environment.{name} must be text, not {item.shape}", item.at)


def _check_hook(
    hook: RawHook,
    step: Step,
    modules: Mapping[str, Module | None],
    graph: Graph,
    problems: Problems,
) -> None:
    """
    Add a problem for each reference that a hook may not use. It may use its step's inputs and
    outputs, and the outputs of upstream steps: no other is certain to exist when it runs.
    """
    module = modules[step.name]
    if module is None:
        return
    what = f"{hook.kind} of step {step.name!r}"
    rules = ReferenceRules(
        what,
        inputs=module.variables,
        outputs=module.outputs,
        steps=modules,
        itself=step.name,
        run_id=True,
    )
    work = hook.work
    templates = (
        tuple(work.inputs.values()) if isinstance(work, RawStep) else (work.argv, work.environment)
    )
    for template in templates:
        rules.check(template, problems)
        for use in template.uses:
            other = use.reference.names[0] if use.reference.kind == "step_output" else step.name
            if other in modules and other not in {step.name, *graph.upstreams(step.name)}:
                message = f"{what} refers to {other!r}, which {step.name!r} does not need"
                problems.add(message, template.location(use), f"add `needs: [{other}]`")


def _check_order(
    hooks: Mapping[str, Mapping[HookKind, RawHook]], graph: Graph, problems: Problems
) -> None:
    """
    Add a problem for each ``after`` that names a step without a compensation, and for compensations
    that wait for each other.
    """
    declared = {name: own["compensate"] for name, own in hooks.items() if "compensate" in own}
    before = len(list(problems))
    for name, hook in declared.items():
        for other, at in (hook.after or {}).items():
            if other not in hooks:
                problems.add(f"there is no step {other!r}", at, did_you_mean(other, hooks))
            elif other not in declared:
                problems.add(f"step {other!r} declares no `compensate`", at)
            elif other == name:
                problems.add(f"compensate of step {name!r} comes after itself", at)
    if len(list(problems)) > before:
        return
    after = {
        name: None if hook.after is None else tuple(hook.after) for name, hook in declared.items()
    }
    try:
        compensation_order(graph, after)
    except CycleFound as exc:
        first = next(name for name in exc.path if declared[name].after)
        problems.add(str(exc), declared[first].at, "let each of them say what it comes `after`")
