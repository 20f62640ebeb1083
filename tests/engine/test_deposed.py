"""
Deposed objects: what create_before_destroy leaves behind when one of its two halves fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import REQUIRED
from tests.project import Project

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: swap
    steps:
      things:
        module: ../modules/things
        inputs: {{name: {name}}}
        search: {{fakecloud_server.this: {{data: fakecloud_servers, ids: ids}}}}
"""
MAIN = """
variable "name" {
  type = string
}

resource "fakecloud_server" "this" {
  name = var.name

  lifecycle {
    create_before_destroy = true
  }
}
"""


@pytest.fixture
def swapped(project: Project, cloud: Cloud) -> Project:
    """
    A server that was replaced, and whose delete then failed: it is deposed.
    """
    project.write("modules/things/main.tf", REQUIRED + MAIN)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    apply(project, "one")
    cloud.arm("delete", "one", "delete_fails")
    assert apply(project, "two") == 10
    return project


def apply(project: Project, name: str) -> int:
    """
    Apply with this name; the exit code.
    """
    project.write("blueprints/swap.yaml", BLUEPRINT.format(name=name))
    return project.run("apply", "swap", "--yes").code


def resources(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.record("things")["resources"]
    return found


def test_a_replacement_that_left_the_old_one_behind_is_none(swapped: Project, cloud: Cloud) -> None:
    """
    The new one was created, the delete failed although no event of the engine says so; nothing is
    in doubt, both are in the inventory, and the next apply deletes the deposed one.
    """
    found = resources(swapped)
    assert (found["created"], found["failed"], found["replaced"]) == (
        ["fakecloud_server.this"],
        ["fakecloud_server.this"],
        [],
    )
    assert found["in_doubt"] == []
    assert [bool(item["deposed"]) for item in found["inventory"]] == [False, True]

    assert apply(swapped, "two") == 0
    assert [server.name for server in cloud.servers()] == ["two"]
    assert resources(swapped)["deleted"] == [deposed(found)]


def deposed(found: dict[str, Any]) -> str:
    """
    The name of the deposed object in an inventory.
    """
    (key,) = (item["deposed"] for item in found["inventory"] if item["deposed"])
    return f"fakecloud_server.this (deposed {key})"


def test_a_deposed_object_has_a_line_of_its_own(swapped: Project, cloud: Cloud) -> None:
    """
    Beside its successor at the same address: in what is alive, in the plan of a destroy, in what
    that did, each with its id in the record.
    """
    name = deposed(resources(swapped))
    planned = swapped.ok("plan", "swap", "--destroy")
    actions = swapped.ok("plan", "swap", "--destroy", "--json").document["steps"][0]["actions"]

    assert "2 to delete" in planned.out and name in planned.out, planned.out
    assert sorted(item["deposed"] or "" for item in actions) == ["", name[-9:-1]]
    cloud.arm("delete", "two", "delete_fails")
    ended = swapped.run("destroy", "swap", "--yes", "--json")
    assert ended.row["deleted"] == [name]
    (alive,) = ended.events[-1]["alive"]
    assert alive["objects"] == ["fakecloud_server.this"]


def test_a_deposed_object_whose_delete_lost_its_answer_leaves_the_state(
    project: Project, cloud: Cloud
) -> None:
    """
    The next apply changes nothing but the provider state, which keeps what its refresh dropped
    until then: it is applied under a marker. Our delete is why the object is gone: it is told with
    its key and its id, and is not among what was let go.
    """
    project.write("modules/things/main.tf", REQUIRED + MAIN)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    apply(project, "one")
    (one,) = cloud.servers()
    cloud.arm("delete", "one", "lost_answer")
    apply(project, "two")
    name = deposed(resources(project))

    ended = project.ok("apply", "swap", "--yes", "--json")

    found = resources(project)
    assert [item["deposed"] for item in found["inventory"]] == [None]
    assert f"gone by an earlier delete: {name} ({one.id})" in ended.out
    (settled,) = project.record("things")["settled"]
    assert (settled["doubt"]["id"], settled["how"]) == (one.id, "gone")
    assert found["released"] == []
    assert project.history("things")[-2]["status"] == "running"
    assert apply(project, "two") == 0
    assert project.history("things")[-2]["status"] == "ok"


def test_what_is_found_beside_another_object_cannot_be_adopted(
    swapped: Project, cloud: Cloud
) -> None:
    """
    The next replacement lost its create: it exists, its address holds the one before. A person
    deletes it and says so; then the apply goes on, and leaves one.
    """
    cloud.arm("create", "three", "lost_answer")
    assert apply(swapped, "three") == 11

    told = swapped.run("reconcile", "swap", "--json")
    (doubt,) = resources(swapped)["in_doubt"]
    offered = [item["command"] for item in told.events[-1]["next"]]
    (three,) = (server.id for server in cloud.servers() if server.name == "three")
    assert (doubt["readback"]["verdict"], doubt["readback"]["ids"]) == ("exists", [three])
    assert not any("--adopt" in command for command in offered)
    assert any("--forget fakecloud_server.this" in command for command in offered)

    cloud.delete_out_of_band("three")
    forget = ("--forget", "fakecloud_server.this", "--yes", "--reason", "deleted by hand")
    assert swapped.run("reconcile", "swap", *forget).code == 0
    assert apply(swapped, "three") == 0
    assert [server.name for server in cloud.servers()] == ["three"]
