"""
`reconcile --rebuild-state`: recorded objects that the provider state lost come back into it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import kill
from tests.project import Project, eventually

pytestmark = pytest.mark.engine

MODULE = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "size" { default = "small" }
    resource "terraform_data" "label" { input = var.size }
    resource "fakecloud_server" "one" {
      name     = "one"
      size     = terraform_data.label.output
      password = "hunter2-secret"
    }
    resource "fakecloud_server" "many" {
      for_each = toset(["a.b", "c"])
      name     = each.key
      tags     = { first = fakecloud_server.one.id }
    }
    output "address" { value = fakecloud_server.one.address }
"""
BLUEPRINT = """
    version: 1
    name: shop
    steps:
      servers: {module: ../modules/servers}
      after:
        module: ../modules/server
        inputs: {name: after, tags: {of: "${steps.servers.outputs.address}"}}
"""
STEP, ONE = "servers", "fakecloud_server.one"
REBUILD = ("reconcile", "shop", "--step", STEP, "--rebuild-state")


@pytest.fixture
def project(project: Project, cloud: Cloud) -> Project:
    """
    Four objects in one step, and a step that needs an output of it, applied.
    """
    project.write("modules/servers/main.tf", MODULE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    project.prepare("apply", "shop", "--yes")
    return project


def state_file(project: Project) -> Path:
    (found,) = (project.root / ".orchestrator/state").rglob(f"{STEP}.tfstate")
    return found


def lose_state(project: Project, how: str) -> None:
    """
    The provider state is gone, or holds less than it did, and no object was deleted.
    """
    file = state_file(project)
    state = json.loads(file.read_text())
    match how:
        case "missing":
            file.unlink()
        case "zero bytes":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(file.read_bytes()[:200])
        case "no state":
            file.write_text("{}")
        case "emptied":
            file.write_text(json.dumps(state | {"resources": [], "serial": state["serial"] + 1}))
        case "emptied, another lineage":
            file.write_text(json.dumps(state | {"resources": [], "serial": 1, "lineage": "other"}))
        case "older":
            kept = [item for item in state["resources"] if item["name"] != "many"]
            older = {"resources": kept, "serial": state["serial"] - 1}
            file.write_text(json.dumps(state | older))
        case "in part":
            kept = [item for item in state["resources"] if item["name"] != "many"]
            file.write_text(json.dumps(state | {"resources": kept, "serial": state["serial"] + 1}))
        case _:
            raise AssertionError(how)


def ids(record: dict[str, Any]) -> dict[str, str]:
    return {item["address"]: item["id"] for item in record["resources"]["inventory"]}


def alive(cloud: Cloud) -> list[str]:
    return sorted(server.id for server in cloud.servers())


@pytest.mark.parametrize(
    "how",
    ["missing", "zero bytes", "cut", "no state", "emptied", "emptied, another lineage", "older"],
)
def test_a_lost_state_is_rebuilt_from_the_record(project: Project, cloud: Cloud, how: str) -> None:
    """
    Every recorded object comes back at its address with its id; nothing is made or deleted. The
    step is `ok` with an empty plan, its dependents get its outputs, and a destroy takes all down.
    """
    known, there = ids(project.record(STEP)), alive(cloud)
    lose_state(project, how)

    rebuilt = project.run(*REBUILD, "--yes")

    record = project.record(STEP)
    assert rebuilt.code == 0, rebuilt.said
    assert (record["status"], ids(record)) == ("ok", known)
    assert (record["adopted"], record["resources"]["in_doubt"]) == ([], [])
    assert alive(cloud) == there
    assert "no changes" in project.ok("plan", "shop").out
    project.ok("destroy", "shop", "--yes")
    assert alive(cloud) == []


def test_a_rebuild_that_outlives_its_tool_is_settled(project: Project, cloud: Cloud) -> None:
    """
    Law: an outlived run is settled from evidence. The state that it began has a lineage of its own.
    """
    known, there = ids(project.record(STEP)), alive(cloud)
    lose_state(project, "missing")
    tool = project.start(*REBUILD, "--yes")
    calls = project.own / "runs"
    last = f"steps/{STEP}/2/apply"
    eventually(lambda: any(calls.glob(f"*/{last}.identity.json")), "the imports begin", tool)
    kill(tool)
    eventually(lambda: any(calls.glob(f"*/{last}.answer.json")), "the engine ends")

    project.ok("reconcile", "shop", "--step", STEP)

    record = project.record(STEP)
    assert (record["status"], ids(record), alive(cloud)) == ("ok", known, there)
    assert "no changes" in project.ok("plan", "shop").out


def test_status_tells_of_a_doubt_that_an_apply_met_before_it_could_record_it(
    project: Project,
) -> None:
    """
    Such an apply leaves the record as it was, `ok`: status says what it met and where to go on, and
    what waits for `ok` does not hold.
    """
    lose_state(project, "missing")
    assert project.run("apply", "shop", "--step", STEP, "--yes").code == 11

    status = project.run("status", "shop")

    assert "the provider state is missing" in " ".join(status.out.split())
    assert "orchestrator recover shop" in status.said
    assert project.run("status", "shop", "--expect", "ok").code == 4


@pytest.mark.parametrize("how", ["missing", "zero bytes", "emptied", "in part"])
def test_the_plan_of_a_destroy_does_not_call_lost_objects_gone(project: Project, how: str) -> None:
    """
    What left the provider state is in doubt, not deleted: the plan of a destroy says so. It fails
    where nothing is left to delete.
    """
    lose_state(project, how)

    planned = project.run("plan", "shop", "--destroy", "--step", STEP, "--step", "after", "--json")

    row = planned.rows[STEP]
    if how == "in part":
        assert (planned.code, row["status"]) == (0, "planned")
        assert "in doubt" in row["reason"] and 'fakecloud_server.many["c"]' in row["reason"]
    else:
        assert (planned.code, row["status"]) == (11, "failed")
        assert "fakecloud_server.one" in row["error"]["summary"]


def test_the_imports_are_shown_and_recorded_before_they_are_made(
    project: Project, cloud: Cloud
) -> None:
    """
    Law: intent first. Without approval nothing is written; with it the marker names each import,
    and one plan of all of them is applied.
    """
    known = ids(project.record(STEP))
    lose_state(project, "missing")
    before = project.entries(STEP)

    declined = project.run(*REBUILD)
    after_declined = project.entries(STEP)
    exists = state_file_exists(project)
    rebuilt = project.run(*REBUILD, "--yes", "--json")

    assert (declined.code, after_declined, exists) == (5, before, False), declined.said
    assert rebuilt.code == 0, rebuilt.said
    markers = [e for e in project.history(STEP) if e["active_command"] == "import"]
    (marker,) = markers
    planned = {item["address"]: item["importing"] for item in marker["resources"]["planned"]}
    assert planned == known


def state_file_exists(project: Project) -> bool:
    return bool([*(project.root / ".orchestrator/state").rglob(f"{STEP}.tfstate")])


def test_recover_offers_it_and_what_it_offers_works(project: Project, cloud: Cloud) -> None:
    """
    Whatever command met the lost state, `recover` recommends to rebuild it, as printed with --at.
    """
    lose_state(project, "missing")
    assert project.run("apply", "shop", "--yes").code == 11

    advised = project.ok("recover", "shop", "--json").document["steps"][0]
    (offer,) = [item for item in advised["actions"] if item["action"] == advised["recommended"]]
    assert project.run("reconcile", "shop").code == 11
    later = project.ok("recover", "shop", "--json").document["steps"][0]
    (again,) = [item for item in later["actions"] if item["action"] == later["recommended"]]

    assert "--rebuild-state" in offer["command"]
    words = again["command"].split()[1:]
    assert "--at" in words and "--rebuild-state" in words
    project.ok(*words, "--yes")
    assert project.record(STEP)["status"] == "ok"


DISKS = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    resource "terraform_data" "made" { triggers_replace = ["1"] }
    resource "fakecloud_server" "this" { name = "host" }
    resource "fakecloud_disk" "this" {
      server_id = fakecloud_server.this.id
      name      = "data"
    }
    resource "fakecloud_server" "late" {
      name = "late"
      tags = { after = terraform_data.made.id }
    }
"""


def test_what_cannot_be_imported_is_listed_and_stays_in_doubt(
    project: Project, cloud: Cloud
) -> None:
    """
    An id that is no import id, and an object that an import would replace: named with the reason,
    in doubt with their ids. All others come back, also what needs one of those. What was tried is
    not recommended for ever.
    """
    project.write("modules/servers/main.tf", DISKS)
    project.write("blueprints/shop.yaml", BLUEPRINT.partition("      after:")[0])
    project.prepare("apply", "shop", "--yes")
    known = ids(project.record(STEP))
    lose_state(project, "missing")

    rebuilt = project.run(*REBUILD, "--yes")

    record = project.record(STEP)
    doubts = {item["address"]: item["id"] for item in record["resources"]["in_doubt"]}
    stuck = {"fakecloud_disk.this", "terraform_data.made"}
    assert rebuilt.code == 11, rebuilt.said
    assert doubts == {address: known[address] for address in stuck}
    assert ids(record) == known
    for address in stuck:
        assert f"cannot be imported: {address} ({known[address]})" in rebuilt.said
    advised = project.ok("recover", "shop", "--json").document["steps"][0]
    assert advised["recommended"] == "manual"
    state = json.loads(state_file(project).read_text())
    held = {f"{item['type']}.{item['name']}" for item in state["resources"]}
    assert held == set(known) - stuck


def test_what_does_not_exist_any_more_is_listed_by_its_key(project: Project, cloud: Cloud) -> None:
    """
    The engine quotes the address of an instance: each is told by it, the others come back, and the
    command that could not bring them back is not offered again.
    """
    known = ids(project.record(STEP))
    lose_state(project, "missing")
    gone = {address: id_ for address, id_ in known.items() if "many" in address}
    for object_id in gone.values():
        cloud.delete_out_of_band(object_id)

    rebuilt = project.run(*REBUILD, "--yes")

    doubts = project.record(STEP)["resources"]["in_doubt"]
    assert rebuilt.code == 11, rebuilt.said
    assert {item["address"]: item["id"] for item in doubts} == gone
    assert "--rebuild-state" not in rebuilt.out.partition("Next")[2], rebuilt.out


def test_what_the_state_holds_is_never_touched(project: Project, cloud: Cloud) -> None:
    """
    Another object at a recorded address stays there: the recorded one is listed and in doubt.
    """
    stranger = cloud.create_out_of_band("fakecloud_server", "one").id
    known = ids(project.record(STEP))
    file = state_file(project)
    file.write_text(file.read_text().replace(known[ONE], stranger))

    rebuilt = project.run(*REBUILD, "--yes")

    doubts = project.record(STEP)["resources"]["in_doubt"]
    assert rebuilt.code == 11, rebuilt.said
    assert [(d["address"], d["id"]) for d in doubts] == [(ONE, known[ONE])]
    assert f"its address holds {stranger}" in rebuilt.said
    assert stranger in file.read_text()


def test_what_took_the_place_of_a_recorded_object_is_not_destroyed_unasked(
    project: Project, cloud: Cloud
) -> None:
    """
    Nothing proves that it was made here: a destroy is refused and names it, also once it is known
    to have taken the address. Taken out of the provider state as the refusal says, it is let go,
    the recorded object comes back, and a destroy takes that one down.
    """
    stranger = cloud.create_out_of_band("fakecloud_server", "one").id
    ours = ids(project.record(STEP))[ONE]
    file = state_file(project)
    file.write_text(file.read_text().replace(ours, stranger))
    reconciled = project.run("reconcile", "shop", "--step", STEP, "--json")
    recovered = project.ok("recover", "shop", "--step", STEP, "--json").row

    planned = project.run("plan", "shop", "--destroy")
    refused = project.run("destroy", "shop", "--yes")
    out = f"exec shop/default/{STEP} -- state rm {ONE}"
    project.ok("exec", f"shop/default/{STEP}", "--yes", "--", "state", "rm", ONE)
    rebuilt = project.run(*REBUILD, "--yes")
    destroyed = project.run("destroy", "shop", "--yes")

    offered = [item["command"] for item in reconciled.events[-1]["next"]]
    advised = [item for item in recovered["actions"] if item["available"]]
    assert f"orchestrator {out}" in offered
    assert not any(f"{ONE}=" in command for command in offered), "its address is taken"
    assert any(out in item["reason"]["message"] for item in advised), advised
    assert not any("import shop" in item["reason"]["message"] for item in advised), advised
    assert (planned.code, refused.code) == (4, 4), planned.said + refused.said
    assert f"{ONE} ({stranger})" in refused.said and out in " ".join(refused.said.split())
    assert rebuilt.code == 0, rebuilt.said
    assert destroyed.code == 0, destroyed.said
    assert [server.id for server in cloud.servers()] == [stranger]
    assert stranger in project.ok("status", "shop").said


@pytest.mark.parametrize("verb", ["apply", "destroy"])
def test_what_took_the_place_of_a_recorded_object_is_to_make_way_first(
    project: Project, cloud: Cloud, verb: str
) -> None:
    """
    A refusal over it offers what works: no import can bring the recorded object back before, so
    that `--rebuild-state` is offered once the address is free.
    """
    stranger = cloud.create_out_of_band("fakecloud_server", "one").id
    file = state_file(project)
    file.write_text(file.read_text().replace(ids(project.record(STEP))[ONE], stranger))

    refused = project.run(verb, "shop", "--yes", "--json")
    recovered = project.ok("recover", "shop", "--step", STEP, "--json").row
    project.ok("exec", f"shop/default/{STEP}", "--yes", "--", "state", "rm", ONE)
    emptied = project.run(verb, "shop", "--yes", "--json")
    rebuilt = project.run(*REBUILD, "--yes")

    out = f"orchestrator exec shop/default/{STEP} -- state rm {ONE}"
    first, then = (
        [item["command"] for item in ended.events[-1]["next"]] for ended in (refused, emptied)
    )
    advised = next(a for a in recovered["actions"] if a["action"] == recovered["recommended"])
    assert (refused.code, emptied.code) == (11, 11), refused.said + emptied.said
    assert first == ["orchestrator recover shop", out]
    assert advised["command"] == out
    assert "--rebuild-state" in advised["reason"]["message"]
    assert "--rebuild-state" in then[0]
    assert rebuilt.code == 0, rebuilt.said


def test_a_state_that_holds_everything_is_left_alone(project: Project, cloud: Cloud) -> None:
    """
    There is nothing to import: exit 0, and the state is as it was.
    """
    before = state_file(project).read_bytes()

    ended = project.run(*REBUILD, "--yes")

    assert ended.code == 0, ended.said
    assert "holds every recorded object" in ended.said
    assert state_file(project).read_bytes() == before
