"""
Drift: what changed outside the engine, by attribute, without what is accepted; read-only.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import watched
from tests.project import Project

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: shop
    drift:
      ignore:
        - {{address: fakecloud_server, attribute: tags.{tag}, reason: set by hand, until: {until}}}
    steps:
      web: {{module: ../modules/server, inputs: {{name: web, names: [other]}}}}
      never: {{module: ../modules/server, inputs: {{name: never}}}}
"""

RULED = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud", version = "0.1.0" }
      }
    }
    variable "names" { type = set(string) }
    resource "fakecloud_server" "it" {
      for_each = var.names
      name     = each.key
      size     = jsonencode({ a = 1, b = 2 })
      lifecycle { ignore_changes = [size, tags] }
    }
"""


@pytest.fixture
def shop(project: Project, cloud: Cloud) -> Project:
    write(project)
    project.prepare("apply", "shop", "--yes", "--step", "web")
    return project


def write(project: Project, tag: str = "none", until: str = "2099-01-01") -> None:
    project.write("blueprints/shop.yaml", BLUEPRINT.format(tag=tag, until=until))


def test_what_was_changed_and_what_is_gone_is_told_by_attribute(
    shop: Project, cloud: Cloud
) -> None:
    """
    Before and after; exit 2 only where it is asked for. Neither records nor provider state change,
    and a lock of somebody else is no obstacle.
    """
    before = shop.entries("web")
    state = shop.own / "state/shop/default/web.tfstate"
    text = state.read_bytes()
    clean = shop.run("drift", "shop", "--json", "--detailed-exitcode")
    assert (clean.code, clean.document["verdict"]) == (0, "no_drift")
    cloud.change_out_of_band("web", size="large")
    cloud.delete_out_of_band("other")

    with state.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ended = shop.run("drift", "shop", "--json", "--detailed-exitcode")
    said = shop.ok("drift", "shop").out

    assert (ended.code, ended.document["verdict"]) == (2, "drift")
    rows = ended.rows
    assert (rows["web"]["status"], rows["never"]["status"]) == ("drifted", "skipped")
    found = {item["address"]: item for item in rows["web"]["resources"]}
    assert found['fakecloud_server.more["other"]']["action"] == "delete"
    (change,) = found["fakecloud_server.this"]["attributes"]
    assert (change["path"], change["before"], change["after"]) == ("size", "small", "large")
    assert '~ size: "small" -> "large"' in said
    assert 'fakecloud_server.more["other"] vanished' in said
    assert shop.entries("web") == before
    assert state.read_bytes() == text


def test_what_is_accepted_is_no_drift_until_its_day(shop: Project, cloud: Cloud) -> None:
    """
    Only that attribute of those objects; an expired rule accepts nothing, and is named.
    """
    cloud.change_out_of_band("web", tags={"patched": "yes"})
    assert shop.run("drift", "shop", "--detailed-exitcode").code == 2
    write(shop, tag="patched")
    accepted = shop.run("drift", "shop", "--detailed-exitcode", "--json")
    assert (accepted.code, accepted.rows["web"]["status"]) == (0, "same")
    assert accepted.rows["web"]["accepted"] == ["fakecloud_server.this"]
    write(shop, tag="patched", until="2020-01-01")
    expired = shop.run("drift", "shop", "--detailed-exitcode", "--json")
    assert (expired.code, expired.document["expired"]) == (2, ["fakecloud_server"])
    write(shop, tag="patched", until="tomorrow")
    assert "drift.ignore.until must be a date" in shop.run("validate", "shop").said


def test_all_steps_are_asked_for_by_one_plan(
    project: Project, cloud: Cloud, tmp_path: Path
) -> None:
    """
    Also where one reads an output of another. What is not found is read a second time, alone.
    """
    project.write(
        "blueprints/shop.yaml",
        """
        version: 1
        name: shop
        steps:
          one: {module: ../modules/server, inputs: {name: one}}
          two: {module: ../modules/server, inputs: {name: "two-${steps.one.outputs.name}"}}
          three: {module: ../modules/server, inputs: {name: three, names: [gone]}}
        """,
    )
    project.prepare("apply", "shop", "--yes")
    cloud.change_out_of_band("two-one", size="large")
    engine = watched(project, tmp_path / "watched")

    changed = project.run("drift", "shop", "--json", "--detailed-exitcode")
    once = len(engine.calls("plan"))
    cloud.delete_out_of_band("gone")
    gone = project.ok("drift", "shop", "--json")

    assert (changed.code, once) == (2, 1)
    assert {step: row["status"] for step, row in changed.rows.items()} == {
        "one": "same",
        "two": "drifted",
        "three": "same",
    }
    (change,) = changed.rows["two"]["resources"][0]["attributes"]
    assert (change["path"], change["before"], change["after"]) == ("size", "small", "large")
    assert changed.rows["two"]["resources"][0]["address"] == "fakecloud_server.this"
    assert gone.rows["three"]["resources"][0]["action"] == "delete"
    assert len(engine.calls("plan")) == once + 3, "together, then `three` twice on its own"
    # What left the blueprint is alive, and not looked at.
    project.write(
        "blueprints/shop.yaml",
        "version: 1\nname: shop\nsteps: {one: {module: ../modules/server, inputs: {name: one}}}",
    )
    less = project.ok("drift", "shop", "--json")
    assert less.document["orphaned"] == ["shop/default/three", "shop/default/two"]


def test_a_gate_tells_of_drift_where_it_is_asked_for(shop: Project, cloud: Cloud) -> None:
    """
    As a warning with the objects and the command that sets them back; not of what is accepted.
    """
    cloud.change_out_of_band("web", size="large")
    silent = shop.run("gate", "shop", "--json", "--step", "web").document
    asked = shop.run("gate", "shop", "--json", "--step", "web", "--drift").document
    assert [item["code"] for item in silent["reasons"]] == []
    assert [(item["code"], item["severity"]) for item in asked["reasons"]] == [("drift", "warn")]
    assert asked["drift"][0]["resources"][0]["address"] == "fakecloud_server.this"

    cloud.change_out_of_band("web", size="small", tags={"patched": "yes"})
    write(shop, tag="patched")
    accepted = shop.run("gate", "shop", "--json", "--step", "web", "--drift").document
    assert (accepted["reasons"], accepted["drift"]) == ([], [])


def test_a_provider_that_does_not_answer_is_no_answer(shop: Project, cloud: Cloud) -> None:
    """
    Exit 10, whatever else is found; never "no drift".
    """
    cloud.arm("read", "web", "error_before:Unavailable")
    ended = shop.run("drift", "shop", "--json", "--detailed-exitcode")
    assert (ended.code, ended.document["verdict"]) == (10, "failed")
    assert ended.rows["web"]["status"] == "failed"


def test_another_notation_is_nothing_that_somebody_changed(project: Project, cloud: Cloud) -> None:
    """
    A provider that reads an empty map where nothing was set, and JSON in another order: neither a
    repeated apply, nor one that changes something, nor a plan tells that as changed; what did
    change beside it is told.
    """
    project.write("modules/ruled/main.tf", RULED)
    step = "{{module: ../modules/ruled, inputs: {{names: [{}]}}}}"
    blueprint = "version: 1\nname: shop\nsteps: {{web: " + step + "}}"
    project.write("blueprints/shop.yaml", blueprint.format("one, two"))
    project.prepare("apply", "shop", "--yes")
    cloud.change_out_of_band("one", tags={}, size='{"b":2,"a":1}')
    cloud.change_out_of_band("two", tags={})
    repeated = project.ok("apply", "shop", "--yes").said
    planned = project.ok("plan", "shop", "--json").row
    cloud.change_out_of_band("two", size="large")
    project.write("blueprints/shop.yaml", blueprint.format("one, two, three"))
    applied = project.ok("apply", "shop", "--yes").said

    assert "changed outside" not in repeated, repeated
    assert planned["drifted"] == []
    assert all(a["equivalent"] for item in planned["drift"] for a in item["attributes"])
    assert 'fakecloud_server.it["two"] changed' in applied, applied
    assert 'fakecloud_server.it["one"] changed' not in applied
