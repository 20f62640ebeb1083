"""
The differences between two values of an object, down to single values.

Values are compared first and masked afterwards: that two secrets differ is no secret.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec import Struct

from orchestrator.domain.blueprint.references import path_text
from orchestrator.domain.plan.changes import UNKNOWN, AttributeChange
from orchestrator.domain.record.record import SENSITIVE
from orchestrator.domain.text import Json, ValuePath

#: Elements of lists to compare with each other before they are taken in the order they stand in.
_MOST_COMPARED = 10_000


class Marks(Struct, frozen=True):
    """
    The engine's marks on a value (sensitive, unknown, ...): trees of the same shape as the value.
    """

    sensitive: Json = False
    unknown: Json = False

    def at(self, key: str | int) -> Marks:
        return Marks(_within(self.sensitive, key), _within(self.unknown, key))


class _Secret(Struct, frozen=True):
    value: Json


class _Unknown:
    """
    A value known only after apply; equal to nothing else.
    """


def attribute_changes(
    before: Json,
    after: Json,
    *,
    before_marks: Marks,
    after_marks: Marks,
    replace_paths: Sequence[Sequence[str | int]] = (),
) -> tuple[AttributeChange, ...]:
    """
    Return the attributes that differ; None stands for an object that does not exist.
    """
    differences = _differences(
        (), _marked(before, before_marks) or {}, _marked(after, after_marks) or {}
    )
    changes = []
    for path, old, new in differences:
        forces = any(
            all(one == other for one, other in zip(path, forced, strict=False))
            for forced in replace_paths
        )
        changes.append(_change(path, old, new, forces=forces))
    return tuple(changes)


def shown_value(value: Json, marks: Marks) -> Json:
    """
    Return a value without its sensitive and unknown parts.
    """
    return _plain(_marked(value, marks))


def secret_values(value: Json, sensitive: Json) -> Iterator[Json]:
    """
    Yield the parts of a value that the engine marks as sensitive.
    """
    if sensitive is True:
        if value is not None:
            yield value
    elif isinstance(sensitive, Mapping) and isinstance(value, Mapping):
        for key, mark in sensitive.items():
            yield from secret_values(value.get(key), mark)
    elif isinstance(sensitive, list) and isinstance(value, list):
        for item, mark in zip(value, sensitive, strict=False):
            yield from secret_values(item, mark)


def attribute_path(path: ValuePath) -> str:
    """
    Return a path in Terraform's notation.

    >>> attribute_path(("tags", "a b", 0, "x"))
    'tags["a b"][0].x'
    """
    return path_text(path).removeprefix(".")


def _within(marks: Json, key: str | int) -> Json:
    if isinstance(marks, Mapping):
        return marks.get(key, False)
    if isinstance(marks, list) and isinstance(key, int) and key < len(marks):
        return marks[key]
    return marks is True


def _marked(value: Json, marks: Marks) -> Any:
    """
    Return the value with `_Secret` or `_Unknown` in place of marked parts.
    """
    if marks.unknown is True:
        return _Unknown()
    if marks.sensitive is True:
        return _Secret(value)
    keys = _unknown_keys(marks.unknown)
    if isinstance(value, Mapping) or any(isinstance(key, str) for key in keys):
        fields = value or {}
        return {key: _marked(fields.get(key), marks.at(key)) for key in {**fields, **keys}}
    if isinstance(value, list) or keys:
        items = value or []
        size = max([len(items), *(key + 1 for key in keys)])
        return [_marked(items[n] if n < len(items) else None, marks.at(n)) for n in range(size)]
    return value


def _unknown_keys(unknown: Json) -> dict[Any, None]:
    """
    Return the keys and indexes below which something is unknown.
    """
    if isinstance(unknown, Mapping):
        return {key: None for key, item in unknown.items() if _any_unknown(item)}
    if isinstance(unknown, list):
        return {n: None for n, item in enumerate(unknown) if _any_unknown(item)}
    return {}


def _any_unknown(unknown: Json) -> bool:
    return unknown is True or bool(_unknown_keys(unknown))


def _plain(value: Any) -> Json:
    match value:
        case _Secret():
            return SENSITIVE
        case _Unknown():
            return UNKNOWN
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


def _differences(path: ValuePath, before: Any, after: Any) -> Iterator[tuple[ValuePath, Any, Any]]:
    # A map that comes or goes is told by its keys, as one that changes is.
    if before is None and _holds_values(after):
        before = {}
    elif after is None and _holds_values(before):
        after = {}
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences((*path, key), before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_differences(path, before, after)
    elif before != after or isinstance(before, bool) != isinstance(after, bool):  # 1 is not true
        yield path, before, after


def _holds_values(value: Any) -> bool:
    return isinstance(value, dict) and any(item is not None for item in value.values())


def _list_differences(
    path: ValuePath, before: list[Any], after: list[Any]
) -> Iterator[tuple[ValuePath, Any, Any]]:
    """
    Yield the differences between lists. Equal elements are paired wherever they stand: plans do not
    tell lists from sets, and an element inserted in front must not change all others.
    """
    old, new = _unequal(before, after)
    if not old and not new:
        if before != after:
            yield path, before, after
        return
    pairs = _pairs(old, new, same_length=len(before) == len(after))
    for here, there in pairs:
        yield from _differences((*path, there), old.pop(here), new.pop(there))
    for index, item in old.items():
        yield (*path, index), item, None
    for index, item in new.items():
        yield (*path, index), None, item


def _unequal(before: list[Any], after: list[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
    """
    Return the elements of each list that the other lacks, by index.
    """
    places: dict[str, list[int]] = defaultdict(list)
    unknown = count()
    for index, item in enumerate(before):
        places[_key(item, unknown)].append(index)
    old, new = dict(enumerate(before)), dict(enumerate(after))
    for index, item in enumerate(after):
        equal = places.get(_key(item, unknown))
        if equal:
            del old[equal.pop(0)], new[index]
    return old, new


def _key(item: Any, unknown: Iterator[int]) -> str:
    def other(value: object) -> Json:
        return {"secret": value.value} if isinstance(value, _Secret) else {"?": next(unknown)}

    return json.dumps(item, sort_keys=True, default=other)


def _pairs(
    old: Mapping[int, Any], new: Mapping[int, Any], *, same_length: bool
) -> list[tuple[int, int]]:
    """
    Return which elements correspond: structures by their common fields, other values by their index
    if the lists have the same length.
    """
    if same_length and (old.keys() == new.keys() or len(old) * len(new) > _MOST_COMPARED):
        return [(index, index) for index in old if index in new]
    likeness = sorted(
        (-sum(other.get(key) == value for key, value in item.items() if value), here, there)
        for here, item in old.items()
        for there, other in new.items()
        if isinstance(item, dict) and isinstance(other, dict)
    )
    pairs: list[tuple[int, int]] = []
    for score, here, there in likeness:
        is_paired = any(here == one or there == two for one, two in pairs)
        if score and not is_paired:
            pairs.append((here, there))
    return pairs


def _change(path: ValuePath, before: Any, after: Any, *, forces: bool) -> AttributeChange:
    secret = isinstance(before, _Secret) or isinstance(after, _Secret)
    known = not isinstance(after, _Unknown)
    old, new = _plain(before), _plain(after)
    change = AttributeChange(
        path=attribute_path(path),
        change="added" if _is_absent(before) else "removed" if _is_absent(after) else "changed",
        before=None if secret else old,
        after=None if secret or not known else new,
        sensitive=secret,
        known=known,
        forces_replacement=forces,
        equivalent=not secret and known and not forces and _equivalent(old, new),
    )
    if isinstance(before, list) and isinstance(after, list):
        return change.model_copy(update={"change": "reordered"})
    return change


def _is_absent(value: Any) -> bool:
    """
    Return whether there is nothing to show; an empty text is a value that somebody may have meant.
    """
    return value is None or (isinstance(value, list | dict) and not value)


def _equivalent(before: Json, after: Json) -> bool:
    """
    Return whether both mean the same to a provider: nothing, or the same JSON.
    """
    if all(value == "" or _is_absent(value) for value in (before, after)):
        return True
    if isinstance(before, str) and isinstance(after, str):
        parsed = json_document(before)
        return parsed is not None and parsed == json_document(after)
    return False


def json_document(text: str) -> Json:
    """
    Return the JSON object or list in a text, None if it holds none.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
