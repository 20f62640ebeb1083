"""
The secret leaves of values, and the search for secrets whose digest is known.

Law: secrets travel with values. A value that a module derives from a secret is secret, too,
whatever the module declares.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from orchestrator.domain.masking import MARK, SHORTEST, json_within
from orchestrator.domain.text import Json, ValuePath

#: Says that nothing was recorded of a value.
NO_SHAPE: Final = object()


def secret_leaves(
    value: Json, hides: Callable[[Json], bool], shape: Json = NO_SHAPE
) -> frozenset[ValuePath]:
    """
    Return the leaves for which ``hides`` is true, and those that were secret when ``shape`` was
    recorded (there they are replaced). A leaf that the shape lacks is new, and secret with the
    others.
    """
    was_secret = shape is not NO_SHAPE and MARK in str(shape)
    return frozenset(
        path
        for path, leaf in _leaves(value, hides)
        if hides(leaf) or (was_secret and MARK in str(value_at(shape, path, MARK)))
    )


def _leaves(
    value: Json, hides: Callable[[Json], bool], path: ValuePath = ()
) -> Iterator[tuple[ValuePath, Json]]:
    """
    Yield every leaf with its path. A map with a secret key is one leaf.
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


def value_at(value: Json, path: ValuePath, default: Json = None) -> Json:
    """
    Return the value at a path, ``default`` if there is none.
    """
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return default
    return value


def replaced_at(
    value: Json,
    places: Collection[ValuePath],
    stand_in: Callable[[ValuePath, Json], Json],
    path: ValuePath = (),
) -> Json:
    """
    Return the value with what is at each of these places replaced by ``stand_in(place, it)``.
    """
    if path in places:
        return stand_in(path, value)
    match value:
        case Mapping():
            return {k: replaced_at(v, places, stand_in, (*path, k)) for k, v in value.items()}
        case list() | tuple():
            return [replaced_at(v, places, stand_in, (*path, n)) for n, v in enumerate(value)]
        case _:
            return value


def without_leaves(value: Json, hidden: Collection[ValuePath]) -> Json:
    """
    Return the value with each leaf of ``hidden`` replaced by a mark.
    """
    return replaced_at(value, hidden, lambda _path, _value: MARK)


# Finding secrets again of which only the keyed digest is known.
#
# A secret that was put into something else is looked for as a part of every text: between
# boundaries of words first, then, as far as the budget goes, at any place. What is not found may
# be there all the same, in a form that no digest tells.


#: Parts of texts that are tried; each takes about four microseconds.
_BUDGET = 200_000
#: Words that a secret of which the ends are boundaries may hold.
_SPAN = 16

_BOUNDARY = re.compile(r"\b|(?<=[\n_])|(?=[\n_])|(?<=[^\w\s])|(?=[^\w\s])|\Z")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")


def find_secrets(
    documents: Iterable[Json], digests: Collection[str], digest: Callable[[Json], str]
) -> dict[str, Json]:
    """
    Return the values in ``documents`` with the wanted digests, by digest.
    """
    values: dict[str, Json] = {}
    texts: set[str] = set()
    for value in _values(documents):
        _try(value, digests, digest, values)
        if isinstance(value, str):
            texts.add(value)
    budget = _BUDGET
    for part in _parts(sorted(texts, key=len)):
        if budget == 0 or values.keys() >= set(digests):
            break
        _try(part, digests, digest, values)
        budget -= 1
    return values


def _try(
    value: Json, wanted: Collection[str], digest: Callable[[Json], str], values: dict[str, Json]
) -> None:
    name = digest(value)
    if name in wanted:
        values[name] = value


def _values(documents: Iterable[Json]) -> Iterator[Json]:
    """
    Yield every value in the documents, structures included, and values encoded in texts as JSON,
    base64 or percent-encoding.
    """
    waiting = list(documents)
    while waiting:
        value = waiting.pop()
        yield value
        match value:
            case dict():
                waiting += [*value.keys(), *value.values()]
            case list() | tuple():
                waiting += value
            case str():
                waiting += _decoded(value)


def _decoded(text: str) -> Iterator[Json]:
    yield json_within(text)
    data = text.encode("utf-8", "surrogatepass")
    encoded = [_PERCENT.sub(lambda match: bytes([int(match[1], 16)]), data)]
    if _BASE64.fullmatch(text):
        with suppress(binascii.Error):
            encoded.append(base64.urlsafe_b64decode(data.translate(_URL_SAFE).rstrip(b"=") + b"=="))
    for plain in encoded:
        with suppress(UnicodeDecodeError):
            if plain != data:
                yield plain.decode()


def _parts(texts: Collection[str]) -> Iterator[str]:
    """
    Yield parts of the texts, the likely ones first.
    """
    for text in texts:
        ends = sorted({0, len(text), *(match.start() for match in _BOUNDARY.finditer(text))})
        for number, first in enumerate(ends):
            for last in ends[number + 1 : number + 1 + _SPAN]:
                if last - first >= SHORTEST:
                    yield text[first:last]
    for text in texts:
        lines = text.splitlines(keepends=True)
        for number in range(len(lines) if len(lines) > 1 else 0):
            for last in range(number + 2, len(lines) + 1):
                joined = "".join(lines[number:last])
                yield from (joined, joined.rstrip("\n"))
    for text in texts:
        for first in range(len(text) - SHORTEST + 1):
            for last in range(first + SHORTEST, len(text) + 1):
                yield text[first:last]
