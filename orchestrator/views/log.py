"""
Events as log lines for those who look for faults of the tool, beside what is shown to people.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TextIO

from orchestrator.domain.events.events import Event
from orchestrator.ports.system import Sink


class LoggedSink:
    """
    A sink that logs every event to a stream as JSON and hands it on.

    At ``debug`` everything, at ``info`` no lines of engines and provisioners. Events are masked
    before they get here.
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
        Log the event, then hand it on.
        """
        fields = event.model_dump(mode="json", exclude={"type"}, exclude_defaults=True)
        write = self._log.debug if event.type in ("line", "object") else self._log.info
        with contextlib.suppress(OSError):  # a closed stderr must not end a mutation
            write(event.type, **fields)
        self._shown.emit(event)
