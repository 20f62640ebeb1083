"""
Parses stored entries, which are untrusted, and makes the errors that all stores share.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ValidationError

from orchestrator.domain.record.record import (
    NewerRecord,
    OperationRecord,
    UnreadableRecord,
    parse_record,
)
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import Fenced, StoreUnavailable

Model = TypeVar("Model", bound=BaseModel)

_DAMAGED = "the store was edited by hand or is damaged; restore it from a backup"
NEWER = "a newer version of orchestrator has written it: use that version or a newer one"


def read_entry(text: Json, *, target: Target, sequence: int | None, place: str) -> OperationRecord:
    """
    Return the record of an entry with this ``sequence`` (any if None). Raises StoreUnavailable if
    it is damaged, newer than this program, or the record of another entry.
    """
    where = f"{place}: entry {sequence or '(newest)'} of {target}"
    try:
        record = parse_record(text)
    except UnreadableRecord as exc:
        raise StoreUnavailable(
            f"{where} cannot be read: {exc}",
            hint=NEWER if isinstance(exc, NewerRecord) else _DAMAGED,
        ) from exc
    if record.target != target or sequence not in (None, record.sequence):
        raise StoreUnavailable(
            f"{where} holds entry {record.sequence} of {record.target}",
            hint=_DAMAGED,
        )
    return record


def check_chain(entries: list[OperationRecord], *, place: str) -> list[OperationRecord]:
    """
    Return the entries of a target, newest first. Raises StoreUnavailable if one does not follow
    from the entry before it.
    """
    for entry, before in itertools.pairwise(entries):
        if entry.previous_checksum not in (None, before.own_checksum()):
            raise StoreUnavailable(
                f"{place}: entry {before.sequence} of {before.target} is not the one that "
                f"entry {entry.sequence} was made from",
                hint=_DAMAGED,
            )
    return entries


def read_model(kind: type[Model], text: Json, *, what: str, place: str) -> Model:
    """
    Return a stored claim or lease. Raises StoreUnavailable if it is damaged.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as exc:
        raise StoreUnavailable(
            f"{place}: {what} cannot be read: {exc.errors()[0]['msg']}",
            hint=_DAMAGED,
        ) from exc


def fenced_error(record: OperationRecord, rival: OperationRecord | None) -> Fenced:
    """
    Return the error for an entry whose sequence ``rival`` has taken, or whose predecessor is
    missing.
    """
    entry = f"entry {record.sequence} of {record.target}"
    if rival is None:
        message = f"{entry} was not written: entry {record.sequence - 1} is not the newest"
    else:
        message = f"{entry} was not written: run {rival.run_id} has written it"
    return Fenced(message, hint="another writer took over; `orchestrator status` shows its record")


# Names of ours as keys of objects: reversible, and of characters that every object store keeps.


def path_name(name: str) -> str:
    """
    Return a name as a key; ``/`` still separates. An empty part is ``=``.

    >>> path_name('a["x.y"]/b'), path_name("a//")
    ('a=5B=22x.y=22=5D/b', 'a/=/=')
    """
    return "/".join(_key_part(part) for part in name.split("/"))


def parse_name(key: str) -> str | None:
    """
    Return the name of a key, None if somebody else made the key.

    >>> parse_name(path_name('ä/../%41//')) == 'ä/../%41//'
    True
    >>> parse_name('.DS_Store'), parse_name('=ZZ'), parse_name('€')
    (None, None, None)
    """
    with suppress(ValueError):
        parts = ("" if part == "=" else part for part in key.split("/"))
        name = "/".join(unquote(x.replace("=", "%"), errors="surrogateescape") for x in parts)
        return name if path_name(name) == key else None
    return None


def _key_part(part: str) -> str:
    name = quote(part, safe="", errors="surrogateescape").replace("~", "%7E").replace("%", "=")
    # A dot may stand anywhere but first: `.` and `..` are taken apart by clients.
    return f"=2E{name[1:]}" if name.startswith(".") else name or "="
