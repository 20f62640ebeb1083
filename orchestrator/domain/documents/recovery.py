"""
The document of ``recover``: facts, and what may be done about them. Every text is masked already.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import HookTarget, JsonDocument, JsonModel
from orchestrator.domain.record.objects import Action, Readback
from orchestrator.domain.record.record import (
    Attempt,
    Command,
    Fault,
    Lineage,
    Retention,
    Verification,
)
from orchestrator.domain.record.run_record import Completed, InFlight, NextCommand
from orchestrator.domain.record.states import Condition, Liveness, Status, StepStatus, Verdict
from orchestrator.domain.recovery.commands import RemedyDocument
from orchestrator.domain.recovery.context import Remedy, Situation
from orchestrator.domain.text import Word


class ObjectInDoubt(JsonModel):
    """
    An object in doubt. What was done to it was done between ``after`` (None: nothing tells) and
    ``before``; ``id`` is known where the engine or an earlier state told it; ``readback`` is what
    the provider answered, where it was asked.
    """

    address: Word
    action: Action
    after: datetime | None = None
    before: datetime
    id: Word | None = None
    why: str
    readback: Readback | None = None


class ProcessLiveness(JsonModel):
    """
    The run's own process, or its engine's, and what can be told of it from here.
    """

    role: Literal["run", "engine"]
    host: Word
    pid: int
    state: Liveness


class LastRun(JsonModel):
    """
    What the newest run of the blueprint and environment that had the step made of it.
    """

    run_id: Word
    command: Word
    status: StepStatus
    error: Fault | None = None
    lineage: Lineage | None = None


class LateOutcome(JsonModel):
    """
    The outcome of a run that had lost the target to another one: evidence, never the record.
    """

    run_id: Word
    status: Status
    sequence: int
    file: Word


class StepEvidence(JsonModel):
    """
    The facts about a step, as far as they are known here.

    ``objects`` counts what may be alive of what is recorded. ``lock`` is what was last
    said of a state lock. ``errored_state`` and ``inputs`` are files. ``settling`` are the seconds
    for which a request of a dead engine may still be under way. ``heartbeat_age`` is in seconds.
    ``scope`` is where the step's providers look, as the blueprint says it.
    """

    command: Command | None = None
    error: Fault | None = None
    in_doubt: tuple[ObjectInDoubt, ...] = ()
    journal: Literal["complete", "partial", "missing"] | None = None
    objects: int = 0
    tainted: tuple[Word, ...] = ()
    failed: tuple[Word, ...] = ()
    not_attempted: tuple[Word, ...] = ()
    last_attempt: Attempt | None = None
    last_run: LastRun | None = None
    lock: str | None = None
    errored_state: Word | None = None
    settling: float = 0.0
    processes: tuple[ProcessLiveness, ...] = ()
    heartbeat_age: float | None = None
    in_flight: tuple[InFlight, ...] = ()
    completed: tuple[Completed, ...] = ()
    more_completed: int = 0
    spooled: bool = False
    late: tuple[LateOutcome, ...] = ()
    verification: Verification | None = None
    retained: Retention | None = None
    lineage: Lineage | None = None
    inputs: str | None = None
    scope: str = ""
    action_roots: tuple[HookTarget, ...] = ()
    parent: Word | None = None
    children: tuple[Word, ...] = ()


class RecoveryStep(JsonModel):
    """
    A step: ``situation`` is the row of the documented table that it is in. ``recommended`` is None
    if nothing needs to be done, or where what ``blocked_by`` names must be recovered first.
    ``hint`` says what to do first about the fault.
    """

    step: Word
    target: Word
    status: StepStatus
    condition: Condition | None = None
    sequence: int | None = None
    run_id: Word | None = None
    updated_at: datetime | None = None
    situation: Situation
    last_error: str | None = None
    hint: str | None = None
    blocked_by: tuple[Word, ...] = ()
    evidence: StepEvidence
    actions: tuple[RemedyDocument, ...]
    recommended: Remedy | None = None


class ManualGap(JsonModel):
    """
    What no record tells: no run is known to which everything could be rolled back as verified.
    ``steps`` are those that were not verified in the newest run that ended ok.
    """

    code: Literal["no_run", "unverified"]
    message: str
    steps: tuple[Word, ...] = ()


class RecoveryDocument(JsonDocument):
    """
    What ``recover`` tells of a blueprint in an environment. Either ``last_verified_run`` (the
    newest run in which every step it had ended ok and verified) or ``manual_gap`` is set. Where
    steps were selected, verdict and ``steps`` are theirs alone: ``selected``.
    """

    schema_: Literal["orchestrator.recovery/1"] = Field("orchestrator.recovery/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    verdict: Verdict
    selected: tuple[Word, ...] = ()
    steps: tuple[RecoveryStep, ...]
    last_verified_run: Word | None = None
    manual_gap: ManualGap | None = None
    orphaned: tuple[Word, ...] = ()
    next: tuple[NextCommand, ...] = ()
