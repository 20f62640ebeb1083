"""
Values: structs and dataclasses are replaced alike.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

import orchestrator
from orchestrator.domain.values import changed_fields, replace


class Point(Struct, frozen=True, kw_only=True):
    x: int
    y: int = 0
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Line:
    length: int
    colour: str = "black"


def _structs(base: type[Struct] = Struct) -> Iterator[type[Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _structs(kind)


@pytest.mark.parametrize("value", [Point(x=1), Line(1)], ids=["struct", "dataclass"])
def test_an_unknown_field_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        replace(value, depth=1)


def test_the_rest_stays_as_it_was() -> None:
    assert replace(Point(x=1, tags=("a",)), x=2) == Point(x=2, tags=("a",))
    assert replace(Line(1, "red"), length=2) == Line(2, "red")


def test_what_is_not_at_its_default_is_told() -> None:
    assert dict(changed_fields(Point(x=0, tags=("a",)))) == {"x": 0, "tags": ("a",)}


def test_no_struct_takes_the_description_of_a_dataclass_field_for_a_default() -> None:
    """
    ``dataclasses.field`` in a struct is no error: the default would be the description itself.
    """
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    wrong = [
        kind.__qualname__
        for kind in _structs()
        for default in kind.__struct_defaults__
        if isinstance(default, dataclasses.Field)
    ]
    assert wrong == []
