"""
Names of ours as keys of objects: reversible, and of characters that every object store keeps.
"""

from __future__ import annotations

import re
from contextlib import suppress

_SAFE = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


def path_name(name: str) -> str:
    """
    A name as a key; ``/`` still separates. An empty part is ``=``.

    >>> path_name('a["x.y"]/b'), path_name("a//")
    ('a=5B=22x.y=22=5D/b', 'a/=/=')
    """
    return "/".join(_escaped(part) for part in name.split("/"))


def parse_name(key: str) -> str | None:
    """
    The name that a key was made from; None for one that somebody else has made.

    >>> parse_name(path_name('ä/../%41//')) == 'ä/../%41//'
    True
    >>> parse_name('.DS_Store'), parse_name('=ZZ'), parse_name('€')
    (None, None, None)
    """
    with suppress(ValueError):
        name = "/".join("" if part == "=" else _unescaped(part) for part in key.split("/"))
        return name if path_name(name) == key else None
    return None


def _escaped(part: str) -> str:
    if not part:
        return "="
    # A dot may stand anywhere but first: `.` and `..` are taken apart by clients.
    return "".join(
        chr(byte) if _SAFE.match(bytes([byte])) or (byte == 0x2E and index > 0) else f"={byte:02X}"
        for index, byte in enumerate(part.encode("utf-8", "surrogateescape"))
    )


def _unescaped(part: str) -> str:
    data = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), part)
    return data.encode("latin-1").decode("utf-8", "surrogateescape")
