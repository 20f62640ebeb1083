"""
The values of a blueprint's inputs: their sources, and which source wins.

Weakest first: the blueprint's default, the environment and its files (environments it extends come
before it), input files, ``ORCHESTRATOR_INPUT_<name>``, ``-i``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE, InputValue
from orchestrator.domain.blueprint.references import Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import INEXACT, Node, Problems, node_of, parse_document
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location
from orchestrator.loading.files import read_values
from orchestrator.loading.reference_rules import (
    ReferenceRules,
    known_values,
    template_of,
)
from orchestrator.loading.schema import Declaration, RawBlueprint
from orchestrator.loading.sources import FromMapping, fetch, is_from, parse_from
from orchestrator.loading.types import check_attributes, convert
from orchestrator.trust import Trust


class InputSource(Struct, frozen=True):
    """
    A value from one source. ``base`` is the directory that a ``from.file`` is relative to;
    ``inside`` is a directory that it must not leave, None if the person who runs the tool names the
    file.
    """

    node: Node
    at: Location
    origin: str
    kind: Literal["blueprint", "file", "environ", "option"]
    base: Path
    inside: Path | None = None


def environment_sources(
    declared: Mapping[str, Declaration],
    environ: Mapping[str, str],
    directory: Path,
    problems: Problems,
) -> Iterator[tuple[str, InputSource]]:
    """
    Yield the inputs from environment variables.
    """
    for name, item in declared.items():
        variable = next((v for v in _variables(name) if v in environ), None)
        if variable is not None:
            at = Location(variable)
            node = from_text(item, environ[variable], at, problems)
            origin = f"environment variable {variable}"
            yield name, InputSource(node, at, origin, "environ", directory)


def option_sources(
    declared: Mapping[str, Declaration],
    variables: Iterable[str],
    directory: Path,
    problems: Problems,
) -> Iterator[tuple[str, InputSource]]:
    """
    Yield the inputs from ``-i``.
    """
    for text in variables:
        name, equals, value = text.partition("=")
        at = Location(f"-i {name}" if equals else "-i")
        if not equals:
            problems.add("an input is given as NAME=VALUE", at)
        elif name not in declared:
            problems.add(f"there is no input {name!r}", at, did_you_mean(name, declared))
        else:
            node = from_text(declared[name], value, at, problems)
            yield name, InputSource(node, at, "command line", "option", directory)


def file_sources(
    declared: Mapping[str, Declaration],
    path: Path,
    problems: Problems,
    *,
    shown: str,
    inside: Path | None = None,
) -> Iterator[tuple[str, InputSource]]:
    """
    Yield the inputs from an input file.
    """
    try:
        values, places = read_values(path, shown=shown)
    except Invalid as exc:
        problems.extend(exc.problems)
        return
    for name, node in values.items():
        if name in declared:
            yield name, InputSource(node, places[name], shown, "file", path.parent, inside)
        else:
            hint = did_you_mean(name, declared)
            problems.add(f"there is no input {name!r}", places[name], hint)


def _variables(name: str) -> tuple[str, str]:
    return f"{INPUT_VARIABLE}{name}", f"{INPUT_VARIABLE}{name.replace('-', '_').upper()}"


def unread_variables(environ: Mapping[str, str], inputs: Iterable[str]) -> list[str]:
    """
    Return a note for each variable that sets no input but has a name close to one. Others may be
    meant for another blueprint.
    """
    read = [variable for name in inputs for variable in _variables(name)]
    sentences = []
    for variable in sorted(environ):
        if variable.startswith(INPUT_VARIABLE) and variable not in read:
            hint = did_you_mean(variable, read, cutoff=0.9)
            if hint.startswith("did you mean"):
                sentences.append(f"the environment variable {variable} gives no input: {hint}")
    return sentences


def from_text(declaration: Declaration, text: str, at: Location, problems: Problems) -> Node:
    """
    Return a value given as text: unchanged if the type is text, else parsed as JSON or YAML.
    """
    if declaration.type.kind == "string":
        return node_of(text, at)
    try:
        value = parse_document(text, file=at.file).plain
    except Invalid as exc:  # its message could show a part of the value
        rounded = any(item.message == INEXACT for item in exc.problems)
        why = INEXACT if rounded else "the value is neither JSON nor YAML"
        problems.add(f"input {declaration.name!r}: {why}", at)
        return node_of(None, at)
    if value is None and text.strip() in ("", "~"):
        what, hint = declaration.type.shown, "null is no value"
        if declaration.type.kind == "any":
            what, hint = "given a value", f'{hint}, "" an empty text'
        problems.add(f"input {declaration.name!r} must be {what}, not empty", at, hint)
    if isinstance(value, str) and declaration.type.kind != "any":
        return node_of(text, at)
    return node_of(value, at)


_RULES = ReferenceRules("the value of an input", step_names=False)


class InputPolicy(StrEnum):
    """
    The inputs that a command requires.
    """

    REQUIRED = "values"  # all of them: one without a value is a problem
    AVAILABLE = "available"  # those that have a value; the others are left out
    CHECK_ONLY = "checks"  # only what is written is checked: commands do not run


def check_written(blueprint: RawBlueprint, trust: Trust, problems: Problems) -> None:
    """
    Add the problems of values that are written in the blueprint, in all environments.
    """
    for declaration in blueprint.inputs.values():
        if declaration.default is not None:
            _check_value(declaration, declaration.default, trust, problems)
    for environment in blueprint.environments.values():
        if environment.inputs is None:
            continue
        for name, node in environment.inputs.fields.items():
            declared = blueprint.inputs.get(name)
            if declared is None:
                at = environment.inputs.key_at[name]
                problems.add(
                    f"there is no input {name!r}", at, did_you_mean(name, blueprint.inputs)
                )
            else:
                _check_value(declared, node, trust, problems)


def _check_value(declaration: Declaration, node: Node, trust: Trust, problems: Problems) -> None:
    name = declaration.name
    if is_from(node):
        source = parse_from(node, problems)
        if source is not None and source.kind == "command":
            trust.check_command("from.command", source.node.at, problems)
        return
    if "from" in node.fields and declaration.type.kind not in ("any", "map", "object"):
        hint = "from: {env: NAME}, from: {command: [...]} or from: {file: PATH}"
        problems.add(f"input {name!r}: `from` is not understood", node.fields["from"].at, hint)
        return
    template = template_of(node, problems)
    _RULES.check(template, problems)
    if template.literal:
        _as_declared(declaration, node, problems)
    from_env = any(use.reference.kind == "env" for use in template.uses)
    if declaration.sensitive and not from_env and node.plain is not None:
        hint = "use ${env.NAME}, from: {command: [...]}, an input file or the environment"
        problems.add(
            f"input {name!r} is sensitive: its value must not be written here", node.at, hint
        )


def _as_declared(declaration: Declaration, node: Node, problems: Problems) -> Json:
    what = f"input {declaration.name!r}"
    check_attributes(declaration.type, node, problems, what=what)
    return convert(declaration.type, node, problems, what=what)


class InputResolver(Struct, frozen=True):
    """
    Resolves the sources of inputs to values.

    ``used`` are the inputs that something refers to: commands of others are not run.
    ``sensitive_variables`` are the inputs passed to sensitive or ephemeral module variables,
    ``secrets`` other values known to be secret. If only available values are required,
    ``unavailable`` receives the reason for each input without one.
    """

    blueprint: str
    environment: str
    environ: Mapping[str, str]
    run_command: Callable[[Sequence[str]], str]
    input_policy: InputPolicy
    used: frozenset[str]
    problems: Problems
    sensitive_variables: frozenset[str] = frozenset()
    secrets: Sequence[Json] = ()
    unavailable: dict[str, str] = field(default_factory=dict)

    def resolve(
        self, declared: Iterable[Declaration], sources: Mapping[str, InputSource]
    ) -> dict[str, InputValue]:
        values: dict[str, InputValue] = {}
        for declaration in declared:
            candidate = sources.get(declaration.name)
            if candidate is None:
                self._missing(declaration)
                continue
            # One passed to a sensitive variable is sensitive, unless the blueprint shows it.
            if declaration.name in self.sensitive_variables and not _is_written(candidate):
                declaration = replace(declaration, sensitive=True)
            value = self._value(declaration, candidate)
            if value is not None:
                values[declaration.name] = value
        return self._with_contained_secrets(values, sources)

    def _with_contained_secrets(
        self, values: Mapping[str, InputValue], sources: Mapping[str, InputSource]
    ) -> dict[str, InputValue]:
        """
        Return the values; one that contains another's secret, or looks like a credential, becomes
        sensitive, unless it is written in the blueprint.

        Law: secrets travel with values.
        """
        from orchestrator.domain.masking import Masker  # commands that resolve nothing do without

        own = [item.value for item in values.values() if item.sensitive]
        masker = Masker([*own, *self.secrets])

        def checked(name: str, item: InputValue) -> InputValue:
            if item.sensitive or _is_written(sources[name]) or not masker.hides(item.value):
                return item
            reference = item.reference or _variable_reference(name, sources[name])
            return replace(item, sensitive=True, reference=reference)

        return {name: checked(name, item) for name, item in values.items()}

    def _missing(self, declaration: Declaration) -> None:
        if self.input_policy is not InputPolicy.REQUIRED:
            return
        name = declaration.name
        hint = f"give it with -i {name}=VALUE, an input file, or {INPUT_VARIABLE}{name}"
        if declaration.sensitive:
            hint = f"it is sensitive: give it by {INPUT_VARIABLE}{name}, an input file, or `from`"
        self.problems.add(f"input {name!r} has no value", declaration.at, hint)

    def _value(self, declaration: Declaration, candidate: InputSource) -> InputValue | None:
        if candidate.kind in ("blueprint", "file") and is_from(candidate.node):
            return self._from_source(declaration, candidate)
        reference = _variable_reference(declaration.name, candidate)
        if candidate.kind == "blueprint":
            return self._from_blueprint(declaration, candidate, reference)
        value = _as_declared(declaration, candidate.node, self.problems)
        return _input(declaration, value, candidate.origin, reference)

    def _from_source(self, declaration: Declaration, candidate: InputSource) -> InputValue | None:
        source = parse_from(candidate.node, self.problems)
        if source is None or not self._runs(declaration, source):
            return None
        problems = Problems() if self.input_policy is InputPolicy.AVAILABLE else self.problems
        text = fetch(
            source,
            base=candidate.base,
            inside=candidate.inside,
            environ=self.environ,
            run_command=self.run_command,
            problems=problems,
        )
        if text is None:
            if self.input_policy is InputPolicy.AVAILABLE:
                self.unavailable[declaration.name] = "; ".join(item.message for item in problems)
            if source.kind == "env":
                self._unset(source.argument[0], source.node.at)
            return None
        node = from_text(declaration, text, source.node.at, self.problems)
        value = _as_declared(declaration, node, self.problems)
        return InputValue(
            value=value,
            sensitive=declaration.sensitive or source.kind == "env",
            origin=source.origin,
            reference=source.as_reference(candidate.base),
            digest=source.digest,
            type=declaration.type_text,
        )

    def _runs(self, declaration: Declaration, source: FromMapping) -> bool:
        if source.kind != "command":
            return True
        return self.input_policy is not InputPolicy.CHECK_ONLY and declaration.name in self.used

    def _from_blueprint(
        self, declaration: Declaration, candidate: InputSource, reference: Json
    ) -> InputValue | None:
        template = template_of(candidate.node, Problems())
        if template.broken:
            return None
        if template.literal:
            typed = _as_declared(declaration, candidate.node, self.problems)
            return _input(declaration, typed, candidate.origin, reference)
        if not self._all_set(template):
            return None
        try:
            look_up = known_values(self.blueprint, self.environment, environ=self.environ)
            resolved = template.resolve(look_up)
        except Unresolvable as exc:
            self.problems.add(str(exc), candidate.node.location(exc.path))
            return None
        use = template.uses[0]
        if use.whole and not use.path:
            node = from_text(declaration, str(resolved.value), candidate.at, self.problems)
            if use.reference.kind == "env":
                reference = {"from": {"env": use.reference.names[0]}}
        else:
            node = node_of(resolved.value, candidate.at)
        typed = _as_declared(declaration, node, self.problems)
        shown = ", ".join(dict.fromkeys(resolved.secrets.values())) or candidate.origin
        if resolved.secrets:
            declaration = replace(declaration, sensitive=True)
        return _input(declaration, typed, shown, reference)

    def _all_set(self, template: Template) -> bool:
        unset = [
            use
            for use in template.uses
            if use.reference.kind == "env" and use.reference.names[0] not in self.environ
        ]
        for use in unset:
            self._unset(use.reference.names[0], template.location(use))
        allowed = ("env", "blueprint_name", "environment")
        return not unset and all(use.reference.kind in allowed for use in template.uses)

    def _unset(self, variable: str, at: Location | None) -> None:
        if self.input_policy is InputPolicy.REQUIRED:
            self.problems.add(f"the environment variable {variable} is not set", at)


def _is_written(candidate: InputSource) -> bool:
    """
    Return whether the blueprint contains the value in clear.
    """
    return candidate.kind == "blueprint" and not is_from(candidate.node)


def _variable_reference(name: str, candidate: InputSource) -> Json:
    """
    Return a ``from:`` mapping for the variable that the value came from, else the one that sets it.
    """
    variable = candidate.at.file if candidate.kind == "environ" else f"{INPUT_VARIABLE}{name}"
    return {"from": {"env": variable}}


def _input(declaration: Declaration, value: Json, origin: str, reference: Json) -> InputValue:
    sensitive = declaration.sensitive
    kept = reference if sensitive else None
    return InputValue(value, sensitive, origin, kept, type=declaration.type_text)
