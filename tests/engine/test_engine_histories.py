"""
Nothing that the engine made drops out of sight: generated histories on a real engine.

The same sentence as in `tests/stateful/test_histories.py`, with the fixture provider and its
faults. Each history costs seconds: `ORCHESTRATOR_TEST_HISTORIES=COUNT[:SEED]` says how many are
played, and from which seed on.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import Place

pytestmark = pytest.mark.engine

COMMANDS = (
    ("apply", "asked", "--yes"),
    ("apply", "asked", "--yes", "--accept-vanished", "a test"),
    ("destroy", "asked", "--yes"),
    ("reconcile", "asked"),
    ("reconcile", "asked", "--adopt-proven", "--reason", "a test", "--yes"),
    ("reconcile", "asked", "--rebuild-state", "--reason", "a test", "--yes"),
)
FAULTS = (
    ("create", "lost_answer"),
    ("create", "null_after"),
    ("create", "error_after"),
    ("create", "error_before:QuotaExceeded"),
    ("delete", "delete_lies"),
    ("delete", "lost_answer"),
    ("delete", "delete_fails"),
    ("read", "read_lies"),
)
NAMES = ("acme", "web", "other")
INPUTS = ("with: [this], servers: [web, other]", "with: [this], servers: [web]", "with: []")


def act(place: Place, chance: random.Random) -> str:
    """
    Something happens between two commands, or a command meets a fault; what it was.
    """
    state = place.project.own / "state/asked/default/things.tfstate"
    match chance.choice(("command", "command", "command", "inputs", "state", "stranger", "gone")):
        case "command":
            told = ""
            if chance.random() < 0.6:
                (op, fault), name = chance.choice(FAULTS), chance.choice(NAMES)
                place.cloud.arm(op, name, fault)
                told = f", {op} of {name} meets {fault}"
            words = chance.choice(COMMANDS)
            code = place.project.run(*words).code
            place.cloud.disarm()
            assert code != 1, words
            return f"{' '.join(words)}{told}: exit {code}"
        case "inputs":
            place.wants(wanted := chance.choice(INPUTS))
            return f"inputs {wanted}"
        case "state":
            state.unlink(missing_ok=True)
            return "the provider state is lost"
        case "stranger":
            made = place.cloud.create_out_of_band("fakecloud_server", "web")
            return f"somebody makes {made.id}"
        case _:
            alive = place.cloud.objects()
            if alive:
                place.cloud.delete_out_of_band(chance.choice(alive).id)
            return "somebody deletes an object"


def unseen(place: Place, cloud: Cloud) -> set[str]:
    """
    What is alive, was made by the engine, and is named neither by id nor by an address in doubt.
    """
    made = {call.id for call in cloud.calls("create")}
    texts = [path.read_text() for path in place.project.own.glob("state/**/*.tfstate")]
    named = set()
    if place.project.entries("things"):
        resources = place.record["resources"]
        texts.append(str(resources) + str(place.record["settled"]))
        named = {doubt["address"] for doubt in resources["in_doubt"]}
    text = " ".join(texts)
    return {
        item.id
        for item in cloud.objects()
        if item.id in made and item.id not in text and not any(item.name in a for a in named)
    }


def test_nothing_made_by_a_real_engine_drops_out_of_sight(tmp_path: Path, engine: str) -> None:
    """
    Law: nothing drops out of sight.
    And nothing that others made is deleted.
    """
    count, _, seed = os.environ.get("ORCHESTRATOR_TEST_HISTORIES", "4").partition(":")
    first = int(seed or random.randrange(10**6))
    for number in range(first, first + int(count)):
        print(f"history {number}: ORCHESTRATOR_TEST_HISTORIES=1:{number}")
        chance = random.Random(number)
        (root := tmp_path / str(number)).mkdir()
        place = Place(root, engine)
        place.wants(INPUTS[0])
        done = []
        with place.cloud.attached() as reattach:
            place.project.environ["TF_REATTACH_PROVIDERS"] = reattach
            done.append(f"apply: exit {place.apply().code}")
            for _ in range(5):
                done.append(act(place, chance))
                left = unseen(place, place.cloud)
                assert not left, (number, left, done)
                made = {call.id for call in place.cloud.calls("create")}
                theirs = [c for c in place.cloud.calls("delete") if c.id and c.id not in made]
                assert not theirs, (number, theirs, done)
