"""
Merges a blueprint with the settings of one environment and those it extends.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Problem
from orchestrator.loading.schema import EnvironmentSettings, RawBlueprint, RawEnvironment

DEFAULT = "default"


class EffectiveBlueprint(Struct, frozen=True):
    """
    The blueprint in an environment. ``chain`` are the environments that were merged, weakest first.
    """

    name: str
    chain: tuple[RawEnvironment, ...]
    settings: EnvironmentSettings
    protected: bool
    steps: Mapping[str, Node]


def choose_environment(blueprint: RawBlueprint, wanted: str | None, *, shown: str) -> str:
    """
    Return the name of the environment to use. Raises Invalid if it is not declared, or if none is
    chosen and the declared ones include no "default".
    """
    names = list(blueprint.environments)
    if wanted is None:
        if not names or DEFAULT in names:
            return DEFAULT
        hint = "choose one with -e: " + ", ".join(names)
        what = f"{shown} declares environments and none is chosen"
        raise Invalid([Problem(what, blueprint.at, hint)])
    if wanted in names or (not names and wanted == DEFAULT):
        return wanted
    hint = did_you_mean(wanted, names) if names else "it declares none: leave -e out"
    raise Invalid([Problem(f"{shown} has no environment {wanted!r}", blueprint.at, hint)])


def check_extends(blueprint: RawBlueprint, problems: Problems) -> None:
    """
    Add a problem for each ``extends`` that names an undeclared environment or forms a cycle.
    """
    for environment in blueprint.environments.values():
        base = environment.extends
        if base is not None and base not in blueprint.environments:
            message = f"environment {environment.name!r} extends {base!r}, which is not declared"
            problems.add(message, environment.at, did_you_mean(base, blueprint.environments))
        names = [item.name for item in _chain(blueprint, environment.name)]
        if _closes(blueprint, names):
            path = " -> ".join([*reversed(names), environment.name])
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


def _closes(blueprint: RawBlueprint, names: list[str]) -> bool:
    return bool(names) and blueprint.environments[names[0]].extends == names[-1]


def effective_blueprint(blueprint: RawBlueprint, name: str) -> EffectiveBlueprint:
    """
    Return the blueprint merged with environment ``name`` and those it extends.
    """
    chain = _chain(blueprint, name)
    common, protected, steps = blueprint.settings, False, dict(blueprint.steps)
    for environment in chain:
        common = _merge_settings(common, environment.settings)
        if environment.protected is not None:
            protected = environment.protected
        for step, node in environment.steps.items():
            steps[step] = merge_step(steps[step], node)
    return EffectiveBlueprint(name, tuple(chain), common, protected, steps)


def _merge_settings(base: EnvironmentSettings, over: EnvironmentSettings) -> EnvironmentSettings:
    return EnvironmentSettings(
        engine=over.engine or base.engine,
        backend=merge_backend(base.backend, over.backend),
        operations=over.operations or base.operations,
        providers=merge_deep(base.providers, over.providers),
        verify_absence=over.verify_absence or base.verify_absence,
        absence_timeout=over.absence_timeout or base.absence_timeout,
        policy=merge_deep(base.policy, over.policy),
    )


def merge_deep(base: Node | None, over: Node | None) -> Node | None:
    """
    Return ``base`` with ``over`` merged into it, maps recursively.
    """
    if base is None or over is None:
        return over or base
    return base.merged(over)


def merge_backend(base: Node | None, over: Node | None) -> Node | None:
    """
    Return the backend with the settings of ``over`` merged into it; one of another type replaces
    it.
    """
    if base is None or over is None:
        return over or base
    kind = over.fields.get("type")
    base_kind = base.fields.get("type")
    if kind is not None and (base_kind is None or kind.value != base_kind.value):
        return over
    return base.merged(over)


def merge_step(base: Node, over: Node) -> Node:
    """
    Return a step with an environment's settings: inputs, backend and providers are merged setting
    by setting, every other key is replaced.
    """
    if base.kind != "map" or over.kind != "map":
        return over if over.kind == "map" else base
    fields = {**base.fields, **over.fields}
    for key in base.fields.keys() & over.fields.keys():
        one, other = base.fields[key], over.fields[key]
        match key:
            case "inputs" | "identity" | "search":
                fields[key] = _shallow(one, other)
            case "backend":
                fields[key] = merge_backend(one, other) or other
            case "providers":
                fields[key] = one.merged(other)
    return replace(base, fields=fields, key_at={**base.key_at, **over.key_at})


def _shallow(base: Node, over: Node) -> Node:
    if base.kind != "map" or over.kind != "map":
        return over
    return replace(
        over,
        fields={**base.fields, **over.fields},
        key_at={**base.key_at, **over.key_at},
    )
