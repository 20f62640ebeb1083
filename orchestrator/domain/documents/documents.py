"""
The JSON documents of reading commands, one class each. Their names are a contract.

Times are UTC. Every text is masked already. A field that is added later is optional.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.documents.json_model import HookTarget, JsonDocument, JsonModel
from orchestrator.domain.record.record import (
    Actor,
    Attempt,
    Command,
    Doubt,
    Fault,
    HookResult,
    InFlight,
    Json,
    Lineage,
    NextCommand,
    OutputOrigin,
    PlannedAction,
    Retention,
    Verification,
)
from orchestrator.domain.record.states import Condition, Status, StepStatus, Verdict


class StepState(JsonModel):
    """
    A step as its newest record tells it; without a record ``status`` is ``pending``.

    ``condition`` is set for ``running`` only. ``last_run_status`` is what became of the step in the
    last run that had it, None where there was none. ``spooled`` tells that the status shown is an
    outcome that still waits on disk to be recorded. ``outputs`` are those last known.
    """

    step: str
    target: str
    status: StepStatus
    condition: Condition | None = None
    sequence: int | None = None
    run_id: str | None = None
    last_run_status: StepStatus | None = None
    module_ref: str | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    blocked_by: tuple[str, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    outputs: dict[str, Json] = {}
    sensitive_outputs: tuple[str, ...] = ()
    verification: Verification | None = None
    updated_at: datetime | None = None
    directory: str | None = None
    outputs_from: dict[str, OutputOrigin] = {}
    in_flight: tuple[InFlight, ...] = ()
    tainted: tuple[str, ...] = ()
    retained: Retention | None = None
    review_overdue: bool = False
    spooled: bool = False
    lineage: Lineage | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    action_roots: tuple[HookTarget, ...] = ()


class StatusDocument(JsonDocument):
    """
    What ``status`` tells of a blueprint in an environment.

    ``orphaned`` are targets with a record whose step is no longer in the blueprint.
    """

    schema_: Literal["orchestrator.status/1"] = Field("orchestrator.status/1", alias="schema")
    project: str
    blueprint: str
    environment: str
    verdict: Verdict
    steps: tuple[StepState, ...]
    orphaned: tuple[str, ...] = ()
    next: tuple[NextCommand, ...] = ()


class StatusListDocument(JsonDocument):
    """
    What ``status --all`` tells: every blueprint and environment with a record or a file.
    """

    schema_: Literal["orchestrator.status_list/1"] = Field(
        "orchestrator.status_list/1", alias="schema"
    )
    project: str
    blueprints: tuple[StatusDocument, ...]


class HistoryEntry(JsonModel):
    """
    One entry of a target's record, without what does not change from entry to entry.
    """

    sequence: int
    entry_id: str
    status: Status
    previous_status: Status | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    run_id: str
    updated_at: datetime
    actor: Actor
    in_doubt: tuple[Doubt, ...] = ()
    lineage: Lineage | None = None
    last_attempt: Attempt | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None


class HistoryDocument(JsonDocument):
    """
    All entries of a target, newest first.
    """

    schema_: Literal["orchestrator.history/1"] = Field("orchestrator.history/1", alias="schema")
    project: str
    target: str
    entries: tuple[HistoryEntry, ...]


class StepOutcome(JsonModel):
    step: str
    status: StepStatus


class RunLine(JsonModel):
    """
    A run in a list. ``exit_code`` and ``ended_at`` are None where it has not ended, or was killed.
    """

    run_id: str
    blueprint: str
    environment: str
    command: str
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    actor: Actor
    reason: str | None = None
    lineage: Lineage | None = None
    steps: tuple[StepOutcome, ...] = ()


class OverdueReview(JsonModel):
    """
    A retained target whose date of review has passed.
    """

    target: str
    owner: str
    review_by: str


class RunsDocument(JsonDocument):
    """
    Runs, newest first, and the retained targets of the project that nobody has looked at in time.
    """

    schema_: Literal["orchestrator.runs/1"] = Field("orchestrator.runs/1", alias="schema")
    project: str
    runs: tuple[RunLine, ...]
    overdue: tuple[OverdueReview, ...] = ()


class PlannedStep(JsonModel):
    """
    What the plan of a step holds.

    ``deferred`` cannot be planned yet (``reason``, ``waits_for``), ``failed`` has an ``error``.
    ``drifted`` are objects that changed or vanished outside the engine. ``inputs`` are as shown:
    sensitive ones masked. ``before_destroy`` is what would be done before the step is destroyed.
    """

    step: str
    target: str
    status: Literal["planned", "unchanged", "deferred", "failed"]
    actions: tuple[PlannedAction, ...] = ()
    outputs: tuple[str, ...] = ()
    drifted: tuple[PlannedAction, ...] = ()
    inputs: dict[str, str] = {}
    reason: str | None = None
    waits_for: tuple[str, ...] = ()
    error: Fault | None = None
    before_destroy: str | None = None


class PlanDocument(JsonDocument):
    """
    What ``plan`` tells. ``changes`` is what ``--detailed-exitcode`` decides by; ``out`` the file it
    was saved to; ``orphaned`` are the targets that are alive and that no step stands for.
    """

    schema_: Literal["orchestrator.plan/1"] = Field("orchestrator.plan/1", alias="schema")
    project: str
    blueprint: str
    environment: str
    command: Literal["apply", "destroy"] = "apply"
    changes: bool
    steps: tuple[PlannedStep, ...]
    out: str | None = None
    orphaned: tuple[str, ...] = ()
    next: tuple[NextCommand, ...] = ()


class ProblemDocument(JsonModel):
    """
    One thing wrong and where; line and column count from 1, None where unknown.
    """

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""


class CheckedBlueprint(JsonModel):
    blueprint: str
    file: str
    environments: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


class ValidationDocument(JsonDocument):
    """
    What ``validate`` tells: all problems at once.
    """

    schema_: Literal["orchestrator.validation/1"] = Field(
        "orchestrator.validation/1", alias="schema"
    )
    valid: bool
    blueprints: tuple[CheckedBlueprint, ...] = ()
    problems: tuple[ProblemDocument, ...] = ()


class GraphStep(JsonModel):
    """
    A node: ``needs`` are its upstream steps, ``wave`` counts from 1 (all it needs is in earlier
    ones).
    """

    step: str
    module_ref: str
    wave: int
    needs: tuple[str, ...] = ()
    owned_by: str | None = None


class GraphDocument(JsonDocument):
    """
    The steps of a blueprint in the order of an apply.
    """

    schema_: Literal["orchestrator.graph/1"] = Field("orchestrator.graph/1", alias="schema")
    blueprint: str
    environment: str
    steps: tuple[GraphStep, ...]


class EngineDocument(JsonDocument):
    """
    The engine that would be used: ``program`` is the argv that starts it.
    """

    schema_: Literal["orchestrator.engine/1"] = Field("orchestrator.engine/1", alias="schema")
    kind: Literal["terraform", "tofu"]
    version: str
    program: tuple[str, ...]
    source: str
    why: str


class ErrorDocument(JsonDocument):
    """
    An error of any command under ``--json``; ``reason`` refines ``code`` where there is one.
    """

    schema_: Literal["orchestrator.error/1"] = Field("orchestrator.error/1", alias="schema")
    code: str
    exit_code: int
    message: str
    hint: str = ""
    reason: str | None = None
    problems: tuple[ProblemDocument, ...] = ()
