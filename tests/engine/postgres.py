"""
A PostgreSQL server of a test's own, on the loopback.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import free_port

_PLACES = "/usr/lib/postgresql/*/bin"  # where Debian puts what is not on PATH


@dataclass(frozen=True, slots=True)
class Postgres:
    """
    A running server: everybody on this machine is its superuser.
    """

    bin: Path
    data: Path
    port: int
    _user: str | None

    @property
    def url(self) -> str:
        """
        The connection string of its database.
        """
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def query(self, statement: str) -> list[str]:
        """
        The rows of a statement, columns separated by ``|``.
        """
        return self.query_in("postgres", statement)

    def query_in(self, database: str, statement: str) -> list[str]:
        """
        The same in another database.
        """
        url = self.url.replace("/postgres?", f"/{database}?")
        command = [str(self.bin / "psql"), "-XAtq", "-d", url, "-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def adopt(self, file: Path) -> None:
        """
        Put a copy of a file beside its data, where only it reads it.
        """
        copy = self.data / file.name
        copy.write_bytes(file.read_bytes())
        copy.chmod(0o600)
        if self._user is not None:
            shutil.chown(copy, self._user)

    def start(self) -> None:
        """
        Start it, and wait until it answers.
        """
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c fsync=off"
        log = str(self.data.parent / "log")
        self._control("start", "-w", "-o", options, "-l", log)

    def stop(self) -> None:
        """
        Stop it at once: every session ends.
        """
        self._control("stop", "-w", "-m", "immediate")

    def kill(self) -> None:
        """
        Kill its main process and wait for all of them: it flushes nothing.
        """
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while self._answers_to(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _answers_to(self, pid: int) -> bool:
        try:
            os.killpg(pid, 0)
        except OSError:
            return False
        return True

    @property
    def runs(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def _control(self, *arguments: str) -> None:
        command = [str(self.bin / "pg_ctl"), "-D", str(self.data), *arguments]
        # Not piped: the server inherits it, and would keep the pipe open.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=self._user, cwd="/")


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """
    A fresh server; a named skip where PostgreSQL is not installed.
    """
    directory = _binaries()
    if directory is None:
        pytest.skip("PostgreSQL is not installed")
    user = _account()
    with tempfile.TemporaryDirectory(prefix="postgres-") as place:
        home = Path(place)
        data = home / "data"
        if user is not None:
            shutil.chown(home, user)
        command = [str(directory / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
        subprocess.run(
            [*command, "-N", "-E", "UTF8", "--locale=C"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd="/",
        )
        server = Postgres(directory, data, free_port(), user)
        server.start()
        try:
            yield server
        finally:
            if server.runs:
                server.stop()


def _binaries() -> Path | None:
    named = shutil.which("initdb")
    places = [Path(named).resolve().parent] if named else []
    places += sorted(Path("/").glob(_PLACES.lstrip("/")), reverse=True)
    return next((p for p in places if (p / "pg_ctl").exists() and (p / "psql").exists()), None)


def _account() -> str | None:
    """
    Whom the server runs as: it refuses to be root.
    """
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)
