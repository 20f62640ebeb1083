"""
References ``${...}`` in blueprint values: parsed once, resolved against a scope.

``${inputs.x}``, ``${steps.s.outputs.o}``, ``${outputs.o}``, ``${env.NAME}``, ``${blueprint.name}``,
``${environment}``, ``${step.name}``, ``${target.id}``, ``${each.key}`` and ``${run.id}``; inputs
and outputs may go on with a path such as ``.subnets[0]``. ``$${`` stands for the text ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from orchestrator.domain.text import Json, ValuePath, did_you_mean, scalar_text

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.yaml_tree import Node
    from orchestrator.errors import Location

ReferenceKind = Literal[
    "input",
    "step_output",
    "own_output",
    "env",
    "blueprint_name",
    "environment",
    "step_name",
    "target_id",
    "each_key",
    "run_id",
]
_WORD = r"[A-Za-z_][A-Za-z0-9_-]*"
_FORMS: Mapping[ReferenceKind, str] = {
    "input": "inputs.NAME",
    "step_output": "steps.STEP.outputs.NAME",
    "own_output": "outputs.NAME",
    "env": "env.VARIABLE",
    "blueprint_name": "blueprint.name",
    "environment": "environment",
    "step_name": "step.name",
    "target_id": "target.id",
    "each_key": "each.key",
    "run_id": "run.id",
}
#: What the words in capitals stand for.
_NAMES = {
    "NAME": _WORD,
    "STEP": r"[A-Za-z0-9_][A-Za-z0-9_-]*",
    "VARIABLE": r"[A-Za-z_][A-Za-z0-9_]*",
}
_PLACEHOLDER = re.compile("|".join(_NAMES))
_PATTERNS = {
    kind: re.compile(_PLACEHOLDER.sub(lambda name: f"({_NAMES[name[0]]})", re.escape(form)))
    for kind, form in _FORMS.items()
}
_PATH = re.compile(rf'\.(?P<key>{_WORD})|\[(?P<index>\d{{1,9}})\]|\["(?P<quoted>[^"\\]*)"\]')
_WITH_PATH = ("input", "step_output", "own_output")


class Reference(Struct, frozen=True):
    """
    One reference. ``names`` are (input), (step, output), (output) or (variable), else empty;
    ``path`` leads into the value.
    """

    kind: ReferenceKind
    names: tuple[str, ...] = ()
    path: ValuePath = ()

    def __str__(self) -> str:
        names = iter(self.names)
        base = _PLACEHOLDER.sub(lambda _: next(names), _FORMS[self.kind])
        return base + path_text(self.path)


class Issue(Struct, frozen=True):
    """
    A syntax error: path in the value, offset in the text, message and hint.
    """

    path: ValuePath
    offset: int
    message: str
    hint: str = ""


def path_text(path: ValuePath) -> str:
    texts = []
    for part in path:
        if isinstance(part, int):
            texts.append(f"[{part}]")
        elif re.fullmatch(_WORD, part):
            texts.append(f".{part}")
        else:
            texts.append(f'["{part}"]')
    return "".join(texts)


class Use(Struct, frozen=True):
    """
    A reference and where it stands: path in the value, offset of its ``${`` in the text. ``whole``
    is true if the text consists of the reference only.
    """

    reference: Reference
    path: ValuePath
    offset: int
    whole: bool


class Text(Struct, frozen=True):
    """
    A text with references, in parts.
    """

    parts: tuple[str | Reference, ...]


def _parse(raw: Json, path: ValuePath, uses: list[Use], issues: list[Issue]) -> Json:
    match raw:
        case str() if "${" in raw:
            return _parse_text(raw, path, uses, issues)
        case Mapping():
            parsed = {}
            for key, value in raw.items():
                name = key
                if isinstance(key, str) and "${" in key:
                    name = key.replace("$${", "${")
                    if "${" in key.replace("$${", ""):
                        issues.append(Issue((*path, key), 0, "a key cannot hold a reference"))
                parsed[name] = _parse(value, (*path, key), uses, issues)
            return parsed
        case list() | tuple():
            return [_parse(item, (*path, number), uses, issues) for number, item in enumerate(raw)]
        case _:
            return raw


def _parse_text(raw: str, path: ValuePath, uses: list[Use], issues: list[Issue]) -> Text | str:
    parts: list[str | Reference] = []
    offsets: list[int] = []
    text, position = "", 0
    while position < len(raw):
        start = raw.find("${", position)
        if start < 0:
            text += raw[position:]
            break
        if start > position and raw[start - 1] == "$":
            text += raw[position : start - 1] + "${"
            position = start + 2
            continue
        text += raw[position:start]
        end = raw.find("}", start)
        if end < 0:
            hint = "write $${ for the text ${ itself"
            issues.append(Issue(path, start, "a reference that has no closing brace", hint))
            return raw
        reference = _parse_reference(raw[start + 2 : end], path, start, issues)
        if reference is not None:
            parts += [text, reference] if text else [reference]
            offsets.append(start)
            text = ""
        position = end + 1
    if not offsets:
        return text
    if text:
        parts.append(text)
    references = [part for part in parts if isinstance(part, Reference)]
    for reference, offset in zip(references, offsets, strict=True):
        uses.append(Use(reference, path, offset, whole=len(parts) == 1))
    return Text(tuple(parts))


def _parse_reference(
    inner: str, path: ValuePath, start: int, issues: list[Issue]
) -> Reference | None:
    body = inner.strip()
    for kind, pattern in _PATTERNS.items():
        match = pattern.match(body)
        if match is None:
            continue
        rest, steps = body[match.end() :], []
        while rest and (part := _PATH.match(rest)):
            steps.append(int(part["index"]) if part["index"] else part["key"] or part["quoted"])
            rest = rest[part.end() :]
        if rest or (steps and kind not in _WITH_PATH):
            continue
        return Reference(kind, match.groups(), tuple(steps))
    head = body.split(".")[0].split("(")[0]
    hint = did_you_mean(head, dict.fromkeys(form.partition(".")[0] for form in _FORMS.values()))
    if any(form.startswith(f"{head}.") or form == head for form in _FORMS.values()):
        hint = "references are " + ", ".join(_FORMS.values())
    if not hint.startswith("did"):
        hint += "; write $${ for the text ${ itself"
    issues.append(Issue(path, start, f"'${{{inner}}}' is not a reference", hint))
    return None


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
        for path, origin in self.secrets.items():
            for leaf in _leaves(self.at(path).value):
                origins[path + leaf] = origin
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
        uses: list[Use] = []
        issues: list[Issue] = []
        self.raw = raw
        self.node = node
        self.broken = broken
        self._parsed = _parse(raw, (), uses, issues)
        if issues:
            raise BadTemplate(issues)
        self.uses = tuple(uses)

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
