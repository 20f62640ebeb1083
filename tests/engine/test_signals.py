"""
Signals to the tool while it works, from another process and from a terminal (law: signals).

The engine is a real one behind a program that counts the signals it gets and passes them on.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.signal_counter import DEAF, HOLD, Counted, counted
from tests.project import ENGINES, PROGRAMS, Project, Running, eventually, finish
from tests.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.engine

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@dataclass(frozen=True, slots=True)
class Scene:
    """
    A project, its counted engine, and the files by which a step says that it is under way and is
    told to go on.
    """

    project: Project
    engine: Counted
    started: Path
    release: Path

    def blueprint(self, *steps: str, extra: str = "") -> None:
        """
        Write ``blueprints/web.yaml`` with steps given in flow style.
        """
        rows = "\n".join(f"  {step}" for step in steps)
        self.project.write("blueprints/web.yaml", f"version: 1\nname: web\n{extra}steps:\n{rows}\n")

    def hanging(self, name: str = "first", extra: str = "") -> str:
        """
        A step that hangs in its create until it is released or the engine is stopped.
        """
        inputs = f"started: {self.started}-{name}, release: {self.release}"
        module = "../fixtures/hangs-until-stopped"
        return f"{name}: {{module: {module}, inputs: {{{inputs}}}{extra}}}"

    def ignoring(self, extra: str = "") -> str:
        """
        A step in which the engine ignores the stop until `let_go`.
        """
        module = "../fixtures/ignores-interrupt"
        return f"first: {{module: {module}, inputs: {{pipe: {self.pipe}}}{extra}}}"

    @property
    def pipe(self) -> Path:
        return self.started.with_name("pipe")

    def hangs(self) -> bool:
        """
        Whether the engine hangs in the step that ignores the stop.
        """
        return self.project.hangs_at(self.pipe)

    def let_go(self) -> None:
        """
        End the hanging of the step that ignores the stop.
        """
        self.pipe.write_text("go\n")
        self.pipe.unlink(missing_ok=True)

    def wait_for(self, tool: Running, name: str = "first") -> None:
        """
        Wait until the hanging step is in its create.
        """
        eventually(Path(f"{self.started}-{name}").exists, f"{name} is in its create", tool)

    def flying(self) -> list[str]:
        """
        The objects that the store says are under way.
        """
        return [item["address"] for lease in self.project.leases() for item in lease["in_flight"]]


SECOND = "second: {module: ../fixtures/shared/object, inputs: {name: x}, needs: [first]}"


@pytest.fixture
def scene(project: Project, tmp_path: Path) -> Scene:
    project.copy("fixtures/shared", "fixtures/hangs-until-stopped", "fixtures/ignores-interrupt")
    return Scene(project, counted(project, tmp_path), tmp_path / "started", tmp_path / "go")


@pytest.mark.parametrize(
    ("engine", "signals", "code"),
    [
        *((engine, (INT,), 130) for engine in ENGINES),
        *((program, (TERM,), 143) for program in PROGRAMS),
        *((program, (INT, TERM), 130) for program in PROGRAMS),
    ],
    indirect=["engine"],
    scope="module",
)
def test_a_signal_ends_the_mutation_in_good_order(
    scene: Scene, signals: tuple[signal.Signals, ...], code: int
) -> None:
    """
    Law: signals.
    However many signals CI sends, the engine gets exactly one SIGINT; what it did
    is recorded as ``error``, ``stopped``; what never ran is ``pending``; exit 130 or 143.
    """
    scene.blueprint(scene.hanging(), SECOND)
    tool = scene.project.launch("apply", "web", "--yes")
    scene.wait_for(tool)

    for number in signals:
        tool.send_signal(number)

    assert finish(tool).code == code
    assert scene.engine.signals == [("apply", INT)]
    record = scene.project.record("first")
    assert (record["status"], record["error"]["code"]) == ("error", "stopped")
    assert record["resources"]["tainted"] == ["terraform_data.object"]
    assert record["resources"]["in_doubt"] == []
    second = scene.project.steps("web")["second"]
    assert (second["status"], second["blocked_by"]) == ("pending", ["first"])


def test_a_slow_stop_is_waited_for(scene: Scene) -> None:
    """
    The engine takes its time; further signals, short of a third Ctrl-C, do not hurry
    it; meanwhile the store tells what is in flight and ``status`` that it is live.
    """
    scene.blueprint(scene.ignoring())
    tool = scene.project.launch("apply", "web", "--yes")
    eventually(scene.hangs, "the engine hangs", tool)

    tool.send_signal(INT)
    eventually(lambda: scene.engine.signals != [], "the engine gets its SIGINT", tool)
    tool.send_signal(TERM)
    tool.send_signal(INT)

    eventually(lambda: scene.flying() == ["terraform_data.object"], "the lease tells", tool)
    assert scene.project.steps("web")["first"]["condition"] == "live"
    scene.let_go()
    assert finish(tool).code == 130
    assert scene.engine.signals == [("apply", INT)]
    record = scene.project.record("first")
    assert (record["status"], record["error"]["code"]) == ("error", "stopped")
    assert record["resources"]["tainted"] == ["terraform_data.object"]


def test_an_engine_that_finishes_all_the_same_is_ok(scene: Scene) -> None:
    """
    Law: signals.
    If it had finished it is ``ok``, and the run still counts as stopped.
    """
    scene.blueprint(scene.hanging(), SECOND)
    scene.project.environ[DEAF] = "1"
    tool = scene.project.launch("apply", "web", "--yes")
    scene.wait_for(tool)

    tool.send_signal(INT)
    eventually(lambda: scene.engine.signals != [], "the engine gets its SIGINT", tool)
    scene.release.touch()

    assert finish(tool).code == 130
    steps = scene.project.steps("web")
    assert (steps["first"]["status"], steps["second"]["status"]) == ("ok", "pending")


def test_a_hangup_is_ignored(scene: Scene) -> None:
    """
    Law: signals.
    A closed terminal is no reason to stop a mutation; the engine is told nothing.
    """
    scene.blueprint(scene.hanging())
    tool = scene.project.launch("apply", "web", "--yes")
    scene.wait_for(tool)

    tool.send_signal(HUP)
    scene.release.touch()

    assert finish(tool).code == 0
    assert scene.engine.signals == []
    assert scene.project.record("first")["status"] == "ok"


def test_a_third_interrupt_kills_the_engine(scene: Scene) -> None:
    """
    The last rung: SIGKILL, with what was in flight recorded as in doubt.
    """
    scene.blueprint(scene.ignoring())
    tool = scene.project.launch("apply", "web", "--yes")
    eventually(scene.hangs, "the engine hangs", tool)

    for count in range(3):
        tool.send_signal(INT)
        eventually(lambda: scene.engine.signals != [], "the engine gets its SIGINT", tool)
        # Signals of one kind that are not yet delivered are one signal.
        eventually(lambda: not _is_pending(tool.pid, INT), f"signal {count} is delivered")

    assert finish(tool).code == 130
    assert scene.engine.signals == [("apply", INT)]
    record = scene.project.record("first")
    assert (record["status"], record["error"]["code"]) == ("error", "stopped")
    assert [item["address"] for item in record["resources"]["in_doubt"]] == [
        "terraform_data.object"
    ]


def test_after_the_grace_the_engine_is_killed(scene: Scene) -> None:
    """
    A configured ``grace`` ends an engine that does not honour its SIGINT; the record tells.
    """
    scene.project.write("orchestrator.yaml", "grace: 1s\n")
    scene.blueprint(scene.ignoring())
    tool = scene.project.launch("apply", "web", "--yes")
    eventually(scene.hangs, "the engine hangs", tool)

    tool.send_signal(TERM)

    assert finish(tool).code == 143
    record = scene.project.record("first")
    assert (record["status"], record["error"]["code"]) == ("error", "stopped")
    assert record["resources"]["journal"] == "partial"


def test_a_step_whose_timeout_passes_is_stopped(scene: Scene) -> None:
    """
    A step's deadline sends the same one SIGINT; exit 13, ``deadline`` recorded, nothing in doubt.
    """
    scene.blueprint(scene.hanging(extra=", timeout: 2s"), SECOND)

    ended = scene.project.run("apply", "web", "--yes")

    assert ended.code == 13
    assert scene.engine.signals == [("apply", INT)]
    record = scene.project.record("first")
    assert (record["status"], record["error"]["code"]) == ("error", "deadline")
    assert record["resources"]["tainted"] == ["terraform_data.object"]
    assert scene.project.steps("web")["second"]["status"] == "pending"


def test_a_signal_during_init_leaves_no_record(scene: Scene) -> None:
    """
    Law: signals.
    Before a marker exists nothing is written; the run record tells that it was stopped.
    """
    scene.blueprint(scene.hanging(), SECOND)
    scene.project.environ[HOLD] = "init"
    tool = scene.project.launch("apply", "web", "--yes", "-j", "1")
    scene.engine.wait_until_held(tool)

    tool.send_signal(INT)

    assert finish(tool).code == 130
    assert scene.engine.signals == [("init", INT)]
    assert scene.project.entries("first") == scene.project.entries("second") == []
    run = scene.project.last_run()
    assert run["exit_code"] == 130
    assert [row["status"] for row in run["steps"]] == ["pending", "pending"]


def test_a_signal_during_plan_leaves_the_record_as_it_was(scene: Scene) -> None:
    """
    Law: signals.
    Stopped while planning, the record is byte-identical, and nothing was mutated.
    """
    scene.release.touch()
    scene.blueprint(scene.hanging())
    scene.project.ok("apply", "web", "--yes")
    before = scene.project.entries("first")
    scene.project.environ[HOLD] = "plan"
    tool = scene.project.launch("destroy", "web", "--yes")
    scene.engine.wait_until_held(tool)

    tool.send_signal(TERM)

    assert finish(tool).code == 143
    assert scene.engine.signals == [("plan", INT)]
    assert scene.project.entries("first") == before


def test_a_signal_during_verify_neither_holds_nor_fails_the_check(scene: Scene) -> None:
    """
    Law: signals.
    Applied, but stopped before the checks held: ``error``, ``stopped`` in phase ``verify``,
    dependents ``pending``.
    """
    _checked(scene)
    tool = scene.project.launch("apply", "web", "--yes")
    eventually(scene.started.exists, "the check is tried", tool)

    tool.send_signal(INT)

    assert finish(tool).code == 130
    assert scene.engine.signals == []
    steps = scene.project.steps("web")
    fault = scene.project.record("first")["error"]
    assert (steps["first"]["status"], steps["second"]["status"]) == ("error", "pending")
    assert (fault["code"], fault["phase"]) == ("stopped", "verify")


def test_a_stopped_verify_command_leaves_the_record_as_it_was(scene: Scene) -> None:
    """
    What ``verify`` did not find out it does not record.
    """
    _checked(scene)
    scene.release.touch()
    scene.project.ok("apply", "web", "--yes", "--step", "first")
    before = scene.project.entries("first")
    scene.release.unlink()
    scene.started.unlink()
    tool = scene.project.launch("verify", "web")
    eventually(scene.started.exists, "the check is tried", tool)

    tool.send_signal(INT)

    assert finish(tool).code == 130
    assert scene.project.entries("first") == before


def test_steps_in_flight_are_all_awaited(scene: Scene) -> None:
    """
    Each engine in flight gets its one SIGINT and is awaited and recorded; no further
    step starts.
    """
    scene.blueprint(*(scene.hanging(name) for name in ("a", "b", "c")))
    options = ("--on-failure", "continue", "-j", "2")
    tool = scene.project.launch("apply", "web", "--yes", *options)
    scene.wait_for(tool, "a")
    scene.wait_for(tool, "b")

    tool.send_signal(INT)

    assert finish(tool).code == 130
    assert scene.engine.signals == [("apply", INT)] * 2
    assert scene.engine.processes == 2
    for step in ("a", "b"):
        record = scene.project.record(step)
        assert (record["status"], record["error"]["code"]) == ("error", "stopped")
        assert record["resources"]["tainted"] == ["terraform_data.object"]
    assert scene.project.entries("c") == []
    assert list(scene.project.own.glob("runs/*/steps/c/*/resolved.inputs.yml")) == []


def test_ctrl_c_at_the_terminal_reaches_the_engine_once(scene: Scene) -> None:
    """
    The terminal signals the whole foreground group; the engine is not in it and gets the
    one SIGINT that we send.
    """
    scene.blueprint(scene.hanging())
    terminal = Terminal(scene.project, "apply", "web", "--yes")
    terminal.drain_until(Path(f"{scene.started}-first").exists)
    assert os.getpgid(terminal.pid) == terminal.pid

    terminal.type(CTRL_C)

    assert terminal.finish() == 130
    assert scene.engine.signals == [("apply", INT)]
    assert scene.project.record("first")["error"]["code"] == "stopped"


def _checked(scene: Scene) -> None:
    """
    A step whose check tells that it was tried, and holds once released.
    """
    check = f'"touch {scene.started}; test -e {scene.release}"'
    verify = f"verify: [{{command: {{argv: [sh, -c, {check}], within: 60s}}}}]"
    scene.blueprint(
        f"first: {{module: ../fixtures/shared/object, inputs: {{name: first}}, {verify}}}", SECOND
    )


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """
    Whether a signal waits for the process to take it.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
