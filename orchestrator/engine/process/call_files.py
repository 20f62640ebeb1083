"""
The files of one engine call: its process, its exit code, and its output, which is read while it is
written and goes masked into a log.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.events.events import LogLine, Message
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.run_record import ProcessIdentity
from orchestrator.domain.text import Json, escaped
from orchestrator.engine.messages import (
    ParsedLine,
    lock_holder,
    parse_crash,
    parse_line,
    parse_text,
    render,
)
from orchestrator.engine.process.wrapper import create_exclusively, sync
from orchestrator.errors import EngineFailed
from orchestrator.local_files import make_private, read_regular, write_private
from orchestrator.ports.engine import CallResult, CallSpec
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
    The files of a call in its directory for evidence: ``raw/`` holds secrets, the log is masked.
    """

    def __init__(self, spec: CallSpec) -> None:
        evidence, name = spec.evidence, spec.name
        self.spec = spec
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
        # What is removed when the call has ended, by the wrapper if we are dead.
        self.temporary = (*spec.delete_after, self.early_variables)

    def open_output(self, printed: Path) -> tuple[int, int]:
        """
        Open the file ``printed``, for stdout, and the stderr file, 0600, and return their
        descriptors. Existing content is kept.
        """
        make_private(self.stdout.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        stdout = os.open(printed, flags, 0o600)
        try:
            return stdout, os.open(self.stderr, flags, 0o600)
        except OSError:
            os.close(stdout)
            raise

    def open_log(self) -> int:
        """
        Return a descriptor of the masked log, truncated, 0600. Raises EngineFailed if it cannot be
        written.
        """
        try:
            make_private(self.spec.evidence)
            return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as exc:
            raise EngineFailed("engine", f"cannot write {self.log}: {exc.strerror}") from exc

    def write_early_variables(self, values: Mapping[str, Json]) -> None:
        """
        Write the variable file of the call, 0600, over that of an earlier call.
        """
        make_private(self.spec.evidence)
        # In lines: the engine quotes the line of a bad value.
        write_private(self.early_variables, json.dumps(dict(values), indent=0).encode())

    def end_waiting(self) -> None:
        """
        Record durably that the call is approved, so that it is not taken for one that only planned.
        """
        self.waiting.unlink()
        sync(str(self.spec.evidence))

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
        make_private(self.spec.evidence)
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


# The output of a call.


_LAST_LINES = 20  # of a stderr that holds no diagnostic: a crash, or TF_LOG


class Transcript:
    """
    The messages of a call, in order, and its masked log. Owns the log's descriptor.

    The output of ``pull`` and ``show`` is provider state and plan: it is not read here and never
    written to the log.
    """

    def __init__(self, files: CallFiles, verb: str, *, log: int | None) -> None:
        self._verb = verb
        self._stderr_text = ""
        self._files = files
        self._mask = files.spec.mask
        self._messages: list[Message] = []
        self._rest = b""
        self._size = 0
        self._log = log

    def close(self) -> None:
        """
        Close the log.
        """
        if self._log is not None:
            os.close(self._log)

    def more(self) -> list[Message]:
        """
        Return the messages of the complete lines written since the last call.
        """
        if self._verb in ("pull", "show"):
            return []
        chunk = _read_from(self._files.stdout, self._size)
        if not chunk:  # most often, for it is looked at many times a second
            return []
        self._size += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return self._take([self._parse(line.decode(errors="replace")) for line in lines])

    def end(self, ending: AnswerFile | None) -> list[Message]:
        """
        Return the last messages, after the call has ended: an unfinished line and stderr.
        ``ending`` is how the engine ended, if known.
        """
        parsed: list[ParsedLine] = []
        if self._rest:
            parsed.append(self._parse(self._rest.decode(errors="replace")))
        text = _read_from(self._files.stderr, 0).decode(errors="replace")
        self._stderr_text = escaped(self._mask(text))
        reports_error = any(
            isinstance(m, Diagnostic) and m.severity == "error" for m in self._messages
        )
        has_error, printed = reports_error, []
        for diagnostic in parse_text(text):
            if diagnostic.severity == "error" and reports_error:
                continue  # an engine that writes its events itself prints its errors as well
            has_error = has_error or diagnostic.severity == "error"
            printed.append(self._mask_diagnostic(diagnostic))
        if self._verb not in ("exec", "program"):
            unexplained = ending is not None and ending.crashed and not has_error
            if crash := parse_crash(text, certain=unexplained):
                crash = self._mask_diagnostic(crash)
                if (log := self._kept_log()) is not None:
                    detail = f"{crash.detail}\nall of it: {log}".strip()
                    crash = crash.model_copy(update={"detail": detail})
                parsed.append(ParsedLine(self._stderr_text, (crash,)))
        parsed += [ParsedLine(render(diagnostic), (diagnostic,)) for diagnostic in printed]
        if not any(item.messages for item in parsed) and self._stderr_text.strip():
            lines = self._stderr_text.strip().splitlines()
            lines = lines if self._verb == "program" else lines[-_LAST_LINES:]
            # What exec runs is shown as it comes: its stdout and stderr are not mixed.
            parsed += [ParsedLine(x, (LogLine(x),) if self._verb != "exec" else ()) for x in lines]
        return self._take(parsed)

    def result(
        self, ending: AnswerFile | None, *, stopped: bool = False, timed_out: bool = False
    ) -> CallResult:
        """
        Return the result of the call. ``ending`` is None if it is not known how the engine ended.
        """
        messages = tuple(self._messages)
        diagnostics = tuple(m for m in messages if isinstance(m, Diagnostic))
        complete = ending is not None and not self._rest
        if ending is not None and ending.signal is not None:
            # One that a signal ended before its first event has done nothing: that comes first.
            complete = self._verb in ("plan", "apply") and self._size == 0
        return CallResult(
            exit_code=ending.exit_code if ending else None,
            messages=messages,
            complete=complete,
            stopped=stopped,
            timed_out=timed_out,
            lock=lock_holder(diagnostics),
            stdout=self._files.stdout,
            stderr_text=self._stderr_text,
        )

    def _kept_log(self) -> Path | None:
        """
        Write the full output of a crashed engine to a file and return it; None if that failed.
        """
        file = self._files.spec.crash_log
        if file is None:
            return self._files.log
        with suppress(OSError):
            write_private(file, self._stderr_text.encode())
            return file
        return None

    def _parse(self, line: str) -> ParsedLine:
        if self._verb in ("plan", "apply"):
            return parse_line(line, self._mask)
        plain = escaped(self._mask(line))
        return ParsedLine(plain, (LogLine(plain),) if plain.strip() or self._verb == "exec" else ())

    def _mask_diagnostic(self, diagnostic: Diagnostic) -> Diagnostic:
        return diagnostic.model_copy(
            update={
                "summary": self._mask(diagnostic.summary),
                "detail": self._mask(diagnostic.detail),
            }
        )

    def _take(self, spoken: list[ParsedLine]) -> list[Message]:
        """
        Write lines to the log, and return their messages. A file of the module is named from the
        project in them; those that the engine or this tool generated have no place there.
        """
        if self._log is not None:
            with suppress(OSError):  # a full disk must not part us from a running engine
                os.write(self._log, "".join(f"{escaped(item.text)}\n" for item in spoken).encode())
        first = len(self._messages)
        module = self._files.spec.module
        for item in spoken:
            for message in item.messages:
                told = message
                if module and isinstance(message, Diagnostic):
                    at = message.at
                    if at and "orchestrator_" not in at and not at.startswith((".terraform/", "/")):
                        at = os.path.normpath(f"{module}/{at}")
                        told = message.model_copy(update={"at": at})
                self._messages.append(told)
        return self._messages[first:]


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def failure_reason(result: CallResult) -> str:
    """
    Return why a call failed, in one line: its first error, else its last output.
    """
    errors = [m for m in result.messages if isinstance(m, Diagnostic) and m.severity == "error"]
    if errors:
        return f"{errors[0].summary}: {' '.join(errors[0].detail.split())}".rstrip(": ")
    lines = [m.line for m in result.messages if isinstance(m, LogLine)]
    return lines[-1] if lines else f"exit code {result.exit_code}"
