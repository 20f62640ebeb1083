"""
The document of ``recover``: facts and remedies. Every text is already masked.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import BlueprintDocument, HookTarget, JsonModel
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
    An object in doubt. The action on it took place between ``after`` (None: unknown) and
    ``before``; ``id`` is set if the engine or an earlier state reported it; ``readback`` is the
    provider's answer, if it was queried.
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
    The process of a run or of its engine, and whether it is alive as far as this machine can tell.
    """

    role: Literal["run", "engine"]
    host: Word
    pid: int
    state: Liveness


class LastRun(JsonModel):
    """
    The result of the step in the newest run of the blueprint and environment that had it.
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
    The known facts about a step.

    ``objects`` counts the recorded objects that may be alive. ``lock`` is the last report of a
    state lock. ``errored_state`` and ``inputs`` are files. ``settling`` is for how many seconds a
    request of a dead engine may still be under way. ``heartbeat_age`` is in seconds. ``scope`` is
    the step's provider configuration in the blueprint.
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
    A step: ``situation`` is its row in the documented table. ``recommended`` is None if nothing
    needs to be done, or if the steps in ``blocked_by`` must be recovered first. ``hint`` says what
    to do first about the fault.
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
    No run is known to which everything could be rolled back as verified. ``steps`` are those that
    were not verified in the newest run that ended ok.
    """

    code: Literal["no_run", "unverified"]
    message: str
    steps: tuple[Word, ...] = ()


class RecoveryDocument(BlueprintDocument):
    """
    The result of ``recover`` for a blueprint in an environment. Either ``last_verified_run`` (the
    newest run in which every step ended ok and verified) or ``manual_gap`` is set. With a
    selection, verdict and ``steps`` are those of ``selected``.
    """

    schema_: Literal["orchestrator.recovery/1"] = Field("orchestrator.recovery/1", alias="schema")
    verdict: Verdict
    selected: tuple[Word, ...] = ()
    steps: tuple[RecoveryStep, ...]
    last_verified_run: Word | None = None
    manual_gap: ManualGap | None = None
    orphaned: tuple[Word, ...] = ()
    next: tuple[NextCommand, ...] = ()
