"""
The document of ``gate``: whether a change may go on, with every reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.domain.documents.plan import PlanDocument
from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.plan.changes import PlanDiagnostic, ResourceChange
from orchestrator.domain.plan.violations import Violation
from orchestrator.domain.record.record import Fault
from orchestrator.domain.text import Word

GateVerdict = Literal["pass", "warn", "fail"]


class GateReason(JsonModel):
    """
    Why a gate warns or fails, and what can be done about it. ``step`` is None for the whole
    blueprint; ``file``, relative to the project, is where it stands, if it stands anywhere.
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


class GateDocument(JsonDocument):
    """
    What ``gate`` tells. The verdict is the worst of the reasons; ``plan`` is None where none could
    be made. ``policy`` is what the policy forbids of the plan.
    """

    schema_: Literal["orchestrator.gate/1"] = Field("orchestrator.gate/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    verdict: GateVerdict
    reasons: tuple[GateReason, ...] = ()
    plan: PlanDocument | None = None
    policy: tuple[Violation, ...] = ()
    drift: tuple[StepDrift, ...] = ()

    @classmethod
    def of_reasons(cls, reasons: Sequence[GateReason], **fields: object) -> GateDocument:
        """
        The document with these reasons: the verdict follows from them.
        """
        severities = {item.severity for item in reasons}
        verdict = "fail" if "fail" in severities else "warn" if severities else "pass"
        return cls.model_validate({"verdict": verdict, "reasons": tuple(reasons), **fields})


# The document of ``drift``: what changed outside the engine.


DriftVerdict = Literal["no_drift", "drift", "failed"]


class DriftedStep(JsonModel):
    """
    The objects of a step that are not as they were left. ``accepted`` are those of which everything
    that changed is accepted by a rule or differs in notation only; ``skipped`` has a ``reason``.
    """

    step: Word
    target: Word
    status: Literal["same", "drifted", "failed", "skipped"]
    resources: tuple[ResourceChange, ...] = ()
    accepted: tuple[Word, ...] = ()
    reason: str | None = None
    error: Fault | None = None
    diagnostics: tuple[PlanDiagnostic, ...] = ()


class DriftDocument(JsonDocument):
    """
    What ``drift`` tells. ``expired`` are the addresses of rules that accept nothing any more.
    """

    schema_: Literal["orchestrator.drift/1"] = Field("orchestrator.drift/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    verdict: DriftVerdict
    steps: tuple[DriftedStep, ...]
    expired: tuple[Word, ...] = ()

    @classmethod
    def of_steps(
        cls,
        steps: Sequence[DriftedStep],
        *,
        project: str,
        blueprint: str,
        environment: str,
        expired: tuple[str, ...],
    ) -> DriftDocument:
        """
        The document of these steps: the verdict follows from them.
        """
        statuses = {step.status for step in steps}
        verdicts: tuple[tuple[str, DriftVerdict], ...] = (
            ("failed", "failed"),
            ("drifted", "drift"),
        )
        verdict = next((word for status, word in verdicts if status in statuses), "no_drift")
        return cls(
            project=project,
            blueprint=blueprint,
            environment=environment,
            verdict=verdict,
            steps=tuple(steps),
            expired=expired,
        )
