"""
The scenario of ``orchestrator demo``: an apply that fails after create, and the recovery.

The tool is run as a separate process; the server is observed from outside, with a request and in
the process table, because a record alone would prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

import click
import psutil

from orchestrator.errors import OrchestratorError, Refused, Stopped, Terminated, Usage

SHIPPED = Path(__file__).parent / "shipped"
BLUEPRINT = "web-service"

_TERM_SECONDS = 10.0
#: What stands between a step and what is said of it while it runs, what is passed on of that, and
#: what the line before the end of a run is made of.
_OF_STEP, _APPLYING, _RULE = " │ ", "applying ...", "─"
#: Of the caller's environment, what would change what the demo does in its own project.
_NOT_PASSED = ("ORCHESTRATOR_", "TF_CLI_ARGS", "TF_WORKSPACE", "TF_VAR_", "TF_DATA_DIR")


class Interrupt(Exception):
    """
    A signal ends the scenario.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def tell(*, directory: Path | None, engine: str | None, pause: bool) -> None:
    """
    Run the scenario in ``directory``, which must be empty or not exist; None: a temporary one,
    removed at the end. With ``pause`` it waits for a key before all parts but the first.

    In any case, everything that was created is destroyed before this returns or raises. Raises
    Refused if a step of the scenario fails, or something could not be destroyed; raises Stopped
    after a signal.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise Usage(f"{directory} is not empty", hint="the demo wants a directory of its own")
    root = (directory or Path(tempfile.mkdtemp(prefix="orchestrator-demo-"))).resolve()
    _lay_out(root)
    signals = Signals()
    stage = Stage(root, engine, signals, pause=pause)
    failure: OrchestratorError | None = None
    with signals.installed():
        try:
            _story(stage)
        except Interrupt:
            pass  # it is noted
        except Refused as exc:
            failure = exc
        except BaseException:
            stage.clear()
            raise
        gone = stage.clear()
    if signals.noted:
        kind = Terminated if signals.noted == signal.SIGTERM else Stopped
        failure = kind("the demo was stopped")
    if not gone:
        raise Refused(
            "expectation",
            f"not everything could be destroyed: {root} is kept",
            hint=f"orchestrator -C {shlex.quote(str(root))} status {BLUEPRINT}",
        ) from failure
    if directory is None:
        shutil.rmtree(root)
    if failure is not None:
        raise failure


def _lay_out(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name in ("modules", "blueprints"):
        ignored = shutil.ignore_patterns("__pycache__", ".terraform*", "*.tfstate*")
        shutil.copytree(SHIPPED / name, root / name, ignore=ignored)
    (root / "orchestrator.yaml").write_text("project: demo\n", encoding="utf-8")


def _story(stage: Stage) -> None:
    stage.chapter("An apply fails after it created a server")
    click.echo(
        "A network, a server (a process on loopback), its data, a probe: four real modules, by\n"
        "the engine that is there. bootstrap_fails=true lets the third step fail half-way."
    )
    stage.apply("-i", "bootstrap_fails=true", expect=10)

    stage.chapter("The pipeline is red, and the server answers; status tells both")
    url = stage.outputs("server").get("url")
    alive = stage.fetch(f"{url}/healthz")
    stage.expect(f"GET {url}/healthz is answered", holds=alive is not None)
    pid, identity = (alive["pid"], alive["id"]) if alive else (0, "")
    stage.expect(f"process {pid} is the server, and it lives", holds=_lives(pid))
    stage.run("status", BLUEPRINT, expect=0)
    stage.expect_statuses(network="ok", server="ok", bootstrap="error", probe="pending")

    stage.chapter("The cause is fixed: go on from there")
    stage.apply(expect=0)
    stage.expect_statuses(network="ok", server="ok", bootstrap="ok", probe="ok")
    again = stage.fetch(f"{url}/healthz") or {}
    stage.expect("it is the same server: it was not made again", holds=again.get("id") == identity)
    items = stage.fetch(f"{url}/items")
    stage.expect(
        f"GET {url}/items holds all its data: {items}", holds=items == ["answer", "welcome"]
    )

    stage.chapter("Destroy, until it is confirmed; ask the world, not the record")
    stage.destroy(expect=0)
    stage.expect(f"GET {url}/healthz: nobody answers", holds=stage.fetch(f"{url}/healthz") is None)
    stage.expect(f"process {pid} is gone", holds=not _lives(pid))
    stage.expect("no process of this project is left", holds=not stage.survivors())


def _tell_fact(text: str) -> None:
    click.secho(f"[checked] {text}", fg="green")


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Stage:
    """
    The project of the scenario, and ways to observe it.
    """

    def __init__(self, root: Path, engine: str | None, signals: Signals, *, pause: bool) -> None:
        self.root = root
        self._pause = pause
        self._chapters = 0
        self._signals = signals
        self._engine = ("--engine", engine) if engine else ()
        environ = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED)}
        # The modules call python3: the one we run on is there, whatever else is on PATH.
        path = os.pathsep.join((str(Path(sys.executable).parent), environ.get("PATH", os.defpath)))
        self._environ = environ | {"PATH": path}

    def chapter(self, title: str) -> None:
        """
        Print a numbered headline.
        """
        self._chapters += 1
        with self._signals.heeded():
            if self._pause and self._chapters > 1:
                click.pause("\n(press any key to continue)")
            click.secho(f"\n=== {self._chapters}. {title}", bold=True)

    # Calling the tool

    def apply(self, *arguments: str, expect: int) -> None:
        self.run("apply", BLUEPRINT, "--yes", *arguments, *self._engine, expect=expect)

    def destroy(self, *, expect: int) -> None:
        self.run("destroy", BLUEPRINT, "--yes", *self._engine, expect=expect)

    def run(self, *arguments: str, expect: int) -> None:
        """
        Print a command line and run it. Raises Refused unless it exits with the expected code.
        """
        click.secho(f"$ {shlex.join(('orchestrator', *arguments))}", fg="cyan")
        process = self._start(arguments, stdout=subprocess.PIPE)
        try:
            with self._signals.heeded():
                self._show(process.stdout)
                code = process.wait()
        except Interrupt as exc:
            process.send_signal(exc.number)
            process.wait()
            raise
        if code != expect:
            self.expect(f"exit code {expect} (it was {code})", holds=False)

    def _show(self, output: IO[str] | None) -> None:
        """
        Print a command's output up to outputs and next commands; of the progress of a run only the
        applied objects.
        """
        ended = False
        for line in map(str.rstrip, output or ()):
            ended = ended or line in ("Outputs", "Next")
            _, of_step, text = line.partition(_OF_STEP)
            plain = line.strip(_RULE) and (not of_step or text == _APPLYING)
            if plain and not ended:
                click.echo(line)

    def _start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C reaches it through us only, once.
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=self.root,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            **options,
        )

    # Looking

    def expect(self, fact: str, *, holds: bool) -> None:
        """
        Print a fact. Raises Refused if it does not hold.
        """
        if not holds:
            raise Refused("expectation", f"the demo failed; this does not hold: {fact}")
        _tell_fact(fact)

    def expect_statuses(self, **wanted: str) -> None:
        """
        Compare the steps' statuses in ``status --json``.
        """
        statuses = {step: row["status"] for step, row in self._rows().items()}
        shown = ", ".join(f"{step} {status}" for step, status in statuses.items())
        self.expect(f"status --json says: {shown}", holds=statuses == wanted)

    def outputs(self, step: str) -> dict[str, Any]:
        """
        Return the outputs of a step from ``status --json``.
        """
        outputs: dict[str, Any] = self._rows().get(step, {}).get("outputs", {})
        return outputs

    def _rows(self) -> dict[str, dict[str, Any]]:
        document, _ = self._start(
            ("status", BLUEPRINT, "--json"), stdout=subprocess.PIPE
        ).communicate()
        try:
            return {row["step"]: row for row in json.loads(document)["steps"]}
        except (ValueError, KeyError) as exc:
            raise Refused("expectation", "status --json gave no document") from exc

    def fetch(self, url: str) -> Any:
        """
        Return the JSON at ``url``, requested without a proxy; None if nothing responds.
        """
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(url, timeout=10) as response:
                return json.load(response)
        except (OSError, ValueError):
            return None

    def survivors(self) -> list[psutil.Process]:
        """
        Return the processes whose command line names this project: its server.
        """
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                arguments = process.cmdline()
                if "serve" in arguments and any(str(self.root) in text for text in arguments):
                    processes.append(process)
        return processes

    # Clearing up

    def clear(self) -> bool:
        """
        Destroy everything; return whether it is confirmed that nothing is left.

        A server that the destroy did not stop is killed here: a demo leaves no process behind.
        """
        self._signals.close()
        if not self._is_clear():
            self.chapter("Clearing up")
            with contextlib.suppress(Refused):
                self.destroy(expect=0)
        processes = self.survivors()
        for process in processes:
            _tell_fact(f"stopping the server, process {process.pid}")
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, stubborn = psutil.wait_procs(processes, timeout=_TERM_SECONDS)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return self._is_clear()

    def _is_clear(self) -> bool:
        """
        Return whether the records say for every step that nothing exists, or that it never ran.
        """
        try:
            rows = self._rows().values()
        except Refused:
            return False
        return all(row["status"] in ("pending", "absent", "destroyed") for row in rows)


class Signals:
    """
    Handles SIGINT, SIGTERM and SIGHUP: the first is stored in ``noted``, and raises `Interrupt`
    inside `heeded`.
    """

    def __init__(self) -> None:
        self.noted = 0
        self._heeded = False
        self._closed = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """
        Handle the signals while the body runs.
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """
        Raise `Interrupt` on a signal while the body runs, or at once if one came before.
        """
        self._heeded = not self._closed
        try:
            if self.noted and self._heeded:
                raise Interrupt(self.noted)
            yield
        finally:
            self._heeded = False

    def close(self) -> None:
        """
        Raise nothing any more, because cleaning up has begun.
        """
        self._closed = True

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.noted:
            self.noted = number
            if self._heeded:
                raise Interrupt(number)
