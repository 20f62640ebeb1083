"""
The emptying of what went with its parent: how it ends, and that it may be cut short.
"""

from __future__ import annotations

import pytest

from orchestrator.app.commands.destroy import destroy
from orchestrator.app.run.request import DestroyRequest, RunOptions
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.domain.blueprint.blueprint import CommandHook
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.events.events import Event, StepFinished
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState, StateObject
from orchestrator.domain.record.entry_changes import EntryStamp, changes_in_run
from orchestrator.domain.record.objects import AdoptedObject, ObjectRef, Resources
from orchestrator.domain.record.states import Status
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.transitions import mark_with_parent
from orchestrator.domain.values import replace
from orchestrator.ports.engine import Apply, Program, Push
from tests.fakes.clock import START, SetStop
from tests.fakes.entries import ACTOR, entry
from tests.fakes.services import Premises, Told

FULL = PulledState("lineage", 3, (StateObject("a_disk.this", "a_disk", "a", "d-1"),), {})
EMPTY = PulledState("lineage", 4, (), {})
STAMP = EntryStamp(at=START, entry_id="next", actor=ACTOR)
DISK = entry(
    outputs={"id": "d-1"},
    resources=Resources(
        inventory=(ObjectRef(address="a_disk.this", type="a_disk", provider="a", id="d-1"),)
    ),
)


@pytest.mark.parametrize(
    ("exit_code", "state", "status", "code"),
    [
        (0, EMPTY, Status.DESTROYED, None),
        (1, EMPTY, Status.DESTROYED, None),  # the engine complains, and it is done
        (None, EMPTY, Status.DESTROYED, None),  # the engine was killed, and it is done
        (1, FULL, Status.OK, "engine_failed"),
        (None, FULL, Status.OK, "killed"),
        (0, None, Status.ERROR, "state_unreadable"),
    ],
)
def test_the_provider_state_alone_decides_how_an_emptying_ends(
    exit_code: int | None, state: PulledState | None, status: Status, code: str | None
) -> None:
    """
    Empty, the target is gone by its parent; untouched, its record is the one from before with the
    attempt beside it; unreadable, nobody knows: `error`, and the next destroy does it again.
    """
    marker = mark_with_parent(DISK, changes_in_run("later"), FULL, STAMP)
    evidence = MutationEvidence(
        exit_code=exit_code, journal=Journal.of((), whole=True), state=state
    )

    outcome = conclude(marker, DISK, evidence, STAMP)

    assert (marker.status, marker.active_command) == (Status.RUNNING, "destroy")
    assert (outcome.status, outcome.active_command) == (status, None)
    if status is Status.DESTROYED:
        assert outcome.absence is not None
        assert (outcome.absence.verdict, outcome.absence.method) == ("confirmed", "parent")
        assert [found.id for found in outcome.absence.checked] == ["d-1"]
        assert (outcome.outputs, outcome.resources.inventory) == ({}, ())
        return
    fault = outcome.last_attempt.error if outcome.last_attempt else outcome.error
    assert fault is not None
    assert fault.code == code
    assert outcome.outputs == DISK.outputs
    assert outcome.absence is None


def test_what_had_left_the_provider_state_is_gone_with_the_parent_too() -> None:
    """
    The objects that only the record knew, from a destroy that was not confirmed, are named.
    """
    marker = mark_with_parent(DISK, changes_in_run("later"), EMPTY, STAMP)
    evidence = MutationEvidence(exit_code=0, journal=Journal.of((), whole=True), state=EMPTY)

    outcome = conclude(marker, DISK, evidence, STAMP)

    assert outcome.absence is not None
    assert [found.id for found in outcome.absence.checked] == ["d-1"]


class StopsAfter(Told):
    """
    Asks the run to stop once a step has ended.
    """

    def __init__(self, step: str, stop: SetStop) -> None:
        super().__init__()
        self.step, self.stop = step, stop

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, StepFinished) and event.step == self.step:
            self.stop.stop_now = True


def test_a_signal_between_parent_and_child_leaves_the_child_to_the_next_destroy() -> None:
    """
    Law: signals.
    Nothing more is started; the child is pending with its record untouched, and the next
    destroy empties it without asking its engine.
    """
    there = Premises({"host": [], "disk": ["host"]}, {"disk": "host"})
    try:
        for step in ("host", "disk"):
            there.has(step)
        stop = SetStop()
        told = StopsAfter("host", stop)
        request = DestroyRequest(options=RunOptions(plan=PlanOptions(approved=True)))

        stopped = destroy(there.heard_by(told, stop), there.deployment, request)
        between = there.record("disk")
        finished = destroy(there.services, there.deployment, request)

        rows = {e.step: e.result for e in told.events if isinstance(e, StepFinished)}
        assert (stopped, finished) == (130, 0)
        assert (rows["host"].status, rows["disk"].status) == ("destroyed", "pending")
        assert between is not None
        assert (between.status, between.sequence) == (Status.OK, 1)
        last = there.record("disk")
        assert last is not None
        assert last.absence is not None
        assert (last.status, last.absence.method) == (Status.DESTROYED, "parent")
        place = there.work / "web/default/disk"
        assert set(there.world.verbs(place)) == {"init", "pull", "push"}
    finally:
        there.close()


def test_a_child_whose_provider_comes_from_its_gone_parent_needs_no_provider() -> None:
    """
    Its provider configuration refers to an output that went with the parent; the emptying takes
    nothing but the provider state.
    """
    there = Premises({"host": [], "disk": ["host"]}, {"disk": "host"})
    try:
        there.has("host", status=Status.DESTROYED)
        there.has("disk")
        steps = dict(there.deployment.steps)
        inside = {"fake": Template({"endpoint": "${steps.host.outputs.address}"})}
        steps["disk"] = replace(steps["disk"], providers=inside)
        deployment = replace(there.deployment, steps=steps)
        request = DestroyRequest(options=RunOptions(plan=PlanOptions(approved=True)))

        code = destroy(there.services, deployment, request)

        last = there.record("disk")
        assert code == 0
        assert last is not None
        assert last.status is Status.DESTROYED
    finally:
        there.close()


@pytest.mark.parametrize(
    ("skip", "calls", "method"),
    [
        (None, ["archive", "Apply disk", "Apply host"], "provider"),
        ("its archive is of no use", ["Apply host", "Push disk"], "parent"),
    ],
)
def test_what_is_archived_before_its_destroy_does_not_go_with_its_parent(
    skip: str | None, calls: list[str], method: str
) -> None:
    """
    The work that a child declares needs it alive: it is done, and the child destroyed, before the
    parent is touched; left out for a reason, the child goes along.
    """
    there = Premises({"host": [], "disk": ["host"]}, {"disk": "host"})
    try:
        for step in ("host", "disk"):
            there.has(step)
        steps = dict(there.deployment.steps)
        archive = CommandHook(Template(["echo", "archived"]), Template({}))
        steps["disk"] = replace(steps["disk"], before_destroy=archive)
        request = DestroyRequest(
            options=RunOptions(plan=PlanOptions(approved=True)), skip_before_destroy=skip
        )

        code = destroy(there.services, replace(there.deployment, steps=steps), request)

        done = [
            "archive" if isinstance(request, Program) else f"{type(request).__name__} {place.name}"
            for place, request in there.world.requests
            if isinstance(request, Apply | Program | Push)
        ]
        last = there.record("disk")
        assert (code, done) == (0, calls)
        assert last is not None
        assert last.absence is not None
        assert last.absence.method == method
    finally:
        there.close()


def test_what_is_not_proven_ours_does_not_go_with_its_parent() -> None:
    """
    Law: not ours until proven.
    The disk was adopted; it would be gone without a plan of its own, so that the host stays too.
    """
    there = Premises({"host": [], "disk": ["host"]}, {"disk": "host"})
    adopted = AdoptedObject(
        address="fake_object.disk",
        type="fake_object",
        id="id-disk",
        ownership="found",
        why="nothing tells whose it is",
        run_id="R1",
        at=START,
    )
    try:
        there.has("host")
        there.has("disk", adopted=(adopted,))
        request = DestroyRequest(options=RunOptions(plan=PlanOptions(approved=True)))

        code = destroy(there.services, there.deployment, request)

        assert code == 4
        assert [len(there.history(step)) for step in ("host", "disk")] == [1, 1]
    finally:
        there.close()
