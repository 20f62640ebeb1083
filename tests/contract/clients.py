"""
Clients of a store in processes of their own, forks of `tests.server`: they race, and are killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.domain.target import Target
from orchestrator.errors import Fenced
from orchestrator.ports.store import OperationStore
from orchestrator.stores.project_store import open_store
from tests.fakes.entries import NETWORK, claim, entry, lease


@dataclass(frozen=True, slots=True)
class Place:
    """
    One empty place, as any process can open it.
    """

    url: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    project: str = "acme"

    def open(self) -> OperationStore:
        """
        A store on it.
        """
        return open_store(
            self.url,
            project_dir=Path("/"),
            project=self.project,
            environ=self.environ,
            config=self.config,
        )

    @property
    def document(self) -> dict[str, Any]:
        """
        Its fields, as they are handed to a client.
        """
        return asdict(self)


def take_turns(place: Mapping[str, Any], process: str) -> int:
    """
    Each of four threads, with a store of its own, appends two entries to one target, holding the
    claim of another while nobody else does. Tells who wrote what.
    """

    def write(name: str) -> tuple[str, list[int]]:
        store, ours = Place(**place).open(), claim(name, environment="dev")
        written: list[int] = []
        while len(written) < 2:
            if store.take_claim(ours) is None:
                held = store.claim("web", "dev")
                assert held == ours, held
                store.drop_claim(ours)
            newest = store.newest(NETWORK)
            sequence = newest.sequence + 1 if newest else 1
            try:
                store.append(entry(sequence=sequence, entry_id=f"{name}-{sequence}"))
                written.append(sequence)
            except Fenced:
                pass
        store.close()
        return name, written

    with ThreadPoolExecutor(4) as pool:
        names = [f"{process}-{number}" for number in range(4)]
        print(json.dumps(dict(pool.map(write, names))))
    return 0


def work(place: Mapping[str, Any], number: int, told: str) -> int:
    """
    Do everything that runs do with a store, for ever; tell after each what is done, in a file.
    """
    store = Place(**place).open()
    mine = Target("web", "prod", "t")
    with Path(told).open("w", buffering=1) as done:
        while True:
            number += 1
            for name, call in _calls(store, mine, number).items():
                call()
                done.write(f"{name} {number}\n")


def _calls(store: OperationStore, mine: Target, number: int) -> dict[str, Callable[[], object]]:
    ours = claim(f"run-{number}")
    owner = ours.owner.model_copy(update={"pid": number})
    newest = store.newest(mine)
    return {
        "append": lambda: store.append(entry(mine, newest.sequence + 1 if newest else 1)),
        "claim": lambda: store.take_claim(ours, replaces=store.claim("web", "prod")),
        "lease": lambda: store.put_lease(lease("run").model_copy(update={"owner": owner})),
        "blob": lambda: store.put_blob("runs/r/evidence.zip", b"%08d" % number * 20_000),
        "key": lambda: store.create_blob(f"key/{number}", b"%d" % number),
        "unclaim": lambda: store.drop_claim(ours),
    }


def once(place: Mapping[str, Any], operation: str) -> int:
    """
    Do one thing.
    """
    store = Place(**place).open()
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: store.append(entry(sequence=2, entry_id="killed")),
        "claim": lambda: store.take_claim(claim("killed")),
        "lease": lambda: store.put_lease(lease("killed")),
        "blob": lambda: store.put_blob("runs/r/evidence.zip", bytes(100_000)),
        "key": lambda: store.create_blob("project-key", b"killed"),
    }
    calls[operation]()
    return 0
