"""
The kill matrix: tool, engine, both or the provider get SIGKILL during create, update, delete or
verify; `reconcile` itself does; the machine is lost; an object appears after its engine died. Each
case ends settled, with no object left over and none made twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from orchestrator.engine.process.wrapper import session_members
from tests.engine.clouds import provide
from tests.engine.watched_engine import kill
from tests.project import PROGRAMS, Ended, Project, Running, eventually, finish, require_engine

pytestmark = pytest.mark.engine

ADDRESS = "fakecloud_server.this"
BLUEPRINT = """
    version: 1
    name: one
    steps:
      web:
        module: ../modules/server
        inputs: {{name: web, size: {size}, tags: {{orchestrator: "${{target.id}}"}}}}
        search:
          fakecloud_server.this:
            data: fakecloud_servers
            arguments: {{tags: {{orchestrator: "${{target.id}}"}}}}
            ids: ids
        verify: {verify}
"""
#: The programs in full, the telling cases on the embedded engine. A provider that dies in an update
#: or a delete is in the fault matrix, both dying in them in test_settling and
#: test_interrupted_destroy.
CASES = [
    *(
        (moment, victim, program)
        for program in PROGRAMS
        for moment, victim in (
            *(("create", victim) for victim in ("tool", "engine", "both", "provider")),
            *((moment, victim) for moment in ("update", "delete") for victim in ("tool", "engine")),
        )
    ),
    ("create", "both", "embedded"),
    ("update", "engine", "embedded"),
    ("delete", "tool", "embedded"),
]


class Scene:
    """
    A project with one server, its cloud, and the means to kill what works on it.
    """

    def __init__(self, project: Project, cloud: Cloud) -> None:
        self.project = project
        self.cloud = cloud
        project.copy("fixtures/fakecloud/modules/server")
        found = project.root / "fixtures/fakecloud/modules/server"
        shutil.move(found, project.root / "modules/server")
        project.write("orchestrator.yaml", "settle_seconds: 0\n")
        self.write("small")

    def write(self, size: str, verify: str = "[]") -> None:
        """
        Want the server in this size, with these checks.
        """
        self.project.write("blueprints/one.yaml", BLUEPRINT.format(size=size, verify=verify))

    def start(self, moment: str, fault: str) -> Running:
        """
        Start what does this to the server, and wait until the provider is at it.
        """
        if moment != "create":
            self.project.ok("apply", "one", "--yes")
        if moment == "update":
            self.write("large")
        self.cloud.arm(moment, "web", fault)
        tool = self.project.start("destroy" if moment == "delete" else "apply", "one", "--yes")
        self.cloud.wait_for_call(moment, "web")
        return tool

    def kill(self, victim: str, tool: Running) -> None:
        """
        Kill them; the engine is that of the newest call. A wrapper that lives on is waited for.
        """
        calls = self.project.own.rglob("*.identity.json")
        call = max(calls, key=lambda path: path.stat().st_mtime_ns)
        engine = json.loads(call.read_text())
        match victim:
            case "tool":
                tool.kill()
                self.cloud.disarm()
            case "engine":
                os.kill(engine["pid"], signal.SIGKILL)
            case "both":
                tool.kill()
                os.killpg(engine["wrapper"]["pid"], signal.SIGKILL)
            case "provider":
                os.kill(self.cloud.provider_pids()[-1], signal.SIGKILL)
        finish(tool)
        eventually(lambda: not session_members(engine["wrapper"]["pid"]), "the engine ends")

    def reconcile(self, *options: str) -> Ended:
        return self.project.run("reconcile", "one", "--reason", "a test", "--yes", *options)

    @property
    def doubts(self) -> list[dict[str, Any]]:
        """
        What is in doubt.
        """
        found: list[dict[str, Any]] = self.project.record("web")["resources"]["in_doubt"]
        return found

    @property
    def found(self) -> str:
        """
        The id of the one that a readback found.
        """
        (doubt,) = self.doubts
        (id_,) = doubt["readback"]["ids"]
        return str(id_)

    def adopt(self) -> Ended:
        """
        Take that one over, once the settling time has passed.
        """
        self.project.write("orchestrator.yaml", "settle_seconds: 0\n")
        known = ("--forget", ADDRESS, "--reason", "there was none before")
        return self.reconcile("--adopt", f"{ADDRESS}={self.found}", *known)

    def check_sound(self) -> None:
        """
        The next apply has nothing to create, and the one server is the one that is recorded.
        """
        made = len(self.cloud.calls("create", "web"))
        last = self.project.run("apply", "one", "--yes")
        (server,) = self.cloud.servers()
        record = self.project.record("web")
        assert last.code == 0, last.said
        assert len(self.cloud.calls("create", "web")) == made
        assert (record["status"], record["resources"]["in_doubt"]) == ("ok", [])
        assert [item["id"] for item in record["resources"]["inventory"]] == [server.id]


@contextmanager
def a_scene(directory: Path, kind: str, *, attached: bool = True) -> Iterator[Scene]:
    """
    A scene; ``attached``: the provider runs in this process, which is quicker.
    """
    project = Project(directory / "project", engine=require_engine(kind))
    cloud = Cloud(directory / "cloud.db")
    provide(project, cloud, directory)
    with contextlib.ExitStack() as stack:
        if attached:
            project.environ["TF_REATTACH_PROVIDERS"] = stack.enter_context(cloud.attached())
        yield Scene(project, cloud)


@pytest.mark.parametrize(("moment", "victim", "kind"), CASES)
def test_whoever_is_killed_it_ends_settled(
    tmp_path: Path, moment: str, victim: str, kind: str
) -> None:
    """
    If only the tool dies, the engine's answer settles everything. Else a create is in doubt, is
    found and adopted; an update shows in the next refresh; and an object that was being deleted and
    is not found any more is gone by that delete: the next destroy ends `destroyed`.
    """
    with a_scene(tmp_path, kind, attached=victim != "provider") as scene:
        tool = scene.start(moment, "slow" if victim == "tool" else "hang_after")
        scene.kill(victim, tool)

        settled = scene.reconcile()

        if victim != "tool" and moment == "create":
            assert (settled.code, scene.adopt().code) == (11, 0), settled.said
        else:
            assert settled.code == 0, settled.said
        if moment == "delete":
            if victim != "tool":
                scene.project.ok("destroy", "one", "--yes")
            assert scene.project.record("web")["status"] == "destroyed"
            scene.project.ok("status", "one", "--expect", "destroyed")
            assert scene.cloud.servers() == ()
        else:
            scene.check_sound()


def test_a_tool_killed_during_verify(tmp_path: Path, engine: str) -> None:
    """
    Everything is applied and nobody knows whether it is good: reconcile runs the checks.
    """
    with a_scene(tmp_path, engine) as scene:
        tried, good = tmp_path / "tried", tmp_path / "good"
        script = f"touch {tried}; test -e {good}"
        scene.write("small", f'[{{command: {{argv: [sh, -c, "{script}"], within: 60s}}}}]')
        tool = scene.project.start("apply", "one", "--yes")
        eventually(tried.exists, "the check is tried", tool)
        kill(tool)
        record = scene.project.record("web")
        good.touch()

        ended = scene.reconcile()

        assert (record["status"], record["active_command"]) == ("running", "apply")
        assert ended.code == 0, ended.said
        assert scene.project.record("web")["verification"]["verdict"] == "verified"
        scene.check_sound()


@pytest.mark.parametrize("victim", ["tool", "both"])
@pytest.mark.parametrize("op", ["read", "search", "import"])
def test_a_killed_reconcile_is_done_again(
    tmp_path: Path, engine: str, op: str, victim: str
) -> None:
    """
    Killed while its plan refreshes, while it asks the provider, or while it takes an object over:
    what its engine still did is found, and another reconcile settles the rest.
    """
    with a_scene(tmp_path, engine) as scene:
        scene.kill("both", scene.start("update" if op == "read" else "create", "hang_after"))
        options: tuple[str, ...] = ()
        if op == "import":
            scene.reconcile()
            options = (f"--adopt={ADDRESS}={scene.found}",)
        scene.cloud.arm(op, "*", "slow")
        tool = scene.project.start("reconcile", "one", "--reason", "a test", "--yes", *options)
        eventually(lambda: not scene.cloud.armed(), "the provider is at it", tool)
        scene.kill(victim, tool)

        ended = scene.reconcile()
        if ended.code != 0:
            ended = scene.adopt()

        assert ended.code == 0, ended.said
        scene.check_sound()


def test_a_lost_machine(tmp_path: Path, engine: str) -> None:
    """
    The project's directory is gone with its machine; the store and the provider state are left.
    From another machine nobody can tell whether the run is dead, until a person says so. What was
    under way by the last heartbeat and is not in state is in doubt, is found and adopted.
    """
    with a_scene(tmp_path, engine) as scene:
        project = scene.project
        tool = scene.start("create", "hang_after")
        eventually(lambda: bool(project.leases()[0]["in_flight"]), "the heartbeat tells", tool)
        scene.kill("both", tool)
        lost = project.own.rename(tmp_path / "lost")
        project.own.mkdir(mode=0o700)
        for file in lost.glob("operations.db*"):
            shutil.copy(file, project.own)
        shutil.copytree(lost / "state", project.own / "state")
        see_from_elsewhere(project.own / "operations.db")

        told = project.steps("one")["web"]
        busy = project.run("apply", "one", "--yes")
        taken = scene.reconcile("--takeover", "the runner is gone")
        (doubt,) = scene.doubts
        adopted = scene.adopt()

        assert (told["status"], told["condition"]) == ("running", "silent")
        assert (busy.code, "--takeover" in busy.said) == (20, True)
        assert (taken.code, adopted.code) == (11, 0), taken.said + adopted.said
        assert (doubt["action"], doubt["started_at"] is not None) == ("create", True)
        scene.check_sound()


def see_from_elsewhere(store: Path) -> None:
    """
    Make everybody who is known to the store a process of another machine, an hour ago.
    """
    there = "json_set({}, '$.owner.host', 'elsewhere', '$.owner.boot_id', 'another')"
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        lease = there.format("lease")
        connection.execute(f"update leases set heartbeat = heartbeat - 1.0 / 24, lease = {lease}")
        connection.execute(f"update claims set claim = {there.format('claim')}")


def test_an_object_that_appears_late(tmp_path: Path, engine: str) -> None:
    """
    The engine died with a request under way: what it made is not there yet when somebody looks.
    Nothing is called absent before the settling time has passed; then it is found and adopted.
    """
    with a_scene(tmp_path, engine) as scene:
        scene.project.write("orchestrator.yaml", "settle_seconds: 600\n")
        scene.kill("both", scene.start("create", "hang_after,late"))

        early = scene.reconcile()
        (doubt,) = scene.doubts
        scene.cloud.disarm()
        later = scene.reconcile()

        assert (early.code, doubt["readback"]["verdict"]) == (11, "unknown"), early.said
        assert later.code == 11
        assert scene.adopt().code == 0
        scene.check_sound()


def test_a_takeover_from_a_living_engine_takes_nothing(tmp_path: Path, engine: str) -> None:
    """
    The run cannot be seen from here, and its engine holds the state lock: exit 20, record and claim
    are as they were.
    """
    with a_scene(tmp_path, engine) as scene:
        project = scene.project
        tool = scene.start("create", "hang_after")
        tool.kill()
        finish(tool)
        (file,) = project.own.rglob("apply.identity.json")
        wrapper = json.loads(file.read_text())["wrapper"]["pid"]
        file.unlink()  # its engine was started in another container
        see_from_elsewhere(project.own / "operations.db")
        before, claim = project.entries("web"), claims(project.own / "operations.db")

        ended = scene.reconcile("--takeover", "it looks dead")
        after = project.entries("web"), claims(project.own / "operations.db")
        os.killpg(wrapper, signal.SIGKILL)

        assert ended.code == 20, ended.said
        assert "an engine that is alive holds" in " ".join(ended.said.split())
        assert after == (before, claim)


def claims(store: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(store)) as connection:
        return [text for (text,) in connection.execute("select claim from claims")]
