"""
Every document by the name that ``schema NAME`` takes. A module of its own, because it imports all
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field, RootModel

from orchestrator.domain.documents.documents import (
    EngineDocument,
    ErrorDocument,
    ExportedTarget,
    GraphDocument,
    StoreCheckDocument,
    StoreCopyDocument,
    StorePruneDocument,
    ValidationDocument,
)
from orchestrator.domain.documents.plan import DriftDocument, GateDocument, PlanDocument
from orchestrator.domain.documents.recovery import RecoveryDocument
from orchestrator.domain.documents.run import HistoryDocument, RunDocument, RunsDocument
from orchestrator.domain.documents.status import OutputsDocument, StatusDocument, StatusListDocument
from orchestrator.domain.events.events import (
    CheckEvent,
    EngineDiagnostic,
    EngineLine,
    Note,
    ObjectEvent,
    PhaseStarted,
    PlanReady,
    RunFinished,
    RunStarted,
    SignalSeen,
    StepDeferred,
    StepFinished,
    StepRetried,
)
from orchestrator.domain.plan.approval import Approval
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import RunRecord


class EventLine(
    RootModel[
        Annotated[
            RunStarted
            | Note
            | PhaseStarted
            | PlanReady
            | StepDeferred
            | ObjectEvent
            | EngineLine
            | EngineDiagnostic
            | CheckEvent
            | StepRetried
            | StepFinished
            | SignalSeen
            | RunFinished,
            Field(discriminator="type"),
        ]
    ]
):
    """
    A line that a running command prints with ``--json``: one event. The last is ``run_finished``.
    """


DOCUMENTS: Mapping[str, type[BaseModel]] = {
    "operation": OperationRecord,
    "run": RunRecord,
    "status": StatusDocument,
    "status_list": StatusListDocument,
    "recovery": RecoveryDocument,
    "history": HistoryDocument,
    "runs": RunsDocument,
    "run_details": RunDocument,
    "plan": PlanDocument,
    "approval": Approval,
    "gate": GateDocument,
    "drift": DriftDocument,
    "validation": ValidationDocument,
    "graph": GraphDocument,
    "events": EventLine,
    "outputs": OutputsDocument,
    "engine": EngineDocument,
    "error": ErrorDocument,
    "store_check": StoreCheckDocument,
    "store_copy": StoreCopyDocument,
    "store_prune": StorePruneDocument,
    "store_export": ExportedTarget,
}
