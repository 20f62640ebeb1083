"""
`recover`, and what it offers, on what real runs left.

The commands that it prints are run as they are printed, until nothing is left to do.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.project import Project, eventually, every_engine

pytestmark = pytest.mark.engine

WEB = """
    version: 1
    name: web
    steps:
      server:
        module: ../modules/server
        inputs: {name: web, tags: {owner: "${target.id}"}}
        %s
      later: {module: ../fixtures/shared/object, inputs: {name: later}, needs: [server]}
"""
SEARCH = """search:
          fakecloud_server.this:
            data: fakecloud_servers
            arguments: {tags: {owner: "${target.id}"}}
            ids: ids"""

PROVISIONED = """
    variable "command" {
      type = string
    }

    resource "terraform_data" "it" {
      triggers_replace = var.command
      provisioner "local-exec" {
        command = var.command
      }
    }
"""


@pytest.fixture
def project(project: Project) -> Project:
    """
    A project; its engine is the one on PATH unless a test says otherwise.
    """
    project.copy("fixtures/shared")
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    return project


def blueprint(project: Project, more: str = "") -> None:
    project.write("blueprints/web.yaml", WEB % (more or "description: a server"))


def recover(project: Project, *arguments: str) -> dict[str, Any]:
    """
    The document of ``recover --json``.
    """
    found: dict[str, Any] = project.ok("recover", "web", "--json", *arguments).document
    return found


def step(project: Project, name: str = "server") -> dict[str, Any]:
    return next(row for row in recover(project)["steps"] if row["step"] == name)


def take(project: Project, row: Mapping[str, Any], action: str) -> int:
    """
    Run the command that is offered for an action as it is printed; its exit code.
    """
    offer = next(item for item in row["actions"] if item["action"] == action)
    assert offer["available"], offer
    words = shlex.split(offer["command"])
    assert words[0] == "orchestrator"
    ended = project.run(*words[1:], *(("--yes",) if words[1] in ASKING else ()))
    assert ended.code not in (1, 64), ended.said
    return ended.code


#: The verbs that ask for approval: it is never in a printed command.
ASKING = ("apply", "destroy", "reconcile", "redeploy", "retry", "rollback", "compensate")


def follow(project: Project) -> list[tuple[str, str]]:
    """
    Take what is recommended, step by step, until nothing is; situation and action of each.
    """
    taken: list[tuple[str, str]] = []
    while len(taken) < 10:
        rows = [row for row in recover(project)["steps"] if row["recommended"]]
        if not rows:
            return taken
        taken.append((rows[0]["situation"], rows[0]["recommended"]))
        take(project, rows[0], rows[0]["recommended"])
    pytest.fail(f"it goes in circles: {taken}")


def test_an_action_is_done_only_on_the_entry_it_was_offered_on(project: Project) -> None:
    """
    Law: offers are re-checked.
    With ``--at`` a command is carried out where the step is as it was, 0 for no record;
    where it has moved on it is refused with what it is now, and nothing is recorded.
    """
    project.write(
        "blueprints/web.yaml",
        """
        version: 1
        name: web
        steps:
          up: {module: ../fixtures/shared/object, inputs: {name: up}}
          down: {module: ../fixtures/shared/object, inputs: {name: down}, needs: [up]}
        """,
    )
    project.ok("apply", "web", "--yes", "--step", "up", "--at", "0")
    before = project.entries("up")
    ended = project.run("destroy", "web", "--yes", "--step", "up", "--at", "0", "--json")
    assert ended.code == 4
    finished = ended.events[-1]
    assert "entry 2, `ok`" in finished["error"]
    assert finished["hint"] == "orchestrator recover web --step up"
    assert project.entries("up") == before
    assert project.run("destroy", "web", "--yes", "--at", "2").code == 64
    project.ok("destroy", "web", "--yes", "--step", "up", "--at", "2")
    assert project.record("up")["status"] == "destroyed"


@every_engine
def test_a_lost_answer_is_recovered_by_what_the_screen_says(project: Project, cloud: Cloud) -> None:
    """
    The create was done and its answer lost: reconcile asks, what is found is adopted, and the rest
    is applied; nothing was made twice.
    """
    blueprint(project, SEARCH)
    cloud.arm("create", "web", "lost_answer:deadline")
    assert project.run("apply", "web", "--yes").code == 11
    waits = step(project, "later")
    assert (waits["status"], waits["blocked_by"]) == ("pending", ["server"])
    assert follow(project)[:2] == [("in_doubt", "reconcile"), ("found", "reconcile")]
    assert project.status("web")["verdict"] == "ok"
    assert [server.name for server in cloud.servers()] == ["web"]


def test_without_a_way_to_ask_a_person_is_told_where_to_look(
    project: Project, cloud: Cloud
) -> None:
    """
    No identity and no search: after one reconcile it is a person's, with window, address and
    inputs; what they forget is applied anew.
    """
    blueprint(project)
    cloud.arm("create", "web", "lost_request:reset")
    assert project.run("apply", "web", "--yes").code == 11
    assert step(project)["recommended"] == "reconcile"
    take(project, step(project), "reconcile")
    row = step(project)
    assert (row["situation"], row["recommended"]) == ("unanswerable", "manual")
    (doubt,) = row["evidence"]["in_doubt"]
    assert doubt["address"] == "fakecloud_server.this" and doubt["after"] < doubt["before"]
    take(project, row, "manual")
    follow(project)
    assert project.status("web")["verdict"] == "ok"
    assert [server.name for server in cloud.servers()] == ["web"]


def test_a_reconcile_makes_no_destroyed_of_a_failure(project: Project, cloud: Cloud) -> None:
    """
    A first apply that the provider refused made nothing, so nothing can be gone: its failure stays
    told. The module has no outputs: then nothing at all is in the provider state.
    """
    blueprint(project)
    module = project.root / "modules/server/main.tf"
    module.write_text(re.sub(r'output "\w+" \{.*?\n\}\n', "", module.read_text(), flags=re.DOTALL))
    cloud.arm("create", "web", "error_before:AccessDenied")
    assert project.run("apply", "web", "--yes").code == 10
    project.ok("reconcile", "web")
    status = project.run("status", "web", "--expect", "destroyed")

    assert project.record("server")["status"] == "error"
    assert status.code == 4
    assert "AccessDenied" in status.out
    follow(project)
    assert project.status("web")["verdict"] == "ok"


def test_a_plan_over_a_doubt_says_that_an_apply_is_refused(project: Project, cloud: Cloud) -> None:
    """
    The plan is shown and ends as the apply would: 11, with the doubt and what settles it. So also
    where the object left the provider state by a person's command.
    """
    blueprint(project, SEARCH)
    cloud.arm("create", "web", "lost_answer:reset")
    assert project.run("apply", "web", "--yes").code == 11
    lost = project.run("plan", "web")
    follow(project)
    settled = project.run("plan", "web")
    project.ok("exec", "web/default/server", "--yes", "--", "state", "rm", "fakecloud_server.this")
    removed = project.run("plan", "web")

    assert (lost.code, settled.code, removed.code) == (11, 0, 11)
    for ended in (lost, removed):
        assert "in doubt, so an apply is refused: fakecloud_server.this" in ended.out
        assert "`orchestrator reconcile web --step server`" in ended.out
        assert "1 to create" in ended.out


def test_a_doubt_is_settled_in_three_commands_where_the_step_said_no_way_to_ask(
    project: Project, cloud: Cloud
) -> None:
    """
    Reconcile shows the lines to add and offers itself once more with them, and that the adoption:
    each command is the one that the screen before it offers. Nothing is settled by waiting.
    """
    project.write("orchestrator.yaml", "settle_seconds: 600\n")
    blueprint(project)
    cloud.arm("create", "web", "lost_answer:reset")
    ended = project.run("apply", "web", "--yes")
    for number, said in enumerate(("", "lines like those above", "proven ours")):
        offered = re.findall(r"^  orchestrator (.+)\n      (.+)$", ended.out, re.MULTILINE)
        command = next(line for line, why in offered if "reconcile" in line and said in why)
        ended = project.run(*shlex.split(command), *(("--yes",) if number == 2 else ()))
        if number == 0:
            assert "search:\n" in ended.out and "data: fakecloud_servers" in ended.out
            blueprint(project, SEARCH)
    assert ended.code == 0, ended.said
    assert project.record("server")["resources"].get("in_doubt", []) == []
    assert [server.name for server in cloud.servers()] == ["web"]


def test_a_tainted_object_is_replaced_as_it_was_said(project: Project, cloud: Cloud) -> None:
    """
    Whoever takes what is offered over a tainted object was told that it replaces it.
    """
    blueprint(project)
    cloud.arm("create", "web", "error_after_partial")
    assert project.run("apply", "web", "--yes").code == 10
    row = step(project)
    (made,) = cloud.servers()
    assert row["evidence"]["tainted"] == ["fakecloud_server.this"]
    offers = {item["action"]: item for item in row["actions"]}
    for action in ("retry", "redeploy"):
        assert "(tainted): the apply replaces it" in offers[action]["reason"]["message"]
    follow(project)
    assert project.status("web")["verdict"] == "ok"
    assert [server.id for server in cloud.servers()] != [made.id]


@pytest.mark.parametrize("waits", [True, False], ids=["wait", "later"])
def test_a_killed_run_is_waited_for_and_settled(
    project: Project, cloud: Cloud, waits: bool
) -> None:
    """
    Law: an outlived run is settled from evidence.
    The tool is killed and its engine goes on. While that lives there is nothing but to wait;
    whoever waits, or comes when it is gone, settles what it did, and nothing is made twice.
    """
    blueprint(project)
    cloud.arm("create", "web", "slow")
    tool = project.start("apply", "web", "--yes", "--step", "server")
    cloud.wait_for_call("create", "web")
    tool.kill()
    tool.communicate()
    row = step(project)
    assert (row["condition"], row["recommended"]) == ("live", "wait")
    assert {seen["role"]: seen["state"] for seen in row["evidence"]["processes"]} == {
        "run": "gone",
        "engine": "alive",
    }
    screen = project.ok("recover", "web").out
    assert (screen.count("is in progress"), screen.count("> wait")) == (1, 1)
    Timer(0.5, cloud.disarm).start()
    if waits:
        assert take(project, row, "wait") == 0
    else:
        eventually(lambda: step(project)["condition"] == "interrupted", "the engine ends")
        assert step(project)["recommended"] == "reconcile"
    follow(project)
    assert project.status("web")["verdict"] == "ok"
    assert [server.name for server in cloud.servers()] == ["web"]


def test_a_failed_check_is_verified_and_reading_changes_nothing(project: Project) -> None:
    """
    Laws: reading changes nothing; failed checks.
    What is applied and fails its check is verified again; `recover` leaves every
    file of the project as it is.
    """
    project.write(
        "blueprints/web.yaml",
        """
        version: 1
        name: web
        steps:
          server:
            module: ../fixtures/shared/object
            inputs: {name: web}
            verify: [{command: {argv: [test, -e, healthy]}}]
        """,
    )
    assert project.run("apply", "web", "--yes").code == 12
    files = {path: path.read_bytes() for path in project.own.rglob("*") if path.is_file()}
    row = step(project)
    assert (row["situation"], row["recommended"]) == ("checks", "verify")
    assert row["hint"].startswith("everything was applied: look at the service")
    kept = {path: path.read_bytes() for path in project.own.rglob("*") if path.is_file()}
    assert kept == files
    project.write("healthy", "yes")
    assert follow(project) == [("checks", "verify")]
    assert recover(project)["last_verified_run"] is None  # the run itself had failed


def test_a_rollback_is_offered_to_the_last_verified_run_and_works(project: Project) -> None:
    """
    After a change whose check fails the run before it is named, and the command that is
    printed brings it back, verified.
    """
    text = """
        version: 1
        name: web
        steps:
          server:
            module: ../fixtures/shared/object
            inputs: {name: web, value: %s}
            verify: [{command: {argv: [test, "${outputs.value}", "=", good]}}]
        """
    project.write("blueprints/web.yaml", text % "good")
    project.prepare("apply", "web", "--yes")
    good = project.last_run()["run_id"]
    project.write("blueprints/web.yaml", text % "bad")
    assert project.run("apply", "web", "--yes").code == 12
    found = recover(project)
    assert (found["last_verified_run"], found["manual_gap"]) == (good, None)
    assert take(project, found["steps"][0], "rollback") == 0
    assert project.record("server")["outputs"]["value"] == "good"
    assert project.status("web")["verdict"] == "ok"


def test_a_retry_is_offered_with_the_secrets_that_have_changed(project: Project) -> None:
    """
    As far as variables tell: the command says which it accepts, so that it is not refused; with the
    secrets of then nothing is to be accepted.
    """
    project.write("module/main.tf", PROVISIONED + 'variable "password" { sensitive = true }\n')
    project.write(
        "blueprints/web.yaml",
        """
        version: 1
        name: web
        inputs: {password: {type: string, sensitive: true}}
        steps:
          server:
            module: ../module
            inputs:
              command: test -e PLACE/there
              password: "${inputs.password}${env.SALT}"
        """.replace("PLACE", str(project.root)),
    )
    project.environ |= {"ORCHESTRATOR_INPUT_password": "hunter2-one", "SALT": "p1nch-of"}
    assert project.run("apply", "web", "--yes").code == 10
    before = next(item for item in step(project)["actions"] if item["action"] == "retry")
    project.environ |= {"ORCHESTRATOR_INPUT_password": "hunter2-two", "SALT": "handfu1-of"}
    after = next(item for item in step(project)["actions"] if item["action"] == "retry")
    (project.root / "there").touch()

    assert "--accept" not in before["command"]
    for name in ("env.SALT", "password"):
        assert f"--accept-changed-secret {name}" in after["command"]
    assert "not as in that run: the secret env.SALT, password" in after["reason"]["message"]
    assert take(project, step(project), "retry") == 0


def test_a_plan_that_failed_is_told_although_no_record_tells_it(project: Project) -> None:
    """
    Law: before the marker nothing changes.
    A failed plan leaves the record alone; `recover` has it from the run, with its hint.
    """
    project.write("module/main.tf", 'output "x" { value = tonumber("no number") }\n')
    project.write(
        "blueprints/web.yaml",
        "version: 1\nname: web\nsteps:\n  server: {module: ../module}\n",
    )
    assert project.run("apply", "web", "--yes").code == 10
    row = step(project)
    assert (row["status"], row["sequence"], row["recommended"]) == ("pending", None, "redeploy")
    assert row["evidence"]["last_run"]["error"]["phase"] == "plan"
    assert row["hint"].startswith("fix the input")
    project.write("module/main.tf", 'output "x" { value = 1 }\n')
    assert follow(project) == [("never", "redeploy")]


def test_no_verb_refuses_what_was_offered(tmp_path: Path, engine: str) -> None:
    """
    Law: offers are re-checked.
    An action is offered by the rules that its verb goes by. After a failed change of a
    verified step each of them is carried out, in a copy of the project of its own.
    """
    place = tmp_path / "project"
    project = Project(place, engine=engine)
    project.write("module/main.tf", PROVISIONED)
    text = """
        version: 1
        name: web
        steps:
          server:
            module: ../module
            inputs: {command: "%s"}
            verify: [{command: {argv: ["true"]}}]
            compensate: {command: ["true"]}
        """
    project.write("blueprints/web.yaml", text % "true")
    project.prepare("apply", "web", "--yes")
    project.write("blueprints/web.yaml", text % "false")
    assert project.run("apply", "web", "--yes").code == 10
    row = step(project)
    offered = [item["action"] for item in row["actions"] if item["available"]]
    assert offered == ["reconcile", "retry", "redeploy", "rollback", "compensate", "destroy"]
    codes = {}
    for action in offered:
        shutil.copytree(place, tmp_path / action)
        codes[action] = take(Project(tmp_path / action, engine=engine), row, action)
    assert codes == {
        "reconcile": 0,
        "retry": 10,  # the command fails again
        "redeploy": 10,
        "rollback": 0,
        "compensate": 0,
        "destroy": 0,
    }
