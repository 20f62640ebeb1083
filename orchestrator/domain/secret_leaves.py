"""
Which leaves of a value are secret.

Law: secrets travel with values. What a module makes of a secret is one as well, whatever the module
says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from orchestrator.domain.masking import MARK
from orchestrator.domain.text import Json

#: The keys and indexes on the way to a value within another one.
LeafPath = tuple[str | int, ...]

#: Says that nothing was recorded of a value.
NO_SHAPE: Final = object()


def secret_leaves(
    value: Json, hides: Callable[[Json], bool], shape: Json = NO_SHAPE
) -> frozenset[LeafPath]:
    """
    The leaves that ``hides`` tells to be secret, and those that were when ``shape`` was recorded:
    there a secret leaf is replaced. A leaf that the shape does not have is new, and secret with the
    others.
    """
    was_secret = shape is not NO_SHAPE and MARK in str(shape)
    return frozenset(
        path
        for path, leaf in _leaves(value, hides)
        if hides(leaf) or (was_secret and MARK in str(value_at(shape, path, MARK)))
    )


def _leaves(
    value: Json, hides: Callable[[Json], bool], path: LeafPath = ()
) -> Iterator[tuple[LeafPath, Json]]:
    """
    Every value that is no structure, and where it stands. A map with a secret key is one leaf.
    """
    match value:
        case dict() if not any(hides(key) for key in value):
            for key, item in value.items():
                yield from _leaves(item, hides, (*path, key))
        case list() | tuple():
            for number, item in enumerate(value):
                yield from _leaves(item, hides, (*path, number))
        case _:
            yield path, value


def value_at(value: Json, path: LeafPath, default: Json = None) -> Json:
    """
    What stands at a path; ``default`` where nothing does.
    """
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return default
    return value


def without_leaves(value: Json, hidden: Collection[LeafPath], path: LeafPath = ()) -> Json:
    """
    The value with a mark in place of each leaf of ``hidden``.
    """
    if path in hidden:
        return MARK
    match value:
        case dict():
            return {key: without_leaves(item, hidden, (*path, key)) for key, item in value.items()}
        case list() | tuple():
            return [
                without_leaves(item, hidden, (*path, number)) for number, item in enumerate(value)
            ]
        case _:
            return value
