"""
The order of a destroy, on the use case itself: any graph, with children that parents own, steps
that are retained, and failures anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.app.commands.destroy import destroy
from orchestrator.app.run.request import DestroyRequest, RunOptions
from orchestrator.app.schedule import OnFailure
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.domain.events.events import Event, ObjectEvent, PhaseStarted, StepFinished
from orchestrator.domain.record.objects import ObjectRef, Resources
from orchestrator.domain.record.record import OperationRecord, Retention
from orchestrator.domain.record.run_record import StateLock, StepRun
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.ports.engine import Apply, CallResult, CallSpec, Pull, Push, Request
from tests.fakes.clock import SetStop
from tests.fakes.engine import REMOTE_PROVIDER, Cloud, FakeEngine, FakeRoot, Fault, Thing
from tests.fakes.services import Premises, Told

GONE = {str(status) for status in NOTHING_THERE}
RETAINED = Retention(reason="audit", owner="ops", review_by="2999-01-01", was=Status.OK)


@dataclass(frozen=True)
class Scene:
    """
    What there is before a destroy, and what goes wrong in it. ``before`` maps steps to the status
    of their record, ``fails`` steps to how they do.
    """

    needs: dict[str, list[str]]
    owned: dict[str, str]
    before: dict[str, Status]
    fails: dict[str, str] = field(default_factory=dict)
    on_failure: OnFailure = OnFailure.STOP

    def upstreams(self, step: str) -> set[str]:
        found = set(self.needs[step])
        for upstream in self.needs[step]:
            found |= self.upstreams(upstream)
        return found

    def lineage(self, step: str) -> set[str]:
        """
        The parent of a step, its parent, and so on.
        """
        parent = self.owned.get(step)
        return {parent, *self.lineage(parent)} if parent else set()


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    names = [f"s{number}" for number in range(draw(st.integers(2, 6)))]
    needs: dict[str, list[str]] = {}
    for at, name in enumerate(names):
        few = st.lists(st.sampled_from(names[:at] or [name]), unique=True, max_size=2)
        needs[name] = draw(few) if at else []
    scene = Scene(needs, {}, {})
    for name in names:
        upstreams = sorted(scene.upstreams(name))
        is_owned = draw(st.booleans())
        if upstreams and is_owned:
            scene.owned[name] = draw(st.sampled_from(upstreams))
        scene.before[name] = draw(
            st.sampled_from([*[Status.OK] * 5, Status.ERROR, Status.RETAINED, Status.DESTROYED])
        )
    for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=2)):
        scene.fails[name] = draw(st.sampled_from(["refuses", "cannot be planned", "is locked"]))
    return Scene(
        needs, scene.owned, scene.before, scene.fails, draw(st.sampled_from(list(OnFailure)))
    )


@contextmanager
def premises(scene: Scene) -> Iterator[Premises]:
    found = Premises(scene.needs, scene.owned)
    try:
        for step, status in scene.before.items():
            found.has(step, status=status, retained=RETAINED if status is Status.RETAINED else None)
            root, how = found.root(step), scene.fails.get(step)
            root.faults = {f"fake_object.{step}": Fault.REFUSE} if how == "refuses" else {}
            root.plan_error = "it cannot be planned" if how == "cannot be planned" else None
            root.locked_by = StateLock(id="lock-1", who="somebody") if how == "is locked" else None
        yield found
    finally:
        found.close()


def run(there: Premises, scene: Scene) -> dict[str, StepRun]:
    """
    Destroy everything; what was reported of each step last.
    """
    there.told.events.clear()
    request = DestroyRequest(
        options=RunOptions(on_failure=scene.on_failure, jobs=3, plan=PlanOptions(approved=True))
    )
    destroy(there.services, there.deployment, request)
    ended = [event for event in there.told.events if isinstance(event, StepFinished)]
    assert len(ended) == len({event.step for event in ended}), "a step ended twice"
    return {event.step: event.result for event in ended}


def mark(there: Premises, step: str) -> OperationRecord | None:
    """
    The entry of a step that told of the mutation to come.
    """
    found = [entry for entry in there.history(step) if entry.status is Status.RUNNING]
    return found[-1] if found else None


def kept(scene: Scene) -> set[str]:
    """
    What is retained, and all that it needs.
    """
    retained = {step for step, status in scene.before.items() if status is Status.RETAINED}
    return retained | {up for step in retained for up in scene.upstreams(step)}


def check_order(there: Premises, scene: Scene) -> None:
    """
    Entry ids are numbered over all steps: what was written first has the lower one.
    """
    for step in scene.needs:
        begun = mark(there, step)
        for dependent in scene.needs:
            if begun is None or step not in scene.upstreams(dependent):
                continue
            if scene.before[dependent] in NOTHING_THERE:
                continue
            newest = there.record(dependent)
            assert newest is not None
            follows = newest.absence is not None and newest.absence.method == "parent"
            if step in scene.lineage(dependent) and (follows or newest.status not in NOTHING_THERE):
                continue
            assert newest.status in NOTHING_THERE, f"{step} was begun while {dependent} was there"
            assert newest.entry_id < begun.entry_id, f"{step} was begun before {dependent} was gone"


def check_children(there: Premises, scene: Scene) -> None:
    """
    What went with a parent did so after it, and no engine was asked to delete it; nor was one asked
    for a child of what is gone.
    """
    applied = {place for place, request in there.world.requests if isinstance(request, Apply)}
    pushed = {place for place, request in there.world.requests if isinstance(request, Push)}
    places = {there.work / "web/default" / step: step for step in scene.needs}
    assert not applied & pushed
    for place in pushed:
        step = places[place]
        begun, parent = mark(there, step), there.record(scene.owned[step])
        assert begun is not None
        assert parent is not None
        assert parent.status in NOTHING_THERE
        assert scene.before[scene.owned[step]] in NOTHING_THERE or parent.entry_id < begun.entry_id
    for place in applied:
        parent_name = scene.owned.get(places[place])
        assert parent_name is None or scene.before[parent_name] not in NOTHING_THERE


def check_reports(scene: Scene, rows: dict[str, StepRun]) -> None:
    """
    Every step that is not absent, destroyed or kept was attempted, or is reported as not run.
    """
    assert set(rows) == set(scene.needs)
    for step, row in rows.items():
        alone = scene.before[step] in NOTHING_THERE or step in kept(scene)
        if alone:
            assert row.status == "skipped", f"{step}: {row.status}"
            continue
        assert row.status in (*GONE, "error", "pending"), f"{step}: {row.status}"
        if row.status == "pending":
            assert row.blocked_by or row.reason, f"{step} is pending, and nobody knows why"
        if row.status == "pending" and scene.on_failure is OnFailure.CONTINUE:
            assert row.blocked_by, f"{step} waits for nothing, and did not run"
            assert all(rows[waited].status not in GONE for waited in row.blocked_by)


@settings(max_examples=30)
@given(scenes())
def test_nothing_goes_before_what_needs_it(scene: Scene) -> None:
    """
    For any graph and any failure nothing is destroyed before its dependents are confirmed gone,
    owned children excepted; what is retained stays with all it needs; every other step is attempted
    or reported; and once the causes are fixed the next destroy ends with the rest gone.
    """
    with premises(scene) as there:
        rows = run(there, scene)

        check_order(there, scene)
        check_children(there, scene)
        check_reports(scene, rows)
        for step in scene.needs:
            root = there.root(step)
            root.faults, root.plan_error, root.locked_by = {}, None, None
        run(there, scene)
        check_order(there, scene)
        check_children(there, scene)
        stays = {s for s in kept(scene) if scene.before[s] not in NOTHING_THERE}
        left = {s for s in scene.needs if (r := there.record(s)) and str(r.status) not in GONE}
        assert left == stays


def test_a_child_is_pending_while_its_parent_is_being_destroyed() -> None:
    """
    The run's record, which anybody may read meanwhile, says that it waits for its parent; when it
    is gone it waits for nobody.
    """
    both = dict.fromkeys(("host", "disk"), Status.OK)
    scene = Scene({"host": [], "disk": ["host"]}, {"disk": "host"}, both)
    seen: list[StepRun] = []
    with premises(scene) as there:

        class Held(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                (run_id,) = there.services.files.runs()
                record = there.services.files.read_run(run_id)
                assert record is not None
                seen.extend(row for row in record.steps if row.step == "disk")
                return True

        there.root("host").wait = Held()
        rows = run(there, scene)

    (meanwhile,) = seen
    assert (meanwhile.status, meanwhile.blocked_by) == ("pending", ("host",))
    assert (rows["disk"].status, rows["disk"].blocked_by) == ("destroyed", ())


def test_inputs_that_cannot_be_had_are_found_before_anything_is_destroyed() -> None:
    """
    What is destroyed last lacks what it was applied with: nothing is begun, what is first neither.
    """
    there = Premises({"network": [], "server": ["network"]})
    try:
        there.has("network", resolved_inputs_file="runs/R1/resolved.inputs.yml")
        there.has("server")
        request = DestroyRequest(options=RunOptions(plan=PlanOptions(approved=True)))

        code = destroy(there.services, there.deployment, request)

        rows = {e.step: e.result for e in there.told.events if isinstance(e, StepFinished)}
        assert code == 22
        assert {name: row.status for name, row in rows.items()} == {
            "network": "error",
            "server": "pending",
        }
        assert [len(there.history(step)) for step in rows] == [1, 1]
    finally:
        there.close()


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("gone back", 4),
        ("another", 4),
        ("another's object at the address", 11),
        ("not saved", 11),
    ],
)
def test_a_state_that_is_refused_is_found_before_anything_is_destroyed(
    what: str, code: int
) -> None:
    """
    The provider state of what is destroyed last is not what the record knows: what needs it is not
    destroyed either.
    """
    there = Premises({"network": [], "server": ["network"]})
    try:
        there.has("network")
        there.has("server")
        root = there.root("network")
        match what:
            case "gone back":
                root.serial = 0
            case "another":
                root.lineage = "another-lineage"
            case "another's object at the address":
                root.things["fake_object.network"] = Thing(1, "id-of-another")
            case _:
                place = there.work / "web/default/network"
                place.mkdir(parents=True)
                (place / "errored.tfstate").write_text("{}")
        request = DestroyRequest(options=RunOptions(plan=PlanOptions(approved=True)))

        ended = destroy(there.services, there.deployment, request)

        rows = {e.step: e.result.status for e in there.told.events if isinstance(e, StepFinished)}
        assert (ended, rows) == (code, {"network": "error", "server": "pending"})
        assert not [request for _, request in there.world.requests if isinstance(request, Apply)]
    finally:
        there.close()


def test_what_was_applied_as_a_dependent_goes_first_although_the_blueprint_forgot_it() -> None:
    """
    The server was applied in the network, and the blueprint has been edited since: it
    is in it until the next apply. Alone the network is not destroyed, and with it the server goes
    first; where the edit turned the need around, the blueprint decides.
    """
    there = Premises({"network": [], "server": []})
    turned = Premises({"network": ["server"], "server": []})
    try:
        orders = []
        for place in (there, turned):
            place.has("network")
            place.has("server", needs=("network",))
        approved = PlanOptions(approved=True)

        refused = destroy(
            there.services,
            there.deployment,
            DestroyRequest(options=RunOptions(steps=("network",), plan=approved)),
        )
        untouched = [len(there.history(step)) for step in ("network", "server")]
        for place in (there, turned):
            assert (
                destroy(
                    place.services,
                    place.deployment,
                    DestroyRequest(options=RunOptions(plan=approved)),
                )
                == 0
            )
            orders.append(
                [p.name for p, request in place.world.requests if isinstance(request, Apply)]
            )

        assert (refused, untouched) == (4, [1, 1])
        assert orders == [["server", "network"], ["network", "server"]]
    finally:
        there.close()
        turned.close()


def network_of_a_provider(there: Premises) -> FakeRoot:
    """
    Record the network with an object that its provider can be asked for.
    """
    address = "fake_object.network"
    ref = ObjectRef(address=address, type="fake_object", provider=REMOTE_PROVIDER, id="id-network")
    there.has("network", resources=Resources(inventory=(ref,)))
    root = there.root("network")
    root.cloud = Cloud({"id-network": address})
    return root


def test_after_a_signal_the_provider_is_not_asked_what_is_gone() -> None:
    """
    Law: signals.
    It comes as the only object has been destroyed, which nothing confirms then.
    """
    there = Premises({"network": []})
    stop = SetStop()

    class Signals(Told):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if isinstance(event, ObjectEvent) and event.state == "done":
                self.events.clear()
                stop.stop_now = True

    told = Signals()
    try:
        network_of_a_provider(there)
        options = RunOptions(plan=PlanOptions(approved=True, verify_absence="provider"))

        code = destroy(
            there.heard_by(told, stop), there.deployment, DestroyRequest(options=options)
        )

        record = there.record("network")
        assert record is not None
        assert (code, record.status) == (130, Status.ERROR)
        assert "readback" not in [e.phase for e in told.events if isinstance(e, PhaseStarted)]
    finally:
        there.close()


def test_where_the_state_cannot_be_read_the_journal_says_what_was_destroyed() -> None:
    """
    Law: destroyed means confirmed.
    The backend goes away with the destroy: what was deleted is in doubt, with the provider state
    by which it can be asked for.
    """
    there = Premises({"network": []})
    try:
        network_of_a_provider(there).unreadable_after_apply = True
        options = RunOptions(plan=PlanOptions(approved=True, verify_absence="provider"))

        destroy(there.services, there.deployment, DestroyRequest(options=options))

        record = there.record("network")
        assert record is not None
        assert record.status is Status.ERROR
        assert [(d.address, d.saved is not None) for d in record.resources.in_doubt] == [
            ("fake_object.network", True)
        ]
    finally:
        there.close()


@pytest.mark.parametrize(
    ("on_failure", "ends"),
    [(OnFailure.STOP, ["error", "pending"]), (OnFailure.CONTINUE, ["error", "error"])],
)
def test_after_a_failure_independent_steps_are_begun_only_if_asked_for(
    on_failure: OnFailure, ends: list[str]
) -> None:
    """
    One step at a time, and each would fail.
    """
    there = Premises({"one": [], "two": []})
    try:
        for step in ("one", "two"):
            there.has(step)
            there.root(step).faults = {f"fake_object.{step}": Fault.REFUSE}
        options = RunOptions(on_failure=on_failure, jobs=1, plan=PlanOptions(approved=True))

        destroy(there.services, there.deployment, DestroyRequest(options=options))

        rows = [e.result.status for e in there.told.events if isinstance(e, StepFinished)]
        assert sorted(rows) == ends
    finally:
        there.close()


def test_states_are_read_side_by_side_in_directories_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A call that has ended removes its output, and the directory of it if that is empty: no other
    call may be about to write there.
    """
    premises = Premises({"a": [], "b": [], "c": []})
    read: dict[Path, set[Path]] = {}
    call = FakeEngine.call

    def noted(self: FakeEngine, request: Request, spec: CallSpec, **more: Any) -> CallResult:
        if isinstance(request, Pull):
            read.setdefault(spec.evidence, set()).add(spec.directory)
        return call(self, request, spec, **more)

    monkeypatch.setattr(FakeEngine, "call", noted)
    try:
        for step in ("a", "b", "c"):
            premises.has(step)
        options = RunOptions(plan=PlanOptions(approved=True), jobs=3)
        code = destroy(premises.services, premises.deployment, DestroyRequest(options=options))
    finally:
        premises.close()

    assert code == 0
    assert len(set().union(*read.values())) == 3
    assert all(len(directories) == 1 for directories in read.values())
