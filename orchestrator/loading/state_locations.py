"""
Where the provider states of a project lie, as its blueprints say: each place belongs to one target.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from orchestrator.backend_location import location
from orchestrator.domain.blueprint.blueprint import InputValue
from orchestrator.domain.blueprint.references import Reference, Resolved, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location
from orchestrator.loading.blueprint_file import ReadBlueprint, resolve_inputs, used_inputs
from orchestrator.loading.environments import DEFAULT, effective_blueprint
from orchestrator.loading.files import read_text
from orchestrator.loading.hooks import parse_hooks
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.raw_steps import RawStep, parse_backend, parse_step
from orchestrator.loading.schema import RawBlueprint, parse_blueprint
from orchestrator.project import BlueprintSelection


class _Declared(Struct, frozen=True):
    """
    A target, and where the backend that its blueprint gives it stands.
    """

    target: Target
    at: Location


def check_state_locations(reading: ReadBlueprint, inputs: Mapping[str, InputValue]) -> None:
    """
    Add a problem for each place that would hold the states of several targets, one of them of this
    blueprint and environment. ``inputs`` are its inputs.

    Of other environments and blueprints only what is written in files counts: what somebody gives
    them on the command line is not known here. A place that depends on it is passed over.
    """
    places: dict[str, list[_Declared]] = {}
    for other in _declared_blueprints(reading):
        own = other.path == reading.path and other.effective.name == reading.effective.name
        other = reading if own else other
        values = inputs if own else _written_inputs(other)
        for declared, place in _places(other, values):
            places.setdefault(place, []).append(declared)
    here = (reading.blueprint.name, reading.effective.name)
    for group in places.values():
        targets = sorted({str(item.target) for item in group})
        if len(targets) < 2 or here not in [
            (item.target.blueprint, item.target.environment) for item in group
        ]:
            continue
        first = min(group, key=lambda item: str(item.target))
        reading.problems.add(
            f"{', '.join(targets)} would share one provider state",
            first.at,
            "put ${blueprint.name}, ${environment} and ${step.name} into the backend's settings; "
            "each state belongs to one target",
        )


def _declared_blueprints(reading: ReadBlueprint) -> Iterator[ReadBlueprint]:
    """
    This blueprint and the others of the project, in each of their environments.
    """
    yield from _environments(reading, reading.blueprint, reading.path)
    for paths in reading.project.blueprints().values():
        for path in paths:
            if path == reading.path:
                continue
            try:
                text = read_text(path, shown=str(path))
                if "backend" not in text:  # then its states lie below a directory of its own name
                    continue
                shown = reading.project.show(path)
                blueprint = parse_blueprint(parse_document(text, file=shown), Problems())
            except Invalid:
                continue  # it is told when it is loaded itself
            yield from _environments(reading, blueprint, path)


def _environments(
    reading: ReadBlueprint, blueprint: RawBlueprint, path: Path
) -> Iterator[ReadBlueprint]:
    for name in tuple(blueprint.environments) or (DEFAULT,):
        effective, ignored = effective_blueprint(blueprint, name), Problems()
        yield ReadBlueprint(
            context=replace(reading.context, environ={}),
            selection=BlueprintSelection(blueprint.name),
            project=reading.project,
            path=path,
            blueprint=blueprint,
            effective=effective,
            policy=reading.policy,
            drift_rules=reading.drift_rules,
            raw_steps={
                step: parse_step(step, node, blueprint.step_at[step], effective, ignored)
                for step, node in effective.steps.items()
            },
            backend=parse_backend(effective.settings.backend, ignored),
            problems=ignored,
            environment_is_valid=True,
        )


def _written_inputs(reading: ReadBlueprint) -> Mapping[str, InputValue]:
    """
    The inputs that backends refer to, as far as the blueprint and its files give them a value.
    """
    used = used_inputs(step.backend.config for step in reading.raw_steps.values())
    if not used:
        return {}
    return resolve_inputs(reading, need=InputPolicy.CHECK_ONLY, used=used, run_command=lambda _: "")


def _places(
    reading: ReadBlueprint, inputs: Mapping[str, InputValue]
) -> Iterator[tuple[_Declared, str]]:
    """
    The targets of a blueprint in an environment, each with the place of its state where that is
    known: those of its steps, and of their hooks that are modules.
    """
    for step in reading.raw_steps.values():
        hooks = parse_hooks(step, Problems()).values()
        for raw in (step, *(hook.step for hook in hooks if hook.step is not None)):
            backend = raw.backend

            def look_up(reference: Reference, name: str = step.name) -> Resolved:
                return _static_value(reading, inputs, name, reference)

            try:
                config = backend.config.template.resolve(look_up).value or {}
                place = location(backend.type, config, reading.project.project_dir)
            except Unresolvable:
                continue  # what is wrong with it is told where the blueprint is loaded itself
            except Invalid as exc:
                if not reading.problems:  # else it may follow from what is wrong already
                    for problem in exc.problems:
                        reading.problems.add(problem.message, _backend_at(raw), problem.hint)
                continue
            if backend.type == "local":
                place = os.path.realpath(reading.project.project_dir / place)
            target = Target(reading.blueprint.name, reading.effective.name, raw.name)
            yield _Declared(target, _backend_at(raw)), f"{backend.type} {place}"


def _static_value(
    reading: ReadBlueprint, inputs: Mapping[str, InputValue], step: str, reference: Reference
) -> Resolved:
    match reference.kind:
        case "blueprint_name":
            return Resolved(reading.blueprint.name)
        case "environment":
            return Resolved(reading.effective.name)
        case "step_name":
            return Resolved(step)
        case "target_id":
            # Any text that differs from target to target does.
            return Resolved(f"{reading.blueprint.name}-{reading.effective.name}-{step}")
        case "input" if reference.names[0] in inputs:
            value = inputs[reference.names[0]]
            if value.sensitive:
                raise Unresolvable("a secret is no part of an address")
            return Resolved(value.value)
        case _:
            raise Unresolvable(f"${{{reference}}} has no value here")


def _backend_at(step: RawStep) -> Location:
    at = step.backend.config.node.at
    return at if at.line else step.at
