"""
The configuration files of a directory, merged as Terraform merges them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Constraint, EngineKind
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import (
    Attribute,
    Block,
    HclFile,
    Lines,
    QuotedString,
    check_nesting,
    decode,
    json_value,
    parse_hcl,
    too_deep,
)
from orchestrator.local_files import read_regular

# Terraform configuration in JSON syntax (``*.tf.json``), read into the same blocks as HCL.


#: Block types and how many labels they have; anything else in a body is an argument.
_TOP = {
    "variable": 1, "output": 1, "provider": 1, "module": 1,
    "resource": 2, "data": 2, "ephemeral": 2, "terraform": 0, "locals": 0, "language": 0,
    "moved": 0,
}  # fmt: skip
_INNER: Mapping[str, Mapping[str, int]] = {
    "terraform": {"required_providers": 0, "backend": 1, "cloud": 0, "encryption": 0},
    "resource": {"lifecycle": 0},
    "language": {"compatible_with": 0},
}


class _Node(Struct, frozen=True):
    """
    A JSON value and its offset. ``pairs`` are those of an object, each with the offset of its key;
    ``elements`` those of an array; ``text`` is the value of a string.
    """

    start: int
    end: int
    pairs: tuple[tuple[str, int, _Node], ...] = ()
    elements: tuple[_Node, ...] = ()
    text: str | None = None

    def items(self) -> Iterator[tuple[str, int, _Node]]:
        """
        Yield the pairs of an object, or of each object in an array: Terraform's JSON syntax allows
        both.
        """
        yield from self.pairs
        for node in self.elements:
            yield from node.items()


def parse_json(data: bytes, shown: str) -> HclFile:
    """
    Return the blocks of a ``.tf.json`` file. Raises Invalid, with file:line:column, if it is not
    JSON.
    """
    text = decode(data, shown)
    check_nesting(text, shown)
    json_value(text, shown)
    reader = _Reader(text, shown)
    try:
        root = reader.node(0)
    except RecursionError as exc:
        raise too_deep(shown) from exc
    if text[root.start] not in "{[":
        raise Invalid([Problem("a configuration file is a JSON object", Location(shown, 1, 1))])
    blocks = [
        block
        for key, start, node in root.items()
        if key in _TOP
        for block in reader.blocks(key, _TOP[key], node, start)
    ]
    return HclFile(tuple(blocks), tuple(reader.quotes))


_SPACE = re.compile(r"[ \t\r\n]*")
_CALL = re.compile(r'([a-z0-9_]+)\(\s*"([^"]*)"')


class _Reader:
    """
    Reads text that is valid JSON, with positions.
    """

    def __init__(self, text: str, shown: str) -> None:
        self._text = text
        self._lines = Lines(text, shown)
        self._decoder = json.JSONDecoder()
        self.quotes: list[QuotedString] = []

    def node(self, pos: int) -> _Node:
        """
        Return the value at or after ``pos``.
        """
        start = self._skip(pos)
        match self._text[start]:
            case "{":
                pairs, end = self._members(start)
                return _Node(start, end, pairs=tuple(pairs))
            case "[":
                pairs, end = self._members(start)
                return _Node(start, end, elements=tuple(node for *_, node in pairs))
            case '"':
                text, end = self._decoder.raw_decode(self._text, start)
                at = self._lines.at(start)
                self.quotes.append(QuotedString(text, "", at))
                self.quotes.extend(QuotedString(m[2], m[1], at) for m in _CALL.finditer(text))
                return _Node(start, end, text=text)
        _, end = self._decoder.raw_decode(self._text, start)
        return _Node(start, end)

    def _members(self, start: int) -> tuple[list[tuple[str, int, _Node]], int]:
        """
        Return the members of an object or array, those of an array with the key "", and its end.
        """
        members: list[tuple[str, int, _Node]] = []
        pos = self._skip(start + 1)
        while self._text[pos] not in "}]":
            key, key_at = "", pos
            if self._text[start] == "{":
                key, end = self._decoder.raw_decode(self._text, pos)
                pos = self._skip(end) + 1
            node = self.node(pos)
            members.append((key, key_at, node))
            pos = self._skip(node.end)
            if self._text[pos] == ",":
                pos = self._skip(pos + 1)
        return members, pos + 1

    def blocks(self, kind: str, labels: int, node: _Node, start: int) -> Iterator[Block]:
        """
        Yield the blocks of type ``kind`` in ``node``, below ``labels`` levels of labels.
        """
        if labels:
            for name, at, inner in node.items():
                for block in self.blocks(kind, labels - 1, inner, at):
                    yield Block(
                        kind, (name, *block.labels), block.at, block.attributes, block.blocks
                    )
            return
        bodies = node.elements if self._text[node.start] == "[" else (node,)
        for body in bodies:
            nested = _INNER.get(kind, {})
            attributes = {
                key: self._attribute(key, at, inner)
                for key, at, inner in body.items()
                if key not in nested and key != "//"
            }
            blocks = tuple(
                block
                for key, at, inner in body.items()
                if key in nested
                for block in self.blocks(key, nested[key], inner, at)
            )
            yield Block(kind, (), self._lines.at(start), attributes, blocks)

    def _attribute(self, name: str, start: int, node: _Node) -> Attribute:
        at = self._lines.at(start)
        if (text := node.text) is not None:
            interpolation = re.fullmatch(r"\$\{\s*(.*?)\s*\}", text, re.S)
            template = "${" in text or "%{" in text
            return Attribute(
                name, interpolation[1] if interpolation else text, None if template else text, at
            )
        return Attribute(name, self._text[node.start : node.end], None, at)

    def _skip(self, pos: int) -> int:
        match = _SPACE.match(self._text, pos)
        return match.end() if match else pos


@dataclass(slots=True)
class Configuration:
    """
    A directory's blocks by name, with override files applied. ``backends`` are the backend and
    cloud blocks of all files; the last one counts. ``evaluated_early`` are the blocks that OpenTofu
    evaluates while it loads the configuration.
    """

    variables: dict[str, Block] = field(default_factory=dict)
    outputs: dict[str, Block] = field(default_factory=dict)
    calls: dict[str, Block] = field(default_factory=dict)
    providers: list[Block] = field(default_factory=list)
    resources: list[Block] = field(default_factory=list)
    moves: list[Block] = field(default_factory=list)
    locals: dict[str, Attribute] = field(default_factory=dict)
    required_versions: list[Constraint] = field(default_factory=list)
    compatible_with: list[Constraint] = field(default_factory=list)
    required_providers: dict[str, Attribute] = field(default_factory=dict)
    backends: list[Block] = field(default_factory=list)
    evaluated_early: list[Block] = field(default_factory=list)
    quotes: list[QuotedString] = field(default_factory=list)
    is_for_one_engine: bool = False

    def named(self, kind: Literal["variable", "output", "module"]) -> dict[str, Block]:
        """
        Return the blocks of a kind that has names, which may be changed.
        """
        match kind:
            case "variable":
                return self.variables
            case "output":
                return self.outputs
            case "module":
                return self.calls


def read_configuration(
    directory: Path,
    shown: str,
    *,
    engine: EngineKind = "terraform",
    called_at: Location | None = None,
) -> Configuration:
    """
    Return the configuration in ``directory`` as this kind of engine reads it. Raises Invalid with
    the problems of all files.

    ``called_at`` is the place that refers to the directory; it is reported if the directory is no
    module.
    """
    problems: list[Problem] = []
    configuration = Configuration()
    overrides: list[HclFile] = []
    paths, configuration.is_for_one_engine = _files(
        directory, shown, engine, called_at or Location(shown)
    )
    for path in paths:
        name = f"{shown}/{path.name}"
        try:
            document = _parse(path, name)
        except Invalid as exc:
            problems.extend(exc.problems)
            continue
        configuration.quotes.extend(document.quotes)
        if _OVERRIDE.fullmatch(path.name):
            overrides.append(document)
        else:
            problems.extend(_add(configuration, document, engine))
    for document in overrides:
        problems.extend(_override(configuration, document, engine))
    if problems:
        raise Invalid(problems)
    return configuration


#: Of one configuration file. HashiCorp's parser is C underneath: it cannot be stopped.
MAX_BYTES = 4 * 1024 * 1024
_OVERRIDE = re.compile(r"(?:.*_)?override\.(?:tf|tofu)(?:\.json)?")
_ENDINGS = (".tf", ".tf.json")
#: OpenTofu reads these as well; each stands in for the file of the same name that ends in .tf.
_TOFU_ENDINGS = (".tofu", ".tofu.json")


def _files(
    directory: Path, shown: str, engine: EngineKind, at: Location
) -> tuple[list[Path], bool]:
    """
    Return the files that this kind of engine reads, and whether the other kind would read different
    ones.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise Invalid([Problem(f"there is no module directory {shown}", at)]) from exc
    except OSError as exc:
        raise Invalid([Problem(f"cannot read {shown}: {exc.strerror}", at)]) from exc
    # What Terraform passes over: hidden files and those that editors leave.
    names = [name for name in names if not name.startswith((".", "#"))]
    paths = [name for name in names if name.endswith(_ENDINGS)]
    tofu_only = [name for name in names if name.endswith(_TOFU_ENDINGS)]
    if engine == "tofu":
        replaced = {re.sub(r"\.tofu(?=$|\.json$)", ".tf", name) for name in tofu_only}
        paths = sorted({*paths, *tofu_only} - replaced)
    if not paths:
        what = f"{shown} holds no .tf files: it is not a module"
        hint = ""
        if tofu_only:
            what = f"{shown} holds only .tofu files, which Terraform does not read"
            hint = "say `engine: {kind: tofu}` in the blueprint, or --engine tofu"
        raise Invalid([Problem(what, at, hint)])
    return [directory / name for name in paths], bool(tofu_only)


def _parse(path: Path, shown: str) -> HclFile:
    try:
        data = read_regular(path, limit=MAX_BYTES)
    except OSError as exc:
        raise Invalid([Problem(f"cannot be read: {exc.strerror}", Location(shown))]) from exc
    parse = parse_json if path.name.endswith(".json") else parse_hcl
    document = parse(data, shown)
    if problems := _mislabelled(document):
        raise Invalid(problems)
    return document


_LABELS = {"variable": 1, "output": 1, "module": 1, "provider": 1, "resource": 2, "data": 2}


#: Names of variables that mean something else in a block that calls a module.
_RESERVED = frozenset(
    {"_", "count", "depends_on", "for_each", "lifecycle", "locals", "provider", "providers"}
    | {"source", "version"}
)


def _mislabelled(document: HclFile) -> list[Problem]:
    """
    Return the problems with the names of blocks; an engine finds them only at ``init``.
    """
    problems = []
    for block in document.blocks:
        kind, labels, count = block.type, block.labels, _LABELS.get(block.type)
        if count is None:
            continue
        if len(labels) != count:
            message = f"a {kind} block has {count} name{'s' * (count > 1)} before its brace"
        elif kind == "variable" and labels[0] in _RESERVED:
            message = f'a variable cannot be named "{labels[0]}": blocks that call a module use it'
        elif wrong := [name for name in labels if not name.replace("-", "_").isidentifier()]:
            message = (
                f'"{wrong[0]}" is no name: letters, digits, _ and -, no digit at the beginning'
            )
        else:
            continue
        problems.append(Problem(message, block.at))
    return problems


def _add(configuration: Configuration, document: HclFile, engine: EngineKind) -> list[Problem]:
    problems: list[Problem] = []
    for block in document.blocks:
        match block.type:
            case "variable" | "output" | "module":
                blocks = configuration.named(block.type)
                name = block.labels[0]
                if name in blocks:
                    message = f'{block.type} "{name}" was declared before, at {blocks[name].at}'
                    problems.append(Problem(message, block.at))
                blocks[name] = block
            case "provider":
                configuration.providers.append(block)
            case "resource" | "data" | "ephemeral":
                configuration.resources.append(block)
            case "moved":
                configuration.moves.append(block)
            case "locals":
                configuration.locals.update(block.attributes)
            case "terraform":
                _settings(configuration, block, engine)
            case "language":
                _compatible_with(configuration, block, engine)
    return problems


#: From this version on OpenTofu heeds `required_version` in .tofu files only.
_TOFU_IGNORES_FROM = "1.12.0"


def _compatible_with(configuration: Configuration, block: Block, engine: EngineKind) -> None:
    for inner in block.inner("compatible_with"):
        version = inner.attributes.get("opentofu")
        if version is not None and engine == "tofu":
            configuration.compatible_with.append(Constraint(version.plain, version.at))


def _ignored_from(version: Attribute, engine: EngineKind) -> str | None:
    heeded = engine == "terraform" or version.at.file.endswith(_TOFU_ENDINGS)
    return None if heeded else _TOFU_IGNORES_FROM


def _settings(configuration: Configuration, block: Block, engine: EngineKind) -> None:
    if version := block.attributes.get("required_version"):
        until = _ignored_from(version, engine)
        configuration.required_versions.append(Constraint(version.plain, version.at, until))
    for providers in block.inner("required_providers"):
        configuration.required_providers.update(providers.attributes)
    for kind in ("backend", "cloud"):
        configuration.backends.extend(block.inner(kind))
    for kind in ("backend", "encryption"):
        configuration.evaluated_early.extend(block.inner(kind))


def _override(configuration: Configuration, document: HclFile, engine: EngineKind) -> list[Problem]:
    """
    Merge an override file: its arguments replace those of the block of the same name.
    """
    problems: list[Problem] = []
    for block in document.blocks:
        match block.type:
            case "variable" | "output" | "module":
                blocks = configuration.named(block.type)
                base = blocks.get(block.labels[0])
                if base is None:
                    message = f'there is no {block.type} "{block.labels[0]}" to override'
                    problems.append(Problem(message, block.at))
                else:
                    merged = {**base.attributes, **block.attributes}
                    blocks[block.labels[0]] = replace(base, attributes=merged)
            case "provider":
                configuration.providers.append(block)
            case "resource":
                _override_lifecycle(configuration, block)
            case "locals":
                configuration.locals.update(block.attributes)
            case "terraform":
                if version := block.attributes.get("required_version"):
                    until = _ignored_from(version, engine)  # what is ignored replaces nothing
                    configuration.required_versions[:] = [
                        item for item in configuration.required_versions if item.until != until
                    ]
                _settings(configuration, block, engine)
    return problems


def _override_lifecycle(configuration: Configuration, block: Block) -> None:
    """
    Merge the lifecycle block of an overriding resource; the rest of a resource is not needed here.
    """
    override = {k: v for inner in block.inner("lifecycle") for k, v in inner.attributes.items()}
    for index, base in enumerate(configuration.resources):
        if (base.type, base.labels) == (block.type, block.labels) and override:
            original = {k: v for i in base.inner("lifecycle") for k, v in i.attributes.items()}
            merged = Block("lifecycle", (), block.at, {**original, **override})
            others = tuple(inner for inner in base.blocks if inner.type != "lifecycle")
            configuration.resources[index] = replace(base, blocks=(*others, merged))
