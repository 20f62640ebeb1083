"""
Two kinds of text: machine words, and everything else, which may quote a secret.

A field declared `str` is masked before it leaves the process. Declare a `Word` only for names: text
that a machine made or checked, never text from a person, an engine or a provider.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Annotated, Any

from msgspec import Struct

Json = Any  # what json.loads returns; only ever carried, never looked into
#: Where something stands in a JSON value: keys and positions.
ValuePath = tuple[str | int, ...]


class MachineWord(Struct, frozen=True):
    """
    Marks the type of a text that is never masked.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """
        The schema of the text alone: pydantic need not try what the mark means, field by field.
        """
        return handler(source)


#: A name, address, id, digest, path, code or version.
Word = Annotated[str, MachineWord()]

# Text from outside the program that may hold bytes which are not UTF-8: Python keeps them as lone
# surrogates, which no record and no JSON document can hold.


def is_text(text: str) -> bool:
    r"""
    Return whether the text can be written as UTF-8.

    >>> is_text("caf\u00e9"), is_text("caf\udce9")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_text(text: str) -> str:
    r"""
    Return the text with a replacement character for each byte that is not UTF-8.

    >>> shown_text("caf\udce9") == "caf\ufffd"
    True
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# Text that terminals and CI runners obey: what an engine, a provider or a person wrote must not
# steer whoever reads it.


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
    Return the text with unsafe characters as JSON escapes, also in what a CI runner would take for
    a command; JSON text keeps its value.

    >>> escaped('{"a": "x\u202ey ##[error]z"}'), escaped("red: \\x1b[31m")
    ('{"a": "x\\\\u202ey \\\\u0023#[error]z"}', 'red: \\\\u001b[31m')
    """

    def escape(match: re.Match[str]) -> str:
        return f"{match[0][:-1]}\\u{ord(match[0][-1]):04x}"

    return UNSAFE.sub(escape, _COMMAND.sub(escape, text))


def without_controls(text: str) -> str:
    """
    Return the text without escape sequences and unsafe characters.

    >>> without_controls("a\\x1b[31mb\\x07")
    'ab'
    """
    return UNSAFE.sub("", _ESCAPES.sub("", text))


def without_workflow_commands(text: str) -> str:
    """
    Return the text with a space in everything that a CI runner would take for a command.

    >>> without_workflow_commands("::error file=x::no\\n  ::stop-commands::y ##[error]z ##vso[a]b")
    ': :error file=x::no\\n  : :stop-commands::y # #[error]z # #vso[a]b'
    """
    return _COMMAND.sub(r"\1\2 ", text)


# Suggestions for a misspelt name.


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """
    Return a hint for an unknown ``name``: the closest known name, else all known names, "" if there
    are none. ``cutoff`` is the required similarity, from 0 to 1.

    >>> did_you_mean("netwrok", ["network", "compute"])
    "did you mean 'network'?"
    """
    import difflib  # only a mistake pays for it

    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12])
    return f"known: {shown}, ..." if len(names) > 12 else f"known: {shown}"


def count(number: int, noun: str) -> str:
    """
    Return a number with its noun.

    >>> count(1, "object"), count(2, "entry")
    ('1 object', '2 entries')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


# Dates and lengths of time as people write them.


def is_date(text: str) -> bool:
    """
    Return whether ``text`` is a date such as 2027-06-30.
    """
    from datetime import date  # here: `--help` needs none

    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch(r"\d{4}-\d\d-\d\d", text) is not None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)")


def seconds(value: object) -> float:
    """
    Return the seconds of a number or a text such as "30s", "1h30m" or "500ms".

    Raises ValueError if it is neither, negative, or zero.

    >>> seconds("1h30m")
    5400.0
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        total = float(value)
    elif isinstance(value, str) and re.fullmatch(rf"(?:{_PART.pattern})+", value):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise ValueError('a duration is a number of seconds or a text such as "30s" or "1h30m"')
    if not 0 < total < 1e9:
        raise ValueError("a duration is more than zero and less than thirty years")
    return total


# Credentials among literal settings in a blueprint.


#: Names of what may be a credential, written out, in a provider's configuration.
CREDENTIAL = re.compile("key|secret|token|password|credential", re.IGNORECASE)
#: Names that are such only by their looks: the place of a state, and who is named for one.
_NO_CREDENTIALS = frozenset({"key", "secret_suffix", "key_vault_id", "kms_key_id", "key_name"})
_CREDENTIAL_IN_TEXT = r"(?i)://[^\s/:@]*:[^\s/@]+@|\b(?:password|token|secret|sig|key)\s*="


def is_credential(name: str, value: Json) -> bool:
    """
    Return whether the setting of this name is a credential, or contains one, as a URL may.

    >>> is_credential("password", "x"), is_credential("conn_str", "postgres://u:p@db/x")
    (True, True)
    >>> is_credential("key", "prod/network.tfstate"), is_credential("address", "https://state/x")
    (False, False)
    """
    if not isinstance(value, str) or not value:
        return False
    has_secret_name = name not in _NO_CREDENTIALS and CREDENTIAL.search(name) is not None
    return has_secret_name or re.search(_CREDENTIAL_IN_TEXT, value) is not None


def scalar_text(value: Json) -> str:
    """
    Return a scalar as text, as Terraform converts it: true, 12, 1.5; "" for None.

    >>> scalar_text(True), scalar_text(12.0), scalar_text(1e-7)
    ('true', '12', '0.0000001')
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case float() if math.isfinite(value):
            return format(Decimal(repr(value)), "f")
        case _:
            return str(value)
