"""
Reads the output of an engine call from its files while it is written, and writes the masked log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from orchestrator.domain.events.events import LogLine, Message
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import escaped
from orchestrator.engine.messages import (
    ParsedLine,
    lock_holder,
    parse_crash,
    parse_line,
    parse_text,
    render,
)
from orchestrator.engine.process.call_files import AnswerFile, CallFiles
from orchestrator.local_files import write_private
from orchestrator.ports.engine import CallResult, CallSpec

_LAST_LINES = 20  # of a stderr that holds no diagnostic: a crash, or TF_LOG


class Transcript:
    """
    The messages of a call, in order, and its masked log. Owns the log's descriptor.

    The output of ``pull`` and ``show`` is provider state and plan: it is not read here and never
    written to the log.
    """

    def __init__(self, files: CallFiles, verb: str, spec: CallSpec, *, log: int | None) -> None:
        self.verb = verb
        self._crash_log = spec.crash_log
        self.stderr_text = ""
        self._stdout, self._stderr, self._log_file = files.stdout, files.stderr, files.log
        self._mask = spec.mask
        self._module = spec.module
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
        if self.verb in ("pull", "show"):
            return []
        chunk = _read_from(self._stdout, self._size)
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
        text = _read_from(self._stderr, 0).decode(errors="replace")
        self.stderr_text = escaped(self._mask(text))
        reported = [m for m in self._messages if isinstance(m, Diagnostic)]
        reports_error = any(diagnostic.severity == "error" for diagnostic in reported)
        # An engine that writes its events itself prints its errors as well.
        diagnostics = [d for d in parse_text(text) if d.severity != "error" or not reports_error]
        if self.verb not in ("exec", "program"):
            has_error = reports_error or any(
                diagnostic.severity == "error" for diagnostic in diagnostics
            )
            unexplained = ending is not None and ending.crashed and not has_error
            if crash := parse_crash(text, certain=unexplained):
                crash = self._mask_diagnostic(crash)
                if (log := self._kept_log()) is not None:
                    detail = f"{crash.detail}\nall of it: {log}".strip()
                    crash = crash.model_copy(update={"detail": detail})
                parsed.append(ParsedLine(self.stderr_text, (crash,)))
        parsed += [
            ParsedLine(render(diagnostic), (diagnostic,))
            for diagnostic in map(self._mask_diagnostic, diagnostics)
        ]
        if not any(item.messages for item in parsed) and self.stderr_text.strip():
            lines = self.stderr_text.strip().splitlines()
            lines = lines if self.verb == "program" else lines[-_LAST_LINES:]
            # What exec runs is shown as it comes: its stdout and stderr are not mixed.
            parsed += [ParsedLine(x, (LogLine(x),) if self.verb != "exec" else ()) for x in lines]
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
            complete = self.verb in ("plan", "apply") and self._size == 0
        return CallResult(
            exit_code=ending.exit_code if ending else None,
            messages=messages,
            complete=complete,
            stopped=stopped,
            timed_out=timed_out,
            lock=lock_holder(diagnostics),
            stdout=self._stdout,
            stderr_text=self.stderr_text,
        )

    def _kept_log(self) -> Path | None:
        """
        Write the full output of a crashed engine to a file and return it; None if that failed.
        """
        if self._crash_log is None:
            return self._log_file
        with suppress(OSError):
            write_private(self._crash_log, self.stderr_text.encode())
            return self._crash_log
        return None

    def _parse(self, line: str) -> ParsedLine:
        if self.verb in ("plan", "apply"):
            return parse_line(line, self._mask)
        plain = escaped(self._mask(line))
        return ParsedLine(plain, (LogLine(plain),) if plain.strip() or self.verb == "exec" else ())

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
        for item in spoken:
            for message in item.messages:
                told = message
                if self._module and isinstance(message, Diagnostic):
                    at = message.at
                    if at and "orchestrator_" not in at and not at.startswith((".terraform/", "/")):
                        at = os.path.normpath(f"{self._module}/{at}")
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
    errors: list[Diagnostic] = [
        m for m in result.messages if isinstance(m, Diagnostic) and m.severity == "error"
    ]
    if errors:
        return f"{errors[0].summary}: {' '.join(errors[0].detail.split())}".rstrip(": ")
    lines = [m.line for m in result.messages if isinstance(m, LogLine)]
    return lines[-1] if lines else f"exit code {result.exit_code}"
