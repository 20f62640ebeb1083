"""
The call of the tool: directory, streams, what the terminal can show.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import click
from msgspec import Struct

if TYPE_CHECKING:
    from orchestrator.domain.json_model import JsonDocument
    from orchestrator.ports.system import Sink
    from orchestrator.project import ProjectContext
    from orchestrator.views.human import HumanView
    from orchestrator.views.jsonl import JsonLinesView
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
        from orchestrator.views.human import HumanView
        from orchestrator.views.jsonl import JsonLinesView

        if json:
            return JsonLinesView(sys.stdout, called_in=_called_in())
        return HumanView(sys.stdout, paper(sys.stdout, verbose=verbose))

    def quiet_sink(self) -> Sink:
        """
        Return a sink for reading commands, which shows only notes: their result is a document.
        """
        from orchestrator.views.human import NotesView

        return self.logged(NotesView(sys.stderr, paper(sys.stderr)))

    def logged(self, shown: Sink) -> Sink:
        """
        Return the sink, which also writes events to the log if one is enabled.
        """
        if self.log_level == "off":
            return shown
        from orchestrator.views.jsonl import LoggedSink

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
