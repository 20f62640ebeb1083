"""
Outputs that are null, that are new, and that a data source reads: between an upstream step and the
one that needs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import Project, require_engine

pytestmark = pytest.mark.engine

UP = """
variable "on" {
  type    = bool
  default = false
}
resource "terraform_data" "a" {
  input = 1
}
output "maybe" {
  value = var.on ? "there" : null
}
"""
DOWN = """
variable "maybe" {
  type    = string
  default = "default"
}
resource "terraform_data" "b" {
  input = var.maybe == null ? "null" : var.maybe
}
output "seen" {
  value = terraform_data.b.output
}
"""
BLUEPRINT = """
    version: 1
    name: flow
    steps:
      up: {module: ../modules/up}
      down: {module: ../modules/down, inputs: {maybe: "${steps.up.outputs.maybe}"}}
"""


@pytest.fixture(params=["terraform", "tofu"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    found = Project(tmp_path / "project", engine=require_engine(request.param))
    found.write("modules/up/main.tf", UP)
    found.write("modules/down/main.tf", DOWN)
    found.write("blueprints/flow.yaml", BLUEPRINT)
    return found


def test_an_output_that_is_null_is_a_value(project: Project) -> None:
    """
    No provider state holds it; what the applied module declares is null, in this run and in the
    next ones.
    """
    project.prepare("apply", "flow", "--yes")
    assert project.record("down")["outputs"] == {"seen": "null"}
    project.ok("apply", "flow", "--yes", "--step", "down")
    planned = project.ok("plan", "flow", "--json").document
    assert [step["status"] for step in planned["steps"]] == ["unchanged", "unchanged"]
    # Where the state of one is damaged, the other is not told to have a damaged one.
    (project.own / "state/flow/default/up.tfstate").write_text('{"version": 4, "br')
    rows = project.run("plan", "flow", "--json").rows
    said = {name: row["error"]["summary"] for name, row in rows.items()}
    assert said["up"].startswith("the provider state is damaged")
    assert said["down"] == f"the outputs of up: {said['up']}"


def test_a_new_output_of_an_upstream_is_planned_or_deferred(project: Project) -> None:
    """
    A change that adds an output and uses it is planned with it; on its own as far as it can be:
    exit 2, not an error.
    """
    project.prepare("apply", "flow", "--yes")
    project.write("modules/up/new.tf", 'output "new" {\n  value = "n"\n}\n')
    project.write(
        "blueprints/flow.yaml", BLUEPRINT.replace("steps.up.outputs.maybe", "steps.up.outputs.new")
    )
    together = project.run("plan", "flow", "--json", "--detailed-exitcode")
    apart = project.run("plan", "flow", "--json", "--detailed-exitcode", "--separate")
    assert (together.code, apart.code) == (2, 2), together.said
    assert together.rows["down"]["status"] == "planned"
    assert apart.rows["down"]["status"] == "deferred"
    assert apart.rows["down"]["waits_for"] == ["up"]
    project.ok("apply", "flow", "--yes")
    assert project.record("down")["outputs"] == {"seen": "n"}


def test_what_reads_a_state_that_is_not_there_is_deferred(project: Project) -> None:
    """
    A step that only needs its upstream may read what that makes: before, it cannot be planned.
    """
    state = project.own / "state/flow/default/up.tfstate"
    project.write(
        "modules/down/main.tf",
        f"""
data "terraform_remote_state" "up" {{
  backend = "local"
  config  = {{ path = "{state}" }}
}}
resource "terraform_data" "b" {{
  input = data.terraform_remote_state.up.outputs
}}
""",
    )
    needs = "down: {module: ../modules/down, needs: [up]}"
    project.write("blueprints/flow.yaml", BLUEPRINT[: BLUEPRINT.index("down:")] + needs)
    ended = project.run("plan", "flow", "--json", "--detailed-exitcode")
    assert ended.code == 2, ended.said
    rows = {step["step"]: step for step in ended.document["steps"]}
    assert (rows["up"]["status"], rows["down"]["status"]) == ("planned", "deferred")
    project.ok("apply", "flow", "--yes")
