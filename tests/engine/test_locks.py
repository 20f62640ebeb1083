"""
A state lock that somebody else holds: said with its holder, nothing changed, nothing unlocked.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.engine.signal_counter import LOCK, counted
from tests.engine.state_server import drop_lock, state_server, take_lock
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Project, every_engine, require_engine

pytestmark = pytest.mark.engine

HOLD = "fixtures/lock-held/hold.py"
STATE = ".orchestrator/state/lock-held/default/breaks.tfstate"


@pytest.fixture
def project(project: Project) -> Project:
    """
    A project whose step ``breaks`` is applied.
    """
    steps = ("--step", "breaks", "--step", "before")
    project.prepare("apply", project.fixture("lock-held"), "--yes", *steps)
    return project


@contextmanager
def locked(project: Project) -> Iterator[str]:
    """
    Another Terraform holds the lock of the step's state; its id.
    """
    holder = subprocess.Popen(
        [sys.executable, project.root / HOLD, project.root / STATE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        yield holder.stdout.readline().strip()
    finally:
        holder.communicate()


@every_engine
def test_an_apply_tells_whose_lock_it_is_and_leaves_the_record(project: Project) -> None:
    """
    Law: failure keeps what is known.
    Exit 20; lock id, owner and time on screen; the record byte-identical; the next
    step pending; nothing unlocked.
    """
    before = project.entries("breaks")
    with locked(project) as lock:
        info = (project.root / STATE).with_name(".breaks.tfstate.lock.info")

        ended = project.run("apply", "fixtures/lock-held/blueprint.yaml", "--yes")

        assert info.exists()
    assert ended.code == 20
    said = " ".join(ended.out.replace("│", " ").split())
    assert lock in said
    assert "somebody@elsewhere" in said
    assert "created 20" in said
    assert project.entries("breaks") == before
    rows = {row["step"]: row["status"] for row in project.last_run()["steps"]}
    assert (rows["before"], rows["after"]) == ("ok", "pending")


def test_a_plan_tells_whose_lock_it_is(project: Project) -> None:
    """
    A reading command says so too: exit 20 with the holder, in the document as well.
    """
    with locked(project) as lock:
        ended = project.run("plan", "fixtures/lock-held/blueprint.yaml", "--json")

    assert ended.code == 20
    failed = [row for row in ended.document["steps"] if row["status"] == "failed"]
    assert [row["step"] for row in failed] == ["breaks"]
    assert failed[0]["error"]["code"] == "busy"
    assert lock in failed[0]["error"]["summary"]
    assert "somebody@elsewhere" in failed[0]["error"]["summary"]


def test_a_lock_taken_after_the_plan_leaves_the_status_from_before(
    tmp_path: Path, engine: str
) -> None:
    """
    Law: failure keeps what is known.
    The lock is taken between plan and apply; the journal proves that nothing began, so the
    status from before is back, with the attempt beside it.
    """
    project = Project(tmp_path / "other", engine=engine)
    counted(project, tmp_path)
    project.fixture("lock-held")
    project.write(
        "blueprints/lock-held.yaml",
        """
        version: 1
        name: lock-held
        inputs: {value: {type: string, default: one}}
        steps:
          breaks:
            module: ../fixtures/shared/object
            inputs: {name: x, value: "${inputs.value}"}
        """,
    )
    project.ok("apply", "lock-held", "--yes")
    outputs = project.record("breaks")["outputs"]
    holder = f"{sys.executable} {project.root / HOLD} {project.root / STATE}"
    project.environ[LOCK] = f"apply {holder}"

    ended = project.run("apply", "lock-held", "--yes", "-i", "value=two")

    assert ended.code == 20
    record = project.record("breaks")
    assert (record["status"], record["error"], record["outputs"]) == ("ok", None, outputs)
    attempt = record["last_attempt"]
    assert (attempt["mutated"], attempt["error"]["code"]) == (False, "state_locked")
    assert "somebody@elsewhere" in attempt["error"]["summary"]


def test_a_first_apply_that_meets_a_lock_leaves_no_record(tmp_path: Path, engine: str) -> None:
    """
    A target that was never applied stays so: no record, nothing to clean up.
    """
    project = Project(tmp_path / "other", engine=engine)
    blueprint = project.fixture("lock-held")
    (project.root / STATE).parent.mkdir(parents=True)
    with locked(project):
        ended = project.run("apply", blueprint, "--yes", "--step", "breaks", "--step", "before")

    assert ended.code == 20
    assert project.entries("breaks") == []


def test_reconcile_records_whose_lock_it_is(project: Project) -> None:
    """
    Id, owner and time on screen and in the record, whose status stays; and there is no
    breaking a local lock: it ends with the process that holds it.
    """
    blueprint = "fixtures/lock-held/blueprint.yaml"
    with locked(project) as lock:
        ended = project.run("reconcile", blueprint, "--step", "breaks", "--json")
        record = project.record("breaks")
        unlock = ("--step", "breaks", "--unlock", lock, "--yes", "--json")
        unlocked = project.run("reconcile", blueprint, *unlock, "--reason", "it hangs")
        unreasoned = project.run("reconcile", blueprint, *unlock)

    assert ended.code == 20
    said = ended.events[-1]["steps"][0]["last_error"]
    assert lock in said and "it ends with the process that holds it" in said
    assert record["status"] == "ok"
    attempt = record["last_attempt"]
    assert (attempt["command"], attempt["mutated"]) == ("reconcile", False)
    assert (attempt["error"]["code"], attempt["error"]["phase"]) == ("state_locked", "lock")
    for fact in (lock, "somebody@elsewhere", "created 20"):
        assert fact in attempt["error"]["summary"]
    assert (unlocked.code, unreasoned.code) == (4, 4)
    assert unlocked.events[-1]["steps"][0]["error"]["code"] == "no_lock_to_break"
    assert "needs a reason" in unreasoned.events[-1]["error"]


def test_a_target_outside_of_blueprints_is_found_by_its_record(project: Project) -> None:
    """
    Only the path that the record keeps tells where its blueprint is.
    """
    listed = project.ok("exec", "lock-held/default/breaks", "--", "state", "list")

    assert listed.out == "terraform_data.object\n"


def test_surgery_that_meets_a_lock_leaves_the_record_as_it_was(project: Project) -> None:
    """
    Exit 20; the status from before, and beside it an attempt that changed nothing and says whose
    lock it is.
    """
    with locked(project) as lock:
        words = ("state", "rm", "terraform_data.object")
        ended = project.run("exec", "lock-held/default/breaks", "--yes", "--", *words)

    record = project.record("breaks")
    assert ended.code == 20
    assert (record["status"], record["last_attempt"]["mutated"]) == ("ok", False)
    fault = record["last_attempt"]["error"]
    assert (fault["code"], fault["phase"]) == ("state_locked", "lock")
    assert lock in fault["summary"]


def test_a_lock_is_released_where_nothing_was_ever_applied(tmp_path: Path) -> None:
    """
    A run that was killed in its first plan left a lock and no record. Its engine's facts fit that
    run: released under the marker, and the step is `absent`, as nothing was made. Not so where the
    engine does not tell the holder, as 1.11 over http, or where the same user took it later.
    """
    project = Project(tmp_path / "project", engine=require_engine("terraform"))
    blueprint = project.fixture("refuses-state")
    engine = watched(project, tmp_path / "watched")
    step = ("--step", "before", "--json", "--yes")
    with state_server() as address:
        project.environ["ORCHESTRATOR_INPUT_state_address"] = address
        engine.hold("plan")
        tool = project.start("apply", blueprint, *step)
        engine.wait_until_held("plan", tool)
        kill_with_engine(project, tool, "plan-1")
        engine.release("plan")
        actor = project.last_run()["actor"]
        lock = {
            "ID": "5c2a7a9e-0000-4000-8000-000000000001",
            "Operation": "OperationTypePlan",
            "Who": f"{actor['user']}@{actor['host']}",
            "Created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        unlock = (*step, "--unlock", lock["ID"], "--reason", "its runner is gone")
        by_hand = lock | {"Created": f"{datetime.now(UTC) + timedelta(minutes=5):%FT%TZ}"}
        assert take_lock(f"{address}/before", by_hand)
        project.environ["ORCHESTRATOR_ENGINE"] = require_engine("embedded")
        later = project.run("reconcile", blueprint, *unlock)
        drop_lock(f"{address}/before")
        assert take_lock(f"{address}/before", lock)
        project.environ["ORCHESTRATOR_ENGINE"] = require_engine("terraform")
        untold = project.run("reconcile", blueprint, *unlock)
        project.environ["ORCHESTRATOR_ENGINE"] = require_engine("embedded")
        strangers = project.run("reconcile", blueprint, *step, "--unlock", "x", "--reason", "y")
        assert not take_lock(f"{address}/before", lock)
        released = project.run("reconcile", blueprint, *unlock)
        free = take_lock(f"{address}/before", lock)

    for refused in (untold, strangers, later):
        assert refused.code == 4
        assert refused.events[-1]["steps"][0]["error"]["code"] == "foreign_lock"
    assert "does not report who" in untold.events[-1]["steps"][0]["last_error"]
    assert "no run of ours was under way" in later.events[-1]["steps"][0]["last_error"]
    assert lock["Who"] in strangers.events[-1]["steps"][0]["last_error"]
    assert (released.code, free) == (0, True), released.said
    marker, record = project.history("before")
    assert (marker["status"], marker["active_command"]) == ("running", "unlock")
    assert (record["status"], record["last_attempt"]["command"]) == ("absent", "unlock")
