"""
The table of statuses.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.record.states import (
    TABLE,
    Condition,
    IllegalMove,
    Status,
    StepStatus,
    Trigger,
    Verdict,
    advance,
    verdict,
)

ROWS = st.lists(
    st.sampled_from(
        [(None, None), *((s, None) for s in Status if s is not Status.RUNNING)]
        + [(Status.RUNNING, condition) for condition in Condition]
    ),
    max_size=8,
)


def test_every_trigger_is_in_the_table_or_is_the_revert() -> None:
    """
    The table is the machine: no trigger lives outside of it.
    """
    assert set(TABLE) | {Trigger.REVERT} == set(Trigger)


@pytest.mark.parametrize(
    ("status", "trigger"),
    list(itertools.product([None, *Status], sorted(set(Trigger) - {Trigger.REVERT}))),
)
def test_a_move_is_in_the_table_or_raises(status: Status | None, trigger: Trigger) -> None:
    """
    An illegal move raises and gives nothing back.
    """
    if status in TABLE[trigger]:
        assert advance(status, trigger) is TABLE[trigger][status]
    else:
        with pytest.raises(IllegalMove, match=str(trigger)):
            advance(status, trigger)


def test_only_a_marker_leads_to_running() -> None:
    """
    Law: intent first.
    A target is running only because a mutation was about to begin.
    """
    leading = {t for t, moves in TABLE.items() if Status.RUNNING in moves.values()}
    assert leading == {Trigger.START}


def test_destroyed_comes_only_from_a_confirmed_absence() -> None:
    """
    Law: destroyed means confirmed.
    Nothing but GONE leads to destroyed from another status.
    """
    leading = {
        trigger
        for trigger, moves in TABLE.items()
        for status, after in moves.items()
        if after is Status.DESTROYED and status is not Status.DESTROYED
    }
    assert leading == {Trigger.GONE}


def test_only_ok_becomes_retained() -> None:
    """
    Only ok can become retained; an apply over a retained target leaves it so.
    """
    sources = {
        status
        for trigger, moves in TABLE.items()
        for status, after in moves.items()
        if after is Status.RETAINED
        and status is not Status.RETAINED
        and trigger is not Trigger.KEEP
    }
    assert sources == {Status.OK}


@pytest.mark.parametrize("before", [s for s in Status if s is not Status.RUNNING])
def test_a_revert_restores_the_status_from_before(before: Status) -> None:
    """
    Law: failure keeps what is known.
    An attempt that is proven to have touched nothing leaves no trace in the status.
    """
    assert advance(Status.RUNNING, Trigger.REVERT, before=before) is before


def test_a_revert_over_no_record_is_absent() -> None:
    """
    A first mutation that touched nothing leaves what was seen before it: nothing there.
    """
    assert advance(Status.RUNNING, Trigger.REVERT, before=None) is Status.ABSENT


@given(ROWS)
def test_anything_alive_or_unsettled_outranks_all_else(
    rows: list[tuple[Status | None, Condition | None]],
) -> None:
    """
    Live, then interrupted or silent, then error come first in the verdict.
    """
    conditions = {condition for _, condition in rows if condition}
    found = verdict(rows)
    if Condition.LIVE in conditions:
        assert found is Verdict.RUNNING
    elif conditions:
        assert found is Verdict.INTERRUPTED
    elif any(status is Status.ERROR for status, _ in rows):
        assert found is Verdict.ERROR
    else:
        assert found not in (Verdict.RUNNING, Verdict.INTERRUPTED, Verdict.ERROR)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], Verdict.PENDING),
        ([None, None], Verdict.PENDING),
        ([Status.OK, Status.RETAINED], Verdict.OK),
        ([Status.ABSENT, Status.DESTROYED], Verdict.DESTROYED),
        ([Status.DESTROYED, Status.RETAINED], Verdict.DESTROYED_WITH_RETAINED),
        ([Status.OK, None], Verdict.PARTIAL),
        ([Status.OK, Status.DESTROYED], Verdict.PARTIAL),
        ([None, Status.ABSENT], Verdict.PARTIAL),
    ],
)
def test_verdict_without_trouble(statuses: list[Status | None], expected: Verdict) -> None:
    """
    No record is never read as absent, and part of it is never all of it.
    """
    assert verdict([(status, None) for status in statuses]) is expected


def test_a_step_has_every_status_of_a_target_and_two_more() -> None:
    """
    In a run a step can also be pending or skipped.
    """
    assert {s.value for s in StepStatus} == {s.value for s in Status} | {"pending", "skipped"}


@given(st.lists(st.sampled_from([t for t in Trigger if t is not Trigger.REVERT]), max_size=30))
def test_no_sequence_of_triggers_gets_past_the_laws(triggers: list[Trigger]) -> None:
    """
    However triggers follow each other: a mutation is only left by its end, what is destroyed was
    confirmed gone by the move that made it so, and an illegal move changes nothing.
    """
    status: Status | None = None
    for trigger in triggers:
        before = status
        try:
            status = advance(status, trigger)
        except IllegalMove:
            assert status is before
            continue
        if before is Status.RUNNING:
            assert trigger in (
                Trigger.SUCCEED,
                Trigger.KEEP,
                Trigger.FAIL,
                Trigger.GONE,
                Trigger.MISSING,
            )
        if status is Status.DESTROYED and before is not Status.DESTROYED:
            assert trigger is Trigger.GONE
        if status is Status.RUNNING:
            assert trigger is Trigger.START
            assert before is not Status.RUNNING
