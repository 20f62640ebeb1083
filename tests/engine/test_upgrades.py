"""
Modules that have changed since they were applied: other provider versions, broken or gone
configuration, other secrets.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud, environment, install
from tests.engine.clouds import attached
from tests.project import Project

pytestmark = pytest.mark.engine

OLD, NEW = "0.1.0", "0.2.0"
USES = """
    terraform {{
      required_providers {{
        fakecloud = {{
          source  = "test/fakecloud"
          version = "{version}"
        }}
      }}
    }}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    return project


# Provider versions


@pytest.fixture
def versions(project: Project, tmp_path: Path) -> Project:
    """
    A project applied with the only version of its provider; since then there is a newer one.
    """
    mirror = tmp_path / "mirror"
    config = install(mirror)
    project.environ = environment(config, Cloud(tmp_path / "cloud.db"), project.environ)
    project.write("modules/uses/main.tf", USES.format(version=f">= {OLD}"))
    text = "version: 1\nname: uses\nsteps: {uses: {module: ../modules/uses}}\n"
    project.write("blueprints/uses.yaml", text)
    project.prepare("apply", "uses", "--yes")
    for folder in mirror.glob(f"*/test/fakecloud/{OLD}"):
        newer = folder.with_name(NEW)
        shutil.copytree(folder, newer)
        for launcher in newer.glob(f"*/*_v{OLD}"):
            launcher.rename(launcher.with_name(launcher.name.replace(OLD, NEW)))
    return project


def test_a_raised_constraint_chooses_a_version_anew(versions: Project) -> None:
    """
    The module accepts only a newer provider than the one it was locked to, and has no lock file of
    its own: the next apply uses the newer one.
    """
    before = versions.record("uses")["providers"]
    versions.write("modules/uses/main.tf", USES.format(version=NEW))

    ended = versions.run("apply", "uses", "--yes")

    assert ended.code == 0, ended.said
    assert list(before.values()) == [OLD]
    assert list(versions.record("uses")["providers"].values()) == [NEW]


def test_an_unchanged_module_keeps_its_versions(versions: Project) -> None:
    """
    Without a lock file of its own, on a machine without its working directory: the version that the
    target was applied with, although the module accepts a newer one.
    """
    shutil.rmtree(versions.own / "work")

    ended = versions.run("apply", "uses", "--yes")

    assert ended.code == 0, ended.said
    assert list(versions.record("uses")["providers"].values()) == [OLD]


def test_the_modules_own_lock_file_is_the_one_that_holds(versions: Project) -> None:
    """
    A module that brings its lock file gets that version where newer ones are accepted, and one that
    its lock file forbids is not chosen anew: exit 10, the record as it was.
    """
    (lock,) = versions.own.glob("work/uses/**/.terraform.lock.hcl")
    shutil.copy(lock, versions.root / "modules/uses")
    shutil.rmtree(versions.own / "work")

    accepted = versions.run("apply", "uses", "--yes")
    chosen = versions.record("uses")["providers"]
    versions.write("modules/uses/main.tf", USES.format(version=NEW))
    before = versions.entries("uses")
    forbidden = versions.run("apply", "uses", "--yes")

    assert (accepted.code, forbidden.code) == (0, 10), accepted.said
    assert list(chosen.values()) == [OLD]
    assert versions.entries("uses") == before


# What is broken today

CHAIN = """
    version: 1
    name: chain
    steps:
      up:
        module: ../modules/up
        inputs: {name: up}
      down:
        module: ../fixtures/shared/object
        inputs: {name: down, value: "${steps.up.outputs.name}"}
"""


@pytest.fixture
def chain(project: Project) -> Project:
    shutil.copytree(project.root / "fixtures/shared/object", project.root / "modules/up")
    project.write("blueprints/chain.yaml", CHAIN)
    return project


def test_a_step_is_not_applied_before_its_upstream(chain: Project) -> None:
    """
    The upstream was never applied and is not selected: exit 4 by its name, the step is `pending`
    and has no record.
    """
    ended = chain.run("apply", "chain", "--yes", "--step", "down", "--json")

    (row,) = ended.events[-1]["steps"]
    assert ended.code == 4, ended.said
    assert "up" in ended.events[-1]["error"]
    assert (row["status"], row["blocked_by"]) == ("pending", ["up"])
    assert chain.entries("down") == []


def test_an_applied_upstream_is_read_from_its_snapshot(chain: Project) -> None:
    """
    An upstream outside the selection is read through the snapshot it was applied from: that it
    could not be initialised today does not matter, and it is left as it was.
    """
    chain.ok("apply", "chain", "--yes", "--step", "up")
    with (chain.root / "modules/up/main.tf").open("a") as module:
        module.write(textwrap.dedent(USES.format(version="9.9.9")))
    before = chain.entries("up")

    ended = chain.run("apply", "chain", "--yes", "--step", "down")

    assert ended.code == 0, ended.said
    assert chain.record("down")["outputs"]["value"] == "up"
    assert chain.entries("up") == before


DOOMED = """
    version: 1
    name: doomed
    inputs: {token: {type: string, sensitive: true}}
    steps:
      demanding: {module: ../modules/demanding, inputs: {name: demanding}}
      broken: {module: ../modules/broken, inputs: {name: broken}}
      deleted: {module: ../modules/deleted, inputs: {name: deleted}}
      guarded: {module: ../modules/guarded, inputs: {token: "${inputs.token}"}}
"""
GUARDED = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "token" {
      type      = string
      sensitive = true
    }
    provider "fakecloud" { token = var.token }
    resource "fakecloud_server" "this" { name = "guarded" }
"""


def test_a_destroy_does_not_need_todays_modules(project: Project, tmp_path: Path) -> None:
    """
    A module with a new required variable, one that is broken, one that is gone: all are destroyed
    from their snapshots and recorded inputs, with the secrets of today.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    for name in ("demanding", "broken", "deleted"):
        shutil.copytree(project.root / "fixtures/shared/object", project.root / "modules" / name)
    project.write("modules/guarded/main.tf", GUARDED)
    project.write("blueprints/doomed.yaml", DOOMED)
    with attached(project, cloud, tmp_path):
        project.environ["ORCHESTRATOR_INPUT_token"] = "first-token"
        cloud.require_token("first-token")
        project.ok("apply", "doomed", "--yes")
        cloud.require_token("second-token")
        project.environ["ORCHESTRATOR_INPUT_token"] = "second-token"
        with (project.root / "modules/demanding/main.tf").open("a") as module:
            module.write('\nvariable "new" { type = string }\n')
        project.write("modules/broken/main.tf", "resource {{{ broken")
        shutil.rmtree(project.root / "modules/deleted")

        ended = project.run("destroy", "doomed", "--yes")

    assert ended.code == 0, ended.said
    assert {row["status"] for row in project.status("doomed")["steps"]} == {"destroyed"}
    assert cloud.servers() == ()
