"""
File names made from names of ours: reversible for the eye, never a path.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

_LONGEST = 180  # bytes; file systems allow 255, and temporary files add to a name
_DIGEST = 16


def file_name(text: str) -> str:
    r"""
    A name for one file or directory, different for different texts; ASCII, at most 180 bytes.

    >>> file_name('cell["a.b"]')
    'cell%5B%22a.b%22%5D'
    >>> file_name("../x")
    '%2E.%2Fx'
    """
    name = quote(text, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST - _DIGEST - 1]}~{digest}"
    return name or "%"
