"""
The document of ``drift``: what changed outside the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.plan.changes import PlanDiagnostic, ResourceChange
from orchestrator.domain.record.record import Fault
from orchestrator.domain.text import Word

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
