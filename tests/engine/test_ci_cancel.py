"""
A CI job is cancelled in the middle of an apply, the way GitHub's runner does it: the step's entry
process gets SIGINT, 7.5 s later SIGTERM, and 2.5 s after that everything that carries the job's
RUNNER_TRACKING_ID is killed. Where nothing ends before the kill, the waits are a fifth of that.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import wait_for_answers
from tests.project import PATIENCE, Ended, Project, eventually, every_engine, finish

pytestmark = pytest.mark.engine

TRACKING = "RUNNER_TRACKING_ID"
BLUEPRINT = """
    version: 1
    name: job
    steps:
      first: {module: ../modules/server, inputs: {name: first}}
      second: {module: ../modules/server, inputs: {name: second}, needs: [first]}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("blueprints/job.yaml", BLUEPRINT)
    return project


class Job:
    """
    A job whose one step is a script that applies the blueprint.
    """

    def __init__(self, project: Project, *, by_exec: bool) -> None:
        self.id = f"github_{project.root}"
        python = shlex.quote(sys.executable)
        command = f"exec {python}" if by_exec else python
        script = project.write(
            "step.sh",
            f"""
            {command} -m orchestrator apply job --yes
            echo the step is done
            """,
        )
        self.entry = subprocess.Popen(
            ["bash", "-e", script],
            cwd=project.root,
            env=project.environ | {TRACKING: self.id, "CI": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def cancel(self, *, before_term: float = 1.5, told: Callable[[], bool] = lambda: True) -> Ended:
        """
        Cancel it; how its entry process ended. There is no SIGTERM before ``before_term`` seconds
        have passed and ``told`` holds.
        """
        self.entry.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.entry.wait(before_term)
            return finish(self.entry)
        eventually(told, "who is to stop is told", self.entry)
        self.entry.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        for process in self.tracked():
            process.kill()
        return finish(self.entry)

    def tracked(self) -> list[psutil.Process]:
        """
        What carries the job's id, whatever session it is in.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(TRACKING) == self.id:
                    found.append(process)
        return found


@every_engine
def test_with_exec_a_cancelled_job_ends_in_good_order(project: Project, cloud: Cloud) -> None:
    """
    With `exec` the tool is what gets the SIGINT: the engine stops and is awaited, what it
    did is recorded as stopped, nothing is in doubt or killed, and the next apply goes on.
    """
    cloud.arm("create", "first", "slow")
    job = Job(project, by_exec=True)
    cloud.wait_for_call("create", "first")

    ended = job.cancel(before_term=PATIENCE)
    record = project.record("first")
    left = job.tracked()
    after = project.run("apply", "job", "--yes")

    assert ended.code == 130, ended.said
    assert (record["status"], record["error"]["code"]) == ("error", "stopped")
    assert (record["resources"]["in_doubt"], left) == ([], [])
    assert after.code == 0, after.said
    assert [server.name for server in cloud.servers()] == ["first", "second"]


def test_without_exec_the_engine_outlives_a_cancelled_job(project: Project, cloud: Cloud) -> None:
    """
    Without `exec` only the shell is told, and the tool is killed unasked. The engine does
    not carry the job's id: it finishes and leaves its answer. The record says `running` until the
    next apply settles it, creates nothing again, and does what never ran.
    """
    cloud.arm("create", "first", "slow")
    job = Job(project, by_exec=False)
    cloud.wait_for_call("create", "first")

    ended = job.cancel()
    row = project.steps("job")["first"]
    cloud.disarm()
    wait_for_answers(project)
    after = project.run("apply", "job", "--yes")

    assert "the step is done" not in ended.said
    assert (row["status"], row["condition"]) == ("running", "live")
    assert (after.code, "was interrupted" in after.said) == (0, True), after.said
    assert [server.name for server in cloud.servers()] == ["first", "second"]
    assert len(cloud.calls("create", "first")) == 1


def test_an_engine_that_heeds_no_stop_outlives_a_cancelled_job(
    project: Project, tmp_path: Path
) -> None:
    """
    With `exec`, and an object that takes longer than the runner waits: the tool is killed while it
    awaits the engine. That has had its one SIGINT and ends later; the next command concludes from
    its answer that it was stopped, and nothing is in doubt.
    """
    project.copy("fixtures/ignores-interrupt")
    pipe = tmp_path / "pipe"
    module = "../fixtures/ignores-interrupt"
    project.write(
        "blueprints/job.yaml",
        f"{{version: 1, name: job, steps: {{it: {{module: {module}, inputs: {{pipe: {pipe}}}}}}}}}",
    )
    job = Job(project, by_exec=True)
    eventually(partial(project.hangs_at, pipe), "the create hangs", job.entry)
    (said,) = project.own.rglob("raw/apply.stdout")

    ended = job.cancel(told=lambda: "Interrupt received" in said.read_text())
    row = project.steps("job")["it"]
    pipe.write_text("go\n")
    pipe.unlink(missing_ok=True)
    wait_for_answers(project)
    settled = project.run("reconcile", "job")

    assert ended.code == -signal.SIGKILL
    assert (row["status"], row["condition"]) == ("running", "live")
    record = project.record("it")
    assert (record["status"], record["resources"]["in_doubt"]) == ("error", []), settled.said
    assert record["resources"]["tainted"] == ["terraform_data.object"]
