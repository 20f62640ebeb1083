"""
The files of one engine call: its process, its output, its exit code.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.record.run_record import ProcessIdentity
from orchestrator.domain.text import Json
from orchestrator.engine.process.wrapper import create_exclusively, sync
from orchestrator.local_files import make_private, read_regular, write_private
from orchestrator.ports.system import Processes

_SHARED = ("host", "boot_id", "pid_namespace")


class IdentityFile(Struct, frozen=True):
    """
    The content of the identity file: the engine's process, its wrapper's, and the verb of the call.
    """

    engine: ProcessIdentity
    wrapper: ProcessIdentity
    verb: str


class FencedCall(Struct, frozen=True):
    """
    The identity file of a call that was fenced: made impossible before it began.
    """

    pid: int


#: How engines end that crash by themselves.
_CRASHED = 11
_CRASH_SIGNALS = frozenset(
    {
        signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV,
        signal.SIGSYS, signal.SIGTRAP,
    }
)  # fmt: skip


class AnswerFile(Struct, frozen=True):
    """
    The content of the answer file. ``started`` is False if the program could not be started.
    """

    exit_code: int | None
    signal: int | None
    started: bool

    @property
    def crashed(self) -> bool:
        """
        Whether the engine crashed, by its exit code or a signal that nobody sends.
        """
        return self.exit_code == _CRASHED or self.signal in _CRASH_SIGNALS


class CallFiles:
    """
    The files of the call ``name`` in the directory ``evidence``: ``raw/`` holds secrets, the log is
    masked.
    """

    def __init__(self, evidence: Path, name: str) -> None:
        self.evidence, self.name = evidence, name
        self.identity = evidence / f"{name}.identity.json"
        self.answer = evidence / f"{name}.answer.json"
        self.early_variables = evidence / f"{name}.early.tfvars.json"
        self.log = evidence / f"{name}.log"
        # It exists while the engine has planned and waits for approval: then nothing is mutated.
        self.waiting = evidence / f"{name}.waiting"
        self.stdout = evidence / "raw" / f"{name}.stdout"
        self.stderr = evidence / "raw" / f"{name}.stderr"
        # The output of an engine that writes its events to ``stdout`` itself.
        self.text = evidence / "raw" / f"{name}.text"

    def open_output(self, printed: Path | None = None) -> tuple[int, int]:
        """
        Open the stdout file, or the file ``printed``, and the stderr file, 0600, and return their
        descriptors. Existing content is kept.
        """
        make_private(self.stdout.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        stdout = os.open(printed or self.stdout, flags, 0o600)
        try:
            return stdout, os.open(self.stderr, flags, 0o600)
        except OSError:
            os.close(stdout)
            raise

    def open_log(self) -> int:
        """
        Return a descriptor of the masked log, truncated, 0600.
        """
        make_private(self.evidence)
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write_early_variables(self, values: Mapping[str, Json]) -> None:
        """
        Write the variable file of the call, 0600, over that of an earlier call.
        """
        make_private(self.evidence)
        # In lines: the engine quotes the line of a bad value.
        write_private(self.early_variables, json.dumps(dict(values), indent=0).encode())

    def end_waiting(self) -> None:
        """
        Record durably that the call is approved, so that it is not taken for one that only planned.
        """
        self.waiting.unlink()
        sync(str(self.evidence))

    def write_identity(self, text: str) -> bool:
        """
        Write the identity file of a call that mutates nothing. Returns False if it exists.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(self.identity, flags, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return True

    def fence(self) -> bool:
        """
        Make the call impossible, durably. Returns False if it has begun, or was fenced before.
        """
        make_private(self.evidence)
        return create_exclusively(str(self.identity), f'{{"fenced_by": {os.getpid()}}}\n')

    def read_identity(self) -> IdentityFile | FencedCall | None:
        """
        Return the content of the identity file, None if it does not exist. Raises ValueError if it
        is damaged.
        """
        try:
            data = json.loads(read_regular(self.identity))
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise ValueError(f"{self.identity} is damaged: {exc}") from exc
        try:
            if "fenced_by" in data:
                return FencedCall(int(data["fenced_by"]))
            shared = {key: str(data[key]) for key in _SHARED}
            engine, wrapper = (
                ProcessIdentity(pid=int(item["pid"]), started=int(item["started"]), **shared)
                for item in (data, data["wrapper"])
            )
            return IdentityFile(engine, wrapper, str(data.get("verb", "")))
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{self.identity} is damaged: {exc}") from exc

    def read_answer(self) -> AnswerFile | None:
        """
        Return the content of the answer file, None if there is none. It is written by rename: a
        damaged one says nothing of how the engine ended and counts as none.
        """
        try:
            data = json.loads(read_regular(self.answer))
            return AnswerFile(data["exit_code"], data["signal"], data["began"])
        except (OSError, ValueError, TypeError, KeyError):
            return None


def identity_seed(processes: Processes, verb: str) -> str:
    """
    Return the flat JSON object to which the wrapper adds its own process and the engine's.
    """
    me = processes.me()
    return json.dumps({"verb": verb} | {key: getattr(me, key) for key in _SHARED})


def discard(paths: Iterable[Path]) -> None:
    """
    Remove files on a best-effort basis; missing ones are ignored.
    """
    for path in paths:
        with suppress(OSError):
            path.unlink()
