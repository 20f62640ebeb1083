"""
Everybody who gave an input a value, and who wins. Weakest first: the blueprint's default, the
environment and its files (those it extends before it), input files, ``ORCHESTRATOR_INPUT_<name>``,
``-i``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.domain.blueprint.yaml_tree import Node, Problems, node_of, parse_document
from orchestrator.domain.suggestions import did_you_mean
from orchestrator.errors import Invalid, Location
from orchestrator.loading.environments import EffectiveBlueprint
from orchestrator.loading.files import read_values
from orchestrator.loading.schema import Declaration, RawBlueprint

PREFIX = "ORCHESTRATOR_INPUT_"


@dataclass(frozen=True, slots=True)
class InputSource:
    """
    A value somebody gave an input. ``base`` is the directory that a ``from.file`` starts from;
    ``inside`` the one that it must not leave, None where the person who runs the tool names it.
    """

    node: Node
    at: Location
    origin: str
    kind: Literal["blueprint", "file", "environ", "option"]
    base: Path
    inside: Path | None = None


@dataclass(frozen=True, slots=True)
class CommandInputs:
    """
    What the command line and the process environment say about inputs.
    """

    variables: Sequence[str]
    files: Sequence[Path]
    environ: Mapping[str, str]
    directory: Path


def strongest_sources(
    blueprint: RawBlueprint,
    effective: EffectiveBlueprint,
    given: CommandInputs,
    *,
    base: Path,
    project_dir: Path,
    confine: Callable[[str, Location], Path | None],
    show: Callable[[Path], str],
    problems: Problems,
) -> Mapping[str, InputSource]:
    """
    For each input the strongest value that somebody gave.

    ``base`` is the blueprint's directory; ``confine`` gives the path of an ``inputs_from`` file, or
    None where it may not be read.
    """
    found: dict[str, InputSource] = {}
    declared = blueprint.inputs

    def take_file(path: Path, inside: Path | None = None) -> None:
        shown = show(path)
        try:
            values, places = read_values(path, shown=shown)
        except Invalid as exc:
            problems.extend(exc.problems)
            return
        for name, node in values.items():
            if name not in declared:
                problems.add(
                    f"there is no input {name!r}", places[name], did_you_mean(name, declared)
                )
            else:
                found[name] = InputSource(node, places[name], shown, "file", path.parent, inside)

    for name, item in declared.items():
        if item.default is not None:
            at = item.default.at
            origin = "blueprint default"
            found[name] = InputSource(item.default, at, origin, "blueprint", base, project_dir)
    for environment in effective.chain:
        origin = f"environment {environment.name}"
        for name, node in environment.inputs.fields.items() if environment.inputs else ():
            if name in declared:
                found[name] = InputSource(node, node.at, origin, "blueprint", base, project_dir)
        for file, node in environment.inputs_from:
            path = confine(file, node.at)
            if path is not None:
                take_file(path, project_dir)
    for path in given.files:
        take_file(given.directory / path)
    add_text_sources(declared, given, found, problems)
    return found


def add_text_sources(
    declared: Mapping[str, Declaration],
    given: CommandInputs,
    found: dict[str, InputSource],
    problems: Problems,
) -> None:
    """
    Put what environment variables and ``-i`` say over what was found so far.
    """
    for name, item in declared.items():
        variable = next((v for v in _variables(name) if v in given.environ), None)
        if variable is not None:
            at = Location(variable)
            node = from_text(item, given.environ[variable], at, problems)
            origin = f"environment variable {variable}"
            found[name] = InputSource(node, at, origin, "environ", given.directory)
    for text in given.variables:
        name, equals, value = text.partition("=")
        at = Location(f"-i {name}" if equals else "-i")
        if not equals:
            problems.add("an input is given as NAME=VALUE", at)
        elif name not in declared:
            problems.add(f"there is no input {name!r}", at, did_you_mean(name, declared))
        else:
            node = from_text(declared[name], value, at, problems)
            found[name] = InputSource(node, at, "command line", "option", given.directory)


def _variables(name: str) -> tuple[str, str]:
    return f"{PREFIX}{name}", f"{PREFIX}{name.replace('-', '_').upper()}"


def from_text(declaration: Declaration, text: str, at: Location, problems: Problems) -> Node:
    """
    A value given as text: as it is where text is wanted, else read as JSON or YAML.
    """
    if declaration.type.kind == "string":
        return node_of(text, at)
    try:
        value = parse_document(text, file=at.file).plain
    except Invalid:  # its message could show a part of the value
        problems.add(f"input {declaration.name!r}: the value is neither JSON nor YAML", at)
        return node_of(None, at)
    if value is None and text.strip() in ("", "~"):
        problems.add(f"input {declaration.name!r} must be {declaration.type.shown}, not empty", at)
    if isinstance(value, str) and declaration.type.kind != "any":
        return node_of(text, at)
    return node_of(value, at)
