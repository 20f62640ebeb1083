"""
The tool at a terminal of its own, typed at by a test.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.project import PATIENCE, Project

#: What a terminal sends to the foreground process group for Ctrl-C.
CTRL_C = "\x03"
#: What it sends for the end of input.
CTRL_D = "\x04"

#: As a login does it: what we may ignore is not ignored there.
_START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.login_tty(int(sys.argv[1]))
os.execv(sys.executable, sys.argv[2:])
"""


class Terminal:
    """
    A pseudo-terminal whose session leader and foreground process group is the tool.

    Ctrl-C typed here is turned into a signal by the kernel, for the whole group.
    """

    def __init__(self, project: Project, *arguments: str) -> None:
        self.shown = ""
        self._master, slave = os.openpty()
        tool = (sys.executable, "-m", "orchestrator", *arguments)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _START, str(slave), *tool],
                cwd=project.root,
                env=project.environ | {"TERM": "dumb"},
                pass_fds=(slave,),
            )
        finally:
            os.close(slave)

    @property
    def pid(self) -> int:
        return self._process.pid

    def type(self, text: str) -> None:
        """
        Type text.
        """
        os.write(self._master, text.encode())

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """
        Read until the terminal has shown ``text`` so often.
        """
        end = time.monotonic() + PATIENCE
        while self.shown.count(text) < times:
            if time.monotonic() > end or not self._read():
                pytest.fail(f"not shown: {text!r}; but: {self.shown}")

    def drain_until(self, condition: Callable[[], bool]) -> None:
        """
        Read until ``condition`` holds.
        """
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or not self._read():
                pytest.fail(f"waited in vain; shown: {self.shown}")

    def press_until_it_ends(self, text: str) -> int:
        """
        Type text once a second, as people do, until the tool ends; the exit code. Python loses a
        signal that arrives just before it waits for a line.
        """
        while self._process.poll() is None:
            with suppress(OSError):  # it has ended meanwhile
                self.type(text)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        return self.finish()

    def finish(self) -> int:
        """
        Read to the end; the exit code.
        """
        end = time.monotonic() + PATIENCE
        while self._read():
            if time.monotonic() > end:
                self._process.kill()
                self._process.wait()
                pytest.fail(f"the tool did not end; it showed: {self.shown}")
        os.close(self._master)
        return self._process.wait(PATIENCE)

    def _read(self) -> bool:
        """
        Take what is shown within a moment; False once nobody has the terminal open any more.
        """
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux: EIO once the last descriptor of the other end is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
