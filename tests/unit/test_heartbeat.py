"""
What the heartbeat of a run tells of its mutations, for other machines and for those who settle it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from orchestrator.app.session import Session
from orchestrator.app.steps.mutation import mutate, not_started, relay
from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyStart,
    Message,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import NAMED, Lease
from orchestrator.domain.target import Target
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, Fenced, Spooled, Stopped, StoreUnavailable
from tests.fakes.clock import START, SetStop
from tests.fakes.entries import OWNER, claim, entry, run_record
from tests.fakes.services import Premises

RUN = "20261129T000000000Z-000001"
WEB = Target("web", "default", "web")
MARKER = entry(WEB, status="running", active_command="apply", run_id=RUN)


@pytest.fixture
def premises() -> Iterator[Premises]:
    found = Premises({"web": []})
    yield found
    found.close()


@pytest.fixture
def session(premises: Premises) -> Session:
    found = Session(premises.services, premises.deployment, run_record(RUN, environment="default"))
    found.take_claim()
    return found


def made(count: int) -> Iterator[Message]:
    """
    So many objects are created, one after the other.
    """
    for number in range(count):
        yield ApplyStart(f"s.a[{number}]", "create", START)
        yield ApplyComplete(f"s.a[{number}]", "create", START, f"id-{number}")


def told(session: Session) -> Lease:
    """
    The heartbeat with which a run would begin now.
    """
    with session.alive():
        found = session.services.store.lease(RUN)
    assert found is not None
    return found


def test_many_objects_are_counted(session: Session) -> None:
    """
    The newest that are done are named, the others counted; what failed is neither done nor under
    way.
    """
    observe = partial(relay, session, MARKER)
    for message in made(NAMED + 2):
        observe(message)
    observe(ApplyStart("s.b", "update", START))
    observe(ApplyStart("s.c", "create", START))
    observe(ApplyErrored("s.c", "create", START))
    lease = told(session)

    assert [item.id for item in lease.completed] == [f"id-{n}" for n in range(2, NAMED + 2)]
    assert lease.more_completed == {"web/default/web": 2}
    assert [item.address for item in lease.in_flight] == ["s.b"]
    assert {item.sequence for item in (*lease.completed, *lease.in_flight)} == {MARKER.sequence}


def test_what_an_earlier_mutation_did_is_no_evidence_of_this_one(session: Session) -> None:
    """
    The run is killed in its second attempt, before a heartbeat: what the last one told is about the
    first. A lease of an earlier version does not say which one.
    """
    observe = partial(relay, session, MARKER)
    for message in made(1):
        observe(message)
    lease = told(session)
    flight = {"target": str(WEB), "address": "s.a", "action": "create", "started_at": str(START)}
    old = Lease.model_validate({"run_id": "r", "owner": OWNER, "in_flight": [flight]})

    assert len(lease.of(str(WEB), MARKER.sequence).completed) == 1
    assert lease.of(str(WEB), MARKER.sequence + 2).completed == ()
    assert lease.of("web/default/db").completed == ()
    assert len(old.of(str(WEB), 7).in_flight) == 1


@pytest.mark.parametrize("away", [False, True])
def test_it_tells_until_the_outcome_is_recorded(
    premises: Premises, session: Session, *, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where the outcome waits on this machine, the lease goes on to tell what was done.
    """
    observe = partial(relay, session, MARKER)

    def unavailable(record: OperationRecord) -> None:
        raise StoreUnavailable("the store is away")

    def call() -> MutationEvidence:
        for message in made(1):
            observe(message)
        if away:
            monkeypatch.setattr(premises.store, "append", unavailable)
        return not_started("a test")

    def conclude(marker: OperationRecord, evidence: MutationEvidence) -> OperationRecord:
        return entry(WEB, sequence=2, run_id=RUN)

    try:
        mutate(session, MARKER, call, conclude, None)
    except Spooled:
        assert away

    assert len(told(session).completed) == (1 if away else 0)


@pytest.mark.parametrize("why", ["another run has the claim", "what it means to do is not stored"])
def test_a_mutation_that_must_not_begin_leaves_no_marker(
    premises: Premises, session: Session, why: str
) -> None:
    """
    Law: intent first.
    Neither is the engine called, nor does a record say that it might have been.
    """
    begun: list[str] = []

    def call() -> MutationEvidence:
        begun.append("call")
        return not_started("a test")

    def store() -> None:
        if why == "another run has the claim":
            other = claim("R2", environment="default")
            current = premises.store.claim("web", "default")
            assert premises.store.take_claim(other, replaces=current) is None
        else:
            raise StoreUnavailable("the store is away")

    with pytest.raises(Fenced if why == "another run has the claim" else StoreUnavailable):
        mutate(session, MARKER, call, lambda marker, _: marker, None, store=store)

    assert begun == []
    assert premises.record("web") is None


@pytest.mark.parametrize("wait", [False, True])
def test_a_signal_ends_the_wait_for_a_claim(
    session: Session, premises: Premises, wait: bool
) -> None:
    """
    What is told is the signal, not the claim that was waited for, nor how to wait for it.
    """
    services = replace(premises.services, stop=SetStop(after=1 + 2 * wait))
    late = Session(services, premises.deployment, run_record("late", environment="default"))
    with pytest.raises(Stopped, match="stopped by a signal"):
        late.take_claim(wait=wait)

    assert session.services.store.claim("web", "default") is not None


def test_a_silent_run_elsewhere_keeps_its_claim_until_it_is_taken_over(premises: Premises) -> None:
    """
    Nobody can tell from here whether it is dead: a person has to say so. Where that turns out to be
    wrong before anything was recorded, the claim goes back.
    """
    assert premises.store.take_claim(claim("R2", environment="default")) is None
    run = run_record(RUN, environment="default")
    mine = Session(premises.services, premises.deployment, run)

    with pytest.raises(Busy):
        mine.take_claim()
    mine.take_claim(takeover="its machine was switched off")

    taken = premises.store.claim("web", "default")
    mine.hand_back_claim()
    returned = premises.store.claim("web", "default")

    assert taken is not None
    assert (taken.run_id, mine.takes_over_from) == (RUN, ["R2"])
    assert returned is not None
    assert returned.run_id == "R2"
