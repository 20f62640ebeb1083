"""
Text that terminals and CI runners obey: what an engine, a provider or a person wrote must not steer
whoever reads it.
"""

from __future__ import annotations

import re

#: Control characters but newline and tab, characters that change the direction of text or end a
#: line, and halves of characters, which no encoding can hold.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)
_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")

# What GitHub's runner and its kin obey at the start of a line; what Azure's, TeamCity's and the
# first of GitHub's obey anywhere.
_COMMAND = re.compile(r"(?m)((?:^|(?<=\r))[^\S\n]*:)(?=:\S)|(#)(?=#[A-Za-z]*\[)")


def escaped(text: str) -> str:
    """
    The text with the JSON escape in place of each unsafe character, and of one in what a CI runner
    would take for a command; JSON text stays the same value.

    >>> escaped('{"a": "x\u202ey ##[error]z"}'), escaped("red: \\x1b[31m")
    ('{"a": "x\\\\u202ey \\\\u0023#[error]z"}', 'red: \\\\u001b[31m')
    """

    def escape(match: re.Match[str]) -> str:
        return f"{match[0][:-1]}\\u{ord(match[0][-1]):04x}"

    return UNSAFE.sub(escape, _COMMAND.sub(escape, text))


def without_controls(text: str) -> str:
    """
    The text without escape sequences and unsafe characters.

    >>> without_controls("a\\x1b[31mb\\x07")
    'ab'
    """
    return UNSAFE.sub("", _ESCAPES.sub("", text))


def without_workflow_commands(text: str) -> str:
    """
    The text with a space in each of what a CI runner would take for a command.

    >>> without_workflow_commands("::error file=x::no\\n  ::stop-commands::y ##[error]z ##vso[a]b")
    ': :error file=x::no\\n  : :stop-commands::y # #[error]z # #vso[a]b'
    """
    return _COMMAND.sub(r"\1\2 ", text)
