"""
SIGKILL of the tool before and after every call of a port while it changes provider state; then go
on. The engine is the stand-in, as in test_kill_points.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.crash.scenes import EVER, STANDIN, Pair, points

SIGKILLED = -9
REFUSED, IN_DOUBT, UNAVAILABLE, SPOOLED = 4, 11, 22, 23
OBJECT = "terraform_data.object"
#: Calls around which a marker, a deed or an outcome may be lost.
TELLING = ("store.append", "engine.call:import", "engine.call:exec")


def made_by_hand(root: Path) -> Pair:
    """
    A project that was never applied, and an object of its first step that somebody made.
    """
    pair = Pair(root, str(STANDIN))
    (pair.place / "one.by-hand").mkdir()
    return pair


IMPORT = {"steps": ["one"], "adopt": [f"{OBJECT}=by-hand"]}


def test_an_import_killed_at_any_call_is_settled(tmp_path: Path) -> None:
    """
    Laws: intent first; only success makes ok; an outlived run is settled from evidence.
    Killed anywhere, the record never says more than there is, and nothing is
    guessed: the same command again either imports or is told that it has been. Then the apply makes
    it `ok`, with that one object.
    """
    first = made_by_hand(tmp_path / "first")
    assert first.meddled("import", wanted=IMPORT) == 0, first.said
    calls = first.calls

    for number, point in enumerate(points(calls, *TELLING)):
        pair = made_by_hand(tmp_path / str(number))
        assert pair.meddled("import", kill=point, wanted=IMPORT) == SIGKILLED, (point, pair.said)
        told = {row["step"]: row for row in pair.status("pair")["steps"]}["one"]
        assert told["status"] in ("pending", "running", "error"), point
        if told["status"] == "running":
            assert (told["active_command"], told["condition"]) == ("import", "interrupted")
        elif told["status"] == "error":
            assert pair.record("one")["error"]["code"] == "unapplied"

        again = pair.code("import", "pair/default/one", OBJECT, "by-hand", "--yes")

        assert again in (0, REFUSED), (point, pair.said)
        record = pair.record("one")
        assert (record["status"], record["error"]["code"]) == ("error", "unapplied"), point
        assert [ref["id"] for ref in record["resources"]["inventory"]] == ["by-hand"]
        assert pair.code("apply", "pair", "--yes") == 0, (point, pair.said)
        assert pair.record("one")["status"] == "ok"
        assert pair.objects("one") == ["by-hand"]


REMOVE = {"steps": ["one"], "words": ["state", "rm", OBJECT]}


def test_surgery_on_an_applied_step_killed_at_any_call_restores_it(tmp_path: Path) -> None:
    """
    Laws: only success makes ok; an outlived run is settled from evidence.
    Whatever the killed call did, the status from before is back, and the object that
    it may have taken out of the provider state is known: it is `ok` if the state holds it, else in
    doubt. The object itself is untouched.
    """
    pair = Pair(tmp_path / "first", str(STANDIN))
    assert pair.code("apply", "pair", "--yes") == 0, pair.said
    assert pair.meddled("exec", wanted=REMOVE) == 0, pair.said
    calls = pair.calls

    for number, point in enumerate(points(calls, *TELLING)):
        pair = Pair(tmp_path / str(number), str(STANDIN))
        assert pair.code("apply", "pair", "--yes") == 0, pair.said
        before, objects = pair.record("one"), pair.objects("one")
        assert pair.meddled("exec", kill=point, wanted=REMOVE) == SIGKILLED, (point, pair.said)

        code = pair.code("reconcile", "pair", "--step", "one")

        entries = pair.history("one")[before["sequence"] :]
        state = pair.own / "state/pair/default/one.tfstate"
        held = objects[0] in state.read_text()
        assert all(entry["status"] in ("running", "ok") for entry in entries[:-1]), point
        assert [e["active_command"] for e in entries if e["status"] == "running"] in ([], ["exec"])
        assert code == (0 if held else IN_DOUBT), (point, pair.said)
        assert entries[-1]["status"] == ("ok" if held else "error"), point
        doubts = [doubt["id"] for doubt in entries[-1]["resources"]["in_doubt"]]
        assert doubts == ([] if held else objects), point
        assert pair.objects("one") == objects


PUSH = {"steps": ["one"], "push_errored_state": ["yes"]}


def unsaved(root: Path) -> tuple[Pair, Path, str]:
    """
    An applied project, whose engine could not save the last state of its first step.
    """
    pair = Pair(root, str(STANDIN))
    assert pair.code("apply", "pair", "--yes") == 0, pair.said
    state = pair.own / "state/pair/default/one.tfstate"
    later = json.loads(state.read_text())
    later["serial"] = int(later["serial"]) + 1
    later["outputs"]["more"] = {"value": "unsaved"}
    text = json.dumps(later)
    (pair.own / "work/pair/default/one/errored.tfstate").write_text(text)
    return pair, state, text


def test_a_push_killed_at_any_call_loses_no_state(tmp_path: Path) -> None:
    """
    Law: an outlived run is settled from evidence.
    The unsaved state is in the working directory or kept with a run, once, until
    the end; the same command again saves it, or finds it saved.
    """
    pair, _, _ = unsaved(tmp_path / "first")
    assert pair.meddled("reconcile", wanted=PUSH) == 0, pair.said
    names = ("engine.call:push", "workdirs.set_aside")

    for number, point in enumerate(points(pair.calls, *names)):
        pair, state, text = unsaved(tmp_path / str(number))
        assert pair.meddled("reconcile", kill=point, wanted=PUSH) == SIGKILLED, (point, pair.said)
        assert [path.read_text() for path in pair.own.rglob("errored.tfstate")] == [text], point

        options = ("--step", "one", "--push-errored-state", "--yes")
        again = pair.code("reconcile", "pair", *options)

        aside = list(pair.own.glob("runs/*/steps/one/1/errored.tfstate"))
        assert again in (0, REFUSED), (point, pair.said)
        assert [path.read_text() for path in aside] == [text], point
        assert "unsaved" in state.read_text(), point
        assert pair.code("reconcile", "pair", "--step", "one") == 0, (point, pair.said)


def test_an_import_whose_marker_is_not_durable_does_not_start(tmp_path: Path) -> None:
    """
    Law: no record, no mutation.
    For surgery: exit 22, no engine call, no record.
    """
    pair = made_by_hand(tmp_path / "unmarked")

    assert pair.meddled("import", fail={"store.append": (1, EVER)}, wanted=IMPORT) == UNAVAILABLE

    assert "engine.call:import" not in pair.calls
    assert pair.history("one") == []


def test_an_import_whose_outcome_cannot_be_recorded_is_spooled(tmp_path: Path) -> None:
    """
    Law: spooled outcome.
    For surgery: exit 23, the record stays `running`, and the next command records what lies
    in the spool before it does anything else.
    """
    pair = made_by_hand(tmp_path / "spooled")

    assert pair.meddled("import", fail={"store.append": (2, EVER)}, wanted=IMPORT) == SPOOLED

    assert [entry["status"] for entry in pair.history("one")] == ["running"]
    assert pair.code("apply", "pair", "--yes") == 0, pair.said
    imported = pair.history("one")[1]
    assert (imported["status"], imported["error"]["code"]) == ("error", "unapplied")
    assert pair.objects("one") == ["by-hand"]
