"""
What is refused before anything is changed: foreign state upstream, settings without a value, a
person's no, an engine that is not there.
"""

from __future__ import annotations

import json

import pytest

from tests.project import Project
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

CHAIN = """
    version: 1
    name: chain
    steps:
      up:
        module: ../fixtures/shared/object
        inputs: {name: up}
      down:
        module: ../fixtures/shared/object
        inputs: {name: down, value: "${steps.up.outputs.id}"}
"""
PLACED = """
    version: 1
    name: placed
    inputs: {place: {type: string}}
    backend:
      type: local
      config: {path: "${inputs.place}/${step.name}.tfstate"}
    steps:
      object: {module: ../fixtures/shared/object, inputs: {name: placed}}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    project.write("blueprints/chain.yaml", CHAIN)
    project.write("blueprints/placed.yaml", PLACED)
    return project


def test_outputs_of_a_foreign_upstream_are_not_used(project: Project) -> None:
    """
    Law: state moved without us.
    Holds for an upstream outside the selection too: its state has another lineage, so its
    outputs are another's; exit 4, nothing recorded of the step that wanted them.
    """
    project.ok("apply", "chain", "--yes", "--step", "up")
    state = project.own / "state/chain/default/up.tfstate"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"lineage": "foreign"}))

    ended = project.run("apply", "chain", "--yes", "--step", "down")

    assert ended.code == 4, ended.said
    assert "lineage foreign" in ended.said
    assert project.entries("down") == []


def test_a_backend_without_a_value_is_named(project: Project) -> None:
    """
    At a destroy an input without a value is left out, but where the state lies depends on this one:
    exit 3, naming step and setting, the record untouched.
    """
    project.ok("apply", "placed", "--yes", "-i", "place=states")
    before = project.entries("object")

    ended = project.run("destroy", "placed", "--yes")

    assert ended.code == 3, ended.said
    assert "backend" in ended.said
    assert "'object'" in ended.said
    assert "Traceback" not in ended.said
    assert project.entries("object") == before


def test_a_backend_holds_no_environment_variable(project: Project) -> None:
    """
    Its value counts as sensitive, and where a state lies is recorded: refused at load, with its
    place in the file.
    """
    project.write("blueprints/placed.yaml", PLACED.replace("inputs.place}", "env.PLACE}"))

    ended = project.run("validate", "placed")

    assert ended.code == 3
    assert "env.PLACE" in ended.said
    assert "placed.yaml:6" in ended.said


def test_a_refused_plan_leaves_the_step_pending(project: Project, engine: str) -> None:
    """
    A person says no: exit 5, no record, and the run knows the step as `pending`, not as failed. To
    be asked again takes the same options.
    """
    terminal = Terminal(project, "apply", "chain", "--step", "up", "--engine", engine)
    terminal.wait_for("Continue? [yes/no/all] ")

    terminal.type("no\n")

    assert terminal.finish() == 5
    again = f"orchestrator apply chain --step up --engine {engine}"
    assert again in " ".join(terminal.shown.split())
    assert project.entries("up") == []
    assert [row["status"] for row in project.last_run()["steps"]] == ["pending"]


def test_an_engine_that_is_not_there_is_an_invalid_setting(project: Project) -> None:
    """
    Exit 3 by its name, and no run begins.
    """
    ended = project.run("apply", "chain", "--yes", "--engine", "nope")

    assert ended.code == 3
    assert "nope" in ended.err
    assert not list(project.own.glob("runs/*"))
