"""
Composes the steps of a blueprint into one temporary root module, so that one engine plan covers
all.

Each step is a module call of the root, and a reference to another step's output is a reference to
that call's output: a value that is unknown before an apply stays unknown in every dependent step.
The provider states of the steps are merged into one, each below its module call. None of this is
ever applied.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct, field

from orchestrator.domain.blueprint.references import Reference, escaped, path_text
from orchestrator.domain.events.events import (
    Message,
    OutputChange,
    PlannedChange,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.plan.changes import (
    OUTPUT,
    CheckResult,
    OutputValueChange,
    PlanChanges,
    PlanContent,
    PlannedObject,
    ResourceChange,
)
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace

Item = TypeVar("Item")
Part = TypeVar("Part")
Addressed = TypeVar("Addressed", ResourceChange, PlannedAction, CheckResult)
#: A part of the composed plan as the step's own plan has it, and the step: None where it is none's.
Owned: TypeAlias = tuple[str | None, Part]

_STATE_VERSION = 4
#: What an engine warns of only because a root is called as a module.
_OF_A_CHILD = frozenset({"Backend configuration ignored", "Redundant empty provider block"})


class ProviderConfiguration(Struct, frozen=True):
    """
    A step's provider configuration in the blueprint: the provider's source, the block in
    Terraform's JSON syntax, and the values of the variables that replace secrets in it.
    """

    source: str
    block: Mapping[str, Json]
    variables: Mapping[str, Json]

    @property
    def key(self) -> str:
        """
        The key of the configuration; equal configurations have equal keys.
        """
        return json.dumps([self.source, self.block, dict(self.variables)], sort_keys=True)


class ModuleCall(Struct, frozen=True):
    """
    A step as a module call of the composed root.

    ``expressions`` are its inputs that refer to other steps, in Terraform's JSON syntax, ``values``
    the others. ``outputs`` maps each output to whether it is sensitive, ``types`` to its type in
    the provider state (None: it is null). ``configured`` are the source addresses of providers that
    the module configures itself; ``providers`` are those passed to it, by local name. ``module`` is
    the path of the module for people.
    """

    step: str
    name: str
    source: str
    module: str
    expressions: Mapping[str, Json]
    values: Mapping[str, Json]
    outputs: Mapping[str, bool]
    types: Mapping[str, Json] = field(default_factory=dict)
    configured: frozenset[str] = frozenset()
    providers: Mapping[str, ProviderConfiguration] = field(default_factory=dict)

    @property
    def regions(self) -> dict[str, str]:
        """
        The regions of the provider configurations passed to it, by local name.
        """
        values = {name: item.block.get("region") for name, item in self.providers.items()}
        return {name: region for name, region in values.items() if isinstance(region, str)}

    @property
    def prefix(self) -> str:
        """
        The prefix of the step's addresses in the composed plan.
        """
        return f"module.{self.name}."

    def place(self, at: str) -> str:
        """
        Return a file of the composed root as a path in the project.
        """
        relative = posixpath.relpath(at, self.source)
        return posixpath.normpath(posixpath.join(self.module, relative))

    def output_reference(self, reference: Reference, *, typed: bool) -> str:
        """
        Return the expression for an output. The sensitive mark and, except for a ``typed``
        variable, the type of a collection are removed: a separate plan of the reading step would
        not see them, and engines treat either as a change.
        """
        output = reference.names[1]
        value = f"module.{self.name}.{output}"
        if self.outputs.get(output):
            value = f"nonsensitive({value})"
        if reference.path or not typed:
            value = _as_in_json(value, self.types.get(output, ""))
        return value + path_text(reference.path)


class ComposedRoot(Struct, frozen=True):
    """
    The module calls by step, the steps by the name of their call, the root's outputs, each for an
    output (step, name), and its provider configurations by key: equal ones of several steps are
    shared, in one process.
    """

    calls: Mapping[str, ModuleCall]
    steps: Mapping[str, str]
    configurations: Mapping[str, tuple[str, str]]
    outputs: Mapping[str, tuple[str, str]]

    @classmethod
    def of(
        cls, calls: Iterable[ModuleCall], states: Mapping[str, Mapping[str, Json]]
    ) -> ComposedRoot:
        """
        Return the root of these calls; ``states`` are the provider states of their steps, which may
        have outputs that the modules no longer declare.
        """
        by_step = {call.step: call for call in calls}
        named = [
            (call.step, name)
            for call in by_step.values()
            for name in sorted({*call.outputs, *(states.get(call.step, {}).get("outputs") or {})})
        ]
        providers = [item for call in by_step.values() for item in call.providers.values()]
        names = {
            source: f"p{n}" for n, source in enumerate(dict.fromkeys(i.source for i in providers))
        }
        keys = dict.fromkeys(item.key for item in providers)
        sources = {item.key: item.source for item in providers}
        return cls(
            configurations={
                key: (names[sources[key]], f"c{number}") for number, key in enumerate(keys)
            },
            calls=by_step,
            steps={call.name: step for step, call in by_step.items()},
            # The engine tells outputs by their names: so they come in the order of each step's own.
            outputs={f"o{number:06}": key for number, key in enumerate(named)},
        )

    def configuration(self) -> tuple[dict[str, Json], dict[str, Json]]:
        """
        Return the root's configuration in Terraform's JSON syntax, and the values of its variables.
        """
        values: dict[str, Json] = {}

        def variable(value: Json) -> str:
            name = f"v{len(values)}"
            values[name] = value
            return f"${{var.{name}}}"

        content: dict[str, Json] = {"terraform": {}}
        providers = {
            item.key: item for call in self.calls.values() for item in call.providers.values()
        }
        for key, (name, alias) in self.configurations.items():
            item = providers[key]
            required = content["terraform"].setdefault("required_providers", {})
            required[name] = {"source": item.source}
            renamed = {name: variable(value) for name, value in item.variables.items()}
            block = {**_with_variables(item.block, renamed), "alias": alias}
            content.setdefault("provider", {}).setdefault(name, []).append(block)
        content["module"] = {}
        for call in self.calls.values():
            given = {name: variable(value) for name, value in call.values.items()}
            block = {"source": call.source, **call.expressions, **given}
            if call.providers:
                block["providers"] = {
                    name: ".".join(self.configurations[item.key])
                    for name, item in call.providers.items()
                }
            content["module"][call.name] = block
        content["output"] = {
            name: {
                "value": f"${{module.{self.calls[step].name}.{output}}}",
                "sensitive": self.calls[step].outputs[output],
            }
            for name, (step, output) in self.outputs.items()
            if output in self.calls[step].outputs
        }
        content["variable"] = {name: {} for name in values}
        return {name: block for name, block in content.items() if block}, values

    def state(self, states: Mapping[str, Mapping[str, Json]], engine_version: str) -> bytes:
        """
        Return the merged provider state of all steps, with objects, dependencies and provider
        configurations below their module calls.
        """
        resources = [
            self._merged_resource(call, resource)
            for step, call in self.calls.items()
            for resource in states.get(step, {}).get("resources") or ()
        ]
        outputs = {
            name: states[step]["outputs"][output]
            for name, (step, output) in self.outputs.items()
            if output in (states.get(step, {}).get("outputs") or {})
        }
        document = {
            "version": _STATE_VERSION,
            "terraform_version": engine_version,
            "serial": 1,
            "lineage": "composed",
            "outputs": outputs,
            "resources": resources,
            "check_results": None,
        }
        return json.dumps(document).encode()

    def _merged_resource(self, call: ModuleCall, resource: Mapping[str, Json]) -> dict[str, Json]:
        """
        Return a resource of the step's state in the form of the merged state.
        """
        inner = resource.get("module")
        merged = {**resource, "module": call.prefix + inner if inner else call.prefix.rstrip(".")}
        if "provider" in resource:
            merged["provider"] = self._configuration(call, resource["provider"])
        merged["instances"] = instances = [dict(item) for item in resource["instances"]]
        for instance in instances:
            if "provider" in instance:  # OpenTofu, where a provider block has for_each
                instance["provider"] = self._configuration(call, instance["provider"])
            if instance.get("dependencies"):
                instance["dependencies"] = [call.prefix + item for item in instance["dependencies"]]
        return merged

    def _configuration(self, call: ModuleCall, reference: str) -> str:
        """
        Return the provider configuration of an object in the merged state: one of the module itself
        is below its call, one that is passed or default is the root's.
        """
        if reference.startswith("module."):
            return call.prefix + reference
        source = reference.removeprefix('provider["').partition('"]')[0]
        if any(_is_source(source, own) for own in call.configured):
            return call.prefix + reference
        for item in call.providers.values():
            if _is_source(source, item.source):
                return f"{reference}.{self.configurations[item.key][1]}"
        return reference

    def messages(self, messages: Iterable[Message]) -> dict[str, list[Message]]:
        """
        Return the plan's messages by step, as the step's own plan would have them. Messages about
        no single step are dropped.
        """
        by_step: dict[str, list[Message]] = {step: [] for step in self.calls}
        for message in messages:
            match message:
                case PlannedChange(address):
                    step, own = self.locate(address)
                    previous = message.previous_address
                    if previous is not None:
                        previous = self.locate(previous)[1]
                    result: Message = replace(message, address=own, previous_address=previous)
                case ResourceDrift(address) | RefreshComplete(address):
                    step, own = self.locate(address)
                    result = replace(message, address=own)
                case OutputChange(name):
                    step, own = self.output(name)
                    result = replace(message, name=own)
                case Diagnostic() as diagnostic if _warns_of_call(diagnostic):
                    continue
                case Diagnostic() as diagnostic:
                    step, result = self.diagnostic(diagnostic)
                case _:
                    continue
            if step is not None:
                by_step[step].append(result)
        return by_step

    def contents(self, content: PlanContent) -> dict[str, PlanContent]:
        """
        Return the plan's content by step, as the step's own plan would have it.
        """

        def located(item: Addressed) -> Owned[Addressed]:
            step, address = self.locate(item.address)
            own: dict[str, str | None] = {"address": address}
            if not isinstance(item, CheckResult) and item.previous_address:
                own["previous_address"] = self.locate(item.previous_address)[1]
            if isinstance(item, ResourceChange):
                own["module"] = self.locate(f"{item.module}.")[1].rstrip(".") or None
            return step, item.model_copy(update=own)

        def planned(item: PlannedObject) -> Owned[PlannedObject]:
            earlier = item.previous_address and self.locate(item.previous_address)[1]
            if not item.is_output:
                step, address = self.locate(item.address)
            else:
                step, name = self.output(item.address.removeprefix(OUTPUT))
                address = f"{OUTPUT}{name}"
            return step, replace(item, address=address, previous_address=earlier)

        def output(item: OutputValueChange) -> Owned[OutputValueChange]:
            step, name = self.output(item.name)
            return step, item.model_copy(update={"name": name})

        def region(item: tuple[str, str | None]) -> Owned[tuple[str, str | None]]:
            module, _, name = item[0].rpartition(":")
            step, own_module = self.locate(f"{module}.")
            return step, (f"{own_module.rstrip('.')}:{name}".removeprefix(":"), item[1])

        changes = content.changes
        actions = _by_owner(content.actions, located)
        moved = _by_owner(content.moved, self.locate)
        outputs = _by_owner(content.outputs, self.output)
        objects = _by_owner(content.objects, planned)
        regions = _by_owner(content.regions.items(), region)
        resources = _by_owner(changes.resources, located)
        drift = _by_owner(changes.drift, located)
        outputs_changed = _by_owner(changes.outputs_changed, output)
        checks = _by_owner(changes.checks, located)
        return {
            step: replace(
                content,
                actions=tuple(actions[step]),
                moved=frozenset(moved[step]),
                outputs=tuple(outputs[step]),
                objects=tuple(objects[step]),
                regions={**call.regions, **dict(regions[step])},
                changes=PlanChanges(
                    resources=tuple(resources[step]),
                    drift=tuple(drift[step]),
                    outputs_changed=tuple(outputs_changed[step]),
                    checks=tuple(checks[step]),
                ),
            )
            for step, call in self.calls.items()
        }

    def diagnostic(self, diagnostic: Diagnostic) -> tuple[str | None, Diagnostic]:
        """
        Return the step of a diagnostic, by its address or file, and the diagnostic as in the step's
        own plan.
        """
        step, address = self.locate(diagnostic.address or "")
        first, path, _ = (diagnostic.at or "").removeprefix("./").partition("/")
        step = step or self.steps.get(first.partition(".")[0])
        if step is None:
            return None, diagnostic
        call = self.calls[step]
        detail = diagnostic.detail.replace(call.prefix, "")
        detail = detail.replace(call.prefix.rstrip("."), "the root module")
        own: dict[str, str | None] = {"detail": detail}
        if diagnostic.address:
            own["address"] = address
        if first:  # a file of the root's is none of the step's
            own["at"] = call.place(diagnostic.at or "") if path else None
        return step, diagnostic.model_copy(update=own)

    def locate(self, address: str) -> Owned[str]:
        """
        Return the step of an address in the composed root, and the address in the step's own root.
        """
        kind, _, rest = address.partition(".")
        name, _, own = rest.partition(".")
        step = self.steps.get(name) if kind == "module" else None
        return (step, own) if step is not None else (None, address)

    def output(self, name: str) -> Owned[str]:
        """
        Return the step of an output of the composed root, and the step's own name for it.
        """
        return self.outputs.get(name, (None, name))


def _by_owner(
    items: Iterable[Item], own: Callable[[Item], Owned[Part]]
) -> Mapping[str, Sequence[Part]]:
    """
    Return the items by step, each as the step's own plan has it, without what is no step's.
    """
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for item in items:
        step, part = own(item)
        if step is not None:
            parts[step].append(part)
    return parts


def _warns_of_call(diagnostic: Diagnostic) -> bool:
    """
    Return whether a warning is only about a module being called: it names a file of the composed
    root, or is of a kind that root modules do not get.
    """
    of_root = diagnostic.at is not None and "/" not in diagnostic.at.removeprefix("./")
    return diagnostic.severity == "warning" and (of_root or diagnostic.summary in _OF_A_CHILD)


def _as_in_json(value: str, kind: Json, depth: int = 0) -> str:
    """
    Return an expression for a value of this type (in the state's notation) with the type that its
    JSON text has, which knows only lists and objects.
    """
    key, item = f"k{depth}", f"v{depth}"
    match kind:
        case None:
            return f"jsondecode(jsonencode({value}))"
        case ["list" | "set", inner]:
            expression = f"[for {item} in {value} : {_as_in_json(item, inner, depth + 1)}]"
        case ["map", inner]:
            expression = (
                f"{{for {key}, {item} in {value} : {key} => {_as_in_json(item, inner, depth + 1)}}}"
            )
        case ["tuple", [*kinds]] if _has_collection(kinds):
            parts = (
                _as_in_json(f"{value}[{number}]", inner, depth + 1)
                for number, inner in enumerate(kinds)
            )
            expression = f"[{', '.join(parts)}]"
        case ["object", Mapping() as fields, *_] if _has_collection([*fields.values()]):
            names = {name: json.dumps(escaped(name)) for name in fields}
            parts = (
                f"{names[name]} = {_as_in_json(f'{value}[{names[name]}]', inner, depth + 1)}"
                for name, inner in fields.items()
            )
            expression = f"{{{', '.join(parts)}}}"
        case _:
            return value
    return f"({value} == null ? null : {expression})"


def _has_collection(kinds: Sequence[Json]) -> bool:
    return any(_as_in_json("x", kind) != "x" for kind in kinds)


def call_names(steps: Sequence[str]) -> dict[str, str]:
    """
    Return a name for the module call of each step, a valid identifier even for ``web["eu"]``.
    """
    names = [re.sub(r"[^\w-]", "_", step) for step in steps]
    return {step: f"s{number}_{names[number]}" for number, step in enumerate(steps)}


def _is_source(full: str, source: str) -> bool:
    """
    Return whether a source, which may omit the registry host, is this full one.
    """
    return f"/{full}".endswith(f"/{source}")


def _with_variables(value: Json, names: Mapping[str, str]) -> Json:
    match value:
        case str():
            for name, reference in names.items():
                value = value.replace(f"${{var.{name}}}", reference)
            return value
        case Mapping():
            return {key: _with_variables(item, names) for key, item in value.items()}
        case list():
            return [_with_variables(item, names) for item in value]
        case _:
            return value
