"""
Blueprints and environments of which the file is gone, for commands that only read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from orchestrator.domain.blueprint.store_location import StoreLocation
from orchestrator.domain.blueprint.summary import BlueprintSummary, summary_of
from orchestrator.errors import Invalid
from orchestrator.loading.summary import load_summary
from orchestrator.ports.store import OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext


def remaining_summary(
    project: ProjectContext,
    selection: BlueprintSelection,
    open_store: Callable[[StoreLocation], AbstractContextManager[OperationStore]],
) -> BlueprintSummary:
    """
    The blueprint in an environment as reading commands need it, also where one of the two is gone
    and only records are left.
    """
    try:
        return load_summary(project, selection)
    except Invalid:
        from orchestrator.loading.restore import gone_deployment  # only where something is wrong

        gone = gone_deployment(project, selection, open_store)
        if gone is None:
            raise
        return summary_of(gone)
