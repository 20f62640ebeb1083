"""
SIGKILL of the tool before and after every call of a port, on SQLite; then resume, and be killed
again. The engine is the stand-in: a process like Terraform that starts in no time.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import cycle, zip_longest
from pathlib import Path

import pytest

from tests.crash.scenes import STANDIN, Pair, Point, points
from tests.project import eventually

SIGKILLED = -9
BUSY = 20


class Rounds:
    """
    Projects in which a run is killed at one point after the other.
    """

    def __init__(self, directory: Path, engine: Path = STANDIN) -> None:
        self._directory = directory
        self._engine = engine
        self._made = 0

    def fresh(self) -> Pair:
        """
        A project in which nothing has ever been applied.
        """
        self._made += 1
        return Pair(self._directory / str(self._made), str(self._engine))

    def seasoned(self) -> tuple[Pair, list[str], list[str]]:
        """
        A project that was applied and destroyed, and the calls that each of them makes from then.
        """
        pair = self.fresh()
        finish(pair, "apply")
        finish(pair, "destroy")
        assert pair.meddled("apply") == 0, pair.said
        applied = pair.calls
        assert pair.meddled("destroy") == 0, pair.said
        return pair, applied, pair.calls


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


def check_told_truly(pair: Pair, begun: set[str], killed: set[str]) -> None:
    """
    No status stands over a mutation that it does not know of, and none says more than there is.

    ``begun`` are the steps of which the killed run, the only one in ``killed``, began a mutation.
    """
    for row in pair.status("pair")["steps"]:
        step, status = row["step"], row["status"]
        there = pair.objects(step)
        if step in begun:
            assert {row["run_id"]} == killed, f"{step}: {status} stands over a later mutation"
        if status == "running":
            assert row["condition"] == "interrupted"
            assert row["active_command"]
        elif status == "ok":
            assert there == [row["outputs"]["id"]]
        else:
            assert status in ("pending", "absent", "destroyed")
            assert there == []


def check_applied(pair: Pair) -> None:
    """
    Both steps are ok, each with its one object, and nothing was made twice.
    """
    told = pair.status("pair")
    assert told["verdict"] == "ok", told
    for row in told["steps"]:
        assert pair.objects(row["step"]) == [row["outputs"]["id"]]
        assert pair.alive_by_log(row["step"]) == 1


def check_gone(pair: Pair) -> None:
    """
    Every step that ever had a mutation is destroyed, and nothing is left over.
    """
    for row in pair.status("pair")["steps"]:
        mutated = any(line.endswith(f" {row['step']}") for line in pair.log())
        allowed = ("destroyed",) if mutated else ("destroyed", "absent", "pending")
        assert row["status"] in allowed, row
        assert pair.objects(row["step"]) == []


def check_history(pair: Pair) -> None:
    """
    The entries of each step are numbered without a gap.
    """
    for step in ("one", "two"):
        numbers = [entry["sequence"] for entry in pair.history(step)]
        assert numbers == list(range(1, len(numbers) + 1))


def kill(pair: Pair, verb: str, point: Point) -> None:
    """
    Kill a run at the point, and look at what is told of it.
    """
    log, runs = pair.log(), pair.runs()
    assert pair.meddled(verb, kill=point) == SIGKILLED, f"{point} was not reached: {pair.said}"
    begun = {line.split()[1] for line in pair.log()[len(log) :]}
    check_told_truly(pair, begun, pair.runs() - runs)


def has_ended(pair: Pair) -> bool:
    """
    Whether no engine is at work.
    """
    return bool(pair.status("pair")["verdict"] != "running")


def finish(pair: Pair, verb: str) -> None:
    """
    Run the verb again: it settles what was left, reaches its goal, and leaves nothing unmasked.
    """
    assert pair.code(verb, "pair", "--yes") == 0, pair.said
    (check_applied if verb == "apply" else check_gone)(pair)
    check_history(pair)
    assert not list(pair.own.glob("runs/*/steps/*/*/raw/*"))


def test_killed_at_any_call_it_goes_on(rounds: Rounds) -> None:
    """
    Law: an outlived run is settled from evidence.
    Wherever an apply or a destroy is killed, no status is stale, the same command settles it
    without repeating a mutation, and in the end nothing is left over.
    """
    pair, applying, destroying = rounds.seasoned()

    for apply, destroy in zip_longest(points(applying), points(destroying)):
        if apply:
            kill(pair, "apply", apply)
        finish(pair, "apply")
        if destroy:
            kill(pair, "destroy", destroy)
        finish(pair, "destroy")


def test_the_first_apply_killed_at_any_call_is_settled(rounds: Rounds) -> None:
    """
    Law: an outlived run is settled from evidence.
    Where there is no record yet: no record stays none or becomes `running`, and an apply as
    well as a destroy finds its way from there.
    """
    first = rounds.fresh()
    assert first.meddled("apply") == 0, first.said
    reached = points(first.calls, "store.append", "store.take", "engine.", "workdirs.prepare")

    for point, goal in zip(reached, cycle(["apply", "destroy", "destroy", "apply"])):
        pair = rounds.fresh()
        kill(pair, "apply", point)
        finish(pair, goal)


def test_a_first_apply_in_one_process_killed_at_any_call_is_settled(tmp_path: Path) -> None:
    """
    Law: an outlived run is settled from evidence.
    Where plan and apply are one engine process, our death before its approval cancels it, and it
    goes on after that: whatever was recorded by then, there is one object in the end.
    """
    (tmp_path / "tofu").symlink_to(STANDIN)
    first = Rounds(tmp_path / "rounds", tmp_path / "tofu").fresh()
    assert first.meddled("apply") == 0, first.said
    assert first.calls.count("engine.call:approve") == 2
    assert "engine.call:plan" not in first.calls
    names = ("store.append", "engine.call:apply", "engine.call:approve", "engine.call:cancel")
    reached = points(first.calls, *names)

    rounds = Rounds(tmp_path / "killed", tmp_path / "tofu")
    for point, goal in zip(reached, cycle(["apply", "destroy", "apply"])):
        pair = rounds.fresh()
        kill(pair, "apply", point)
        eventually(partial(has_ended, pair), "the engine ends")
        finish(pair, goal)


@pytest.mark.parametrize(
    ("verb", "first"),
    [
        ("apply", ("engine.call:apply", 1, "after")),
        ("destroy", ("store.append", 1, "after")),
    ],
)
def test_a_killed_recovery_is_recovered_from(rounds: Rounds, verb: str, first: Point) -> None:
    """
    Law: an outlived run is settled from evidence.
    Applies to settling as well: killed at any of its calls, it is settled the next time.
    """
    pair, _, _ = rounds.seasoned()
    if verb == "destroy":
        finish(pair, "apply")
    kill(pair, verb, first)
    assert pair.meddled(verb) == 0, pair.said
    names = ("store.append", "engine.call:pull", "engine.call:apply")
    reached = [point for point in points(pair.calls, *names) if point[2] == "before"]

    for point in reached:
        finish(pair, "destroy" if verb == "apply" else "apply")
        kill(pair, verb, first)
        kill(pair, verb, point)
        finish(pair, verb)


def is_free(pair: Pair, verb: str) -> bool:
    """
    Whether the verb is not turned away.
    """
    return pair.code(verb, "pair", "--yes") != BUSY


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_goes_on(rounds: Rounds, seed: int) -> None:
    """
    Law: an outlived run is settled from evidence.
    Between the calls as well: killed at random moments, in the middle of engine calls and of
    their beginning, it is live until the engine has ended, and then settled.
    """
    pair, _, _ = rounds.seasoned()
    chance = random.Random(seed)

    for verb in ["apply", "destroy"] * 4:
        pair.meddled(verb, lifetime=chance.uniform(0.05, 0.6))
        eventually(partial(has_ended, pair), "the engine ends")
        eventually(partial(is_free, pair, verb), "nobody is at work")
        finish(pair, verb)
