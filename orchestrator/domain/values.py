"""
Immutable values: `msgspec.Struct`, or a dataclass whose repr must not show a secret.

Defining a dataclass takes half a millisecond, a struct a fiftieth of that, and every command
defines all that it imports.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct, structs

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(value, /, **changes):
        """
        Return the value with some fields changed. Raises TypeError for an unknown field.
        """
        make = structs.replace if isinstance(value, Struct) else dataclasses.replace
        return make(value, **changes)


def changed_fields(value: Struct) -> Iterator[tuple[str, object]]:
    """
    Yield the fields that differ from their defaults, by name; fields without a default are
    included.
    """
    defaults = value.__struct_defaults__
    names = value.__struct_fields__
    at_default = dict(zip(reversed(names), reversed(defaults), strict=False))
    for name in names:
        current = getattr(value, name)
        if name not in at_default or current != at_default[name]:
            yield name, current
