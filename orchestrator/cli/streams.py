"""
The standard streams: closed ones are opened on nothing, and what cannot be written is noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO, cast

from orchestrator.domain.text import without_workflow_commands

#: The variables by which CI systems tell that they read commands from a job's output.
_RUNNERS = ("GITHUB_ACTIONS", "GITEA_ACTIONS", "FORGEJO_ACTIONS", "TF_BUILD")


class WatchedStream:
    """
    A text stream that remembers the error by which its output was lost, and drops what comes after
    it: who listens decides nothing that a command does. Under a CI runner what is written holds no
    ``commands`` for it.
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
    Open the null device for each standard stream that is closed. Else the next file that is opened
    would get its number, and what is meant for a terminal would be written into it.
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
    Watch stdout and stderr while the body runs; gives stdout. ``json`` is never changed: no line of
    it begins as a command does.
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
    Let nothing more be written: Python's own flush at exit must not fail.
    """
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return  # a stream without a file has nothing that could be lost
