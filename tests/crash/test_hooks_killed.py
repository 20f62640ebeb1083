"""
SIGKILL of the tool before and after every call of a port while steps are compensated, and while
what comes before their destroy is done: nothing is done twice, and nothing is left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scenes import EVER, STANDIN, Pair, points
from tests.project import eventually

SIGKILLED = -9

#: What makes anything durable here, or begins it; test_kill_points.py dies everywhere.
CALLS = ("store.append", "engine.call:program", "engine.call:apply", "engine.discard")

#: Says what it does in ``place/log``; takes its time there as the objects do.
NOTE = """\
#!/bin/sh
echo "$ORCHESTRATOR_ACTION $ORCHESTRATOR_STEP" >> "$1/log"
"""
ACTIONS = """
    compensate: {command: [bin/note, "${inputs.place}"]}
    before_destroy: {command: [bin/note, "${inputs.place}"]}
"""


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """
    Both steps applied, each with both actions.
    """
    found = Pair(tmp_path / "pair", str(STANDIN))
    file = found.root / "blueprints/pair.yaml"
    lines = file.read_text().splitlines()
    module = "    module: ../modules/keeper"
    file.write_text("\n".join(line + (ACTIONS if line == module else "") for line in lines))
    found.write("bin/note", NOTE).chmod(0o700)
    assert found.code("apply", "pair", "--yes") == 0, found.said
    return found


def count(pair: Pair, action: str) -> list[int]:
    """
    How often the action of each step was carried out.
    """
    return [pair.log().count(f"{action} {step}") for step in ("one", "two")]


def statuses(pair: Pair) -> list[str]:
    return [row["status"] for row in pair.status("pair")["steps"]]


def settle(pair: Pair) -> None:
    """
    Whoever is alive ends; then records are settled from what is left.
    """
    eventually(lambda: pair.status("pair")["verdict"] != "running", "nobody is at work")


def test_a_compensation_killed_at_any_call_is_done_once(pair: Pair) -> None:
    """
    Law: an outlived run is settled from evidence.
    Wherever it is killed, the same command goes on; each step is compensated exactly once,
    and stands as it stood before.
    """
    assert pair.meddled("compensate") == 0, pair.said
    # The first step's entries are enough: the second's are the same.
    reached = [point for point in points(pair.calls, *CALLS) if point[1] <= 2]
    for done, point in enumerate(reached, 2):
        assert pair.code("apply", "pair", "--yes") == 0, pair.said
        assert pair.meddled("compensate", kill=point) == SIGKILLED, f"{point}: {pair.said}"
        settle(pair)
        assert pair.code("compensate", "pair", "--yes", "--reason", "again") == 0, pair.said
        assert count(pair, "compensate") == [done, done], point
        assert statuses(pair) == ["ok", "ok"]


def test_work_before_a_destroy_killed_at_any_call_comes_before_it(pair: Pair) -> None:
    """
    Wherever a destroy is killed, no object is deleted whose step did not do its work first, and the
    same command ends with everything gone.
    """
    assert pair.meddled("destroy") == 0, pair.said
    for point in [point for point in points(pair.calls, *CALLS) if point[1] <= 4]:
        (pair.place / "log").unlink()
        assert pair.code("apply", "pair", "--yes") == 0, pair.said
        assert pair.meddled("destroy", kill=point) == SIGKILLED, f"{point}: {pair.said}"
        settle(pair)
        assert pair.code("destroy", "pair", "--yes") == 0, pair.said
        assert statuses(pair) == ["destroyed", "destroyed"]
        for step in ("one", "two"):
            log = [line for line in pair.log() if line.endswith(f" {step}")]
            assert log.count(f"delete {step}") == 1
            assert log.index(f"before_destroy {step}") < log.index(f"delete {step}"), point
            assert log[-1] == f"delete {step}", f"{point}: what is gone needs no work before it"


def test_without_a_durable_marker_nothing_is_carried_out(pair: Pair) -> None:
    """
    Law: no record, no mutation.
    The store fails before the marker, the command does not start, the record is untouched.
    """
    before = pair.entries("two")
    assert pair.meddled("compensate", fail={"store.append": (1, EVER)}) == 22, pair.said
    assert count(pair, "compensate") == [0, 0]
    assert pair.entries("two") == before


def test_an_outcome_that_cannot_be_recorded_waits_and_is_replayed(pair: Pair) -> None:
    """
    Law: spooled outcome.
    The command ended and the store is gone: exit 23, nothing more starts, and the next run
    records it first instead of doing it again.
    """
    assert pair.meddled("compensate", fail={"store.append": (2, EVER)}) == 23, pair.said
    assert count(pair, "compensate") == [0, 1]
    assert pair.code("compensate", "pair", "--yes", "--reason", "again") == 0, pair.said
    assert count(pair, "compensate") == [1, 1]
    assert statuses(pair) == ["ok", "ok"]
