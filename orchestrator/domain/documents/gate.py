"""
The document of ``gate``: whether a change may go on, with every reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.domain.documents.plan import PlanDocument
from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.plan.changes import ResourceChange
from orchestrator.domain.plan.violation import Violation
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
