"""
Which step needs which among what is alive: a blueprint may have been edited since it was applied.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE


def applied_graph(graph: Graph, records: Mapping[str, OperationRecord | None]) -> Graph:
    """
    The graph of a blueprint with what each step that is alive needed when it was applied: that
    holds until the next apply. The blueprint alone where both together would be a cycle.
    """
    needs = {step: set(graph.needs(step)) for step in graph.order}
    for step, upstreams in needs.items():
        record = records.get(step)
        if record is not None and record.status not in NOTHING_THERE:
            upstreams.update(needed for needed in record.needs if needed in graph)
    try:
        return Graph(needs)
    except CycleFound:
        return graph
