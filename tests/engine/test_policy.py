"""
A policy in the blueprint: held against plans, applies and destroys, overridden with a reason only.
"""

from __future__ import annotations

import json

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine

MODULE = """
    variable "value" { type = string }
    resource "terraform_data" "kept" {
      triggers_replace = var.value
    }
    resource "terraform_data" "other" {
      input = var.value
    }
"""
BLUEPRINT = """
    version: 1
    name: shop
    inputs: {value: {type: string, default: one}}
    policy: {no_destroy: [terraform_data.kept]}
    environments:
      default: {}
      free: {policy: {no_destroy: []}}
      strict: {policy: {additive_only: true}}
    steps:
      data: {module: ../modules/m, inputs: {value: "${inputs.value}"}}
      more: {module: ../modules/m, inputs: {value: fixed}, needs: [data]}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/m/main.tf", MODULE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    project.ok("apply", "shop", "--yes")
    return project


def test_what_is_forbidden_is_shown_refused_and_left_alone(project: Project) -> None:
    """
    The plan says it, exit 4; an apply stops before the marker; with a reason it goes on, and the
    reason is in the run.
    """
    before = project.entries("data")
    planned = project.run("plan", "shop", "-i", "value=two", "--junit", "junit.xml")
    document = project.run("plan", "shop", "-i", "value=two", "--json", "--detailed-exitcode")
    applied = project.run("apply", "shop", "-i", "value=two", "--yes", "--json")

    assert (planned.code, document.code, applied.code) == (4, 4, 4)
    assert "Forbidden by the policy" in planned.out
    assert [
        (item["rule"], item["step"], item["address"]) for item in document.document["policy"]
    ] == [("no_destroy", "data", "terraform_data.kept")]
    assert 'failures="1"' in (project.root / "junit.xml").read_text()
    assert "terraform_data.kept would be replaced" in applied.rows["data"]["last_error"]
    assert applied.statuses["more"] == "pending"
    assert project.entries("data") == before

    done = project.run(
        "apply", "shop", "-i", "value=two", "--yes", "--override-policy", "agreed with Ann"
    )
    assert done.code == 0, done.said
    assert "agreed with Ann" in done.said
    assert project.last_run()["arguments"]["override_policy"] == "agreed with Ann"


def test_a_destroy_is_refused_before_anything_is_gone(project: Project) -> None:
    """
    Also of steps that would come first.
    """
    ended = project.run("destroy", "shop", "--yes")
    assert ended.code == 4
    assert {row["status"] for row in project.steps("shop").values()} == {"ok"}
    assert project.run("plan", "shop", "--destroy").code == 4
    assert project.run("destroy", "shop", "--yes", "--override-policy", "moving out").code == 0


def test_an_environment_sets_its_own(project: Project) -> None:
    """
    Setting by setting over that of the blueprint; what is wrong in any is told by validate.
    """
    for name, code in (("free", 0), ("strict", 4)):
        project.ok("apply", "shop", "-e", name, "--yes")
        assert project.run("plan", "shop", "-e", name, "-i", "value=two").code == code
    text = BLUEPRINT.replace("additive_only: true", "protected_steps: [daat], max_destroys: -1")
    project.write("blueprints/shop.yaml", text)
    said = project.run("validate", "shop").said
    assert "there is no step 'daat'" in said
    assert "policy.max_destroys must be a whole number" in said


def test_a_rollback_does_not_get_round_it(project: Project) -> None:
    """
    The policy of today holds for the modules and inputs of an earlier run as well.
    """
    run_id = project.last_run()["run_id"]
    project.ok("apply", "shop", "--yes", "-i", "value=two", "--override-policy", "x")
    ended = project.run(
        "rollback", "shop", "--to", run_id, "--yes", "--reason", "r", "--unverified", "u", "--json"
    )
    assert ended.code == 4, ended.said
    assert "policy" in json.dumps(ended.events[-1])
