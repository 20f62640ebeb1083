"""
Records whose step or blueprint is gone from the project: named, never forgotten.
"""

from __future__ import annotations

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: {name}
    {more}
    steps:
      object: {{module: ../fixtures/shared/object, inputs: {{name: {name}}}}}
"""
SECOND = "      leaver: {module: ../fixtures/shared/object, inputs: {name: leaver}}\n"


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    return project


def blueprint(project: Project, name: str, more: str = "", steps: str = "") -> None:
    project.write(f"blueprints/{name}.yaml", BLUEPRINT.format(name=name, more=more) + steps)


def test_all_blueprints_are_read_from_their_own_stores(project: Project) -> None:
    """
    `status --all` reads each blueprint's own `operations.url`, and lists what has records and no
    file any more as orphaned.
    """
    stored = 'operations: {{url: "sqlite:{}.db"}}'
    blueprint(project, "near", stored.format("near"))
    blueprint(project, "far", stored.format("far"))
    blueprint(project, "left")
    for name in ("near", "left"):
        project.ok("apply", name, "--yes")
    (project.root / "blueprints/left.yaml").unlink()

    documents = project.ok("status", "--all", "--json").document["blueprints"]

    found = {document["blueprint"]: document for document in documents}
    assert {name: document["verdict"] for name, document in found.items()} == {
        "near": "ok", "far": "pending", "left": "ok",
    }  # fmt: skip
    assert found["left"]["orphaned"] == ["left/default/object"]
    assert found["near"]["orphaned"] == []


def test_a_broken_blueprint_is_not_passed_over(project: Project) -> None:
    """
    One that cannot be read makes `status --all` an error that names the file.
    """
    blueprint(project, "sound")
    project.write("blueprints/broken.yaml", "version: 1\nname: broken\nsteps: [\n")

    ended = project.run("status", "--all", "--json")

    assert ended.code == 3
    assert "blueprints/broken.yaml" in ended.err


def test_a_step_that_left_the_blueprint_is_told_and_counted(project: Project) -> None:
    """
    A destroy names what is alive and no longer in the blueprint, and `--expect destroyed` does not
    hold while it lives.
    """
    blueprint(project, "shrunk", steps=SECOND)
    project.ok("apply", "shrunk", "--yes")
    blueprint(project, "shrunk")

    destroyed = project.run("destroy", "shrunk", "--yes")
    expected = project.run("status", "shrunk", "--expect", "destroyed")

    assert (destroyed.code, expected.code) == (0, 4), destroyed.said + expected.said
    assert "shrunk/default/leaver" in destroyed.said
    assert "shrunk/default/leaver" in expected.said
    assert project.record("leaver")["status"] == "ok"


def test_an_environment_that_left_the_blueprint_is_taken_down(project: Project) -> None:
    """
    Its targets are orphaned as a whole; an environment that never was one is an error, and where
    nothing is orphaned that is said. What was taken down is told as destroyed from then on.
    """
    both = "environments: {kept: {}, dropped: {}}"
    blueprint(project, "places", both, SECOND)
    for place in ("kept", "dropped"):
        project.ok("apply", "places", "-e", place, "--yes")
    blueprint(project, "places", "environments: {kept: {}}", SECOND)

    for command in ("status", "recover"):
        shown = project.ok(command, "places", "-e", "dropped")
        assert "leaver" in shown.out and "destroy places -e dropped --orphaned" in shown.out
        assert project.run(command, "places", "-e", "droped").code == 3
    wrong = project.run("destroy", "places", "-e", "droped", "--orphaned", "--yes")
    none = project.ok("destroy", "places", "-e", "kept", "--orphaned")
    ended = project.ok("destroy", "places", "-e", "dropped", "--orphaned", "--yes", "--json")

    gone = {(row["target"], row["status"]) for row in ended.events[-1]["steps"]}
    assert wrong.code == 3, wrong.said
    assert "droped" in wrong.said
    assert "nothing is orphaned" in none.said
    assert gone == {
        ("places/dropped/object", "destroyed"), ("places/dropped/leaver", "destroyed"),
    }  # fmt: skip
    assert project.status("places", "-e", "kept")["verdict"] == "ok"
    after = project.status("places", "-e", "dropped", "--expect", "destroyed")
    assert after["verdict"] == "destroyed"
    assert {row["step"] for row in after["steps"]} == {"object", "leaver"}
