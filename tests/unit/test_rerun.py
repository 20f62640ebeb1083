"""
`retry` and `rollback` on the use cases themselves, with the fake engine: any graph, any failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.app.commands.apply import apply
from orchestrator.app.commands.rerun import redeploy, retry, rollback
from orchestrator.app.inspection.earlier_runs import read_prior_run, run_to_retry
from orchestrator.app.run.request import (
    ApplyRequest,
    RedeployRequest,
    RetryRequest,
    RollbackRequest,
    RunOptions,
)
from orchestrator.app.schedule import OnFailure
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.domain.blueprint.stored_deployment import parse_deployment
from orchestrator.domain.events.events import Note, RunFinished
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.record.states import Status
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.values import replace
from orchestrator.errors import Refused
from orchestrator.loading.restore import restore_deployment
from orchestrator.ports.engine import Apply
from orchestrator.project import ProjectContext, Settings
from tests.fakes.engine import Fault
from tests.fakes.services import Premises

YES = PlanOptions(approved=True)
CHAIN: dict[str, list[str]] = {"network": [], "server": ["network"], "dns": ["server"]}


class Place:
    """
    Premises in which every step wants one object, and runs of the tool on them.
    """

    def __init__(self, there: Premises) -> None:
        self.there = there
        for step in there.deployment.steps:
            there.root(step).desired = {f"fake_object.{step}": 1}
        self.module = Path(next(iter(there.deployment.steps.values())).module.directory)

    def fails(self, *steps: str) -> None:
        """
        From now on the provider refuses the objects of these steps, and no others.
        """
        for step in self.there.deployment.steps:
            faults = {f"fake_object.{step}": Fault.REFUSE} if step in steps else {}
            self.there.root(step).faults = faults

    def apply(
        self,
        on_failure: OnFailure = OnFailure.STOP,
        *,
        steps: tuple[str, ...] = (),
        wishes: PlanOptions = YES,
    ) -> RunRecord:
        request = ApplyRequest(options=RunOptions(steps=steps, on_failure=on_failure, plan=wishes))
        apply(self.there.services, self.there.deployment, request)
        return self.last()

    def again(
        self, verb: Literal["retry", "rollback"], run_id: str | None = None, *steps: str
    ) -> RunRecord:
        """
        Retry, or roll back to, a run: as the command does, from the store alone.
        """
        there, files = self.there, self.there.services.files
        run_id = run_id or run_to_retry(there.store, "web", "default", steps)
        place = {"project": "acme", "blueprint": "web", "environment": "default"}
        found = read_prior_run(files, there.store, run_id, **place)
        project = ProjectContext(there.place, Settings(there.place), {})
        deployment = restore_deployment(project, found.deployment, run_id=run_id)
        options = RunOptions(steps=steps, plan=YES, reason="a test")
        if verb == "retry":
            retry(there.services, deployment, RetryRequest(options=options), earlier=found)
        else:
            request = RollbackRequest(options=options, unverified="a test")
            rollback(there.services, deployment, request, earlier=found)
        return self.last()

    def last(self) -> RunRecord:
        finished = [event for event in self.there.told.events if isinstance(event, RunFinished)]
        run = self.there.services.files.read_run(finished[-1].run_id)
        assert run is not None, "a run that finished has a record"
        return run

    def mutations(self) -> list[str]:
        """
        The steps that the engine applied, in order.
        """
        calls = self.there.world.requests
        return [place.name for place, request in calls if isinstance(request, Apply)]

    def notes(self) -> str:
        return "\n".join(e.message for e in self.there.told.events if isinstance(e, Note))


@contextmanager
def opened(needs: dict[str, list[str]]) -> Iterator[Place]:
    there = Premises(needs)
    try:
        yield Place(there)
    finally:
        there.close()


@pytest.fixture
def place() -> Iterator[Place]:
    with opened(CHAIN) as found:
        yield found


@dataclass(frozen=True)
class Scene:
    """
    A graph, and which steps fail in the apply and in each retry after it.
    """

    needs: dict[str, list[str]]
    rounds: list[list[str]]
    on_failure: OnFailure


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    names = [f"s{number}" for number in range(draw(st.integers(1, 6)))]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:at]), unique=True, max_size=2)) if at else []
        for at, name in enumerate(names)
    }
    some = st.lists(st.sampled_from(names), unique=True, max_size=3)
    rounds = draw(st.lists(some, min_size=1, max_size=3))
    return Scene(needs, rounds, draw(st.sampled_from(list(OnFailure))))


@settings(max_examples=40)
@given(scenes())
def test_retries_do_everything_once_from_what_was_meant_first(scene: Scene) -> None:
    """
    However often it fails and wherever: each step succeeds once and is left alone from then on,
    from the module as it was at the first apply, and each run names the one it repeats.
    """
    with opened(scene.needs) as place:
        done: list[str] = []
        place.fails(*scene.rounds[0])
        run = first = place.apply(scene.on_failure)
        (place.module / "main.tf").write_text("# another version\n")
        for failing in (*scene.rounds[1:], []):
            ok = [row.step for row in run.steps if row.status == "ok"]
            assert not set(ok) & set(done)
            done += ok
            if run.exit_code == 0:
                break
            place.fails(*failing)
            before, run = run, place.again("retry")
            assert run.lineage is not None
            assert run.lineage.from_run == before.run_id
        done += [row.step for row in run.steps if row.status == "ok" and row.step not in done]
        records = [place.there.record(step) for step in scene.needs]

    assert sorted(done) == sorted(scene.needs)
    assert {record.status for record in records if record} == {Status.OK}
    assert len({record.module_digest for record in records if record}) == 1
    assert {row.module_digest for row in first.steps} == {r.module_digest for r in records if r}


def test_equal_intents_are_kept_once(place: Place) -> None:
    """
    A retry means the same as the run that it repeats: the store holds one deployment for both.
    """
    place.fails("server")
    first = place.apply()
    place.fails()
    second = place.again("retry")

    assert first.deployment == second.deployment
    assert len(place.there.store.blobs("deployments/")) == 1


def test_after_a_retry_that_failed_the_retry_is_offered_again(place: Place) -> None:
    """
    With the options of a retry: what it repeats is found by itself.
    """
    place.fails("server")
    place.apply()
    place.again("retry")

    *_, ended = (event for event in place.there.told.events if isinstance(event, RunFinished))
    (command,) = (item.command for item in ended.next if " retry " in item.command)
    assert "--to" not in command


def test_what_is_kept_is_enough(place: Place) -> None:
    """
    What the run meant is in the store before its first mutation, also of steps it never got to.
    """
    place.fails("network")
    run = place.apply()
    stored = place.there.store

    assert run.deployment is not None
    text = stored.blob(deployment_blob(run.deployment))
    assert text is not None
    assert list(parse_deployment(text, run.deployment).steps) == list(CHAIN)
    digests = {row.module_digest for row in run.steps}
    assert [f"snapshots/{digest}" for digest in digests] == stored.blobs("snapshots/")


def test_a_step_that_another_run_has_worked_on_is_not_retried(place: Place) -> None:
    """
    A failed run that was followed by another is not gone back to: `superseded`, nothing mutated.
    """
    place.fails("server")
    first = place.apply()
    second = place.apply()
    before = place.mutations()
    run = place.again("retry", first.run_id)

    assert run.error is not None
    assert run.error.code == "superseded"
    assert second.run_id in run.error.summary
    assert place.mutations() == before


def test_what_was_brought_to_ok_since_is_left_alone(place: Place) -> None:
    """
    A retry of an older run does not take back what a later one has made.
    """
    place.fails("server")
    first = place.apply()
    place.fails()
    place.apply()
    before = place.mutations()
    run = place.again("retry", first.run_id)

    assert run.exit_code == 0
    assert place.mutations() == before
    assert [row.status for row in run.steps] == ["skipped"] * 3


@pytest.mark.parametrize("same", [True, False])
def test_a_run_stands_for_what_it_left_alone_only_if_it_meant_the_same(
    place: Place, same: bool
) -> None:
    """
    A step that was skipped as ok goes back with the run where it had been applied from the same
    deployment; where the blueprint had changed in between the other run has to be named.
    """
    there = place.there
    place.fails("server")
    place.apply()
    place.fails()
    if not same:
        steps = {n: replace(s, timeout=9.0) for n, s in there.deployment.steps.items()}
        there.deployment = replace(there.deployment, steps=steps)
    request = ApplyRequest(options=RunOptions(plan=YES), unfinished=True)
    apply(there.services, there.deployment, request)
    run = place.again("rollback", place.last().run_id, "network")

    assert run.exit_code == (0 if same else 4)
    if not same:
        assert run.error is not None
        assert run.error.code == "not_ok"


def test_failures_in_two_runs_name_none(place: Place) -> None:
    """
    Law: no guessing.
    Where steps failed in different runs somebody has to say which is meant.
    """
    place.fails("network")
    place.apply()
    place.there.has("dns", status="error", run_id="20990101T000000000Z-other")
    with pytest.raises(Refused, match="dns in 2099") as caught:
        place.again("retry")
    assert caught.value.reason == "several_runs"


@pytest.mark.parametrize("run_id", ["20990101T000000000Z-other", None])
def test_a_redeploy_comes_from_a_run_that_there_is(place: Place, run_id: str | None) -> None:
    """
    Neither a run that nobody knows nor none at all: the first attempt is an `apply`.
    """
    request = RedeployRequest(options=RunOptions(plan=YES), from_run=run_id)
    with pytest.raises(Refused) as caught:
        redeploy(place.there.services, place.there.deployment, request)
    assert caught.value.reason == "unknown_run"


def test_a_redeploy_comes_after_the_run_that_all_steps_are_from(place: Place) -> None:
    """
    Where nothing failed it names the run of the records.
    """
    before = place.apply()
    redeploy(
        place.there.services, place.there.deployment, RedeployRequest(options=RunOptions(plan=YES))
    )
    lineage = place.last().lineage

    assert lineage is not None
    assert (lineage.kind, lineage.from_run) == ("redeploy", before.run_id)


def test_one_step_can_be_retried_by_itself(place: Place) -> None:
    """
    A step that never ran has no record: its run is the one that its upstream failed in.
    """
    place.fails("server")
    place.apply()
    place.fails()
    place.again("retry", None, "server")
    run = place.again("retry", place.there.history("network")[-1].run_id, "dns")

    assert run.exit_code == 0
    assert [row.step for row in run.steps] == ["dns"]


def test_a_targeted_run_is_retried_within_its_targets(place: Place) -> None:
    """
    A retry does not do more than the failed run was asked for.
    """
    place.apply(steps=("network",))
    place.fails("server")
    failed = place.apply(steps=("server",), wishes=replace(YES, targets=("fake_object.server",)))
    run = place.again("retry", failed.run_id)

    assert run.arguments["targets"] == ["fake_object.server"]


def test_what_was_to_be_replaced_is_said_and_not_repeated(place: Place) -> None:
    """
    A replacement may have been made before the failure: it is not done twice by itself.
    """
    place.apply(steps=("network",))
    place.fails("server")
    place.apply(steps=("server",), wishes=replace(YES, replace=("fake_object.server",)))
    run = place.again("retry")

    assert "replace" not in run.arguments
    assert "was to replace fake_object.server" in place.notes()


def test_a_rollback_says_what_it_leaves_as_it_is(place: Place) -> None:
    """
    What is there and was not part of the run is not touched, and named.
    """
    place.apply()
    run = place.apply(steps=("network",))
    place.again("rollback", run.run_id)

    assert f"not part of run {run.run_id}, left as they are: dns, server" in place.notes()
