"""
Reads a blueprint file for one environment: the part that summary and deployment share.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Backend, DriftRule, InputValue, Policy
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document
from orchestrator.domain.store_location import STORE_URLS, store_url_problem
from orchestrator.domain.text import Json, did_you_mean, is_date, is_text
from orchestrator.loading.inputs import (
    InputPolicy,
    InputResolver,
    InputSource,
    environment_sources,
    file_sources,
    option_sources,
)
from orchestrator.loading.reference_rules import ReferenceRules, known_values, template_of
from orchestrator.loading.schema import (
    DEFAULT,
    EffectiveBlueprint,
    RawBlueprint,
    check_extends,
    choose_environment,
    effective_blueprint,
    parse_blueprint,
)
from orchestrator.loading.steps import RawStep, check_shape, parse_backend, parse_steps
from orchestrator.local_files import read_text
from orchestrator.project import BlueprintSelection, ProjectContext, real_path

# The ``policy`` and ``drift`` of a blueprint: checked, with every problem told.


_DRIFT = ("address", "attribute", "reason", "until")
_FIELDS = (
    "no_destroy",
    "protected_steps",
    "additive_only",
    "max_destroys",
    "required_tags",
    "regions",
    "rego",
)


def parse_policy(
    node: Node | None, steps: Collection[str], project: ProjectContext, problems: Problems
) -> Policy:
    """
    Return the policy as declared; empty if none is.
    """
    fields = problems.settings(node, _FIELDS, what="policy")
    lists = {
        name: problems.texts(fields.get(name), what=f"policy.{name}")
        for name in ("no_destroy", "protected_steps", "required_tags", "regions")
    }
    for pattern in lists["protected_steps"]:
        if not any(fnmatchcase(step, pattern) for step in steps):
            at = fields["protected_steps"].at
            problems.add(f"there is no step {pattern!r}", at, did_you_mean(pattern, steps))
    most = fields["max_destroys"].plain if "max_destroys" in fields else None
    if "max_destroys" in fields and (type(most) is not int or most < 0):
        at = fields["max_destroys"].at
        problems.add("policy.max_destroys must be a whole number, 0 or more", at)
        most = None
    return Policy(
        **lists,
        rego=_rules(fields["rego"], project, problems) if "rego" in fields else (),
        additive_only=problems.flag(fields.get("additive_only"), what="policy.additive_only"),
        max_destroys=most,
    )


def parse_drift_rules(node: Node | None, problems: Problems) -> tuple[DriftRule, ...]:
    """
    Return the rules of ``drift: {ignore: [...]}``, each with a reason.
    """
    if node is None:
        return ()
    listed = problems.settings(node, ("ignore",), what="drift").get("ignore")
    if listed is None or listed.kind != "list":
        problems.add("drift.ignore must be a list of maps", (listed or node).at)
        return ()
    return tuple(_drift_rule(item, problems) for item in listed.items)


def _drift_rule(node: Node, problems: Problems) -> DriftRule:
    what = "drift.ignore"
    fields = problems.settings(node, _DRIFT, what=what)
    for name in ("address", "reason"):
        if name not in fields:
            problems.add(f"{what} needs {name}: what is accepted, and why", node.at)
    texts = {
        name: problems.text(fields[name], what=f"{what}.{name}")
        for name in _DRIFT
        if name in fields
    }
    until = texts.get("until")
    if until and not is_date(until):
        problems.add(f"{what}.until must be a date such as 2027-06-30", fields["until"].at)
    return DriftRule(
        address=texts.get("address", ""),
        reason=texts.get("reason", ""),
        attribute=texts.get("attribute", "*"),
        until=until,
    )


def _rules(node: Node, project: ProjectContext, problems: Problems) -> tuple[str, ...]:
    """
    Return the paths of the Rego rules, relative to the project.
    """
    root = project.project_dir
    project.settings.trust.check_command("policy.rego", node.at, problems)
    places = []
    for text in problems.texts(node, what="policy.rego"):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(node.at.file), text))
        if not (root / path).resolve().is_relative_to(root.resolve()):
            problems.add(f"policy.rego: {text!r} is outside of the project", node.at)
        elif not (root / path).exists():
            problems.add(f"policy.rego: there is no {path!r}", node.at)
        places.append(path)
    return tuple(places)


_URL_RULES = ReferenceRules("operations.url", step_names=False)


class ReadBlueprint(Struct, frozen=True):
    """
    A blueprint file read for one environment, before references are resolved, with the selection
    and inputs of the command line.

    ``environment_is_valid`` is False if the environment is a problem: then its inputs are not
    checked.
    """

    project: ProjectContext
    selection: BlueprintSelection
    path: Path
    blueprint: RawBlueprint
    effective: EffectiveBlueprint
    raw_steps: Mapping[str, RawStep]
    backend: Backend
    policy: Policy
    drift_rules: tuple[DriftRule, ...]
    problems: Problems
    environment_is_valid: bool


def read_blueprint(project: ProjectContext, selection: BlueprintSelection) -> ReadBlueprint:
    """
    Read the blueprint file that a selection names, for the environment it names; problems are
    collected.
    """
    path = project.find_blueprint(selection.blueprint)
    shown = project.show(path)
    problems = Problems()
    blueprint = parse_blueprint(parse_document(read_text(path, shown=shown), file=shown), problems)
    for other in project.blueprints().get(blueprint.name, ()):
        if real_path(other) != real_path(path):
            message = f"the blueprint {project.show(other)} is called {blueprint.name!r} too"
            problems.add(message, blueprint.at, "two of one name would share their records")
    check_extends(blueprint, problems)
    name = choose_environment(blueprint, selection.environment, problems, shown=shown)
    for item in blueprint.environments.values():
        for step, node in item.steps.items():
            check_shape(node, problems, what=f"step {step!r}")
        settings = effective_blueprint(blueprint, item.name).settings
        if "backend" in item.settings:
            parse_backend(settings["backend"], problems)
        parse_policy(settings.get("policy"), blueprint.steps, project, problems)
    effective = effective_blueprint(blueprint, name or DEFAULT)
    settings = effective.settings
    return ReadBlueprint(
        project=project,
        selection=selection,
        path=path,
        blueprint=blueprint,
        effective=effective,
        raw_steps=parse_steps(blueprint, effective, problems),
        backend=parse_backend(settings.get("backend"), problems),
        policy=parse_policy(settings.get("policy"), blueprint.steps, project, problems),
        drift_rules=parse_drift_rules(blueprint.drift, problems),
        problems=problems,
        environment_is_valid=name is not None,
    )


def used_inputs(templates: Iterable[Template]) -> frozenset[str]:
    return frozenset().union(*(template.names("input") for template in templates))


def resolve_inputs(
    reading: ReadBlueprint,
    *,
    input_policy: InputPolicy,
    used: frozenset[str],
    run_command: Callable[[Sequence[str]], str],
    secret: frozenset[str] = frozenset(),
    secrets: Sequence[Json] = (),
    unavailable: dict[str, str] | None = None,
) -> dict[str, InputValue]:
    """
    Return the inputs that have a value; ``unavailable`` is filled as in `InputResolver`.
    """
    resolver = InputResolver(
        blueprint=reading.blueprint.name,
        environment=reading.effective.name,
        environ=reading.project.environ,
        run_command=run_command,
        input_policy=input_policy,
        used=used,
        problems=reading.problems,
        sensitive_variables=secret,
        secrets=secrets,
        unavailable={} if unavailable is None else unavailable,
    )
    # Of several sources of an input the last is the strongest.
    return resolver.resolve(reading.blueprint.inputs.values(), dict(_input_sources(reading)))


def _input_sources(reading: ReadBlueprint) -> Iterator[tuple[str, InputSource]]:
    """
    Yield every source of an input's value, weakest first.
    """
    project, problems, base = reading.project, reading.problems, reading.path.parent
    declared, directory = reading.blueprint.inputs, reading.project.directory
    inside = project.project_dir
    for name, item in declared.items():
        if item.default is not None:
            origin = "blueprint default"
            yield name, InputSource(item.default, origin, "blueprint", base, inside)
    for environment in reading.effective.chain:
        origin = f"environment {environment.name}"
        for name, node in environment.inputs.fields.items() if environment.inputs else ():
            if name in declared:
                yield name, InputSource(node, origin, "blueprint", base, inside)
        for file, node in environment.inputs_from:
            path = Path(os.path.normpath(base / file))
            if project.contains(path):
                shown = project.show(path)
                yield from file_sources(declared, path, problems, shown=shown, inside=inside)
            else:
                problems.add(f"the file {file!r} is outside of the project", node.at)
    for path in (directory / file for file in reading.selection.input_files):
        yield from file_sources(declared, path, problems, shown=project.show(path))
    yield from environment_sources(declared, reading.project.environ, directory, problems)
    yield from option_sources(declared, reading.selection.variables, directory, problems)


def environment_variables(
    templates: Iterable[Template],
    environ: Mapping[str, str],
    *,
    input_policy: InputPolicy,
    problems: Problems,
) -> dict[str, str]:
    """
    Return the environment variables that steps refer to. One that is not set is a problem if values
    are required.
    """
    variables: dict[str, str] = {}
    for template in templates:
        for use in template.uses:
            if use.reference.kind != "env":
                continue
            name = use.reference.names[0]
            if name in environ and not is_text(environ[name]):
                message = f"the environment variable {name} is not UTF-8 text"
                problems.add(message, template.location(use))
            elif name in environ:
                variables[name] = environ[name]
            elif input_policy is InputPolicy.REQUIRED:
                message = f"the environment variable {name} is not set"
                problems.add(message, template.location(use))
    return variables


def operations_url(reading: ReadBlueprint, *, input_policy: InputPolicy) -> str | None:
    """
    Return the ``operations.url`` of the blueprint, None if not set.
    """
    node, problems = reading.effective.settings.get("operations"), reading.problems
    if node is None:
        return None
    fields = problems.settings(node, ("url",), what="operations")
    if "url" not in fields or not problems.url(fields["url"], what="operations.url"):
        return None
    template = template_of(fields["url"], problems)
    before = len(list(problems))
    _URL_RULES.check(template, problems)
    env = environment_variables(
        [template], reading.project.environ, input_policy=input_policy, problems=problems
    )
    if len(list(problems)) > before or len(env) < len(template.names("env")):
        return None
    look_up = known_values(reading.blueprint.name, reading.effective.name, environ=env)
    url = str(template.resolve(look_up).value)
    if (wrong := store_url_problem(url, reading.project.environ)) is not None:
        problems.add(f"operations.url: {wrong}", fields["url"].at, hint=f"use {STORE_URLS}")
        return None
    trust = reading.project.settings.trust
    trust.check_store(url, reading.project.project_dir, fields["url"].at, problems)
    return url
