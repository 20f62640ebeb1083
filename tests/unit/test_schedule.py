"""
Steps side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.app.schedule import OnFailure, Outcome, Unstarted, run_steps
from orchestrator.domain.blueprint.graph import Graph
from tests.fakes.clock import SetStop

DIAMOND = {"net": [], "app": ["net"], "db": ["net"], "web": ["app", "db"], "dns": []}


class Diary:
    """
    Work that writes down what ran, and fails for the steps it is told.
    """

    def __init__(self, fails: set[str] = frozenset(), halts: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.fails, self.halts = fails, halts
        self.began: list[str] = []
        self.ended: list[str] = []
        self._lock = threading.Lock()

    def work(self, step: str) -> Outcome:
        with self._lock:
            self.began.append(step)
        with self._lock:
            self.ended.append(step)
        return Outcome(ready=step not in self.fails, halt=step in self.halts)


def go(
    needs: Mapping[str, list[str]],
    diary: Diary,
    *,
    jobs: int = 3,
    on_failure: OnFailure = OnFailure.STOP,
    stop: SetStop | None = None,
) -> list[Unstarted]:
    return run_steps(
        Graph(needs), diary.work, jobs=jobs, stop=stop or SetStop(), on_failure=on_failure
    )


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    names = [f"s{number}" for number in range(draw(st.integers(1, 8)))]
    return {
        name: draw(st.lists(st.sampled_from(names[:at]), unique=True)) if at else []
        for at, name in enumerate(names)
    }


@given(graphs(), st.integers(1, 4), st.sets(st.sampled_from([f"s{n}" for n in range(8)])))
def test_a_step_begins_only_after_all_it_needs_are_ready(
    needs: dict[str, list[str]], jobs: int, fails: set[str]
) -> None:
    """
    For any graph and any failures: what began had everything it needs, what never began is told.
    """
    diary = Diary(fails)
    unstarted = go(needs, diary, jobs=jobs, on_failure=OnFailure.CONTINUE)
    for step in diary.began:
        assert not set(needs[step]) & fails
        assert set(needs[step]) <= set(diary.ended)
    assert {item.step for item in unstarted} == set(needs) - set(diary.began)


def test_a_step_starts_when_its_own_upstreams_are_done() -> None:
    """
    No waves: dns does not wait for anybody, web waits for its two.
    """
    diary = Diary()
    assert go(DIAMOND, diary) == []
    assert diary.began.index("web") > max(diary.began.index("app"), diary.began.index("db"))


def test_after_a_failure_nothing_more_starts() -> None:
    """
    ``--on-failure stop``: pending, blocked by what failed, or stopped for it.
    """
    diary = Diary({"net"})
    rows = go(DIAMOND, diary, jobs=1)
    assert diary.began == ["net"]
    assert rows[0].reason == "stopped after net failed"
    assert {row.step: row.blocked_by for row in rows}["app"] == ("net",)


def test_continue_goes_on_where_nothing_upstream_failed() -> None:
    """
    ``--on-failure continue``.
    """
    diary = Diary({"app"})
    rows = go(DIAMOND, diary, jobs=1, on_failure=OnFailure.CONTINUE)
    assert set(diary.began) == {"net", "app", "db", "dns"}
    assert rows == [Unstarted("web", ("app",), "")]


def test_a_halt_overrides_continue() -> None:
    """
    Law: spooled outcome.
    After an outcome that could not be recorded no further step starts.
    """
    diary = Diary({"net"}, {"net"})
    go(DIAMOND, diary, jobs=1, on_failure=OnFailure.CONTINUE)
    assert diary.began == ["net"]


def test_after_a_signal_nothing_more_starts() -> None:
    """
    Law: signals.
    Start nothing more.
    """
    stop = SetStop()
    stop.stop_now = True
    diary = Diary()
    rows = go(DIAMOND, diary, stop=stop)
    assert diary.began == []
    assert {row.reason for row in rows} == {"stopped by a signal"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_never_more_steps_at_once_than_jobs(jobs: int) -> None:
    """
    Parallelism is bounded.
    """
    lock, now, most = threading.Lock(), [0], [0]
    gate = threading.Barrier(jobs)

    def work(_: str) -> Outcome:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait(10)
        with lock:
            now[0] -= 1
        return Outcome(ready=True)

    steps: dict[str, list[str]] = {f"s{number}": [] for number in range(4)}
    run_steps(Graph(steps), work, jobs=jobs, stop=SetStop(), on_failure=OnFailure.STOP)
    assert most[0] == jobs
