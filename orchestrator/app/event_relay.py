"""
Passes engine messages on to the user and to the heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from orchestrator.app.session import Session
from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    ChangeSummary,
    DiagnosticMessage,
    EngineDiagnostic,
    EngineLine,
    Event,
    LogLine,
    Message,
    ObjectEvent,
    OutputChange,
    PlannedChange,
    ProvisionProgress,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.events.journal import MUTATIONS
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import InFlight
from orchestrator.domain.redaction import redacted

if TYPE_CHECKING:
    from orchestrator.domain.masking import Masker
    from orchestrator.ports.system import Sink


def relay(session: Session, step: str, marker: OperationRecord) -> Callable[[Message], None]:
    """
    Return an observer for the mutating call of a marker: it shows each message and updates the
    heartbeat's objects.
    """
    services, target = session.services, str(marker.target)

    def observe(message: Message) -> None:
        event: Event
        at = services.clock.now()
        seen = partial(ObjectEvent, at=at, step=step)
        match message:
            case ApplyStart(address, action, began, object_id):
                if action not in MUTATIONS:
                    return
                session.object_started(
                    InFlight(
                        target=target,
                        address=address,
                        action=action,
                        started_at=began,
                        sequence=marker.sequence,
                    )
                )
                event = seen(state="began", address=address, action=action, id=object_id)
            case ApplyProgress(address, action, _, elapsed):
                event = seen(state="going", address=address, action=action, elapsed=elapsed)
            case ApplyComplete(address, action, _, object_id):
                if action not in MUTATIONS:
                    return
                session.object_completed(target, address, action, object_id)
                event = seen(state="done", address=address, action=action, id=object_id)
            case ApplyErrored(address, action, _):
                session.object_failed(target, address, action)
                event = seen(state="failed", address=address, action=action)
            case DiagnosticMessage(diagnostic):
                event = EngineDiagnostic(at=at, step=step, diagnostic=diagnostic)
            case ProvisionProgress(address, line):
                event = EngineLine(at=at, step=step, address=address, line=line)
            case (
                PlannedChange()
                | RefreshComplete()
                | ResourceDrift()
                | OutputChange()
                | ChangeSummary()
                | LogLine()
            ):
                return
            case _:
                assert_never(message)
        services.sink.emit(event)

    return observe


# The last stop of an event before it is shown.


class RedactingSink:
    """
    A sink that masks every event with the secrets known so far.
    """

    def __init__(self, sink: Sink, masker: Masker) -> None:
        self._sink = sink
        self._masker = masker

    def emit(self, event: Event) -> None:
        self._sink.emit(redacted(event, self._masker))
