"""
A backend that refuses reads and writes from the middle of an apply or of a destroy on: nothing can
be read after it, and whatever the journal began is in doubt with the id that it told.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import REQUIRED
from tests.engine.state_server import state_server
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

REASON = ("--dismiss-errored-state", "nobody needs it", "--yes")


def ask(address: str) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).close()


def doubts(record: dict[str, Any]) -> dict[str, str | None]:
    return {item["address"]: item["id"] for item in record["resources"]["in_doubt"]}


def status(project: Project, blueprint: str) -> Ended:
    return project.run("status", blueprint, "--step", "breaks", "--expect", "destroyed")


@pytest.mark.parametrize("lost", ["nothing", "working directories"])
def test_a_state_that_cannot_be_read_after_an_apply_is_a_doubt_about_all_it_did(
    project: Project, lost: str
) -> None:
    """
    Law: state moved without us.
    Exit 11 with every id; once the backend is back neither a dismissed saved state nor a repeat
    makes the objects absent or a second time.
    """
    blueprint = project.fixture("refuses-state")
    with state_server() as address:
        project.environ["ORCHESTRATOR_INPUT_state_address"] = address
        broken = f"refuse_url={address}/breaks?refuse=403&refuse_reads=403"
        options = (blueprint, "--step", "+breaks")

        failed = project.run("apply", *options, "--yes", "-i", broken)

        record = project.record("breaks")
        assert failed.code == 11, failed.said
        known = doubts(record)
        assert known and all(known.values()), record["resources"]
        assert all(str(object_id) in failed.said for object_id in known.values())

        ask(f"{address}/breaks?refuse=0&refuse_reads=0")
        if lost == "working directories":
            for file in Path(project.root).rglob("errored.tfstate"):
                file.unlink()
            reconciled = project.run("reconcile", *options)
        else:
            reconciled = project.run("reconcile", *options, *REASON)
        assert reconciled.code == 11, reconciled.said
        assert doubts(project.record("breaks")) == known
        assert status(project, blueprint).code != 0

        again = project.run("apply", *options, "--yes")
        assert again.code == 11, again.said
        destroyed = project.run("destroy", blueprint, "--step", "breaks", "--yes", "--json")
        assert destroyed.code == 11, destroyed.said
        record = project.record("breaks")
        assert (record["status"], doubts(record)) == ("error", known), json.dumps(record)


BREAKING = """
variable "url" {
  type = string
}

variable "once" {
  type = string
}

resource "fakecloud_server" "this" {
  name = "web"
}

resource "terraform_data" "breaks" {
  input = { URL = var.url, ONCE = var.once }

  provisioner "local-exec" {
    when        = destroy
    interpreter = ["python3", "-c"]
    command     = <<-EOT
      import os, pathlib, urllib.request
      once = pathlib.Path(os.environ["ONCE"])
      if not once.exists():
          once.touch()
          urllib.request.build_opener(urllib.request.ProxyHandler({})).open(os.environ["URL"])
    EOT
    environment = self.input
  }
}
"""
BLUEPRINT = """
    version: 1
    name: web
    operations: {{url: "sqlite:.orchestrator/operations.db"}}
    steps:
      web:
        module: ../modules/breaks
        backend: {{type: http, config: {{address: "{address}/web", retry_max: 0}}}}
        inputs: {{url: "{address}/web?{faults}", once: "{once}"}}
"""


@pytest.mark.parametrize("faults", ["refuse=403", "refuse=403&refuse_reads=403"])
def test_what_a_destroy_reported_is_neither_alive_nor_told_twice_where_its_state_is_not_saved(
    project: Project, cloud: Cloud, faults: str
) -> None:
    """
    Each delete that was asked for is told once, with its id.
    Once the backend is back and the unsaved state put aside, that delete is why the object is gone:
    nobody has to say it.
    """
    project.write("modules/breaks/main.tf", REQUIRED + BREAKING)
    with state_server() as address:
        once = project.root / "broken"
        text = BLUEPRINT.format(address=address, faults=faults, once=once)
        project.write("blueprints/web.yaml", text)
        project.prepare("apply", "web", "--yes")

        failed = project.run("destroy", "web", "--yes", "--json")
        summary = failed.events[-1]
        doubted = project.record("web")["resources"]["in_doubt"]
        ask(f"{address}/web?refuse=0&refuse_reads=0")
        settled = project.run("reconcile", "web", *REASON)
        again = project.run("destroy", "web", "--yes")

    assert cloud.servers() == ()
    named = [item["address"] for item in doubted]
    assert sorted(set(named)) == sorted(named), doubted
    assert [row["objects"] for row in summary["alive"]] in ([], [[]]), summary["alive"]
    assert "gone by an earlier delete" in settled.said
    assert (settled.code, again.code) == (0, 0), settled.said + again.said
    assert project.record("web")["status"] == "destroyed"
