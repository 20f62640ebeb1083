"""
The call of the tool: directory, what the terminal can show, and the standard streams: closed ones
are opened on the null device, and write errors are remembered.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import click
from msgspec import Struct

from orchestrator.domain.text import without_workflow_commands

if TYPE_CHECKING:
    from orchestrator.domain.events.events import Event
    from orchestrator.domain.json_model import JsonDocument
    from orchestrator.ports.system import Sink
    from orchestrator.project import ProjectContext
    from orchestrator.views.events import HumanView, JsonLinesView
    from orchestrator.views.page import Paper


Document = TypeVar("Document", bound="JsonDocument")

#: What a command that makes a run leaves in the meta data of its context.
MAKES_RUN = "orchestrator.makes_run"


class Invocation(Struct, frozen=True):
    """
    The global options, those before the command.
    """

    directory: Path
    log_level: str

    def project(self) -> ProjectContext:
        from orchestrator.local_files import keep_private
        from orchestrator.project import project_context
        from orchestrator.system import warn

        project = project_context(self.absolute())
        keep_private(project.own_dir, warn)
        return project

    def absolute(self) -> Path:
        """
        Return the absolute directory of the project. Raises Invalid if the current directory was
        deleted.
        """
        try:
            return self.directory.absolute()
        except OSError as exc:
            from orchestrator.errors import Invalid, Problem

            hint = "change to a directory that exists, or name one with -C"
            raise Invalid([Problem(f"the current directory: {exc.strerror}", hint=hint)]) from exc

    def view(self, *, json: bool, verbose: bool) -> HumanView | JsonLinesView:
        """
        Return a view of a running command's events on stdout, for people or as JSON lines.
        """
        from orchestrator.views.events import HumanView, JsonLinesView

        shown = paper(sys.stdout, verbose=verbose)
        if json:
            return JsonLinesView(sys.stdout, called_in=shown.called_in)
        return HumanView(sys.stdout, shown)

    def quiet_sink(self) -> Sink:
        """
        Return a sink for reading commands, which shows only notes: their result is a document.
        """
        from orchestrator.views.events import NotesView

        return self.logged(NotesView(sys.stderr, paper(sys.stderr)))

    def logged(self, shown: Sink) -> Sink:
        """
        Return the sink, which also writes events to the log if one is enabled.
        """
        if self.log_level == "off":
            return shown
        from orchestrator.views.events import LoggedSink

        return LoggedSink(shown, sys.stderr, level=self.log_level)


def print_document(
    document: Document,
    text: Callable[[Document, Paper], str],
    *,
    as_json: bool,
    verbose: bool = False,
) -> None:
    """
    Print a document on stdout: as JSON, or as text for people.
    """
    shown = document.to_json() if as_json else text(document, paper(sys.stdout, verbose=verbose))
    click.echo(shown)


def paper(stream: TextIO, *, verbose: bool = False) -> Paper:
    """
    Return width, colours and characters for a stream. No colours with ``NO_COLOR``, or if the
    stream is no terminal.
    """
    from datetime import UTC, datetime

    from orchestrator.views.page import Paper

    width = shutil.get_terminal_size((100, 24)).columns
    return Paper(
        now=datetime.now(UTC),
        width=max(60, min(width, 160)),
        color=stream.isatty() and not os.environ.get("NO_COLOR"),
        verbose=verbose,
        called_in=_called_in(),
    ).on(stream)


def _called_in() -> str:
    """
    Return the ``-C`` directory of the current command, "" if it has none.
    """
    context = click.get_current_context(silent=True)
    directory = context.find_root().params.get("directory") if context is not None else None
    if directory in (None, Path()):
        return ""
    try:
        relative = os.path.relpath(directory)
    except OSError:  # the current directory is gone
        return str(directory)
    return "" if relative == "." else relative


def is_interactive() -> bool:
    """
    Return whether a person can be asked: stdin and stdout are a terminal, and no automation is
    detected.
    """
    if os.environ.get("CI") or os.environ.get("TF_IN_AUTOMATION"):
        return False
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


# The standard streams.


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


_GITHUB = ("::group::{title}", "::endgroup::")
#: How a group begins and ends, by the variable that tells of the runner.
_GROUPS: Mapping[str, tuple[str, str]] = {
    "GITHUB_ACTIONS": _GITHUB,
    "GITEA_ACTIONS": _GITHUB,
    "FORGEJO_ACTIONS": _GITHUB,
    "TF_BUILD": ("##[group]{title}", "##[endgroup]"),
    "GITLAB_CI": (
        "\x1b[0Ksection_start:{now:.0f}:orchestrator_{number}[collapsed=true]\r\x1b[0K{title}",
        "\x1b[0Ksection_end:{now:.0f}:orchestrator_{number}\r\x1b[0K",
    ),
}


def folds() -> bool:
    """
    Return whether a CI runner shows log groups.
    """
    return any(map(os.environ.get, _GROUPS))


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
    Begin a group, if the CI runner shows groups. Groups do not nest.
    """
    _write_mark(0, number, title)


def end_group(number: int = 0) -> None:
    _write_mark(1, number)


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


def _write_mark(which: int, number: int, title: str = "") -> None:
    """
    Write the mark to the underlying stream, because the watched one removes such lines.
    """
    marks = next((marks for name, marks in _GROUPS.items() if os.environ.get(name)), None)
    if marks is None:
        return
    stdout = sys.stdout
    stdout.flush()
    stream = stdout.raw if isinstance(stdout, WatchedStream) else stdout
    stream.write(f"{marks[which].format(now=time.time(), number=number, title=title)}\n")
    stream.flush()
