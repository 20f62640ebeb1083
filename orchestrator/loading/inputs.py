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
from orchestrator.domain.blueprint.references import Resolved, Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import INEXACT, Node, Problems, node_of, parse_document
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location
from orchestrator.loading.reference_rules import (
    ReferenceRules,
    known_values,
    template_of,
)
from orchestrator.loading.schema import Declaration, RawBlueprint
from orchestrator.loading.sources import fetch, is_from, parse_from, read_values
from orchestrator.loading.types import check_attributes, convert
from orchestrator.trust import Trust


class InputSource(Struct, frozen=True):
    """
    A value from one source. ``base`` is the directory that a ``from.file`` is relative to;
    ``inside`` is a directory that it must not leave, None if the person who runs the tool names the
    file.
    """

    node: Node
    origin: str
    kind: Literal["blueprint", "file", "environ", "option"]
    base: Path
    inside: Path | None = None

    @property
    def is_written(self) -> bool:
        """
        Whether the blueprint contains the value in clear.
        """
        return self.kind == "blueprint" and not is_from(self.node)

    def reference(self, name: str) -> Json:
        """
        Return a ``from:`` mapping for the variable that it came from, else the one that sets the
        input of this name.
        """
        variable = self.node.at.file if self.kind == "environ" else f"{INPUT_VARIABLE}{name}"
        return {"from": {"env": variable}}


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
            yield name, InputSource(node, origin, "environ", directory)


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
            yield name, InputSource(node, "command line", "option", directory)


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
            yield name, InputSource(node, shown, "file", path.parent, inside)
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
        """
        Return the inputs that have a value. One that contains another's secret, or looks like a
        credential, becomes sensitive, unless it is written in the blueprint.

        Law: secrets travel with values.
        """
        from orchestrator.domain.masking import Masker  # commands that resolve nothing do without

        values: dict[str, InputValue] = {}
        for declaration in declared:
            name = declaration.name
            source = sources.get(name)
            if source is None:
                if self.input_policy is InputPolicy.REQUIRED:
                    self._missing(declaration)
                continue
            # One passed to a sensitive variable is sensitive, unless the blueprint shows it.
            if name in self.sensitive_variables and not source.is_written:
                declaration = replace(declaration, sensitive=True)
            value = self._value(declaration, source)
            if value is not None:
                values[name] = value
        masker = Masker(
            [*(item.value for item in values.values() if item.sensitive), *self.secrets]
        )
        for name, item in values.items():
            source = sources[name]
            if not (item.sensitive or source.is_written) and masker.hides(item.value):
                reference = item.reference or source.reference(name)
                values[name] = replace(item, sensitive=True, reference=reference)
        return values

    def _missing(self, declaration: Declaration) -> None:
        name = declaration.name
        hint = f"give it with -i {name}=VALUE, an input file, or {INPUT_VARIABLE}{name}"
        if declaration.sensitive:
            hint = f"it is sensitive: give it by {INPUT_VARIABLE}{name}, an input file, or `from`"
        self.problems.add(f"input {name!r} has no value", declaration.at, hint)

    def _value(self, declaration: Declaration, source: InputSource) -> InputValue | None:
        node, origin, sensitive = source.node, source.origin, declaration.sensitive
        reference = source.reference(declaration.name)
        if source.kind in ("blueprint", "file") and is_from(node):
            return self._from_source(declaration, source)
        if source.kind == "blueprint":
            template = template_of(node, Problems())  # what is wrong with it is told when checked
            resolved = None if template.broken else self._resolved(template)
            if resolved is None:
                return None
            if template.uses:
                use = template.uses[0]
                if use.whole and not use.path:
                    node = from_text(declaration, str(resolved.value), node.at, self.problems)
                    if use.reference.kind == "env":
                        reference = {"from": {"env": use.reference.names[0]}}
                else:
                    node = node_of(resolved.value, node.at)
                origin = ", ".join(dict.fromkeys(resolved.secrets.values())) or origin
                sensitive = sensitive or bool(resolved.secrets)
        value = _as_declared(declaration, node, self.problems)
        kept = reference if sensitive else None
        return InputValue(value, sensitive, origin, kept, type=declaration.type_text)

    def _from_source(self, declaration: Declaration, candidate: InputSource) -> InputValue | None:
        """
        Return the value of a ``from:``.
        """
        source = parse_from(candidate.node, self.problems)
        if source is None:
            return None
        is_asked = self.input_policy is not InputPolicy.CHECK_ONLY and declaration.name in self.used
        if source.kind == "command" and not is_asked:
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

    def _resolved(self, template: Template) -> Resolved | None:
        """
        Return the value of a template in the blueprint; None if a reference in it has none.
        """
        is_set = True
        for use in template.uses:
            name = use.reference.names[0] if use.reference.names else ""
            if use.reference.kind == "env" and name not in self.environ:
                self._unset(name, template.location(use))
                is_set = False
            elif use.reference.kind not in ("env", "blueprint_name", "environment"):
                is_set = False
        if not is_set:
            return None
        try:
            return template.resolve(
                known_values(self.blueprint, self.environment, environ=self.environ)
            )
        except Unresolvable as exc:
            at = template.node.location(exc.path) if template.node else None
            self.problems.add(str(exc), at)
            return None

    def _unset(self, variable: str, at: Location | None) -> None:
        if self.input_policy is InputPolicy.REQUIRED:
            self.problems.add(f"the environment variable {variable} is not set", at)
