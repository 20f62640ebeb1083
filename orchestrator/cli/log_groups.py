"""
Log groups: what the runner of a CI job folds away under a title in the log of the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.streams import WatchedStream

if TYPE_CHECKING:
    from orchestrator.domain.events.events import Event
    from orchestrator.ports.system import Sink

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
_RUNNERS: Mapping[str, _Marks] = {
    "GITHUB_ACTIONS": _GITHUB,
    "GITEA_ACTIONS": _GITHUB,
    "FORGEJO_ACTIONS": _GITHUB,
    "TF_BUILD": _AZURE,
    "GITLAB_CI": _GITLAB,
}


def folds() -> bool:
    """
    Whether somebody reads the groups of a log.
    """
    return _marks() is not None


@contextmanager
def log_group(title: str, number: int) -> Iterator[None]:
    """
    What the body writes to stdout as a group of its own, where somebody reads groups.
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
    """
    End it.
    """
    marks = _marks()
    if marks is not None:
        _write(marks[1](number))


class GroupedView:
    """
    A view of a run under a runner: what the steps say on the way is a group, what the run came to
    stands below it.
    """

    def __init__(self, view: Sink) -> None:
        self._view = view

    def emit(self, event: Event) -> None:
        """
        Show the event.
        """
        from orchestrator.domain.events.events import RunFinished, RunStarted

        if isinstance(event, RunFinished):
            end_group()
        self._view.emit(event)
        if isinstance(event, RunStarted):
            begin_group("step by step")


def _marks() -> _Marks | None:
    return next((marks for name, marks in _RUNNERS.items() if os.environ.get(name)), None)


def _write(line: str) -> None:
    """
    Past the stream that keeps others from writing such lines.
    """
    stdout = sys.stdout
    stdout.flush()
    stream = stdout.raw if isinstance(stdout, WatchedStream) else stdout
    stream.write(f"{line}\n")
    stream.flush()
