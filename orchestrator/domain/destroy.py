"""
The treatment and order of steps in a destroy: what is retained, what the engine destroys, and what
goes with the parent that owns it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import BlueprintSummary, Deployment, Retain
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.record.record import OperationRecord, Retention
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.values import replace

# Which step needs which among what is alive: a blueprint may have been edited since it was
# applied.


def applied_graph(graph: Graph, records: Mapping[str, OperationRecord | None]) -> Graph:
    """
    Return the blueprint's graph, extended by the dependencies with which live steps were applied:
    they hold until the next apply. If both together form a cycle, the blueprint's graph alone.
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


Records = Mapping[str, OperationRecord | None]


class Teardown(Struct, frozen=True):
    """
    ``skipped`` are the selected steps that stay, with the reason; ``todo`` those to destroy.

    ``removed_with`` maps each step of ``todo`` that goes with its parent to that parent. ``order``
    is the graph of ``todo``: each step needs what must be confirmed gone before it.
    """

    skipped: Mapping[str, str]
    todo: tuple[str, ...]
    removed_with: Mapping[str, str]
    order: Graph

    @property
    def by_engine(self) -> tuple[str, ...]:
        """
        The steps that the engine destroys: the others go with their parent.
        """
        return tuple(step for step in self.todo if step not in self.removed_with)


def teardown(
    deployment: Deployment,
    records: Records,
    selected: Sequence[str],
    *,
    skip_before_destroy: bool = False,
) -> Teardown:
    """
    Return the teardown of the selected steps by their current records.

    An owned step with a before_destroy hook is destroyed by itself, while its parent exists: the
    hook needs it alive. With ``skip_before_destroy`` it goes with its parent.
    """
    deployment = replace(deployment, graph=applied_graph(deployment.graph, records))
    retained = retained_steps(deployment, records, selected)
    alive = {name for name in selected if _exists(records.get(name))}
    todo = [name for name in selected if name in alive and name not in retained]
    gone = {name for name, record in records.items() if record and record.status in NOTHING_THERE}
    parents = {
        child: parent
        for child, parent in owners(deployment, records).items()
        if parent in gone or skip_before_destroy or deployment.steps[child].before_destroy is None
    }
    follows = removed_with_parent(deployment.graph, parents, todo, gone)
    return Teardown(retained, tuple(todo), follows, destroy_graph(deployment.graph, follows, todo))


def retention(declared: Retain | None, record: OperationRecord | None) -> Retention | None:
    """
    Return a step's retention, as recorded, else as the blueprint declares it; None if not retained.
    """
    if record is not None and record.status is Status.RETAINED and record.retained is not None:
        return record.retained
    if declared is None:
        return None
    return Retention(reason=declared.reason, owner=declared.owner, review_by=declared.review_by)


def retained_steps(
    deployment: Deployment, records: Records, selected: Collection[str]
) -> dict[str, str]:
    """
    Return the selected steps that are not destroyed because something is retained, and why.
    """
    reasons: dict[str, str] = {}
    for name, step in deployment.steps.items():
        record = records.get(name)
        retained = retention(step.retain, record)
        if retained is None or not _exists(record):
            continue
        if name in selected:
            reasons[name] = f"retained: {retained.reason}"
        for upstream in deployment.graph.upstreams(name):
            if upstream in selected:
                reasons.setdefault(upstream, f"needed by {name}, which is retained")
    return reasons


def owners(summary: BlueprintSummary, records: Records) -> dict[str, str]:
    """
    Return the parent of each owned step; blueprint and record must agree.

    A step that is declared as owned but was not applied so is destroyed by itself: it may outlive
    the parent.
    """
    parents: dict[str, str] = {}
    for name, step in summary.steps.items():
        record = records.get(name)
        parent = step.owned_by
        if record and parent and record.parent == str(summary.target(parent)):
            parents[name] = parent
    return parents


def removed_with_parent(
    graph: Graph, parents: Mapping[str, str], todo: Collection[str], gone: Collection[str]
) -> dict[str, str]:
    """
    Return the steps of ``todo`` that go with their parent, which is in ``todo`` too or already
    gone.

    If steps would then wait for each other, for example for a step that needs the parent and that
    the child needs, the child is destroyed by itself, first.

    >>> graph = Graph({"host": [], "disk": ["host"], "files": ["disk"]})
    >>> removed_with_parent(graph, {"disk": "host", "files": "disk"}, ["disk", "files"], [])
    {'files': 'disk'}
    """
    follows: dict[str, str] = {}
    for step in graph.order:
        parent = parents.get(step)
        if step not in todo or parent is None or (parent not in gone and parent not in todo):
            continue
        with_it = {**follows, step: parent}
        with contextlib.suppress(CycleFound):
            destroy_graph(graph, with_it, todo)
            follows = with_it
    return follows


def ancestors(follows: Mapping[str, str], step: str) -> list[str]:
    """
    Return the steps with which ``step`` goes, the nearest first.
    """
    names: list[str] = []
    while step in follows:
        step = follows[step]
        names.append(step)
    return names


def destroy_graph(graph: Graph, follows: Mapping[str, str], todo: Collection[str]) -> Graph:
    """
    Return the graph of a destroy: each step needs its dependents to be gone, except those that go
    with it, and a step that goes with its parent needs the parent to be gone.
    """
    steps = set(todo)
    needs: dict[str, set[str]] = {}
    for step in reversed(graph.order):
        if step not in steps:
            continue
        needs[step] = {
            dependent
            for dependent in graph.dependents(step) & steps
            if step not in ancestors(follows, dependent)
        }
        parent = follows.get(step)
        if parent in steps:
            needs[step].add(str(parent))
    return Graph(needs)


def with_children(deployment: Deployment, selected: Sequence[str]) -> tuple[str, ...]:
    """
    Return the selected steps and all that they own, in the order of the blueprint.
    """
    steps = set(selected)
    for name in deployment.graph.order:
        if deployment.steps[name].owned_by in steps:
            steps.add(name)
    return tuple(name for name in deployment.graph.order if name in steps)


def _exists(record: OperationRecord | None) -> bool:
    """
    Return whether a target may be alive.
    """
    return record is not None and record.status not in NOTHING_THERE
