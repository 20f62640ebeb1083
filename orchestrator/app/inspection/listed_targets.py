"""
Which targets of a blueprint a reading command shows a row of: its steps, the modules of their
hooks, and what left the blueprint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.target import HOOK_KINDS, hook_step_name, step_of


def listed_targets(
    summary: BlueprintSummary,
    records: Mapping[str, OperationRecord],
    selected: Collection[str] | None = None,
) -> list[str]:
    """
    The targets to list: every step in the order of an apply, each followed by the recorded modules
    of its hooks; then the orphans that may be alive or have released objects that live on. With
    ``selected`` only these, and the hooks of these steps.
    """
    steps = [name for step in summary.graph.order for name in (step, *_hooks(step, records))]
    names = (*steps, *_orphans(summary, records))
    if selected is None:
        return list(names)
    return [name for name in names if name in selected or step_of(name) in selected]


def select_targets(
    reader: ReadContext,
    summary: BlueprintSummary,
    patterns: Sequence[str],
    exclude: Sequence[str],
) -> set[str] | None:
    """
    The names that a selection matches; None where nothing is selected. Hooks and orphans are
    selected by their exact name, steps by pattern. Usage where a pattern matches nothing.
    """
    if not patterns and not exclude:
        return None
    listed = {*listed_targets(summary, reader.records(summary))} - {*summary.graph.order}
    named = {name for name in patterns if name in listed}
    others = [name for name in patterns if name not in named]
    if named and not others:
        return named
    return named | set(summary.graph.select_some(others, exclude))


def _hooks(step: str, records: Mapping[str, OperationRecord]) -> list[str]:
    roots = (hook_step_name(step, kind) for kind in HOOK_KINDS)
    return [root for root in roots if root in records]


def _orphans(summary: BlueprintSummary, records: Mapping[str, OperationRecord]) -> list[str]:
    return [
        step
        for step, record in sorted(records.items())
        if step_of(step) not in summary.graph
        and (
            not summary.graph.order
            or record.status not in NOTHING_THERE
            or any(item.how == "forgotten" for item in record.resources.still_released)
        )
    ]
