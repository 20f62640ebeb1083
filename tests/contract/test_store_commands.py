"""
``store check``, ``copy``, ``export``, ``import`` and ``prune``, on every kind of store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.app.commands.store import check_store, copy_store, export_store, import_store
from orchestrator.app.commands.store_prune import prune
from orchestrator.domain.documents.store import StorePruneDocument
from orchestrator.domain.record.run_record import Claim, RunRecord
from orchestrator.domain.target import Target
from orchestrator.errors import Busy, Fenced, Invalid
from orchestrator.ports.store import OperationStore
from orchestrator.stores.memory import MemoryStore
from tests.contract.stores import STORES, store_place
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, NETWORK, claim, entry

OTHER = Target("web", "prod", 'x["ä/b"]')


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OperationStore]:
    """
    An empty store of each kind.
    """
    opened = store_place(request, request.param, tmp_path)()
    yield opened
    opened.close()


def filled() -> MemoryStore:
    """
    A store with two targets, four entries and a blob.
    """
    store = MemoryStore()
    for number in (1, 2, 3):
        store.append(entry(NETWORK, number, outputs={"n": number}))
    store.append(entry(OTHER, 1))
    store.put_blob("runs/r/run.json", b"{}")
    return store


def scratch() -> Claim:
    return claim("run-check", blueprint="store-check", environment="e1")


def test_a_store_that_is_fit_passes_every_check(store: OperationStore) -> None:
    """
    Each of them is told with its time, and nothing stays claimed.
    """
    document = check_store(store, scratch())

    assert document.ok, document.to_json()
    assert all(check.milliseconds is not None for check in document.checks)
    assert store.claim("store-check", "e1") is None
    assert store.blobs("") == []


def test_a_store_that_lets_two_writers_win_is_told(tmp_path: Path) -> None:
    """
    Two writes one after the other would not show it: the race does.
    """

    class Careless(MemoryStore):
        def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
            self._claims[claim.blueprint, claim.environment] = claim
            return None

    document = check_store(Careless(), scratch())

    assert not document.ok
    (failed,) = [check for check in document.checks if not check.ok]
    assert "16 of 16 writers won" in str(failed.message)


def test_a_copy_holds_the_whole_history_and_every_blob(store: OperationStore) -> None:
    """
    Entries, their order and blobs are the same; done again, nothing is doubled.
    """
    source = filled()

    copy_store(source, store)
    document = copy_store(source, store)

    assert (document.targets, document.entries, document.blobs) == (2, 4, 1)
    assert store.history(NETWORK) == source.history(NETWORK)
    assert store.history(OTHER) == source.history(OTHER)
    assert store.blob("runs/r/run.json") == b"{}"


def test_a_store_that_a_run_works_in_is_not_copied() -> None:
    """
    What it writes meanwhile would be missing in the copy.
    """
    source, destination = filled(), MemoryStore()
    source.take_claim(claim("run-1"))

    with pytest.raises(Busy, match="run-1"):
        copy_store(source, destination)

    assert destination.records() == []


@pytest.mark.parametrize(("source", "blueprint"), [(MemoryStore(), None), (filled(), "shop")])
def test_a_copy_of_nothing_is_refused(source: MemoryStore, blueprint: str | None) -> None:
    """
    A store that does not exist reads as empty: a mistyped place is no copy.
    """
    with pytest.raises(Invalid, match="no records"):
        copy_store(source, MemoryStore(), blueprint=blueprint, environment="prod")


def test_an_import_of_nothing_is_refused() -> None:
    """
    So is an export that is empty.
    """
    with pytest.raises(Invalid, match="no records"):
        import_store(["", "\n"], MemoryStore(), source="x", progress=lambda _: None)


def test_a_copy_overwrites_no_other_entries() -> None:
    """
    A target that has a history of its own in the other store is refused.
    """
    destination = MemoryStore()
    destination.append(entry(NETWORK, 1, "somebody else's"))

    with pytest.raises(Fenced):
        copy_store(filled(), destination)

    assert [item.entry_id for item in destination.history(NETWORK)] == ["somebody else's"]


def test_an_export_can_be_imported(store: OperationStore) -> None:
    """
    One document a line; unknown fields of a newer minor version come along.
    """
    source = filled()
    lines = list(export_store(source))
    first = json.loads(lines[0])
    first["entries"][0]["of_a_newer_minor"] = {"a": 1}
    del first["entries"][0]["checksum"]

    import_store(
        [json.dumps(first), *lines[1:]], store, source="records.jsonl", progress=lambda _: None
    )

    assert store.history(OTHER) == source.history(OTHER)
    oldest = store.history(NETWORK)[-1]
    assert json.loads(oldest.to_json())["of_a_newer_minor"] == {"a": 1}


def test_a_broken_export_is_refused_before_anything_is_written() -> None:
    """
    The error names the line.
    """
    lines = [*export_store(filled()), '{"schema": "orchestrator.store_export/1"}']
    store = MemoryStore()

    with pytest.raises(Invalid) as caught:
        import_store(lines, store, source="records.jsonl", progress=lambda _: None)

    assert "records.jsonl:3" in caught.value.problems[0].message
    assert store.records() == []


def run_of(number: int, days: int, deployment: str) -> RunRecord:
    return RunRecord(
        run_id=f"2030010{number}T000000Z-00000{number}",
        project="acme",
        blueprint="web",
        environment="prod",
        command="apply",
        actor=ACTOR,
        source=entry().source,
        started_at=START - timedelta(days=days),
        deployment=deployment,
    )


def with_runs(store: OperationStore) -> list[str]:
    """
    Four runs, oldest first: the newest entry of a target names the second, nothing the others.
    """
    ids = []
    for number, days in ((1, 400), (2, 300), (3, 200), (4, 1)):
        run = run_of(number, days, f"sha256:d{number}")
        store.put_blob(f"runs/{run.run_id}/run.json", run.to_json().encode())
        store.put_blob(f"runs/{run.run_id}/evidence/network.zip", b"x")
        store.put_blob(f"deployments/sha256:d{number}", b"{}")
        ids.append(run.run_id)
    store.put_blob("project-key", b"00")
    store.put_blob("snapshots/sha256:s", b"x")
    store.append(entry(NETWORK, 1, run_id=ids[1], deployment="sha256:d2"))
    return ids


def pruned(store: OperationStore, *, keep: int, remove: bool) -> StorePruneDocument:
    return prune(
        store, scratch(), now=START, older_than=timedelta(days=90), keep=keep, remove=remove
    )


def test_what_nobody_names_is_pruned(store: OperationStore) -> None:
    """
    First it is only shown. Old runs go with what only they name; what a newest entry names, what is
    young, entries and the project key stay.
    """
    first, named, third, young = with_runs(store)
    before = store.blobs("")

    shown = pruned(store, keep=1, remove=False)
    unchanged = store.blobs("")
    done = pruned(store, keep=1, remove=True)

    assert [run.run_id for run in shown.runs] == [first, third]
    assert (unchanged, done.blobs) == (before, shown.blobs)
    assert {name.split("/")[1] for name in store.blobs("runs/")} == {named, young}
    assert store.blobs("deployments/") == ["deployments/sha256:d2", "deployments/sha256:d4"]
    assert (store.blobs("snapshots/"), store.blob("project-key")) == ([], b"00")
    assert store.newest(NETWORK) is not None
    assert store.claim("web", "prod") is None


def test_so_many_runs_stay_however_old(store: OperationStore) -> None:
    """
    The newest of each blueprint and environment.
    """
    with_runs(store)

    assert pruned(store, keep=4, remove=True).runs == ()


def test_nothing_is_pruned_under_a_run(store: OperationStore) -> None:
    """
    Busy while a run holds a claim, and nothing is removed.
    """
    with_runs(store)
    before = store.blobs("")
    store.take_claim(claim("live"))

    with pytest.raises(Busy):
        pruned(store, keep=1, remove=True)

    assert store.blobs("") == before
