"""
The provider state lies where the blueprint says, whatever backend the module names itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import Project, require_engine

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: placed
    steps:
      one: {module: ../modules/m}
      two: {module: ../modules/m}
"""


@pytest.fixture(params=["terraform", "tofu", "embedded"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    found = Project(tmp_path / "project", engine=require_engine(request.param))
    found.write("blueprints/placed.yaml", BLUEPRINT)
    found.write("modules/m/main.tf", 'resource "terraform_data" "a" { input = 1 }')
    return found


@pytest.mark.parametrize("name", ["override.tf", "main_override.tf", "zzz_override.tf"])
def test_a_backend_in_an_override_file_of_the_module_does_not_win(
    project: Project, tmp_path: Path, name: str
) -> None:
    """
    Each step has its own state, where the blueprint says; nothing lies where the module says.
    """
    elsewhere = tmp_path / "elsewhere.tfstate"
    block = f'terraform {{\n  backend "local" {{ path = "{elsewhere}" }}\n}}\n'
    project.write(f"modules/m/{name}", block)

    project.ok("apply", "placed", "--yes")

    states = project.own / "state/placed/default"
    assert sorted(path.name for path in states.glob("*.tfstate")) == ["one.tfstate", "two.tfstate"]
    assert not elsewhere.exists()


def test_an_override_file_behind_ours_is_refused(project: Project) -> None:
    """
    What would be read after the generated file is refused before anything is changed.
    """
    block = 'terraform {\n  backend "local" { path = "/nowhere" }\n}\n'
    project.write("modules/m/~_override.tf", block)
    ended = project.run("apply", "placed", "--yes")
    assert ended.code == 3, ended.said
    assert "is read after the generated" in ended.said


def test_what_a_failed_init_set_up_is_not_taken_for_what_an_earlier_one_did(
    project: Project,
) -> None:
    """
    An init at another place failed after it had noted that place; the blueprint is set back. The
    state is written where the blueprint says, not where the failed init would have had it.
    """
    tried = project.write("tried/one.tfstate", "{}")
    elsewhere = BLUEPRINT.replace(
        "one: {module: ../modules/m}",
        f"one: {{module: ../modules/m, backend: {{type: local, config: {{path: {tried}}}}}}}",
    )
    project.ok("apply", "placed", "--step", "one", "--yes")
    project.ok("destroy", "placed", "--step", "one", "--yes")
    project.write("blueprints/placed.yaml", elsewhere)
    failed = project.run("apply", "placed", "--step", "one", "--yes")
    tried.unlink()
    project.write("blueprints/placed.yaml", BLUEPRINT)

    project.ok("apply", "placed", "--step", "one", "--yes")

    assert failed.code == 11 and "initialising" in failed.said, failed.said
    assert not tried.exists()
    assert "terraform_data" in (project.own / "state/placed/default/one.tfstate").read_text()


def _other_backend(dot_terraform: Path) -> None:
    noted = dot_terraform / "terraform.tfstate"
    document = json.loads(noted.read_text())
    document["backend"]["config"]["path"] = str(dot_terraform / "own.tfstate")
    noted.write_text(json.dumps(document))


def _other_workspace(dot_terraform: Path) -> None:
    (dot_terraform / "environment").write_text("own")


@pytest.mark.parametrize("choose", [_other_backend, _other_workspace])
def test_what_somebody_chose_in_a_working_directory_moves_no_state(
    project: Project, choose: Callable[[Path], None]
) -> None:
    """
    `init` with another backend, or `workspace select`, by hand in the directory that `status -v`
    shows: the blueprint's backend and the workspace of the settings are in force again.
    """
    one = ("placed", "--step", "one")
    project.ok("apply", *one, "--yes")
    dot_terraform = project.own / "work/placed/default/one/.terraform"
    choose(dot_terraform)
    planned = project.run("plan", *one)

    project.ok("destroy", *one, "--yes")
    choose(dot_terraform)
    project.ok("apply", *one, "--yes")

    assert planned.code == 0, planned.said
    assert "terraform_data" in (project.own / "state/placed/default/one.tfstate").read_text()
