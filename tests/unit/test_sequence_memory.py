"""
Law: a record that has gone back is noticed.
A store that was restored, or started afresh, is older than what this machine saw of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.app.commands.store import accept_restored
from orchestrator.domain.store_location import StoreLocation
from orchestrator.errors import Refused, StoreUnavailable
from orchestrator.ports.store import IDENTITY_BLOB
from orchestrator.run_files import RunFiles
from orchestrator.stores.sqlite import SqliteStore
from orchestrator.stores.watched_store import SequenceMemory, WatchedStore
from tests.fakes.entries import NETWORK, claim, entry


class Machine:
    """
    A machine with a store of its own and what it saw of it.
    """

    def __init__(self, place: Path) -> None:
        self.file = place / "o.db"
        self.seen = place / "seen"
        self.runs = place / "runs"
        self.told: list[str] = []

    def open(self) -> WatchedStore:
        store = SqliteStore(self.file)
        memory = SequenceMemory(self.seen, store.url, RunFiles(self.runs))
        return WatchedStore(store, memory, StoreLocation(), self.file, self.told.append)

    def write(self, *sequences: int, run: str = "r") -> None:
        store = self.open()
        for sequence in sequences:
            store.append(entry(sequence=sequence, entry_id=f"{run}-{sequence}"))
        store.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusal(machine: Machine) -> str:
    with pytest.raises(StoreUnavailable, match="has gone back") as raised:
        machine.open().take_claim(claim("late"))
    return raised.value.message


def test_a_store_that_was_restored_gives_no_claim(machine: Machine) -> None:
    """
    Yesterday's copy over today's: mutating commands end, reading ones are told once.
    """
    machine.write(1, 2)
    shutil.copy(machine.file, backup := machine.file.with_suffix(".bak"))
    machine.write(3)
    shutil.copy(backup, machine.file)

    assert "saw entry 3, the store has entry 2" in refusal(machine)
    reading = machine.open()
    machine.told.clear()
    assert [record.sequence for record in reading.records()] == [2]
    assert reading.newest(NETWORK) is not None
    assert len(machine.told) == 1
    assert reading.gone_back() != ()


def test_a_store_that_was_removed_is_not_a_new_one(machine: Machine) -> None:
    """
    "Never run" is not believed of a target that was seen.
    """
    machine.write(1)
    machine.file.unlink()

    assert "the store has none" in refusal(machine)


def test_another_entry_in_the_place_of_one_that_was_seen_is_noticed(machine: Machine) -> None:
    """
    The same number is not the same entry.
    """
    machine.write(1, 2)
    machine.file.unlink()
    other = SqliteStore(machine.file)
    other.append(entry(sequence=1, entry_id="x-1"))
    other.append(entry(sequence=2, entry_id="x-2"))
    other.close()

    assert "entry 2 is another" in refusal(machine)


def test_another_store_with_more_entries_is_noticed(machine: Machine) -> None:
    """
    What a machine saw comes before what others wrote since: in another store, or one that went on
    after it was put back, it does not. It can be believed for a reason.
    """
    machine.write(1, 2)
    machine.file.unlink()
    other = SqliteStore(machine.file)
    for sequence in (1, 2, 3):
        other.append(entry(sequence=sequence, entry_id=f"x-{sequence}"))
    other.close()

    assert "entry 2 is another" in refusal(machine)
    reconcile(machine)
    assert len(accept_restored(machine.open(), claim("by"), "moved on")) == 1
    assert machine.open().take_claim(claim("after")) is None


def test_another_store_in_the_place_of_the_one_that_was_seen_is_noticed(machine: Machine) -> None:
    """
    Also where this machine knows of no target that it would lack: others may have had theirs there.
    """
    store = machine.open()
    assert store.take_claim(claim("first")) is None
    store.close()
    machine.file.unlink()

    assert "saw the store of run first, and this is one that nobody has used" in refusal(machine)
    SqliteStore(machine.file).create_blob(IDENTITY_BLOB, b"others")
    assert "saw the store of run first, and this is others" in refusal(machine)
    assert len(accept_restored(machine.open(), claim("by"), "moved on")) == 1
    assert machine.open().take_claim(claim("after")) is None


def test_a_store_of_before_has_no_identity_and_gets_one(machine: Machine) -> None:
    """
    The first claim names it, for all machines.
    """
    machine.write(1)
    memory = SequenceMemory(machine.seen, machine.open().url)
    assert memory.read().identity is None

    assert machine.open().take_claim(claim("first")) is None

    assert memory.read().identity == "first"
    other = SequenceMemory(machine.seen.with_name("other"), machine.open().url)
    elsewhere = WatchedStore(SqliteStore(machine.file), other, StoreLocation(), machine.file, print)
    machine.open().drop_claim(claim("first"))
    assert elsewhere.take_claim(claim("second")) is None
    assert other.read().identity == "first"


def test_a_restored_store_can_be_believed_for_a_reason(machine: Machine) -> None:
    """
    What was older is told, the reason is kept in the store, and claims are given again.
    """
    machine.write(1)
    machine.file.unlink()

    lost = [str(NETWORK)]
    older = accept_restored(machine.open(), claim("by"), "disk lost", lost=lost)

    store = machine.open()
    assert len(older) == 1
    assert b"disk lost" in (store.blob("restored/by.json") or b"")
    assert store.take_claim(claim("after")) is None
    assert accept_restored(machine.open(), claim("again"), "once more") == []


def reconcile(machine: Machine, *, to: int = 0) -> None:
    """
    What a run that reconciles does: claim, entry, note.
    """
    store = machine.open()
    assert (
        store.take_claim(claim("reconciling").model_copy(update={"command": "reconcile"})) is None
    )
    if to:
        store.append(entry(sequence=to, entry_id=f"reconciled-{to}"))
    store.note_reconciled(NETWORK)
    store.drop_claim(claim("reconciling"))
    store.close()


def test_a_restored_store_is_believed_once_what_moved_since_is_reconciled(
    machine: Machine,
) -> None:
    """
    Only that may claim it before; another copy put back after it has to be reconciled again.
    """
    machine.write(1)
    shutil.copy(machine.file, backup := machine.file.with_name("backup"))
    machine.write(2, 3)
    shutil.copy(backup, machine.file)

    for _ in range(2):
        for file in machine.file.parent.glob("o.db*"):
            file.unlink()
        shutil.copy(backup, machine.file)
        with pytest.raises(Refused, match=f"not reconciled since.*{NETWORK}") as raised:
            accept_restored(machine.open(), claim("by"), "disk lost")
        assert "orchestrator reconcile" in raised.value.hint
        reconcile(machine, to=2)
        assert "saw entry 3, the store has entry 2" in refusal(machine)
    machine.write(3, run="reconciled-again")
    with pytest.raises(Refused, match="its record is not missing"):
        accept_restored(machine.open(), claim("by"), "disk lost", lost=[str(NETWORK)])

    assert len(accept_restored(machine.open(), claim("by"), "disk lost")) == 1
    assert machine.open().take_claim(claim("after")) is None


def run_json(
    machine: Machine, run_id: str, *, sequence: int | None = None, store: str | None = None
) -> Path:
    place = machine.runs / run_id
    document = {
        "store": store or machine.open().url,
        "steps": [{"step": "network", "target": str(NETWORK), "sequence": sequence}],
    }
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(document))
    return place


def test_runs_tell_what_they_wrote_where_nothing_else_remembers(machine: Machine) -> None:
    """
    The entry that a run ended with, and that one was killed in a mutating call; until the store is
    believed again. A run in another store, a damaged one and one that wrote nothing tell nothing.
    """
    machine.write(1)
    shutil.rmtree(machine.seen)
    (run_json(machine, "r0") / "run.json").write_text("{")
    run_json(machine, "r1", sequence=1)
    run_json(machine, "r2")
    run_json(machine, "r3", sequence=9, store="elsewhere")
    assert machine.open().take_claim(claim("first")) is None
    machine.open().drop_claim(claim("first"))

    run_json(machine, "r4", sequence=2)
    assert "saw entry 2, the store has entry 1" in refusal(machine)
    shutil.rmtree(machine.runs / "r4")
    killed = run_json(machine, "r5") / "steps" / "network" / "1"
    killed.mkdir(parents=True)
    (killed / "apply.identity.json").write_text("{}")
    assert "saw run r5 write one, the store has entry 1" in refusal(machine)
    reconcile(machine, to=2)
    accept_restored(machine.open(), claim("by"), "disk lost")
    assert machine.open().take_claim(claim("after")) is None


def test_what_other_machines_wrote_since_is_no_reason_to_stop(machine: Machine) -> None:
    """
    A store that is newer than what was seen is the usual case.
    """
    machine.write(1)
    elsewhere = SqliteStore(machine.file)
    elsewhere.append(entry(sequence=2, entry_id="else"))
    elsewhere.close()

    assert machine.open().take_claim(claim("mine")) is None


def test_reading_leaves_no_memory_and_a_memory_that_cannot_be_read_is_none(
    machine: Machine,
) -> None:
    """
    Only who writes or is about to remembers; a broken file keeps nobody from working.
    """
    SqliteStore(machine.file).append(entry(sequence=1))
    machine.open().records()
    assert not machine.seen.exists()

    machine.write(2)
    (file,) = machine.seen.glob("*.json")
    file.write_text('{"targets": 7')
    assert machine.open().take_claim(claim("mine")) is None
