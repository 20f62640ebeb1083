"""
The standard streams: closed ones are opened on the null device, and write errors are remembered.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

from orchestrator.domain.text import without_workflow_commands

if TYPE_CHECKING:
    from orchestrator.domain.events.events import Event
    from orchestrator.ports.system import Sink


#: The variables by which CI systems tell that they read commands from a job's output.
_RUNNERS = ("GITHUB_ACTIONS", "GITEA_ACTIONS", "FORGEJO_ACTIONS", "TF_BUILD")


class WatchedStream:
    """
    A text stream that remembers a write error and drops all later output: a reader that leaves must
    not change what a command does. Under a CI runner, ``commands`` for it are removed from the
    output.
    """

    buffer = None  # so that Click writes nothing past us where the encoding is ASCII

    def __init__(self, stream: TextIO, *, commands: bool = True) -> None:
        self.raw = stream  # for commands of our own
        self._stream = stream
        self._commands = commands
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        shown = text if self._commands else without_workflow_commands(text)
        self._attempt(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, write: Callable[[], object]) -> None:
        if self.lost is not None:
            return
        try:
            write()
        except OSError as exc:
            self.lost = exc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_missing() -> None:
    """
    Open the null device for each standard stream that is closed. Otherwise the next opened file
    would get its number, and output would be written into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def watched_streams(*, json: bool) -> Iterator[WatchedStream]:
    """
    Watch stdout and stderr while the body runs; yield stdout. ``json`` output is never changed:
    none of its lines looks like a runner's command.
    """
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # JSON is UTF-8; people get what their terminal has.
        sys.stdout.reconfigure(encoding="utf-8" if json else None, errors="backslashreplace")
    under_runner = any(os.environ.get(name) for name in _RUNNERS)
    stdout = WatchedStream(sys.stdout, commands=json or not under_runner)
    sys.stdout = cast(TextIO, stdout)
    sys.stderr = cast(TextIO, WatchedStream(sys.stderr, commands=not under_runner))
    try:
        yield stdout
    finally:
        sys.stdout, sys.stderr = before


def silence(stream: TextIO) -> None:
    """
    Redirect a stream to the null device, so that Python's flush at exit cannot fail.
    """
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return  # a stream without a file has nothing that could be lost


# Log groups: what the runner of a CI job folds away under a title in the log of the job.


#: How a group begins, with its number and title, and how it ends.
_Marks = tuple[Callable[[int, str], str], Callable[[int], str]]


def _section(kind: str, number: int) -> str:
    return f"\x1b[0Ksection_{kind}:{time.time():.0f}:orchestrator_{number}"


_GITHUB: _Marks = (lambda number, title: f"::group::{title}", lambda number: "::endgroup::")
_AZURE: _Marks = (lambda number, title: f"##[group]{title}", lambda number: "##[endgroup]")
_GITLAB: _Marks = (
    lambda number, title: f"{_section('start', number)}[collapsed=true]\r\x1b[0K{title}",
    lambda number: f"{_section('end', number)}\r\x1b[0K",
)
_MARKS: Mapping[str, _Marks] = {
    "GITHUB_ACTIONS": _GITHUB,
    "GITEA_ACTIONS": _GITHUB,
    "FORGEJO_ACTIONS": _GITHUB,
    "TF_BUILD": _AZURE,
    "GITLAB_CI": _GITLAB,
}


def folds() -> bool:
    """
    Return whether a CI runner shows log groups.
    """
    return _marks() is not None


@contextmanager
def log_group(title: str, number: int) -> Iterator[None]:
    """
    Write the body's output to stdout as a log group, if the CI runner shows groups.
    """
    begin_group(title, number)
    try:
        yield
    finally:
        end_group(number)


def begin_group(title: str, number: int = 0) -> None:
    """
    Begin a group. Groups do not nest.
    """
    marks = _marks()
    if marks is not None:
        _write(marks[0](number, title))


def end_group(number: int = 0) -> None:
    marks = _marks()
    if marks is not None:
        _write(marks[1](number))


class GroupedView:
    """
    A view for CI runners: the progress of the steps is a log group, the summary of the run stands
    below it.
    """

    def __init__(self, view: Sink) -> None:
        self._view = view

    def emit(self, event: Event) -> None:
        from orchestrator.domain.events.events import RunFinished, RunStarted

        if isinstance(event, RunFinished):
            end_group()
        self._view.emit(event)
        if isinstance(event, RunStarted):
            begin_group("step by step")


def _marks() -> _Marks | None:
    return next((marks for name, marks in _MARKS.items() if os.environ.get(name)), None)


def _write(line: str) -> None:
    """
    Write to the underlying stream, because the watched one removes such lines.
    """
    stdout = sys.stdout
    stdout.flush()
    stream = stdout.raw if isinstance(stdout, WatchedStream) else stdout
    stream.write(f"{line}\n")
    stream.flush()
