"""
What leaves provider state, or is not found any more, without a delete of ours: in doubt, not gone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import provide
from tests.engine.readback_project import REQUIRED
from tests.project import Project

pytestmark = pytest.mark.engine

MODULE = """
    resource "terraform_data" "kept" {}
    resource "terraform_data" "lost" {}
"""
BLUEPRINT = """
    version: 1
    name: pair
    steps:
      objects: {module: ../modules/objects}
"""
LOST, KEPT = "terraform_data.lost", "terraform_data.kept"
GONE = ("--accept-vanished", "the console shows none")


@pytest.fixture
def project(project: Project) -> Project:
    """
    Two objects, applied.
    """
    project.write("modules/objects/main.tf", MODULE)
    project.write("blueprints/pair.yaml", BLUEPRINT)
    project.prepare("apply", "pair", "--yes")
    return project


def remove_from_state(project: Project, *addresses: str) -> None:
    """
    `state rm`, as somebody at a keyboard does it.
    """
    directory = project.steps("pair")["objects"]["directory"]
    subprocess.run(
        [project.environ["ORCHESTRATOR_ENGINE"], "state", "rm", *addresses],
        cwd=directory,
        env=project.environ,
        check=True,
        capture_output=True,
    )


def ids(record: dict[str, Any]) -> dict[str, str]:
    return {item["address"]: item["id"] for item in record["resources"]["inventory"]}


def doubts(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(d["address"], d["action"], d["id"]) for d in record["resources"]["in_doubt"]]


def lose_state(project: Project, how: str) -> None:
    """
    The provider state is gone, or holds nothing, without any object having been deleted.
    """
    if how == "emptied":
        remove_from_state(project, LOST, KEPT)
        return
    (file,) = (project.root / ".orchestrator/state").rglob("*.tfstate")
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(b"")


@pytest.mark.parametrize("how", ["missing", "zero bytes", "emptied"])
@pytest.mark.parametrize("flags", [(), GONE, (*GONE, "--verify", "provider")])
def test_a_destroy_over_a_lost_state_leaves_every_recorded_object_in_doubt(
    project: Project, how: str, flags: tuple[str, ...]
) -> None:
    """
    That the state holds nothing says nothing of objects: `error`, exit 11, each of them in doubt
    with its id, and no flag makes it `absent`. Another destroy has nothing to do: none is offered.
    """
    known = ids(project.record("objects"))
    lose_state(project, how)

    ended = project.run("destroy", "pair", "--yes", *flags)

    record = project.record("objects")
    assert ended.code == 11, ended.said
    assert record["status"] == "error"
    assert {(a, i) for a, _, i in doubts(record)} == set(known.items())
    assert ids(record) == known
    assert "--rebuild-state" in ended.out and "orchestrator destroy" not in ended.out


@pytest.mark.parametrize("how", ["missing", "zero bytes", "emptied"])
@pytest.mark.parametrize("flags", [(), GONE])
def test_nothing_is_applied_over_a_lost_state(
    project: Project, how: str, flags: tuple[str, ...]
) -> None:
    """
    Everything would be made a second time: exit 11, every id is named, the record is as it was.
    """
    known, before = ids(project.record("objects")), project.entries("objects")
    lose_state(project, how)

    ended = project.run("apply", "pair", "--yes", *flags)

    assert ended.code == 11, ended.said
    assert all(object_id in ended.said for object_id in known.values()), ended.said
    assert project.entries("objects") == before


@pytest.mark.parametrize("how", ["missing", "emptied"])
def test_reconcile_of_a_lost_state_keeps_every_object(project: Project, how: str) -> None:
    """
    Reconcile makes doubts of all of it, with their ids, and stays at that: a destroy after it, with
    a reason for what has vanished, does not call them gone either.
    """
    known = ids(project.record("objects"))
    lose_state(project, how)

    ended = project.run("reconcile", "pair")
    reconciled = project.record("objects")
    destroyed = project.run("destroy", "pair", "--yes", *GONE)

    assert (ended.code, destroyed.code) == (11, 11), ended.said + destroyed.said
    for record in (reconciled, project.record("objects")):
        assert record["status"] == "error"
        assert {(a, i) for a, _, i in doubts(record)} == set(known.items())
        assert ids(record) == known


def test_a_destroy_does_not_call_gone_what_left_the_state(project: Project) -> None:
    """
    One of two was taken out of the state: the other is destroyed, this one is in doubt with its id,
    and the target `error`, not `destroyed`, until somebody says what became of it.
    """
    known = ids(project.record("objects"))
    remove_from_state(project, LOST)

    ended = project.run("destroy", "pair", "--yes")

    record = project.record("objects")
    assert ended.code == 11, ended.said
    assert (record["status"], record["error"]["code"]) == ("error", "vanished")
    assert record["resources"]["deleted"] == [KEPT]
    assert doubts(record) == [(LOST, "forget", known[LOST])]


def test_an_apply_does_not_make_again_what_left_the_state(project: Project) -> None:
    """
    One of two was taken out of the state: an apply would make it twice, so it is refused with exit
    11 and nothing is recorded; a reason for what has vanished is about other things.
    """
    known = ids(project.record("objects"))
    remove_from_state(project, LOST)
    before = project.entries("objects")

    refused = project.run("apply", "pair", "--yes")
    entries = project.entries("objects")
    accepted = project.run("apply", "pair", "--yes", *GONE)

    assert (refused.code, entries) == (11, before), refused.said
    assert known[LOST] in refused.said
    assert accepted.code == 11, accepted.said


def test_reconcile_keeps_what_left_the_state_until_it_is_forgotten(project: Project) -> None:
    """
    Reconcile makes a doubt with the id of what it no longer finds in the state, exit 11; forgotten
    with a reason it is settled, and a destroy of the rest ends `destroyed`.
    """
    known = ids(project.record("objects"))
    remove_from_state(project, LOST)

    doubtful = project.run("reconcile", "pair")
    reconciled = project.record("objects")
    forgotten = project.run(
        "reconcile", "pair", "--yes", "--forget", LOST, "--reason", "deleted by hand"
    )
    destroyed = project.run("destroy", "pair", "--yes")

    record = project.record("objects")
    assert (doubtful.code, forgotten.code, destroyed.code) == (11, 0, 0), destroyed.said
    assert doubts(reconciled) == [(LOST, "forget", known[LOST])]
    assert reconciled["status"] == "error"
    assert record["status"] == "destroyed"
    assert [(s["how"], s["reason"]) for s in record["settled"]] == [
        ("forgotten", "deleted by hand")
    ]


def test_a_check_that_holds_again_does_not_make_ok_what_left_the_state(project: Project) -> None:
    """
    Only the check had failed; then an object was taken out of the provider state. The check holds
    again, and an apply would still make that object twice: it stays `error` until it is settled.
    """
    checked = "objects, verify: [{command: {argv: [test, -e, up]}}]}"
    project.write("blueprints/pair.yaml", BLUEPRINT.replace("objects}", checked))
    assert project.run("apply", "pair", "--yes").code == 12
    remove_from_state(project, LOST)
    project.write("up", "")

    assert project.run("verify", "pair").code == 11
    assert project.record("objects")["status"] == "error"


def test_what_is_in_doubt_is_not_left_out_as_done(project: Project) -> None:
    """
    Neither `apply --unfinished` nor `status --expect ok` takes what reconcile found missing for
    done: it reads `error`.
    """
    remove_from_state(project, LOST)
    project.run("reconcile", "pair")

    unfinished = project.run("apply", "pair", "--yes", "--unfinished")
    expected = project.run("status", "pair", "--expect", "ok")

    assert (unfinished.code, expected.code) == (11, 4), unfinished.said
    assert project.record("objects")["status"] == "error"


ALIASES = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "names" { type = set(string) }
    provider "fakecloud" { region = "here" }
    provider "fakecloud" {
      alias  = "there"
      region = "there"
    }
    resource "fakecloud_server" "here" { name = "home" }
    resource "fakecloud_server" "there" {
      for_each = var.names
      provider = fakecloud.there
      name     = each.key
    }
"""
TWO_STEPS = """
    version: 1
    name: aliases
    steps:
      blind: {module: ../modules/aliases, inputs: {names: [a]}}
      seeing: {module: ../modules/aliases, inputs: {names: [b, c]}}
"""


def test_each_provider_configuration_answers_for_its_own_objects(
    tmp_path: Path, engine: str
) -> None:
    """
    An object that vanished before the destroy is gone only where its own provider configuration
    saw others of the target: another region's do not vouch for it, and nothing of that target is
    destroyed or forgotten.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    project = Project(tmp_path / "project", engine=engine)
    provide(project, cloud, tmp_path)
    project.write("modules/aliases/main.tf", ALIASES)
    project.write("blueprints/aliases.yaml", TWO_STEPS)
    project.ok("apply", "aliases", "--yes")
    for name in ("a", "b"):
        cloud.arm("read", name, "read_lies", remaining=-1)
    before = project.entries("blind")

    ended = project.run("destroy", "aliases", "--yes", "--json", "--on-failure", "continue")

    faults = {row["step"]: row["error"] for row in ended.events[-1]["steps"]}
    assert (ended.code, faults["blind"]["code"]) == (4, "vanished"), ended.said
    assert project.entries("blind") == before
    assert project.record("seeing")["status"] == "destroyed"


def test_what_is_gone_from_cloud_and_module_leaves_the_inventory(
    project: Project, cloud: Cloud
) -> None:
    """
    Deleted by hand, and its block removed: the plan changes nothing, and is applied all the same.
    The object is told once, as vanished with its id, and is never again called alive.
    """
    block = 'resource "fakecloud_server" "{0}" {{ name = "{0}" }}\n'
    both = REQUIRED + block.format("one") + block.format("two")
    project.write("modules/objects/main.tf", both)
    project.ok("apply", "pair", "--yes", "--accept-vanished", "other objects now")
    (two,) = (server for server in cloud.servers() if server.name == "two")
    cloud.delete_out_of_band("two")
    project.write("modules/objects/main.tf", REQUIRED + block.format("one"))

    ended = project.ok("apply", "pair", "--yes", "--json")
    again = project.ok("apply", "pair", "--yes", "--json")

    found = project.record("objects")["resources"]
    assert [item["address"] for item in found["inventory"]] == ["fakecloud_server.one"]
    assert [(item["id"], item["how"]) for item in ended.row["released"]] == [(two.id, "vanished")]
    assert again.row["released"] == []
    assert project.history("objects")[-1]["previous_status"] == "ok"


def test_what_was_forgotten_is_told_by_the_destroy_of_the_rest(project: Project) -> None:
    """
    Nothing is left to manage: the step is `absent`, and what lives on is named with its id.
    """
    known = ids(project.record("objects"))
    forget = "removed {{\n from = {}\n lifecycle {{ destroy = false }}\n}}\n"
    project.write("modules/objects/main.tf", "".join(map(forget.format, known)))
    project.prepare("apply", "pair", "--yes")

    ended = project.ok("destroy", "pair", "--yes", "--json")

    told = ended.row["released"]
    assert {item["address"]: item["id"] for item in told} == known
    assert {item["how"] for item in told} == {"forgotten"}
