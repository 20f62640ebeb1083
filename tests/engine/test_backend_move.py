"""
``backend move``: a provider state goes to where the blueprint says now, and the record with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.watched_engine import kill, watched
from tests.project import Project, eventually

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: moving
    inputs: {place: {type: string, default: first}}
    steps:
      it:
        module: ../modules/thing
        inputs: {name: it}
        backend: {type: local, config: {path: "PLACE"}}
        before_destroy: {module: ../modules/thing, inputs: {name: kept}}
      other:
        module: ../modules/thing
        inputs: {name: other}
"""
MODULE = """
    variable "name" { type = string }
    resource "terraform_data" "a" { input = var.name }
    output "id" { value = terraform_data.a.id }
    module "part" { source = "./part" }
"""
MOVE = ("backend", "move", "moving/default/it")
HOOK = 'it["@before_destroy"]'


@pytest.fixture
def project(project: Project) -> Project:
    """
    Two steps, applied; then the state of one is to be elsewhere. An `init` installs a module.
    """
    project.write("modules/thing/main.tf", MODULE)
    project.write("modules/thing/part/main.tf", 'output "made" { value = 1 }\n')
    put(project, "${inputs.place}/${step.name}.tfstate")
    project.prepare("apply", "moving", "--yes")
    put(project, "second/${step.name}.tfstate")
    return project


def put(project: Project, place: str) -> None:
    project.write("blueprints/moving.yaml", BLUEPRINT.replace("PLACE", place))


def places(project: Project) -> tuple[bool, bool]:
    """
    Whether there is a state file at the first and at the second place.
    """
    first, second = (project.root / name / "it.tfstate" for name in ("first", "second"))
    return first.exists(), second.exists()


def test_a_state_is_moved_to_where_the_blueprint_says(project: Project) -> None:
    """
    What an apply refuses names the command; that copies the state under the marker, binds the
    record to it, keeps the old file as private evidence, and ends with an empty plan. The state of
    what a hook made is moved by its own name.
    """
    refused = project.run("apply", "moving", "--yes")
    unapproved = project.run(*MOVE)
    before = project.record("it")

    ended = project.ok(*MOVE, "--yes")

    record = project.record("it")
    (kept,) = project.own.rglob("runs/**/it.tfstate")
    assert (refused.code, unapproved.code) == (4, 5)
    assert "orchestrator backend move 'moving/default/it'" in refused.said, refused.said
    assert "the plan on it is empty" in " ".join(ended.out.split()), ended.out
    assert [entry["active_command"] for entry in project.history("it")[-2:]] == ["push", None]
    assert record["status"] == "ok"
    assert record["provider_state"]["location"] == "second/it.tfstate"
    assert record["provider_state"]["lineage"] == before["provider_state"]["lineage"]
    assert record["resources"]["inventory"] == before["resources"]["inventory"]
    assert places(project) == (False, True)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "already" in project.ok(*MOVE, "--yes").out
    assert project.ok("apply", "moving", "--yes", "--json").rows["it"]["created"] == []
    put(project, "third/${step.name}.tfstate")
    project.ok(*MOVE, "--yes")
    assert project.record("it")["provider_state"]["location"] == "third/it.tfstate"
    project.ok("destroy", "moving", "--yes")
    put(project, "fourth/${step.name}.tfstate")
    project.ok(*MOVE[:2], f"moving/default/{HOOK}", "--yes")
    kept_there = project.record(HOOK)["provider_state"]["location"]
    assert kept_there == "fourth/it.before_destroy.tfstate"


def test_a_state_is_not_moved_over_another_one(project: Project) -> None:
    """
    Neither over a state that is there, nor to the place of another target: all is as it was.
    """
    before = project.entries("it")
    project.write("second/it.tfstate", (project.root / "first/it.tfstate").read_text())
    text = (project.root / "second/it.tfstate").read_text()
    (project.root / "second/it.tfstate").write_text(text.replace('"it"', '"stranger"'))

    over = project.run(*MOVE, "--yes")
    put(project, ".orchestrator/state/moving/default/other.tfstate")
    onto = project.run(*MOVE, "--yes")

    assert over.code == 4 and "already" in over.said, over.said
    assert onto.code in (3, 4) and "other" in onto.said, onto.said
    assert project.entries("it") == before
    assert places(project) == (True, True)


def test_a_killed_move_is_gone_on_with(project: Project, tmp_path: Path) -> None:
    """
    Killed while the state is written: the record stays bound to the old place, where nothing has
    changed, and the next move settles it and ends at the new one.
    """
    engine = watched(project, tmp_path / "engine")
    engine.hold("state")
    tool = project.start(*MOVE, "--yes")
    engine.wait_until_held("state", tool)
    assert project.record("it")["active_command"] == "push"
    kill(tool)
    engine.release("state")
    eventually(lambda: places(project)[1], "the engine ends by itself")

    ended = project.ok(*MOVE, "--yes")

    assert project.record("it")["provider_state"]["location"] == "second/it.tfstate", ended.said
    assert project.record("it")["status"] == "ok"
    assert places(project) == (False, True)
    copies = (project.root / ".orchestrator" / "runs").rglob("inputs.tfvars.json")
    assert not [*copies], "the copy that was to be pushed is removed as the call is settled"
