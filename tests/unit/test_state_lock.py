"""
Whether a lock is one that a run of ours left.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.record.record import Actor
from orchestrator.domain.record.run_record import RunPeriod, StateLock, run_at, unlock_objection
from tests.fakes.clock import START

ADA = Actor(user="ada", host="ci-1")
TAKEN = START + timedelta(minutes=5)
LOCK = StateLock(id="L-1", who="ada@ci-1", created=f"{TAKEN:%Y-%m-%d %H:%M:%S}.25 +0000 UTC")


def run(name: str, began: int, ended: int | None = None, actor: Actor = ADA) -> RunPeriod:
    """
    A run that began, and perhaps ended, so many minutes after the start.
    """
    end = None if ended is None else START + timedelta(minutes=ended)
    return RunPeriod(name, actor, START + timedelta(minutes=began), end)


@pytest.mark.parametrize(
    ("why", "runs", "expected"),
    [
        ("it was killed", [run("a", 1)], "a"),
        ("it ended after the lock was taken", [run("a", 1, 9)], "a"),
        ("it had ended", [run("a", 1, 4)], None),
        ("it began later", [run("a", 6)], None),
        ("only one is at once: the last that began", [run("a", 1), run("b", 3)], "b"),
        ("the last one had ended: nobody's", [run("a", 1), run("b", 3, 4)], None),
        ("nothing ever ran", [], None),
    ],
)
def test_the_run_of_a_time(why: str, runs: list[RunPeriod], expected: str | None) -> None:
    """
    The last run that began before it, unless that had ended.
    """
    found = run_at(runs, TAKEN)

    assert (found.run_id if found else None) == expected, why


@pytest.mark.parametrize(
    ("lock", "runs", "why"),
    [
        (LOCK, [run("a", 1)], None),
        (StateLock(id="L-2", who=LOCK.who, created=LOCK.created), [run("a", 1)], "is not L-1"),
        (StateLock(id="L-1", created=LOCK.created), [run("a", 1)], "does not report"),
        (StateLock(id="L-1", who=LOCK.who), [run("a", 1)], "does not report"),
        (LOCK, [run("a", 1, 4)], "no run of ours"),
        (LOCK, [run("a", 1, actor=Actor(user="bob", host="ci-1"))], "is of bob@ci-1"),
        (LOCK, [run("a", 1, actor=Actor(user="ada", host="ci-2"))], "is of ada@ci-2"),
    ],
)
def test_a_lock_is_ours_only_if_everything_fits(
    lock: StateLock, runs: list[RunPeriod], why: str | None
) -> None:
    """
    Id, owner and time, all of them; what the engine does not tell does not fit.
    """
    found = unlock_objection(lock, "L-1", runs)

    assert found == why if why is None else why in (found or "")
