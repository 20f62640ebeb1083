"""
What may not be destroyed is found before anything is, all of it at once.
"""

from __future__ import annotations

import fcntl

import pytest

from fixtures.fakecloud import Cloud
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

KEPT = """
    resource "terraform_data" "kept" {
      for_each = toset(["a", "b"])
      lifecycle {
        prevent_destroy = true
      }
    }
"""
NESTED = """
    module "inner" { source = "../kept" }
"""
BLUEPRINT = """
    version: 1
    name: guarded
    environments:
      default: {}
      prod: {protected: true}
    steps:
      kept: {module: ../modules/kept}
      nested: {module: ../modules/nested, needs: [kept]}
      free: {module: ../modules/free, needs: [nested]}
"""
PLACES = {
    'kept: terraform_data.kept["a"], by modules/kept/main.tf:4:5',
    'kept: terraform_data.kept["b"], by modules/kept/main.tf:4:5',
    'nested: module.inner.terraform_data.kept["a"], by modules/kept/main.tf:4:5',
    'nested: module.inner.terraform_data.kept["b"], by modules/kept/main.tf:4:5',
}


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/kept/main.tf", KEPT)
    project.write("modules/nested/main.tf", NESTED)
    project.write("modules/free/main.tf", 'resource "terraform_data" "free" {}')
    project.write("blueprints/guarded.yaml", BLUEPRINT)
    return project


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def test_everything_protected_is_named_before_anything_is_destroyed(project: Project) -> None:
    """
    Exit 4, `prevent_destroy`, with each object and the line of its module, also in child modules;
    the step that is destroyed first is still there. The plan of the destroy says the same of each
    step. Without those steps the destroy goes on.
    """
    project.prepare("apply", "guarded", "--yes")
    before = {step: project.entries(step) for step in ("kept", "nested", "free")}

    ended = project.run("destroy", "guarded", "--yes")
    told = project.run("destroy", "guarded", "--yes", "--json").events[-1]
    planned = project.run("plan", "guarded", "--destroy", "--json")
    after = {step: project.entries(step) for step in ("kept", "nested", "free")}
    free = project.run("destroy", "guarded", "--step", "free", "--yes")

    assert (ended.code, after) == (4, before), ended.said
    assert lines(told["error"]) >= PLACES
    assert {row["status"] for row in told["steps"]} == {"pending"}
    assert planned.code == 4
    assert planned.statuses == {"free": "planned", "nested": "failed", "kept": "failed"}
    assert planned.rows["kept"]["error"]["code"] == "prevent_destroy"
    assert (free.code, project.record("free")["status"]) == (0, "destroyed"), free.said


def test_what_goes_with_its_parent_is_protected_as_well(project: Project) -> None:
    """
    A destroy of the parent would take it along without asking its engine: destroy and plan refuse
    it as they refuse any other.
    """
    project.write(
        "blueprints/guarded.yaml",
        """
        version: 1
        name: guarded
        steps:
          free: {module: ../modules/free}
          kept: {module: ../modules/kept, owned_by: free, needs: [free]}
        """,
    )
    project.prepare("apply", "guarded", "--yes")

    planned = project.run("plan", "guarded", "--destroy", "--step", "free", "--json")
    ended = project.run("destroy", "guarded", "--step", "free", "--yes")

    assert (planned.code, ended.code) == (4, 4), planned.said + ended.said
    assert planned.rows["kept"]["error"]["code"] == "prevent_destroy"
    assert project.record("free")["status"] == "ok"


def test_what_the_recorded_module_protects_counts(project: Project) -> None:
    """
    The destroy works from the recorded snapshot: protection that was only taken out of the file
    still holds, until that is applied.
    """
    project.prepare("apply", "guarded", "--step", "kept", "--yes")
    project.write("modules/kept/main.tf", KEPT.replace("true", "false"))

    refused = project.run("destroy", "guarded", "--step", "kept", "--yes")
    project.ok("apply", "guarded", "--step", "kept", "--yes")
    ended = project.run("destroy", "guarded", "--step", "kept", "--yes")

    assert refused.code == 4, refused.said
    assert (ended.code, project.record("kept")["status"]) == (0, "destroyed"), ended.said


def test_a_rollback_does_not_get_round_what_was_protected_since(project: Project) -> None:
    """
    The module of then protects nothing. Where it would replace the objects that is refused and they
    stay; where it would only update them the rollback goes on.
    """
    runs = {}
    for name, key, value, protects in (
        ("other", "then", "1", "false"),
        ("same", "now", "1", "false"),
        ("newest", "now", "2", "true"),
    ):
        settings = f'input = "{value}"\n triggers_replace = "{key}"\n for_each'
        module = KEPT.replace("for_each", settings).replace("true", protects)
        project.write("modules/kept/main.tf", module)
        project.prepare("apply", "guarded", "--step", "kept", "--yes")
        runs[name] = project.record("kept")["run_id"]
    objects = project.record("kept")["resources"]["inventory"]

    def rollback(name: str) -> Ended:
        why = ("--unverified", "no checks", "--reason", "back")
        return project.run(
            "rollback", "guarded", "--step", "kept", "--to", runs[name], *why, "--yes"
        )

    refused = rollback("other")
    updated = rollback("same")

    assert refused.code == 4, refused.said
    said = " ".join(refused.said.split())
    assert 'kept: terraform_data.kept["a"], by modules/kept/main.tf' in said
    assert updated.code == 0, updated.said
    assert project.record("kept")["resources"]["inventory"] == objects


def test_protection_that_was_added_since_the_apply_counts_at_once(project: Project) -> None:
    """
    Nothing has applied it: the objects are protected all the same, by the module as it is now.
    """
    project.write("modules/kept/main.tf", KEPT.replace("true", "false"))
    project.prepare("apply", "guarded", "--step", "kept", "--yes")
    before = project.entries("kept")
    project.write("modules/kept/main.tf", KEPT)

    ended = project.run("destroy", "guarded", "--step", "kept", "--yes")

    assert ended.code == 4, ended.said
    assert "prevent_destroy" in ended.said
    assert project.entries("kept") == before


def test_a_protected_environment_is_told_together_with_it(project: Project) -> None:
    """
    Both reasons at once: nobody confirms the environment only to learn of the next obstacle.
    """
    project.ok("apply", "guarded", "-e", "prod", "--confirm", "prod", "--yes")

    both = project.run("destroy", "guarded", "-e", "prod", "--yes")
    one = project.run("destroy", "guarded", "-e", "prod", "--step", "free", "--yes")

    assert both.code == 4, both.said
    said = " ".join(both.said.split())
    assert "prod is a protected environment" in said and "--confirm prod" in said
    assert "terraform_data.kept" in said
    assert one.code == 5, one.said


CHAIN = """
    version: 1
    name: chain
    steps:
      base: {{module: ../modules/server, inputs: {{name: base, names: [{more}]}}}}
      top: {{module: ../modules/server, inputs: {{name: top}}, needs: [base]}}
"""


def test_what_only_a_plan_finds_is_found_before_anything_is_destroyed(
    project: Project, cloud: Cloud
) -> None:
    """
    The step that would be destroyed last is refused before the first one is, and nothing is
    recorded or deleted: what the approval does not cover, a locked state, an object that cannot be
    read, all objects vanished. No plan, which may hold secrets, stays behind.
    """
    project.write("blueprints/chain.yaml", CHAIN.format(more=""))
    project.ok("apply", "chain", "--yes")
    project.ok("plan", "chain", "--destroy", "--out", "approved")
    project.write("blueprints/chain.yaml", CHAIN.format(more="more"))
    project.ok("apply", "chain", "--yes")
    before = {step: project.entries(step) for step in ("base", "top")}
    (state,) = project.own.glob("state/**/base.tfstate")

    def refused(*options: str) -> tuple[int, str, str]:
        alive = cloud.servers()
        ended = project.run("destroy", "chain", "--json", *options)
        assert {step: project.entries(step) for step in before} == before, ended.said
        assert cloud.servers() == alive
        return ended.code, ended.statuses["base"], ended.statuses["top"]

    assert refused("--plan", "approved") == (6, "pending", "pending")
    with state.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert refused("--yes") == (20, "error", "pending")
    cloud.arm("read", "base", "read_error", remaining=-1)
    assert refused("--yes") == (10, "error", "pending")
    cloud.disarm()
    cloud.delete_out_of_band("base")
    cloud.delete_out_of_band("more")
    assert refused("--yes") == (4, "error", "pending")
    assert refused("--yes", "--refresh=false") == (4, "error", "pending")
    assert not list(project.own.rglob("*.tfplan"))
