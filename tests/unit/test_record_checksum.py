"""
Law: a record that has gone back is noticed. So is one that was changed.
An entry carries a checksum over what it says and that of the entry before it.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.objects import ObjectRef, Resources
from orchestrator.domain.record.record import UnreadableRecord, parse_record
from orchestrator.domain.transitions.transitions import observed
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.sqlite import SqliteStore
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, NETWORK, entry

STAMP = EntryStamp(at=START, entry_id="next", actor=ACTOR)
OBJECT = ObjectRef(address="fc.a", type="fc", provider="p", id="srv-1")
FIRST = entry(resources=Resources(inventory=(OBJECT,)), outputs={"n": 1.0, "t": "ü"})
SECOND = observed(FIRST, {}, STAMP).model_copy(update={"previous_checksum": FIRST.own_checksum()})


def test_an_entry_is_read_back_as_it_was_written() -> None:
    """
    The checksum is in the text and not in the value.
    """
    assert parse_record(FIRST.to_json()) == FIRST
    assert json.loads(FIRST.to_json())["checksum"].startswith("sha256:")
    assert SECOND.previous_checksum == json.loads(FIRST.to_json())["checksum"]


def test_one_changed_character_makes_an_entry_unreadable() -> None:
    """
    Whichever it is: an id, a status, the checksum itself.
    """
    text = FIRST.to_json()
    for now, then in (("srw-1", "srv-1"), ('"error"', '"ok"'), ("sha256:0", "sha256:")):
        changed = text.replace(then, now, 1)
        assert changed != text
        with pytest.raises(UnreadableRecord, match="checksum"):
            parse_record(changed)


def test_an_entry_of_an_older_version_has_no_checksum_and_is_read() -> None:
    """
    Stores that were written before stay readable, and what a newer version adds empty changes no
    checksum.
    """
    document = json.loads(FIRST.to_json())
    newer = document | {"added_later": None, "more": [], "nested": {"x": False}}
    del document["checksum"]

    assert parse_record(json.dumps(document)) == FIRST
    assert parse_record(json.dumps(newer)).sequence == 1


def test_an_entry_that_was_exchanged_is_noticed_in_the_history(tmp_path: Path) -> None:
    """
    An older entry that is whole by itself, but not the one that the next was made from.
    """
    store = SqliteStore(tmp_path / "o.db")
    store.append(FIRST)
    store.append(SECOND)
    assert store.history(NETWORK) == [SECOND, FIRST]
    store.close()

    other = FIRST.model_copy(update={"run_id": "another"})
    with sqlite3.connect(tmp_path / "o.db") as connection:
        connection.execute("DROP TRIGGER entries_are_never_changed")
        connection.execute("UPDATE entries SET record = ? WHERE sequence = 1", (other.to_json(),))

    with pytest.raises(StoreUnavailable, match="entry 1 of web/prod/network is not the one"):
        store.history(NETWORK)
