"""
SIGKILL of a destroy that takes a child along with its parent, at every call that changes anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scenes import STANDIN, Pair, points

SIGKILLED = -9
CHANGING = ("store.append", "engine.call:push")


def applied(pair: Pair) -> None:
    """
    Both steps applied; what a parent took along in the round before is cleared away.
    """
    for left in pair.place.glob("two.*"):
        left.rmdir()
    assert pair.code("apply", "owned", "--yes") == 0, pair.said


def test_killed_at_any_call_the_next_destroy_does_the_rest(tmp_path: Path) -> None:
    """
    Laws: an outlived run is settled from evidence; children follow parents.
    Wherever it is killed the child is never gone before its parent and its engine is
    never asked to delete it; the next destroy ends with both destroyed, the child by its parent.
    """
    pair = Pair(tmp_path / "project", str(STANDIN))
    applied(pair)
    assert pair.meddled("destroy", blueprint="owned") == 0, pair.said
    reached = points(pair.calls, *CHANGING)
    assert ("engine.call:push", 1, "after") in reached

    for point in reached:
        applied(pair)
        assert pair.meddled("destroy", blueprint="owned", kill=point) == SIGKILLED, point
        one, two = pair.record("one")["status"], pair.record("two")["status"]
        assert two == "ok" or one == "destroyed", f"{point}: {two} while its parent is {one}"

        assert pair.code("destroy", "owned", "--yes") == 0, f"{point}: {pair.said}"

        records = {step: pair.record(step) for step in ("one", "two")}
        assert {step: found["status"] for step, found in records.items()} == {
            "one": "destroyed", "two": "destroyed",
        }  # fmt: skip
        assert records["two"]["absence"]["method"] == "parent", point
        assert pair.objects("one") == []
        assert "delete two" not in pair.log()


@pytest.mark.parametrize("verb", ["apply", "reconcile"])
def test_a_child_that_is_left_when_its_parent_is_gone(tmp_path: Path, verb: str) -> None:
    """
    Killed with the child emptied and not concluded: `reconcile` settles it as destroyed by its
    parent; an apply would make the parent again over the child's old state, and is refused with the
    command that finishes the destroy, which `status` names too.
    """
    pair = Pair(tmp_path / "project", str(STANDIN))
    applied(pair)
    point = ("engine.call:push", 1, "after")
    assert pair.meddled("destroy", blueprint="owned", kill=point) == SIGKILLED
    before = pair.entries("one")

    code = pair.code(verb, "owned", *(["--yes"] if verb == "apply" else []))

    if verb == "reconcile":
        assert code == 0, pair.said
        assert pair.record("two")["absence"]["method"] == "parent"
        return
    assert code == 4, pair.said
    assert "orchestrator destroy owned --step two" in pair.said
    assert pair.entries("one") == before
    assert pair.code("status", "owned") == 0
    assert "orchestrator destroy owned --step two" in pair.said
