"""
What an engine says while it works, one value per message.

Addresses are Terraform resource instance addresses; times are UTC; actions are those of
`orchestrator.domain.record.record.Action`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.record.record import Action, Diagnostic, Json


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """
    The plan holds this action. Reads and no-ops are not reported. ``importing`` is the import id
    where the object is taken into the provider state first.
    """

    address: str
    action: Action
    type: str
    reason: str | None = None
    importing: str | None = None


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
    """

    operation: str
    add: int
    change: int
    remove: int


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


@dataclass(frozen=True, slots=True)
class StateObject:
    """
    A managed resource instance in provider state. ``id`` is None where the type has none;
    ``configuration`` names the provider configuration that manages it, module and alias included.
    """

    address: str
    type: str
    provider: str
    id: str | None
    tainted: bool = False
    deposed: str | None = None
    configuration: str = ""


@dataclass(frozen=True, slots=True)
class StateOutput:
    value: Json
    sensitive: bool


@dataclass(frozen=True, slots=True)
class PulledState:
    """
    What one ``state pull`` tells. A state that was never written has no lineage and serial 0.

    ``secrets`` are the sensitive values of its objects. ``raw`` is the state itself, secrets
    included: both stay in memory or in a 0600 file.
    """

    lineage: str | None
    serial: int
    objects: tuple[StateObject, ...]
    outputs: dict[str, StateOutput]
    secrets: tuple[Json, ...] = ()
    raw: bytes = b""

    @property
    def ids(self) -> dict[str, str | None]:
        """
        The id of the current object at each address.
        """
        return {item.address: item.id for item in self.objects if item.deposed is None}

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(item.address for item in self.objects)
