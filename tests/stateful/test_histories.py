"""
Nothing that the engine made drops out of sight, whatever happened.

A history is a list of acts: commands that meet faults and kills, and what providers, backends,
machines, stores and persons do between them. After each act one sentence must hold: what the
provider has that we made is in provider state, or in the record: in its inventory, in its doubts,
among what it released, or settled by a person's word. And nothing that others made is deleted.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.values import replace
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.sqlite import MemoryStore
from orchestrator.stores.watched_store import SequenceMemory, WatchedStore
from tests.fakes.engine import Cloud, FakeRoot, Fault, Killed, Thing
from tests.fakes.services import Premises
from tests.stateful.test_offered_commands import GRAPH, World

#: Answers by which a person's word stands for evidence.
_BY_A_PERSON = {"forgotten", "accepted"}


class FailingStore:
    """
    A store whose appends fail from a given one on, and that can be put back to a copy of it.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.appends_left: int | None = None

    def copy(self) -> bytes:
        return self._store._memory.serialize()

    def put_back(self, backup: bytes) -> None:
        self._store._memory.deserialize(backup)

    def entries(self) -> list[object]:
        return self._store._memory.execute("SELECT * FROM entries").fetchall()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, record: OperationRecord) -> None:
        if self.appends_left is not None:
            if self.appends_left == 0:
                raise StoreUnavailable("memory: the disk is full")
            self.appends_left -= 1
        self._store.append(record)


@dataclass(frozen=True, slots=True)
class Act:
    """
    A command, with what goes wrong while it runs; or what ``happens`` to a step between commands.
    """

    command: str = ""
    step: str = "network"
    fault: Fault | None = None
    meanwhile: str = ""
    happens: str = ""

    def __str__(self) -> str:
        if not self.command:
            return f"{self.happens} ({self.step})"
        wrong = [str(self.fault)] if self.fault else []
        wrong += [self.meanwhile] if self.meanwhile else []
        return self.command + (f" ({' and '.join(wrong)} at {self.step})" if wrong else "")


@dataclass(slots=True)
class Backup:
    """
    A provider state as it was.
    """

    things: dict[str, Thing] = field(default_factory=dict)
    lineage: str | None = None
    serial: int = 0


class History:
    """
    Two steps, one on the other, with a cloud each in which objects are counted.
    """

    def __init__(self, there: Premises) -> None:
        self.there = there
        self.world = World(there)
        self.store = FailingStore(there.store)
        self.store_backup: bytes | None = None
        self.backups: dict[str, Backup] = {}
        self.done: list[str] = []
        for step in GRAPH:
            root = there.root(step)
            root.cloud = Cloud()
            root.desired = {f"fake_object.{step}": 1, f"fake_object.{step}-b": 1}

    def play(self, act: Act) -> None:
        """
        Carry out one act.
        """
        root = self.there.root(act.step)
        if act.command and act.meanwhile == "the store is put back":
            self._run_on_an_old_store(act, root)
        elif act.command:
            self._run(act, root)
        else:
            self._happen(act.happens, act.step, root)

    def _open_store(self) -> None:
        """
        Open the store as a new process does.
        """
        memory = SequenceMemory(self.there.place / "seen", "memory:")
        location, own_file = StoreLocation(url="memory:"), self.there.place / "none.db"
        watched = WatchedStore(self.store, memory, location, own_file, lambda _: None)
        self.there.services = replace(
            self.there.services,
            store=watched,
            refusal=watched.refusal,
            note_reconciled=watched.note_reconciled,
        )

    def _run(self, act: Act, root: FakeRoot) -> None:
        self._open_store()
        address = f"fake_object.{act.step}"
        root.faults = {address: act.fault} if act.fault is not None else {}
        root.unreadable_after_apply = act.meanwhile == "the backend goes away"
        if act.meanwhile == "the store fails":
            self.store.appends_left = 1
        with suppress(Killed):
            code = self.world.type(act.command.format(**self._words(act.step, root)))
            self.done.append(f"{act}: exit {code}")
        root.faults, root.unreadable_after_apply, root.pull_error = {}, False, None
        self.store.appends_left = None

    def _run_on_an_old_store(self, act: Act, root: FakeRoot) -> None:
        """
        A command finds the store as it was: where anything was recorded since, no object is made,
        changed or deleted.
        """
        newest, entries, clouds = self.store.copy(), self.store.entries(), self._clouds()
        if self.store_backup is not None:
            self.store.put_back(self.store_backup)
        if self.store.entries() == entries:
            self._run(act, root)
            return
        self._run(act, root)
        assert self._clouds() == clouds, f"something was done on an old store: {self.told()}"
        self.store.put_back(newest)

    def _clouds(self) -> list[Cloud]:
        return [copy.deepcopy(_cloud(self.there.root(step))) for step in GRAPH]

    def _words(self, step: str, root: FakeRoot) -> dict[str, str]:
        """
        What a person types who looked: the address of a doubt, the id that the cloud has for it.
        """
        record = self.there.record(step)
        doubts = record.resources.in_doubt if record else ()
        address = doubts[0].address if doubts else f"fake_object.{step}"
        cloud = _cloud(root)
        held = {thing.id for thing in root.things.values()}
        ids = [id_ for id_, name in cloud.alive.items() if name == address and id_ not in held]
        return {"address": address, "id": ids[0] if ids else "id-of-nothing"}

    def _happen(self, what: str, step: str, root: FakeRoot) -> None:
        cloud = _cloud(root)
        match what:
            case "the module grows":
                root.desired = root.desired | {f"fake_object.{step}-c": 1}
            case "the module shrinks":
                root.desired = {f"fake_object.{step}": 1}
            case "the module changes":
                root.desired = dict.fromkeys(root.desired, 2)
            case "provider state is backed up":
                backup = Backup(copy.deepcopy(root.things), root.lineage, root.serial)
                self.backups[step] = backup
            case "provider state is restored" if step in self.backups:
                backup = self.backups[step]
                root.things = copy.deepcopy(backup.things)
                root.lineage, root.serial = backup.lineage, backup.serial
            case "provider state is emptied" if root.things:
                root.things, root.serial = {}, root.serial + 1
            case "provider state is lost":
                root.things, root.lineage, root.serial = {}, None, 0
            case "an object is removed from state" if root.things:
                root.things.pop(min(root.things))
                root.serial += 1
            case "somebody deletes an object" if cloud.alive:
                cloud.alive.pop(min(cloud.alive))
            case "somebody makes an object":
                cloud.alive[f"foreign-{len(cloud.alive)}"] = f"fake_object.{step}"
            case "the store is backed up":
                self.store_backup = self.store.copy()
            case "the machine is lost":
                for name in ("runs", "work"):
                    shutil.rmtree(self.there.place / name, ignore_errors=True)
            case "time passes":
                self.there.services.clock.sleep(100.0)
            case _:
                return
        self.done.append(f"{what} ({step})")

    def check(self) -> None:
        """
        The sentence that holds at every moment.
        """
        for step in GRAPH:
            root = self.there.root(step)
            cloud = _cloud(root)
            ids, addresses = self._in_sight(step, root)
            unseen = {
                id_: address
                for id_, address in cloud.alive.items()
                if id_ in cloud.made and id_ not in ids and address not in addresses
            }
            assert not unseen, f"alive and named nowhere: {unseen}, after {self.told()}"
            foreign = [id_ for id_ in cloud.deleted if id_ not in cloud.made]
            assert not foreign, f"deleted, and not ours: {foreign}, after {self.told()}"

    def _in_sight(self, step: str, root: FakeRoot) -> tuple[set[str], set[str]]:
        """
        Ids that state or records name, and addresses that they name without an id: in doubt, or
        planned under a marker.
        """
        ids = {thing.id for thing in root.things.values()}
        addresses: set[str] = set()
        spooled = [r for r in self.there.services.spool.pending() if r.target.step == step]
        for record in filter(None, [self.there.record(step), *spooled]):
            found = record.resources
            doubts = [*found.in_doubt]
            doubts += [item.doubt for item in record.settled if item.how in _BY_A_PERSON]
            ids |= {ref.id for ref in found.inventory if ref.id}
            ids |= {item.id for item in getattr(found, "released", ()) if item.id}
            ids |= {doubt.id for doubt in doubts if doubt.id}
            addresses |= {doubt.address for doubt in doubts if not doubt.id}
            if record.active_command is not None:
                addresses |= {item.address for item in found.planned}
        return ids, addresses

    def told(self) -> str:
        """
        The history, a line for each act.
        """
        return "\n  ".join(["", *self.done])


def _cloud(root: FakeRoot) -> Cloud:
    assert root.cloud is not None, "every root of a history has a cloud"
    return root.cloud


@contextmanager
def history() -> Iterator[History]:
    there = Premises(GRAPH)
    try:
        yield History(there)
    finally:
        there.close()


def check_history(acts: Sequence[Act]) -> None:
    with history() as found:
        for act in acts:
            found.play(act)
            found.check()


COMMANDS = [
    "orchestrator apply web",
    "orchestrator apply web --step {step}",
    "orchestrator apply web --accept-vanished 'a test'",
    "orchestrator destroy web",
    "orchestrator destroy web --step server",
    "orchestrator destroy web --accept-vanished 'a test'",
    "orchestrator reconcile web",
    "orchestrator reconcile web --step {step} --accept-vanished 'a test'",
    "orchestrator reconcile web --step {step} --adopt {{address}}={{id}} --reason 'a test'",
    "orchestrator reconcile web --step {step} --forget {{address}} --reason 'a test'",
    "orchestrator reconcile web --step {step} --rebuild-state --reason 'a test'",
    "orchestrator reconcile web --verify provider",
    "orchestrator retry web",
    "orchestrator redeploy web",
]
EVENTS = [
    "the module grows",
    "the module shrinks",
    "the module changes",
    "provider state is backed up",
    "provider state is restored",
    "provider state is emptied",
    "provider state is lost",
    "an object is removed from state",
    "somebody deletes an object",
    "somebody makes an object",
    "the store is backed up",
    "the machine is lost",
    "time passes",
]
FAULTS = [
    None,
    Fault.FAIL,
    Fault.REFUSE,
    Fault.LOSE,
    Fault.LIE,
    Fault.KILL_ENGINE,
    Fault.KILL_BOTH,
    Fault.KILL_US,
]
MEANWHILE = ["", "", "", "the backend goes away", "the store fails", "the store is put back"]


@st.composite
def acts(draw: st.DrawFn) -> Act:
    step = draw(st.sampled_from(list(GRAPH)))
    if draw(st.booleans()):
        return Act(step=step, happens=draw(st.sampled_from(EVENTS)))
    command = draw(st.sampled_from(COMMANDS)).format(step=step)
    fault, meanwhile = draw(st.sampled_from(FAULTS)), draw(st.sampled_from(MEANWHILE))
    return Act(command, step=step, fault=fault, meanwhile=meanwhile)


_KILLED = Act("orchestrator destroy web", fault=Fault.KILL_ENGINE)
_REMOVED = Act(happens="an object is removed from state")


@example([_KILLED, _REMOVED, Act("orchestrator destroy web")])
@example([_KILLED, _REMOVED, Act(happens="time passes"), Act("orchestrator apply web")])
@example([_KILLED, _REMOVED, Act(happens="time passes"), Act("orchestrator reconcile web")])
@example(
    [
        Act(happens="the store is backed up"),
        Act(happens="the module grows"),
        Act("orchestrator apply web"),
        Act("orchestrator destroy web", meanwhile="the store is put back"),
    ]
)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.lists(acts(), max_size=7))
def test_nothing_that_we_made_drops_out_of_sight(later: list[Act]) -> None:
    """
    Law: nothing drops out of sight.
    It holds after every act of every history that begins with an apply.
    """
    check_history([Act("orchestrator apply web"), *later])
