"""
The structure of a Terraform configuration file, in HCL or JSON, with the position of everything.

HashiCorp's own parser (pygohcl) decides whether a file is valid HCL, but its result has no
positions, merges blocks and does not tell a string from an expression. So the structure is read
here, from text that this parser has accepted: the scanner never has to judge.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Location, Problem


class Attribute(Struct, frozen=True):
    """
    An argument. ``text`` is its expression without comments; ``literal`` is the value of a plain
    quoted string, None for any other expression.
    """

    name: str
    text: str
    literal: str | None
    at: Location

    @property
    def plain(self) -> str:
        """
        The literal, else the text of the expression.
        """
        return self.text if self.literal is None else self.literal


class Block(Struct, frozen=True):
    """
    A block with its labels; ``blocks`` are its nested blocks, in order.
    """

    type: str
    labels: tuple[str, ...]
    at: Location
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()

    def inner(self, kind: str) -> Iterator[Block]:
        """
        Yield its nested blocks of type ``kind``.
        """
        return (block for block in self.blocks if block.type == kind)


class QuotedString(Struct, frozen=True):
    """
    A quoted string or heredoc as written; ``caller`` is the function whose first argument it is.
    """

    text: str
    caller: str
    at: Location


#: The parsed content of one configuration file.
Parsed = tuple[list[Block], list[QuotedString]]


def parse_configuration(data: bytes, shown: str) -> Parsed:
    """
    Return the blocks and quoted strings of a ``.tf`` file, or of one in JSON if ``shown`` ends so.
    Raises Invalid, with file:line:column, if it is not valid.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = data[: exc.start]
        at = Location(shown, before.count(b"\n") + 1, exc.start - before.rfind(b"\n"))
        raise Invalid([Problem("not UTF-8 text", at)]) from exc
    # A NUL would end the text early for HashiCorp's parser: the rest would go unread.
    if "\0" in text:
        raise Invalid([Problem("holds a NUL character", Lines(text, shown).at(text.index("\0")))])
    check_nesting(text, shown)
    try:
        if shown.endswith(".json"):
            return _parse_json(text, shown)
        _check_syntax(text, shown)
        scanner = _Scanner(text, shown)
        return scanner.body(0)[1], scanner.quotes
    except RecursionError as exc:
        raise too_deep(shown) from exc


def json_value(text: str, shown: str, **options: Any) -> Json:
    """
    Return the value of a JSON text; ``options`` are those of `json.loads`. Raises Invalid if it is
    no JSON.
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError as exc:
        at = Location(shown, exc.lineno, exc.colno)
        raise Invalid([Problem(f"not valid JSON: {exc.msg}", at)]) from exc
    except RecursionError as exc:
        raise too_deep(shown) from exc
    except ValueError as exc:  # such as a number of thousands of digits
        raise Invalid([Problem(f"not valid JSON: {exc}", Location(shown))]) from exc


def too_deep(shown: str) -> Invalid:
    return Invalid([Problem("nested too deeply", Location(shown))])


#: How deep brackets may be nested: HashiCorp's parser ends the whole process where its stack does.
MAX_NESTING = 1000
_BRACKETS = re.compile(r"[\[({\])}]")


def check_nesting(text: str, shown: str) -> None:
    """
    Raise Invalid if brackets are nested too deeply for a parser. Brackets in strings count, too.
    """
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth = depth + 1 if match[0] in "[({" else max(0, depth - 1)
        if depth > MAX_NESTING:
            at = Lines(text, shown).at(match.start())
            raise Invalid([Problem("nested too deeply", at)])


class Lines:
    """
    Converts offsets in a text to line and column.
    """

    def __init__(self, text: str, shown: str) -> None:
        self._shown = shown
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def at(self, offset: int) -> Location:
        """
        Return the line and column of the character at ``offset``.
        """
        line = bisect_right(self._starts, offset)
        return Location(self._shown, line, offset - self._starts[line - 1] + 1)


_DIAGNOSTIC = re.compile(r"(?:^invalid HCL: |, )tmp\.hcl:(\d+),(\d+)-(?:\d+,)?\d+: ", re.S)


def _check_syntax(text: str, shown: str) -> None:
    import pygohcl

    try:
        pygohcl.loads(text)
    except pygohcl.HCLParseError as exc:
        _, *parts = _DIAGNOSTIC.split(str(exc))
        problems = [
            Problem(message.replace("tmp.hcl", shown), Location(shown, int(line), int(column)))
            for line, column, message in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        ]
        raise Invalid(problems or [Problem(str(exc), Location(shown))]) from exc
    except pygohcl.HCLInternalError:
        # Valid HCL that has no JSON form; we do not use the JSON.
        return


_BETWEEN = re.compile(r"(?:[ \t\r\n]+|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.S)
_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.S)
_IDENTIFIER = re.compile(r"[^\W\d][\w-]*")
_NOTABLE = re.compile(r'["#/<\n(){}\[\]]')
_HEREDOC = re.compile(r"<<-?([^\W\d][\w-]*)\r?\n")
_CALLER = re.compile(r"([a-z0-9_]+)\(\s*\Z")
_PLAIN = re.compile(r'"(?:[^"\\$%]|\\.|[$%](?!\{)|\$\$\{|%%\{)*"')
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[nrt"\\])|([$%])\2\{')
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code is None:
        return match[2] + "{"
    return _ESCAPED.get(code) or chr(int(code[1:], 16))


def _skip(what: re.Pattern[str], text: str, pos: int) -> int:
    match = what.match(text, pos)
    return match.end() if match else pos


class _Scanner:
    """
    Scans text that is valid HCL.
    """

    def __init__(self, text: str, shown: str) -> None:
        self._text = text
        self._lines = Lines(text, shown)
        self.quotes: list[QuotedString] = []

    def body(self, pos: int) -> tuple[dict[str, Attribute], list[Block], int]:
        """
        Return the arguments and blocks from ``pos`` to the end of the body, and the offset after
        its closing brace.
        """
        attributes: dict[str, Attribute] = {}
        blocks: list[Block] = []
        while (pos := _skip(_BETWEEN, self._text, pos)) < len(self._text):
            if self._text[pos] == "}":
                return attributes, blocks, pos + 1
            start, name, pos = pos, *self._identifier(pos)
            pos = _skip(_BETWEEN, self._text, pos)
            if self._text[pos : pos + 1] == "=":
                attributes[name], pos = self._attribute(name, start, pos + 1)
            else:
                labels, pos = self._labels(pos)
                inner, nested, pos = self.body(pos)
                at = self._lines.at(start)
                blocks.append(Block(name, tuple(labels), at, inner, tuple(nested)))
        return attributes, blocks, pos

    def _identifier(self, pos: int) -> tuple[str, int]:
        match = _IDENTIFIER.match(self._text, pos)
        if match is None:
            raise Invalid([Problem("expected an argument or a block", self._lines.at(pos))])
        return match[0], match.end()

    def _labels(self, pos: int) -> tuple[list[str], int]:
        labels = []
        while self._text[(pos := _skip(_BETWEEN, self._text, pos)) : pos + 1] != "{":
            if self._text[pos : pos + 1] == '"':
                end = self._string(pos)
                labels.append(_ESCAPE.sub(_unescape, self._text[pos + 1 : end - 1]))
                pos = end
            else:
                label, pos = self._identifier(pos)
                labels.append(label)
        return labels, pos + 1

    def _attribute(self, name: str, start: int, pos: int) -> tuple[Attribute, int]:
        comments: list[tuple[int, int]] = []
        end = self._expression(pos, comments, inline=False)
        parts, last = [], pos
        for begin, stop in comments:
            parts.append(self._text[last:begin])
            last = stop
        text = "".join([*parts, self._text[last:end]]).strip()
        literal = _ESCAPE.sub(_unescape, text[1:-1]) if _PLAIN.fullmatch(text) else None
        return Attribute(name, text, literal, self._lines.at(start)), end

    def _expression(self, pos: int, comments: list[tuple[int, int]], *, inline: bool) -> int:
        """
        Return the offset where the expression ends: at a newline (unless ``inline``, inside a
        template), or at a closing bracket that it did not open.
        """
        depth = 0
        while match := _NOTABLE.search(self._text, pos):
            pos, char = match.start(), match[0]
            if char == '"':
                pos = self._string(pos)
            elif comment := _COMMENT.match(self._text, pos):
                comments.append(comment.span())
                pos = comment.end()
            elif heredoc := _HEREDOC.match(self._text, pos):
                pos = self._heredoc(heredoc)
            elif (char == "\n" and not depth and not inline) or (char in ")}]" and not depth):
                return pos
            else:
                depth += (char in "([{") - (char in ")]}")
                pos += 1
        return len(self._text)

    def _string(self, pos: int) -> int:
        start, caller = pos, _CALLER.search(self._text, max(0, pos - 80), pos)
        index = len(self.quotes)
        pos += 1
        while self._text[pos] != '"':
            pos = self._template(pos)
        quote = QuotedString(
            self._text[start + 1 : pos], caller[1] if caller else "", self._lines.at(start)
        )
        self.quotes.insert(index, quote)
        return pos + 1

    def _heredoc(self, opening: re.Match[str]) -> int:
        start = pos = opening.end()
        closing = re.compile(rf"[ \t]*{re.escape(opening[1])}(?=[ \t]*(?:\r?\n|\Z))")
        index = len(self.quotes)
        while (end := closing.match(self._text, pos)) is None and pos < len(self._text):
            while pos < len(self._text) and self._text[pos] != "\n":
                pos = self._template(pos, escapes=False)
            pos += 1
        quote = QuotedString(self._text[start:pos], "", self._lines.at(start))
        self.quotes.insert(index, quote)
        return end.end() if end else pos

    def _template(self, pos: int, *, escapes: bool = True) -> int:
        """
        Return the offset after the character, escape or ``${...}`` sequence at ``pos``.
        """
        text = self._text
        if text[pos] == "\\" and escapes:
            return pos + 2
        if text[pos] in "$%":
            if text.startswith(text[pos] * 2 + "{", pos):
                return pos + 3
            if text.startswith("{", pos + 1):
                return self._expression(pos + 2, [], inline=True) + 1
        return pos + 1


# JSON syntax (``*.tf.json``), read into the same blocks.


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


def _parse_json(text: str, shown: str) -> Parsed:
    json_value(text, shown)
    reader = _Reader(text, shown)
    root = reader.node(0)
    if text[root.start] not in "{[":
        raise Invalid([Problem("a configuration file is a JSON object", Location(shown, 1, 1))])
    blocks = [
        block
        for key, start, node in root.items()
        if key in _TOP
        for block in reader.blocks(key, _TOP[key], node, start)
    ]
    return blocks, reader.quotes


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
        start = _skip(_SPACE, self._text, pos)
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
        pos = _skip(_SPACE, self._text, start + 1)
        while self._text[pos] not in "}]":
            key, key_at = "", pos
            if self._text[start] == "{":
                key, end = self._decoder.raw_decode(self._text, pos)
                pos = _skip(_SPACE, self._text, end) + 1
            node = self.node(pos)
            members.append((key, key_at, node))
            pos = _skip(_SPACE, self._text, node.end)
            if self._text[pos] == ",":
                pos = _skip(_SPACE, self._text, pos + 1)
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
