"""
The events of a run as JSON lines, for programs.
"""

from __future__ import annotations

import contextlib
import json
import logging
from threading import Lock
from typing import Any, TextIO

from orchestrator.domain.events.events import Event
from orchestrator.domain.text import Json, escaped
from orchestrator.ports.system import Sink
from orchestrator.views.page import callable_from


class JsonLinesView:
    """
    A sink that writes each event as one line of JSON; the last line of a run is ``run_finished``.

    If the stream breaks, it stops writing: a mutation must not fail because of its display.
    ``called_in`` is the ``-C`` directory for commands in hints.
    """

    def __init__(self, stream: TextIO, *, called_in: str = "") -> None:
        self._stream = stream
        self._called_in = called_in
        self._lock = Lock()
        self._broken = False

    def emit(self, event: Event) -> None:
        """
        Write the event; never raises if the stream is closed or full.
        """
        # ASCII, so that no encoding of the stream and no line separator of Unicode can break it.
        document = event.model_dump(mode="json", by_alias=True)
        if self._called_in:
            document = _with_hints_from(self._called_in, document)
        line = escaped(json.dumps(document))
        with self._lock:
            if self._broken:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True


def _with_hints_from(called_in: str, value: Json) -> Any:
    """
    Return the document with ``-C`` in the commands of its hints.
    """
    match value:
        case dict():
            return {
                key: callable_from(called_in, item)
                if key == "hint" and isinstance(item, str)
                else _with_hints_from(called_in, item)
                for key, item in value.items()
            }
        case list():
            return [_with_hints_from(called_in, item) for item in value]
        case _:
            return value


# Events as log lines for those who look for faults of the tool, beside what is shown to people.


class LoggedSink:
    """
    A sink that logs every event to a stream as JSON and passes it on.

    ``debug`` logs everything, ``info`` leaves out the output of engines and provisioners. Events
    are already masked.
    """

    def __init__(self, shown: Sink, stream: TextIO, *, level: str) -> None:
        import structlog

        self._shown = shown
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(
                logging.DEBUG if level == "debug" else logging.INFO
            ),
        )

    def emit(self, event: Event) -> None:
        """
        Log the event and pass it on.
        """
        fields = event.model_dump(mode="json", exclude={"type"}, exclude_defaults=True)
        write = self._log.debug if event.type in ("line", "object") else self._log.info
        with contextlib.suppress(OSError):  # a closed stderr must not end a mutation
            write(event.type, **fields)
        self._shown.emit(event)
