"""
Runs the tool many times from one process that has imported it once: each run is a fork with the
arguments, environment, directory and standard streams of its request, in a session of its own.

A start of Python and the imports take most of the time of a call, and the tests make thousands.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pydantic import BaseModel

from tests.mutation import BREAK, SEEN, watched


class ToolServer:
    """
    The serving process, as its clients see it; it ends with them.
    """

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.server", str(theirs.fileno())],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()

    def start(
        self,
        call: str,
        arguments: Sequence[object],
        *,
        environ: Mapping[str, str],
        directory: Path,
        seconds: float,
    ) -> ForkedRun:
        """
        Start ``call``, a function named ``module:function`` that takes ``arguments`` and returns an
        exit code. A run that takes longer than ``seconds`` is killed.
        """
        request = {
            "call": call,
            "arguments": arguments,
            "environ": dict(environ),
            "directory": str(directory),
            "seconds": seconds,
        }
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        with tempfile.TemporaryFile() as asked:
            asked.write(json.dumps(request).encode())
            asked.seek(0)
            socket.send_fds(self._requests, [b"."], [asked.fileno(), *theirs])
        for descriptor in theirs:
            os.close(descriptor)
        return ForkedRun(*ours)


class ForkedRun:
    """
    A run of the server: as much of `subprocess.Popen` as tests use.
    """

    def __init__(self, answer: int, out: int, err: int) -> None:
        self.returncode: int | None = None
        self._answer = answer
        self._descriptors = (out, err)
        self._texts: dict[int, str] = {}
        self._readers = [
            threading.Thread(target=self._read, args=(descriptor,), daemon=True)
            for descriptor in self._descriptors
        ]
        for reader in self._readers:
            reader.start()
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(answer, 1)
            assert read, "the server of the tests has ended"
            line += read
        self.pid = int(line)

    def poll(self) -> int | None:
        """
        The exit code, negative where a signal ended it; None while it runs.
        """
        if self.returncode is None and select.select([self._answer], [], [], 0)[0]:
            self._end()
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """
        What it wrote to stdout and stderr, once it has ended. `subprocess.TimeoutExpired` if not.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for reader in self._readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        if self.returncode is None:
            self._end()
        out, err = (self._texts[key] for key in self._descriptors)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        code = os.read(self._answer, 100)
        os.close(self._answer)
        assert code, "the server of the tests has ended"
        self.returncode = int(code)

    def _read(self, descriptor: int) -> None:
        """
        Read a pipe until nobody has it open any more.
        """
        with open(descriptor, encoding="utf-8") as file:
            self._texts[descriptor] = file.read()


@cache
def tool_server() -> ToolServer:
    """
    The server of this process.
    """
    return ToolServer()


def serve(requests: socket.socket) -> int:
    """
    Fork for each request. Returns in each fork with the exit code of its run, and in the server
    once no client is left.
    """
    for module in pkgutil.walk_packages(
        importlib.import_module("orchestrator").__path__, "orchestrator."
    ):
        if module.name != "orchestrator.__main__":
            importlib.import_module(module.name)
    for name in ("pygohcl._pygohcl", "python_terraform", "psycopg", "obstore.store"):
        importlib.import_module(name)  # runs import them when they need them
    for model in _models(BaseModel):
        if model.__module__.startswith("orchestrator."):
            model.model_rebuild()  # else each run builds those that it uses
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return 0
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return _run(*files)
        for file in files:
            os.close(file)


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _run(asked: int, answer: int, out: int, err: int) -> int:
    # A process of its own waits for the run: only a parent learns an exit code, and the server
    # must not wait, for tests make runs race.
    with os.fdopen(asked, "rb") as file:
        request: dict[str, Any] = json.load(file)
    run = os.fork()
    if run == 0:
        os.setsid()
        os.close(answer)
        for descriptor, number in ((out, 1), (err, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _end(_carry_out(request))

    def end(_signal: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(run, signal.SIGKILL)

    os.write(answer, f"{run}\n".encode())
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    status = os.waitpid(run, 0)[1]
    os.write(answer, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _end(code: int) -> NoReturn:
    """
    End as an interpreter does, but for taking itself apart: in a fork that is most of the work.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _carry_out(request: Mapping[str, Any]) -> int:
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environ"])
    module, name = request["call"].split(":")
    function: Callable[..., int] = getattr(importlib.import_module(module), name)
    call = partial(function, *request["arguments"])
    try:
        if os.environ.keys() & {BREAK, SEEN}:
            return watched(os.environ, call)
        return call()
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
