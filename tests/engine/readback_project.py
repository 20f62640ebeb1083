"""
A project whose one step makes every kind of object that a readback can or cannot ask for.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fixtures.fakecloud import Cloud
from tests.engine.clouds import provide
from tests.project import Ended, Project

STEP = "things"

REQUIRED = """\
terraform {
  required_providers {
    fakecloud = {
      source  = "test/fakecloud"
      version = "0.1.0"
    }
  }
}
"""

#: Buckets have their name as their id; servers can only be searched for; notes exist under any id.
MAIN = (
    REQUIRED
    + """
variable "name" {
  type = string
}

variable "buckets" {
  type    = set(string)
  default = []
}

variable "size" {
  type    = string
  default = "small"
}

variable "servers" {
  type    = set(string)
  default = []
}

variable "with" {
  type    = set(string)
  default = []
}

resource "fakecloud_bucket" "this" {
  count = contains(var.with, "this") ? 1 : 0
  name  = var.name
}

resource "fakecloud_bucket" "many" {
  for_each = var.buckets
  name     = each.key
  size     = var.size
}

resource "fakecloud_server" "found" {
  for_each = var.servers
  name     = each.key
  tags     = { owner = var.name }
}

resource "fakecloud_server" "misnamed" {
  count = contains(var.with, "misnamed") ? 1 : 0
  name  = "misnamed"
}

resource "fakecloud_note" "note" {
  count = contains(var.with, "note") ? 1 : 0
  name  = "note"
}

module "inner" {
  count  = contains(var.with, "inner") ? 1 : 0
  source = "./inner"
  name   = "${var.name}-inner"
}
"""
)
INNER = (
    REQUIRED
    + """
variable "name" {
  type = string
}

resource "fakecloud_bucket" "deep" {
  name = var.name
}
"""
)
BLUEPRINT = """
    version: 1
    name: asked
    steps:
      things:
        module: ../modules/things
        inputs: {{name: {name}, {inputs}}}
        identity:
          "fakecloud_bucket.this[0]": "${{inputs.name}}"
          fakecloud_bucket.many: "${{each.key}}"
          "fakecloud_server.misnamed[0]": misnamed
          {identity}
          "module.inner[0].fakecloud_bucket.deep": "${{inputs.name}}-inner"
        search:
          fakecloud_server.found:
            data: fakecloud_servers
            arguments: {{tags: {{owner: "${{inputs.name}}"}}}}
            ids: ids
"""

#: Verbs of the engine that load provider schemas.
HEAVY = ("plan", "apply", "import", "show", "validate", "refresh", "console")


class Place:
    """
    A project with that step and its cloud. ``settle`` seconds must pass before anything is absent.
    """

    def __init__(self, root: Path, engine: str, *, settle: float = 0) -> None:
        self.cloud = Cloud(root / "cloud.db")
        self.project = Project(root / "project", engine=engine)
        self.project.write("modules/things/main.tf", MAIN)
        self.project.write("modules/things/inner/main.tf", INNER)
        provide(self.project, self.cloud, root)
        self.settle_after(settle)

    def settle_after(self, seconds: float) -> None:
        """
        Set the settling time.
        """
        self.project.write("orchestrator.yaml", f"settle_seconds: {seconds}\n")

    def wants(self, inputs: str, name: str = "acme", identity: str = "") -> None:
        """
        Write the blueprint with these inputs, and with one more line of identities.
        """
        text = BLUEPRINT.format(inputs=inputs, name=name, identity=identity)
        self.project.write("blueprints/asked.yaml", text)

    def apply(self, *options: str) -> Ended:
        """
        Apply it, as a pipeline does.
        """
        return self.project.run("apply", "asked", "--json", "--yes", *options)

    def destroy(self) -> Ended:
        """
        Destroy it.
        """
        return self.project.run("destroy", "asked", "--json", "--yes")

    def reconcile(self, *options: str) -> Ended:
        """
        Reconcile it.
        """
        return self.project.run("reconcile", "asked", "--json", *options)

    def adopt(self, told: Ended) -> Ended:
        """
        Adopt what was found, by the command that the run offers.
        """
        offered = [shlex.split(item["command"]) for item in told.events[-1]["next"]]
        (words,) = (found for found in offered if {"--adopt", "--adopt-proven"} & set(found))
        options = ["seen there" if word == "WHY" else word for word in words[3:]]
        return self.reconcile(*options, "--yes")

    @property
    def record(self) -> dict[str, Any]:
        """
        The newest entry of the step.
        """
        return self.project.record(STEP)

    @property
    def readbacks(self) -> dict[str, dict[str, Any]]:
        """
        What was read back, by the address in doubt.
        """
        doubts = self.record["resources"]["in_doubt"]
        return {doubt["address"]: doubt["readback"] for doubt in doubts}

    @property
    def settled(self) -> dict[str, str]:
        """
        How doubts were settled, by address.
        """
        return {item["doubt"]["address"]: item["how"] for item in self.record["settled"]}
