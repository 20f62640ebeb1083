"""
The cases of the contract on real engines: one life of one target, told once for each engine.

Each act of `Life` is one call of the tool; the tests look at what it left.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.project import Ended, Project, every_engine, finish

pytestmark = pytest.mark.engine

STEP = "thing"
BLUEPRINT = "blueprints/life.yaml"
FILE_LIMIT = 48 * 1024  # bytes: run records fit, the write probe of the store does not

MODULE = """
    variable "look" { type = string }
    variable "marker" { type = string }
    variable "revision" { type = string }
    variable "fails" { type = bool }
    variable "size" { type = number }

    resource "terraform_data" "kept" {
      input = { look = var.look, marker = var.marker }

      lifecycle {
        precondition {
          condition     = var.size <= 10
          error_message = "It is too large."
        }
      }

      provisioner "local-exec" {
        when    = destroy
        command = "${self.input.look} && test -e ${self.input.marker}"
      }
    }

    resource "terraform_data" "object" {
      triggers_replace = var.revision

      provisioner "local-exec" {
        command = "${var.look} && test ${var.fails} = false"
      }
    }

    output "kept_id" { value = terraform_data.kept.id }
    output "id" { value = terraform_data.object.id }
"""
INPUTS = """
    version: 1
    name: life
    inputs:
      look: {type: string}
      marker: {type: string}
      revision: {type: string, default: one}
      fails: {type: bool, default: false}
      size: {type: number, default: 1}
    steps:
      thing:
        module: ../modules/life
        inputs:
          look: "${inputs.look}"
          marker: "${inputs.marker}"
          revision: "${inputs.revision}"
          fails: "${inputs.fails}"
          size: "${inputs.size}"
"""
NEEDS_A_PROVIDER_NOBODY_HAS = """
    terraform {
      required_providers {
        nothing = { source = "nobody/nothing" }
      }
    }
"""


@dataclass(frozen=True, slots=True)
class Act:
    """
    A call of the tool and what it left: the entries of the target before and after it, and the
    record that somebody saw in the middle of the mutation.
    """

    ended: Ended
    before: list[str]
    after: list[str]
    seen: dict[str, Any] | None

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.after[-1])
        return found

    @property
    def run_id(self) -> str:
        return str(self.ended.events[-1]["run_id"])

    @property
    def run_record(self) -> dict[str, Any]:
        """
        ``run.json`` of the act's own run.
        """
        file = Path(self.ended.events[-1]["directory"]) / "run.json"
        found: dict[str, Any] = json.loads(file.read_text())
        return found


class Life:
    """
    A target from its first, failed apply to its last, confirmed destroy.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = Project(root, engine=engine)
        self._seen, self._marker = root / "seen.json", root / "may-destroy"
        self._prepare()
        self.first_apply = self._apply("fails=true")
        self.destroy_of_error = self._allowed_destroy()
        self.applied = self._apply()
        self.unchanged = self._apply()
        self.full_disk = self._apply("revision=two", limit=FILE_LIMIT)
        with self._read_only_store() as possible:
            self.read_only = self._apply("revision=two") if possible else None
        with self._broken_store() as untouched:
            self.broken_store = self._apply("revision=two", look_after=False)
            self.broken_store_untouched = untouched()
        self.failed_plan = self._apply("revision=two", "size=11")
        extra = self.project.write("modules/life/extra.tf", NEEDS_A_PROVIDER_NOBODY_HAS)
        self.failed_init = self._apply("revision=two")
        extra.unlink()
        self.failed_apply = self._apply("revision=two", "fails=true")
        self.failed_destroy = self._act("destroy", BLUEPRINT, "--yes", "--json")
        self.destroyed = self._allowed_destroy()

    def _prepare(self) -> None:
        root = self.project.root
        self.project.write("modules/life/main.tf", MODULE)
        self.project.write(BLUEPRINT, INPUTS)
        config = self.project.write(
            "cli.tfrc",
            f"""
            provider_installation {{
              filesystem_mirror {{
                path = "{root}/mirror"
              }}
            }}
            """,
        )
        look = self.project.write(
            "look.sh",
            f"""
            "$PYTHON" -c '
            import sqlite3
            store = sqlite3.connect("file:{self.project.own}/operations.db?mode=ro", uri=True)
            query = "SELECT record FROM entries ORDER BY sequence DESC LIMIT 1"
            print(store.execute(query).fetchone()[0])
            ' > "{self._seen}"
            """,
        )
        self.project.environ |= {
            "TF_CLI_CONFIG_FILE": str(config),
            "ORCHESTRATOR_INPUT_look": f"sh {look}",
            "ORCHESTRATOR_INPUT_marker": str(self._marker),
            "PYTHON": sys.executable,
        }

    def _apply(self, *inputs: str, limit: int | None = None, look_after: bool = True) -> Act:
        given = [word for text in inputs for word in ("-i", text)]
        return self._act(
            "apply", BLUEPRINT, "--yes", "--json", *given, limit=limit, look_after=look_after
        )

    def _allowed_destroy(self) -> Act:
        self._marker.touch()
        act = self._act("destroy", BLUEPRINT, "--yes", "--json")
        self._marker.unlink()
        return act

    def _act(self, *arguments: str, limit: int | None = None, look_after: bool = True) -> Act:
        self._seen.unlink(missing_ok=True)
        before = self.project.entries(STEP) if look_after else []
        small = None if limit is None else _file_limit(limit)
        ended = finish(self.project.launch(*arguments, preexec_fn=small))
        after = self.project.entries(STEP) if look_after else []
        seen = json.loads(self._seen.read_text()) if self._seen.exists() else None
        return Act(ended, before, after, seen)

    @contextmanager
    def _read_only_store(self) -> Iterator[bool]:
        """
        Nobody may write the store's file; yields False where this user cannot be kept from it.
        """
        database = self.project.own / "operations.db"
        if os.geteuid() != 0:
            database.chmod(0o400)
            yield True
            database.chmod(0o600)
            return
        possible = subprocess.run(["chattr", "+i", database], check=False).returncode == 0
        yield possible
        if possible:
            subprocess.run(["chattr", "-i", database], check=True)

    @contextmanager
    def _broken_store(self) -> Iterator[Callable[[], bool]]:
        """
        The store's file is no database; yields what tells that nobody has written to it.
        """
        database = self.project.own / "operations.db"
        good, broken = database.read_bytes(), b"not a database, but somebody's records\n" * 1000
        database.write_bytes(broken)
        yield lambda: database.read_bytes() == broken
        database.write_bytes(good)


def _file_limit(size: int) -> Callable[[], None]:
    """
    What makes a process write no file beyond ``size``: a disk that is full.
    """
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture(scope="module")
def life(each_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """
    The whole life, once for each engine.
    """
    return Life(tmp_path_factory.mktemp("life"), each_engine)


def test_a_failed_first_apply_leaves_error(life: Life) -> None:
    """
    What failed at its first apply is `error`, with command, phase and the engine's own words, and
    the object that exists is known as tainted, not as in doubt.
    """
    record = life.first_apply.record

    assert life.first_apply.ended.code == 10
    assert (record["status"], record["failed_command"]) == ("error", "apply")
    assert record["active_command"] is None
    assert record["error"]["phase"] == "apply"
    assert record["last_error"] == "terraform_data.object: local-exec provisioner error"
    assert record["resources"]["tainted"] == ["terraform_data.object"]
    assert record["resources"]["in_doubt"] == []


def test_the_intent_is_on_disk_before_the_mutation(life: Life) -> None:
    """
    From inside the mutation the stored record reads `running`, with run, planned actions and
    inputs (law: intent first).
    """
    seen = life.first_apply.seen

    assert seen is not None
    assert (seen["status"], seen["active_command"], seen["sequence"]) == ("running", "apply", 1)
    assert seen["run_id"] == life.first_apply.run_id
    assert {(p["address"], p["action"]) for p in seen["resources"]["planned"]} == {
        ("terraform_data.kept", "create"),
        ("terraform_data.object", "create"),
    }
    assert (life.project.own / seen["resolved_inputs_file"]).is_file()


def test_an_error_is_destroyed(life: Life) -> None:
    """
    `error` is potentially live: a destroy takes it down and confirms it (laws: destroy skips only
    what is gone or retained; destroyed means confirmed).
    """
    act = life.destroy_of_error

    assert act.ended.code == 0
    assert act.record["status"] == "destroyed"
    assert act.record["absence"]["verdict"] == "confirmed"
    assert sorted(act.record["resources"]["deleted"]) == [
        "terraform_data.kept",
        "terraform_data.object",
    ]


def test_an_old_destroyed_reads_running_before_the_mutation(life: Life) -> None:
    """
    A mutation over `destroyed` is preceded by `running`: nobody reads the old word meanwhile.
    """
    seen = life.applied.seen

    assert json.loads(life.applied.before[-1])["status"] == "destroyed"
    assert seen is not None
    assert (seen["status"], seen["previous_status"]) == ("running", "destroyed")
    assert seen["absence"] is None


def test_a_destroy_reads_running_before_the_mutation(life: Life) -> None:
    """
    From inside a destroy the record reads `running` with `destroy`, and the outputs known before.
    """
    seen = life.failed_destroy.seen

    assert seen is not None
    assert (seen["status"], seen["active_command"]) == ("running", "destroy")
    assert seen["outputs"] == life.failed_apply.record["outputs"]


def test_success_replaces_running(life: Life) -> None:
    """
    After success the record is `ok`, and nothing of command or error is left (law: only success
    makes ok).
    """
    record = life.applied.record

    assert life.applied.ended.code == 0
    assert (record["status"], record["previous_status"]) == ("ok", "running")
    assert [record[name] for name in ("active_command", "failed_command", "last_error")] == [
        None
    ] * 3
    assert record["error"] is None


def test_a_plan_without_changes_is_ok_without_a_marker(life: Life) -> None:
    """
    An apply that has nothing to do records `ok` in one entry, and calls no mutation (law: before
    the marker nothing changes).
    """
    act = life.unchanged
    (entry,) = act.after[len(act.before) :]

    assert act.ended.code == 0
    assert json.loads(entry)["status"] == "ok"
    assert not list(Path(act.ended.events[-1]["directory"]).rglob("apply.*"))


@pytest.mark.parametrize("name", ["full_disk", "read_only", "broken_store"])
def test_without_a_durable_intent_nothing_is_mutated(life: Life, name: str) -> None:
    """
    A store that cannot be written stops the run before its mutation, with exit code 22, and the
    earlier entry is untouched (law: no record, no mutation).
    """
    act: Act | None = getattr(life, name)
    if act is None:
        pytest.skip("this user cannot be kept from writing a file")

    assert act.ended.code == 22
    assert act.seen is None
    assert act.after == act.before
    assert life.broken_store_untouched


def test_after_a_store_failure_the_next_run_finds_everything_as_it_was(life: Life) -> None:
    """
    What was refused for want of a store left neither record nor claim behind.
    """
    assert life.failed_plan.before == life.unchanged.after


@pytest.mark.parametrize(("name", "phase"), [("failed_plan", "plan"), ("failed_init", "init")])
def test_what_fails_before_the_marker_leaves_the_record_as_it_was(
    life: Life, name: str, phase: str
) -> None:
    """
    A failure in init or plan leaves the record byte-identical; the run's own record keeps it
    (law: before the marker nothing changes).
    """
    act: Act = getattr(life, name)
    (row,) = act.run_record["steps"]

    assert act.ended.code == 10
    assert act.after == act.before
    assert act.run_record["exit_code"] == 10
    assert (row["status"], row["error"]["phase"]) == ("error", phase)


def test_earlier_outputs_survive_a_failed_apply(life: Life) -> None:
    """
    A failed apply keeps what was known, and every output names the run that it comes from.
    """
    earlier, record = life.applied.record, life.failed_apply.record

    assert record["status"] == "error"
    assert record["outputs"].keys() == {"kept_id", "id"}
    assert record["outputs"]["kept_id"] == earlier["outputs"]["kept_id"]
    assert record["outputs_from"]["kept_id"]["run_id"] == life.applied.run_id
    fresh = record["outputs"]["id"] != earlier["outputs"]["id"]
    origin = life.failed_apply if fresh else life.applied
    assert record["outputs_from"]["id"]["run_id"] == origin.run_id


def test_a_failed_destroy_keeps_the_outputs(life: Life) -> None:
    """
    A destroy that fails half-way is `error`, with the outputs from before although the engine's
    state has lost them, and with what is left.
    """
    record = life.failed_destroy.record

    assert life.failed_destroy.ended.code == 10
    assert (record["status"], record["failed_command"]) == ("error", "destroy")
    assert record["outputs"] == life.failed_apply.record["outputs"]
    assert record["outputs_from"] == life.failed_apply.record["outputs_from"]
    assert [item["address"] for item in record["resources"]["inventory"]] == ["terraform_data.kept"]
    assert record["resources"]["deleted"] == ["terraform_data.object"]


def test_a_failed_destroy_can_be_repeated(life: Life) -> None:
    """
    The next destroy continues with what is left, and ends `destroyed`.
    """
    record = life.destroyed.record

    assert life.destroyed.ended.code == 0
    assert (record["status"], record["outputs"], record["last_error"]) == ("destroyed", {}, None)
    assert record["resources"]["deleted"] == ["terraform_data.kept"]


WARNS = """
variable "x" { default = 1 }
resource "terraform_data" "a" { input = var.x }
check "value" {
  assert {
    condition     = var.x == 2
    error_message = "x is ${var.x}, and must be 2"
  }
}
check "made" {
  assert {
    condition     = terraform_data.a.id == "no"
    error_message = "the id is another one"
  }
}
"""


@every_engine
def test_what_the_engine_warns_of_is_told_and_kept(project: Project) -> None:
    """
    Failing `check` blocks with their messages and places: in plan, apply, an apply without changes,
    JSON and status, until an apply in which they hold. A destroy tells of none.
    """
    project.write("m/main.tf", WARNS)
    project.write(
        "blueprints/warns.yaml",
        """
        version: 1
        name: warns
        inputs: {x: {type: number, default: 1}}
        steps:
          a: {module: ../m, inputs: {x: "${inputs.x}"}}
        """,
    )
    value, made = "x is 1, and must be 2", "the id is another one"

    planned = project.ok("plan", "warns")
    applied, again = (project.ok("apply", "warns", "--yes") for _ in range(2))
    row = project.ok("apply", "warns", "--yes", "--json").row
    status, stated = project.ok("status", "warns"), project.steps("warns")["a"]
    mended = project.ok("apply", "warns", "--yes", "-i", "x=2")
    destroyed = project.ok("destroy", "warns", "--yes")

    assert (value in planned.out, "m/main.tf:5" in planned.out) == (True, True)
    for ended in (applied, again, status):
        assert all(text in ended.out for text in (value, made, "m/main.tf:5")), ended.out
    for found in (row["warnings"], stated["warnings"]):
        assert {item["detail"] for item in found} == {value, made}
        assert {item["severity"] for item in found} == {"warning"}
    assert (value in mended.out, made in mended.out) == (False, True)
    assert made not in destroyed.out
    assert "warnings" not in project.record("a") or project.record("a")["warnings"] == []
