"""
The events that the core reports. Views turn them into text; ``--json`` prints them as lines.

Every text except a `Word` is masked before it is shown. Field names are part of the JSON contract.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.record.objects import Action, Doubt, PlannedAction
from orchestrator.domain.record.record import Diagnostic, Fault, Lineage
from orchestrator.domain.record.run_record import NextCommand, StepRun
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.text import Json, Word


class Event(BaseModel):
    """
    An event. ``at`` is UTC; ``step`` is empty for events of the whole run.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    type: Word
    at: datetime
    step: Word = ""


class RunStarted(Event):
    type: Literal["run_started"] = "run_started"
    run_id: Word
    command: Word
    blueprint: Word
    environment: Word
    engine: Word
    engine_why: str
    steps: tuple[Word, ...]
    store: Word
    directory: Word
    lineage: Lineage | None = None


class Note(Event):
    """
    Something the user should know: a removed variable, a settled record, a changed serial.
    """

    type: Literal["note"] = "note"
    level: Literal["info", "warning", "error"] = "info"
    message: str
    hint: str = ""


class PhaseStarted(Event):
    """
    A step entered a phase: prepare, init, plan, apply, destroy, verify, readback.
    """

    type: Literal["phase_started"] = "phase_started"
    phase: Word


class PlanReady(Event):
    """
    The actions in the step's plan (empty: no changes), and outputs that change.

    ``changes`` contains the values, if somebody will look at them.
    """

    type: Literal["plan_ready"] = "plan_ready"
    actions: tuple[PlannedAction, ...]
    outputs: tuple[Word, ...] = ()
    drifted: tuple[PlannedAction, ...] = ()
    inputs: dict[Word, str] = {}  # as shown: sensitive ones masked
    changes: PlanChanges | None = None


class StepDeferred(Event):
    """
    A plan cannot be made yet: an upstream step has never been applied.
    """

    type: Literal["step_deferred"] = "step_deferred"
    reason: str
    waits_for: tuple[Word, ...]


class ObjectEvent(Event):
    """
    The engine works on an object.
    """

    type: Literal["object"] = "object"
    state: Literal["began", "going", "done", "failed"]
    address: Word
    action: Action
    id: str | None = None
    elapsed: float | None = None


class EngineLine(Event):
    """
    A line of a provisioner or of the engine.
    """

    type: Literal["line"] = "line"
    address: Word | None = None
    line: str


class EngineDiagnostic(Event):
    type: Literal["diagnostic"] = "diagnostic"
    diagnostic: Diagnostic


class CheckEvent(Event):
    type: Literal["check"] = "check"
    name: str
    passed: bool
    detail: str = ""


class StepRetried(Event):
    """
    A phase is retried: ``attempt`` is the number of the next try.
    """

    type: Literal["step_retried"] = "step_retried"
    phase: Word
    attempt: int
    reason: str


class StepFinished(Event):
    """
    A step ended, or will not run (``pending`` with ``blocked_by``, ``skipped`` with a reason).
    """

    type: Literal["step_finished"] = "step_finished"
    status: StepStatus
    result: StepRun
    changed: bool = False
    seconds: float = 0.0
    error: Fault | None = None


class SignalSeen(Event):
    type: Literal["signal"] = "signal"
    signal: Word
    message: str


class KnownOutputs(BaseModel):
    """
    The recorded outputs of a step; of ``sensitive`` ones only the names.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    step: Word
    outputs: dict[Word, Json] = {}
    sensitive: tuple[Word, ...] = ()


class LiveObjects(BaseModel):
    """
    Objects of a step that exist by its record; ``missing`` are those that the newest attempt did
    not find, ``in_doubt`` those whose existence is unknown.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    step: Word
    objects: tuple[Word, ...]
    tainted: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    missing: tuple[Word, ...] = ()


class RunFinished(Event):
    """
    The last event of a run: a complete summary. ``verdict`` counts failures in the run even if the
    records are unchanged; ``recorded`` is the recorded status of each step, ``outputs`` those of ok
    steps after an apply.
    """

    type: Literal["run_finished"] = "run_finished"
    run_id: Word
    command: Word
    exit_code: int
    verdict: Word
    steps: tuple[StepRun, ...]
    recorded: dict[Word, StepStatus] = {}
    alive: tuple[LiveObjects, ...] = ()
    outputs: tuple[KnownOutputs, ...] = ()
    next: tuple[NextCommand, ...] = ()
    error: str | None = None
    hint: str = ""
    seconds: float = 0.0
    directory: Word = ""


# What an engine says while it works, one value per message; a `Diagnostic` is one, too.
#
# Addresses are Terraform resource instance addresses; times are UTC; actions are those of
# `orchestrator.domain.record.objects.Action`.


class PlannedChange(Struct, frozen=True):
    """
    The plan contains this action. Reads and no-ops are not reported. ``importing`` is the import id
    if the object is imported first, ``previous_address`` its address before a move; ``engine_word``
    is the engine's word for an unknown action.
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
    The refresh read the object; it has this id.
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
    A create, update or delete failed; what it left behind is not known from this.
    """

    address: str
    action: Action
    at: datetime


class ProvisionProgress(Struct, frozen=True):
    address: str
    line: str


class ChangeSummary(Struct, frozen=True):
    """
    The engine's own count; only ``apply`` and ``destroy`` of a finished call are reliable.
    ``other`` are changes that it counts under unknown names.
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
    | Diagnostic
    | ProvisionProgress
    | ChangeSummary
    | LogLine
)
