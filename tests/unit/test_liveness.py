"""
Whether somebody still works on a running record: a table of what is known of owner and engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.domain.record.run_record import Lease, ProcessIdentity
from orchestrator.domain.record.states import Condition, Liveness
from orchestrator.run_files import RunFiles, Spool
from orchestrator.stores.sqlite import MemoryStore
from tests.fakes.clock import START
from tests.fakes.entries import OWNER, entry

ENGINE = OWNER.model_copy(update={"pid": 4712})


class Known:
    """
    Processes of which a test says whether they live.
    """

    def __init__(self, states: dict[int, Liveness]) -> None:
        self._states = states

    def me(self) -> ProcessIdentity:
        return OWNER

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        return self._states[identity.pid]


def reader_of(store: MemoryStore, place: Path, states: dict[int, Liveness]) -> ReadContext:
    return ReadContext(
        project="acme",
        store=store,
        spool=Spool(place / "spool"),
        files=RunFiles(place / "runs"),
        processes=Known(states),
        work=place / "work",
        today=START.date(),
        silence=60.0,
    )


ALIVE, GONE, UNKNOWN = Liveness.ALIVE, Liveness.GONE, Liveness.UNKNOWN


@pytest.mark.parametrize(
    ("owner", "engine", "age", "expected", "why"),
    [
        (ALIVE, None, 99, Condition.LIVE, "a slow heartbeat does not kill"),
        (GONE, ALIVE, 99, Condition.LIVE, "the engine outlives its owner"),
        (GONE, GONE, 0, Condition.INTERRUPTED, "both provably gone, however fresh the heartbeat"),
        (GONE, None, 0, Condition.INTERRUPTED, "the engine never began"),
        (UNKNOWN, None, 5, Condition.LIVE, "another host with a fresh heartbeat"),
        (UNKNOWN, None, 61, Condition.SILENT, "another host without one"),
        (GONE, UNKNOWN, 61, Condition.SILENT, "an engine that cannot be seen from here"),
        (None, None, 0, Condition.INTERRUPTED, "the lease was given back: the run has ended"),
        (None, GONE, 0, Condition.INTERRUPTED, "the lease was given back, the engine is gone"),
    ],
)
def test_conditions(
    tmp_path: Path,
    owner: Liveness | None,
    engine: Liveness | None,
    age: float,
    expected: Condition,
    why: str,
) -> None:
    """
    Live, interrupted only if both are provably gone, else silent.
    """
    seconds = [0.0]
    store = MemoryStore(seconds=lambda: seconds[0])
    files = RunFiles(tmp_path / "runs")
    record = entry(status="running", active_command="apply")
    files.attempt(record.run_id, record.target.step, record.attempt)
    if owner is not None:
        store.put_lease(Lease(run_id=record.run_id, owner=OWNER))
    seconds[0] = age
    if engine is not None:
        place = files.attempt(record.run_id, record.target.step, record.attempt)
        files.write(place / "apply.identity.json", ENGINE.model_dump_json())
    known = {OWNER.pid: owner or GONE, ENGINE.pid: engine or GONE}
    reader = reader_of(store, tmp_path, known)
    assert reader.condition(record) is expected, why


def test_only_running_records_have_a_condition(tmp_path: Path) -> None:
    """
    A condition is derived of running records only.
    """
    reader = reader_of(MemoryStore(), tmp_path, {})
    assert reader.condition(entry(status="ok")) is None


@pytest.mark.parametrize(
    ("boot", "expected"), [(OWNER.boot_id, Condition.SILENT), ("earlier", Condition.INTERRUPTED)]
)
def test_a_run_whose_directory_is_gone_proves_nothing_of_its_engine(
    tmp_path: Path, boot: str, expected: Condition
) -> None:
    """
    Its engine may have begun and outlive it: silent, unless the machine was started since.
    """
    store = MemoryStore()
    record = entry(status="running", active_command="apply")
    owner = OWNER.model_copy(update={"boot_id": boot})
    store.put_lease(Lease(run_id=record.run_id, owner=owner))
    reader = reader_of(store, tmp_path, {OWNER.pid: GONE})
    assert reader.condition(record) is expected
