"""
`destroy --verify provider`: a delete request is not absence.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import attached, provide
from tests.engine.watched_engine import kill
from tests.project import Project, Running, eventually, finish

pytestmark = pytest.mark.engine

SERVERS = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "names" { type = set(string) }
    resource "fakecloud_server" "this" {
      for_each = var.names
      name     = each.key
    }
    output "ids" { value = { for name, server in fakecloud_server.this : name => server.id } }
"""
#: Once the first server is gone, every expression that refers to it is an error.
NESTED = """
    module "servers" {
      source = "../servers"
      names  = ["nested"]
    }
    resource "fakecloud_server" "after" {
      for_each = toset(["k"])
      name     = "after-${module.servers.ids["nested"]}"
    }
    data "fakecloud_servers" "all" { name = module.servers.ids["nested"] }
    resource "terraform_data" "local" { input = data.fakecloud_servers.all.ids }
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
"""
BLUEPRINT = """
    version: 1
    name: fleet
    verify_absence: provider
    absence_timeout: 2s
    environments:
      default: {}
      trusting: {verify_absence: state}
    steps:
      lies: {module: ../modules/servers, inputs: {names: [liar, honest]}}
      slow: {module: ../modules/servers, inputs: {names: [slow]}, absence_timeout: 60s}
      unread: {module: ../modules/servers, inputs: {names: [dumb, loud]}}
      nested: {module: ../modules/nested}
      again: {module: ../modules/servers, inputs: {names: [phoenix]}}
"""


class Fleet:
    """
    Steps that meet a fault each, in one project.
    """

    def __init__(self, root: Path, cloud: Cloud, engine: str) -> None:
        self.cloud = cloud
        self.project = Project(root, engine=engine)
        self.project.write("modules/servers/main.tf", SERVERS)
        self.project.write("modules/nested/main.tf", NESTED)
        self.project.write("blueprints/fleet.yaml", BLUEPRINT)

    def arm(self) -> None:
        """
        Faults of the destroy; the plan of all steps and that of its own read each server once.
        """
        self.cloud.arm("delete", "liar", "delete_lies")
        self.cloud.arm("delete", "phoenix", "delete_lies")
        self.cloud.arm("delete", "slow", "delete_slow:reads=2")
        self.cloud.arm("read", "dumb", "slow:0.01", remaining=2)
        self.cloud.arm("read", "dumb", "read_error", remaining=-1)

    def kept(self) -> list[Path]:
        """
        Files with provider state in the runs' directories.
        """
        return [*self.project.own.glob("runs/**/*.tfstate"), *self.project.own.rglob(".private-*")]


@pytest.fixture(scope="module")
def fleet(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """
    The fleet, applied and destroyed.
    """
    root = tmp_path_factory.mktemp("absence")
    cloud = Cloud(root / "cloud.db")
    found = Fleet(root / "project", cloud, engine)
    with attached(found.project, cloud, root):
        found.project.ok("apply", "fleet", "--yes")
        found.arm()
        ended = found.project.run("destroy", "fleet", "--yes", "--on-failure", "continue")
        assert ended.code == 11, ended.said
        yield found


def states(record: dict[str, Any]) -> dict[str, str]:
    """
    What was found of each object.
    """
    return {item["address"]: item["state"] for item in record["absence"]["checked"]}


def test_a_delete_that_lies_is_an_error_with_what_remains(fleet: Fleet) -> None:
    """
    Law: destroyed means confirmed.
    The engine ended well and provider state is empty, but the provider still has an object:
    `error`, `remaining`, with address and id, and the provider state that knows it is kept for its
    owner only.
    """
    record = fleet.project.history("lies")[-1]
    (liar,) = (server.id for server in fleet.cloud.servers() if server.name == "liar")

    assert (record["status"], record["failed_command"]) == ("error", "destroy")
    assert (record["error"]["code"], liar in record["last_error"]) == ("remaining", True)
    assert [(ref["address"], ref["id"]) for ref in record["resources"]["inventory"]] == [
        ('fakecloud_server.this["liar"]', liar)
    ]
    assert states(record) == {
        'fakecloud_server.this["honest"]': "gone",
        'fakecloud_server.this["liar"]': "remaining",
    }
    kept = [path for path in fleet.kept() if "/lies/" in str(path)]
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]


def test_a_delete_that_takes_its_time_is_waited_for(fleet: Fleet) -> None:
    """
    Eventual consistency: what the provider still shows is asked for again until it is gone.
    """
    record = fleet.project.record("slow")

    assert record["status"] == "destroyed"
    assert (record["absence"]["verdict"], record["absence"]["method"]) == ("confirmed", "provider")
    assert len(fleet.cloud.calls("read", "slow")) > 3


def test_what_cannot_be_asked_is_not_gone(fleet: Fleet) -> None:
    """
    An error of the readback is no answer: `unconfirmed`, with the provider's words; what was asked
    beside it is answered.
    """
    record = fleet.project.record("unread")

    assert (record["status"], record["error"]["code"]) == ("error", "unconfirmed")
    assert states(record) == {
        'fakecloud_server.this["dumb"]': "unknown",
        'fakecloud_server.this["loud"]': "gone",
    }
    (doubt,) = record["resources"]["in_doubt"]
    assert "InternalError" in doubt["why"]


def test_objects_are_asked_for_whatever_becomes_of_those_they_refer_to(fleet: Fleet) -> None:
    """
    Child modules, `for_each`, data sources and expressions over lost objects: each object has an
    answer of its own. What exists in provider state only is not asked for.
    """
    record = fleet.project.record("nested")

    assert record["status"] == "destroyed"
    assert set(states(record).values()) == {"gone"} and len(states(record)) == 3


def test_nothing_secret_stays_where_absence_is_confirmed(fleet: Fleet) -> None:
    """
    Law: secrets travel with values.
    The provider state from before the destroy is removed once the provider has confirmed.
    """
    assert {path.parts[-3] for path in fleet.kept()} == {"again", "lies", "unread"}


def test_what_remains_is_taken_back_and_destroyed_again(fleet: Fleet) -> None:
    """
    The provider has told its id: `recover` recommends to adopt it, not to ask for ever; then a
    destroy takes it down.
    """
    project = fleet.project
    (phoenix,) = (server.id for server in fleet.cloud.servers() if server.name == "phoenix")
    (step,) = project.ok("recover", "fleet", "--step", "again", "--json").document["steps"]
    (offer,) = [i for i in step["actions"] if i["action"] == step["recommended"]]

    project.ok(*shlex.split(offer["command"])[1:], "--yes")
    adopted = project.record("again")
    project.ok("destroy", "fleet", "--step", "again", "--yes")

    assert f'fakecloud_server.this["phoenix"]={phoenix}' in shlex.split(offer["command"])
    assert (adopted["resources"]["in_doubt"], adopted["adopted"]) == ([], [])
    assert project.record("again")["status"] == "destroyed"
    assert "phoenix" not in {server.name for server in fleet.cloud.servers()}


def test_what_remains_is_neither_forgotten_nor_made_again(fleet: Fleet) -> None:
    """
    Until the provider says that it is gone an apply is refused, and reconcile asks the provider
    again; then the next destroy confirms it, by the provider, with all that was asked for.
    """
    project = fleet.project
    only = ("--step", "lies")
    before = project.entries("lies")
    applied = project.run("apply", "fleet", *only, "--yes")
    refused = project.entries("lies")
    reconciled = project.run("reconcile", "fleet", *only)
    doubtful = project.record("lies")
    fleet.cloud.delete_out_of_band("liar")
    destroyed = project.run("destroy", "fleet", *only, "--yes")

    record = project.record("lies")
    assert (applied.code, refused) == (11, before), applied.said
    assert (reconciled.code, doubtful["error"]["code"]) == (11, "remaining"), reconciled.said
    assert (destroyed.code, record["status"]) == (0, "destroyed"), destroyed.said
    assert [item["how"] for item in record["settled"]] == ["gone"]
    assert (record["absence"]["method"], set(states(record).values())) == ("provider", {"gone"})
    assert len(states(record)) == 2
    assert not [path for path in fleet.kept() if "/lies/" in str(path)]


def test_reconcile_confirms_once_the_provider_answers(fleet: Fleet) -> None:
    """
    What could not be told is asked for by reconcile again: `destroyed`, not `absent`.
    """
    fleet.cloud.disarm()

    ended = fleet.project.run("reconcile", "fleet", "--step", "unread")

    record = fleet.project.record("unread")
    assert (ended.code, record["status"]) == (0, "destroyed"), ended.said
    assert fleet.kept() == []


def test_by_state_a_lie_is_believed(fleet: Fleet) -> None:
    """
    With `--verify state`, or an environment that says so, nobody is asked.
    """
    project = fleet.project
    only = ("fleet", "-e", "trusting", "--step", "lies", "--yes")
    project.ok("apply", *only)
    asked = len(fleet.cloud.calls("read"))
    fleet.cloud.arm("delete", "liar", "delete_lies")

    project.ok("destroy", *only)

    (row,) = project.last_run()["steps"]
    assert (row["status"], row["absence"]["method"]) == ("destroyed", "state")
    assert len(fleet.cloud.calls("read")) == asked + 2
    fleet.cloud.delete_out_of_band("liar")


class Lied:
    """
    A step whose destroy waits for an object that stays, and its cloud.
    """

    def __init__(self, project: Project, cloud: Cloud) -> None:
        self.cloud = cloud
        self.project = project
        self.project.write("modules/servers/main.tf", SERVERS)
        steps = "{lies: {module: ../modules/servers, inputs: {names: [liar, honest]}}}"
        self.blueprint = self.project.write(
            "blueprints/wait.yaml",
            f"version: 1\nname: wait\nabsence_timeout: 1h\nsteps: {steps}\n",
        )

    def waiting(self) -> Running:
        """
        A destroy that has asked the provider and waits to ask again.
        """
        asked = len(self.cloud.calls("read", "liar"))
        tool = self.project.start("destroy", "wait", "--verify", "provider", "--yes")

        # Once by the plan, once by the first question: at the next one that has been answered.
        def again() -> bool:
            return len(self.cloud.calls("read", "liar")) > asked + 2

        eventually(again, "the provider is asked", tool)
        return tool


@pytest.fixture
def lied(project: Project, tmp_path: Path) -> Iterator[Lied]:
    cloud = Cloud(tmp_path / "cloud.db")
    found = Lied(project, cloud)
    with attached(project, cloud, tmp_path):
        found.project.prepare("apply", "wait", "--yes")
        cloud.arm("delete", "liar", "delete_lies")
        yield found


def test_a_signal_ends_the_waiting(lied: Lied) -> None:
    """
    Law: signals.
    While absence is confirmed: exit 130, `stopped`, and what is known is kept; the next
    destroy goes on from there, by the same method.
    """
    tool = lied.waiting()
    tool.send_signal(signal.SIGINT)
    ended = finish(tool)

    stopped = lied.project.record("lies")
    lied.cloud.delete_out_of_band("liar")
    again = lied.project.run("destroy", "wait", "--yes")

    assert (ended.code, stopped["error"]["code"]) == (130, "stopped"), ended.said
    assert states(stopped) == {
        'fakecloud_server.this["honest"]': "gone",
        'fakecloud_server.this["liar"]': "terminating",
    }
    record = lied.project.record("lies")
    assert (again.code, record["status"]) == (0, "destroyed"), again.said
    assert record["absence"]["method"] == "provider"


def test_killed_while_it_waits_the_provider_is_asked_again(lied: Lied) -> None:
    """
    Law: an outlived run is settled from evidence.
    The record says that the provider was to confirm; settling does not conclude `destroyed`
    from an empty provider state.
    """
    kill(lied.waiting())
    lied.blueprint.write_text(lied.blueprint.read_text().replace("1h", "1s"))

    settled = lied.project.run("reconcile", "wait")
    found = lied.project.record("lies")
    lied.cloud.delete_out_of_band("liar")
    again = lied.project.run("reconcile", "wait")

    assert (settled.code, found["error"]["code"]) == (11, "remaining"), settled.said
    assert (again.code, lied.project.record("lies")["status"]) == (0, "destroyed"), again.said
    secrets = (*lied.project.own.rglob("before.tfstate"), *lied.project.own.rglob(".private-*"))
    assert secrets == ()


def test_on_another_machine_nothing_is_made_up(lied: Lied) -> None:
    """
    The provider state from before lies on the machine of the destroy only: elsewhere it is unknown
    whether the object is gone, and the machine is named.
    """
    tool = lied.waiting()
    tool.send_signal(signal.SIGTERM)
    finish(tool)
    lied.cloud.delete_out_of_band("liar")
    (kept,) = lied.project.own.rglob("before.tfstate")
    kept.unlink()

    ended = lied.project.run("reconcile", "wait")

    record = lied.project.record("lies")
    (doubt,) = record["resources"]["in_doubt"]
    assert (ended.code, record["status"]) == (11, "error"), ended.said
    assert f"not here, but on {doubt['saved']['host']}" in doubt["why"]


def test_in_another_scope_a_missing_object_proves_nothing(lied: Lied) -> None:
    """
    Law: state moved without us.
    For what is asked later: where the provider's environment or configuration differs from
    that of the destroy, an object that is not found is not gone. It is said what differs.
    """
    tool = lied.waiting()
    tool.send_signal(signal.SIGINT)
    finish(tool)

    elsewhere = {"FAKECLOUD_REGION": "elsewhere"}
    ended = lied.project.run("reconcile", "wait", environ=elsewhere)
    again = lied.project.run("destroy", "wait", "--yes", environ=elsewhere)
    record = lied.project.record("lies")
    lied.cloud.delete_out_of_band("liar")
    confirmed = lied.project.run("reconcile", "wait")

    assert (ended.code, again.code, record["status"]) == (11, 11, "error"), again.said
    assert "FAKECLOUD_REGION" in record["resources"]["in_doubt"][0]["why"]
    assert (confirmed.code, lied.project.record("lies")["status"]) == (0, "destroyed")


def test_what_was_not_deleted_and_is_taken_back_is_alive(lied: Lied) -> None:
    """
    Its delete was reported: adopted again, it is no deleted one, on the screen and in the record.
    """
    project = lied.project
    lied.blueprint.write_text(lied.blueprint.read_text().replace("1h", "1s"))
    assert project.run("destroy", "wait", "--verify", "provider", "--yes").code == 11
    (doubt,) = project.record("lies")["resources"]["in_doubt"]
    adopt = ("--adopt", f"{doubt['address']}={doubt['id']}")

    ended = project.run("reconcile", "wait", "--step", "lies", *adopt, "--yes", "--json")

    assert [row["objects"] for row in ended.events[-1]["alive"]] == [[doubt["address"]]], ended.said
    assert doubt["address"] not in project.record("lies")["resources"]["deleted"]


def test_a_deposed_object_is_asked_for_like_any_other(lied: Lied) -> None:
    """
    Of the drift of a deposed object no plan tells: it has an answer of its own all the same.
    """
    project, cloud = lied.project, lied.cloud
    cloud.disarm()
    module = project.root / "modules/servers/main.tf"
    made = "name     = each.key"
    kept = f"{made}\n lifecycle {{\n  create_before_destroy = true\n }}"
    module.write_text(module.read_text().replace(made, kept))
    project.prepare("apply", "wait", "--yes")
    cloud.arm("delete", "liar", "delete_fails")
    module.write_text(module.read_text().replace(made, 'name     = "new-${each.key}"'))
    assert project.run("apply", "wait", "--yes").code == 10
    cloud.arm("delete", "liar", "delete_lies")
    lied.blueprint.write_text(lied.blueprint.read_text().replace("1h", "1s"))

    ended = project.run("destroy", "wait", "--verify", "provider", "--yes")

    record = project.record("lies")
    (liar,) = cloud.servers()
    assert (ended.code, record["error"]["code"], liar.name) == (11, "remaining", "liar"), ended.said
    assert [doubt["id"] for doubt in record["resources"]["in_doubt"]] == [liar.id]
    assert [ref["deposed"] is None for ref in record["resources"]["inventory"]] == [False]


#: Two regions; once this begins to be destroyed one of them can be reached no more.
REGIONS = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "command" { type = string }
    provider "fakecloud" {}
    provider "fakecloud" {
      alias  = "there"
      region = "there"
    }
    resource "terraform_data" "cut" {
      input = var.command
      provisioner "local-exec" {
        when    = destroy
        command = self.input
      }
    }
    resource "fakecloud_server" "here" {
      name       = "home"
      depends_on = [terraform_data.cut]
    }
    resource "fakecloud_server" "there" {
      provider   = fakecloud.there
      name       = "away"
      depends_on = [terraform_data.cut]
    }
"""
CUT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
row = ("configure", "there", "error_before:AccessDenied", -1)
connection.execute("INSERT INTO faults (op, name, fault, remaining) VALUES (?, ?, ?, ?)", row)
connection.commit()
"""


def test_one_provider_of_several_cannot_be_reached(project: Project, tmp_path: Path) -> None:
    """
    The partial case: the objects of the other provider configurations are answered, the rest is
    unknown with the error of its own, and confirmed once it can be reached again.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    provide(project, cloud, tmp_path)
    script = project.write("cut.py", CUT)
    command = shlex.join([sys.executable, str(script), str(cloud.path)])
    project.write("modules/regions/main.tf", REGIONS)
    step = {"module": "../modules/regions", "inputs": {"command": command}}
    blueprint = {"version": 1, "name": "regions", "steps": {"both": step}}
    project.write("blueprints/regions.yaml", json.dumps(blueprint))
    project.ok("apply", "regions", "--yes")

    ended = project.run("destroy", "regions", "--verify", "provider", "--yes")
    record = project.record("both")
    cloud.disarm()
    again = project.run("destroy", "regions", "--yes")

    assert (ended.code, record["error"]["code"]) == (11, "unconfirmed"), ended.said
    assert states(record) == {
        "terraform_data.cut": "gone",
        "fakecloud_server.here": "gone",
        "fakecloud_server.there": "unknown",
    }
    assert "AccessDenied" in record["resources"]["in_doubt"][0]["why"]
    assert (again.code, project.record("both")["status"]) == (0, "destroyed"), again.said


GROWN = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    provider "fakecloud" {}
    provider "fakecloud" {
      alias  = "grown"
      region = fakecloud_server.base.id
    }
    resource "fakecloud_server" "base" { name = "base" }
    resource "fakecloud_server" "inner" {
      provider = fakecloud.grown
      name     = "inner"
    }
"""


def test_a_provider_that_went_with_the_objects_it_was_made_from_proves_nothing(
    project: Project, tmp_path: Path
) -> None:
    """
    Its configuration names an object that is gone: asked now, it would look elsewhere, find nothing
    and let a lie pass. What it managed is unknown; the other configuration answers.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    provide(project, cloud, tmp_path)
    project.write("modules/grown/main.tf", GROWN)
    steps = "{all: {module: ../modules/grown}}"
    project.write("blueprints/grown.yaml", f"version: 1\nname: grown\nsteps: {steps}\n")
    project.ok("apply", "grown", "--yes")
    cloud.arm("delete", "inner", "delete_lies")

    ended = project.run("destroy", "grown", "--verify", "provider", "--yes")

    record = project.record("all")
    assert (ended.code, record["error"]["code"]) == (11, "unconfirmed"), ended.said
    assert states(record) == {
        "fakecloud_server.base": "gone",
        "fakecloud_server.inner": "unknown",
    }


@pytest.mark.parametrize("change", ["is removed", "is replaced"])
def test_what_an_apply_has_not_deleted_is_named(lied: Lied, change: str) -> None:
    """
    Law: nothing drops out of sight.
    A delete that lies in an apply leaves an object that the provider still has: in doubt with its
    id until the provider says otherwise, whether its address is free or its successor has it. What
    was deleted is not in doubt.
    """
    project, cloud = lied.project, lied.cloud
    (liar,) = [item for item in cloud.servers() if item.name == "liar"]
    text = lied.blueprint.read_text().replace("1h", "1s")
    if change == "is removed":
        text = text.replace("[liar, honest]", "[honest]")
    lied.blueprint.write_text(text)
    module = project.root / "modules/servers/main.tf"
    if change == "is replaced":
        module.write_text(module.read_text().replace("= each.key", '= "new-${each.key}"'))

    ended = project.run("apply", "wait", "--yes")
    record = project.record("lies")
    expected = project.run("status", "wait", "--expect", "ok")
    again = project.run("apply", "wait", "--yes")
    asked = project.run("reconcile", "wait", "--json")
    recovered = project.ok("recover", "wait", "--json").row
    cloud.delete_out_of_band("liar")
    settled = project.run("reconcile", "wait")

    assert (ended.code, expected.code, again.code) == (11, 4, 11), ended.said
    offered = [item["command"] for item in asked.events[-1]["next"]]
    is_free = change == "is removed"
    assert any("--adopt" in command for command in offered) == is_free, offered
    assert not any("state rm" in command for command in offered), "the successor is ours"
    assert ("delete it by hand, and reconcile" in recovered["hint"]) != is_free, recovered["hint"]
    assert recovered["recommended"] == "reconcile"
    actions = {item["action"]: item for item in recovered["actions"]}
    assert ("--adopt" in actions["reconcile"]["command"]) == is_free, actions
    assert is_free or f"deleted {liar.id} by hand" in actions["reconcile"]["reason"]["message"]
    assert [doubt["id"] for doubt in record["resources"]["in_doubt"]] == [liar.id]
    assert liar.id in ended.out
    assert settled.code == 0, settled.said
    after = project.record("lies")
    assert (after["status"], after["resources"]["in_doubt"]) == ("ok", [])
    named = {ref["id"] for ref in after["resources"]["inventory"]}
    assert named == {item.id for item in cloud.servers()}
    assert not after["adopted"], "we made them"
    assert not [*project.own.glob("runs/**/before.tfstate")]
