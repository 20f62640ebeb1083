"""
The last stop of an event before it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.domain.redaction import redacted

if TYPE_CHECKING:
    from orchestrator.domain.events.events import Event
    from orchestrator.domain.masking import Masker
    from orchestrator.ports.system import Sink


class RedactingSink:
    """
    A sink that masks every event with what is known to be secret by then.
    """

    def __init__(self, sink: Sink, masker: Masker) -> None:
        self._sink = sink
        self._masker = masker

    def emit(self, event: Event) -> None:
        self._sink.emit(redacted(event, self._masker))
