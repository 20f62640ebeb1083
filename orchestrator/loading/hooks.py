"""
Reads the hooks of a step, ``compensate`` and ``before_destroy``: a module with inputs, or a
command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import CommandHook, Module
from orchestrator.domain.blueprint.graph import (
    CycleFound,
    Graph,
    compensation_order,
    derived_backend,
)
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, without_nulls
from orchestrator.domain.target import HOOK_KINDS, HookKind, hook_step_name
from orchestrator.domain.text import did_you_mean
from orchestrator.errors import Location
from orchestrator.loading.located_templates import LocatedTemplate, ReferenceRules, locate
from orchestrator.loading.raw_steps import RawBackend, RawStep
from orchestrator.loading.schema import duration

_KEYS = ("module", "inputs", "command", "environment", "timeout")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "ORCHESTRATOR_"


class RawHook(Struct, frozen=True):
    """
    A hook as written: either ``step``, for a module, or ``argv`` and ``environment``, for a
    command. ``after`` are the steps that it names, with their places; None if it names none.
    """

    kind: HookKind
    at: Location
    step: RawStep | None = None
    argv: LocatedTemplate | None = None
    environment: LocatedTemplate | None = None
    timeout: float | None = None
    after: Mapping[str, Location] | None = None

    def values(self) -> Iterator[LocatedTemplate]:
        """
        Yield the templates of the hook.
        """
        if self.step is not None:
            yield from self.step.inputs.values()
        yield from (value for value in (self.argv, self.environment) if value is not None)

    def command(self) -> CommandHook | None:
        """
        Return the command, None for a module.
        """
        if self.argv is None or self.environment is None:
            return None
        return CommandHook(self.argv.template, self.environment.template, self.timeout)


def parse_hooks(raw_step: RawStep, problems: Problems) -> dict[HookKind, RawHook]:
    """
    Return the hooks of a step; problems are collected.
    """
    declared = without_nulls(
        {kind: raw_step.fields[kind] for kind in HOOK_KINDS if kind in raw_step.fields}
    )
    hooks = {
        kind: _parse_hook(raw_step, kind, declared[kind], problems)
        for kind in HOOK_KINDS
        if kind in declared
    }
    return {kind: hook for kind, hook in hooks.items() if hook is not None}


def _parse_hook(
    raw_step: RawStep, kind: HookKind, node: Node, problems: Problems
) -> RawHook | None:
    what = f"{kind} of step {raw_step.name!r}"
    keys = (*_KEYS, "after") if kind == "compensate" else _KEYS
    fields = problems.settings(node, keys, what=what)
    timeout = duration(fields.get("timeout"), problems, what="timeout")
    after = _after(fields.get("after"), problems)
    if ("module" in fields) == ("command" in fields):
        hint = "either `module` (with `inputs`) or `command`"
        problems.add(f"{what} says what to do by one of two keys", node.at, hint)
        return None
    for key, other in (("inputs", "module"), ("environment", "command")):
        if key in fields and other not in fields:
            problems.add(f"{what}: `{key}` goes with `{other}`", node.key_at[key])
    if "module" in fields:
        root = _hook_step(raw_step, kind, node, fields, problems)
        return RawHook(kind, node.at, step=root, timeout=timeout, after=after)
    return RawHook(
        kind,
        node.at,
        argv=_argv(fields["command"], problems, what=what),
        environment=_environment(fields.get("environment", Node("map", node.at)), problems),
        timeout=timeout,
        after=after,
    )


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
    config = derived_backend(backend.type, backend.config.template.raw or {}, kind)
    if config is None and not backend.config.broken:
        problems.add(
            f"{kind} of step {raw_step.name!r}: a module needs a state of its own, and where "
            f"that would be in backend {backend.type!r} is not known",
            node.at,
            "use a `command` here",
        )
    own = Node("map", backend.config.node.at)
    return RawStep(
        name=hook_step_name(raw_step.name, kind),
        at=node.at,
        fields={key: fields[key] for key in ("timeout",) if key in fields},
        module=module if problems.text(module, what="module") else None,
        inputs={key: locate(item, problems) for key, item in inputs.fields.items()},
        input_at=inputs.key_at,
        backend=RawBackend(backend.type, LocatedTemplate(Template(config or {}), own)),
        providers=raw_step.providers,
    )


def _argv(node: Node, problems: Problems, *, what: str) -> LocatedTemplate:
    if node.kind != "list" or not node.items:
        problems.add(f"{what}: command must be a list of a program and its arguments", node.at)
    for item in node.items:
        if item.kind != "scalar" or item.value is None:
            problems.add(f"each entry of command must be text, not {item.shape}", item.at)
        elif "\0" in str(item.value):
            problems.add("an entry of command holds a NUL character", item.at)
    return locate(node, problems)


def _environment(node: Node, problems: Problems) -> LocatedTemplate:
    if node.kind != "map":
        problems.add(f"environment must be a map, not {node.shape}", node.at)
    for name, item in node.fields.items():
        if not _VARIABLE.fullmatch(name):
            problems.add(f"{name!r} is not the name of a variable", node.key_at[name])
        elif name.startswith(_OURS):
            problems.add(f"{name}: {_OURS}* is set by this tool", node.key_at[name])
        if item.kind != "scalar" or item.value is None:
            problems.add(f"environment.{name} must be text, not {item.shape}", item.at)
    return locate(node, problems)


def _after(node: Node | None, problems: Problems) -> Mapping[str, Location] | None:
    if node is None:
        return None
    return {text: item.at for text, item in problems.entries(node, what="after")}


def check_references(
    raw_step: RawStep,
    hook: RawHook,
    modules: Mapping[str, Module | None],
    graph: Graph,
    problems: Problems,
) -> None:
    """
    Add a problem for each reference that a hook may not use. It may use its step's inputs and
    outputs, and the outputs of upstream steps: no other is certain to exist when it runs.
    """
    module = modules[raw_step.name]
    if module is None:
        return
    what = f"{hook.kind} of step {raw_step.name!r}"
    rules = ReferenceRules(
        what,
        inputs=module.variables,
        outputs=module.outputs,
        steps=modules,
        itself=raw_step.name,
        run_id=True,
    )
    for value in hook.values():
        rules.check(value, problems)
        for use in value.template.uses:
            other = use.reference.names[0] if use.reference.kind == "step_output" else raw_step.name
            if other in modules and other not in {raw_step.name, *graph.upstreams(raw_step.name)}:
                message = f"{what} refers to {other!r}, which {raw_step.name!r} does not need"
                problems.add(message, value.location(use), f"add `needs: [{other}]`")


def check_order(
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
