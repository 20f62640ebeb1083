"""
The roots of the modules that steps declare as actions, from their records. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.app.inspection.liveness import LivenessProbe
from orchestrator.domain.json_model import HookTarget
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.target import HOOK_KINDS, hook_step_name


def hook_targets(
    records: Mapping[str, OperationRecord], step: str, watch: LivenessProbe
) -> Iterable[HookTarget]:
    """
    The roots of the step's actions that are, or may be, still there.
    """
    for kind in HOOK_KINDS:
        record = records.get(hook_step_name(step, kind))
        if record is not None and record.status not in NOTHING_THERE:
            yield HookTarget(
                target=str(record.target.target),
                status=record.status,
                condition=watch.condition(record),
                run_id=record.run_id,
                last_error=record.last_error,
                objects=tuple(ref.name for ref in record.live_objects),
                in_doubt=record.resources.in_doubt,
            )
