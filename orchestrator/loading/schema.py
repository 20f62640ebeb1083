"""
The shape of a blueprint file: which keys are allowed where, and what it is in one environment.
Later modules check the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from orchestrator.domain.blueprint.yaml_tree import Node, Problems, without_nulls
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.domain.target import NAME, is_name
from orchestrator.domain.text import did_you_mean, seconds
from orchestrator.domain.values import replace
from orchestrator.errors import Location
from orchestrator.loading.types import ANY, Type, parse_type

_TOP = (
    "version",
    "name",
    "description",
    "engine",
    "backend",
    "operations",
    "providers",
    "inputs",
    "environments",
    "steps",
    "moved_from",
    "verify_absence",
    "absence_timeout",
    "policy",
    "drift",
)
_ENVIRONMENT = (
    "description",
    "extends",
    "inputs",
    "inputs_from",
    "protected",
    "backend",
    "providers",
    "engine",
    "operations",
    "steps",
    "verify_absence",
    "absence_timeout",
    "policy",
)
#: What an environment may override of a blueprint.
_SETTINGS = (
    "engine",
    "backend",
    "operations",
    "providers",
    "verify_absence",
    "absence_timeout",
    "policy",
)
_INPUT = ("type", "default", "sensitive", "description", "from")
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Declaration(Struct, frozen=True):
    """
    An input that a blueprint declares. ``default`` is a value or a ``from:``; None if the input is
    required. ``type_text`` is the type as written.
    """

    name: str
    at: Location
    type: Type = ANY
    type_text: str = "any"
    default: Node | None = None
    sensitive: bool = False


class RawEnvironment(Struct, frozen=True):
    """
    An environment as declared. ``settings`` are those of the blueprint that it overrides;
    ``inputs_from`` are file names; ``steps`` are its overrides of steps.
    """

    name: str
    at: Location
    settings: Mapping[str, Node]
    extends: str | None = None
    inputs: Node | None = None
    inputs_from: tuple[tuple[str, Node], ...] = ()
    protected: bool | None = None
    steps: Mapping[str, Node] = field(default_factory=dict)


class RawBlueprint(Struct, frozen=True):
    """
    A blueprint file as written; ``steps`` are the nodes of the steps with their places.
    """

    name: str
    at: Location
    settings: Mapping[str, Node]
    inputs: Mapping[str, Declaration]
    environments: Mapping[str, RawEnvironment]
    steps: Mapping[str, Node]
    step_at: Mapping[str, Location]
    moved_from: tuple[str, ...] = ()
    drift: Node | None = None


def parse_blueprint(root: Node, problems: Problems) -> RawBlueprint:
    """
    Return the blueprint in a document; problems are collected.
    """
    fields = problems.settings(root, _TOP, what="the blueprint")
    version = fields.get("version")
    if version is None or version.value != 1 or isinstance(version.value, bool):
        problems.add("a blueprint says `version: 1`", version.at if version else root.at)
    name = ""
    if "name" not in fields:
        problems.add("a blueprint has a `name`", root.at)
    elif name := problems.text(fields["name"], what="name"):
        _check_name(name, fields["name"].at, problems, what="blueprint")
    steps = _maps(fields.get("steps"), problems, what="steps")
    if "steps" not in fields:
        problems.add("a blueprint has `steps`", root.at)
    step_at = dict(fields["steps"].key_at) if steps else {}
    for step in steps:
        _check_name(step, step_at[step], problems, what="step")
    return RawBlueprint(
        name=name,
        at=fields["name"].at if "name" in fields else root.at,
        settings=_settings(fields, problems),
        inputs=_inputs(fields.get("inputs"), problems),
        environments=_environments(fields.get("environments"), steps, problems),
        steps=steps,
        step_at=step_at,
        moved_from=problems.texts(fields.get("moved_from"), what="moved_from"),
        drift=fields.get("drift"),
    )


def _check_name(name: str, at: Location, problems: Problems, *, what: str) -> None:
    if not is_name(name):
        problems.add(f"the name of {what} {name!r} must match {NAME.pattern}", at)


def _maps(node: Node | None, problems: Problems, *, what: str) -> Mapping[str, Node]:
    """
    Return the entries of a map of maps; null counts as an empty map.
    """
    if node is None:
        return {}
    if node.kind != "map":
        problems.add(f"{what} must be a map, not {node.shape}", node.at)
        return {}
    for name, item in node.fields.items():
        if item.kind != "map" and item.value is not None:
            problems.add(f"{what}.{name} must be a map, not {item.shape}", item.at)
    return node.fields


def _settings(fields: Mapping[str, Node], problems: Problems) -> Mapping[str, Node]:
    if "providers" in fields:
        check_providers(fields["providers"], problems)
    absence_method(fields.get("verify_absence"), problems)
    duration(fields.get("absence_timeout"), problems, what="absence_timeout")
    return {key: node for key, node in fields.items() if key in _SETTINGS}


def absence_method(node: Node | None, problems: Problems) -> AbsenceMethod | None:
    """
    Return the value of ``verify_absence``, None if not set.
    """
    if node is None:
        return None
    match node.value:
        case "state":
            return "state"
        case "provider":
            return "provider"
        case _:
            problems.add("verify_absence must be `state` or `provider`", node.at)
            return None


def duration(node: Node | None, problems: Problems, *, what: str) -> float | None:
    """
    Return a duration in seconds, None if not set.
    """
    if node is None:
        return None
    try:
        return seconds(node.plain)
    except ValueError as exc:
        problems.add(f"{what}: {exc}", node.at)
        return None


def check_providers(node: Node, problems: Problems) -> None:
    """
    Add a problem for each provider configuration that is neither a map nor a list of maps with
    ``alias``.
    """
    if node.kind != "map":
        problems.add(f"providers must be a map, not {node.shape}", node.at)
    for name, item in node.fields.items():
        if not _PROVIDER_NAME.fullmatch(name):
            problems.add(f"{name!r} is not the name of a provider", node.key_at[name])
        if item.kind == "scalar" and item.value is not None:
            what = f"providers.{name} must be a map, or a list of maps with `alias`"
            problems.add(f"{what}, not {item.shape}", item.at)
        for entry in item.items:
            if entry.kind != "map":
                problems.add(f"providers.{name} must list maps, not {entry.shape}", entry.at)


def _inputs(node: Node | None, problems: Problems) -> Mapping[str, Declaration]:
    declarations: dict[str, Declaration] = {}
    for name, item in _maps(node, problems, what="inputs").items():
        at = node.key_at[name] if node else item.at
        if not _INPUT_NAME.fullmatch(name):
            problems.add(f"the name of input {name!r} must match {_INPUT_NAME.pattern}", at)
        all_fields = problems.fields(item, _INPUT, what=f"input {name!r}")
        fields = without_nulls(all_fields)
        kind, written = _type(fields.get("type"), problems, what=f"the type of input {name!r}")
        default = all_fields.get("default")
        if "from" in fields:
            if default is not None:
                problems.add(f"input {name!r} has both `default` and `from`", fields["from"].at)
            key, at_key = {"from": fields["from"]}, {"from": item.key_at["from"]}
            default = Node("map", fields["from"].at, fields=key, key_at=at_key)
        declarations[name] = Declaration(
            name=name,
            at=at,
            type=kind,
            type_text=written,
            default=default,
            sensitive=problems.flag(fields.get("sensitive"), what="sensitive"),
        )
    return declarations


def _type(node: Node | None, problems: Problems, *, what: str) -> tuple[Type, str]:
    """
    Return the type and its expression; ``any`` if none is declared.
    """
    anything = (ANY, "any")
    if node is None:
        return anything
    text = problems.text(node, what=what)
    try:
        parsed = parse_type(text) if text else ANY
    except ValueError as exc:
        problems.add(f"{what}: {exc}", node.at)
        return anything
    if _has_defaults(parsed):
        hint = "leave the default to the module: optional(TYPE)"
        problems.add(f"{what}: a default in optional() is not supported here", node.at, hint)
    return parsed, text or "any"


def _has_defaults(wanted: Type) -> bool:
    parts = (*wanted.elements, *wanted.attributes.values(), *([wanted.of] if wanted.of else []))
    return bool(wanted.defaulted) or any(_has_defaults(part) for part in parts)


def _environments(
    node: Node | None, steps: Mapping[str, Node], problems: Problems
) -> Mapping[str, RawEnvironment]:
    environments: dict[str, RawEnvironment] = {}
    for name, item in _maps(node, problems, what="environments").items():
        at = node.key_at[name] if node else item.at
        _check_name(name, at, problems, what="environment")
        what = f"environment {name!r}"
        fields = problems.settings(item, _ENVIRONMENT, what=what)
        overrides = fields.get("steps")
        changed = _maps(overrides, problems, what=f"{what}: steps")
        for step, override in changed.items():
            if override.kind == "scalar" and override.value is None and overrides is not None:
                message = f"environment {name!r}: step {step!r} is null, and stays as it is"
                hint = "a step cannot be left out of an environment; take the line away"
                problems.add(message, overrides.key_at[step], hint)
            if step not in steps and overrides is not None:
                message = f"there is no step {step!r}"
                problems.add(message, overrides.key_at[step], did_you_mean(step, steps))
        extends, protected = fields.get("extends"), fields.get("protected")
        values = fields.get("inputs")
        if values is not None and values.kind != "map":
            problems.add(f"{what}: inputs must be a map, not {values.shape}", values.at)
        environments[name] = RawEnvironment(
            name=name,
            at=at,
            settings=_settings(fields, problems),
            extends=problems.text(extends, what="extends") or None if extends else None,
            inputs=values,
            inputs_from=tuple(problems.entries(fields.get("inputs_from"), what="inputs_from")),
            protected=problems.flag(protected, what="protected") if protected else None,
            steps={step: item for step, item in changed.items() if step in steps},
        )
    return environments


# The blueprint merged with the settings of one environment and of those that it extends.


DEFAULT = "default"


class EffectiveBlueprint(Struct, frozen=True):
    """
    The blueprint in an environment. ``chain`` are the environments that were merged, weakest first.
    """

    name: str
    chain: tuple[RawEnvironment, ...]
    settings: Mapping[str, Node]
    protected: bool
    steps: Mapping[str, Node]


def choose_environment(
    blueprint: RawBlueprint, wanted: str | None, problems: Problems, *, shown: str
) -> str | None:
    """
    Return the name of the environment to use; None, with a problem, if it is not declared, or if
    none is chosen and the declared ones include no "default".
    """
    names = list(blueprint.environments)
    chosen = DEFAULT if wanted is None else wanted
    if chosen in names or (not names and chosen == DEFAULT):
        return chosen
    if wanted is None:
        what = f"{shown} declares environments and none is chosen"
        hint = "choose one with -e: " + ", ".join(names)
    else:
        what = f"{shown} has no environment {wanted!r}"
        hint = did_you_mean(wanted, names) if names else "it declares none: leave -e out"
    problems.add(what, blueprint.at, hint)
    return None


def check_extends(blueprint: RawBlueprint, problems: Problems) -> None:
    """
    Add a problem for each ``extends`` that names an undeclared environment or forms a cycle.
    """
    for environment in blueprint.environments.values():
        base = environment.extends
        if base is not None and base not in blueprint.environments:
            message = f"environment {environment.name!r} extends {base!r}, which is not declared"
            problems.add(message, environment.at, did_you_mean(base, blueprint.environments))
        chain = _chain(blueprint, environment.name)
        if chain[0].extends == environment.name:
            path = " -> ".join(item.name for item in (*chain[::-1], environment))
            problems.add(f"environments extend each other: {path}", environment.at)


def _chain(blueprint: RawBlueprint, name: str) -> list[RawEnvironment]:
    """
    Return the environment after those it extends. A cycle is followed once.
    """
    chain: list[RawEnvironment] = []
    current = blueprint.environments.get(name)
    while current is not None and current not in chain:
        chain.append(current)
        current = blueprint.environments.get(current.extends) if current.extends else None
    return chain[::-1]


def effective_blueprint(blueprint: RawBlueprint, name: str) -> EffectiveBlueprint:
    """
    Return the blueprint merged with environment ``name`` and those it extends.
    """
    chain = _chain(blueprint, name)
    settings, protected, steps = blueprint.settings, False, dict(blueprint.steps)
    for environment in chain:
        settings = merge_settings(settings, environment.settings)
        if environment.protected is not None:
            protected = environment.protected
        for step, node in environment.steps.items():
            steps[step] = merge_step(steps[step], node)
    return EffectiveBlueprint(name, tuple(chain), settings, protected, steps)


def merge_step(base: Node, over: Node) -> Node:
    """
    Return a step with an environment's settings.
    """
    if base.kind != "map" or over.kind != "map":
        return over if over.kind == "map" else base
    fields = merge_settings(base.fields, over.fields)
    return replace(base, fields=fields, key_at={**base.key_at, **over.key_at})


def merge_settings(base: Mapping[str, Node], over: Mapping[str, Node]) -> dict[str, Node]:
    """
    Return the settings of a blueprint or step with those of ``over``: providers and policy are
    merged recursively, a backend too unless its type is another, inputs, identity and search by
    name; every other setting is replaced.
    """
    merged = {**base, **over}
    for key in base.keys() & over.keys():
        one, other = base[key], over[key]
        match key:
            case "backend":
                merged[key] = other if _is_other_type(one, other) else one.merged(other)
            case "providers" | "policy":
                merged[key] = one.merged(other)
            case "inputs" | "identity" | "search" if one.kind == other.kind == "map":
                by_name, key_at = {**one.fields, **other.fields}, {**one.key_at, **other.key_at}
                merged[key] = replace(other, fields=by_name, key_at=key_at)
    return merged


def _is_other_type(base: Node, over: Node) -> bool:
    kind, base_kind = over.fields.get("type"), base.fields.get("type")
    return kind is not None and (base_kind is None or kind.value != base_kind.value)
