"""
References ``${...}`` in blueprint values: parsed once, resolved against a scope.

``${inputs.x}``, ``${steps.s.outputs.o}``, ``${outputs.o}``, ``${env.NAME}``, ``${blueprint.name}``,
``${environment}``, ``${step.name}``, ``${target.id}``, ``${each.key}`` and ``${run.id}``; inputs
and outputs may go on with a path such as ``.subnets[0]``. ``$${`` stands for the text ``${``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from orchestrator.domain.blueprint.reference_syntax import (
    Issue,
    Reference,
    ReferenceKind,
    Text,
    parse_text,
    path_text,
)
from orchestrator.domain.text import Json, ValuePath, scalar_text

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.yaml_tree import Node
    from orchestrator.errors import Location


class BadTemplate(ValueError):
    """
    A value holds references that cannot be parsed; ``issues`` lists them all.
    """

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__("; ".join(f"{i.message} (character {i.offset + 1})" for i in issues))


class Unresolvable(ValueError):
    """
    A well-formed reference has no usable value; ``path`` is where it stands.
    """

    def __init__(self, message: str, path: ValuePath = ()) -> None:
        super().__init__(message)
        self.path = path


class Use(Struct, frozen=True):
    """
    A reference and where it stands: path in the value, offset of its ``${`` in the text. ``whole``
    is true if the text consists of the reference only.
    """

    reference: Reference
    path: ValuePath
    offset: int
    whole: bool


class Resolved(Struct, frozen=True):
    """
    A value, and for each sensitive leaf a text that describes its source.

    The path ``()`` is the value itself; a path to a map or list covers all below it.
    """

    value: Json
    secrets: Mapping[ValuePath, str] = field(default_factory=dict)

    def at(self, path: ValuePath) -> Resolved:
        """
        Return the value at ``path`` with the secrets in it. Raises Unresolvable if there is none.
        """
        value = self.value
        for number, part in enumerate(path):
            try:
                if isinstance(value, str) or isinstance(part, int) != isinstance(value, list):
                    raise TypeError
                value = value[part]
            except (LookupError, TypeError):
                so_far = path_text(path[:number]) or "the value"
                raise Unresolvable(f"{so_far} has nothing at {path_text((part,))}") from None
        secrets: dict[ValuePath, str] = {}
        for place, origin in self.secrets.items():
            if place[: len(path)] == path:
                secrets[place[len(path) :]] = origin
            elif path[: len(place)] == place:
                secrets[()] = origin
        return Resolved(value, secrets)

    def leaves(self) -> Mapping[ValuePath, str]:
        """
        Return the secrets by leaf: a sensitive map or list is expanded into its leaves.
        """
        origins: dict[ValuePath, str] = {}
        for place, origin in self.secrets.items():
            for leaf in _leaves(self.at(place).value):
                origins[place + leaf] = origin
        return origins


Lookup = Callable[[Reference], Resolved]


class Template:
    """
    A JSON-like value whose texts may hold references. Raises BadTemplate if one is malformed.

    ``node`` is what it was read from, None if that was no file; ``broken`` says that it stands for
    a malformed one. Templates of equal values are equal.

    >>> t = Template({"name": "${inputs.name}-assets"})
    >>> t.resolve(lambda reference: Resolved("acme")).value
    {'name': 'acme-assets'}
    """

    __slots__ = ("_parsed", "broken", "node", "raw", "uses")

    def __init__(self, raw: Json, node: Node | None = None, *, broken: bool = False) -> None:
        issues: list[Issue] = []
        self.raw = raw
        self.node = node
        self.broken = broken
        self._parsed = _parse(raw, (), issues)
        if issues:
            raise BadTemplate(issues)
        self.uses = tuple(_uses(self._parsed, ()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(repr(self.raw))

    @property
    def references(self) -> tuple[Reference, ...]:
        """
        The references in it, without repetition, in order.
        """
        return tuple(dict.fromkeys(use.reference for use in self.uses))

    @property
    def literal(self) -> bool:
        """
        Whether it holds no references.
        """
        return not self.broken and not self.uses

    def location(self, use: Use | None = None) -> Location | None:
        """
        Return its place in a file, or that of a reference in it.
        """
        if self.node is None:
            return None
        return self.node.location(use.path, use.offset) if use else self.node.at

    def names(self, kind: ReferenceKind) -> frozenset[str]:
        """
        Return the names that its references of one kind begin with: inputs, variables, steps.
        """
        return frozenset(item.names[0] for item in self.references if item.kind == kind)

    def resolve(self, lookup: Lookup) -> Resolved:
        """
        Return the value with every reference replaced by its value.

        ``lookup`` resolves a reference without its path. A value that is one whole reference keeps
        its type; within a text, only text, numbers and bools are allowed, anything else raises
        Unresolvable. Secrets are tracked by leaf.
        """
        secrets: dict[ValuePath, str] = {}
        return Resolved(_resolve(self._parsed, (), lookup, secrets), secrets)

    def expression(
        self, lookup: Lookup, engine_reference: Callable[[Reference], str | None]
    ) -> Json:
        """
        Return the value in Terraform's JSON syntax. References for which ``engine_reference``
        returns an expression are left to the engine; the others are replaced by their values.
        """
        return _expression(self._parsed, (), lookup, engine_reference)


def escaped(text: str) -> str:
    """
    Return a text escaped for Terraform's JSON syntax, so that it is taken literally.
    """
    return text.replace("${", "$${").replace("%{", "%%{")


def _parse(raw: Json, path: ValuePath, issues: list[Issue]) -> Json:
    match raw:
        case str() if "${" in raw:
            return parse_text(raw, path, issues)
        case Mapping():
            parsed = {}
            for key, value in raw.items():
                name = key
                if isinstance(key, str) and "${" in key:
                    name = key.replace("$${", "${")
                    if "${" in key.replace("$${", ""):
                        issues.append(Issue((*path, key), 0, "a key cannot hold a reference"))
                parsed[name] = _parse(value, (*path, key), issues)
            return parsed
        case list() | tuple():
            return [_parse(item, (*path, number), issues) for number, item in enumerate(raw)]
        case _:
            return raw


def _uses(parsed: Json, path: ValuePath) -> Iterator[Use]:
    match parsed:
        case Text(parts, offsets):
            for part, offset in zip(parts, offsets, strict=True):
                if isinstance(part, Reference):
                    yield Use(part, path, offset, whole=len(parts) == 1)
        case dict():
            for key, value in parsed.items():
                yield from _uses(value, (*path, key))
        case list():
            for number, item in enumerate(parsed):
                yield from _uses(item, (*path, number))


def _resolve(parsed: Json, path: ValuePath, lookup: Lookup, secrets: dict[ValuePath, str]) -> Json:
    match parsed:
        case Text((Reference() as reference,)):
            resolved = _look_up(reference, path, lookup)
            for leaf, origin in resolved.leaves().items():
                secrets[path + leaf] = origin
            return resolved.value
        case Text(parts):
            return _join(parts, path, lookup, secrets)
        case dict():
            return {k: _resolve(v, (*path, k), lookup, secrets) for k, v in parsed.items()}
        case list():
            return [_resolve(v, (*path, n), lookup, secrets) for n, v in enumerate(parsed)]
        case _:
            return parsed


def _expression(
    parsed: Json,
    path: ValuePath,
    lookup: Lookup,
    engine_reference: Callable[[Reference], str | None],
) -> Json:
    def within(item: Json, part: str | int) -> Json:
        return _expression(item, (*path, part), lookup, engine_reference)

    match parsed:
        case Text((Reference() as reference,)) if engine_reference(reference) is None:
            value = _look_up(reference, path, lookup).value
            return _expression(value, path, lookup, engine_reference)
        case Text(parts):
            texts = []
            for part in parts:
                inner = engine_reference(part) if isinstance(part, Reference) else None
                texts.append(
                    f"${{{inner}}}" if inner else escaped(_join((part,), path, lookup, {}))
                )
            return "".join(texts)
        case Mapping():
            return {escaped(str(key)): within(item, key) for key, item in parsed.items()}
        case list() | tuple():
            return [within(item, number) for number, item in enumerate(parsed)]
        case str():
            return escaped(parsed)
        case _:
            return parsed


def _join(
    parts: Sequence[str | Reference], path: ValuePath, lookup: Lookup, secrets: dict[ValuePath, str]
) -> str:
    texts: list[str] = []
    origins: dict[str, None] = {}
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        resolved = _look_up(part, path, lookup)
        if resolved.value is None or isinstance(resolved.value, dict | list):
            raise Unresolvable(f"${{{part}}} is {_shape(resolved.value)} inside text", path)
        texts.append(scalar_text(resolved.value))
        origins.update(dict.fromkeys(resolved.leaves().values()))
    if origins:
        secrets[path] = ", ".join(origins)
    return "".join(texts)


def _shape(value: Json) -> str:
    match value:
        case dict():
            return "a map"
        case list():
            return "a list"
        case _:
            return "null"


def _look_up(reference: Reference, path: ValuePath, lookup: Lookup) -> Resolved:
    resolved = lookup(Reference(reference.kind, reference.names))
    try:
        return resolved.at(reference.path)
    except Unresolvable as exc:
        raise Unresolvable(f"${{{reference}}}: {exc}", path) from None


def _leaves(value: Json) -> Iterator[ValuePath]:
    match value:
        case dict() if value:
            for key, item in value.items():
                yield from ((key, *rest) for rest in _leaves(item))
        case list() if value:
            for number, item in enumerate(value):
                yield from ((number, *rest) for rest in _leaves(item))
        case _:
            yield ()
