"""
Nothing that the engine made drops out of sight: generated histories on a real engine.

The same sentence as in `tests/stateful/test_histories.py`, with the fixture provider and its
faults, an http backend, and two machines that share it and one operation store. Each history costs
seconds: `ORCHESTRATOR_TEST_HISTORIES=COUNT[:SEED]` says how many are played, and from which seed
on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from tests.engine.readback_project import BLUEPRINT, Place
from tests.engine.state_server import state_server
from tests.engine.watched_engine import kill
from tests.project import Project, Running, eventually, every_engine, finish

pytestmark = pytest.mark.engine

COMMANDS = (
    ("apply", "asked", "--yes"),
    ("apply", "asked", "--yes", "--accept-vanished", "a test"),
    ("destroy", "asked", "--yes"),
    ("reconcile", "asked"),
    ("reconcile", "asked", "--verify", "provider"),
    ("reconcile", "asked", "--adopt-proven", "--reason", "a test", "--yes"),
    ("reconcile", "asked", "--rebuild-state", "--reason", "a test", "--yes"),
    ("retry", "asked", "--yes"),
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
#: What happens while a call of the provider is under way.
CUTS = ("machine", "tool", "signal", "backend", "backend writes")
#: The objects by name, and where the module has them.
ADDRESSES = {
    "acme": "fakecloud_bucket.this[0]",
    "web": 'fakecloud_server.found["web"]',
    "other": 'fakecloud_server.found["other"]',
}
INPUTS = ("with: [this], servers: [web, other]", "with: [this], servers: [web]", "with: []")
#: One place for the state and one for the records, from whichever machine.
SHARED = """\
    backend:
      type: http
      config:
        address: "{state}"
        lock_address: "{state}"
        unlock_address: "{state}"
        retry_max: 0
    operations: {{url: "sqlite:{store}"}}
    steps:"""


class World:
    """
    Two checkouts of a project with an `.orchestrator` each, the operation store and the provider
    state that they share, and the cloud. ``begin`` puts all of it back to where the first apply
    left it.
    """

    def __init__(self, root: Path, engine: str, state: str) -> None:
        self._root, self._state, self._first = root, state, b""
        (root / "now").mkdir()
        self.place = Place(root / "now", engine)
        self.cloud = self.place.cloud
        other = Project(root / "now/other")
        other.environ = self.place.project.environ
        shutil.copytree(self.place.project.root, other.root, dirs_exist_ok=True)
        self.machines = (self.place.project, other)
        for machine in self.machines:
            machine.write("modules/things/module.yaml", "absence_timeout: 1s\n")
            machine.write("orchestrator.yaml", "project: shared\nsettle_seconds: 0\n")
        self._store = self.place.project.own / "operations.db"
        self.wants(INPUTS[0])

    def keep(self) -> None:
        """
        Remember the world as it is.
        """
        shutil.copytree(self._root / "now", self._root / "kept", symlinks=True)
        self._first = self.state()

    def begin(self) -> None:
        """
        Put the world back to how it was kept.
        """
        shutil.rmtree(self._root / "now")
        shutil.copytree(self._root / "kept", self._root / "now", symlinks=True)
        self.set_state(self._first)
        self._state_backup = self._store_backup = b""
        self._entries = self._backed_up = self.entries()
        self.knowing = self.machines[0]

    def wants(self, inputs: str) -> None:
        """
        Write the blueprint with these inputs, on both machines.
        """
        shared = SHARED.format(state=self._state, store=self._store)
        text = BLUEPRINT.format(inputs=inputs, name="acme", identity="")
        for machine in self.machines:
            machine.write("blueprints/asked.yaml", text.replace("    steps:", shared))

    def run(self, machine: Project, *words: str) -> int:
        code = machine.run(*words).code
        assert code != 1, words
        self.look(machine)
        return code

    def look(self, machine: Project) -> None:
        """
        Note who knows the newest entry.
        """
        if self.entries() != self._entries:
            self._entries, self.knowing = self.entries(), machine

    def entries(self) -> list[str]:
        return self.place.project.entries("things")

    def state(self) -> bytes:
        with _open(self._state) as answer:
            return bytes(answer.read())

    def set_state(self, content: bytes) -> None:
        with _open(f"{self._state}?refuse=0&refuse_reads=0", None), _open(self._state, content):
            pass

    @contextmanager
    def backend_refuses(self, faults: str) -> Iterator[None]:
        with _open(f"{self._state}?{faults}"):
            pass
        try:
            yield
        finally:
            with _open(f"{self._state}?refuse=0&refuse_reads=0"):
                pass

    def back_up_store(self) -> None:
        """
        Keep a copy of the operation store.
        """
        with closing(sqlite3.connect(self._store)) as connection:
            self._store_backup, self._backed_up = connection.serialize(), self.entries()

    @contextmanager
    def old_store(self) -> Iterator[bool]:
        """
        The operation store as it was kept, and in the end as it is; whether it has gone back.
        """
        with closing(sqlite3.connect(self._store)) as connection:
            newest = connection.serialize()
        self._put_store(self._store_backup or newest)
        try:
            yield bool(self._store_backup) and self._backed_up != self._entries
        finally:
            self._put_store(newest)

    def _put_store(self, content: bytes) -> None:
        for file in self._store.parent.glob("operations.db*"):
            file.unlink()
        self._store.write_bytes(content)

    def unseen(self) -> set[str]:
        """
        What is alive, was made by the engine, and is named neither by id nor by an address in
        doubt.
        """
        made = {call.id for call in self.cloud.calls("create")}
        record = self.place.record
        resources = record["resources"]
        named = {doubt["address"] for doubt in resources["in_doubt"]}
        named |= {
            item["doubt"]["address"]
            for item in record["settled"]
            if item["how"] in ("forgotten", "accepted")
        }
        if record["active_command"]:
            named |= {item["address"] for item in resources["planned"]}
        text = f"{self.state().decode()} {resources} {record['settled']}"
        return {
            item.id
            for item in self.cloud.objects()
            if item.id in made and item.id not in text and ADDRESSES[str(item.name)] not in named
        }

    # What happens

    def act(self, chance: random.Random) -> str:
        """
        Something happens between two commands, or a command meets a fault; what it was.
        """
        machine = chance.choice(self.machines)
        number = self.machines.index(machine) + 1
        match chance.choice(
            (*("command",) * 5, "cut", "cut", "inputs", "state", "store", "stranger", "gone")
        ):
            case "command":
                told = ""
                if chance.random() < 0.6:
                    (op, fault), name = chance.choice(FAULTS), chance.choice([*ADDRESSES])
                    self.cloud.arm(op, name, fault)
                    told = f", {op} of {name} meets {fault}"
                words = chance.choice((*COMMANDS, *self._forgetting()))
                code = self.run(machine, *words)
                self.cloud.disarm()
                return f"{number}: {' '.join(words)}{told}: exit {code}"
            case "cut":
                return f"{number}: {self._cut(machine, chance)}"
            case "inputs":
                self.wants(wanted := chance.choice(INPUTS))
                return f"inputs {wanted}"
            case "state":
                return self._change_state(chance)
            case "store":
                return self._go_back(chance)
            case "stranger":
                made = self.cloud.create_out_of_band("fakecloud_server", "web")
                return f"somebody makes {made.id}"
            case _:
                alive = self.cloud.objects()
                if alive:
                    self.cloud.delete_out_of_band(chance.choice(alive).id)
                return "somebody deletes an object"

    def _cut(self, machine: Project, chance: random.Random) -> str:
        """
        A command in the middle of which the machine, the tool or the backend goes away.
        """
        op, name = chance.choice(("create", "delete")), chance.choice([*ADDRESSES])
        what = chance.choice(CUTS)
        words = ("apply" if op == "create" else "destroy", "asked", "--yes")
        before = len(self.cloud.calls(op, name))
        self.cloud.arm(op, name, "slow" if what != "machine" else "slow:5,untold")
        tool = machine.start(*words)
        eventually(
            lambda: len(self.cloud.calls(op, name)) > before or tool.poll() is not None,
            "the call is under way, or never will be",
        )
        code: object = "?"
        match what:
            case "machine" | "tool":
                _kill(machine, tool, engine=what == "machine")
                self.cloud.disarm()
                if what == "tool":
                    eventually(lambda: not _unanswered(machine), "the engine goes on to its end")
            case "signal":
                with suppress(ProcessLookupError):
                    os.kill(tool.pid, signal.SIGINT)
                self.cloud.disarm()
                code = finish(tool).code
            case _:
                faults = "refuse=403" + ("&refuse_reads=403" if what == "backend" else "")
                with self.backend_refuses(faults):
                    self.cloud.disarm()
                    code = finish(tool).code
        assert code != 1, words
        self.look(machine)
        return f"{words[0]}, {what} cut in {op} of {name}: exit {code}"

    def _change_state(self, chance: random.Random) -> str:
        if chance.random() < 0.4:
            self._state_backup = self.state()
            return "the provider state is backed up"
        if chance.random() < 0.5:
            self.set_state(self._state_backup or self.state())
            return "the backup of the provider state is put back"
        self.set_state(b"")
        return "the provider state is lost"

    def _go_back(self, chance: random.Random) -> str:
        """
        The operation store is kept, or a command finds it as it was: then no object is made or
        deleted by who knows better, and the newest copy comes back.
        """
        if chance.random() < 0.5 or not self._store_backup:
            self.back_up_store()
            return "the store is backed up"
        words = chance.choice((*COMMANDS, ("store", "accept-restored", "a test")))
        before = len(self.cloud.calls("create")), len(self.cloud.calls("delete"))
        with self.old_store() as is_old:
            if not is_old:
                return "the store has not moved"
            code = self.knowing.run(*words).code
        told = f"{' '.join(words)} on the store as it was: exit {code}"
        assert code in (4, 22) if words[0] != "reconcile" else code != 1, told
        after = len(self.cloud.calls("create")), len(self.cloud.calls("delete"))
        assert after == before, told
        return told

    def _forgetting(self) -> tuple[tuple[str, ...], ...]:
        """
        The command by which a person forgets the first object in doubt, if there is one.
        """
        doubts = self.place.record["resources"]["in_doubt"][:1]
        said = ("--reason", "a test", "--yes")
        return tuple(("reconcile", "asked", "--forget", d["address"], *said) for d in doubts)


@contextmanager
def _open(url: str, content: bytes | None = None) -> Iterator[IO[bytes]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, content)) as answer:
        yield answer


def _unanswered(machine: Project) -> list[Path]:
    """
    The identities of the mutating calls of the newest run that have not ended.
    """
    newest = max(machine.own.glob("runs/*"))
    return [
        file
        for file in newest.glob("steps/*/*/apply.identity.json")
        if not file.with_name("apply.answer.json").exists()
    ]


def _kill(machine: Project, tool: Running, *, engine: bool) -> None:
    """
    Kill the tool, and with the ``engine`` of its newest run, as a lost machine does.
    """
    if tool.poll() is not None:
        finish(tool)
        return
    kill(tool)
    for file in _unanswered(machine) if engine else ():
        with suppress(ProcessLookupError):
            os.killpg(json.loads(file.read_text())["wrapper"]["pid"], signal.SIGKILL)


@every_engine
def test_nothing_made_by_a_real_engine_drops_out_of_sight(tmp_path: Path, engine: str) -> None:
    """
    Law: nothing drops out of sight.
    And nothing that others made is deleted.
    """
    count, _, seed = os.environ.get("ORCHESTRATOR_TEST_HISTORIES", "12").partition(":")
    first = int(seed or random.randrange(10**6))
    with state_server() as address:
        world = World(tmp_path, engine, f"{address}/things")
        with world.cloud.attached() as reattach:
            world.place.project.environ["TF_REATTACH_PROVIDERS"] = reattach
            assert world.place.apply().code == 0
            world.keep()
            for number in range(first, first + int(count)):
                print(f"history {number}: ORCHESTRATOR_TEST_HISTORIES=1:{number}")
                _play(world, number)


def _play(world: World, number: int) -> None:
    chance, done = random.Random(number), ["apply"]
    world.begin()
    for _ in range(5):
        done.append(world.act(chance))
        left = world.unseen()
        assert not left, (number, left, done)
        made = {call.id for call in world.cloud.calls("create")}
        theirs = [c for c in world.cloud.calls("delete") if c.id and c.id not in made]
        assert not theirs, (number, theirs, done)
