"""
Nothing that the engine made drops out of sight: generated histories on a real engine.

The same sentence as in `tests/stateful/test_histories.py`, with the fixture provider and its
faults. Each history costs seconds: `ORCHESTRATOR_TEST_HISTORIES=COUNT[:SEED]` says how many are
played, and from which seed on.
"""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import Place
from tests.engine.watched_engine import kill
from tests.project import Running, eventually, finish

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
#: The objects by name, and where the module has them.
ADDRESSES = {
    "acme": "fakecloud_bucket.this[0]",
    "web": 'fakecloud_server.found["web"]',
    "other": 'fakecloud_server.found["other"]',
}
INPUTS = ("with: [this], servers: [web, other]", "with: [this], servers: [web]", "with: []")


def act(place: Place, chance: random.Random) -> str:
    """
    Something happens between two commands, or a command meets a fault; what it was.
    """
    state = place.project.own / "state/asked/default/things.tfstate"
    backup = place.project.root / "backup.tfstate"
    match chance.choice((*("command",) * 4, "kill", "inputs", "state", "stranger", "gone")):
        case "command":
            told = ""
            if chance.random() < 0.6:
                (op, fault), name = chance.choice(FAULTS), chance.choice([*ADDRESSES])
                place.cloud.arm(op, name, fault)
                told = f", {op} of {name} meets {fault}"
            words = chance.choice((*COMMANDS, *forgetting(place)))
            code = place.project.run(*words).code
            place.cloud.disarm()
            assert code != 1, words
            return f"{' '.join(words)}{told}: exit {code}"
        case "kill":
            op, name = chance.choice(("create", "delete")), chance.choice([*ADDRESSES])
            place.cloud.arm(op, name, "slow,untold")
            words = ("apply" if op == "create" else "destroy", "asked", "--yes")
            before = len(place.cloud.calls(op, name))
            tool = place.project.start(*words)
            eventually(
                lambda: len(place.cloud.calls(op, name)) > before or tool.poll() is not None,
                "the call is under way, or never will be",
            )
            kill_all(place, tool)
            place.cloud.disarm()
            return f"{' '.join(words)} is killed in {op} of {name}"
        case "inputs":
            place.wants(wanted := chance.choice(INPUTS))
            return f"inputs {wanted}"
        case "state":
            if chance.random() < 0.4 and state.exists():
                backup.write_bytes(state.read_bytes())
                return "the provider state is backed up"
            if chance.random() < 0.5 and backup.exists():
                state.write_bytes(backup.read_bytes())
                return "the backup of the provider state is put back"
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


def kill_all(place: Place, tool: Running) -> None:
    """
    Kill the tool and the engine of its newest run, as a lost machine does.
    """
    if tool.poll() is not None:
        finish(tool)
        return
    kill(tool)
    newest = max(place.project.own.glob("runs/*"))
    for file in newest.glob("steps/*/*/apply.identity.json"):
        if not file.with_name("apply.answer.json").exists():
            with suppress(ProcessLookupError):
                os.killpg(json.loads(file.read_text())["wrapper"]["pid"], signal.SIGKILL)


def forgetting(place: Place) -> tuple[tuple[str, ...], ...]:
    """
    The command by which a person forgets the first object in doubt, if there is one.
    """
    if not place.project.entries("things"):
        return ()
    doubts = place.record["resources"]["in_doubt"][:1]
    said = ("--reason", "a test", "--yes")
    return tuple(("reconcile", "asked", "--forget", d["address"], *said) for d in doubts)


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
        named |= {
            item["doubt"]["address"]
            for item in place.record["settled"]
            if item["how"] in ("forgotten", "accepted")
        }
        if place.record["active_command"]:
            named |= {item["address"] for item in resources["planned"]}
    text = " ".join(texts)
    return {
        item.id
        for item in cloud.objects()
        if item.id in made and item.id not in text and ADDRESSES[str(item.name)] not in named
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
        place.project.write("modules/things/module.yaml", "absence_timeout: 1s\n")
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
