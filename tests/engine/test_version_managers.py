"""
A version manager's shim chooses the engine by a file of the module: the engine that counts is the
one that works in the step's directory, and what the provider state says wrote it last.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.programs import standin_tofu
from tests.project import Project, require_engine

pytestmark = pytest.mark.engine

BLUEPRINT = "version: 1\nname: b\nsteps:\n  s: {module: ../modules/m}\n"


@pytest.fixture
def managed(tmp_path: Path) -> Project:
    """
    A project whose engine is a shim: Terraform where a `.terraform-version` lies, else OpenTofu.
    """
    require_engine("terraform")
    tofu = standin_tofu(tmp_path / "bin")
    shim = tmp_path / "shims" / "engine"
    shim.parent.mkdir()
    shim.write_text(
        f'#!/bin/sh\ntest -e .terraform-version && exec terraform "$@"\nexec {tofu} "$@"\n'
    )
    shim.chmod(0o755)
    project = Project(tmp_path / "project", engine=str(shim))
    project.write("orchestrator.yaml", "project: managed\n")
    project.write("modules/m/main.tf", 'resource "terraform_data" "a" {\n}\n')
    project.write("modules/m/.terraform-version", "1.11.4\n")
    project.write("blueprints/b.yaml", BLUEPRINT)
    return project


def test_the_engine_is_the_one_in_the_steps_directory(managed: Project) -> None:
    """
    Elsewhere the shim is OpenTofu; the record names Terraform, which wrote the state, and OpenTofu
    is refused afterwards.
    """
    applied = managed.ok("apply", "b", "--yes")
    assert "in its working directory the engine is terraform" in applied.out
    assert managed.record("s")["engine"]["kind"] == "terraform"
    refused = managed.run("apply", "b", "--yes", "--engine", str(managed.root.parent / "bin/tofu"))
    assert refused.code == 4
    assert "last written by terraform" in refused.said
    offered = refused.said.partition("\nNext\n")[2]
    assert "orchestrator apply b\n" in offered
    assert "--engine" not in offered, "what was refused for the engine is not offered with it"


@pytest.mark.parametrize("verb", ["apply", "destroy"])
def test_where_the_blueprint_asks_for_another_engine_the_last_one_is_offered(
    managed: Project, verb: str
) -> None:
    """
    The command once more, with the engine that wrote the provider state, is accepted as printed.
    """
    managed.prepare("apply", "b", "--yes")
    del managed.environ["ORCHESTRATOR_ENGINE"]
    managed.environ["PATH"] = f"{managed.root.parent}/bin:{managed.environ['PATH']}"
    managed.write("blueprints/b.yaml", BLUEPRINT + "engine: {kind: tofu}\n")

    refused = managed.run(verb, "b", "--yes")

    assert refused.code == 4
    offered = refused.said.partition("\nNext\n")[2]
    assert f"orchestrator {verb} b --engine terraform\n" in offered, refused.said
    managed.ok(verb, "b", "--engine", "terraform", "--yes")


def test_constraints_are_held_against_that_engine(managed: Project) -> None:
    """
    A module that OpenTofu's version would not fit fits the Terraform that works on it.
    """
    managed.write("modules/m/versions.tf", 'terraform {\n  required_version = "~> 1.11"\n}\n')
    managed.environ["TOFU_VERSION"] = "1.9.0"
    managed.prepare("apply", "b", "--yes")


def test_an_older_engine_is_not_taken_without_a_word(tmp_path: Path) -> None:
    """
    The state names the version that wrote it: an older one of the kind is warned of, as long as it
    has not written the state itself, and the banner names who did.
    """
    project = Project(tmp_path / "project")
    tofu = standin_tofu(tmp_path / "bin")
    project.environ["PATH"] = f"{tofu.parent}:/usr/bin:/bin"
    project.write("orchestrator.yaml", "project: managed\n")
    project.write("modules/m/main.tf", 'resource "terraform_data" "a" {\n}\n')
    project.write("blueprints/b.yaml", BLUEPRINT)
    project.ok("apply", "b", "--yes", "--engine", "tofu")
    project.environ["TOFU_VERSION"] = "1.11.0"
    older = project.ok("apply", "b", "--yes")
    said = " ".join(older.out.split())
    assert "tofu 1.11.0 (tofu 1.12.6 was used last" in said
    assert "last written by tofu 1.12.6, this is 1.11.0" in said
    assert project.record("s")["engine"] == {"kind": "tofu", "version": "1.12.6"}


def test_a_module_for_opentofu_only_goes_with_a_shim_that_is_opentofu(managed: Project) -> None:
    """
    The shim's name tells no kind: the blueprint does, as the error without it says.
    """
    (managed.root / "modules/m/.terraform-version").unlink()
    (managed.root / "modules/m/main.tf").rename(managed.root / "modules/m/main.tofu")
    unsaid = managed.run("validate", "b")
    managed.write("blueprints/b.yaml", BLUEPRINT + "engine: {kind: tofu}\n")
    managed.ok("validate", "b")
    managed.ok("apply", "b", "--yes")

    assert "say `engine: {kind: tofu}` in the blueprint" in unsaid.said
    assert managed.record("s")["engine"]["kind"] == "tofu"
