"""
The tool dies in the middle of a mutation, the engine does not; or both do, or evidence is lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

from orchestrator.engine.process.wrapper import start_ticks
from tests.crash.scenes import STANDIN, Pair, any_engine
from tests.project import ENGINES, eventually, finish, require_engine

ADDRESS = "terraform_data.object"


@pytest.fixture(params=ENGINES)
def each_engine(request: pytest.FixtureRequest) -> str:
    return require_engine(request.param)


@pytest.fixture
def an_engine() -> str:
    return any_engine()


def kill(pids: list[int]) -> None:
    """
    SIGKILL processes of our own; they may have ended already.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def killed_in_create(pair: Pair) -> None:
    """
    Kill the tool while step ``one`` is being created, which does not end before `release`.
    """
    process = pair.start_held("apply")
    process.kill()
    process.communicate()


def lose_machine(pair: Pair, verb: str, step: str) -> None:
    """
    Kill the tool and the engine in the middle of a mutation, once a heartbeat has told of it.
    """
    process = pair.start_held(verb)
    eventually(lambda: any(row["in_flight"] for row in pair.leases()), "a heartbeat tells", process)
    process.kill()
    process.communicate()
    kill(pair.engine_session(step))


def doubts(pair: Pair) -> list[tuple[str, str]]:
    """
    What is in doubt of step ``one``: address and action.
    """
    found = pair.record("one")["resources"]["in_doubt"]
    return [(doubt["address"], doubt["action"]) for doubt in found]


def test_the_engine_goes_on_without_the_tool(tmp_path: Path, each_engine: str) -> None:
    """
    Law: an outlived run is settled from evidence.
    The tool is killed during a create. While the engine lives status says `live` and an
    apply exits 20; one that waits settles what the engine did and goes on, repeating nothing.
    """
    pair = Pair(tmp_path, each_engine)
    killed_in_create(pair)

    told = pair.status("pair")
    busy = pair.run("apply", "pair", "--yes")
    waiting = pair.launch("apply", "pair", "--yes", "--wait")
    assert waiting.stdout is not None
    assert any("waiting for run" in line for line in waiting.stdout)
    pair.release()
    waited = finish(waiting)

    assert told["verdict"] == "running"
    assert [row["condition"] for row in told["steps"]] == ["live", None]
    assert (busy.code, waited.code) == (20, 0), busy.said + waited.said
    assert pair.log() == ["create one", "create two"]
    assert pair.status("pair", "--expect", "ok")["verdict"] == "ok"
    assert [entry["status"] for entry in pair.history("one")][:2] == ["running", "ok"]


def test_the_engine_ends_a_destroy_without_the_tool(tmp_path: Path, an_engine: str) -> None:
    """
    Law: an outlived run is settled from evidence.
    For a destroy: killed during a delete, the record is `running` whatever it was before,
    and the next destroy waits and finds from the answer that it is done.
    """
    pair = Pair(tmp_path, an_engine)
    pair.ok("apply", "pair", "--yes")
    process = pair.start_held("destroy")
    process.kill()
    process.communicate()

    told = pair.status("pair")
    pair.release()
    ended = pair.run("destroy", "pair", "--yes", "--wait")

    assert [row["condition"] for row in told["steps"]] == [None, "live"]
    assert ended.code == 0, ended.said
    assert pair.log() == ["create one", "create two", "delete two", "delete one"]
    assert pair.status("pair", "--expect", "destroyed")["verdict"] == "destroyed"


def test_a_killed_engine_leaves_a_doubt(tmp_path: Path, an_engine: str) -> None:
    """
    The engine gets SIGKILL during a create: `error`, the create in doubt, exit 11, also the next
    time; once somebody has looked and says so, after the settling time, the next apply goes on.
    """
    pair = Pair(tmp_path, an_engine)
    (pair.root / "orchestrator.yaml").write_text("settle_seconds: 0\n", "utf-8")
    process = pair.start_held("apply")
    provisioners = set(pair.engine_session("one")) - {pair.engine("one")}
    kill([pair.engine("one")])
    process.communicate()
    kill(sorted(provisioners))
    pair.release()

    again = pair.run("apply", "pair", "--yes")
    forgotten = pair.run(
        "reconcile", "pair", "--yes", "--forget", ADDRESS, "--reason", "looked: no object"
    )
    goes_on = pair.run("apply", "pair", "--yes")

    assert (process.returncode, again.code) == (11, 11)
    assert "reconcile" in again.said
    assert forgotten.code == 0, forgotten.said
    assert goes_on.code == 0, goes_on.said
    assert pair.log() == ["create one", "create one", "create two"]


def test_tool_and_engine_killed(tmp_path: Path, an_engine: str) -> None:
    """
    Law: an outlived run is settled from evidence.
    Both are killed during a create. The record reads `running` and interrupted; apply exits
    11; destroy goes on but does not call it destroyed while the doubt remains.
    """
    pair = Pair(tmp_path, an_engine)
    killed_in_create(pair)
    kill(pair.engine_session("one"))

    told = pair.status("pair")
    refused = pair.run("apply", "pair", "--yes")
    destroyed = pair.run("destroy", "pair", "--yes")

    assert told["verdict"] == "interrupted"
    assert [row["status"] for row in told["steps"]] == ["running", "pending"]
    assert (refused.code, destroyed.code) == (11, 11), destroyed.said
    assert pair.record("one")["status"] == "error"
    assert doubts(pair) == [(ADDRESS, "create")]


def test_a_lost_answer_is_made_up_for_by_provider_state(tmp_path: Path, an_engine: str) -> None:
    """
    The engine finished, its answer file is missing: that alone never makes `ok`, but provider state
    holds the object, so nothing is in doubt and the next apply proves it with an empty plan.
    """
    pair = Pair(tmp_path, an_engine)
    killed_in_create(pair)
    pair.release()
    eventually(lambda: not pair.engine_session("one"), "the engine ends")
    (answer,) = pair.own.glob("runs/*/steps/one/1/apply.answer.json")
    answer.unlink()

    ended = pair.run("apply", "pair", "--yes")

    assert ended.code == 0, ended.said
    assert pair.log() == ["create one", "create two"]
    settled = pair.history("one")[1]
    assert (settled["status"], settled["error"]["code"]) == ("error", "killed")
    assert settled["resources"]["in_doubt"] == []


def test_a_lost_machine_leaves_a_doubt(tmp_path: Path, an_engine: str) -> None:
    """
    Law: an outlived run is settled from evidence.
    Nothing is left of the run but the store and provider state: nobody can tell that its engine is
    dead, until somebody says so. What the marker planned and the state does not hold is in doubt
    then, and apply exits 11.
    """
    pair = Pair(tmp_path, an_engine)
    lose_machine(pair, "apply", "one")
    shutil.rmtree(pair.own / "runs")
    shutil.rmtree(pair.own / "work")

    silent = pair.run("apply", "pair", "--yes")
    refused = pair.run("apply", "pair", "--yes", "--takeover", "the machine is lost")

    assert (silent.code, refused.code) == (20, 11), refused.said
    assert pair.record("one")["resources"]["journal"] == "missing"
    assert doubts(pair) == [(ADDRESS, "create")]
    (doubt,) = pair.record("one")["resources"]["in_doubt"]
    assert doubt["started_at"] is not None, "the last heartbeat told since when"


def test_a_machine_lost_during_a_delete_leaves_a_doubt(tmp_path: Path, an_engine: str) -> None:
    """
    The last heartbeat says that the delete was under way, so it began, whatever else is gone; run
    records that survived do not make it one that never started.
    """
    pair = Pair(tmp_path, an_engine)
    pair.ok("apply", "pair", "--yes")
    lose_machine(pair, "destroy", "two")
    for steps in pair.own.glob("runs/*/steps"):
        shutil.rmtree(steps)
    pair.release()

    told = pair.run("reconcile", "pair", "--step", "two")
    found = pair.record("two")["resources"]
    ended = pair.run("destroy", "pair", "--yes")

    assert told.code == 11, told.said
    assert found["journal"] == "missing"
    assert [(d["address"], d["action"]) for d in found["in_doubt"]] == [(ADDRESS, "delete")]
    assert found["in_doubt"][0]["started_at"] is not None
    assert ended.code == 0, ended.said


RETRIED = """
version: 1
name: retried
steps:
  one:
    module: ../modules/flaky
    retry: {on: ["."], attempts: 2}
"""

FLAKY = """
resource "terraform_data" "object" {
  provisioner "local-exec" {
    command = "test -e first && echo create one >> log && sleep 60; touch first; exit 1"
    working_dir = "PLACE"
  }
}
"""


def test_an_answer_of_an_earlier_attempt_does_not_count(tmp_path: Path, an_engine: str) -> None:
    """
    The first attempt failed and left its answer; tool and engine are killed in the second. What is
    settled is the second, of which there is no answer: its create is in doubt.
    """
    pair = Pair(tmp_path, an_engine)
    pair.write("blueprints/retried.yaml", RETRIED)
    pair.write("modules/flaky/main.tf", FLAKY.replace("PLACE", str(pair.place)))
    process = pair.start("apply", "retried", "--yes")
    eventually(lambda: "create one" in pair.log(), "the second create begins")
    process.kill()
    process.communicate()
    kill(pair.engine_session("one", attempt=2))

    refused = pair.run("apply", "retried", "--yes")

    assert refused.code == 11, refused.said
    record = pair.record("one")
    assert (record["attempt"], record["error"]["code"]) == (2, "killed")
    assert doubts(pair) == [(ADDRESS, "create")]


def rewrite_owner(pair: Pair, **changes: int) -> None:
    """
    Change the identity of the killed run in its lease and its claim.
    """
    with contextlib.closing(sqlite3.connect(pair.own / "operations.db")) as connection:
        for table in ("lease", "claim"):
            for name, value in changes.items():
                connection.execute(
                    f"UPDATE {table}s SET {table} = json_set({table}, '$.owner.{name}', {value})"
                )
        connection.commit()


@pytest.mark.parametrize(
    ("reused", "condition", "code"), [(True, "interrupted", 0), (False, "live", 20)]
)
def test_a_reused_pid_is_not_the_run(
    tmp_path: Path, reused: bool, condition: str, code: int
) -> None:
    """
    The pid of a killed run belongs to another process now: with another start time it reads gone,
    and only with the same one alive.
    """
    pair = Pair(tmp_path, str(STANDIN))
    assert pair.meddled("apply", kill=("store.append", 1, "after")) == -9
    us = os.getpid()
    rewrite_owner(pair, pid=us, started=start_ticks(us) - (1 if reused else 0))

    told = pair.status("pair")
    ended = pair.code("apply", "pair", "--yes")

    assert told["steps"][0]["condition"] == condition
    assert ended == code, pair.said
