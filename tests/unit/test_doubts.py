"""
Which doubts evidence has answered, and what a destroy may not call gone.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.provider_query.query import RefreshResult
from orchestrator.domain.record.objects import Doubt, Resources
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.assessment import RefusalRules
from orchestrator.domain.transitions.doubts import (
    StateObservation,
    lost_objects,
    missing_from_state,
    settle_doubts,
    unanswered_deletes,
)
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import planned, refs, state


def doubting(action: str) -> OperationRecord:
    known = {"id": "id-1"} if action == "forget" else {}
    doubt = Doubt.model_validate({"address": "s.a", "action": action, "why": "x", **known})
    held = refs("s.a id-1") if action != "forget" else ()
    return entry(status="error", resources=Resources(in_doubt=(doubt,), inventory=held))


def look(**changes: Json) -> StateObservation:
    return StateObservation(
        at=START + timedelta(hours=1), run_id="run-2", settling_time=60.0, **changes
    )


CASES = [
    ("create", {}, None, "a create is not answered by time"),
    ("create", {"refreshed": True}, None, "a refresh knows only what is in state"),
    ("create", {"ids": {"s.a": "id-9"}}, "in_state", "the state holds it now"),
    ("create", {"ids": {"s.a": "id-1"}}, None, "the state holds what it held before"),
    ("forget", {"ids": {"s.a": "id-1"}}, "in_state", "it came back"),
    ("forget", {"ids": {"s.a": "id-9"}}, None, "another object took its address"),
    ("forget", {"refreshed": True}, None, "what left the state is not refreshed"),
    ("forget", {"accepted": True, "reason": "r"}, None, "that is about what a refresh lost"),
    ("create", {"accepted": True, "reason": "r"}, None, "that says nothing of a lost create"),
    ("update", {"refreshed": True}, "refreshed", "the refresh tells"),
    ("delete", {"refreshed": True}, "refreshed", "the refresh tells"),
    ("update", {}, None, "nobody asked the provider"),
    ("unknown", {"refreshed": True}, None, "it may have made what no state holds"),
    ("unknown", {"refreshed": True, "ids": {"s.a": "id-1"}}, "refreshed", "the refresh tells"),
    ("create", {"forgotten": ("s.a",), "reason": "r"}, "forgotten", "a person forgets it"),
]


@pytest.mark.parametrize(
    ("action", "seen", "how", "why"), CASES, ids=[f"{c[0]}: {c[3]}" for c in CASES]
)
def test_answers(action: str, seen: dict[str, Json], how: str | None, why: str) -> None:
    """
    Each kind of doubt has its own evidence.
    """
    record = doubting(action)
    still_open, settled = settle_doubts(record, look(**seen))
    found = [item.how for item in settled]
    assert found == ([how] if how else []), why
    assert (not still_open) == bool(how)


@pytest.mark.parametrize("action", ["update", "delete"])
def test_a_dead_engine_may_still_have_a_request_under_way(action: str) -> None:
    """
    Before the settling time has passed a refresh answers nothing.
    """
    early = StateObservation(
        at=START + timedelta(seconds=59), run_id="r", settling_time=60.0, refreshed=True
    )
    assert settle_doubts(doubting(action), early)[1] == ()


def test_the_age_of_a_doubt_is_its_own() -> None:
    """
    An entry that was written since (a reconcile, a verify) does not make a doubt younger.
    """
    doubt = Doubt(address="s.a", action="update", why="x", at=START)
    late = START + timedelta(minutes=5)
    record = entry(status="error", updated_at=late, resources=Resources(in_doubt=(doubt,)))
    seen = StateObservation(at=late, run_id="r", settling_time=60.0, refreshed=True)
    assert [item.how for item in settle_doubts(record, seen)[1]] == ["refreshed"]


def test_what_a_person_says_is_recorded_with_the_reason() -> None:
    """
    The reason stands beside the doubt that it settled.
    """
    seen = look(forgotten=("s.a",), reason="seen in console")
    _, (row,) = settle_doubts(doubting("create"), seen)
    assert (row.reason, row.run_id, row.doubt.address) == ("seen in console", "run-2", "s.a")


def test_an_object_that_left_the_state_is_left_behind() -> None:
    """
    The record still knows what the state no longer holds.
    """
    record = entry(resources=Resources(inventory=refs("s.a id-1", "s.b id-2")))
    assert [ref.address for ref in missing_from_state(record, state(["s.b id-2"]))] == ["s.a"]


def test_an_object_under_another_address_is_not_left_behind() -> None:
    """
    A move by hand keeps type and id.
    """
    record = entry(resources=Resources(inventory=refs("s.a id-1")))
    assert missing_from_state(record, state(["s.moved id-1"])) == ()


@pytest.mark.parametrize("status", ["destroyed", "absent"])
def test_what_is_gone_left_nothing_behind(status: str) -> None:
    """
    A confirmed absence is not questioned by an empty state.
    """
    record = entry(status=status, resources=Resources(inventory=refs("s.a id-1")))
    assert missing_from_state(record, state()) == ()


def test_of_a_replacement_that_failed_the_delete_of_the_displaced_object_is_unanswered() -> None:
    """
    Its successor was made first and has the address: that is not what was to be deleted.
    """
    resources = Resources(
        planned=planned("replace s.a"),
        failed=("s.a",),
        inventory=refs("s.a new", "s.a old deposed=d1"),
    )
    record = entry(status="error", failed_command="apply", resources=resources)

    assert unanswered_deletes(record, RefusalRules()) == {("s.a", "old")}


def test_objects_that_are_set_apart_are_not_asked_for() -> None:
    """
    A state without some addresses, and the result of a refresh without what a delete removed.
    """
    whole = state(["s.a id-1", "s.b id-2"])
    gone, lost = whole.objects
    result = RefreshResult((gone, lost), (gone, lost))

    assert [item.address for item in whole.without({"s.a"}).objects] == ["s.b"]
    assert result.without({gone}) == RefreshResult((lost,), (lost,))


def test_what_left_a_state_that_was_lost_in_a_killed_change_can_be_imported() -> None:
    """
    The inventory is that of the state, which is gone: the doubts know what it held.
    """
    left = Doubt(address="aws_eip.this", action="forget", id="eip-1", why="it left the state")
    record = entry(status="error", resources=Resources(in_doubt=(left,)))

    found = lost_objects(record, state([]))

    assert {address: ref.id for address, ref in found.importable.items()} == {
        "aws_eip.this": "eip-1"
    }


def test_what_cannot_be_imported_is_named_with_the_reason() -> None:
    """
    An import takes one id at one free address.
    """
    (nameless,) = refs("s.a id-a")
    nameless = nameless.model_copy(update={"id": None})
    lost = refs("s.b old deposed=d1", "s.c one", "s.c two", "s.d mine", "s.e alone")
    record = entry(resources=Resources(inventory=(nameless, *lost)))

    found = lost_objects(record, state(["s.d other"]))

    assert list(found.importable) == ["s.e"]
    assert {ref.address: why for ref, why in found.obstacles.items()} == {
        "s.a": "its id is not recorded",
        "s.b": "it was deposed: its address is another object's",
        "s.c": "its address is recorded of one and two",
        "s.d": "its address holds other",
    }
