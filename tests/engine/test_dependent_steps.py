"""
Steps that depend on each other: one fails, the run goes on from there, and is taken down again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine

FAILING = "fixtures/fails-after-create/blueprint.yaml"
MODULE = """
    variable "command" {
      type    = string
      default = ":"
    }
    variable "value" {
      type    = string
      default = ""
    }

    resource "terraform_data" "object" {
      input = var.value

      provisioner "local-exec" {
        command = var.command
      }
    }

    output "id" { value = terraform_data.object.id }
"""


def write_steps(project: Project, steps: str) -> None:
    """
    The module ``object``, and a blueprint ``web`` with these steps.
    """
    project.write("modules/object/main.tf", MODULE)
    project.write("blueprints/web.yaml", f"version: 1\nname: web\nsteps:\n{steps}")


class Interrupted:
    """
    A blueprint whose middle step fails after its create: gone on with, and destroyed piece by
    piece.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        project.fixture("fails-after-create")
        self.never_applied = self._call("plan", "--destroy")
        self.failed = self._call("apply")
        self.after_failure = project.steps(FAILING)
        self.resumed = self._call("apply", "--unfinished", "-i", "fails=false")
        self.entries = self._entries()
        self.plan_of_destroy = self._call("plan", "--destroy")
        self.needed = self._call("destroy", "--step", "before")
        self.entries_after_refusal = self._entries()
        self.only_last = self._call("destroy", "--step", "after")
        self.entries_after_last = self._entries()
        self.destroyed = self._call("destroy")
        self.verdict = project.status(FAILING)["verdict"]
        self.again = self._call("destroy")

    def _call(self, verb: str, *more: str) -> Ended:
        yes = () if verb == "plan" else ("--yes",)
        return self.project.run(verb, FAILING, "--json", *yes, *more)

    def _entries(self) -> dict[str, list[str]]:
        return {step: self.project.entries(step) for step in ("before", "breaks", "after")}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("interrupted"), engine)


def test_what_never_ran_is_pending_behind_what_failed(interrupted: Interrupted) -> None:
    """
    The step behind the failed one is `pending`, never `failed`, and names it, in the run and in
    the status (law: pending, not failed); exit 10.
    """
    row = interrupted.failed.rows["after"]

    assert interrupted.failed.code == 10
    assert interrupted.failed.statuses == {"before": "ok", "breaks": "error", "after": "pending"}
    assert row["blocked_by"] == ["breaks"]
    assert interrupted.after_failure["after"]["status"] == "pending"
    assert interrupted.after_failure["after"]["blocked_by"] == ["breaks"]


def test_the_object_of_a_failed_provisioner_is_alive_and_tainted(interrupted: Interrupted) -> None:
    """
    What exists is shown as alive and tainted, and not as in doubt; the next commands are named.
    """
    last = interrupted.failed.events[-1]
    alive = {item["step"]: item for item in last["alive"]}

    assert alive["breaks"]["tainted"] == ["terraform_data.object"]
    assert interrupted.after_failure["breaks"]["tainted"] == ["terraform_data.object"]
    assert interrupted.after_failure["breaks"]["in_doubt"] == []
    assert [item["command"].split()[1] for item in last["next"]] == ["recover", "apply", "destroy"]


def test_the_unfinished_are_resumed_and_the_proven_skipped(interrupted: Interrupted) -> None:
    """
    --unfinished leaves alone what is `ok`, without an engine call for it, replaces what is tainted
    and makes what is missing.
    """
    found = interrupted.resumed.rows
    evidence = Path(interrupted.resumed.events[-1]["directory"], "steps", "before")

    assert interrupted.resumed.code == 0
    assert interrupted.resumed.statuses == {"before": "skipped", "breaks": "ok", "after": "ok"}
    assert found["breaks"]["replaced"] == ["terraform_data.object"]
    assert found["after"]["created"] == ["terraform_data.object"]
    assert not list(evidence.rglob("plan*"))


def test_a_plan_of_a_destroy_goes_backwards(interrupted: Interrupted) -> None:
    """
    The order follows the direction: dependents first.
    """
    assert [row["step"] for row in interrupted.plan_of_destroy.document["steps"]] == [
        "after",
        "breaks",
        "before",
    ]
    assert set(interrupted.plan_of_destroy.statuses.values()) == {"planned"}


def test_nothing_is_invented_to_plan_a_destroy(interrupted: Interrupted) -> None:
    """
    What was never applied needs no values and has nothing to destroy.
    """
    assert interrupted.never_applied.code == 0
    assert {row["reason"] for row in interrupted.never_applied.rows.values()} == {"no record here"}


def test_a_step_that_others_need_is_not_taken_away(interrupted: Interrupted) -> None:
    """
    Destroying a step whose live dependents stand outside the selection is refused, and says which.
    """
    assert interrupted.needed.code == 4
    assert "breaks needs before" in interrupted.needed.events[-1]["error"]
    assert interrupted.entries_after_refusal == interrupted.entries


def test_steps_outside_the_selection_are_never_touched(interrupted: Interrupted) -> None:
    """
    A destroy of one step leaves the records of all others byte-identical.
    """
    entries = interrupted.entries_after_last

    assert interrupted.only_last.statuses == {"after": "destroyed"}
    assert {step: entries[step] for step in ("before", "breaks")} == {
        step: interrupted.entries[step] for step in ("before", "breaks")
    }


def test_a_destroy_skips_what_is_destroyed(interrupted: Interrupted) -> None:
    """
    A destroy is resumable, and repeated it is a success with nothing to do (law: destroy skips
    only what is gone or retained).
    """
    assert interrupted.destroyed.statuses == {
        "before": "destroyed",
        "breaks": "destroyed",
        "after": "skipped",
    }
    assert interrupted.verdict == "destroyed"
    assert interrupted.again.code == 0
    assert set(interrupted.again.statuses.values()) == {"skipped"}


class HalfDestroyed:
    """
    A blueprint whose middle step cannot be destroyed at first.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        blueprint = project.fixture("fails-on-destroy")
        given = ("-i", f"marker={root}/may-destroy")
        project.ok("apply", blueprint, "--yes", *given)
        self.applied = {step: project.entries(step) for step in ("before", "breaks")}
        self.failed = project.run("destroy", blueprint, "--yes", "--json")
        self.left = project.record("breaks")
        self.before = project.entries("before")
        (root / "may-destroy").touch()
        self.repeated = project.run("destroy", blueprint, "--yes", "--json")


@pytest.fixture(scope="module")
def half_destroyed(tmp_path_factory: pytest.TempPathFactory, engine: str) -> HalfDestroyed:
    return HalfDestroyed(tmp_path_factory.mktemp("half"), engine)


def test_a_destroy_stops_at_the_step_that_fails(half_destroyed: HalfDestroyed) -> None:
    """
    What the failed step needs is not destroyed and keeps its record; the failed one keeps its
    outputs and says what is left.
    """
    assert half_destroyed.failed.code == 10
    assert half_destroyed.failed.statuses == {
        "before": "pending",
        "breaks": "error",
        "after": "destroyed",
    }
    assert half_destroyed.failed.rows["before"]["blocked_by"] == ["breaks"]
    assert half_destroyed.before == half_destroyed.applied["before"]
    assert (
        half_destroyed.left["outputs"]
        == json.loads(half_destroyed.applied["breaks"][-1])["outputs"]
    )


def test_a_half_done_destroy_is_repeated_to_its_end(half_destroyed: HalfDestroyed) -> None:
    """
    The next destroy skips what is gone and goes on with the rest.
    """
    assert half_destroyed.repeated.code == 0
    assert half_destroyed.repeated.statuses == {
        "before": "destroyed",
        "breaks": "destroyed",
        "after": "skipped",
    }


def test_a_destroy_works_after_its_upstream_is_gone(project: Project) -> None:
    """
    A destroy uses the recorded inputs: that the step they came from is gone from provider state
    does not stop it.
    """
    write_steps(
        project,
        """
  up: {module: ../modules/object}
  down: {module: ../modules/object, inputs: {value: "${steps.up.outputs.id}"}}
""",
    )
    project.ok("apply", "web", "--yes")
    (project.own / "state/web/default/up.tfstate").unlink()

    ended = project.run("destroy", "web", "--step", "down", "--yes", "--json")

    assert ended.code == 0, ended.said
    assert ended.statuses == {"down": "destroyed"}


CHAIN = """
  a: {module: ../modules/object}
  b: {module: ../modules/object, needs: [a]}
  c: {module: ../modules/object, needs: [b]}
  d: {module: ../modules/object, needs: [b]}
"""


class Selected:
    """
    A chain of steps, applied by selections.
    """

    def __init__(self, root: Path, engine: str) -> None:
        project = Project(root, engine=engine)
        write_steps(project, CHAIN)
        self.missing_upstream = project.run("apply", "web", "--yes", "--json", "--step", "c")
        self.with_upstreams = project.run("apply", "web", "--yes", "--json", "--step", "+b")
        self.of_a = project.entries("a")
        self.with_dependents = project.run(
            "apply", "web", "--yes", "--json", "--step", "b+", "--exclude", "d"
        )
        self.of_a_later = project.entries("a")
        self.glob = project.run("plan", "web", "--json", "--step", "[cd]")
        self.unknown = project.run("plan", "web", "--step", "cc")


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Selected:
    return Selected(tmp_path_factory.mktemp("selected"), engine)


def test_a_selection_is_exactly_what_was_said(selected: Selected) -> None:
    """
    S is one step, +S with its upstreams, S+ with its dependents, --exclude takes away, globs match.
    """
    assert selected.with_upstreams.statuses == {"a": "ok", "b": "ok"}
    assert selected.with_dependents.statuses == {"b": "ok", "c": "ok"}
    assert selected.glob.statuses == {"c": "unchanged", "d": "planned"}
    assert selected.of_a_later == selected.of_a


def test_a_step_waits_for_an_upstream_outside_the_selection(selected: Selected) -> None:
    """
    A selected step whose upstream was never applied is `pending` behind it, and that is not
    applied for it.
    """
    assert selected.missing_upstream.statuses == {"c": "pending"}
    assert selected.missing_upstream.rows["c"]["blocked_by"] == ["b"]


def test_an_unknown_step_is_a_usage_error(selected: Selected) -> None:
    """
    A pattern that matches nothing ends with 64, before anything runs.
    """
    assert selected.unknown.code == 64


BRANCHES = """
  bad: {module: ../modules/object, inputs: {command: "exit 1"}}
  child: {module: ../modules/object, needs: [bad]}
  other: {module: ../modules/object}
"""


@pytest.mark.parametrize(("policy", "other"), [("continue", "ok"), ("stop", "pending")])
def test_a_failure_stops_what_it_should(project: Project, policy: str, other: str) -> None:
    """
    After a failure nothing more starts, or with --on-failure continue only what does not need the
    failed step; exit 10 either way.
    """
    write_steps(project, BRANCHES)

    ended = project.run("apply", "web", "--yes", "--json", "--jobs", "1", "--on-failure", policy)

    assert ended.code == 10
    assert ended.statuses == {"bad": "error", "child": "pending", "other": other}
    assert ended.rows["child"]["blocked_by"] == ["bad"]
    assert ended.rows["other"]["blocked_by"] == []


CHECKED = """
  service:
    module: ../modules/object
    verify:
      - command: {argv: [test, -e, is-up]}
  user: {module: ../modules/object, needs: [service]}
"""


class Checked:
    """
    A step whose service is down when it is applied.
    """

    def __init__(self, root: Path, engine: str) -> None:
        project = Project(root, engine=engine)
        write_steps(project, CHECKED)
        self.apply = project.run("apply", "web", "--yes", "--json")
        self.record = project.record("service")
        self.still_down = project.run("verify", "web", "--json")
        (root / "is-up").touch()
        self.up = project.run("verify", "web", "--json")
        self.repaired = project.record("service")
        self.next_apply = project.run("apply", "web", "--yes", "--json")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Checked:
    return Checked(tmp_path_factory.mktemp("checked"), engine)


def test_a_failed_check_is_an_error_of_its_own(checked: Checked) -> None:
    """
    Applied, but a check failed: exit 12, `error` with phase `verify`, dependents `pending`
    (law: failed checks).
    """
    assert checked.apply.code == 12
    assert checked.apply.statuses == {"service": "error", "user": "pending"}
    assert checked.apply.rows["user"]["blocked_by"] == ["service"]
    assert checked.record["error"]["phase"] == "verify"
    assert checked.record["verification"]["verdict"] == "failed"
    assert checked.record["resources"]["created"] == ["terraform_data.object"]
    assert checked.record["outputs"].keys() == {"id"}


def test_verify_fails_while_the_service_is_down(checked: Checked) -> None:
    """
    The verb `verify` runs the checks again and ends with 12 while they fail.
    """
    assert checked.still_down.code == 12
    assert checked.still_down.statuses == {"service": "error", "user": "skipped"}


def test_verify_repairs_the_record_when_the_service_is_back(checked: Checked) -> None:
    """
    With the checks holding again `verify` records `ok` and clears the error, without an apply.
    """
    assert checked.up.code == 0
    assert (checked.repaired["status"], checked.repaired["last_error"]) == ("ok", None)
    assert checked.repaired["failed_command"] is None
    assert checked.repaired["verification"]["verdict"] == "verified"


def test_an_apply_goes_on_after_the_checks_hold(checked: Checked) -> None:
    """
    The dependents of a repaired step are applied by the next run.
    """
    assert checked.next_apply.code == 0
    assert checked.next_apply.statuses == {"service": "ok", "user": "ok"}


def test_an_error_becomes_ok_without_a_marker_where_nothing_is_left_to_do(
    project: Project, tmp_path: Path
) -> None:
    """
    A plan without changes records `ok` directly, also over the `error` of an apply (law: before
    the marker nothing changes).
    """
    write_steps(project, "  late: {module: ../modules/late}\n")
    project.write(
        "modules/late/main.tf",
        f"""
        resource "terraform_data" "object" {{
          lifecycle {{
            postcondition {{
              condition     = fileexists("{tmp_path}/${{self.id == "" ? "" : "is-there"}}")
              error_message = "It is not there yet."
            }}
          }}
        }}
        """,
    )
    failed = project.run("apply", "web", "--yes", "--json")
    (tmp_path / "is-there").touch()

    ended = project.run("apply", "web", "--yes", "--json")

    entries = [json.loads(text)["status"] for text in project.entries("late")]
    assert (failed.code, ended.code) == (10, 0)
    assert entries == ["running", "error", "ok"]
    assert project.record("late")["last_error"] is None
