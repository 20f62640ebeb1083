"""
Type expressions in Terraform's syntax, and the conversion of values by Terraform's rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.yaml_tree import (
    INEXACT,
    Node,
    Problems,
    is_inexact,
    plain_scalar,
)
from orchestrator.domain.text import Json, did_you_mean, scalar_text

TypeKind = Literal["any", "string", "number", "bool", "list", "set", "map", "tuple", "object"]

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_][\w-]*|[-\d.]+|[()\[\]{},=:])')
_COMMENT = re.compile(r"(?:#|//)[^\n]*|/\*.*?\*/", re.DOTALL)
_PRIMITIVES: Mapping[str, TypeKind] = {
    "any": "any",
    "string": "string",
    "number": "number",
    "bool": "bool",
}
_COLLECTIONS: Mapping[str, TypeKind] = {"list": "list", "set": "set", "map": "map"}


class Type(Struct, frozen=True):
    """
    A type. ``of`` is the element type of a list, set or map; ``attributes`` are those of an object,
    ``optional`` the names that may be left out, ``defaulted`` those with a default.
    """

    kind: TypeKind
    of: Type | None = None
    elements: tuple[Type, ...] = ()
    attributes: Mapping[str, Type] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    defaulted: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """
        The type in words, for messages.
        """
        match self.kind:
            case "string":
                return "text"
            case "any":
                return "anything"
            case "number" | "bool" | "list" | "set" | "map" | "tuple":
                return f"a {self.kind}"
            case "object":
                return "an object"


ANY = Type("any")


def parse_type(text: str) -> Type:
    """
    Return the type of an expression such as ``map(object({a = string, b = optional(number)}))``.

    Raises ValueError if it cannot be parsed.
    """
    parser = _Parser(_tokens(text))
    result = parser.parse()
    if parser.tokens:
        raise ValueError(f"unexpected {parser.tokens[0]!r} after the type")
    return result


def _tokens(text: str) -> list[str]:
    source = _COMMENT.sub("\n", text).rstrip()
    tokens: list[str] = []
    position = 0
    while position < len(source):
        token = _TOKEN.match(source, position)
        if token is None:
            raise ValueError(f"cannot be read at {source[position:].strip()[:10]!r}")
        tokens.append(token[1])
        position = token.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def parse(self, depth: int = 0) -> Type:
        word = self._next()
        if depth > 50:
            raise ValueError("nested too deeply")
        if word in _PRIMITIVES:
            return Type(_PRIMITIVES[word])
        if word in _COLLECTIONS:
            return Type(_COLLECTIONS[word], of=self._argument(depth))
        if word == "tuple":
            return self._tuple(depth)
        if word == "object":
            return self._object(depth)
        hint = did_you_mean(word, [*_PRIMITIVES, *_COLLECTIONS, "tuple", "object"])
        raise ValueError(f"{word!r} is not a type; {hint}")

    def _argument(self, depth: int) -> Type:
        if not self._accept("("):
            return ANY
        inner = self.parse(depth + 1)
        self._expect(")")
        return inner

    def _tuple(self, depth: int) -> Type:
        self._expect("(", "[")
        elements = []
        while not self._accept("]"):
            elements.append(self.parse(depth + 1))
            self._accept(",")
        self._expect(")")
        return Type("tuple", elements=tuple(elements))

    def _object(self, depth: int) -> Type:
        self._expect("(", "{")
        attributes: dict[str, Type] = {}
        optional: set[str] = set()
        defaulted: set[str] = set()
        while not self._accept("}"):
            name = self._next().strip('"')
            if not (self._accept("=") or self._accept(":")):
                raise ValueError(f"attribute {name!r} has no type")
            if self._accept("optional"):
                optional.add(name)
                self._expect("(")
                attributes[name] = self.parse(depth + 1)
                if self._accept(","):
                    defaulted.add(name)
                    self._skip_default()
                self._expect(")")
            else:
                attributes[name] = self.parse(depth + 1)
            self._accept(",")
        self._expect(")")
        return Type(
            "object",
            attributes=attributes,
            optional=frozenset(optional),
            defaulted=frozenset(defaulted),
        )

    def _skip_default(self) -> None:
        level = 0
        while self.tokens and (level or self.tokens[0] != ")"):
            token = self._next()
            level += (token in "([{") - (token in ")]}")

    def _next(self) -> str:
        if not self.tokens:
            raise ValueError("the type ends too early")
        return self.tokens.pop(0)

    def _accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            next_token = self._next()
            if next_token != token:
                raise ValueError(f"{token!r} expected, not {next_token!r}")


def convert(wanted: Type, node: Node, problems: Problems, *, what: str) -> Json:
    """
    Return the node's value converted to ``wanted``; mismatches become problems, without the value.

    An unquoted scalar stays as written if text is wanted (``1.10``). Null fits every type.
    Attributes that an object type does not declare are kept.
    """
    if node.kind == "scalar" and node.value is None:
        return None
    match wanted.kind:
        case "any":
            return node.plain
        case "string" | "number" | "bool":
            return _scalar(wanted, node, problems, what)
        case "list" | "set" | "tuple":
            return _list(wanted, node, problems, what)
        case "map" | "object":
            return _map(wanted, node, problems, what)


def _scalar(wanted: Type, node: Node, problems: Problems, what: str) -> Json:
    value = node.value
    if node.kind == "scalar":
        if wanted.kind == "string":
            return scalar_text(value) if isinstance(value, bool) else node.text
        if isinstance(value, str):
            if wanted.kind == "number" and is_inexact(value):
                problems.add(f"{what}: {INEXACT}", node.at)
                return None
            value = plain_scalar(value)
        if isinstance(value, bool) == (wanted.kind == "bool") and isinstance(value, int | float):
            return value
    problems.add(f"{what} must be {wanted.shown}, not {node.shape}", node.at)
    return None


def _list(wanted: Type, node: Node, problems: Problems, what: str) -> Json:
    if node.kind != "list":
        problems.add(f"{what} must be {wanted.shown}, not {node.shape}", node.at)
        return None
    elements = wanted.elements or (wanted.of or ANY,) * len(node.items)
    if len(elements) != len(node.items):
        message = f"{what} must have {len(elements)} entries, not {len(node.items)}"
        problems.add(message, node.at)
        return None
    return [
        convert(element, item, problems, what=f"{what}[{number}]")
        for number, (element, item) in enumerate(zip(elements, node.items, strict=True))
    ]


def _map(wanted: Type, node: Node, problems: Problems, what: str) -> Json:
    if node.kind != "map":
        problems.add(f"{what} must be {wanted.shown}, not {node.shape}", node.at)
        return None
    for name in sorted(wanted.attributes.keys() - node.fields.keys() - wanted.optional):
        hint = did_you_mean(name, node.fields.keys() - wanted.attributes.keys())
        problems.add(f"{what} has no attribute {name!r}", node.at, hint)
    return {
        key: convert(
            wanted.attributes.get(key, wanted.of or ANY), item, problems, what=f"{what}.{key}"
        )
        for key, item in node.fields.items()
    }


def check_attributes(wanted: Type, node: Node, problems: Problems, *, what: str) -> None:
    """
    Add a problem for each attribute that an object type does not declare.
    """
    if node.kind == "list":
        elements = wanted.elements or (wanted.of or ANY,) * len(node.items)
        for number, (element, item) in enumerate(zip(elements, node.items, strict=False)):
            check_attributes(element, item, problems, what=f"{what}[{number}]")
    for key, item in node.fields.items():
        if wanted.kind == "object" and key not in wanted.attributes:
            hint = did_you_mean(key, wanted.attributes)
            problems.add(f"{what} has no attribute {key!r}", node.key_at[key], hint)
        element = wanted.attributes.get(key, wanted.of or ANY)
        check_attributes(element, item, problems, what=f"{what}.{key}")
