"""
What cannot be recorded: the intent, and then nothing is mutated; the outcome, and then it is kept.
"""

from __future__ import annotations

import json
import resource
import shlex
import sys
from pathlib import Path

import pytest

from tests.crash.scenes import EVER, STANDIN, Pair, any_engine
from tests.project import Project


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, str(STANDIN))


@pytest.fixture
def spooled(pair: Pair) -> Pair:
    """
    A project whose first apply of step ``one`` could not be recorded.
    """
    assert pair.meddled("apply", fail={"store.append": (2, EVER)}) == 23, pair.said
    return pair


def waiting(project: Project) -> list[Path]:
    """
    The files in the spool.
    """
    return sorted((project.own / "spool").glob("*.json"))


def late(project: Project) -> list[Path]:
    """
    The outcomes that came too late.
    """
    return sorted(project.own.glob("runs/*/late-*.json"))


def test_without_an_intent_nothing_is_mutated(pair: Pair) -> None:
    """
    Law: no record, no mutation.
    The marker cannot be appended: the engine's apply is never called, exit 22, and no record
    appears.
    """
    ended = pair.meddled("apply", fail={"store.append": (1, EVER)})

    assert ended == 22, pair.said
    assert "engine.call:plan" in pair.calls
    assert "engine.call:apply" not in pair.calls
    assert (pair.log(), pair.entries("one"), waiting(pair)) == ([], [], [])


def test_without_an_intent_the_earlier_entry_stays(pair: Pair) -> None:
    """
    Law: no record, no mutation.
    Over an earlier record: it is the same to the byte, and the objects are untouched.
    """
    assert pair.code("apply", "pair", "--yes") == 0, pair.said
    before, deeds = (pair.entries("one"), pair.entries("two")), pair.log()

    ended = pair.meddled("destroy", fail={"store.append": (1, EVER)})

    assert ended == 22, pair.said
    assert (pair.entries("one"), pair.entries("two")) == before
    assert pair.log() == deeds


def test_an_outcome_that_cannot_be_recorded_is_spooled(pair: Pair) -> None:
    """
    Law: spooled outcome.
    The engine finished, every append fails from then on: exit 23, the record stays
    `running`, and the outcome lies in the spool.
    """
    ended = pair.meddled("apply", fail={"store.append": (2, EVER)})

    assert ended == 23, pair.said
    assert pair.record("one")["status"] == "running"
    (file,) = waiting(pair)
    assert json.loads(file.read_text())["status"] == "ok"
    assert pair.log() == ["create one"]


def test_after_a_spooled_outcome_no_further_step_starts(pair: Pair) -> None:
    """
    Law: spooled outcome.
    The store recovers right after the outcome was spooled, the other step does not need this
    one, and the policy is to continue: it does not start all the same.
    """
    ended = pair.meddled("apply", fail={"store.append": (2, 5)}, blueprint="loose")

    assert ended == 23, pair.said
    assert len(waiting(pair)) == 1
    assert (pair.log(), pair.entries("two")) == (["create one"], [])


def test_status_shows_the_spool_as_an_overlay(spooled: Pair) -> None:
    """
    Law: spooled outcome.
    Reading commands show the spooled outcome, marked as such, and leave it where it is.
    """
    before = waiting(spooled), spooled.entries("one")

    one, two = spooled.status("pair")["steps"]

    assert (one["status"], one["spooled"]) == ("ok", True)
    assert (two["status"], two["spooled"]) == ("pending", False)
    assert (waiting(spooled), spooled.entries("one")) == before


def test_the_spool_is_replayed_before_anything_else(spooled: Pair) -> None:
    """
    Law: spooled outcome.
    The next mutating command records what is spooled first, then goes on; nothing is
    repeated.
    """
    ended = spooled.meddled("apply")

    assert ended == 0, spooled.said
    calls = spooled.calls
    assert calls.index("store.append") < calls.index("spool.drop") < calls.index("store.records")
    assert waiting(spooled) == []
    assert spooled.log() == ["create one", "create two"]
    assert [entry["status"] for entry in spooled.history("one")][:2] == ["running", "ok"]
    assert spooled.status("pair")["steps"][0]["spooled"] is False


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["store.append", "spool.drop"])
def test_a_killed_replay_is_replayed(spooled: Pair, call: str, when: str) -> None:
    """
    A replay that is killed loses nothing and records nothing twice.
    """
    (file,) = waiting(spooled)
    outcome = json.loads(file.read_text())
    assert spooled.meddled("apply", kill=(call, 1, when)) == -9

    ended = spooled.code("apply", "pair", "--yes")

    assert ended == 0, spooled.said
    assert (waiting(spooled), late(spooled)) == ([], [])
    assert spooled.log() == ["create one", "create two"]
    # The link to the entry before is made when the entry is appended.
    linked = dict.fromkeys(("checksum", "previous_checksum"))
    assert spooled.history("one")[1] | linked == outcome | linked


def test_a_spooled_outcome_that_comes_too_late_overwrites_nothing(spooled: Pair) -> None:
    """
    Another run settled the target while the spooled outcome was out of sight: once it is back, it
    is kept beside its run and the record stays as it is.
    """
    (file,) = waiting(spooled)
    away = file.rename(spooled.root / file.name)
    assert spooled.code("destroy", "pair", "--yes") == 0, spooled.said
    before = spooled.entries("one")
    text = away.read_text()
    away.rename(file)

    told = spooled.status("pair")["steps"][0]
    ended = spooled.code("destroy", "pair", "--yes")

    assert (told["status"], told["spooled"]) == ("destroyed", False)
    assert ended == 0, spooled.said
    assert spooled.entries("one") == before
    assert waiting(spooled) == []
    (kept,) = late(spooled)
    assert json.loads(kept.read_text()) == json.loads(text)


def test_neither_recorded_nor_spooled_the_answer_remains(pair: Pair) -> None:
    """
    Law: spooled outcome.
    At its worst: the spool fails as well. Exit 23, and the next run settles the target from
    what the engine left on disk.
    """
    assert pair.meddled("apply", fail={"store.append": (2, EVER), "spool.put": (1, EVER)}) == 23, (
        pair.said
    )

    ended = pair.code("apply", "pair", "--yes")

    assert ended == 0, pair.said
    assert pair.log() == ["create one", "create two"]
    assert [entry["status"] for entry in pair.history("one")][:2] == ["running", "ok"]


#: Lets the process that keeps the lease write no file beyond a size; the engine is another one.
STARVE = """
import json, resource, sqlite3, sys
(text,) = sqlite3.connect(sys.argv[1]).execute("SELECT lease FROM leases").fetchone()
resource.prlimit(json.loads(text)["owner"]["pid"], resource.RLIMIT_FSIZE, (16384, 16384))
"""


@pytest.mark.parametrize("cause", ["moved away", "no room"])
def test_a_store_that_fails_during_the_mutation(tmp_path: Path, cause: str) -> None:
    """
    Law: spooled outcome.
    On a real store: while the engine is at work the database is moved away, or cannot grow
    any more. Exit 23 and no further step; once the store is in order, the outcome comes out of the
    spool and the run goes on.
    """
    if cause == "no room" and not hasattr(resource, "prlimit"):
        pytest.skip("this system cannot limit another process's file sizes")
    project = Project(tmp_path, engine=any_engine())
    blueprint = project.fixture("reads-record")
    script = project.write("starve.py", STARVE)
    database, away = project.own / "operations.db", tmp_path / "away.db"
    words = {
        "moved away": ["mv", str(database), str(away)],
        "no room": [sys.executable, str(script), str(database)],
    }[cause]
    inputs = ("-i", f"on_create={shlex.join(words)}")

    ended = project.run("apply", blueprint, "--yes", *inputs)
    if away.exists():
        away.rename(database)
    told = project.steps(blueprint)
    again = project.run("apply", blueprint, "--yes", *inputs)

    assert ended.code == 23, ended.said
    assert (told["breaks"]["status"], told["breaks"]["spooled"]) == ("ok", True)
    assert told["after"]["status"] == "pending"
    assert again.code == 0, again.said
    breaks, after = project.history("breaks"), project.history("after")
    assert [entry["status"] for entry in breaks][:2] == ["running", "ok"]
    assert after[0]["run_id"] != breaks[0]["run_id"]


#: Appends an entry of its own to the record of step ``breaks``, as another writer would.
RIVAL = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
key = "blueprint = 'reads-record' AND environment = 'default' AND step = 'breaks'"
query = f"SELECT sequence, record FROM entries WHERE {key} ORDER BY sequence DESC LIMIT 1"
sequence, text = connection.execute(query).fetchone()
record = json.loads(text) | {"sequence": sequence + 1, "entry_id": "rival", "run_id": "rival"}
del record["checksum"], record["previous_checksum"]  # as a version writes that has none
row = ("reads-record", "default", "breaks", sequence + 1, "rival", json.dumps(record))
connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
connection.commit()
"""


def test_another_writer_during_the_mutation_fences_us(tmp_path: Path) -> None:
    """
    Law: compare-and-set.
    Somebody else appends between our marker and our outcome: exit 21, his entry stays the
    newest, ours is kept beside the run, and no further step starts.
    """
    project = Project(tmp_path, engine=any_engine())
    blueprint = project.fixture("reads-record")
    script = project.write("rival.py", RIVAL)
    words = [sys.executable, str(script), str(project.own / "operations.db")]

    ended = project.run("apply", blueprint, "--yes", "-i", f"on_create={shlex.join(words)}")

    assert ended.code == 21, ended.said
    assert [entry["entry_id"] == "rival" for entry in project.history("breaks")] == [False, True]
    (kept,) = late(project)
    assert json.loads(kept.read_text())["status"] == "ok"
    assert project.entries("after") == []
