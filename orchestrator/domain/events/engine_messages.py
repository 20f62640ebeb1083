"""
What an engine says while it works, one value per message.

Addresses are Terraform resource instance addresses; times are UTC; actions are those of
`orchestrator.domain.record.objects.Action`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import Diagnostic


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """
    The plan holds this action. Reads and no-ops are not reported. ``importing`` is the import id
    where the object is taken into the provider state first, ``previous_address`` where it was;
    ``engine_word`` an action that is not known.
    """

    address: str
    action: Action
    type: str
    reason: str | None = None
    importing: str | None = None
    previous_address: str | None = None
    engine_word: str | None = None


@dataclass(frozen=True, slots=True)
class RefreshComplete:
    """
    The provider was asked for an object and returned it, with this id.
    """

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class ResourceDrift:
    """
    The refresh found the object changed (``update``) or vanished (``delete``) outside Terraform.
    """

    address: str
    action: Action
    type: str


@dataclass(frozen=True, slots=True)
class OutputChange:
    """
    The plan changes this output.
    """

    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class ApplyStart:
    """
    A create, update or delete began at the provider.
    """

    address: str
    action: Action
    at: datetime
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ApplyProgress:
    address: str
    action: Action
    at: datetime
    elapsed: float


@dataclass(frozen=True, slots=True)
class ApplyComplete:
    address: str
    action: Action
    at: datetime
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ApplyErrored:
    """
    A create, update or delete ended in an error; what it left behind is not known from this.
    """

    address: str
    action: Action
    at: datetime


@dataclass(frozen=True, slots=True)
class DiagnosticMessage:
    diagnostic: Diagnostic


@dataclass(frozen=True, slots=True)
class ProvisionProgress:
    """
    A line that a provisioner printed.
    """

    address: str
    line: str


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """
    The engine's own count; only ``apply`` and ``destroy`` of a finished call are trustworthy.
    ``other`` are the changes that it counts under names that are not known.
    """

    operation: str
    add: int
    change: int
    remove: int
    forget: int = 0
    other: int = 0
    imports: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """
    Anything else, as text: plain lines, unknown message types, the "Interrupt received" notice.
    """

    line: str


Message = (
    PlannedChange
    | RefreshComplete
    | ResourceDrift
    | OutputChange
    | ApplyStart
    | ApplyProgress
    | ApplyComplete
    | ApplyErrored
    | DiagnosticMessage
    | ProvisionProgress
    | ChangeSummary
    | LogLine
)
