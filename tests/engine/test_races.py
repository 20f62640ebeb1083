"""
Several runs at once: of two one wins, nothing is lost, and nobody waits for what is not his.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.scenes import STANDIN, Pair
from tests.project import Project, eventually, finish

WIDE = 40


def numbers(project: Project, step: str) -> list[int]:
    """
    The sequence numbers of a step's entries.
    """
    return [entry["sequence"] for entry in project.history(step)]


def test_of_two_runs_one_wins(tmp_path: Path, engine: str) -> None:
    """
    Law: compare-and-set.
    Two applies of one blueprint and environment are started at once. One carries it out,
    the other exits 20 and says who holds the claim; no object is made twice, no entry is lost.
    """
    pair = Pair(tmp_path, engine)

    pair.hold()
    rivals = [pair.start("apply", "pair", "--yes") for _ in range(2)]
    eventually(lambda: any(rival.poll() is not None for rival in rivals), "one is turned away")
    pair.release()
    ended = sorted((finish(rival) for rival in rivals), key=lambda each: each.code)

    assert [each.code for each in ended] == [0, 20], [each.said for each in ended]
    assert "is claimed by run" in ended[1].said
    assert pair.log() == ["create one", "create two"]
    assert (numbers(pair, "one"), numbers(pair, "two")) == ([1, 2], [1, 2])


def test_the_claim_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    """
    A run was killed while it held the claim and had mutated nothing: the next takes it over.
    """
    pair = Pair(tmp_path, str(STANDIN))
    assert pair.meddled("apply", kill=("store.put_lease", 1, "after")) == -9

    ended = pair.code("apply", "pair", "--yes")

    assert ended == 0, pair.said
    assert pair.status("pair")["verdict"] == "ok"


def test_another_environment_is_not_hindered(tmp_path: Path) -> None:
    """
    While one environment is being applied another one is applied to its end.
    """
    pair = Pair(tmp_path, str(STANDIN))
    held = pair.start_held("apply", "-e", "default")

    beside = pair.run("apply", "pair", "-e", "other", "--yes")
    still_going = held.poll() is None
    pair.release()

    assert (beside.code, still_going, finish(held).code) == (0, True, 0), beside.said
    assert pair.status("pair", "-e", "other", "--expect", "ok")["verdict"] == "ok"


def test_forty_steps_at_once_on_one_file(tmp_path: Path) -> None:
    """
    Forty steps, sixteen at a time, on one SQLite file: each has its marker and its outcome, each
    is made once, and no run is turned away by a locked database.
    """
    pair = Pair(tmp_path, str(STANDIN))
    names = [f"s{number:02d}" for number in range(WIDE)]
    inputs = f'place: "{pair.place}"'
    steps = [
        f"  {n}: {{module: ../modules/keeper, inputs: {{name: {n}, {inputs}}}}}" for n in names
    ]
    pair.write("blueprints/wide.yaml", "\n".join(["version: 1", "name: wide", "steps:", *steps]))

    ended = pair.run("apply", "wide", "--yes", "--jobs", "16")

    assert ended.code == 0, ended.said
    assert sorted(pair.log()) == [f"create {name}" for name in names]
    assert [numbers(pair, name) for name in names] == [[1, 2]] * WIDE
