"""
The JSON documents of reading commands, one class each. Their names are a contract.

Times are UTC. Every text is masked already. A field that is added later is optional.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.documents.json_model import HookTarget, JsonDocument, JsonModel
from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.plan.violation import Violation
from orchestrator.domain.record.objects import Absence, Action, Doubt, PlannedAction, SettledDoubt
from orchestrator.domain.record.record import (
    Actor,
    Attempt,
    Command,
    Diagnostic,
    Fault,
    HookResult,
    Lineage,
    OutputOrigin,
    Retention,
    Verification,
)
from orchestrator.domain.record.run_record import InFlight, NextCommand
from orchestrator.domain.record.states import Condition, Status, StepStatus, Verdict
from orchestrator.domain.text import Json, Word


class StepState(JsonModel):
    """
    A step as its newest record tells it; without a record ``status`` is ``pending``.

    ``condition`` is set for ``running`` only. ``last_run_status`` is what became of the step in
    ``run_id``, None where that is not known. ``spooled`` tells that the status shown is an
    outcome that still waits on disk to be recorded. ``outputs`` are those last known.
    ``last_attempt`` left the status alone: it changed no object. ``objects`` are those that are
    alive of the module of a hook, or of what left the blueprint.
    """

    step: Word
    target: Word
    status: StepStatus
    condition: Condition | None = None
    sequence: int | None = None
    run_id: Word | None = None
    last_run_status: StepStatus | None = None
    module_ref: Word | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    last_attempt: Attempt | None = None
    blocked_by: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    outputs: dict[Word, Json] = {}
    sensitive_outputs: tuple[Word, ...] = ()
    verification: Verification | None = None
    warnings: tuple[Diagnostic, ...] = ()
    absence: Absence | None = None
    updated_at: datetime | None = None
    directory: Word | None = None
    outputs_from: dict[Word, OutputOrigin] = {}
    in_flight: tuple[InFlight, ...] = ()
    tainted: tuple[Word, ...] = ()
    retained: Retention | None = None
    review_overdue: bool = False
    spooled: bool = False
    lineage: Lineage | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    action_roots: tuple[HookTarget, ...] = ()
    objects: tuple[Word, ...] = ()

    @property
    def failed_attempt(self) -> Attempt | None:
        """
        The newest apply, where it failed before it changed anything: the status is not its own.
        """
        tried = self.last_attempt
        applied = tried is not None and tried.command == "apply" and tried.error is not None
        return tried if applied else None


class StatusDocument(JsonDocument):
    """
    What ``status`` tells of a blueprint in an environment.

    ``orphaned`` are targets with a record whose step is no longer in the blueprint. Where steps
    were selected, verdict and ``steps`` are theirs alone: ``selected``.
    """

    schema_: Literal["orchestrator.status/1"] = Field("orchestrator.status/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    verdict: Verdict
    selected: tuple[Word, ...] = ()
    steps: tuple[StepState, ...]
    orphaned: tuple[Word, ...] = ()
    next: tuple[NextCommand, ...] = ()


class StatusListDocument(JsonDocument):
    """
    What ``status --all`` tells: every blueprint and environment with a record or a file.
    """

    schema_: Literal["orchestrator.status_list/1"] = Field(
        "orchestrator.status_list/1", alias="schema"
    )
    project: Word
    blueprints: tuple[StatusDocument, ...]


class HistoryEntry(JsonModel):
    """
    One entry of a target's record, without what does not change from entry to entry. ``settled``
    are the doubts that it settled.
    """

    sequence: int
    entry_id: Word
    status: Status
    previous_status: Status | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    run_id: Word
    updated_at: datetime
    actor: Actor
    in_doubt: tuple[Doubt, ...] = ()
    lineage: Lineage | None = None
    last_attempt: Attempt | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    absence: Absence | None = None
    settled: tuple[SettledDoubt, ...] = ()


class HistoryDocument(JsonDocument):
    """
    All entries of a target, newest first.
    """

    schema_: Literal["orchestrator.history/1"] = Field("orchestrator.history/1", alias="schema")
    project: Word
    target: Word
    entries: tuple[HistoryEntry, ...]


class StepOutcome(JsonModel):
    step: Word
    status: StepStatus


class RunLine(JsonModel):
    """
    A run in a list. ``exit_code`` and ``ended_at`` are None where it has not ended, or was killed.
    """

    run_id: Word
    blueprint: Word
    environment: Word
    command: Word
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

    target: Word
    owner: str
    review_by: Word


class RunsDocument(JsonDocument):
    """
    Runs, newest first, and the retained targets of the project that nobody has looked at in time.
    """

    schema_: Literal["orchestrator.runs/1"] = Field("orchestrator.runs/1", alias="schema")
    project: Word
    runs: tuple[RunLine, ...]
    overdue: tuple[OverdueReview, ...] = ()


#: How a step was planned: on its own from real outputs, or not yet.
PlanMethod = Literal["composed", "separate", "deferred"]
PlanVerdict = Literal["no_changes", "changes", "deferred", "failed"]


class PlanCounts(JsonModel):
    """
    How many objects a plan does something with. A move counts where nothing else is done.
    """

    create: int = 0
    update: int = 0
    replace: int = 0
    delete: int = 0
    import_: int = Field(0, alias="import")
    forget: int = 0
    move: int = 0
    read: int = 0
    unknown: int = 0

    @classmethod
    def of_actions(cls, actions: Iterable[Action]) -> PlanCounts:
        """
        The counts of these actions; a no-op in a plan is a move.
        """
        found = Counter("move" if action == "noop" else action for action in actions)
        return cls.model_validate(found)


class StepPlan(JsonModel):
    """
    What the plan of a step holds, without values.

    ``deferred`` cannot be planned yet (``reason``, ``waits_for``), ``failed`` has an ``error``.
    ``drifted`` are objects that changed or vanished outside the engine. ``inputs`` are as shown:
    sensitive ones masked. ``before_destroy`` is what would be done before the step is destroyed.
    """

    step: Word
    target: Word
    status: Literal["planned", "unchanged", "deferred", "failed"]
    method: PlanMethod = "separate"
    reason: str | None = None
    waits_for: tuple[Word, ...] = ()
    counts: PlanCounts = PlanCounts()
    actions: tuple[PlannedAction, ...] = ()
    outputs: tuple[Word, ...] = ()
    drifted: tuple[PlannedAction, ...] = ()
    inputs: dict[Word, str] = {}
    error: Fault | None = None
    before_destroy: str | None = None


class PlannedStep(PlanChanges, StepPlan):
    """
    What the plan of a step holds: the names, and the same with values.
    """

    @classmethod
    def of_fields(cls, **fields: object) -> PlannedStep:
        """
        The row with its counts.
        """
        row = cls.model_validate(fields)
        did = row.resources or row.actions  # without values: what goes with its parent
        counts = PlanCounts.of_actions(item.action for item in did)
        return row.model_copy(update={"counts": counts})


class AffectedStep(JsonModel):
    """
    A step that a change touches, and why.
    """

    step: Word
    reasons: tuple[str, ...]


class PlanDocument(JsonDocument):
    """
    What ``plan`` tells. ``changes`` says whether a step is planned to change, which is one thing
    that ``--detailed-exitcode`` decides by; the other are deferred steps. ``verdict`` is the first
    that holds of failed, changes, deferred, no_changes. ``out`` is the file it was saved to;
    ``orphaned`` are the targets that are alive and that no step stands for; ``policy`` is what the
    policy of the blueprint forbids of it; ``affected`` says why each step is in it, where those
    were asked for that a change touches.
    """

    schema_: Literal["orchestrator.plan/2"] = Field("orchestrator.plan/2", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    command: Literal["apply", "destroy"] = "apply"
    verdict: PlanVerdict
    counts: PlanCounts = PlanCounts()
    changes: bool
    steps: tuple[PlannedStep, ...]
    out: Word | None = None
    orphaned: tuple[Word, ...] = ()
    policy: tuple[Violation, ...] = ()
    affected: tuple[AffectedStep, ...] = ()
    next: tuple[NextCommand, ...] = ()

    @classmethod
    def of_steps(cls, steps: Sequence[PlannedStep], **fields: object) -> PlanDocument:
        """
        The document of these steps: verdict and counts follow from them.
        """
        statuses = {step.status for step in steps}
        verdicts: tuple[tuple[str, PlanVerdict], ...] = (
            ("failed", "failed"),
            ("planned", "changes"),
            ("deferred", "deferred"),
        )
        counts = Counter[str]()
        for step in steps:
            counts.update(step.counts.model_dump())
        return cls.model_validate(
            {
                "verdict": next((word for s, word in verdicts if s in statuses), "no_changes"),
                "counts": PlanCounts.model_validate(counts),
                "changes": "planned" in statuses,
                "steps": tuple(steps),
                **fields,
            }
        )


class ProblemDocument(JsonModel):
    """
    One thing wrong and where; line and column count from 1, None where unknown.
    """

    message: str
    file: Word | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""


class CheckedBlueprint(JsonModel):
    blueprint: Word
    file: Word
    environments: tuple[Word, ...] = ()
    steps: tuple[Word, ...] = ()


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
    ones). ``reasons`` say why it is touched, where only what a change touches is drawn.
    """

    step: Word
    module_ref: Word
    wave: int
    needs: tuple[Word, ...] = ()
    owned_by: Word | None = None
    reasons: tuple[str, ...] = ()


class GraphDocument(JsonDocument):
    """
    The steps of a blueprint in the order of an apply.
    """

    schema_: Literal["orchestrator.graph/1"] = Field("orchestrator.graph/1", alias="schema")
    blueprint: Word
    environment: Word
    steps: tuple[GraphStep, ...]


class StepOutputs(JsonModel):
    """
    The outputs of a step that its newest record knows; the values of ``sensitive_outputs`` are in
    the provider state only.
    """

    step: Word
    target: Word
    status: StepStatus
    outputs: dict[str, Json] = Field(default_factory=dict)
    sensitive_outputs: tuple[Word, ...] = ()


class OutputsDocument(JsonDocument):
    """
    The outputs of the steps of a blueprint, upstreams first. Those of a step that is not ``ok`` are
    what was known last.
    """

    schema_: Literal["orchestrator.outputs/1"] = Field("orchestrator.outputs/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    steps: tuple[StepOutputs, ...]


class EngineDocument(JsonDocument):
    """
    The engine that would be used: ``program`` is the argv that starts it.
    """

    schema_: Literal["orchestrator.engine/1"] = Field("orchestrator.engine/1", alias="schema")
    kind: Literal["terraform", "tofu"]
    version: Word
    program: tuple[Word, ...]
    source: Word
    why: str


class ErrorDocument(JsonDocument):
    """
    An error of any command under ``--json``; ``reason`` refines ``code`` where there is one.
    """

    schema_: Literal["orchestrator.error/1"] = Field("orchestrator.error/1", alias="schema")
    code: Word
    exit_code: int
    message: str
    hint: str = ""
    reason: Word | None = None
    problems: tuple[ProblemDocument, ...] = ()
