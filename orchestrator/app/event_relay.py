"""
Engine messages on their way to the person and to the heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from orchestrator.app.session import Session
from orchestrator.domain.events.engine_messages import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    ChangeSummary,
    DiagnosticMessage,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
    ProvisionProgress,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.events.events import EngineDiagnostic, EngineLine, Event, ObjectEvent
from orchestrator.domain.record.journal import MUTATIONS


def relay(session: Session, step: str, target: str) -> Callable[[Message], None]:
    """
    An observer for a mutating call: shows each message and tracks what is under way.
    """
    services = session.services

    def observe(message: Message) -> None:
        event: Event | None = None
        at = services.clock.now()
        match message:
            case ApplyStart(address, action, began, object_id):
                if action not in MUTATIONS:
                    return
                session.object_started(target, address, action, began)
                event = ObjectEvent(
                    at=at, step=step, state="began", address=address, action=action, id=object_id
                )
            case ApplyProgress(address, action, _, elapsed):
                event = ObjectEvent(
                    at=at, step=step, state="going", address=address, action=action, elapsed=elapsed
                )
            case ApplyComplete(address, action, _, object_id):
                if action not in MUTATIONS:
                    return
                session.object_ended(target, address, action)
                event = ObjectEvent(
                    at=at, step=step, state="done", address=address, action=action, id=object_id
                )
            case ApplyErrored(address, action, _):
                session.object_ended(target, address, action)
                event = ObjectEvent(
                    at=at, step=step, state="failed", address=address, action=action
                )
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
