"""
Law: a record that has gone back is noticed.
"""

from __future__ import annotations

import pytest

from tests.project import Project, every_engine

pytestmark = pytest.mark.engine


@pytest.fixture
def project(project: Project) -> Project:
    project.write("m/main.tf", 'resource "terraform_data" "a" { input = 1 }\n')
    project.write("blueprints/b.yaml", "version: 1\nname: b\nsteps:\n  one: {module: ../m}\n")
    return project


@every_engine
def test_a_store_that_was_put_back_or_removed_is_not_believed(project: Project) -> None:
    """
    The records of before the last apply, and no records at all: what would double or forget objects
    ends with 22, what only reads says it, and an expectation is not met.
    """
    project.ok("apply", "b", "--yes")
    project.ok("destroy", "b", "--yes")
    database = project.own / "operations.db"
    old = database.read_bytes()
    project.ok("apply", "b", "--yes")

    database.write_bytes(old)
    refused = project.run("destroy", "b", "--yes")
    status = project.run("status", "b")
    expected = project.run("status", "b", "--expect", "destroyed")
    database.unlink()
    afresh = project.run("apply", "b", "--yes")

    assert (refused.code, expected.code, afresh.code) == (22, 22, 22)
    assert "has gone back" in refused.said and "has gone back" in afresh.said
    assert status.code == 0
    assert "has gone back" in status.err

    accepted = project.run("store", "accept-restored", "disk lost")

    assert accepted.code == 0
    assert "reconcile" in accepted.out
    assert project.run("status", "b").err == ""
