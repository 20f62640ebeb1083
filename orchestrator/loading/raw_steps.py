"""
Steps as written, before their references are checked, and their dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import InputValue, Retain
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, node_of, without_nulls
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.domain.target import HOOK_KINDS
from orchestrator.domain.text import did_you_mean, is_date
from orchestrator.errors import Location
from orchestrator.loading.behaviour import KEYS as BEHAVIOUR
from orchestrator.loading.environments import EffectiveBlueprint, merge_backend, merge_deep
from orchestrator.loading.located_templates import LocatedTemplate, ReferenceRules, locate
from orchestrator.loading.schema import RawBlueprint, check_providers

_KEYS = (
    "description",
    "module",
    "inputs",
    "needs",
    "owned_by",
    "retain",
    "backend",
    "providers",
    *HOOK_KINDS,
    *BEHAVIOUR,
)
#: Where the provider state of a step lies if nothing is said, relative to the project.
_LOCAL_STATE = ".orchestrator/state/${blueprint.name}/${environment}/${step.name}.tfstate"


class RawBackend(Struct, frozen=True):
    type: str
    config: LocatedTemplate


class RawStep(Struct, frozen=True):
    """
    A step as written, in an environment. ``fields`` are its keys for behaviour and hooks.
    """

    name: str
    at: Location
    fields: Mapping[str, Node]
    module: Node | None
    inputs: Mapping[str, LocatedTemplate]
    input_at: Mapping[str, Location]
    backend: RawBackend
    providers: Mapping[str, LocatedTemplate]
    needs: Mapping[str, Location] = field(default_factory=dict)
    owned_by: Node | None = None
    retain: Retain | None = None
    verify_absence: AbsenceMethod | None = None
    absence_timeout: float | None = None

    @property
    def implied_needs(self) -> Mapping[str, Location]:
        """
        The steps whose outputs its inputs and providers refer to, with the place of the first
        reference.
        """
        steps: dict[str, Location] = {}
        for value in (*self.inputs.values(), *self.providers.values()):
            for use in value.template.uses:
                if use.reference.kind == "step_output":
                    steps.setdefault(use.reference.names[0], value.location(use))
        return steps


def check_shape(node: Node, problems: Problems, *, what: str) -> None:
    """
    Add the problems in the shape of a step, or of an environment's settings for one.
    """
    fields = problems.settings(node, _KEYS, what=what)
    inputs = fields.get("inputs")
    if inputs is not None and inputs.kind != "map":
        problems.add(f"inputs must be a map, not {inputs.shape}", inputs.at)
    if "providers" in fields:
        check_providers(fields["providers"], problems)


def parse_step(
    name: str, node: Node, at: Location, environment: EffectiveBlueprint, problems: Problems
) -> RawStep:
    """
    Return the step; problems are collected.
    """
    what = f"step {name!r}"
    check_shape(node, problems, what=what)
    everything = {key: item for key, item in node.fields.items() if key in _KEYS}
    fields = without_nulls(everything)
    module = fields.get("module")
    if module is None:
        problems.add(f"{what} names no `module`", at)
    elif not problems.text(module, what="module"):
        module = None
    inputs = fields.get("inputs", Node("map", at))
    providers = merge_deep(environment.settings.providers, fields.get("providers"))
    owned_by = fields.get("owned_by")
    if owned_by is not None and not problems.text(owned_by, what="owned_by"):
        owned_by = None
    return RawStep(
        name=name,
        at=at,
        fields=everything,
        module=module,
        inputs={key: locate(item, problems) for key, item in inputs.fields.items()},
        input_at=inputs.key_at,
        backend=parse_backend(
            merge_backend(environment.settings.backend, fields.get("backend")), problems
        ),
        providers={
            key: locate(item, problems)
            for key, item in without_nulls(providers.fields if providers else {}).items()
        },
        needs={text: item.at for text, item in problems.entries(fields.get("needs"), what="needs")},
        owned_by=owned_by,
        retain=_retain(fields.get("retain"), problems),
        verify_absence=environment.settings.verify_absence,
        absence_timeout=environment.settings.absence_timeout,
    )


def parse_backend(node: Node | None, problems: Problems) -> RawBackend:
    """
    Return the backend; local under ``.orchestrator/state/`` if none is declared.
    """
    if node is None:
        return RawBackend("local", _local_backend(Location("built in")))
    fields = problems.settings(node, ("type", "config"), what="backend")
    kind, config = fields.get("type"), fields.get("config")
    if kind is None:
        problems.add("a backend has a `type`", node.at)
    name = problems.text(kind, what="backend.type") if kind else ""
    if config is not None and config.kind != "map":
        problems.add(f"backend.config must be a map, not {config.shape}", config.at)
        config = None
    if name == "local" and (config is None or "path" not in config.fields):
        return RawBackend(name, _local_backend(node.at, config))
    return RawBackend(name, locate(config or Node("map", node.at), problems))


def _local_backend(at: Location, config: Node | None = None) -> LocatedTemplate:
    default = node_of({"path": _LOCAL_STATE}, at)
    return locate(default.merged(config) if config else default, Problems())


def _retain(node: Node | None, problems: Problems) -> Retain | None:
    if node is None:
        return None
    fields = problems.settings(node, ("reason", "owner", "review_by"), what="retain")
    texts: dict[str, str] = {}
    for key in ("reason", "owner", "review_by"):
        if key in fields:
            texts[key] = problems.text(fields[key], what=f"retain.{key}")
        else:
            problems.add(f"retain says `{key}`", node.at)
            texts[key] = ""
    if texts["review_by"] and not is_date(texts["review_by"]):
        at = fields["review_by"].at
        problems.add("retain.review_by must be a date such as 2027-06-30", at)
    return Retain(**texts)


def backend_rules(blueprint: RawBlueprint, values: Mapping[str, InputValue]) -> ReferenceRules:
    """
    Return what a backend configuration may refer to: no environment variables, which count as
    sensitive, and no inputs that are sensitive by declaration or value.
    """
    sensitive = {item.name for item in blueprint.inputs.values() if item.sensitive}
    sensitive.update(name for name, value in values.items() if value.sensitive)
    return ReferenceRules("a backend", inputs=blueprint.inputs, env=False, sensitive=sensitive)


def step_graph(raw_steps: Mapping[str, RawStep], problems: Problems) -> Graph:
    """
    Return the graph of explicit and implied dependencies; empty, with a problem, if they form a
    cycle.
    """
    needs: dict[str, dict[str, Location]] = {}
    for name, raw_step in raw_steps.items():
        for upstream, at in raw_step.needs.items():
            if upstream == name:
                problems.add(f"step {name!r} needs itself", at)
            elif upstream not in raw_steps:
                problems.add(
                    f"there is no step {upstream!r}", at, did_you_mean(upstream, raw_steps)
                )
        everything = {**raw_step.implied_needs, **raw_step.needs}
        needs[name] = {s: at for s, at in everything.items() if s in raw_steps and s != name}
    try:
        graph = Graph(needs)
    except CycleFound as exc:
        problems.add(str(exc), needs[exc.path[0]][exc.path[1]])
        return Graph({})
    for name, raw_step in raw_steps.items():
        owner = raw_step.owned_by
        if owner is None:
            continue
        if owner.text == name:
            problems.add(f"step {name!r} cannot be owned by itself", owner.at)
        elif owner.text not in raw_steps:
            hint = did_you_mean(owner.text, raw_steps)
            problems.add(f"there is no step {owner.text!r}", owner.at, hint)
        elif owner.text not in graph.upstreams(name):
            message = f"step {name!r} is owned by {owner.text!r} but does not need it"
            problems.add(message, owner.at, f"add `needs: [{owner.text}]`")
    return graph
