"""
The documents of ``plan``, ``gate`` and ``drift``.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import Field

from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.json_model import BlueprintDocument, JsonModel
from orchestrator.domain.plan.changes import PlanChanges, PlanDiagnostic, ResourceChange
from orchestrator.domain.plan.violations import Violation
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.record.record import Fault
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.text import Word

#: How a step was planned: on its own from real outputs, or not yet.
PlanMethod = Literal["composed", "separate", "deferred"]
PlanVerdict = Literal["no_changes", "changes", "deferred", "failed"]


class PlanCounts(JsonModel):
    """
    The number of objects by action. A move counts only if there is no other action.
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
    def of_actions(cls, actions: Iterable[Action]) -> Self:
        """
        Return the counts of these actions; a no-op in a plan is a move.
        """
        counts = Counter("move" if action == "noop" else action for action in actions)
        return cls.model_validate(counts)


class StepPlan(JsonModel):
    """
    A step's plan, without values.

    ``deferred`` cannot be planned yet (``reason``, ``waits_for``), ``failed`` has an ``error``.
    ``drifted`` are objects that changed or vanished outside the engine. ``inputs`` are as shown:
    sensitive ones masked. ``before_destroy`` is the hook that would run before the step is
    destroyed.
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
    A step's plan, with values.
    """

    def with_plan(self, shown: PlanReady) -> Self:
        changes = shown.changes or PlanChanges()
        fields = {name: getattr(changes, name) for name in PlanChanges.model_fields}
        names = ("actions", "outputs", "drifted", "inputs")
        return self.model_copy(update=fields | {name: getattr(shown, name) for name in names})

    def counted(self) -> Self:
        changes = self.resources or self.actions  # without values: what goes with its parent
        counts = PlanCounts.of_actions(item.action for item in changes)
        return self.model_copy(update={"counts": counts})


class AffectedStep(JsonModel):
    """
    A step that a change affects, and why.
    """

    step: Word
    reasons: tuple[str, ...]


class PlanDocument(BlueprintDocument):
    """
    The result of ``plan``. ``changes`` is true if a step is planned to change; with deferred steps,
    this decides ``--detailed-exitcode``. ``verdict`` is the first that holds of failed, changes,
    deferred, no_changes. ``out`` is the file it was saved to; ``orphaned`` are targets that are
    alive and no longer in the blueprint; ``policy`` are the violations of the blueprint's policy;
    ``affected`` says why each step is in it, if only affected steps were requested.
    """

    schema_: Literal["orchestrator.plan/2"] = Field("orchestrator.plan/2", alias="schema")
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
    def of_steps(
        cls,
        deployment: BlueprintSummary,
        steps: Sequence[PlannedStep],
        *,
        command: Literal["apply", "destroy"],
        affected: tuple[AffectedStep, ...] = (),
        orphaned: tuple[str, ...] = (),
    ) -> Self:
        """
        Return the document of these steps; verdict and counts follow from them.
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
        return cls(
            project=deployment.project,
            blueprint=deployment.blueprint,
            environment=deployment.environment,
            command=command,
            verdict=next((word for s, word in verdicts if s in statuses), "no_changes"),
            counts=PlanCounts.model_validate(counts),
            changes="planned" in statuses,
            steps=tuple(steps),
            affected=affected,
            orphaned=orphaned,
        )


# The document of ``gate``: whether a change may go on, with every reason.


GateVerdict = Literal["pass", "warn", "fail"]


class GateReason(JsonModel):
    """
    A reason of a gate's warning or failure, and what can be done. ``step`` is None for the whole
    blueprint; ``file`` is its place, relative to the project, if known.
    """

    code: Word
    severity: Literal["warn", "fail"]
    step: Word | None = None
    message: str
    remedy: str = ""
    file: Word | None = None
    line: int | None = None


class StepDrift(JsonModel):
    """
    The objects of a step that changed or vanished outside the engine.
    """

    step: Word
    resources: tuple[ResourceChange, ...]


class GateDocument(BlueprintDocument):
    """
    The result of ``gate``. The verdict is the worst of the reasons; ``plan`` is None if none could
    be made. ``policy`` are the violations of the policy.
    """

    schema_: Literal["orchestrator.gate/1"] = Field("orchestrator.gate/1", alias="schema")
    verdict: GateVerdict
    reasons: tuple[GateReason, ...] = ()
    plan: PlanDocument | None = None
    policy: tuple[Violation, ...] = ()
    drift: tuple[StepDrift, ...] = ()

    @classmethod
    def of_reasons(cls, reasons: Sequence[GateReason], **fields: object) -> Self:
        """
        Return the document with these reasons; the verdict follows from them.
        """
        severities = {item.severity for item in reasons}
        verdict = "fail" if "fail" in severities else "warn" if severities else "pass"
        return cls.model_validate({"verdict": verdict, "reasons": tuple(reasons), **fields})


# The document of ``drift``: what changed outside the engine.


DriftVerdict = Literal["no_drift", "drift", "failed"]


class DriftedStep(JsonModel):
    """
    The objects of a step that have drifted. ``accepted`` are those whose changes are all accepted
    by a rule or differ in notation only; ``skipped`` has a ``reason``.
    """

    step: Word
    target: Word
    status: Literal["same", "drifted", "failed", "skipped"]
    resources: tuple[ResourceChange, ...] = ()
    accepted: tuple[Word, ...] = ()
    reason: str | None = None
    error: Fault | None = None
    diagnostics: tuple[PlanDiagnostic, ...] = ()


class DriftDocument(BlueprintDocument):
    """
    The result of ``drift``. ``expired`` are the addresses of rules past their date, ``orphaned``
    the targets that are alive, no longer in the blueprint and not looked at.
    """

    schema_: Literal["orchestrator.drift/1"] = Field("orchestrator.drift/1", alias="schema")
    verdict: DriftVerdict
    steps: tuple[DriftedStep, ...]
    expired: tuple[Word, ...] = ()
    orphaned: tuple[Word, ...] = ()

    @classmethod
    def of_steps(
        cls,
        deployment: BlueprintSummary,
        steps: Sequence[DriftedStep],
        *,
        expired: tuple[str, ...],
        orphaned: tuple[str, ...] = (),
    ) -> Self:
        """
        Return the document of these steps; the verdict follows from them.
        """
        statuses = {step.status for step in steps}
        verdicts: tuple[tuple[str, DriftVerdict], ...] = (
            ("failed", "failed"),
            ("drifted", "drift"),
        )
        verdict = next((word for status, word in verdicts if status in statuses), "no_drift")
        return cls(
            project=deployment.project,
            blueprint=deployment.blueprint,
            environment=deployment.environment,
            verdict=verdict,
            steps=tuple(steps),
            expired=expired,
            orphaned=orphaned,
        )
