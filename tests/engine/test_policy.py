"""
A policy in the blueprint: held against plans, applies and destroys, overridden with a reason only.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.project import Project
from tests.terminal import Terminal

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
    project.prepare("apply", "shop", "--yes")
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


def test_an_apply_is_refused_before_anything_is_changed(project: Project) -> None:
    """
    Also where only a step that comes last does what is forbidden, because of one before it; nobody
    is asked about it.
    """
    project.write("modules/m/outputs.tf", 'output "id" { value = terraform_data.other.id }')
    text = BLUEPRINT.replace("no_destroy: [terraform_data.kept]", "protected_steps: [last]")
    last = '      last: {module: ../modules/m, inputs: {value: "${steps.data.outputs.id}"}}\n'
    project.write("blueprints/shop.yaml", text + last)
    project.prepare("apply", "shop", "--yes")
    before = project.entries("data")
    project.write(
        "modules/m/main.tf", MODULE.replace("input =", "triggers_replace = var.value\n input =")
    )

    ended = project.run("apply", "shop", "-i", "value=two", "--yes", "--json")
    terminal = Terminal(project, "apply", "shop", "-i", "value=two")

    assert ended.code == terminal.finish() == 4
    assert "would be replaced, and the step last is protected" in ended.rows["last"]["last_error"]
    assert ended.statuses == {"data": "pending", "more": "pending", "last": "error"}
    assert "Continue?" not in terminal.shown
    assert project.entries("data") == before


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


REGO = BLUEPRINT.replace("{no_destroy: [terraform_data.kept]}", "{rego: [../rules]}").replace(
    "      free: {policy: {no_destroy: []}}", "      free: {policy: {rego: []}}"
)
#: What `conftest` and `opa` take, print and end with, without Rego: a rule that denies what
#: replaces something, and one that warns of updates.
STANDIN = """\
#!{python}
import json, pathlib, sys
words, name = sys.argv[1:], pathlib.Path(sys.argv[0]).name
policies = [words[at + 1] for at, word in enumerate(words) if word in ("--policy", "--data")]
if not all(list(pathlib.Path(p).glob("*.rego")) for p in policies):
    print("Error: running test: load: no policies found in " + str(policies), file=sys.stderr)
    sys.exit(1)
plan = words[-1] if name == "conftest" else words[words.index("--input") + 1]
text = pathlib.Path(plan).read_text()
pathlib.Path({log!r}).open("a").write(json.dumps([words, text]) + "\\n")
document = json.loads(text)
deny, warn = [], []
for step in document["steps"]:
    for item in step["resources"]:
        if item["action"] in ("replace", "delete"):
            deny.append({{"msg": "no losses", "step": step["step"], "address": item["address"]}})
        if item["action"] == "update":
            warn.append("an update")
if name == "conftest":
    assert words[0] == "test" and words[words.index("--output") + 1] == "json"
    row = {{"filename": plan, "namespace": "main", "successes": 2 - bool(deny) - bool(warn)}}
    failures = [{{"msg": d["msg"], "metadata": {{**d, "query": "data.main.deny"}}}} for d in deny]
    if failures:
        row["failures"] = failures
    if warn:
        row["warnings"] = [{{"msg": m, "metadata": {{"query": "data.main.warn"}}}} for m in warn]
    print(json.dumps([row], indent="\\t"))
    sys.exit(1 if deny else 0)
assert words[0] == "eval" and words[words.index("--format") + 1] == "json"
value = {{"main": {{"deny": deny, "warn": warn, "helper": {{"x": 1}}}}}}
print(json.dumps({{"result": [{{"expressions": [{{"value": value, "text": words[-1]}}]}}]}}))
"""


@pytest.fixture
def rego(project: Project, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """
    The project with rules, and the program of that name; what it was asked.
    """
    log = tmp_path / "asked"
    program = project.root.parent / f"bin-{request.param}" / request.param
    program.parent.mkdir()
    program.write_text(STANDIN.format(python=sys.executable, log=str(log)))
    program.chmod(0o700)
    project.write("rules/main.rego", "package main\n")
    project.write("blueprints/shop.yaml", REGO)
    project.environ["PATH"] = f"{program.parent}:{project.environ['PATH']}"
    return log


@pytest.mark.parametrize("rego", ["conftest", "opa"], indirect=True)
def test_rules_of_the_open_policy_agent(project: Project, rego: Path) -> None:
    """
    Asked of the whole plan by plan and gate, of each step by an apply, of all by a destroy; a
    warning forbids nothing. The rules see no secret.
    """
    planned = project.run("plan", "shop", "-i", "value=two", "--json")
    gate = project.run("gate", "shop", "-i", "value=two", "--json", "--junit", "gate.xml")
    before = project.entries("data")
    applied = project.run("apply", "shop", "-i", "value=two", "--yes")
    destroyed = project.run("destroy", "shop", "--yes")

    assert (planned.code, gate.code, applied.code, destroyed.code) == (4, 4, 4, 4)
    found = [(i["rule"], i["verdict"], i["step"], i["address"]) for i in planned.document["policy"]]
    assert found == [
        ("rego", "fail", "data", "terraform_data.kept"),
        ("rego", "warn", "", ""),
    ]
    reasons = [(i["code"], i["severity"], i["step"]) for i in gate.document["reasons"]]
    assert ("policy", "fail", "data") in reasons and ("policy", "warn", None) in reasons
    assert "no losses" in " ".join(applied.said.split())
    assert project.entries("data") == before
    assert "all steps" in project.run("plan", "shop", "-i", "value=two").out
    assert "no losses" in project.run("plan", "shop", "--destroy").out

    forced = project.run(
        "apply", "shop", "-i", "value=two", "--yes", "--override-policy", "agreed in OPS-7"
    )
    assert forced.code == 0
    assert "agreed in OPS-7" in json.dumps(project.last_run())
    free = project.run("apply", "shop", "-e", "free", "--yes")
    assert free.code == 0
    assert rego.read_text()


@pytest.mark.parametrize("rego", ["conftest", "opa"], indirect=True)
def test_rules_that_cannot_be_asked_forbid(project: Project, rego: Path) -> None:
    """
    The program is missing, or finds no rules, or fails: nobody has looked, so nothing may be done,
    unless a reason is given. A place outside of the project, or that is not there, is an error.
    """
    path = project.environ["PATH"]
    engine = shutil.which(project.environ["ORCHESTRATOR_ENGINE"])
    assert engine is not None
    project.environ |= {"PATH": "/nowhere", "ORCHESTRATOR_ENGINE": engine}
    missing = project.run("gate", "shop", "-i", "value=two")
    applied = project.run("apply", "shop", "-i", "value=two", "--yes")
    project.environ["PATH"] = path
    (project.root / "rules/main.rego").rename(project.root / "rules/main.txt")
    empty = project.run("plan", "shop", "-i", "value=two")

    assert (missing.code, applied.code, empty.code) == (4, 4, 4)
    assert "neither conftest nor opa is on PATH" in " ".join(missing.said.split())
    assert "neither conftest nor opa is on PATH" in " ".join(applied.said.split())
    assert "no policies found" in " ".join(empty.said.split())
    for place, said in (("../../x", "outside of the project"), ("../nowhere", "there is no")):
        project.write("blueprints/shop.yaml", REGO.replace("../rules", place))
        wrong = project.run("validate", "shop")
        assert (wrong.code, said in " ".join(wrong.said.split())) == (3, True), wrong.said
