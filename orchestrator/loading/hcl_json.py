"""
Terraform configuration in JSON syntax (``*.tf.json``), read into the same blocks as HCL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import (
    Attribute,
    Block,
    HclFile,
    Lines,
    QuotedString,
    check_nesting,
    decode,
)

#: Block types and how many labels they have; anything else in a body is an argument.
_TOP = {
    "variable": 1, "output": 1, "provider": 1, "module": 1,
    "resource": 2, "data": 2, "ephemeral": 2, "terraform": 0, "locals": 0, "language": 0,
}  # fmt: skip
_INNER: Mapping[str, Mapping[str, int]] = {
    "terraform": {"required_providers": 0, "backend": 1, "cloud": 0, "encryption": 0},
    "resource": {"lifecycle": 0},
    "language": {"compatible_with": 0},
}


class _Node(Struct, frozen=True):
    """
    A JSON value and where it stands. ``pairs`` are an object's, each with the offset of its key;
    ``elements`` an array's; ``text`` is a string's value.
    """

    start: int
    end: int
    pairs: tuple[tuple[str, int, _Node], ...] = ()
    elements: tuple[_Node, ...] = ()
    text: str | None = None

    def items(self) -> Iterator[tuple[str, int, _Node]]:
        """
        The pairs of an object, and those of the objects in an array: JSON syntax allows both.
        """
        yield from self.pairs
        for node in self.elements:
            yield from node.items()


def parse_json(data: bytes, shown: str) -> HclFile:
    """
    The blocks of a ``.tf.json`` file; Invalid, with file:line:column, where it is not JSON.
    """
    text = decode(data, shown)
    check_nesting(text, shown)
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        at = Location(shown, exc.lineno, exc.colno)
        raise Invalid([Problem(f"not valid JSON: {exc.msg}", at)]) from exc
    except RecursionError as exc:
        raise Invalid([Problem("nested too deeply", Location(shown))]) from exc
    except ValueError as exc:  # a number of thousands of digits
        raise Invalid([Problem(f"not valid JSON: {exc}", Location(shown))]) from exc
    reader = _Reader(text, shown)
    try:
        root = reader.node(0)
    except RecursionError as exc:
        raise Invalid([Problem("nested too deeply", Location(shown))]) from exc
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
    Reads text that is known to be valid JSON.
    """

    def __init__(self, text: str, shown: str) -> None:
        self._text = text
        self._lines = Lines(text, shown)
        self._decoder = json.JSONDecoder()
        self.quotes: list[QuotedString] = []

    def node(self, pos: int) -> _Node:
        """
        The value that begins at or after ``pos``.
        """
        start = self._skip(pos)
        match self._text[start]:
            case "{":
                pairs, end = self._pairs(start)
                return _Node(start, end, pairs=tuple(pairs))
            case "[":
                elements, end = self._elements(start)
                return _Node(start, end, elements=tuple(elements))
            case '"':
                text, end = self._decoder.raw_decode(self._text, start)
                at = self._lines.at(start)
                self.quotes.append(QuotedString(text, "", at))
                self.quotes.extend(QuotedString(m[2], m[1], at) for m in _CALL.finditer(text))
                return _Node(start, end, text=text)
        _, end = self._decoder.raw_decode(self._text, start)
        return _Node(start, end)

    def blocks(self, kind: str, labels: int, node: _Node, start: int) -> Iterator[Block]:
        """
        The blocks of type ``kind`` that ``node`` holds below ``labels`` levels of names.
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
            whole = re.fullmatch(r"\$\{\s*(.*?)\s*\}", text, re.S)
            template = "${" in text or "%{" in text
            return Attribute(name, whole[1] if whole else text, None if template else text, at)
        return Attribute(name, self._text[node.start : node.end], None, at)

    def _skip(self, pos: int) -> int:
        match = _SPACE.match(self._text, pos)
        return match.end() if match else pos

    def _pairs(self, start: int) -> tuple[list[tuple[str, int, _Node]], int]:
        pairs: list[tuple[str, int, _Node]] = []
        pos = self._skip(start + 1)
        while self._text[pos] != "}":
            key, end = self._decoder.raw_decode(self._text, pos)
            node = self.node(self._skip(end) + 1)
            pairs.append((key, pos, node))
            pos = self._skip(node.end)
            if self._text[pos] == ",":
                pos = self._skip(pos + 1)
        return pairs, pos + 1

    def _elements(self, start: int) -> tuple[list[_Node], int]:
        elements: list[_Node] = []
        pos = self._skip(start + 1)
        while self._text[pos] != "]":
            elements.append(self.node(pos))
            pos = self._skip(elements[-1].end)
            if self._text[pos] == ",":
                pos = self._skip(pos + 1)
        return elements, pos + 1
