"""
Law: a record that has gone back is noticed.
"""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine


@pytest.fixture
def project(project: Project) -> Project:
    project.write("m/main.tf", 'resource "terraform_data" "a" { input = 1 }\n')
    project.write("blueprints/b.yaml", "version: 1\nname: b\nsteps:\n  one: {module: ../m}\n")
    return project


def test_a_store_that_was_put_back_or_removed_is_not_believed(project: Project) -> None:
    """
    The records of before the last apply, and no records at all: what would double or forget objects
    ends with 22, what only reads says it, and an expectation is not met.
    """
    project.ok("apply", "b", "--yes")
    project.ok("destroy", "b", "--yes")
    database = project.own / "operations.db"
    old = database.read_bytes()
    project.ok("apply", "b", "--yes")

    database.write_bytes(old)
    refused = project.run("destroy", "b", "--yes", "--step", "one")
    asked = project.run("adopt", "b", "--json")
    imported = project.run("import", "b/default/one", "terraform_data.a", "x", "--yes", "--json")
    status = project.run("status", "b")
    expected = project.run("status", "b", "--expect", "destroyed")
    database.unlink()
    afresh = project.run("apply", "b", "--yes")

    assert (refused.code, expected.code, afresh.code) == (22, 22, 22)
    assert refused.said.count("has gone back") == 1 and "has gone back" in afresh.said
    assert status.code == 0
    assert "has gone back" in status.err
    assert "orchestrator destroy b" in refused.out
    assert [item["command"] for item in asked.events[-1]["next"]] == ["orchestrator adopt b"]
    assert imported.events[-1]["next"] == []  # its target is in no command that could be offered

    (offered,) = set(re.findall("`(orchestrator store [^`]*)`", " ".join(afresh.said.split())))
    assert offered == "orchestrator store accept-restored --blueprint b REASON"
    accepted = project.run(*shlex.split(offered.replace("REASON", "disk-lost"))[1:])

    assert accepted.code == 0
    assert "reconcile" in accepted.out
    assert project.run("status", "b").err == ""


def test_what_is_recorded_as_gone_is_held_against_its_state(project: Project) -> None:
    """
    A machine that remembers nothing, and records of before the last apply: destroy and reconcile
    look at the state of what is called gone, and refuse as apply does; nothing is touched.
    """
    project.ok("apply", "b", "--yes")
    project.ok("destroy", "b", "--yes")
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
