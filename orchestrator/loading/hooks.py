"""
What a step declares as ``compensate`` and ``before_destroy``: a module with inputs, or a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.domain.blueprint.blueprint import CommandAction, Module
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.hook_order import (
    CompensationCycle,
    compensation_order,
    derived_backend,
)
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.suggestions import did_you_mean
from orchestrator.domain.target import ACTION_KINDS, ActionKind, action_name
from orchestrator.errors import Location
from orchestrator.loading.behaviour import parse_timeout
from orchestrator.loading.located_templates import Placed, Rules, placed
from orchestrator.loading.raw_steps import BackendDraft, Draft
from orchestrator.loading.schema import given

_KEYS = ("module", "inputs", "command", "environment", "timeout")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "ORCHESTRATOR_"


@dataclass(frozen=True, slots=True)
class ActionDraft:
    """
    An action as written: ``root`` is the draft of its module's root, else ``argv`` and
    ``environment`` are those of its command. ``after`` are the steps that it names, and where; None
    where it says nothing.
    """

    kind: ActionKind
    at: Location
    root: Draft | None = None
    argv: Placed | None = None
    environment: Placed | None = None
    timeout: float | None = None
    after: Mapping[str, Location] | None = None

    def values(self) -> Iterator[Placed]:
        """
        Its templates.
        """
        if self.root is not None:
            yield from self.root.inputs.values()
        yield from (value for value in (self.argv, self.environment) if value is not None)

    def command(self) -> CommandAction | None:
        """
        The action, where it is a command.
        """
        if self.argv is None or self.environment is None:
            return None
        return CommandAction(self.argv.template, self.environment.template, self.timeout)


def parse_actions(draft: Draft, problems: Problems) -> dict[ActionKind, ActionDraft]:
    """
    The actions of a step; what is wrong with their shape is added to ``problems``.
    """
    declared = given({kind: draft.fields[kind] for kind in ACTION_KINDS if kind in draft.fields})
    found: dict[ActionKind, ActionDraft] = {}
    for kind in ACTION_KINDS:
        action = _action(draft, kind, declared[kind], problems) if kind in declared else None
        if action is not None:
            found[kind] = action
    return found


def _action(draft: Draft, kind: ActionKind, node: Node, problems: Problems) -> ActionDraft | None:
    what = f"{kind} of step {draft.name!r}"
    keys = (*_KEYS, "after") if kind == "compensate" else _KEYS
    fields = given(problems.fields(node, keys, what=what))
    timeout = parse_timeout(fields.get("timeout"), problems)
    after = _after(fields.get("after"), problems)
    if ("module" in fields) == ("command" in fields):
        hint = "either `module` (with `inputs`) or `command`"
        problems.add(f"{what} says what to do by one of two keys", node.at, hint)
        return None
    for key, other in (("inputs", "module"), ("environment", "command")):
        if key in fields and other not in fields:
            problems.add(f"{what}: `{key}` goes with `{other}`", node.key_at[key])
    if "module" in fields:
        root = _root(draft, kind, node, fields, problems)
        return ActionDraft(kind, node.at, root=root, timeout=timeout, after=after)
    return ActionDraft(
        kind,
        node.at,
        argv=_argv(fields["command"], problems, what=what),
        environment=_environment(fields.get("environment", Node("map", node.at)), problems),
        timeout=timeout,
        after=after,
    )


def _root(
    draft: Draft, kind: ActionKind, node: Node, fields: Mapping[str, Node], problems: Problems
) -> Draft:
    """
    The root of a module as a step of its own: with the providers of the step, and its backend but
    for the name of the state.
    """
    module = fields["module"]
    inputs = fields.get("inputs", Node("map", node.at))
    if inputs.kind != "map":
        problems.add(f"inputs must be a map, not {inputs.shape}", inputs.at)
    backend = draft.backend
    config = derived_backend(backend.type, backend.config.template.raw or {}, kind)
    if config is None and not backend.config.broken:
        problems.add(
            f"{kind} of step {draft.name!r}: a module needs a state of its own, and it is not "
            f"known how those of backend {backend.type!r} are told apart",
            node.at,
            "use a `command` here",
        )
    own = Node("map", backend.config.node.at)
    return Draft(
        name=action_name(draft.name, kind),
        at=node.at,
        fields={key: fields[key] for key in ("timeout",) if key in fields},
        module=module if problems.text(module, what="module") else None,
        inputs={key: placed(item, problems) for key, item in inputs.fields.items()},
        input_at=inputs.key_at,
        backend=BackendDraft(backend.type, Placed(Template(config or {}), own)),
        providers=draft.providers,
    )


def _argv(node: Node, problems: Problems, *, what: str) -> Placed:
    if node.kind != "list" or not node.items:
        problems.add(f"{what}: command must be a list of a program and its arguments", node.at)
    for item in node.items:
        if item.kind != "scalar" or item.value is None:
            problems.add(f"each entry of command must be text, not {item.shape}", item.at)
    return placed(node, problems)


def _environment(node: Node, problems: Problems) -> Placed:
    if node.kind != "map":
        problems.add(f"environment must be a map, not {node.shape}", node.at)
    for name, item in node.fields.items():
        if not _VARIABLE.fullmatch(name):
            problems.add(f"{name!r} is not the name of a variable", node.key_at[name])
        elif name.startswith(_OURS):
            problems.add(f"{name}: {_OURS}* is set by this tool", node.key_at[name])
        if item.kind != "scalar" or item.value is None:
            problems.add(f"environment.{name} must be text, not {item.shape}", item.at)
    return placed(node, problems)


def _after(node: Node | None, problems: Problems) -> Mapping[str, Location] | None:
    if node is None:
        return None
    return {text: item.at for text, item in problems.entries(node, what="after")}


def check_references(
    draft: Draft,
    action: ActionDraft,
    modules: Mapping[str, Module | None],
    graph: Graph,
    problems: Problems,
) -> None:
    """
    Add a problem for each reference in an action to what its step does not know: its inputs, its
    outputs, and the outputs of the steps that it needs, because no other is sure to be there.
    """
    module = modules[draft.name]
    if module is None:
        return
    what = f"{action.kind} of step {draft.name!r}"
    rules = Rules(
        what,
        inputs=module.variables,
        outputs=module.outputs,
        steps=modules,
        itself=draft.name,
        runs=True,
    )
    for value in action.values():
        rules.check(value, problems)
        for use in value.template.uses:
            other = use.reference.names[0] if use.reference.kind == "step_output" else draft.name
            if other in modules and other not in {draft.name, *graph.upstreams(draft.name)}:
                message = f"{what} refers to {other!r}, which {draft.name!r} does not need"
                problems.add(message, value.place(use), f"add `needs: [{other}]`")


def check_order(
    actions: Mapping[str, Mapping[ActionKind, ActionDraft]], graph: Graph, problems: Problems
) -> None:
    """
    Add a problem for each ``after`` that names what is not compensated, and for compensations that
    wait for each other.
    """
    declared = {name: own["compensate"] for name, own in actions.items() if "compensate" in own}
    before = len(list(problems))
    for name, action in declared.items():
        for other, at in (action.after or {}).items():
            if other not in actions:
                problems.add(f"there is no step {other!r}", at, did_you_mean(other, actions))
            elif other not in declared:
                problems.add(f"step {other!r} declares no `compensate`", at)
            elif other == name:
                problems.add(f"compensate of step {name!r} comes after itself", at)
    if len(list(problems)) > before:
        return
    after = {
        name: None if action.after is None else tuple(action.after)
        for name, action in declared.items()
    }
    try:
        compensation_order(graph, after)
    except CompensationCycle as exc:
        first = next(name for name in exc.path if declared[name].after)
        problems.add(str(exc), declared[first].at, "let each of them say what it comes `after`")
