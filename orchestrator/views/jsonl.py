"""
The events of a run as JSON lines, for programs.
"""

from __future__ import annotations

import json
from threading import Lock
from typing import TextIO

from orchestrator.domain.events.events import Event
from orchestrator.domain.text import escaped


class JsonLinesView:
    """
    A sink that writes each event as one line of JSON; the last line of a run is ``run_finished``.

    Where the stream breaks it goes quiet: a mutation must not die of its display.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = Lock()
        self._broken = False

    def emit(self, event: Event) -> None:
        """
        Write the event; never raises for a stream that is closed, full or gone.
        """
        # ASCII, so that no encoding of the stream and no line separator of Unicode can break it.
        line = escaped(json.dumps(event.model_dump(mode="json", by_alias=True)))
        with self._lock:
            if self._broken:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True
