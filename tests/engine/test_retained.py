"""
Retained targets: a destroy leaves them alone and says so, an apply leaves them retained.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import Project, require_engine

pytestmark = pytest.mark.engine

#: ``other`` comes with a state place that a caller can get wrong.
BLUEPRINT = """
    version: 1
    name: shared
    inputs:
      place: {type: string, default: states}
      value: {type: string, default: one}
    steps:
      zone:
        module: ../fixtures/shared/object
        inputs: {name: zone, value: "${inputs.value}"}
        retain: {reason: shared zone, owner: net-team, review_by: 2027-06-30}
      other:
        module: ../fixtures/shared/object
        inputs: {name: other}
        backend:
          type: local
          config: {path: "${inputs.place}/other.tfstate"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "project", engine=require_engine("terraform"))
    found.copy("fixtures/shared")
    found.write("blueprints/shared.yaml", BLUEPRINT)
    found.ok("apply", "shared", "--yes")
    return found


def test_the_plan_of_a_destroy_shows_what_is_kept(project: Project) -> None:
    """
    Unchanged, with the reason; only the other step would be deleted.
    """
    document = project.ok("plan", "shared", "--destroy", "--json").document

    rows = {row["step"]: row for row in document["steps"]}
    assert (rows["zone"]["status"], rows["other"]["status"]) == ("unchanged", "planned")
    assert rows["zone"]["reason"] == "retained: shared zone"


def test_nothing_is_retained_by_a_destroy_that_cannot_begin(project: Project) -> None:
    """
    The other step fails in preflight: no record is changed, the one to be retained is still `ok`.
    """
    before = project.entries("zone"), project.entries("other")

    ended = project.run("destroy", "shared", "--yes", "-i", "place=elsewhere")

    assert ended.code == 4, ended.said
    assert (project.entries("zone"), project.entries("other")) == before


def test_a_retained_step_outlives_destroys_and_applies(project: Project) -> None:
    """
    A destroy skips it and records `retained` with reason, owner and status from before; an apply
    that changes it leaves it `retained`, and so does one that changes nothing.
    """
    destroyed = project.run("destroy", "shared", "--yes", "--json")
    verdict = project.status("shared")["verdict"]
    retained = project.record("zone")
    project.ok("apply", "shared", "--yes", "--step", "zone", "-i", "value=two")
    project.ok("apply", "shared", "--yes", "--step", "zone", "-i", "value=two")

    rows = {row["step"]: row for row in destroyed.events[-1]["steps"]}
    statuses = [entry["status"] for entry in project.history("zone")]
    assert destroyed.code == 0
    assert (rows["zone"]["status"], rows["zone"]["reason"]) == ("skipped", "retained: shared zone")
    assert verdict == "destroyed_with_retained"
    assert retained["retained"]["owner"] == "net-team"
    assert retained["retained"]["was"] == "ok"
    assert statuses == ["running", "ok", "retained", "running", "retained", "retained"]
    assert project.record("zone")["outputs"]["value"] == "two"
