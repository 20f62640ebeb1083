"""
``before_destroy``: what a step preserves before it is destroyed. If that fails, nothing of it is.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import REQUIRED
from tests.engine.watched_engine import kill, watched
from tests.project import Project, eventually, finish

pytestmark = pytest.mark.engine

DATA = """
    variable "name" { type = string }
    resource "terraform_data" "first" {
      input = var.name
      provisioner "local-exec" {
        when    = destroy
        command = "test ! -e keep-first"
      }
    }
    resource "terraform_data" "last" {
      input = terraform_data.first.id
      provisioner "local-exec" {
        when    = destroy
        command = "test ! -e keep-last"
      }
    }
    output "id" { value = terraform_data.first.id }
"""
#: Notes each call in ``archived``; waits while ``hold`` is there; fails where ``fail`` is.
ARCHIVE = """\
#!/bin/sh
echo "$1" >> archived
while [ -e hold ]; do sleep 0.05; done
[ ! -e fail ] || { echo "no room left"; exit 4; }
"""
KEPT = """
    version: 1
    name: kept
    steps:
      base:
        module: ../modules/data
        inputs: {name: base}
      db:
        module: ../modules/data
        needs: [base]
        inputs: {name: db}
        before_destroy:
          ACTION
"""
BY_COMMAND = 'command: [bin/archive, "${outputs.id}"]'
BY_MODULE = """module: ../modules/copy
          inputs: {of: "${outputs.id}", run: "RUN"}"""
COPY = """
    variable "of" { type = string }
    variable "run" { type = string }
    resource "terraform_data" "copy" {
      input = "${var.of} ${var.run}"
      provisioner "local-exec" { command = "test ! -e ${path.module}/fail" }
    }
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/data/main.tf", DATA)
    project.write("modules/copy/main.tf", COPY)
    project.write("bin/archive", ARCHIVE).chmod(0o700)
    return project


def kept(project: Project, action: str = BY_COMMAND) -> None:
    project.write("blueprints/kept.yaml", KEPT.replace("ACTION", action))
    project.prepare("apply", "kept", "--yes")


def archived(project: Project) -> list[str]:
    file = project.root / "archived"
    return file.read_text().splitlines() if file.exists() else []


def commands(project: Project, step: str) -> list[str | None]:
    return [entry["active_command"] for entry in project.history(step)]


def test_it_is_done_before_the_step_is_destroyed(project: Project) -> None:
    """
    Marker, deed and answer come before those of the destroy, with the step's own outputs; the plan
    and the run say so before anything is approved.
    """
    kept(project)
    identifier = project.record("db")["outputs"]["id"]
    planned = project.ok("plan", "kept", "--destroy")
    assert "first: before_destroy: bin/archive ${outputs.id}" in planned.out
    assert archived(project) == []
    ended = project.ok("destroy", "kept", "--yes")
    assert "note: before it is destroyed: bin/archive ${outputs.id}" in ended.out
    assert archived(project) == [identifier]
    assert commands(project, "db")[-4:] == ["before_destroy", None, "destroy", None]
    record = project.record("db")
    assert (record["status"], record["before_destroy"]["verdict"]) == ("destroyed", "done")
    assert commands(project, "base")[-2:] == ["destroy", None]
    project.ok("destroy", "kept", "--yes")
    assert archived(project) == [identifier]  # not for what is gone


def test_where_it_fails_nothing_of_the_step_is_destroyed(project: Project) -> None:
    """
    `error` in phase destroy, all that was known is kept, what waits is pending; the next destroy
    does it again, and goes on.
    """
    kept(project)
    before = project.record("db")
    fail = project.write("fail", "")
    ended = project.run("destroy", "kept", "--yes")
    assert ended.code == 10
    assert "no room left" in ended.out
    record = project.record("db")
    assert (record["status"], record["failed_command"]) == ("error", "before_destroy")
    assert (record["error"]["code"], record["error"]["phase"]) == (
        "before_destroy_failed",
        "destroy",
    )
    for kept_field in ("resources", "outputs", "provider_state", "resolved_inputs_file"):
        assert record[kept_field] == before[kept_field]
    assert project.last_run()["steps"][0]["status"] == "pending"
    fail.unlink()
    project.ok("destroy", "kept", "--yes")
    assert len(archived(project)) == 2
    assert project.record("db")["status"] == "destroyed"


def test_it_can_be_left_out_for_a_recorded_reason(project: Project) -> None:
    """
    --skip-before-destroy takes a reason, which is in the run and in the record.
    """
    kept(project)
    ended = project.ok("destroy", "kept", "--yes", "--skip-before-destroy", "archived by hand")
    assert "before_destroy is left out (archived by hand)" in ended.out
    assert archived(project) == []
    told = project.record("db")["before_destroy"]
    assert (told["verdict"], told["reason"]) == ("skipped", "archived by hand")
    assert project.last_run()["arguments"]["skip_before_destroy"] == "archived by hand"


def test_it_is_repeated_until_something_is_deleted(project: Project) -> None:
    """
    A destroy that deleted nothing is begun anew with it; one that deleted some of what it was for
    is gone on with, because the work could not be done again.
    """
    kept(project)
    place = project.own / "work/kept/default/db"
    keep = place / "keep-last"
    keep.touch()
    assert project.run("destroy", "kept", "--yes").code == 10
    assert project.record("db")["resources"]["deleted"] == []
    keep.rename(place / "keep-first")
    assert project.run("destroy", "kept", "--yes").code == 10
    assert project.record("db")["resources"]["deleted"] == ["terraform_data.last"]
    assert len(archived(project)) == 2
    for _ in range(2):  # however often it is tried
        ended = project.run("destroy", "kept", "--yes")
        assert ended.code == 10
        assert "before_destroy is not repeated" in ended.out
    (place / "keep-first").unlink()
    project.ok("destroy", "kept", "--yes")
    assert len(archived(project)) == 2


def test_what_was_cut_short_is_not_blindly_repeated(project: Project) -> None:
    """
    Killed with its wrapper it leaves no exit code: exit 11, nothing is destroyed, and it is done
    again only for a reason.
    """
    kept(project)
    hold = project.write("hold", "")
    tool = project.start("destroy", "kept", "--yes")
    eventually(lambda: len(archived(project)) == 1, "it begins", tool)
    assert project.steps("kept")["db"]["active_command"] == "before_destroy"
    (identity,) = project.own.rglob("*before_destroy*/1/apply.identity.json")
    found = json.loads(identity.read_text())
    os.killpg(found["wrapper"]["pid"], signal.SIGKILL)
    ended = finish(tool)
    assert ended.code == 11
    record = project.record("db")
    assert (record["status"], record["error"]["code"]) == ("error", "before_destroy_unknown")
    hold.unlink()
    for words in (("plan", "kept", "--destroy"), ("destroy", "kept", "--yes")):
        refused = project.run(*words)
        assert refused.code == 4
        assert "--repeat-before-destroy WHY" in refused.said
    assert len(archived(project)) == 1
    project.ok("destroy", "kept", "--yes", "--repeat-before-destroy", "it wrote nothing")
    assert project.record("db")["before_destroy"]["reason"] == "it wrote nothing"


def test_it_is_not_done_for_what_is_not_destroyed(project: Project) -> None:
    """
    Never applied, or retained: there is nothing to preserve.
    """
    project.write("blueprints/kept.yaml", KEPT.replace("ACTION", BY_COMMAND))
    project.prepare("destroy", "kept", "--yes")
    project.ok("apply", "kept", "--yes", "--step", "base")
    project.prepare("destroy", "kept", "--yes")
    assert archived(project) == []
    project.prepare("apply", "kept", "--yes")
    reason = ("--reason", "x", "--owner", "y", "--review-by", "2099-01-01")
    project.ok("retain", "kept", "--step", "db", *reason)
    project.ok("destroy", "kept", "--yes")
    assert archived(project) == []
    assert project.record("db")["status"] == "retained"


def test_a_module_preserves_in_a_root_that_outlives_the_step(project: Project) -> None:
    """
    What it made stays alive when the step is destroyed, and is shown as that; a failure in it
    destroys nothing.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    fail = project.write("modules/copy/fail", "")
    assert project.run("destroy", "kept", "--yes").code == 10
    assert project.record("db")["error"]["code"] == "before_destroy_failed"
    assert len(project.record("db")["resources"]["inventory"]) == 2
    fail.unlink()
    project.ok("destroy", "kept", "--yes")
    root = project.record('db["@before_destroy"]')
    assert (root["status"], len(root["resources"]["inventory"])) == ("ok", 1)
    project.ok("status", "kept", "--expect", "destroyed")
    (shown,) = project.steps("kept")["db"]["action_roots"]
    assert shown["objects"] == ["terraform_data.copy"]


def test_a_module_that_would_do_nothing_for_new_work_destroys_nothing(project: Project) -> None:
    """
    A copy of what was there before the last apply is no copy of what is there now.
    """
    kept(project, BY_MODULE.replace('"${outputs.id}"', "same").replace("RUN", "same"))
    project.prepare("destroy", "kept", "--yes")
    project.prepare("apply", "kept", "--yes")
    before = project.entries("db")
    refused = project.run("destroy", "kept", "--yes")
    assert refused.code == 4
    assert "would do nothing" in refused.said
    assert project.entries("db") == before


def test_killed_between_the_work_and_the_destroy_it_goes_on(
    project: Project, tmp_path: Path
) -> None:
    """
    The tool and the destroy are killed once the copy is made: the next destroy settles both records
    and ends with the step destroyed and the copy alive.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    engine = watched(project, tmp_path / "engine")
    engine.hold("apply")
    tool = project.start("destroy", "kept", "--yes")
    engine.wait_until_held("apply", tool)
    kill(tool)
    engine.release("apply")
    eventually(
        lambda: bool(list(project.own.rglob("*before_destroy*/1/apply.answer.json"))), "it ends"
    )
    ended = project.ok("destroy", "kept", "--yes")
    assert "interrupted during before_destroy: it was done" in ended.out
    assert project.record("db")["status"] == "destroyed"
    assert project.record('db["@before_destroy"]')["status"] == "ok"


def test_a_module_that_is_gone_is_found_before_anything_is_destroyed(project: Project) -> None:
    """
    What the work before a destroy needs is made ready with the rest; it can still be left out.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    (project.root / "modules/copy").rename(project.root / "modules/elsewhere")
    before = project.entries("db"), project.entries("base")
    refused = project.run("destroy", "kept", "--yes")
    assert refused.code == 3
    assert "db   │ error" in refused.out
    assert "modules/copy" in refused.said
    assert (project.entries("db"), project.entries("base")) == before
    project.ok("destroy", "kept", "--yes", "--skip-before-destroy", "its module is lost")
    assert project.record("db")["status"] == "destroyed"


def test_what_an_action_made_is_destroyed_by_its_name(project: Project) -> None:
    """
    It stays when its step goes, until somebody names its root; then it is confirmed gone like any
    step. A name that no action has is a mistake.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    root = 'db["@before_destroy"]'
    project.prepare("destroy", "kept", "--yes")
    project.ok("reconcile", "kept", "--step", root)
    planned = project.ok("plan", "kept", "--destroy", "--step", root)
    assert "terraform_data.copy" in planned.out
    ended = project.ok("destroy", "kept", "--step", root, "--yes")
    assert "1 deleted" in ended.out
    assert project.record(root)["status"] == "destroyed"
    assert project.record("db")["status"] == "destroyed"
    assert project.steps("kept")["db"]["action_roots"] == []
    assert "already destroyed" in project.ok("destroy", "kept", "--step", root, "--yes").out
    wrong = project.run("destroy", "kept", "--step", 'db["@compensate"]', "--yes")
    assert wrong.code == 64
    assert "the blueprint declares no module as compensate of step 'db'" in wrong.said


def test_what_an_action_made_is_found_when_its_step_has_left_the_blueprint(
    project: Project,
) -> None:
    """
    The step is gone and no longer declared: what it made is an orphan, named, and destroyed from
    what the step was applied from.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    project.prepare("destroy", "kept", "--yes", "--step", "db")
    text = KEPT.replace("ACTION", BY_COMMAND)
    project.write("blueprints/kept.yaml", text[: text.index("      db:")])
    root = 'db["@before_destroy"]'
    assert project.status("kept")["orphaned"] == [f"kept/default/{root}"]
    told = project.ok("destroy", "kept", "--yes")
    assert "made by actions of steps that are no longer in the blueprint" in told.out
    assert project.run("status", "kept", "--expect", "destroyed").code == 4
    project.ok("destroy", "kept", "--orphaned", "--step", root, "--yes")
    assert project.record(root)["status"] == "destroyed"
    project.ok("status", "kept", "--expect", "destroyed")


def test_what_is_in_doubt_of_such_an_action_is_settled_by_what_is_offered(project: Project) -> None:
    """
    The step has left the blueprint: each command that is offered names the orphan as one.
    """
    kept(project, BY_MODULE.replace("RUN", "${run.id}"))
    project.prepare("destroy", "kept", "--yes", "--step", "db")
    root = 'db["@before_destroy"]'
    (file,) = (project.own / "state").rglob("*before_destroy*.tfstate")
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "serial": state["serial"] + 1, "resources": []}))
    text = KEPT.replace("ACTION", BY_COMMAND)
    project.write("blueprints/kept.yaml", text[: text.index("      db:")])

    told = project.run("reconcile", "kept", "--orphaned", "--step", root, "--json")
    commands = [item["command"] for item in told.events[-1]["next"]]
    settling = [item for item in commands if "reconcile" in item]

    assert told.code == 11, told.said
    assert settling and all("--orphaned" in item for item in settling), commands


def test_it_is_done_before_the_parent_takes_the_step_along(project: Project) -> None:
    """
    What a child is to save needs it alive: it is archived and destroyed by itself, before its
    parent is touched.
    """
    kept(project, BY_COMMAND + "\n        owned_by: base")
    project.prepare("destroy", "kept", "--yes")
    gone, parent = project.record("db"), project.record("base")
    assert len(archived(project)) == 1
    assert gone["absence"]["method"] == "provider"
    assert (parent["status"], gone["updated_at"] < parent["started_at"]) == ("destroyed", True)


#: A snapshot is another object under another name; unlike an input, that cannot change in place.
SNAPSHOT = """
    variable "of" { type = string }
    variable "run" { type = string }
    resource "terraform_data" "copy" {
      triggers_replace = "${var.of} ${var.run}"
    }
"""


def copies(project: Project) -> list[str]:
    found = project.record('db["@before_destroy"]')["resources"]["inventory"]
    return [item["id"] for item in found]


def test_what_was_made_for_an_earlier_life_is_not_replaced_unasked(project: Project) -> None:
    """
    The second destroy would replace the snapshot of the first: it is refused before anything is
    done, and so is the plan of the destroy, which counts it; a reason lets it go.
    """
    project.write("modules/copy/main.tf", SNAPSHOT)
    action = BY_MODULE.replace("RUN", "${run.id}")
    kept(project, action)
    project.prepare("destroy", "kept", "--yes")
    first = copies(project)
    project.prepare("apply", "kept", "--yes")
    before = {step: project.entries(step) for step in ("base", "db", 'db["@before_destroy"]')}

    planned = project.run("plan", "kept", "--destroy")
    accepted = project.run("plan", "kept", "--destroy", "--accept-replaced", "one is enough")
    refused = project.run("destroy", "kept", "--yes")

    assert (planned.code, accepted.code) == (4, 0), planned.out + accepted.out
    for told in (planned, accepted):
        assert 'db["@before_destroy"]' in told.out and "1 to replace" in told.out, told.out
    assert refused.code == 4
    assert first[0] in refused.said and "--accept-replaced" in refused.said, refused.said
    assert {step: project.entries(step) for step in before} == before
    project.ok("destroy", "kept", "--yes", "--accept-replaced", "one snapshot is enough")
    assert copies(project) != first
    assert project.record("db")["status"] == "destroyed"


def test_all_hooks_are_checked_before_the_first_step_is_destroyed(project: Project) -> None:
    """
    A program that is not there is found before anything is done for any step.
    """
    kept(project)
    text = (project.root / "blueprints/kept.yaml").read_text()
    base = "inputs: {name: base}"
    missing = f"{base}\n    before_destroy: {{command: [bin/no-such-program]}}"
    project.write("blueprints/kept.yaml", text.replace(base, missing))
    before = project.entries("db")

    ended = project.run("destroy", "kept", "--yes")

    assert ended.code == 3, ended.said
    assert "cannot start bin/no-such-program" in ended.said
    assert archived(project) == []
    assert project.entries("db") == before


LOSES = """
    variable "run" { type = string }
    resource "fakecloud_server" "copy" { name = "copy" }
"""


def test_what_is_uncertain_in_a_hook_is_told_in_every_view(project: Project, cloud: Cloud) -> None:
    """
    The create of the snapshot lost its answer: the module of the hook has a row of its own in the
    run, `status`, `recover`, `reconcile` and its history, and no view calls the blueprint ok.
    """
    project.write("modules/copy/main.tf", REQUIRED + LOSES)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    kept(project, 'module: ../modules/copy\n          inputs: {run: "${run.id}"}')
    cloud.arm("create", "copy", "lost_answer")
    root = 'db["@before_destroy"]'

    destroyed = project.run("destroy", "kept", "--yes", "--json")
    status = project.status("kept")
    recovered = project.ok("recover", "kept", "--json").document
    reconciled = project.run("reconcile", "kept", "--json")
    expected = project.run("status", "kept", "--expect", "ok")

    assert destroyed.code == 11, destroyed.said
    assert destroyed.rows[root]["in_doubt"] and destroyed.rows[root]["status"] == "error"
    shown = {row["step"]: row for row in status["steps"]}[root]
    assert (shown["status"], len(shown["in_doubt"])) == ("error", 1)
    found = {row["step"]: row for row in recovered["steps"]}[root]
    commands = [item["command"] for item in found["actions"] if item["available"]]
    assert any(f"reconcile kept --step '{root}'" in command for command in commands), commands
    assert reconciled.code == 11, reconciled.said
    assert reconciled.rows[root]["in_doubt"]
    assert reconciled.events[-1]["verdict"] == "error"
    assert expected.code == 4 and root in expected.said, expected.said
    assert "before_destroy" in project.ok("history", f"kept/default/{root}").out
    project.ok("exec", f"kept/default/{root}", "--", "state", "list")
