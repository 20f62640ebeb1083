"""
Steps as written in a blueprint and its environment, before their references are checked, and their
dependencies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from msgspec import Struct

from orchestrator.domain.addresses import is_resource_address
from orchestrator.domain.blueprint.blueprint import (
    Backend,
    CheckKind,
    CheckSpec,
    InputValue,
    Retain,
    RetryRule,
)
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.yaml_tree import (
    Node,
    Problems,
    node_of,
    parse_document,
    without_nulls,
)
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.domain.target import HOOK_KINDS
from orchestrator.domain.text import did_you_mean, is_date
from orchestrator.errors import Invalid, Location
from orchestrator.loading.reference_rules import ReferenceRules, template_of
from orchestrator.loading.schema import (
    EffectiveBlueprint,
    RawBlueprint,
    absence_method,
    check_providers,
    duration,
    merge_settings,
)
from orchestrator.local_files import read_text

_BEHAVIOUR = (
    "verify",
    "identity",
    "search",
    "retry",
    "refused_on",
    "timeout",
    "verify_absence",
    "absence_timeout",
)
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
    *_BEHAVIOUR,
)
#: Where the provider state of a step lies if nothing is said, relative to the project.
_LOCAL_STATE = ".orchestrator/state/${blueprint.name}/${environment}/${step.name}.tfstate"


class RawStep(Struct, frozen=True):
    """
    A step as written, in an environment. ``fields`` are its keys; ``inherited`` those for its
    behaviour that the environment sets.
    """

    name: str
    at: Location
    fields: Mapping[str, Node]
    module: Node | None
    inputs: Mapping[str, Template]
    input_at: Mapping[str, Location]
    backend: Backend
    providers: Mapping[str, Template]
    needs: Mapping[str, Location] = {}
    owned_by: Node | None = None
    retain: Retain | None = None
    inherited: Mapping[str, Node] = {}

    @property
    def module_ref(self) -> str:
        return self.module.text if self.module else ""


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
    inherited = environment.settings
    shared = {key: inherited[key] for key in ("backend", "providers") if key in inherited}
    fields = merge_settings(shared, without_nulls(everything))
    module = fields.get("module")
    if module is None:
        problems.add(f"{what} names no `module`", at)
    elif not problems.text(module, what="module"):
        module = None
    inputs = fields.get("inputs", Node("map", at))
    providers = without_nulls(fields["providers"].fields) if "providers" in fields else {}
    owned_by = fields.get("owned_by")
    if owned_by is not None and not problems.text(owned_by, what="owned_by"):
        owned_by = None
    return RawStep(
        name=name,
        at=at,
        fields=everything,
        module=module,
        inputs={key: template_of(item, problems) for key, item in inputs.fields.items()},
        input_at=inputs.key_at,
        backend=parse_backend(fields.get("backend"), problems),
        providers={key: template_of(item, problems) for key, item in providers.items()},
        needs={text: item.at for text, item in problems.entries(fields.get("needs"), what="needs")},
        owned_by=owned_by,
        retain=_retain(fields.get("retain"), problems),
        inherited={key: node for key, node in inherited.items() if key in _BEHAVIOUR},
    )


def parse_steps(
    blueprint: RawBlueprint, effective: EffectiveBlueprint, problems: Problems
) -> dict[str, RawStep]:
    """
    Return the steps of the blueprint in an environment; problems are collected.
    """
    return {
        name: parse_step(name, node, blueprint.step_at[name], effective, problems)
        for name, node in effective.steps.items()
    }


def parse_backend(node: Node | None, problems: Problems) -> Backend:
    """
    Return the backend; local under ``.orchestrator/state/`` if none is declared.
    """
    if node is None:
        node = node_of({"type": "local"}, Location("built in"))
    fields = problems.settings(node, ("type", "config"), what="backend")
    kind, config = fields.get("type"), fields.get("config")
    if kind is None:
        problems.add("a backend has a `type`", node.at)
    name = problems.text(kind, what="backend.type") if kind else ""
    if config is not None and config.kind != "map":
        problems.add(f"backend.config must be a map, not {config.shape}", config.at)
        config = None
    config = config or Node("map", node.at)
    if name == "local" and "path" not in config.fields:
        config = node_of({"path": _LOCAL_STATE}, node.at).merged(config)
    return Backend(name, template_of(config, problems))


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
    needs: dict[str, dict[str, Location | None]] = {}
    for name, raw_step in raw_steps.items():
        everything: dict[str, Location | None] = {}
        for template in (*raw_step.inputs.values(), *raw_step.providers.values()):
            for use in template.uses:
                if use.reference.kind == "step_output":
                    everything.setdefault(use.reference.names[0], template.location(use))
        for upstream, at in raw_step.needs.items():
            if upstream == name:
                problems.add(f"step {name!r} needs itself", at)
            elif upstream not in raw_steps:
                problems.add(
                    f"there is no step {upstream!r}", at, did_you_mean(upstream, raw_steps)
                )
        everything |= raw_step.needs
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


# What a step declares about its checks, retries, deadlines and identities.


FILE = "module.yaml"
_CHECKS: tuple[CheckKind, ...] = ("http", "tcp", "command")
_SEARCH = ("data", "arguments", "ids", "provider")
#: What a search names becomes part of configuration: names only, and a path from a data source.
_SEARCH_FORMS = {
    "data": (re.compile(r"[a-z][a-z0-9_]*"), "the type of a data source, such as aws_instances"),
    "ids": (
        re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\d+|\*)\])*"),
        "an attribute of the data source, such as ids or servers[*].id",
    ),
    "provider": (
        re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)?"),
        "a provider configuration of the module, such as aws.west",
    ),
}
_RETRY_ATTEMPTS, _MAX_ATTEMPTS = 3, 20


def read_defaults(directory: Path, *, shown: str, problems: Problems) -> Mapping[str, Node]:
    """
    Return the fields of ``module.yaml`` in a module's directory; empty if there is none.
    """
    path = directory / FILE
    if not path.is_file():
        return {}
    name = f"{shown}/{FILE}"
    try:
        text = read_text(path, shown=name)
    except Invalid as exc:
        problems.extend(exc.problems)
        return {}
    return parse_defaults(text, shown=name, problems=problems)


def parse_defaults(text: str, *, shown: str, problems: Problems) -> Mapping[str, Node]:
    """
    Return the fields in the text of a ``module.yaml``.
    """
    try:
        node = parse_document(text, file=shown)
    except Invalid as exc:
        problems.extend(exc.problems)
        return {}
    return problems.settings(node, _BEHAVIOUR, what=shown)


class Behaviour(TypedDict):
    """
    The fields of a `Step` that the keys in ``_BEHAVIOUR`` set.
    """

    verify: tuple[CheckSpec, ...]
    retry: RetryRule | None
    refused_on: tuple[str, ...]
    timeout: float | None
    verify_absence: AbsenceMethod | None
    absence_timeout: float | None
    identity: Mapping[str, Template]
    search: Mapping[str, Template]


def parse_behaviour(
    raw_step: RawStep, defaults: Mapping[str, Node], problems: Problems
) -> Behaviour:
    """
    Return the step's behaviour: its fields override the module's defaults key by key, and these
    the environment; null removes a default.
    """
    own = {key: node for key, node in raw_step.fields.items() if key in _BEHAVIOUR}
    merged = {**raw_step.inherited, **without_nulls({**defaults, **own})}
    return Behaviour(
        verify=_checks(merged.get("verify"), problems),
        retry=_retry(merged.get("retry"), problems),
        refused_on=_patterns(merged.get("refused_on"), problems, what="refused_on"),
        timeout=duration(merged.get("timeout"), problems, what="timeout"),
        verify_absence=absence_method(merged.get("verify_absence"), problems),
        absence_timeout=duration(merged.get("absence_timeout"), problems, what="absence_timeout"),
        identity=_by_address(merged.get("identity"), problems, what="identity"),
        search=_searches(merged.get("search"), problems),
    )


def _checks(node: Node | None, problems: Problems) -> tuple[CheckSpec, ...]:
    if node is None:
        return ()
    if node.kind != "list":
        problems.add(f"verify must be a list, not {node.shape}", node.at)
        return ()
    checks = []
    for item in node.items:
        fields = problems.fields(item, _CHECKS, what="a check")
        if len(fields) != 1:
            problems.add("a check is one of http, tcp, command", item.at)
            continue
        kind = next(kind for kind in _CHECKS if kind in fields)
        settings = fields[kind]
        if settings.kind != "map":
            problems.add(f"{kind} must be a map of settings, not {settings.shape}", settings.at)
            continue
        checks.append(CheckSpec(kind, template_of(settings, problems)))
    return tuple(checks)


def _retry(node: Node | None, problems: Problems) -> RetryRule | None:
    if node is None:
        return None
    fields = problems.settings(node, ("on", "attempts", "interval", "jitter"), what="retry")
    on, attempts = fields.get("on"), fields.get("attempts")
    if on is None:
        problems.add("retry says `on`: which errors are tried again", node.at)
        return None
    tries = _RETRY_ATTEMPTS
    if attempts is not None:
        value = attempts.value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_ATTEMPTS:
            message = f"retry.attempts must be a whole number from 1 to {_MAX_ATTEMPTS}"
            problems.add(message, attempts.at)
        else:
            tries = value
    times = {
        key: seconds
        for key in ("interval", "jitter")
        if (seconds := duration(fields.get(key), problems, what=f"retry.{key}")) is not None
    }
    return RetryRule(_patterns(on, problems, what="retry.on"), tries, **times)


def _patterns(node: Node | None, problems: Problems, *, what: str) -> tuple[str, ...]:
    entries = problems.entries(node, what=what)
    for text, item in entries:
        try:
            re.compile(text)
        except re.error as exc:
            problems.add(f"{what}: not a regular expression: {exc}", item.at)
    return tuple(text for text, _ in entries)


def _by_address(node: Node | None, problems: Problems, *, what: str) -> Mapping[str, Template]:
    if node is None:
        return {}
    if node.kind != "map":
        problems.add(f"{what} must be a map by resource address, not {node.shape}", node.at)
        return {}
    for address in node.fields:
        if not is_resource_address(address):
            message = f"{address!r} is not a resource address such as aws_s3_bucket.this"
            problems.add(message, node.key_at[address])
    return {address: template_of(item, problems) for address, item in node.fields.items()}


def _searches(node: Node | None, problems: Problems) -> Mapping[str, Template]:
    searches = _by_address(node, problems, what="search")
    for address, item in node.fields.items() if node else ():
        fields = problems.settings(item, _SEARCH, what=f"search for {address}")
        for key, (form, meaning) in _SEARCH_FORMS.items():
            if key in fields:
                text = problems.text(fields[key], what=f"search.{key}")
                if text and not form.fullmatch(text):
                    problems.add(f"search.{key} must be {meaning}", fields[key].at)
            elif key != "provider":
                problems.add(f"the search for {address} says `{key}`", item.at)
        arguments = fields.get("arguments")
        if arguments is not None and arguments.kind != "map":
            message = f"search.arguments must be a map, not {arguments.shape}"
            problems.add(message, arguments.at)
    return searches
