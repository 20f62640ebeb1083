"""
A destroy that is cut short: what is gone, what remains, and how the next one goes on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import attached
from tests.engine.watched_engine import kill, kill_with_engine, wait_for_answers, watched
from tests.project import Project, finish

pytestmark = pytest.mark.engine

MODULE = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "prefix" { type = string }
    resource "fakecloud_server" "first" {
      name       = "${var.prefix}-first"
      depends_on = [fakecloud_server.last]
    }
    resource "fakecloud_server" "last" {
      name = "${var.prefix}-last"
    }
    output "id" { value = fakecloud_server.last.id }
"""
FIRST, LAST = "fakecloud_server.first", "fakecloud_server.last"


class Pair:
    """
    Two servers of which one is destroyed first, in a project of an engine.
    """

    def __init__(self, root: Path, cloud: Cloud, engine: str) -> None:
        self.cloud = cloud
        self.project = Project(root, engine=engine)
        self.project.write("modules/pair/main.tf", MODULE)

    def applied(self, name: str) -> str:
        """
        The name of a blueprint with one step, applied; its servers begin with the name.
        """
        step = f"{{module: ../modules/pair, inputs: {{prefix: {name}}}}}"
        text = f"version: 1\nname: {name}\nsteps: {{{name}: {step}}}\n"
        self.project.write(f"blueprints/{name}.yaml", text)
        self.project.ok("apply", name, "--yes")
        return name

    def alive(self, name: str) -> list[str]:
        return [server.name for server in self.cloud.servers() if server.name.startswith(name)]


@contextmanager
def served(root: Path, engine: str) -> Iterator[Pair]:
    """
    A pair whose provider is in this process.
    """
    cloud = Cloud(root / "cloud.db")
    found = Pair(root / "project", cloud, engine)
    with attached(found.project, cloud, root):
        yield found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Pair]:
    with served(tmp_path_factory.mktemp("pair"), engine) as found:
        yield found


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory, each_engine: str) -> Iterator[Pair]:
    """
    A pair of each engine, for what rests on what the engine does.
    """
    with served(tmp_path_factory.mktemp("each"), each_engine) as found:
        yield found


def addresses(record: dict[str, Any]) -> list[str]:
    return [ref["address"] for ref in record["resources"]["inventory"]]


@pytest.mark.parametrize("method", ["state", "provider"])
def test_a_partial_destroy_goes_on_with_what_is_left(each: Pair, method: str) -> None:
    """
    One object is deleted, the other refuses: `error` with what is gone and what remains, the
    outputs as they were, and what is gone confirmed by the provider where it was to be;
    the next destroy takes the rest down, by the same method.
    """
    name = each.applied(f"partial-{method}")
    outputs = each.project.record(name)["outputs"]
    each.cloud.arm("delete", f"{name}-last", "delete_fails")

    ended = each.project.run("destroy", name, "--verify", method, "--yes")
    broken = each.project.record(name)
    again = each.project.run("destroy", name, "--yes")

    assert (ended.code, broken["status"], broken["failed_command"]) == (10, "error", "destroy")
    assert (broken["resources"]["deleted"], addresses(broken)) == ([FIRST], [LAST])
    assert (broken["outputs"], bool(outputs)) == (outputs, True)
    assert broken["resources"]["in_doubt"] == []
    record = each.project.record(name)
    assert (again.code, record["status"], record["outputs"]) == (0, "destroyed", {}), again.said
    assert record["absence"]["method"] == method
    if method == "provider":
        checked = {item["address"]: item["state"] for item in record["absence"]["checked"]}
        assert checked == {FIRST: "gone", LAST: "gone"}


@pytest.mark.parametrize("method", ["state", "provider"])
def test_a_finished_destroy_of_a_killed_tool_is_destroyed(each: Pair, method: str) -> None:
    """
    Law: an outlived run is settled from evidence.
    The tool is killed and the engine finishes by itself: the next destroy settles what it
    left as `destroyed`, not `absent`, confirmed as the killed run was to confirm it.
    """
    name = each.applied(f"killed-{method}")
    answers = len(list(each.project.own.rglob("apply.answer.json")))
    each.cloud.arm("delete", f"{name}-first", "slow")
    tool = each.project.start("destroy", name, "--verify", method, "--yes")
    each.cloud.wait_for_call("delete", f"{name}-first")
    kill(tool)
    each.cloud.disarm()
    wait_for_answers(each.project, answers + 1)

    before = each.project.status(name)["steps"][0]
    again = each.project.run("destroy", name, "--yes")

    record = each.project.record(name)
    assert (before["status"], before["condition"]) == ("running", "interrupted")
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert (record["absence"]["method"], each.alive(name)) == (method, [])


def test_a_signal_during_a_destroy_keeps_what_is_known(pair: Pair) -> None:
    """
    Law: signals.
    Exit 130, `stopped`, outputs kept, and the next destroy goes on.
    """
    name = pair.applied("stopped")
    pair.cloud.arm("delete", "stopped-first", "slow,untold")
    tool = pair.project.start("destroy", name, "--verify", "provider", "--yes")
    pair.cloud.wait_for_call("delete", "stopped-first")
    tool.send_signal(signal.SIGINT)
    ended = finish(tool)
    broken = pair.project.record(name)
    again = pair.project.run("destroy", name, "--yes")

    assert (ended.code, broken["error"]["code"]) == (130, "stopped"), ended.said
    assert (addresses(broken), bool(broken["outputs"])) == ([FIRST, LAST], True)
    assert (again.code, pair.project.record(name)["status"]) == (0, "destroyed"), again.said


def test_tool_and_engine_killed_during_a_destroy(pair: Pair) -> None:
    """
    Law: an outlived run is settled from evidence.
    Where nobody is left to finish: what was deleted before is not forgotten, what remains is
    destroyed by the next one.
    """
    name = pair.applied("lost")
    pair.cloud.arm("delete", "lost-last", "slow,unmade")
    tool = pair.project.start("destroy", name, "--yes")
    pair.cloud.wait_for_call("delete", "lost-last")
    kill_with_engine(pair.project, tool, "apply")

    again = pair.project.run("destroy", name, "--yes")
    settled = pair.project.history(name)[-3:]

    record = pair.project.record(name)
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert settled[0]["error"]["code"] == "killed"
    assert pair.alive(name) == []


def test_an_outcome_that_the_store_did_not_take_is_destroyed_later(pair: Pair) -> None:
    """
    Law: spooled outcome.
    The store is lost while the engine destroys: exit 23, the outcome is spooled, shown, and
    recorded by the next command; the provider state that was kept for it goes then.
    """
    name = pair.applied("spooled")
    pair.cloud.arm("delete", "spooled-first", "slow")
    database, away = pair.project.own / "operations.db", pair.project.root / "away.db"
    tool = pair.project.start("destroy", name, "--verify", "provider", "--yes")
    pair.cloud.wait_for_call("delete", "spooled-first")
    database.rename(away)
    pair.cloud.disarm()
    ended = finish(tool)
    database.unlink(missing_ok=True)
    away.rename(database)

    shown = pair.project.status(name)["steps"][0]
    again = pair.project.run("destroy", name, "--yes")

    record = pair.project.record(name)
    assert ended.code == 23, ended.said
    assert (shown["status"], shown["spooled"]) == ("destroyed", True)
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert record["absence"]["method"] == "provider"
    assert not list(pair.project.own.rglob("before.tfstate"))


@pytest.mark.parametrize("method", ["state", "provider"])
def test_a_state_that_could_not_be_read_after_the_destroy(
    tmp_path: Path, engine: str, method: str
) -> None:
    """
    The engine destroys all and then nobody can read the provider state: every object is in doubt.
    Once the state can be read again and no request can be under way any more, the next destroy
    neither calls the objects vanished nor needs them: they were deleted by us.
    """
    with served(tmp_path, engine) as pair:
        pair.project.write("orchestrator.yaml", "settle_seconds: 0\n")
        name = pair.applied("unread")
        program = watched(pair.project, tmp_path / "watched")
        program.vanish_after("apply")

        ended = pair.project.run("destroy", name, "--verify", method, "--yes")
        broken = pair.project.record(name)
        program.bring_back()
        again = pair.project.run("destroy", name, "--yes")

    record = pair.project.record(name)
    assert (ended.code, broken["error"]["code"]) == (11, "state_unreadable"), ended.said
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert record["absence"]["method"] == method


@pytest.mark.parametrize("method", ["state", "provider"])
@pytest.mark.parametrize("fault", ["lost_answer", "error_after"])
def test_a_delete_whose_answer_was_lost_ends_destroyed(pair: Pair, fault: str, method: str) -> None:
    """
    Law: destroyed means confirmed.
    The engine says that the last delete failed, and the object is gone. `reconcile` is not refused,
    `recover` recommends the destroy, and that one, as printed, ends `destroyed` without anybody's
    word: nothing is called vanished.
    """
    name = pair.applied(f"lost-{fault.partition('_')[0]}-{method}")
    pair.cloud.arm("delete", f"{name}-last", fault)

    ended = pair.project.run("destroy", name, "--verify", method, "--yes")
    reconciled = pair.project.run("reconcile", name)
    (advised,) = pair.project.ok("recover", name, "--json").document["steps"]
    (offer,) = [i for i in advised["actions"] if i["action"] == advised["recommended"]]
    again = pair.project.run(*offer["command"].split()[1:], "--yes")

    record = pair.project.record(name)
    assert (ended.code, reconciled.code) == (10, 0), reconciled.said
    assert "gone by an earlier delete" in reconciled.said
    assert "--accept-vanished" not in offer["command"]
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert (record["resources"]["deleted"], record["resources"]["released"]) == ([LAST], [])
    assert record["absence"]["method"] == method
    assert LAST in {item["address"] for item in record["absence"]["checked"]}


def test_a_delete_that_was_refused_explains_nothing(pair: Pair) -> None:
    """
    Law: state moved without us.
    The provider refused the delete; what is not found any more went without us: a person says so.
    """
    name = pair.applied("refused")
    pair.cloud.arm("delete", f"{name}-last", "delete_fails")
    assert pair.project.run("destroy", name, "--yes").code == 10
    pair.cloud.delete_out_of_band(f"{name}-last")

    ended = pair.project.run("destroy", name, "--yes")

    assert ended.code == 4, ended.said
    assert "has vanished" in ended.said
