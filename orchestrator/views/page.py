"""
Text for a terminal, a file or a CI log: lines are wrapped, words are never cut.

Addresses, ids, paths and commands count as words: readers copy them.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TextIO

from msgspec import Struct

from orchestrator.domain.text import without_controls, without_workflow_commands
from orchestrator.domain.values import replace

#: A piece of a line: plain text, or text and the name of its style.
Part = str | tuple[str, str]

_SGR = {
    "good": "32",
    "bad": "1;31",
    "warn": "33",
    "dim": "2",
    "bold": "1",
    "alarm": "1;37;41",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "yellow": "33",
    "green": "32",
}
_GLYPHS = {"|": "│", "-": "─", "...": "…"}
_LEAST = 36  # columns that are enough for a text to go on in under itself
# A command in backticks, a time and a duration are one word each.
_TOKENS = re.compile(
    r"`[^`\n]+`\S*"
    r"|\(?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\S*"
    r"|\d+ (?:s|min|h|days?)\b(?: ago)?\S*"
    r"|\s+|\S+"
)
# A command of ours: after a backtick or a colon, or alone.
_COMMAND = re.compile(r"(^|`|: )orchestrator (?=[a-z])")


def clean(text: str) -> str:
    """
    Return the text without escape sequences, control characters and commands for CI runners;
    newlines stay, tabs become spaces.

    >>> clean("a\\x1b[31mb\\x07")
    'ab'
    """
    plain = without_controls(text.replace("\r\n", "\n")).replace("\t", "  ")
    return without_workflow_commands(plain)


def cells(text: str) -> int:
    """
    Return the number of terminal columns of a text.
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def callable_from(called_in: str, text: str) -> str:
    """
    Return the text with ``-C called_in`` in its commands; unchanged if that is "".
    """
    if not called_in:
        return text
    program = f"orchestrator -C {shlex.quote(called_in)} "
    return _COMMAND.sub(lambda match: f"{match[1]}{program}", text)


class Paper(Struct, frozen=True):
    """
    The medium of a page: width in columns, whether it supports colour and non-ASCII characters, and
    the time. ``called_in`` is the ``-C`` directory for commands.
    """

    now: datetime
    width: int = 80
    color: bool = False
    unicode: bool = True
    verbose: bool = False
    called_in: str = ""

    def on(self, stream: TextIO) -> Paper:
        """
        Return the paper for a stream: ASCII only unless the stream is UTF-8.
        """
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        return replace(self, unicode=encoding == "utf8")


class Page(Struct):
    """
    Collects lines. ``prefix`` stands before each of them, also before continuation lines.
    """

    paper: Paper
    prefix: tuple[Part, ...] = ()
    _lines: list[str] = []

    @property
    def height(self) -> int:
        """
        Return the number of lines so far.
        """
        return len(self._lines)

    def glyph(self, ascii_form: str) -> str:
        """
        Return the Unicode form of ``|``, ``-`` or ``...`` if the paper supports it.
        """
        return _GLYPHS[ascii_form] if self.paper.unicode else ascii_form

    def paint(self, text: str, style: str) -> str:
        """
        Return the text in a style; unchanged without colour.
        """
        if not (self.paper.color and style and text):
            return text
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m"

    def line(self, *parts: Part, indent: int = 0, hang: int = 2, whole: bool = False) -> None:
        """
        Add a line; a long one continues in the next, ``hang`` columns further to the right.

        A newline in a part starts a new line, indented like a continuation. With ``whole`` the
        terminal wraps the line: a command that is broken in two cannot be copied.
        """
        lead = sum(cells(text) for text, _ in map(_styled, self.prefix))
        room = max(self.paper.width - lead, 20)
        hang += indent
        if room - hang < _LEAST and hang > room // 2:
            hang = min(indent + 2, room // 2)
        row: list[tuple[str, str]] = [(" " * indent, "")]
        used, empty = indent, True
        for text, style in map(_styled, parts):
            shown = callable_from(self.paper.called_in, clean(text))
            for number, segment in enumerate(shown.split("\n")):
                if number:
                    self._put(row)
                    row, used, empty = [(" " * hang, "")], hang, True
                for token in [segment] if whole else _TOKENS.findall(segment):
                    too_long = used + cells(token) > room and not whole
                    if too_long and not empty and not token.isspace():
                        self._put(row)
                        row, used = [(" " * hang, "")], hang
                    row.append((token, style))
                    used += cells(token)
                    empty = empty and token.isspace()
        self._put(row)

    def next(self, hint: str, *, indent: int = 0) -> None:
        """
        Add ``next: ...``: what to do, in words or as a command.
        """
        is_command = hint.startswith("orchestrator ")
        self.line(("next", "bold"), f": {hint}", indent=indent, hang=6, whole=is_command)

    def gap(self) -> None:
        """
        Add an empty line, unless the page is empty or ends with one.
        """
        if self._lines and self._lines[-1].strip():
            self._put([])

    def heading(self, title: str, style: str = "bold", *, more: str = "") -> None:
        """
        Add an empty line and the title of a section; ``more`` follows on its line.
        """
        self.gap()
        self.line((title, style), more)

    def rule(self) -> None:
        self.line((self.glyph("-") * min(self.paper.width, 100), "dim"))

    def text(self, text: str, *, indent: int) -> None:
        """
        Add a text of several lines, each wrapped on its own, without leading and trailing empty
        lines.
        """
        for line in clean(text).strip("\n").split("\n"):
            own = len(line) - len(line.lstrip())
            self.line(line.strip(), indent=indent + min(own, 8), hang=0)

    def table(self, rows: Iterable[Sequence[Part]], *, indent: int = 0) -> None:
        """
        Add rows with aligned columns; only the last column wraps, aligned if there is room.
        """
        table = [[_styled(part) for part in row] for row in rows]
        widths = [
            max((cells(clean(row[n][0])) for row in table if n < len(row) - 1), default=0)
            for n in range(max(map(len, table), default=0))
        ]
        for row in table:
            parts: list[Part] = []
            for (text, style), width in zip(row[:-1], widths, strict=False):
                text = clean(text)
                parts += [(text, style), " " * (width - cells(text) + 2)]
            hang = sum(widths[: len(row) - 1]) + 2 * (len(row) - 1)
            self.line(*parts, row[-1], indent=indent, hang=hang)

    def take(self, other: Page) -> None:
        """
        Add the lines of another page unchanged.
        """
        self._lines += other._lines

    def render(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def _put(self, row: Iterable[tuple[str, str]]) -> None:
        spans = [*map(_styled, self.prefix), *row]
        while spans and (not spans[-1][0] or spans[-1][0].isspace()):
            spans.pop()
        merged: list[tuple[str, str]] = []
        for text, style in spans:
            if merged and merged[-1][1] == style:
                merged[-1] = (merged[-1][0] + text, style)
            else:
                merged.append((text, style))
        line = "".join(self.paint(text, style) for text, style in merged).rstrip(" ")
        self._lines.append(without_workflow_commands(line))  # wrapped, it begins with another word


def cut(text: str, room: int, dots: str) -> str:
    """
    Return the text in one line of at most ``room`` columns. Only for values, never for text that
    readers copy.
    """
    text = " ".join(clean(text).split())
    if cells(text) <= room:
        return text
    head = ""
    for char in text:
        if cells(head) + cells(char) + cells(dots) > room:
            break
        head += char
    return head + dots


def _styled(part: Part) -> tuple[str, str]:
    return (part, "") if isinstance(part, str) else part
