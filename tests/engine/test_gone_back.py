"""
Law: a record that has gone back is noticed.
"""

from __future__ import annotations

import json
import shlex
import shutil

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine


@pytest.fixture
def project(project: Project) -> Project:
    project.write("m/main.tf", 'resource "terraform_data" "a" { input = 1 }\n')
    project.write("blueprints/b.yaml", "version: 1\nname: b\nsteps:\n  one: {module: ../m}\n")
    return project


def words(ended: Ended) -> str:
    """
    What was said, whatever the width of the screen.
    """
    return " ".join(ended.said.split())


def test_a_store_that_was_put_back_or_removed_is_not_believed(project: Project) -> None:
    """
    The records of before the last apply, and no records at all: what would double or forget objects
    ends with 22, what only reads says it, and an expectation is not met.
    """
    project.prepare("apply", "b", "--yes")
    project.prepare("destroy", "b", "--yes")
    database = project.own / "operations.db"
    old = database.read_bytes()
    project.prepare("apply", "b", "--yes")

    database.write_bytes(old)
    refused = project.run("destroy", "b", "--yes", "--step", "one")
    asked = project.run("verify", "b", "--json")
    imported = project.run("import", "b/default/one", "terraform_data.a", "x", "--yes", "--json")
    status = project.run("status", "b")
    gate = project.run("gate", "b", "--json")
    recover = project.ok("recover", "b", "--json").document
    expected = project.run("status", "b", "--expect", "destroyed")
    database.unlink()
    afresh = project.run("apply", "b", "--yes")

    assert (refused.code, expected.code, afresh.code) == (22, 22, 22)
    assert all(words(ended).count("has gone back") == 1 for ended in (refused, afresh))
    assert status.code == 0
    assert "has gone back" in status.err
    assert "orchestrator destroy b" in refused.out
    assert "verdict: unknown" in refused.out, "what has gone back tells nothing"
    assert asked.events[-1]["verdict"] == "unknown"
    way = [
        "orchestrator adopt b",
        "orchestrator reconcile b",
        "orchestrator store accept-restored --blueprint b REASON",
    ]
    assert [item["command"] for item in recover["next"]] == way
    assert {a["action"] for a in recover["steps"][0]["actions"] if a["available"]} <= {"reconcile"}
    assert (gate.code, gate.document["reasons"][0]["code"]) == (4, "store_unavailable")
    for ended, also in ((asked, ["orchestrator verify b"]), (imported, [])):
        assert [item["command"] for item in ended.events[-1]["next"]] == way + also

    accept = shlex.split(way[-1].replace("REASON", "disk-lost"))[1:]
    too_early = project.run(*accept)
    assert too_early.code == 4 and "`orchestrator adopt b" in too_early.said
    adopted, _ = (project.ok(*command.split()[1:], "--json") for command in way[:-1])
    assert [item["command"] for item in adopted.events[-1]["next"]] == way[-1:]
    assert project.run("destroy", "b", "--yes").code == 22
    project.ok(*accept)
    assert project.run("status", "b").err == ""
    project.ok("destroy", "b", "--yes")


def test_a_restored_store_is_brought_up_to_date_before_it_is_believed(project: Project) -> None:
    """
    Yesterday's records of three steps: one has changed since, one is gone, one was made. Until each
    is reconciled or adopted nothing else mutates, and the store is not accepted; a reconcile that
    does more than look is refused as well. Nothing is lost or doubled by it.
    """
    database = project.own / "operations.db"
    steps = "  one: {module: ../m}\n  two: {module: ../m}\n  new: {module: ../m}\n"
    project.write("blueprints/b.yaml", f"version: 1\nname: b\nsteps:\n{steps}")
    project.ok("apply", "b", "--yes", "--step", "one", "--step", "two")
    old = database.read_bytes()
    project.ok("apply", "b", "--yes", "--step", "one", "--replace", "terraform_data.a")
    project.ok("apply", "b", "--yes", "--step", "new")
    project.ok("destroy", "b", "--yes", "--step", "two")
    (state,) = (project.own / "state").rglob("one.tfstate")
    alive = state.read_bytes()
    database.write_bytes(old)

    def accept() -> Ended:
        return project.run("store", "accept-restored", "disk lost")

    refused = [accept()]
    codes = {
        words: project.run(*words, "b").code
        for words in (("apply", "--yes"), ("destroy", "--yes"), ("verify",))
    }
    forced = project.run("reconcile", "b", "--step", "two", "--forget", "terraform_data.a", "--yes")
    looked = project.run("reconcile", "b", "--step", "one")
    refused.append(accept())
    project.run("reconcile", "b")
    refused.append(accept())
    project.ok("adopt", "b", "--step", "new")
    accepted = accept()

    named = [
        {
            step
            for step in ("one", "two", "new")
            if f"b/default/{step}" in end.err.split("error:")[1]
        }
        for end in refused
    ]
    assert [end.code for end in refused] == [4, 4, 4], refused
    assert named == [{"one", "two", "new"}, {"two", "new"}, {"new"}]
    assert set(codes.values()) == {22}, codes
    assert forced.code == 22 and looked.code in (0, 11)
    assert accepted.code == 0, accepted.said
    assert state.read_bytes() == alive
    assert {doubt["address"] for doubt in project.record("two")["resources"]["in_doubt"]}
    assert project.record("new")["resources"]["inventory"]
    assert project.run("apply", "b", "--yes", "--step", "new").code == 0


@pytest.mark.parametrize("runs", ["are here", "are on another machine"])
def test_a_store_that_was_imported_again_is_brought_up_to_date(project: Project, runs: str) -> None:
    """
    An export of an earlier version holds the records only. What a target was applied with is read
    from its run where that is on this machine, and is not needed to hold the record against the
    provider state.
    """
    project.prepare("apply", "b", "--yes")
    lines = [json.loads(line) for line in project.ok("store", "export").out.splitlines()]
    assert all(line.pop("blobs") for line in lines)
    project.write("backup.jsonl", "\n".join(map(json.dumps, lines)))
    project.ok("apply", "b", "--yes", "--replace", "terraform_data.a")
    for file in project.own.glob("operations.db*"):
        file.unlink()
    if runs == "are on another machine":
        shutil.rmtree(project.own / "runs")
    project.ok("store", "import", "backup.jsonl")

    reconciled = project.run("reconcile", "b")
    project.ok("store", "accept-restored", "disk lost")

    assert reconciled.code == 11, reconciled.said
    assert ("no changes" in reconciled.out) == (runs == "are here")
    assert ("inputs not available" in reconciled.said) == (runs != "are here")
    assert [doubt["address"] for doubt in project.record("one")["resources"]["in_doubt"]]


def test_the_runs_beside_a_restored_store_speak_against_it(project: Project) -> None:
    """
    Yesterday's records, and nothing remembers what was seen: the runs of this machine do. So where
    the only run was killed in its first create, and no record is left.
    """
    project.prepare("apply", "b", "--yes")
    project.prepare("destroy", "b", "--yes")
    old = (project.own / "operations.db").read_bytes()
    project.prepare("apply", "b", "--yes")
    (project.own / "operations.db").write_bytes(old)
    shutil.rmtree(project.own / "seen")

    expected = project.run("status", "b", "--expect", "destroyed")
    ended = project.run("destroy", "b", "--yes")

    assert (expected.code, ended.code) == (22, 22), expected.said
    assert all("has gone back" in words(end) for end in (expected, ended))


def test_what_is_recorded_as_gone_is_held_against_its_state(project: Project) -> None:
    """
    A machine that remembers nothing, and records of before the last apply: destroy and reconcile
    look at the state of what is called gone, and refuse as apply does; nothing is touched.
    """
    project.prepare("apply", "b", "--yes")
    project.prepare("destroy", "b", "--yes")
    old = (project.own / "operations.db").read_bytes()
    again = project.ok("destroy", "b", "--yes")
    looked_at = project.run("status", "b", "--expect", "destroyed", "--verify")
    project.ok("apply", "b", "--yes")
    (state,) = (project.own / "state").rglob("one.tfstate")
    alive = state.read_bytes()
    for file in project.own.glob("operations.db*"):
        file.unlink()
    (project.own / "operations.db").write_bytes(old)
    shutil.rmtree(project.own / "seen")
    shutil.rmtree(project.own / "runs")

    believed = project.run("status", "b", "--expect", "destroyed")
    verified = project.run("status", "b", "--expect", "destroyed", "--verify")
    ended = {verb: project.run(verb, "b", "--yes") for verb in ("destroy", "reconcile", "apply")}

    assert "already destroyed" in again.out
    assert looked_at.code == 0, looked_at.said
    assert (believed.code, verified.code) == (0, 4), verified.said
    assert "terraform_data.a" in verified.said
    for verb, end in ended.items():
        assert end.code == 4, (verb, end.said)
        assert "terraform_data.a" in end.said and "put back" in end.said
    assert state.read_bytes() == alive
