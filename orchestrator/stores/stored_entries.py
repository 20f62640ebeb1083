"""
Parses stored entries, which are untrusted, and makes the errors that all stores share.
"""

from __future__ import annotations

import itertools
from typing import TypeVar

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


def read_entry(
    text: Json, *, target: Target, sequence: int | None, location: str
) -> OperationRecord:
    """
    Return the record of an entry with this ``sequence`` (any if None). Raises StoreUnavailable if
    it is damaged, newer than this program, or the record of another entry.
    """
    where = f"{location}: entry {sequence or '(newest)'} of {target}"
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


def check_chain(entries: list[OperationRecord], *, location: str) -> list[OperationRecord]:
    """
    Return the entries of a target, newest first. Raises StoreUnavailable if one does not follow
    from the entry before it.
    """
    for entry, before in itertools.pairwise(entries):
        if entry.previous_checksum not in (None, before.own_checksum()):
            raise StoreUnavailable(
                f"{location}: entry {before.sequence} of {before.target} is not the one that "
                f"entry {entry.sequence} was made from",
                hint=_DAMAGED,
            )
    return entries


def read_model(kind: type[Model], text: Json, *, what: str, location: str) -> Model:
    """
    Return a stored claim or lease. Raises StoreUnavailable if it is damaged.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as exc:
        raise StoreUnavailable(
            f"{location}: {what} cannot be read: {exc.errors()[0]['msg']}",
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
