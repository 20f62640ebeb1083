"""
Every store equals a plain list, whatever is done to it in whatever order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim
from orchestrator.domain.target import Target
from orchestrator.errors import Fenced
from orchestrator.ports.store import OperationStore
from tests.contract.stores import STORES, store_place
from tests.fakes.entries import claim, entry

TARGETS = [Target(b, e, s) for b in ("a", "b") for e in ("dev", "prod") for s in ("x", 'x["k"]')]
RUNS = ["run-1", "run-2", "run-3"]

targets = st.sampled_from(TARGETS)
names = st.text(st.sampled_from("ab/%_ä"), max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """
    The model is a list of entries per target and a few dicts.
    """

    def __init__(self, open_one: Callable[[], OperationStore], *, local: bool) -> None:
        super().__init__()
        self.open = open_one
        self.local = local
        self.store = self.open()
        self.entries: dict[Target, list[OperationRecord]] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.blobs: dict[str, bytes] = {}

    @rule(item=targets, offset=st.integers(-2, 2), entry_id=st.sampled_from("pqr"))
    def append(self, item: Target, offset: int, entry_id: str) -> None:
        held = self.entries.setdefault(item, [])
        sequence = max(1, len(held) + 1 + offset)
        record = entry(item, sequence, entry_id, last_error=f"{len(held)}")
        ours = sequence <= len(held) and held[sequence - 1].entry_id == entry_id
        fits = sequence == len(held) + 1
        try:
            self.store.append(record)
            assert fits or ours
        except Fenced:
            assert not (fits or ours)
        if fits:
            held.append(record)

    @rule(item=targets, run_id=st.sampled_from(RUNS), dead=st.none() | st.sampled_from(RUNS))
    def take_claim(self, item: Target, run_id: str, dead: str | None) -> None:
        place = (item.blueprint, item.environment)
        wanted = claim(run_id, blueprint=place[0], environment=place[1])
        replaces = claim(dead, blueprint=place[0], environment=place[1]) if dead else None
        held = self.claims.get(place)
        free = held is None or held.run_id == run_id or held == replaces
        assert self.store.take_claim(wanted, replaces=replaces) == (None if free else held)
        if free:
            self.claims[place] = wanted

    @rule(item=targets, run_id=st.sampled_from(RUNS))
    def drop_claim(self, item: Target, run_id: str) -> None:
        place = (item.blueprint, item.environment)
        self.store.drop_claim(claim(run_id, blueprint=place[0], environment=place[1]))
        if place in self.claims and self.claims[place].run_id == run_id:
            del self.claims[place]

    @rule(name=names, data=st.binary(max_size=20))
    def put_blob(self, name: str, data: bytes) -> None:
        self.store.put_blob(name, data)
        self.blobs[name] = data

    @rule(name=names, data=st.binary(max_size=20))
    def create_blob(self, name: str, data: bytes) -> None:
        assert self.store.create_blob(name, data) == self.blobs.setdefault(name, data)

    @rule(name=names)
    def drop_blob(self, name: str) -> None:
        self.store.drop_blob(name)
        self.blobs.pop(name, None)

    @rule(prefix=names)
    def list_blobs(self, prefix: str) -> None:
        assert self.store.blobs(prefix) == sorted(n for n in self.blobs if n.startswith(prefix))

    @rule()
    def probe(self) -> None:
        self.store.probe()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @invariant()
    def equals_the_model_all_along(self) -> None:
        if self.local:
            self.check()

    def check(self) -> None:
        """
        The store equals the model; behind a server that is asked for at the end only.
        """
        held = {target: entries for target, entries in self.entries.items() if entries}
        assert self.store.records() == [held[target][-1] for target in sorted(held)]
        assert self.store.records("a", "dev") == [
            held[t][-1] for t in sorted(held) if (t.blueprint, t.environment) == ("a", "dev")
        ]
        for target in TARGETS:
            entries = held.get(target, [])
            assert self.store.history(target) == entries[::-1]
            assert self.store.newest(target) == (entries[-1] if entries else None)
            place = (target.blueprint, target.environment)
            assert self.store.claim(*place) == self.claims.get(place)
        assert {name: self.store.blob(name) for name in self.store.blobs("")} == self.blobs

    def teardown(self) -> None:
        self.check()
        self.store.close()


#: Examples and steps of stores here, and of those behind a server, which cost requests.
_HERE, _REMOTE = (25, 30), (3, 15)


@pytest.mark.parametrize("name", STORES)
def test_a_store_equals_a_plain_list(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    """
    Whatever is done to it, in whatever order.
    """
    numbers = itertools.count()
    local = name in ("memory", "sqlite")

    class Machine(StoreMachine):
        def __init__(self) -> None:
            directory = tmp_path / f"{next(numbers)}"
            directory.mkdir()
            super().__init__(store_place(request, name, directory), local=local)

    examples, steps = _HERE if local else _REMOTE
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
