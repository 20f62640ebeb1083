"""
`recover`, and what it offers, on records that real runs left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import Project, require_engine

pytestmark = pytest.mark.engine


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "project", engine=require_engine("terraform"))
    found.copy("fixtures/shared")
    found.write(
        "blueprints/chain.yaml",
        """
        version: 1
        name: chain
        steps:
          up: {module: ../fixtures/shared/object, inputs: {name: up}}
          down: {module: ../fixtures/shared/object, inputs: {name: down}, needs: [up]}
        """,
    )
    return found


def test_an_action_is_done_only_on_the_entry_it_was_offered_on(project: Project) -> None:
    """
    Law 17: with ``--at`` a command is carried out where the step is as it was, 0 for no record;
    where it has moved on it is refused with what it is now, and nothing is recorded.
    """
    project.ok("apply", "chain", "--yes", "--step", "up", "--at", "0")
    before = project.entries("up")
    ended = project.run("destroy", "chain", "--yes", "--step", "up", "--at", "0", "--json")
    assert ended.code == 4
    finished = ended.events[-1]
    assert "entry 2, `ok`" in finished["error"]
    assert finished["hint"] == "orchestrator recover chain --step up"
    assert project.entries("up") == before
    assert project.run("destroy", "chain", "--yes", "--at", "2").code == 64
    project.ok("destroy", "chain", "--yes", "--step", "up", "--at", "2")
    assert project.record("up")["status"] == "destroyed"
