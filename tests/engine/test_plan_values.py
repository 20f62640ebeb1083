"""
A plan says what changes: attributes before and after, what forces a replacement, which input is
another one, and nothing of a secret.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine.watched_engine import watched
from tests.project import Project, every_engine
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

SECRET = "hush-5f0c"
MODULE = """
    variable "suffix" { type = string }
    variable "token" {
      type      = string
      sensitive = true
    }
    variable "script" {
      type    = string
      default = "set -e\\necho one\\necho two\\n"
    }
    resource "terraform_data" "this" {
      input            = { suffix = var.suffix, token = var.token, script = var.script }
      triggers_replace = { suffix = var.suffix }
    }
    check "suffix" {
      assert {
        condition     = var.suffix != "assets"
        error_message = "the suffix is ${var.suffix}"
      }
    }
    output "name" { value = "shop-${var.suffix}" }
    output "token" {
      value     = var.token
      sensitive = true
    }
"""
APP = """
    variable "bucket" { type = string }
    resource "terraform_data" "app" { input = var.bucket }
    output "bucket" { value = terraform_data.app.output }
"""
BLUEPRINT = """
    version: 1
    name: shop
    inputs:
      suffix: {type: string, default: assets}
      token: {type: string, sensitive: true}
    steps:
      assets:
        module: ../modules/assets
        inputs: {suffix: "${inputs.suffix}", token: "${inputs.token}"}
      app: {module: ../modules/app, inputs: {bucket: "${steps.assets.outputs.name}"}}
      late: {module: ../modules/app, inputs: {bucket: fixed}, needs: [app]}
"""


def shop(project: Project) -> Project:
    project.write("modules/assets/main.tf", MODULE)
    project.write("modules/app/main.tf", APP)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    project.environ["ORCHESTRATOR_INPUT_token"] = SECRET
    return project


def attributes(resource: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {item["path"]: (item["before"], item["after"]) for item in resource["attributes"]}


@every_engine
class TestForgottenInput:
    """
    The suffix was given with -i at the last apply, and is not this time.
    """

    @pytest.fixture(scope="class")
    @staticmethod
    def forgotten(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Project:
        project = shop(Project(tmp_path_factory.mktemp("forgotten"), engine=engine))
        project.ok("apply", "shop", "--yes", "-i", "suffix=assets2")
        return project

    def test_the_cause_is_named_with_where_each_value_comes_from(self, forgotten: Project) -> None:
        """
        The input, the attribute that forces the replacement, the outputs, before and after.
        """
        said = " ".join(forgotten.ok("plan", "shop").out.split())
        assert 'input suffix: "assets2" (last apply) -> "assets" (blueprint default)' in said
        assert "terraform_data.this REPLACE (forced by triggers_replace.suffix)" in said
        assert '~ input.suffix: "assets2" -> "assets"' in said
        assert '~ output name: "shop-assets2" -> "shop-assets"' in said
        assert said.index("Destroyed or replaced") < said.index("input suffix")

    def test_the_document_holds_the_same(self, forgotten: Project) -> None:
        """
        orchestrator.plan/2: resources with attributes, inputs, outputs, checks, counts; what plan/1
        had is still there.
        """
        document = forgotten.ok("plan", "shop", "--json").document
        step = document["steps"][0]
        (resource,) = step["resources"]
        assert document["schema"] == "orchestrator.plan/2"
        assert (document["verdict"], document["changes"]) == ("changes", True)
        assert document["counts"]["replace"] == step["counts"]["replace"] == 1
        assert resource["replace_paths"] == ["triggers_replace"]
        assert attributes(resource)["input.suffix"] == ("assets2", "assets")
        (forced,) = (item for item in resource["attributes"] if item["forces_replacement"])
        assert forced["path"] == "triggers_replace.suffix"
        assert [
            (item["name"], item["before"], item["after"], item["source"])
            for item in step["inputs_changed"]
        ] == [("suffix", "assets2", "assets", "blueprint default")]
        outputs = {
            item["name"]: (item["before"], item["after"]) for item in step["outputs_changed"]
        }
        assert outputs == {"name": ("shop-assets2", "shop-assets")}
        assert step["checks"] == [
            {"address": "check.suffix", "status": "fail", "problems": ["the suffix is assets"]}
        ]
        (warning,) = step["diagnostics"]
        assert warning["file"] == "modules/assets/main.tf"
        line = Path(forgotten.root, warning["file"]).read_text().splitlines()[warning["line"] - 1]
        assert "condition" in line
        (action,) = step["actions"]
        assert (action["address"], action["action"]) == ("terraform_data.this", "replace")

    def test_no_secret_is_in_it(self, forgotten: Project) -> None:
        """
        Law: secrets travel with values.
        Also where the engine calls a copy of one not sensitive; that one changes is told.
        """
        other = {"ORCHESTRATOR_INPUT_token": "another-77aa"}
        for arguments in ([], ["-v"], ["--json"], ["--destroy", "-v"], ["--destroy", "--json"]):
            ended = forgotten.run("plan", "shop", *arguments, environ=other)
            assert SECRET not in ended.said
            assert "another-77aa" not in ended.said
        document = forgotten.run("plan", "shop", "--json", environ=other).document
        inputs = {item["name"]: item for item in document["steps"][0]["inputs_changed"]}
        assert inputs["token"]["sensitive"]
        assert inputs["token"]["before"] is None
        assert inputs["token"]["source"] == "environment variable ORCHESTRATOR_INPUT_token"

    def test_no_dependent_of_it_is_called_unchanged(self, forgotten: Project) -> None:
        """
        Neither by a reference nor by `needs`, nor behind one of those; it counts for the exit code.
        Planned with the change what a reference brings is known, what `needs` may is not.
        """
        together = forgotten.run("plan", "shop", "--json")
        assert together.rows["app"]["status"] == "planned"
        assert together.rows["late"]["status"] == "deferred"
        ended = forgotten.run("plan", "shop", "--json", "--detailed-exitcode", "--separate")
        assert ended.code == 2
        rows = ended.rows
        assert [rows[step]["status"] for step in ("assets", "app", "late")] == [
            "planned",
            "deferred",
            "deferred",
        ]
        assert rows["app"]["waits_for"] == ["assets"]
        assert rows["late"]["waits_for"] == ["assets", "app"]
        assert rows["app"]["reason"] == "upstream changes: planned when it is applied"

    def test_the_summary_has_the_losses_and_no_attributes(self, forgotten: Project) -> None:
        """
        One line a step, after what would be destroyed or replaced.
        """
        said = forgotten.ok("plan", "shop", "--summary").out
        assert "-/+ assets  terraform_data.this" in said
        assert "  assets: 1 to replace\n" in said
        assert "suffix" not in said


def test_an_apply_that_nobody_watches_reads_no_values(project: Project, tmp_path: Path) -> None:
    """
    `plan` reads the plan file once, or once a step that changes; `apply --yes` never does.
    """
    engine = watched(shop(project), tmp_path / "watched")
    project.ok("plan", "shop")
    assert len(engine.calls("show")) == 1
    project.ok("plan", "shop", "--separate")
    assert engine.calls("show")[1:] == ["assets", "late"]
    project.ok("apply", "shop", "--yes")
    project.ok("plan", "shop", "-s", "app")
    assert len(engine.calls("show")) == 3


def test_a_person_is_shown_the_values_before_the_question(project: Project) -> None:
    """
    At a terminal an apply shows what a plan shows, and then asks.
    """
    shop(project).ok("apply", "shop", "--yes", "-i", "suffix=assets2")
    terminal = Terminal(project, "apply", "shop", "-s", "assets")
    terminal.wait_for("Continue?")
    shown = terminal.shown
    assert 'input.suffix: "assets2" -> "assets"' in shown
    assert shown.index("forced by") < shown.index("Continue?")
    terminal.type("no\n")
    assert terminal.finish() == 5
    assert SECRET not in terminal.shown
    (kept,) = project.own.glob("runs/*/plan.json")
    assert '"input.suffix"' in kept.read_text()
    assert SECRET not in kept.read_text()


KINDS = """
    terraform { required_version = ">= 1.7" }
    resource "terraform_data" "stays" { input = "s" }
    resource "terraform_data" "OLD" { input = "m" }
    resource "terraform_data" "kept" { input = "k" }
    resource "terraform_data" "text" {
      input = "set -e\\necho one\\necho two\\necho three\\n"
    }
    resource "terraform_data" "list" { input = ["a", "b", "c"] }
    resource "terraform_data" "json" { input = jsonencode({ a = 1, b = [1, 2] }) }
"""
OTHER_KINDS = """
    terraform { required_version = ">= 1.7" }
    resource "terraform_data" "stays" { input = "s" }
    resource "terraform_data" "new" { input = "m" }
    moved {
      from = terraform_data.OLD
      to   = terraform_data.new
    }
    removed {
      from = terraform_data.kept
      lifecycle { destroy = false }
    }
    import {
      to = terraform_data.taken
      id = "some-id"
    }
    resource "terraform_data" "taken" {}
    resource "terraform_data" "text" {
      input = "set -e\\necho one\\necho 2\\necho three\\n"
    }
    resource "terraform_data" "list" { input = ["b", "c", "d"] }
    resource "terraform_data" "json" { input = "{\\"b\\": [1, 2], \\"a\\": 1}" }
"""


@every_engine
def test_each_kind_of_change_is_called_by_its_name(
    tmp_path_factory: pytest.TempPathFactory, engine: str
) -> None:
    """
    Moved with the old address, forgotten, imported; a text as the lines that differ, a list as its
    elements, and what only differs in notation folded away.
    """
    project = Project(tmp_path_factory.mktemp("kinds"), engine=engine)
    project.write("modules/kinds/main.tf", KINDS)
    project.write(
        "blueprints/kinds.yaml", "version: 1\nname: kinds\nsteps: {k: {module: ../modules/kinds}}\n"
    )
    project.ok("apply", "kinds", "--yes")
    project.write("modules/kinds/main.tf", OTHER_KINDS)

    said = project.ok("plan", "kinds").out
    document = project.ok("plan", "kinds", "--json").document

    assert "terraform_data.new (moved from terraform_data.OLD)" in said
    assert "terraform_data.kept (forgotten: it stays alive)" in said
    assert "terraform_data.taken (imported from some-id)" in said
    assert "- echo two" in said
    assert "+ echo 2" in said
    assert "~ input:" in said
    assert '- input[0]: "a"' in said
    assert '+ input[2]: "d"' in said
    assert "module: not the one of the last apply" in said
    assert "terraform_data.stays" not in said
    counts = document["counts"]
    assert (counts["move"], counts["forget"], counts["update"]) == (1, 1, 3)
    found = {item["address"]: item for item in document["steps"][0]["resources"]}
    json_input = [
        item for item in found["terraform_data.json"]["attributes"] if item["path"] == "input"
    ]
    assert [item["equivalent"] for item in json_input] == [True]
    assert found["terraform_data.new"]["previous_address"] == "terraform_data.OLD"


def test_what_is_tainted_or_asked_for_says_so(project: Project) -> None:
    """
    A replacement names its cause, also where no attribute is it.
    """
    shop(project).ok("apply", "shop", "--yes")
    replaced = project.ok("plan", "shop", "-s", "late", "--replace", "terraform_data.app").out
    assert "terraform_data.app  REPLACE (requested)" in replaced
    state = project.own / "state/shop/default/late.tfstate"
    data = json.loads(state.read_text())
    for item in data["resources"]:
        item["instances"][0]["status"] = "tainted"
    data["serial"] += 1
    state.write_text(json.dumps(data))
    tainted = project.run("plan", "shop", "-s", "late")
    assert "terraform_data.app  REPLACE (it is tainted)" in tainted.said


PROVIDER_TEXT = """
    variable "suffix" { type = string }
    resource "terraform_data" "this" { input = var.suffix }
    check "text" {
      assert {
        condition     = terraform_data.this.input == ""
        error_message = "::error file=x::no, ##[error]y 100%"
      }
    }
"""


def test_a_runner_is_told_and_obeys_nobody_else(project: Project, tmp_path: Path) -> None:
    """
    Under GitHub Actions: summary, outputs, an annotation on the module's line in the repository;
    under GitLab CI the counts. Text of others is no command, and no token is needed.
    """
    project.write("modules/m/main.tf", PROVIDER_TEXT)
    project.write(
        "blueprints/m.yaml",
        "version: 1\nname: m\nsteps: {m: {module: ../modules/m, inputs: {suffix: '::warning::z'}}}",
    )
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    outputs.write_text("mine=1")  # somebody else's, without an end of line
    runner = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_WORKSPACE": str(project.root.parent),
        "CI": "true",
    }
    ended = project.run("plan", "m", "--json-file", "plan.json", "-v", environ=runner)
    assert ended.code == 0, ended.said
    commands = [line for line in ended.said.splitlines() if line.lstrip().startswith("::")]
    line = 1 + next(
        number
        for number, text in enumerate(PROVIDER_TEXT.strip().splitlines())
        if "condition" in text
    )
    assert commands == [
        "::group::m: 1 to create",
        "::endgroup::",
        f"::warning file={project.root.name}/modules/m/main.tf,line={line},title=m%3A "
        "engine-warning::Check block assertion failed%0A: :error file=x::no, # #[error]y 100%25",
    ]
    assert "##[" not in ended.said
    assert "### plan of apply `m/default`: 1 to create" in summary.read_text()
    values = dict(text.split("=", 1) for text in outputs.read_text().split("\n") if text)
    assert values["mine"] == "1"
    assert (values["has_changes"], values["verdict"], values["create"]) == ("true", "changes", "1")
    assert json.loads((project.root / "plan.json").read_text())["schema"] == "orchestrator.plan/2"

    project.run("plan", "m", environ={"GITLAB_CI": "true"})
    report = json.loads((project.root / "gl-terraform-report.json").read_text())
    assert report == {"create": 1, "update": 0, "delete": 0}


RUNNERS = {
    "GITHUB_ACTIONS": ("::group::{}", "::endgroup::"),
    "TF_BUILD": ("##[group]{}", "##[endgroup]"),
    "GITLAB_CI": (
        "\x1b[0Ksection_start:N:orchestrator_0[collapsed=true]\x1b[0K{}",
        "\x1b[0Ksection_end:N:orchestrator_0\x1b[0K",
    ),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_folds_the_steps_and_not_what_they_come_to(project: Project, runner: str) -> None:
    """
    In a plan each step that changes is a group below the summary; in a run what happened on the way
    is one above it. A step that could not be planned is not folded away, and JSON has no groups.
    """
    project.write("modules/m/main.tf", 'resource "terraform_data" "this" {}')
    project.write("modules/bad/main.tf", 'resource "terraform_data" "this" { input = [][0] }')
    steps = "m: {module: ../modules/m}, bad: {module: ../modules/bad}"
    project.write("blueprints/m.yaml", f"version: 1\nname: m\nsteps: {{{steps}}}\n")
    begin, end = RUNNERS[runner]

    def lines(*arguments: str) -> list[str]:
        said = project.run(*arguments, environ={runner: "true"}).out
        # A title of GitLab's is written over its mark.
        whole = re.sub(r"[\r\n](?=\x1b\[0K(?!section))", "", said)
        return re.sub(r":\d{10}:", ":N:", whole).split("\n")

    planned = lines("plan", "m")
    applied = lines("apply", "m", "--yes", "--step", "m")

    at = [planned.index(line) for line in (begin.format("m: 1 to create"), end)]
    assert planned[0].startswith("plan of apply m/default: 1 to create")
    assert any("terraform_data.this" in line for line in planned[at[0] : at[1]])
    assert "Invalid index" in "".join(planned[at[1] :])
    first, last = applied.index(begin.format("step by step")), applied.index(end)
    assert "m │ applying ..." in applied[first:last]
    assert any(line.startswith("verdict: ") for line in applied[last:])
    assert json.loads("\n".join(lines("plan", "m", "--json")))["verdict"] == "failed"


def test_a_report_that_cannot_be_written_fails_nothing(project: Project) -> None:
    """
    The verdict is the exit code; that a report is missing is said.
    """
    project.write("modules/m/main.tf", 'resource "terraform_data" "this" {}')
    project.write("blueprints/m.yaml", "version: 1\nname: m\nsteps: {m: {module: ../modules/m}}")
    ended = project.run("plan", "m", "--junit", "no/such/place.xml", "--detailed-exitcode")
    assert ended.code == 2
    assert "no/such/place.xml cannot be written" in ended.err
    # An approval that cannot be written is found before anybody waits for its plan.
    for place in ("no/such/place.json", "long" * 100):
        refused = project.run("plan", "m", "--out", place)
        assert (refused.code, refused.out) == (64, "")
        assert "cannot be written" in " ".join(refused.err.split())


def test_what_is_wrong_with_a_blueprint_is_annotated_where_it_stands(project: Project) -> None:
    """
    By any command that loads it: on its own line in the repository.
    """
    project.write("modules/m/main.tf", 'resource "terraform_data" "this" {}')
    text = "version: 1\nname: m\nsteps:\n  m: {module: ../modules/m, neds: []}\n"
    project.write("blueprints/m.yaml", text)
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(project.root.parent)}
    place = f"::error file={project.root.name}/blueprints/m.yaml,line=4,title=invalid::"
    for arguments in (("plan", "m"), ("validate", "m"), ("apply", "m", "--yes")):
        ended = project.run(*arguments, environ=runner)
        assert ended.code == 3
        assert place in ended.err
    assert "::error" not in project.run("plan", "m").said
