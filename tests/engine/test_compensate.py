"""
``compensate``: what steps declare, in their order, once, under the marker, whatever is killed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator.engine.process.wrapper import session_members
from tests.engine.watched_engine import kill, watched
from tests.project import Project, eventually, finish
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

SECRET = "hunter2-is-secret"
THING = """
    variable "name" { type = string }
    variable "password" {
      type      = string
      default   = "none"
      sensitive = true
    }
    resource "terraform_data" "thing" { input = var.name }
    output "id" { value = terraform_data.thing.id }
    output "password" {
      value     = var.password
      sensitive = true
    }
"""
#: Notes each call in ``undone``; waits while ``hold`` is there; fails where ``fail`` is.
UNDO = """\
#!/bin/sh
echo "undoing $1 with $PASSWORD"
echo "$ORCHESTRATOR_STEP $ORCHESTRATOR_ACTION" >> begun
trap 'echo stopping; exit 9' INT
while [ -e hold ]; do sleep 0.05; done
[ ! -e fail ] || { echo "cannot undo: $PASSWORD" >&2; exit 3; }
echo "$ORCHESTRATOR_STEP" >> undone
"""
CHAIN = """
    version: 1
    name: chain
    inputs:
      password: {type: string, sensitive: true}
    steps:
      net:
        module: ../modules/thing
        inputs: {name: net}
        compensate: {command: [bin/undo, "${outputs.id}"]}
      db:
        module: ../modules/thing
        needs: [net]
        inputs: {name: db, password: "${inputs.password}"}
        compensate:
          command: [bin/undo, "${outputs.password}"]
          environment: {PASSWORD: "${inputs.password}"}
      app:
        module: ../modules/thing
        needs: [db]
        inputs: {name: app}
"""
#: A module that undoes: its one object is new in each run.
WITHDRAWN = """
    variable "of" { type = string }
    variable "run" { type = string }
    resource "terraform_data" "withdrawn" {
      input = "${var.of} ${var.run}"
      provisioner "local-exec" {
        command = "test ! -e ${path.module}/fail"
      }
    }
"""
BY_MODULE = """
    version: 1
    name: by-module
    steps:
      net:
        module: ../modules/thing
        inputs: {name: net}
        compensate:
          module: ../modules/withdrawn
          inputs: {of: "${outputs.id}", run: "RUN"}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/thing/main.tf", THING)
    project.write("modules/withdrawn/main.tf", WITHDRAWN)
    project.write("blueprints/chain.yaml", CHAIN)
    project.write("bin/undo", UNDO).chmod(0o700)
    project.environ["ORCHESTRATOR_INPUT_password"] = SECRET
    return project


def lines(project: Project, name: str) -> list[str]:
    file = project.root / name
    return file.read_text().splitlines() if file.exists() else []


def by_module(project: Project, run: str = "${run.id}") -> None:
    project.write("blueprints/by-module.yaml", BY_MODULE.replace("RUN", run))
    project.prepare("apply", "by-module", "--yes")


def test_compensations_run_dependents_first_and_once(project: Project) -> None:
    """
    Each step's own command, dependents before what they need; what is compensated is not repeated
    without a reason, does not read as ok to a gate, and is a matter of the past after an apply.
    """
    project.prepare("apply", "chain", "--yes")
    before = project.record("db")
    ended = project.ok("compensate", "chain", "--yes", "--reason", "withdrawn")
    assert lines(project, "begun") == ["db compensate", "net compensate"]
    assert "app │ skipped" in ended.out
    after = project.record("db")
    assert (after["status"], after["previous_status"]) == ("ok", "running")
    assert after["run_id"] == before["run_id"]
    assert after["resources"] == before["resources"]
    told = after["compensation"]
    assert (told["verdict"], told["reason"], told["exit_code"]) == ("done", "withdrawn", 0)
    assert [entry["active_command"] for entry in project.history("db")][-2:] == ["compensate", None]
    assert project.last_run()["reason"] == "withdrawn"

    again = project.ok("compensate", "chain", "--yes", "--reason", "again")
    assert "compensated already" in again.out
    assert project.run("status", "chain", "--expect", "ok").code == 4
    assert len(lines(project, "undone")) == 2
    project.ok("compensate", "chain", "--yes", "--step", "net", "--repeat", "half of it came back")
    assert lines(project, "undone") == ["db", "net", "net"]
    project.ok("apply", "chain", "--yes", "--unfinished")
    assert project.record("db")["compensation"] is None
    project.ok("status", "chain", "--expect", "ok")


def test_a_failed_compensation_is_recorded_and_gone_on_with(project: Project) -> None:
    """
    A command that fails makes `error`, with its last words; what waits for it is pending. The next
    compensate begins at the failed one and, once it is done, restores how the step stood before.
    """
    project.prepare("apply", "chain", "--yes")
    standing = project.record("db")
    fail = project.write("fail", "")
    ended = project.run("compensate", "chain", "--yes", "--reason", "withdrawn")
    assert ended.code == 10
    record = project.record("db")
    assert (record["status"], record["failed_command"]) == ("error", "compensate")
    assert record["error"]["code"] == "compensation_failed"
    assert "exit code 3" in record["last_error"]
    assert record["outputs"] == standing["outputs"]
    assert project.record("net")["status"] == "ok"
    assert project.last_run()["steps"][0]["status"] == "pending"
    fail.unlink()
    project.ok("compensate", "chain", "--yes", "--reason", "again")
    record = project.record("db")
    assert (record["status"], record["error"], record["failed_command"]) == ("ok", None, None)
    assert record["run_id"] == standing["run_id"]
    assert lines(project, "undone") == ["db", "net"]


def test_no_secret_of_a_command_is_left_anywhere(project: Project) -> None:
    """
    Secrets in arguments and environment of a command are in no record, log, blob or event, whether
    it ends well or not (law: secrets travel with values).
    """
    project.prepare("apply", "chain", "--yes")
    project.write("fail", "")
    said = project.run("compensate", "chain", "--yes", "--reason", "x", "--step", "db", "--json")
    said2 = project.run("compensate", "chain", "--yes", "--reason", "x", "--step", "db", "-v")
    assert "undoing (sensitive) with (sensitive)" in said2.out
    assert "cannot undo: (sensitive)" in said2.out
    state = project.own / "state"
    holding = [
        path
        for path in project.own.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert all(path.is_relative_to(state) for path in holding), holding
    assert SECRET not in said.said + said2.said
    (log,) = {path.name for path in project.own.rglob("*compensate*/1/apply.log")}
    assert log == "apply.log"


def test_a_killed_tool_leaves_the_command_to_end_and_is_settled_from_its_answer(
    project: Project,
) -> None:
    """
    The command outlives us; whoever comes next reads its exit code (law: an outlived run is
    settled from evidence). It is not run again.
    """
    project.prepare("apply", "chain", "--yes")
    hold = project.write("hold", "")
    tool = project.start("compensate", "chain", "--yes", "--reason", "x", "--step", "db")
    eventually(lambda: lines(project, "begun") == ["db compensate"], "it begins", tool)
    running = project.steps("chain")["db"]
    assert (running["status"], running["condition"]) == ("running", "live")
    kill(tool)
    assert project.steps("chain")["db"]["condition"] == "live"
    busy = project.run("compensate", "chain", "--yes", "--reason", "x")
    assert busy.code == 20
    hold.unlink()
    eventually(lambda: bool(list(project.own.rglob("apply.answer.json"))[3:]), "it ends")
    ended = project.ok("compensate", "chain", "--yes", "--reason", "go on")
    assert "interrupted during compensate: it was done" in ended.out
    assert lines(project, "undone") == ["db", "net"]
    assert project.record("db")["compensation"]["verdict"] == "done"


def test_a_command_that_was_killed_is_not_blindly_repeated(project: Project) -> None:
    """
    Without an exit code nobody can tell what it did: `error`, exit 11, and only --repeat, with a
    reason, carries it out again.
    """
    project.prepare("apply", "chain", "--yes")
    hold = project.write("hold", "")
    tool = project.start("compensate", "chain", "--yes", "--reason", "x", "--step", "db")
    eventually(lambda: lines(project, "begun") == ["db compensate"], "it begins", tool)
    (identity,) = project.own.rglob("*compensate*/1/apply.identity.json")
    found = json.loads(identity.read_text())
    kill(tool)
    os.killpg(found["wrapper"]["pid"], signal.SIGKILL)
    refused = project.run("compensate", "chain", "--yes", "--reason", "go on")
    assert refused.code == 4
    assert "what it had done by then is not known" in refused.said
    record = project.record("db")
    assert (record["status"], record["error"]["code"]) == ("error", "compensation_unknown")
    assert record["compensation"]["verdict"] == "unknown"
    hold.unlink()
    project.ok(
        "compensate", "chain", "--yes", "--step", "db", "--repeat", "I looked: it did nothing"
    )
    assert project.record("db")["status"] == "ok"
    assert project.record("db")["compensation"]["reason"] == "I looked: it did nothing"


def test_one_interrupt_reaches_the_command_once_and_is_recorded(project: Project) -> None:
    """
    Ctrl-C: the command gets one SIGINT and is awaited; nothing more is started; exit 130 (law:
    signals).
    """
    project.prepare("apply", "chain", "--yes")
    project.write("hold", "")
    tool = project.start("compensate", "chain", "--yes", "--reason", "x")
    eventually(lambda: lines(project, "begun") == ["db compensate"], "it begins", tool)
    tool.send_signal(signal.SIGINT)
    ended = finish(tool)
    assert ended.code == 130
    assert ended.out.count("│ stopping") == 1
    record = project.record("db")
    assert (record["status"], record["error"]["code"]) == ("error", "compensation_failed")
    assert lines(project, "begun") == ["db compensate"]


def test_a_module_compensates_in_a_root_of_its_own(project: Project) -> None:
    """
    Its state, record and directory are its own, the step's stay as they were; it reads the step's
    outputs. What it made is shown as alive, and as no orphan.
    """
    by_module(project)
    before = project.record("net")
    project.ok("compensate", "by-module", "--yes", "--reason", "withdrawn")
    step, root = project.record("net"), project.record('net["@compensate"]')
    assert (step["status"], step["compensation"]["verdict"]) == ("ok", "done")
    assert step["compensation"]["target"] == 'by-module/default/net["@compensate"]'
    assert step["provider_state"] == before["provider_state"]
    assert (root["status"], root["resources"]["created"]) == ("ok", ["terraform_data.withdrawn"])
    assert root["provider_state"]["location"] == (
        ".orchestrator/state/by-module/default/net.compensate.tfstate"
    )
    status = project.status("by-module")
    assert status["orphaned"] == []
    (shown,) = status["steps"][0]["action_roots"]
    assert shown["objects"] == ["terraform_data.withdrawn"]
    # After a new apply there is new work to compensate, by the same root.
    project.ok("apply", "by-module", "--yes")
    project.ok("compensate", "by-module", "--yes", "--reason", "withdrawn again")
    assert project.record('net["@compensate"]')["resources"]["updated"] == [
        "terraform_data.withdrawn"
    ]


def test_a_module_that_would_do_nothing_for_new_work_is_refused(project: Project) -> None:
    """
    A module that finds all as it describes it, because of what it made before the last apply, has
    compensated nothing: that is said, never recorded as done.
    """
    by_module(project, run="constant")
    project.ok("compensate", "by-module", "--yes", "--reason", "x")
    project.ok("apply", "by-module", "--yes")
    before = project.entries("net")
    refused = project.run("compensate", "by-module", "--yes", "--reason", "x")
    assert refused.code == 4
    assert "would do nothing" in refused.said
    assert "${run.id}" in refused.said
    assert project.entries("net") == before


def test_a_module_that_fails_is_gone_on_with(project: Project) -> None:
    """
    The failure stands in both records; the next compensate goes on in the same root.
    """
    by_module(project)
    fail = project.write("modules/withdrawn/fail", "")
    assert project.run("compensate", "by-module", "--yes", "--reason", "x").code == 10
    step, root = project.record("net"), project.record('net["@compensate"]')
    assert (step["status"], step["error"]["code"]) == ("error", "compensation_failed")
    assert (root["status"], root["resources"]["tainted"]) == ("error", ["terraform_data.withdrawn"])
    fail.unlink()
    project.ok("compensate", "by-module", "--yes", "--reason", "x")
    assert project.record("net")["status"] == "ok"
    assert project.record('net["@compensate"]')["status"] == "ok"


def test_a_killed_module_compensation_is_settled_from_its_own_root(
    project: Project, tmp_path: Path
) -> None:
    """
    Both records are `running`; the engine ends by itself, and the next run settles the root first
    and the step from it. Nothing is made twice.
    """
    by_module(project)
    engine = watched(project, tmp_path / "engine")
    engine.hold("apply")
    tool = project.start("compensate", "by-module", "--yes", "--reason", "x")
    engine.wait_until_held("apply", tool)
    assert project.steps("by-module")["net"]["active_command"] == "compensate"
    kill(tool)
    assert project.steps("by-module")["net"]["condition"] == "live"
    engine.release("apply")
    eventually(lambda: bool(list(project.own.rglob("*compensate*/1/apply.answer.json"))), "it ends")
    ended = project.ok("compensate", "by-module", "--yes", "--reason", "x")
    assert "compensated already" in ended.out
    step, root = project.record("net"), project.record('net["@compensate"]')
    assert (step["status"], step["compensation"]["verdict"]) == ("ok", "done")
    assert (root["status"], len(root["resources"]["inventory"])) == ("ok", 1)


def test_what_has_nothing_to_compensate_is_left_alone(project: Project) -> None:
    """
    Never applied, destroyed, or without a declaration: skipped with the reason; where no selected
    step declares one, refused.
    """
    refused = project.run("compensate", "chain", "--yes", "--reason", "x", "--step", "app")
    assert refused.code == 4
    assert "declares how it is compensated" in refused.said
    never = project.ok("compensate", "chain", "--yes", "--reason", "x")
    assert never.out.count("no record here") >= 2
    assert project.run("compensate", "chain", "--yes").code == 4
    assert project.run("compensate", "chain", "--reason", "x").code == 5
    project.ok("apply", "chain", "--yes")
    project.ok("destroy", "chain", "--yes")
    gone = project.ok("compensate", "chain", "--yes", "--reason", "x")
    assert "already destroyed" in gone.out
    assert lines(project, "begun") == []


def test_a_person_is_asked_what_may_be_carried_out(project: Project) -> None:
    """
    The command is shown with its values, secrets masked; no leaves the record as it was.
    """
    project.prepare("apply", "chain", "--yes")
    before = project.entries("db")
    terminal = Terminal(project, "compensate", "chain", "--reason", "x")
    terminal.wait_for("compensate db by `bin/undo (sensitive)`. Continue? [yes/no/all]")
    terminal.type("no\n")
    assert terminal.finish() == 5
    assert project.entries("db") == before
    assert lines(project, "begun") == []


#: A script as people write them: it waits for a program, and does not pass signals on to it.
SLOW = """\
#!/bin/bash
HEAD
echo begun >> begun
sleep 60 &
sleep 60
echo done >> undone
"""


def slow(project: Project, head: str, timeout: str = "1h") -> None:
    project.write("bin/slow", SLOW.replace("HEAD", head)).chmod(0o700)
    project.write(
        "blueprints/slow.yaml",
        f"""
        version: 1
        name: slow
        steps:
          net:
            module: ../modules/thing
            inputs: {{name: net}}
            compensate: {{command: [bin/slow], timeout: {timeout}}}
        """,
    )
    project.prepare("apply", "slow", "--yes")


def processes_of(project: Project) -> list[int]:
    """
    What is alive of the command's session.
    """
    (identity,) = project.own.rglob("*compensate*/1/apply.identity.json")
    return session_members(json.loads(identity.read_text())["wrapper"]["pid"])


@pytest.mark.parametrize("head", ["", "trap 'echo stopping' INT", "trap '' INT"])
def test_a_script_is_stopped_at_its_timeout_with_all_that_it_started(
    project: Project, head: str
) -> None:
    """
    Whether it heeds the SIGINT, goes on after it, or ignores it: the passed deadline is said, exit
    13, it does not count as done, and nothing of it lives on.
    """
    slow(project, head, timeout="1s")
    began = time.monotonic()

    ended = project.run("compensate", "slow", "--yes", "--reason", "x")

    assert ended.code == 13, ended.said
    assert "deadline passed during compensate" in ended.said, ended.said
    assert "its timeout passed" in ended.said and "--repeat WHY" in ended.said, ended.out
    assert time.monotonic() - began < 40
    record = project.record("net")
    assert (record["status"], record["error"]["code"]) == ("error", "deadline")
    assert record["compensation"]["verdict"] == "unknown"
    assert processes_of(project) == []


def test_an_interrupt_stops_a_script_with_all_that_it_started(project: Project) -> None:
    """
    Ctrl-C reaches what the script waits for: exit 130, and nothing of it lives on.
    """
    slow(project, "")
    tool = project.start("compensate", "slow", "--yes", "--reason", "x")
    eventually(lambda: lines(project, "begun") == ["begun"], "it begins", tool)
    tool.send_signal(signal.SIGINT)
    ended = finish(tool)
    assert ended.code == 130, ended.said
    assert lines(project, "undone") == []
    assert project.record("net")["compensation"]["verdict"] == "unknown"
    assert processes_of(project) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "command: [bin/no-such-program]",
        "command: [no-such-program]",
        'command: [bin/undo, "${env.NO_SUCH_VARIABLE}"]',
        '{module: ../modules/withdrawn, inputs: {of: "${env.NO_SUCH_VARIABLE}", run: "1"}}',
    ],
)
def test_all_compensations_are_checked_before_the_first_is_carried_out(
    project: Project, wrong: str
) -> None:
    """
    A program or a variable of the last one that is not there is found before anything is done.
    """
    broken = CHAIN.replace(
        'compensate: {command: [bin/undo, "${outputs.id}"]}',
        f"compensate: {wrong}" if wrong.startswith("{") else f"compensate: {{{wrong}}}",
    )
    project.prepare("apply", "chain", "--yes")
    project.write("blueprints/chain.yaml", broken)
    before = project.entries("db")

    ended = project.run("compensate", "chain", "--yes", "--reason", "x")

    assert ended.code == 3, ended.said
    assert "no-such-program" in ended.said or "NO_SUCH_VARIABLE" in ended.said
    assert lines(project, "begun") == []
    assert project.entries("db") == before
