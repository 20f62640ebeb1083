"""
Approved means approved: an apply of what `plan --out` wrote changes that, and nothing else.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.project import Project

pytestmark = pytest.mark.engine

SECRET = "hush-9a71"
MODULE = """
    variable "value" { type = string }
    variable "token" {
      type      = string
      default   = "none"
      sensitive = true
    }
    resource "terraform_data" "this" { input = { value = var.value, token = var.token } }
    output "value" { value = terraform_data.this.output.value }
"""
BLUEPRINT = """
    version: 1
    name: pair
    inputs:
      value: {type: string, default: one}
      token: {type: string, sensitive: true}
    environments: {default: {}, other: {}}
    steps:
      first: {module: ../modules/m, inputs: {value: "${inputs.value}", token: "${inputs.token}"}}
      second: {module: ../modules/m, inputs: {value: fixed}, needs: [first]}
      third: {module: ../modules/m, inputs: {value: "${steps.first.outputs.value}"}}
"""
LAST = "third: {module: ../modules/last"


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/m/main.tf", MODULE)
    project.write("blueprints/pair.yaml", BLUEPRINT)
    project.environ["ORCHESTRATOR_INPUT_token"] = SECRET
    return project


def plan(project: Project, *arguments: str) -> Path:
    project.prepare("plan", "pair", "--out", "approval.json", *arguments)
    return project.root / "approval.json"


def test_a_new_environment_is_approved_as_a_whole(project: Project) -> None:
    """
    Without --yes: the approval is the file. What was unknown when it was approved may be known now.
    """
    plan(project)
    ended = project.run("apply", "pair", "--plan", "approval.json", "--json")
    assert ended.code == 0, ended.said
    assert ended.statuses == {"first": "ok", "second": "ok", "third": "ok"}


def test_the_offered_command_carries_out_what_was_planned(project: Project) -> None:
    """
    With the inputs that the plan was given; a secret among them is left for the person to give.
    Addresses to replace or target are part of what was approved.
    """
    ended = project.ok(
        "plan",
        "pair",
        "--out",
        "approval.json",
        "-i",
        "value=a b",
        "-i",
        f"token={SECRET}",
        "--json",
    )
    (offered,) = ended.document["next"]
    assert "-i 'value=a b'" in offered["command"] and SECRET not in ended.said
    assert project.run(*shlex.split(offered["command"])[1:]).code == 0

    this = "terraform_data.this"
    for option, given, expected in (("--replace", "a b", "replaced"), ("--target", "c", "updated")):
        inputs = ("-i", f"value={given}", "--step", "first", "--out", "approval.json")
        (offered,) = project.ok("plan", "pair", option, this, *inputs, "--json").document["next"]
        done = project.ok(*shlex.split(offered["command"])[1:], "--json")
        assert done.row[expected] == [this], option


def test_what_nobody_could_plan_waits_for_another_approval(project: Project) -> None:
    """
    The steps before it are applied; it is left pending without a record, exit 6, and planned with
    the next approval.
    """
    file = plan(project, "--separate")
    assert SECRET not in file.read_text()
    assert json.loads(file.read_text())["schema"] == "orchestrator.approval/1"

    ended = project.run("apply", "pair", "--plan", "approval.json", "--json")

    assert ended.code == 6, ended.said
    assert ended.statuses == {"first": "ok", "second": "ok", "third": "pending"}
    assert "what it changes was not shown" in ended.rows["third"]["reason"]
    assert project.entries("third") == []
    plan(project)
    assert project.run("apply", "pair", "--plan", "approval.json", "--json").statuses == {
        "first": "ok",
        "second": "ok",
        "third": "ok",
    }


def test_another_value_is_stopped_before_its_step_is_touched(project: Project) -> None:
    """
    The input is another one by now: exit 6 with what differs, the record as it was, the rest
    pending; no secret in it.
    """
    project.prepare("apply", "pair", "--yes")
    plan(project, "-i", "value=two")
    entries = {name: project.entries(name) for name in ("first", "second", "third")}

    ended = project.run("apply", "pair", "--plan", "approval.json", "-i", "value=three", "--json")

    assert ended.code == 6
    assert set(ended.statuses.values()) == {"pending"}
    assert "input value is another one" in ended.rows["first"]["reason"]
    assert {name: project.entries(name) for name in entries} == entries
    (offered,) = ended.events[-1]["next"]
    project.ok(*shlex.split(offered["command"])[1:])
    project.ok("apply", "pair", "--plan", "approval.json", "-i", "value=three")
    plan(project, "-i", "value=two")
    other = {"ORCHESTRATOR_INPUT_token": "other-77aa"}
    changed = project.run(
        "apply", "pair", "--plan", "approval.json", "-i", "value=two", environ=other
    )
    assert changed.code == 6
    assert "input.token is not what was approved" in " ".join(changed.said.split())
    assert "other-77aa" not in changed.said
    assert SECRET not in changed.said


def test_another_input_is_another_plan(project: Project) -> None:
    """
    Also where no value of the plan tells it, as with the command of a provisioner.
    """
    project.write(
        "modules/m/more.tf",
        """
        variable "command" { default = "true" }
        resource "terraform_data" "does" {
          provisioner "local-exec" { command = var.command }
        }
        """,
    )
    text = (project.root / "blueprints/pair.yaml").read_text()
    assert text.count('token: "${inputs.token}"}') == 1
    given = text.replace(
        'token: "${inputs.token}"}', 'token: "${inputs.token}", command: "COMMAND"}'
    )
    project.write("blueprints/pair.yaml", given.replace("COMMAND", "true"))
    plan(project)
    project.write("blueprints/pair.yaml", given.replace("COMMAND", "touch was-here"))

    ended = project.run("apply", "pair", "--plan", "approval.json", "--json")

    assert ended.code == 6
    assert "input command is another one" in ended.rows["first"]["reason"]
    assert not list(project.own.rglob("was-here"))


def test_an_input_that_was_left_out_is_another_plan(project: Project) -> None:
    """
    What was approved is not silently left undone: without the input that it was planned with there
    is nothing to change, and that ends with 6. Once it is applied, the same again ends with 0.
    """
    project.prepare("apply", "pair", "--yes")
    plan(project, "-i", "value=two")
    entries = project.entries("first")

    ended = project.run("apply", "pair", "--plan", "approval.json", "--json")

    assert ended.code == 6, ended.said
    assert "input value is another one" in ended.rows["first"]["reason"]
    assert project.entries("first") == entries
    for _ in range(2):
        project.ok("apply", "pair", "--plan", "approval.json", "-i", "value=two")


def test_another_region_is_another_plan(project: Project, cloud: Cloud) -> None:
    """
    No value of what is to be created tells where: neither by the blueprint nor by the environment.
    """
    project.write(
        "blueprints/pair.yaml",
        """
        version: 1
        name: pair
        inputs: {region: {type: string, default: eu}}
        providers: {fakecloud: {region: "${inputs.region}"}}
        steps: {web: {module: ../modules/server}}
        """,
    )
    plan(project)

    ended = project.run("apply", "pair", "--plan", "approval.json", "-i", "region=us", "--json")

    assert ended.code == 6
    assert "providers.fakecloud is another one" in ended.row["reason"]
    elsewhere = {"FAKECLOUD_REGION": "us"}
    ended = project.run("apply", "pair", "--plan", "approval.json", "--json", environ=elsewhere)
    assert (ended.code, "FAKECLOUD_REGION is another one" in ended.said) == (6, True), ended.said
    assert not cloud.servers()
    project.ok("apply", "pair", "--plan", "approval.json")


def test_an_edited_module_is_another_plan(project: Project) -> None:
    """
    Also where its plan looks the same; found before the steps that come first are applied, although
    what they give it is not there yet.
    """
    project.write("modules/last/main.tf", MODULE)
    text = (project.root / "blueprints/pair.yaml").read_text()
    project.write("blueprints/pair.yaml", text.replace("third: {module: ../modules/m", LAST))
    plan(project)
    project.write("modules/last/more.tf", "locals { x = 1 }")
    ended = project.run("apply", "pair", "--plan", "approval.json", "--json")
    assert ended.code == 6
    assert "the module is another one" in ended.rows["third"]["reason"]
    assert project.entries("first") == []

    kept = (line for line in text.splitlines() if "third:" not in line)
    project.write("blueprints/pair.yaml", "\n".join(kept))
    without = project.run("apply", "pair", "--plan", "approval.json")
    assert (without.code, "has no step third" in without.said) == (6, True), without.said


def test_only_some_of_what_was_approved(project: Project) -> None:
    """
    --approve-only takes steps of the plan; the others are not in the run. What somebody did
    meanwhile is less to do.
    """
    plan(project)
    some = project.run(
        "apply", "pair", "--plan", "approval.json", "--approve-only", "first", "--json"
    )
    assert (some.code, some.statuses) == (0, {"first": "ok"})
    unknown = project.run("apply", "pair", "--plan", "approval.json", "--approve-only", "fist")
    assert unknown.code == 64
    assert "first" in unknown.said
    rest = project.run("apply", "pair", "--plan", "approval.json", "--json", "-i", "value=one")
    assert rest.statuses["second"] == "ok"


@pytest.mark.parametrize(
    ("change", "arguments", "code", "said"),
    [
        ({}, ("-e", "other"), 4, "not of apply pair/other"),
        ({"command": "destroy"}, (), 4, "the approval is of destroy"),
        ({"created_at": "2026-01-01T00:00:00Z"}, (), 4, "changed since it was made"),
        ({"schema": "orchestrator.plan/2"}, (), 3, "it is no orchestrator.approval/1"),
        ({}, ("--max-age", "1ms"), 5, "which is more than"),
        ({}, ("--step", "first"), 64, "--plan selects the steps"),
    ],
)
def test_an_approval_is_of_one_thing(
    project: Project, change: dict[str, str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    """
    Another environment or command, another text, too old, or none at all: nothing is even planned.
    """
    file = plan(project)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    ended = project.run("apply", "pair", "--plan", "approval.json", *arguments)
    assert ended.code == code, ended.said
    assert said in " ".join(ended.said.split())
    assert not list(project.own.glob("runs/*/steps"))


def test_a_destroy_is_approved_the_same_way(project: Project) -> None:
    """
    What came to be since the plan is not destroyed with the rest, and no command is run before it
    that nobody has seen.
    """
    project.prepare("apply", "pair", "--yes")
    plan(project, "--destroy", "--step", "third", "--step", "second")
    text = (project.root / "blueprints/pair.yaml").read_text()
    hook = 'before_destroy: {command: ["touch", "was-here"]}'
    project.write("blueprints/pair.yaml", text.replace("second: {", f"second: {{{hook}, "))
    other = project.run("destroy", "pair", "--plan", "approval.json", "--json")
    assert (other.code, not [*project.root.rglob("was-here")]) == (6, True), other.said
    assert "before_destroy is another one" in other.rows["second"]["reason"]
    project.write("blueprints/pair.yaml", text)
    done = project.run("destroy", "pair", "--plan", "approval.json", "--json")
    assert (done.code, done.statuses) == (0, {"third": "destroyed", "second": "destroyed"})

    plan(project, "--destroy", "--step", "first")
    project.write("modules/m/more.tf", 'resource "terraform_data" "new" {}')
    project.ok("apply", "pair", "--yes", "--step", "first")
    ended = project.run("destroy", "pair", "--plan", "approval.json", "--json")
    assert ended.code == 6
    assert "terraform_data.new: delete was not approved" in ended.row["reason"]


def test_a_serial_that_moved_alone_refuses_nothing(project: Project) -> None:
    """
    The same state, written again by somebody who changed nothing of it.
    """
    project.prepare("apply", "pair", "--yes")
    plan(project, "-i", "value=two", "--step", "first")
    state = project.own / "state/pair/default/first.tfstate"
    data = json.loads(state.read_text())
    data["serial"] += 1
    state.write_text(json.dumps(data))
    ended = project.run("apply", "pair", "--plan", "approval.json", "-i", "value=two")
    assert ended.code == 0, ended.said
