"""
A module whose sources depend on a variable, through its whole life with OpenTofu: every call that
loads the configuration gets the variables.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project, git, require_engine

pytestmark = pytest.mark.engine

MODULE = """
variable "which" {
  type      = string
  sensitive = true
}
module "k" {
  source = "./sub/${var.which}"
}
resource "terraform_data" "a" {
}
output "o" {
  value = "x"
}
"""
BLUEPRINT = """
version: 1
name: b
inputs:
  which: {type: string, sensitive: true}
steps:
  s: {module: ../modules/m, inputs: {which: "${inputs.which}"}}
"""


@pytest.fixture
def early(tofu: str, tmp_path: Path) -> Project:
    """
    A project of that module; the value of the variable is a secret, ``first-kind``.
    """
    project = Project(tmp_path / "project", engine=tofu)
    project.write("orchestrator.yaml", "project: early\n")
    project.write("modules/m/main.tf", MODULE)
    for name in ("first-kind", "second-kind"):
        project.write(f"modules/m/sub/{name}/main.tf", 'output "o" {\n  value = "x"\n}\n')
    project.write("blueprints/b.yaml", BLUEPRINT)
    project.environ |= {
        "ORCHESTRATOR_INPUT_which": "first-kind",
        "TOFU_CALLS": str(tmp_path / "calls"),
    }
    return project


def calls(project: Project) -> list[dict[str, Any]]:
    """
    The calls of the program that stands for OpenTofu; none of OpenTofu itself.
    """
    file = Path(project.environ["TOFU_CALLS"])
    lines = file.read_text().splitlines() if file.exists() else []
    return [call for line in lines if (call := json.loads(line))["argv"] != ["version"]]


def test_a_source_that_depends_on_a_variable_lives_through_every_command(early: Project) -> None:
    """
    The variables reach each call in a private file that is gone when it ends; no value stands in
    the arguments or in any file of ours.
    """
    early.ok("validate", "b")
    early.ok("plan", "b")
    early.ok("apply", "b", "--yes")
    assert early.ok("apply", "b", "--yes", "--json").statuses == {"s": "ok"}
    assert early.ok("exec", "b/default/s", "--", "state", "list").out == "terraform_data.a\n"
    early.ok("exec", "b/default/s", "--", "output", "-json")
    early.ok("exec", "b/default/s", "--", "providers")
    early.ok("exec", "b/default/s", "--", "show", "-json")
    early.ok("reconcile", "b", "--yes")
    assert early.ok("destroy", "b", "--yes", "--json").statuses == {"s": "destroyed"}
    for call in calls(early):
        assert call["given"] == {"which": "first-kind"}, call["argv"]
        assert call["mode"] == "0o600"
        assert "first-kind" not in " ".join(call["argv"])
    kept = [path for path in early.own.rglob("*") if path.is_file()]
    assert not [path for path in kept if path.name.endswith(".tfvars.json")]
    evidence = [path for path in kept if "work" not in path.relative_to(early.own).parts]
    assert not [path for path in evidence if b"first-kind" in path.read_bytes()]


def test_another_source_is_initialised(early: Project) -> None:
    """
    A new value of the variable is a reason for another ``init``; the same value is none.
    """
    early.prepare("apply", "b", "--yes")
    early.prepare("apply", "b", "--yes")
    early.environ["ORCHESTRATOR_INPUT_which"] = "second-kind"
    early.prepare("apply", "b", "--yes")
    done = [call["given"]["which"] for call in calls(early) if call["argv"][0] == "init"]
    assert done in ([], ["first-kind", "second-kind"])


def test_a_destroy_uses_what_it_was_applied_with(early: Project) -> None:
    """
    Where the blueprint gives the variable another value by now, the recorded one loads the module:
    the sources of what was applied.
    """
    early.write(
        "blueprints/b.yaml", BLUEPRINT.replace(", sensitive: true", ", default: first-kind")
    )
    early.prepare("apply", "b", "--yes")
    early.write("blueprints/b.yaml", BLUEPRINT.replace(", sensitive: true", ", default: other"))
    early.ok("destroy", "b", "--yes")
    assert {call["given"]["which"] for call in calls(early)} <= {"first-kind"}


def test_a_backend_that_depends_on_a_variable_is_replaced_as_any_other(early: Project) -> None:
    """
    The blueprint's backend takes its place, and `validate` has nothing against it.
    """
    backend = 'terraform {\n  backend "local" {\n    path = "${var.which}.tfstate"\n  }\n}\n'
    early.write("modules/m/main.tf", MODULE + backend)
    early.ok("validate", "b")
    early.ok("apply", "b", "--yes")
    assert (early.own / "state/b/default/s.tfstate").is_file()
    assert not list(early.root.rglob("first-kind.tfstate"))


UPSTREAM = """
version: 1
name: b
steps:
  s: {module: ../modules/m, inputs: {which: "${steps.a.outputs.o}"}}
  a: {module: ../modules/a}
"""
KIND = 'resource "terraform_data" "a" {\n}\noutput "o" {\n  value = "first-kind"\n}\n'


def test_a_source_may_depend_on_what_comes_from_upstream(early: Project) -> None:
    """
    Then the step is initialised once its upstream is applied, and again where that gives another
    value.
    """
    early.write("modules/a/main.tf", KIND)
    early.write("blueprints/b.yaml", UPSTREAM)
    assert early.ok("plan", "b", "--json").rows["s"]["status"] == "deferred"
    early.ok("apply", "b", "--yes")
    early.write("modules/a/main.tf", KIND.replace("first", "second"))
    early.ok("apply", "b", "--yes")
    given = [call["given"] for call in calls(early) if call["argv"][0] == "init"]
    assert [values["which"] for values in given if values] in ([], ["first-kind", "second-kind"])


def test_what_a_module_from_elsewhere_is_given_waits_for_nothing(tofu: str, tmp_path: Path) -> None:
    """
    Nobody knows here whether its sources depend on it: the step is prepared with all others, and
    its upstream from the module as it is now.
    """
    if tofu == "tofu":
        pytest.skip("there is no module registry here")
    project = Project(tmp_path / "project", engine=tofu)
    project.write("orchestrator.yaml", "project: early\n")
    project.write("modules/a/main.tf", KIND)
    project.write(
        "modules/m/main.tf",
        'variable "which" {\n}\nmodule "k" {\n  source = "acme/kind/x"\n  which = var.which\n}\n',
    )
    project.write("blueprints/b.yaml", UPSTREAM)
    project.prepare("apply", "b", "--yes")
    shutil.rmtree(project.own / "work")
    project.environ["TOFU_CALLS"] = str(tmp_path / "calls")
    project.write("modules/a/main.tf", KIND + 'resource "terraform_data" "b" {\n}\n')
    rows = project.ok("apply", "b", "--yes", "--json").rows
    assert rows["a"]["created"] == ["terraform_data.b"]
    given = [call["given"] for call in calls(project) if call["argv"][0] == "init"]
    assert given == [None, None], "what a will give was not asked for before a was ready"


def test_terraform_evaluates_sources_early_from_1_15_on(tmp_path: Path) -> None:
    """
    Those that are made of its variables with `const`: every command goes on with them.
    """
    project = Project(tmp_path / "project", engine=require_engine("embedded"))
    project.write("orchestrator.yaml", "project: early\n")
    constant = MODULE.replace("sensitive = true", "const     = true")
    project.write("modules/m/main.tf", constant)
    project.write("modules/m/sub/first-kind/main.tf", 'output "o" {\n  value = "x"\n}\n')
    steps = "steps:\n  s: {module: ../modules/m, inputs: {which: first-kind}}\n"
    project.write("blueprints/b.yaml", "version: 1\nname: b\n" + steps)
    for command in ("validate", "plan"):
        project.ok(command, "b")
    for command in ("apply", "apply", "reconcile"):
        project.ok(command, "b", "--yes")
    project.ok("exec", "b/default/s", "--", "show")
    (project.own / "state/b/default/s.tfstate").unlink()
    assert project.run("apply", "b", "--yes").code == 11
    project.ok("reconcile", "b", "--rebuild-state", "--yes")
    project.ok("apply", "b", "--yes")
    assert project.ok("destroy", "b", "--yes", "--json").statuses == {"s": "destroyed"}


def test_terraform_takes_constants_only_into_modules_from_elsewhere(tmp_path: Path) -> None:
    """
    So what such a module needs to be loaded is known without it: the variables with `const`.
    """
    kind = MODULE.replace("which", "kind").replace("sensitive = true", "const     = true")
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.write("main.tf", kind)
    elsewhere.write("sub/first-kind/main.tf", 'output "o" {\n  value = "x"\n}\n')
    git(elsewhere, "init", "-q")
    git(elsewhere, "add", "-A")
    git(elsewhere, "commit", "-qm", "first")
    project = Project(tmp_path / "project", engine=require_engine("embedded"))
    project.write("orchestrator.yaml", "project: early\n")
    called = f'source = "git::file://{elsewhere.root}"\n  kind   = local.which'
    text = MODULE.replace('source = "./sub/${var.which}"', called)
    text += 'locals {\n  which = "${var.which}"\n}\n'
    project.write("modules/m/main.tf", text)
    steps = "steps:\n  s: {module: ../modules/m, inputs: {which: first-kind}}\n"
    project.write("blueprints/b.yaml", "version: 1\nname: b\n" + steps)

    refused = project.run("apply", "b", "--yes")
    assert "Const variables must be known" in refused.said
    project.write("modules/m/main.tf", text.replace("sensitive = true", "const     = true"))
    for _ in range(2):
        project.ok("apply", "b", "--yes")
    project.ok("exec", "b/default/s", "--", "show")
