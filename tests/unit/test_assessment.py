"""
What a mutation did and left in doubt: a table of cases, each with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Action, Resources
from orchestrator.domain.record.run_record import Completed, InFlight, Lease
from orchestrator.domain.transitions.assessment import Assessment, RefusalRules, not_deleted
from tests.fakes.clock import START
from tests.fakes.entries import OWNER
from tests.fakes.journals import journal, planned, refs, state


@dataclass(frozen=True)
class Case:
    why: str
    plan: list[str]
    lines: list[str]
    after: PulledState | None
    before: list[str] = field(default_factory=list)
    whole: bool = True
    doubt: list[str] = field(default_factory=list)
    sorted_as: dict[str, list[str]] = field(default_factory=dict)
    refused_on: list[str] = field(default_factory=list)
    retried_on: list[str] = field(default_factory=list)


CREATE = ["create s.a"]
BEGAN, DONE, FAILED = "began create s.a", "done create s.a id-1", "failed create s.a"

CASES = [
    Case(
        "a create that completed and is in state is created",
        CREATE, [BEGAN, DONE], state(["s.a id-1"]), sorted_as={"created": ["s.a"]},
    ),
    Case(
        "an errored create that the state holds is known: it failed and is tainted, not in doubt",
        CREATE, [BEGAN, FAILED, "error s.a provisioner failed"], state(["s.a id-1 tainted"]),
        sorted_as={"created": ["s.a"], "failed": ["s.a"], "tainted": ["s.a"]},
    ),
    Case(
        "an errored create that the state does not hold may exist",
        CREATE, [BEGAN, FAILED, "error s.a connection reset by peer"], state(), doubt=["s.a"],
        sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "a provider that says it made nothing is believed",
        CREATE, [BEGAN, FAILED, "error s.a creating: InvalidParameterValue: zone"], state(),
        sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "already exists is never a refusal: it may be ours",
        CREATE, [BEGAN, FAILED, "error s.a InvalidParameter: already exists"], state(),
        doubt=["s.a"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "an error that names no address refuses nothing: a crashed provider",
        CREATE, [BEGAN, FAILED, "error - AccessDenied"], state(), doubt=["s.a"],
        sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "the step's own refusals win over the shipped caution",
        CREATE, [BEGAN, FAILED, "error s.a 503 capacity"], state(), refused_on=["503 capacity"],
        sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "an unknown action that was interrupted may have done anything",
        ["unknown s.a"], ["began unknown s.a"], state(["s.a id-1"]), before=["s.a id-1"],
        whole=False, doubt=["s.a"],
    ),
    Case(
        "an unknown action that ended has changed the object, as far as one knows",
        ["unknown s.a"], ["began unknown s.a", "done unknown s.a"], state(["s.a id-1"]),
        before=["s.a id-1"], sorted_as={"updated": ["s.a"]},
    ),
    Case(
        "what an unknown action took out of the state is alive, for all we know",
        ["unknown s.a"], ["began unknown s.a", "done unknown s.a"], state(), before=["s.a id-1"],
        doubt=["s.a"], sorted_as={"updated": ["s.a"]},
    ),
    Case(
        "a create that began and never ended may exist",
        CREATE, [BEGAN], state(), whole=False, doubt=["s.a"],
    ),
    Case(
        "a create that never ended but is in state is known to exist",
        CREATE, [BEGAN], state(["s.a id-1"]), whole=False, sorted_as={"created": ["s.a"]},
    ),
    Case(
        "with a partial journal every planned create that the state does not hold is in doubt",
        ["create s.a", "create s.b"], [BEGAN, DONE], state(["s.a id-1"]), whole=False,
        doubt=["s.b"], sorted_as={"created": ["s.a"]},
    ),
    Case(
        "without any journal too",
        CREATE, [], state(), whole=False, doubt=["s.a"],
    ),
    Case(
        "with a complete journal a create that never began was not attempted",
        ["create s.a", "create s.b"], [BEGAN, FAILED, "error s.a AccessDenied"], state(),
        sorted_as={"failed": ["s.a"], "not_attempted": ["s.b"]},
    ),
    Case(
        "created by the journal and missing in state: alive, with the id that was returned",
        CREATE, [BEGAN, DONE], state(), doubt=["s.a"],
    ),
    Case(
        "an update that ended is updated",
        ["update s.a"], ["began update s.a", "done update s.a"], state(["s.a id-1"]),
        before=["s.a id-1"], sorted_as={"updated": ["s.a"]},
    ),
    Case(
        "an update that errored failed; it is not in doubt",
        ["update s.a"], ["began update s.a", "failed update s.a"], state(["s.a id-1"]),
        before=["s.a id-1"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "an object that left the state in its update is not forgotten",
        ["update s.a"], ["began update s.a", "failed update s.a"], state(), before=["s.a id-1"],
        doubt=["s.a"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "an update that never ended is in doubt",
        ["update s.a"], ["began update s.a"], state(["s.a id-1"]), before=["s.a id-1"],
        whole=False, doubt=["s.a"],
    ),
    Case(
        "a delete that never ended is in doubt while the state holds the object",
        ["delete s.a"], ["began delete s.a"], state(["s.a id-1"]), before=["s.a id-1"],
        whole=False, doubt=["s.a"],
    ),
    Case(
        "a delete whose object has left the state ended",
        ["delete s.a"], ["began delete s.a"], state(), before=["s.a id-1"], whole=False,
        sorted_as={"deleted": ["s.a"]},
    ),
    Case(
        "a replacement with another id replaced",
        ["replace s.a"],
        ["began delete s.a", "done delete s.a", BEGAN, "done create s.a id-2"],
        state(["s.a id-2"]), before=["s.a id-1"], sorted_as={"replaced": ["s.a"]},
    ),
    Case(
        "a replacement that lost its create deleted the old and may have made the new",
        ["replace s.a"],
        ["began delete s.a", "done delete s.a", BEGAN, FAILED, "error s.a timed out"],
        state(), before=["s.a id-1"], doubt=["s.a"],
        sorted_as={"deleted": ["s.a"], "failed": ["s.a"]},
    ),
    Case(
        "create before destroy with a failed delete leaves the old one deposed, in the inventory",
        ["replace s.a"],
        [BEGAN, "done create s.a id-2", "began delete s.a", "failed delete s.a"],
        state(["s.a id-2", "s.a id-1 deposed=d1"]), before=["s.a id-1"],
        sorted_as={"created": ["s.a"], "failed": ["s.a"]},
    ),
    Case(
        "no event tells how that delete ended, but an engine that ends in order has waited for it",
        ["replace s.a"],
        [BEGAN, "done create s.a id-2", "began delete s.a", "error - DependencyViolation"],
        state(["s.a id-2", "s.a id-1 deposed=d1"]), before=["s.a id-1"],
        sorted_as={"created": ["s.a"], "failed": ["s.a"]},
    ),
    Case(
        "an engine that was interrupted did not wait: in doubt",
        ["replace s.a"],
        [BEGAN, "done create s.a id-2", "began delete s.a", "error - operation canceled"],
        state(["s.a id-2", "s.a id-1 deposed=d1"]), before=["s.a id-1"],
        doubt=["s.a"], sorted_as={"created": ["s.a"]},
    ),
    Case(
        "a server error proves nothing, also where it says that it throttles",
        CREATE, [BEGAN, FAILED, "error s.a StatusCode: 503, RequestLimitExceeded: slow down"],
        state(), doubt=["s.a"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "but a throttled request that `retry` names was not carried out",
        CREATE, [BEGAN, FAILED, "error s.a StatusCode: 503, RequestLimitExceeded: slow down"],
        state(), retried_on=["RequestLimitExceeded"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "what `retry` names made nothing: it is there to be tried again",
        CREATE, [BEGAN, FAILED, "error s.a OutOfTrays: come back"], state(),
        retried_on=["OutOfTrays"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "but for what says that the answer was lost, however wide its pattern",
        CREATE, [BEGAN, FAILED, "error s.a connection reset by peer"], state(),
        retried_on=["."], doubt=["s.a"], sorted_as={"failed": ["s.a"]},
    ),
    Case(
        "a replacement that keeps its id is told by the journal",
        ["replace s.a"],
        ["began delete s.a", "done delete s.a", BEGAN, "done create s.a id-1"],
        state(["s.a id-1"]), before=["s.a id-1"], sorted_as={"replaced": ["s.a"]},
    ),
    Case(
        "the delete of a deposed object and the update of the one that took its place are two",
        ["delete s.a", "update s.a"],
        ["began delete s.a", "done delete s.a", "began update s.a"],
        state(["s.a id-2"]), before=["s.a id-2", "s.a id-1 deposed=d1"], whole=False,
        doubt=["s.a"], sorted_as={"deleted": ["s.a"]},
    ),
    Case(
        "a deposed object whose delete was cut is in doubt while the state holds it",
        ["delete s.a", "replace s.a"],
        ["began delete s.a", BEGAN, "done create s.a id-3"],
        state(["s.a id-3", "s.a id-2 deposed=d2", "s.a id-1 deposed=d1"]),
        before=["s.a id-2", "s.a id-1 deposed=d1"], whole=False,
        doubt=["s.a"], sorted_as={"created": ["s.a"]},
    ),
    Case(
        "a destroy that was cut after one of two objects at an address deleted only that",
        ["delete s.a"],
        ["began delete s.a", "began delete s.a", "done delete s.a"],
        state(["s.a id-1 deposed=d1"]), before=["s.a id-2", "s.a id-1 deposed=d1"], whole=False,
        doubt=["s.a"],
    ),
    Case(
        "the delete of a deposed object alone leaves the current one alone",
        ["delete s.a"], ["began delete s.a", "done delete s.a"], state(["s.a id-2"]),
        before=["s.a id-2", "s.a id-1 deposed=d1"], sorted_as={"deleted": ["s.a"]},
    ),
    Case(
        "a plan that names the deposed object tells the two deletes at an address apart",
        ["delete s.a", "delete s.a deposed=d1"],
        ["began delete s.a", "done delete s.a", "began delete s.a", "failed delete s.a"],
        state(["s.a id-2"]), before=["s.a id-2", "s.a id-1 deposed=d1"],
        sorted_as={"deleted": ["s.a (deposed d1)"], "failed": ["s.a"]},
    ),
    Case(
        "of two deletes at an address that were cut, each in the state is in doubt",
        ["delete s.a", "delete s.a deposed=d1"],
        ["began delete s.a", "began delete s.a"],
        state(["s.a id-2", "s.a id-1 deposed=d1"]),
        before=["s.a id-2", "s.a id-1 deposed=d1"], whole=False, doubt=["s.a", "s.a"],
    ),
    Case(
        "with nothing left of the journal an update or a delete may still be under way",
        ["update s.a", "delete s.b", "delete s.c"], [], state(["s.a id-1", "s.b id-2"]),
        before=["s.a id-1", "s.b id-2", "s.c id-3"], whole=False, doubt=["s.a", "s.b"],
        sorted_as={"deleted": ["s.c"]},
    ),
    Case(
        "without a provider state all that the journal tells is in doubt",
        ["create s.a", "create s.b", "update s.c", "delete s.d", "create s.e"],
        [BEGAN, DONE, "began create s.b", "failed create s.b", "began update s.c",
         "done update s.c", "began delete s.d", "done delete s.d"], None,
        before=["s.c id-3", "s.d id-4"], doubt=["s.a", "s.b", "s.c", "s.d"],
        sorted_as={"created": ["s.a"], "failed": ["s.b"], "updated": ["s.c"], "deleted": ["s.d"],
                   "not_attempted": ["s.e"]},
    ),
    Case(
        "reads and no-ops have no fate",
        ["read d.a", "noop s.b"], [], state(),
    ),
]  # fmt: skip


def assess(*evidence: Any) -> Resources:
    return Assessment(*evidence).resources()


def _assessed(case: Case) -> Resources:
    return assess(
        planned(*case.plan),
        journal(*case.lines, whole=case.whole),
        refs(*case.before),
        case.after,
        RefusalRules(tuple(case.refused_on), tuple(case.retried_on)),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_doubts(case: Case) -> None:
    """
    Exactly these objects are in doubt, for the reason that names the case.
    """
    assert [doubt.address for doubt in _assessed(case).in_doubt] == case.doubt


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_fates(case: Case) -> None:
    """
    Every planned object is sorted by its fate, and by no other.
    """
    found = _assessed(case)
    lists = ("created", "updated", "replaced", "deleted", "failed", "not_attempted", "tainted")
    assert {name: list(getattr(found, name)) for name in lists if getattr(found, name)} == (
        case.sorted_as
    )


def told(*in_flight: InFlight, completed: tuple[Completed, ...] = ()) -> Lease:
    return Lease(run_id="run-1", owner=OWNER, in_flight=in_flight, completed=completed)


def done(action: Action, id_: str) -> Completed:
    return Completed(target="t", address="s.a", action=action, started_at=START, id=id_)


def test_what_a_heartbeat_told_completed_is_known_by_its_id() -> None:
    """
    Where files are gone and the provider state was not written since: a create is in doubt with
    the id that it returned; an update that was told to be done is none.
    """
    heard = journal(whole=False).with_heartbeat(told(completed=(done("create", "id-1"),)))
    (doubt,) = assess(planned("create s.a"), heard, (), state()).in_doubt
    assert (doubt.id, doubt.started_at) == ("id-1", START)
    assert doubt.why == "it was created, and the provider state does not hold it"

    heard = journal(whole=False).with_heartbeat(told(completed=(done("update", "id-1"),)))
    found = assess(planned("update s.a"), heard, refs("s.a id-1"), state(["s.a id-1"]))
    assert (found.in_doubt, found.updated) == ((), ("s.a",))


def test_a_state_from_before_does_not_hold_what_replaced_its_object() -> None:
    """
    Its id is that of the object that was replaced: what was made is in doubt. Where a provider
    gives the same id again, the state holds it.
    """
    for made, doubts in (("id-2", ["id-2"]), ("id-1", [])):
        told_ = told(completed=(done("delete", "id-1"), done("create", made)))
        heard = journal(whole=False).with_heartbeat(told_)
        found = assess(planned("replace s.a"), heard, refs("s.a id-1"), state(["s.a id-1"]))
        assert [doubt.id for doubt in found.in_doubt] == doubts


def test_one_of_two_objects_at_an_address_is_done() -> None:
    """
    A delete that is told as under way is, although another one at its address is done.
    """
    flight = InFlight(target="t", address="s.a", action="delete", started_at=START)
    heard = journal(whole=False).with_heartbeat(told(flight, completed=(done("delete", "d-1"),)))
    found = assess(planned("delete s.a"), heard, refs("s.a id-1"), state(["s.a id-1"]))
    assert [doubt.why for doubt in found.in_doubt] == ["its delete began and never ended"]


def test_what_was_in_flight_began() -> None:
    """
    Where files are gone the last heartbeat tells what was under way, and since when.
    """
    flight = InFlight(target="t", address="s.a", action="delete", started_at=START)
    heard = journal(whole=False).with_heartbeat(told(flight))
    found = assess(planned("delete s.a"), heard, refs("s.a id-1"), state(["s.a id-1"]))
    (doubt,) = found.in_doubt
    assert (doubt.started_at, doubt.why) == (START, "its delete began and never ended")


def test_what_the_journal_tells_of_a_flight_is_believed() -> None:
    """
    The heartbeat is older than the messages.
    """
    flight = InFlight(target="t", address="s.a", action="create", started_at=START)
    heard = journal(BEGAN, DONE, whole=False).with_heartbeat(told(flight))
    assert assess(planned("create s.a"), heard, (), state(["s.a id-1"])).in_doubt == ()


def test_a_doubt_keeps_the_id_that_the_provider_returned() -> None:
    """
    Law: failure keeps what is known.
    Ids that the failed run did return are kept.
    """
    found = assess(planned("create s.a"), journal(BEGAN, DONE), (), state())
    assert found.in_doubt[0].id == "id-1"


def test_the_inventory_is_what_the_state_holds() -> None:
    """
    Deposed objects exist too: they are listed, and marked.
    """
    after = state(["s.a id-2", "s.a id-1 deposed=d1"])
    found = assess((), journal(), (), after)
    assert [(ref.id, ref.deposed) for ref in found.inventory] == [("id-2", None), ("id-1", "d1")]


def test_without_a_state_the_inventory_is_the_one_from_before() -> None:
    """
    Not being able to read is not the same as nothing there.
    """
    found = assess((), journal(), refs("s.a id-1"), None)
    assert [ref.address for ref in found.inventory] == ["s.a"]


@pytest.mark.parametrize(("ended_well", "left"), [(False, ["s.b", "s.b"]), (True, [])])
def test_without_a_state_the_journal_tells_what_a_destroy_has_left(
    left: list[str], *, ended_well: bool
) -> None:
    """
    A completed delete is one; of a deposed object and its successor it may be either's.
    """
    known = refs("s.a id-1", "s.b id-2", "s.b id-3")
    told = journal("done delete s.a", "done delete s.b")
    found = not_deleted(known, told, ended_well=ended_well)
    assert [ref.address for ref in found] == left
