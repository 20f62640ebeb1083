"""
Working directories under real engines: what runs there is plain Terraform.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud, Root, environment, find_program, install
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
from orchestrator.loading.modules import read_module
from orchestrator.ports.workdir import Secret, WorkDirConfig
from orchestrator.ports.workdir import WorkDir as WorkRoot
from tests.project import ENGINES

pytestmark = pytest.mark.engine

TARGET = Target("web", "prod", "app")
BACKEND = {"path": "state/app.tfstate"}


@pytest.fixture(params=ENGINES)
def program(request: pytest.FixtureRequest) -> tuple[str, ...]:
    name = str(request.param)
    found = find_program(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Place:
    """
    A project with one module, run by the tool's working directory or as plain Terraform.
    """

    def __init__(self, root: Path, program: tuple[str, ...]) -> None:
        self.root = root
        self.module = root / "modules/app"
        self.module.mkdir(parents=True)
        self._program = program
        self._kind = "tofu" if "tofu" in program[0] else "terraform"
        self.cloud = Cloud(root / "cloud.db")
        self.env = environment(install(root / "mirror"), self.cloud)
        self.dirs = DirectoryWorkDirs(root / ".orchestrator/work", root)

    def write(self, files: Mapping[str, str]) -> None:
        """
        Write files below modules/.
        """
        for name, text in files.items():
            path = self.root / "modules" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def prepare(
        self, providers: Mapping[str, Json] | None = None, backend: Mapping[str, Json] = BACKEND
    ) -> WorkRoot:
        """
        The target's working directory for the module as it is now.
        """
        snapshot = self.dirs.snapshot(read_module(self.module, shown="modules/app"))
        setup = WorkDirConfig("local", backend, providers or {})
        return self.dirs.prepare(TARGET, snapshot, setup, f"{self._kind} 1")

    def engine(self, directory: Path) -> Root:
        return Root(directory, self._program, self.env)

    def initialised(self, root: WorkRoot) -> Root:
        """
        The engine in a working directory, after the `init` that this needs.
        """
        engine = self.engine(root.directory)
        engine.init(*([f"-backend-config={root.backend_file}"] if root.backend_file else []))
        return engine


@pytest.fixture
def place(tmp_path: Path, program: tuple[str, ...]) -> Place:
    # Of an argument with a "=" engines take the first part for the name of a setting.
    return Place(tmp_path / "size=small", program)


def planned(root: Root) -> list[tuple[str, str, Any]]:
    """
    Address, action and values of what a plan to a file would do.
    """
    result = root.run("plan", "-input=false", "-no-color", "-out=saved")
    assert result.code == 0, result.stdout + result.stderr
    plan = json.loads(root.run("show", "-json", "saved").stdout)
    return sorted(
        (change["address"], str(change["change"]["actions"]), change["change"]["after"])
        for change in plan["resource_changes"]
    )


def test_plan_is_that_of_plain_terraform(place: Place) -> None:
    """
    Addresses, paths and values are those of the engine run in the module itself: with a child
    beside it, a template, for_each and a file of the child.
    """
    place.write(
        {
            "app/main.tf": """
module "shared" {
  source = "../shared"
  names  = toset(["a", "b"])
}
resource "terraform_data" "text" {
  for_each = { x = 1, "y z" = 2 }
  input    = templatefile("${path.module}/x.tpl", { n = each.value })
}
resource "terraform_data" "paths" {
  input = [path.module, path.root]
}
""",
            "app/x.tpl": "n is ${n} %{ if n > 1 }many%{ endif }",
            "shared/main.tf": """
variable "names" {}
resource "terraform_data" "each" {
  for_each = var.names
  input    = [each.key, path.module, file("${path.module}/note"), file("../shared/note")]
}
""",
            "shared/note": "noted",
        }
    )
    ours = place.initialised(place.prepare())
    plain = place.engine(place.module)
    plain.init()
    assert planned(ours) == planned(plain)


def test_own_backend_block_is_replaced(place: Place) -> None:
    """
    The blueprint's backend takes the place of the module's own, and its path is taken literally.
    """
    place.write(
        {
            "app/main.tf": 'terraform {\n  backend "s3" {\n    bucket = "nowhere"\n  }\n}\n'
            'resource "terraform_data" "x" {}\n'
        }
    )
    root = place.prepare(backend={"path": "state/${odd} %{name}.tfstate"})
    engine = place.initialised(root)
    assert engine.apply().code == 0
    state = json.loads((place.root / root.location).read_text())
    assert root.location == "state/${odd} %{name}.tfstate"
    assert [resource["type"] for resource in state["resources"]] == ["terraform_data"]


def test_init_is_remembered(place: Place) -> None:
    """
    After a real init none is needed, also with the lock file that init wrote; a plan works.
    """
    place.write(
        {
            "app/main.tf": """
terraform {
  required_providers {
    fakecloud = { source = "test/fakecloud" }
  }
}
resource "fakecloud_server" "x" {
  name = "x"
}
"""
        }
    )
    root = place.prepare()
    place.initialised(root)
    place.dirs.mark_initialised(root)
    again = place.prepare()
    assert (root.init_needed, again.init_needed) == (True, False)
    assert b"test/fakecloud" in (place.dirs.lock_file(again) or b"")
    assert [address for address, *_ in planned(place.engine(again.directory))] == [
        "fakecloud_server.x"
    ]


def test_generated_providers(place: Place) -> None:
    """
    Generated configuration reaches the provider: default and alias, values that look like
    templates, and a secret that stands in no file; the source comes from the child that uses it.
    """
    place.write(
        {
            "app/main.tf": """
module "child" {
  source    = "../child"
  providers = { fakecloud = fakecloud, fakecloud.far = fakecloud.far }
}
""",
            "child/main.tf": """
terraform {
  required_providers {
    fakecloud = {
      source                = "test/fakecloud"
      configuration_aliases = [fakecloud.far]
    }
  }
}
resource "fakecloud_server" "near" {
  name = "near"
}
resource "fakecloud_server" "far" {
  provider = fakecloud.far
  name     = "far"
}
""",
        }
    )
    place.cloud.require_token("s3cret ${x}")
    root = place.prepare(
        {
            "fakecloud": [
                {"region": "near-${var.no} %{if", "token": Secret("s3cret ${x}")},
                {"alias": "far", "region": "far-1", "token": Secret("s3cret ${x}")},
            ],
            "unused": {"region": "x"},
        }
    )
    values = place.root / "secrets.tfvars.json"
    values.write_text(json.dumps(dict(root.variables)))
    engine = place.initialised(root)
    result = engine.apply(f"-var-file={values}")
    assert result.code == 0, result.stdout
    assert {(server.name, server.region) for server in place.cloud.servers()} == {
        ("near", "near-${var.no} %{if"),
        ("far", "far-1"),
    }
    texts = [path.read_text() for path in root.directory.glob("*.json")]
    assert not any("s3cret" in text for text in texts)


def test_private_copy_touches_nothing_of_the_original(place: Place, tmp_path: Path) -> None:
    """
    A plan in a private copy has the module's configuration and the state it was given; whatever is
    done there, provider state and working directory stay as they are.
    """
    place.write({"app/main.tf": 'resource "terraform_data" "x" {\n  input = "one"\n}\n'})
    root = place.prepare()
    ours = place.initialised(root)
    assert ours.apply().code == 0
    state = (place.root / "state/app.tfstate").read_bytes()
    files = {path: path.stat().st_mtime_ns for path in root.directory.rglob("*")}
    extra = {"more.tf": 'resource "terraform_data" "y" {\n  input = "two"\n}\n'}
    copy = place.dirs.scratch_copy(root, tmp_path / "copy", extra=extra)
    Path(copy.location).write_bytes(state)
    assert copy.init_needed
    theirs = place.initialised(copy)
    assert [row[:2] for row in planned(theirs)] == [
        ("terraform_data.x", "['no-op']"),
        ("terraform_data.y", "['create']"),
    ]
    assert theirs.apply().code == 0
    assert (place.root / "state/app.tfstate").read_bytes() == state
    assert {path: path.stat().st_mtime_ns for path in root.directory.rglob("*")} == files
