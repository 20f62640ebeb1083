"""
Runs of the past, from this machine or from the operation store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.domain.lineage import Obstacle
from orchestrator.domain.record import RunRecord
from orchestrator.errors import Refused, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.ports import OperationStore, RunFiles


def find_run(files: RunFiles, store: OperationStore, run_id: str) -> RunRecord | None:
    """
    The record of a run; None where there is none of that id.
    """
    local = files.read_run(run_id)
    if local is not None:
        return local
    stored = store.blob(f"runs/{run_id}/run.json")
    if stored is None:
        return None
    try:
        return RunRecord.model_validate_json(stored)
    except ValueError as exc:
        raise StoreUnavailable(f"the stored record of run {run_id} cannot be read") from exc


def refusal(obstacles: Sequence[Obstacle]) -> Refused:
    """
    The error that says all obstacles; reason and hint are those of the first.
    """
    first = obstacles[0]
    return Refused(first.reason, "\n".join(item.message for item in obstacles), hint=first.hint)
