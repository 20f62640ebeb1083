"""
What forbids a mutation although the input is right.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.app.steps.engine_plan import EnginePlan
from orchestrator.app.steps.guards import (
    check_adopted,
    check_adopted_records,
    check_doubts,
    check_missing_objects,
    check_not_moved,
    check_state,
    check_vanished,
)
from orchestrator.domain.events.events import ResourceDrift
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_query.query import refresh_result
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import AdoptedObject, Doubt, Resources
from orchestrator.domain.record.record import OperationRecord, ProviderState
from orchestrator.domain.recovery.command_line import RecordedBlueprint
from orchestrator.domain.transitions.doubts import StateObservation
from orchestrator.errors import InDoubt, Refused
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import journal, refs, state

BOUND = ProviderState(backend="local", location="x", lineage="lin-1", serial=3)
RECONCILE = "orchestrator reconcile web --step network"
KNOWN = entry(provider_state=BOUND, resources=Resources(inventory=refs("s.a id-1")))


@pytest.mark.parametrize(
    ("record", "found", "reason"),
    [
        (None, state(["s.a id-1"]), "unrecorded_state"),
        (entry(status="destroyed"), state(["s.a id-1"]), "unrecorded_state"),
        (KNOWN, state(["s.a id-1"], lineage="lin-2"), "lineage"),
        (KNOWN, state(["s.a id-1"], serial=2), "serial_back"),
    ],
)
def test_another_state_is_refused(record: object, found: object, reason: str) -> None:
    """
    Law: state moved without us.
    State without a record, another lineage and one gone back are refused.
    """
    with pytest.raises(Refused) as caught:
        check_state("web/prod/network", record, found, RECONCILE)  # type: ignore[arg-type]
    assert caught.value.reason == reason


def test_a_missing_state_is_a_doubt_about_every_recorded_object() -> None:
    """
    Law: state moved without us.
    That there is no provider state is no evidence about objects: each is named with its id.
    """
    with pytest.raises(InDoubt, match=r"the provider state is missing.*s\.a \(id-1\)"):
        check_state("t", KNOWN, state(lineage=None, serial=0), RECONCILE)


def test_a_state_that_moved_on_is_told() -> None:
    """
    Law: state moved without us.
    A higher serial is shown.
    """
    said = check_state("t", KNOWN, state(["s.a id-1"], serial=5), RECONCILE)
    assert said == "the provider state has moved from serial 3 to 5 without this tool"


@pytest.mark.parametrize("record", [None, entry(status="absent")])
def test_an_empty_state_may_be_applied_to(record: object) -> None:
    """
    Nothing recorded and nothing there is the normal beginning.
    """
    assert check_state("t", record, state(lineage=None, serial=0), RECONCILE) is None  # type: ignore[arg-type]


def vanishing(*addresses: str) -> Journal:
    return Journal.of([ResourceDrift(a, "delete", "s") for a in addresses], whole=True)


def looked(found: PulledState, journal: Journal, **how: object) -> None:
    check_vanished(
        "t",
        found,
        refresh_result(journal, found, destroying=bool(how.get("destroying")), targeted=False),
        accepted=str(how["accepted"]) if "accepted" in how else None,
    )


def test_everything_vanished_is_refused() -> None:
    """
    Law: state moved without us.
    Wrong region, account or credentials look like this.
    """
    with pytest.raises(Refused, match="every recorded object has vanished"):
        looked(state(["s.a 1", "s.b 2"]), vanishing("s.a", "s.b"))


def test_what_a_destroy_would_not_delete_has_vanished() -> None:
    """
    The plan of a destroy tells of no drift; it deletes nothing of what the refresh lost.
    """
    with pytest.raises(Refused, match="vanished"):
        looked(state(["s.a 1"]), vanishing(), destroying=True)


def test_a_reason_accepts_that_everything_vanished() -> None:
    """
    Law: state moved without us.
    Only a person can say so.
    """
    looked(state(["s.a 1"]), vanishing("s.a"), accepted="deleted by hand")


@pytest.mark.parametrize("lost", [("s.a",), ()])
def test_a_part_that_vanished_is_no_wrong_scope(lost: tuple[str, ...]) -> None:
    """
    The same provider configuration saw others of the target.
    """
    looked(state(["s.a 1", "s.b 2"]), vanishing(*lost))


def test_one_configuration_in_the_wrong_scope_is_refused() -> None:
    """
    Law: state moved without us.
    What another region's configuration sees says nothing of its objects.
    """
    held = state(["s.a 1 by=eu", "s.b 2 by=eu", "s.c 3 by=us"])
    with pytest.raises(
        Refused, match=r"by=us finds these no more, nor any other of their types: s\.c"
    ):
        looked(held, vanishing("s.c"))


def test_a_deposed_object_that_vanished_beside_its_successor_is_no_wrong_scope() -> None:
    """
    Two objects at one address: the one that was found vouches for the configuration.
    """
    looked(state(["s.a 1 deposed=d1", "s.a 2"]), vanishing())


ONE_LEFT = state(["s.b id-2"], serial=9)
BOTH = entry(provider_state=BOUND, resources=Resources(inventory=refs("s.a id-1", "s.b id-2")))


@pytest.mark.parametrize(
    "found", [ONE_LEFT, state(serial=9), state(["s.a id-9", "s.b id-2"], serial=9)]
)
def test_nothing_is_applied_over_a_state_that_lost_a_recorded_object(found: PulledState) -> None:
    """
    Law: state moved without us.
    It may be alive: by type and id, whatever holds its address now.
    """
    with pytest.raises(InDoubt, match=r"s\.a \(id-1\)"):
        check_missing_objects("t", BOTH, found, RECONCILE, destroying=False)


def test_an_object_that_took_the_address_of_another_is_not_destroyed_in_its_place() -> None:
    """
    Law: not ours until proven.
    The stranger would be deleted, and ours would live on unnamed.
    """
    found = state(["s.a id-9", "s.b id-2"], serial=9)
    with pytest.raises(InDoubt, match=r"s\.a is id-9 now"):
        check_missing_objects("t", BOTH, found, RECONCILE, destroying=True)


def test_a_destroy_goes_on_beside_an_object_that_left_the_state() -> None:
    """
    Law: destroyed means confirmed.
    It takes down the rest, and leaves that one in doubt.
    """
    check_missing_objects("t", BOTH, ONE_LEFT, RECONCILE, destroying=True)


def test_an_object_that_moved_to_another_address_is_not_missing() -> None:
    """
    A `moved` block keeps type and id.
    """
    found = state(["s.c id-1", "s.b id-2"], serial=9)
    check_missing_objects("t", BOTH, found, RECONCILE, destroying=False)


def test_what_is_in_doubt_already_does_not_stop_a_destroy_again() -> None:
    """
    Law: destroyed means confirmed.
    The destroy over it ends in error, and names it.
    """
    doubt = Doubt(address="s.a", action="forget", id="id-1", why="it left")
    held = Resources(inventory=refs("s.a id-1"), in_doubt=(doubt,))
    record = entry(status="error", provider_state=BOUND, resources=held)
    check_missing_objects("t", record, state(["s.a id-9"], serial=9), RECONCILE, destroying=True)


def doubting(action: str) -> OperationRecord:
    doubt = Doubt.model_validate({"address": "s.a", "action": action, "why": "it began"})
    return entry(status="error", resources=Resources(in_doubt=(doubt,)))


def look(age: float, *, refreshed: str = "refreshed") -> StateObservation:
    at = START + timedelta(seconds=age)
    return StateObservation(
        at=at, run_id="r", settling_time=60.0, refreshed=refreshed == "refreshed"
    )


@pytest.mark.parametrize(
    ("action", "age"), [("create", 0), ("create", 9999), ("delete", 59), ("forget", 9999)]
)
def test_a_doubt_forbids_an_apply(action: str, age: int) -> None:
    """
    Law: no guessing.
    No blind retry; what only a person can know does not age away.
    """
    with pytest.raises(InDoubt, match=r"s\.a"):
        check_doubts(doubting(action), look(age), "reconcile")


@pytest.mark.parametrize("action", ["update", "delete"])
def test_a_refresh_answers_what_is_in_state(action: str) -> None:
    """
    After the settling time the next plan's refresh tells what an update or delete did.
    """
    check_doubts(doubting(action), look(60), "reconcile")


def test_without_a_refresh_nothing_is_answered() -> None:
    """
    Law: no guessing.
    ``--refresh=false`` asks nobody.
    """
    with pytest.raises(InDoubt):
        check_doubts(doubting("update"), look(9999, refreshed="no"), "reconcile")


@pytest.mark.parametrize(("record", "at"), [(None, 1), (entry(), 0), (entry(sequence=3), 2)])
def test_what_was_offered_on_another_entry_is_refused(
    record: OperationRecord | None, at: int
) -> None:
    """
    Law: offers are re-checked.
    An action is refused where the step has moved on, and it is told what it is now.
    """
    with pytest.raises(Refused) as caught:
        check_not_moved(RecordedBlueprint("web", "prod"), "network", record, at)
    assert caught.value.reason == "moved_on"
    assert caught.value.hint == "orchestrator recover web -e prod --step network"
    now = f"entry {record.sequence}, `ok`" if record else "there is no record of it"
    assert now in caught.value.message


@pytest.mark.parametrize(("record", "at"), [(None, 0), (entry(sequence=3), 3)])
def test_what_was_offered_on_the_newest_entry_is_done(
    record: OperationRecord | None, at: int
) -> None:
    """
    Law: offers are re-checked.
    ``--at`` holds where nothing has been recorded since.
    """
    check_not_moved(RecordedBlueprint("web", "prod"), "network", record, at)


ADOPTED = AdoptedObject(
    address="s.a", type="s", id="id-1", ownership="foreign", why="it existed", run_id="r", at=START
)
WITH_ADOPTED = KNOWN.model_copy(update={"adopted": (ADOPTED,)})


@pytest.mark.parametrize(
    ("plan", "held", "refused"),
    [
        ("delete s.a", "s.a id-1", True),
        ("replace s.a", "s.a id-1", True),
        ("update s.a", "s.a id-1", False),
        ("delete s.b", "s.a id-1", False),
        ("delete s.a", "s.a id-2", False),
        ("delete s.b from=s.a", "s.b id-1", True),
        ("replace t.b from=s.a", "t.b id-1", True),
        ("delete s.b", "s.b id-1", True),
        ("delete s.a", "s.a id-1 deposed=1", True),
    ],
)
def test_what_was_adopted_is_destroyed_only_with_a_reason(
    plan: str, held: str, *, refused: bool
) -> None:
    """
    Law: not ours until proven.
    By a destroy and by an apply, also where it has moved, by this plan or an earlier one; another
    object at its address is another matter.
    """
    told = journal(f"plan {plan}")
    destroyed = EnginePlan("apply", Path("plan"), told, state([held]), changed=True).destroyed
    check_adopted(WITH_ADOPTED, destroyed, accepted="it may go")
    if not refused:
        check_adopted(WITH_ADOPTED, destroyed, accepted=None)
        return
    with pytest.raises(Refused, match=r"[st]\.[ab] \(id-1\): it existed") as caught:
        check_adopted(WITH_ADOPTED, destroyed, accepted=None)
    assert "--accept-adopted REASON" in caught.value.hint


def test_a_destroy_names_what_was_adopted_before_it_destroys_anything() -> None:
    """
    Of all its steps, from their records.
    """
    records = {"one": KNOWN, "two": WITH_ADOPTED, "three": None}
    check_adopted_records(records, records, accepted="it may go")
    check_adopted_records(records, ["one", "three"], accepted=None)
    with pytest.raises(Refused):
        check_adopted_records(records, records, accepted=None)
    inventory = WITH_ADOPTED.resources.model_copy(update={"inventory": refs("s.b id-1")})
    moved = WITH_ADOPTED.model_copy(update={"resources": inventory})
    with pytest.raises(Refused, match=r"s\.b \(id-1\)"):
        check_adopted_records({"two": moved}, ["two"], accepted=None)
