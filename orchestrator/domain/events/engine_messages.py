"""
What an engine says while it works, one value per message.

Addresses are Terraform resource instance addresses; times are UTC; actions are those of
`orchestrator.domain.record.objects.Action`.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import Diagnostic


class PlannedChange(Struct, frozen=True):
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


class RefreshComplete(Struct, frozen=True):
    """
    The provider was asked for an object and returned it, with this id.
    """

    address: str
    id: str


class ResourceDrift(Struct, frozen=True):
    """
    The refresh found the object changed (``update``) or vanished (``delete``) outside Terraform.
    """

    address: str
    action: Action
    type: str


class OutputChange(Struct, frozen=True):
    """
    The plan changes this output.
    """

    name: str
    action: Action


class ApplyStart(Struct, frozen=True):
    """
    A create, update or delete began at the provider.
    """

    address: str
    action: Action
    at: datetime
    id: str | None = None


class ApplyProgress(Struct, frozen=True):
    address: str
    action: Action
    at: datetime
    elapsed: float


class ApplyComplete(Struct, frozen=True):
    address: str
    action: Action
    at: datetime
    id: str | None = None


class ApplyErrored(Struct, frozen=True):
    """
    A create, update or delete ended in an error; what it left behind is not known from this.
    """

    address: str
    action: Action
    at: datetime


class DiagnosticMessage(Struct, frozen=True):
    diagnostic: Diagnostic


class ProvisionProgress(Struct, frozen=True):
    """
    A line that a provisioner printed.
    """

    address: str
    line: str


class ChangeSummary(Struct, frozen=True):
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


class LogLine(Struct, frozen=True):
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
