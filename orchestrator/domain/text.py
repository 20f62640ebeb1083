"""
Two kinds of text: words of machines, and everything else, which may quote a secret.

A field declared `str` is masked before it leaves the process. Declare a `Word` only for what names
something: a text that a machine made or checked, never one that a person, an engine or a provider
wrote.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

Json = Any  # what json.loads returns; only ever carried, never looked into


class MachineWord(Struct, frozen=True):
    """
    Marks the type of a text that is never masked.
    """


#: A name, address, id, digest, path, code or version.
Word = Annotated[str, MachineWord()]
