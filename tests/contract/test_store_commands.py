"""
``store check``, ``copy``, ``export``, ``import`` and ``prune``, on every kind of store.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.app.commands.store import check_store, copy_store, export_store, import_store
from orchestrator.app.commands.store_holder import StoreHolder, prune
from orchestrator.domain.documents.documents import StorePruneDocument
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, ProcessIdentity, RunRecord
from orchestrator.domain.record.states import Liveness
from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, Fenced, Invalid, StoreUnavailable
from orchestrator.ports.store import OperationStore
from orchestrator.stores.sqlite import MemoryStore
from tests.contract.stores import STORES, store_place
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, NETWORK, OWNER, claim, entry

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


class Processes:
    """
    Of all others nothing is known, but for those that are ``gone``.
    """

    def __init__(self, *gone: ProcessIdentity) -> None:
        self._gone = gone

    def me(self) -> ProcessIdentity:
        return OWNER

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        return Liveness.GONE if identity in self._gone else Liveness.UNKNOWN


def holder(command: str = "copy", *gone: ProcessIdentity) -> StoreHolder:
    found = scratch().model_copy(update={"command": f"store {command}"})
    return StoreHolder(found, Processes(*gone))


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
            place = {"blueprint": claim.blueprint, "environment": claim.environment}
            text = {"run_id": claim.run_id, "claim": claim.model_dump_json()}
            self._write("put_claim", place | text)
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

    copy_store(source, store, holder())
    document = copy_store(source, store, holder())

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
        copy_store(source, destination, holder())

    assert destination.records() == []


def test_a_copy_that_was_broken_off_is_finished() -> None:
    """
    The destination goes away at any call, or the copy is killed there: repeated, it does the rest,
    and nothing is doubled. Until it is done nobody gets a claim on what is half there.
    """
    for left in itertools.count():
        destination, source = Failing(left), filled()
        dead = OWNER.model_copy(update={"pid": 1})
        theirs = {"run_id": "run-dead", "owner": dead, "command": "store copy"}
        killed = replace(holder(), claim=scratch().model_copy(update=theirs))
        try:
            copy_store(source, destination, killed)
            break
        except StoreUnavailable:
            destination.left = 10_000
            held = destination.claim("web", "prod")
            assert held is not None or not destination.records()
            if held is not None:
                with pytest.raises(Busy):
                    copy_store(source, destination, holder())
            copy_store(source, destination, holder("copy", dead))
        assert destination.history(NETWORK) == source.history(NETWORK)
        assert destination.history(OTHER) == source.history(OTHER)
        assert destination.blob("runs/r/run.json") == b"{}"
        assert destination.claim("web", "prod") is None

    assert left > 8


class Failing(MemoryStore):
    """
    A store that is away for good after some calls.
    """

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("away")

    def append(self, record: OperationRecord) -> None:
        self._count()
        super().append(record)

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        self._count()
        return super().take_claim(claim, replaces=replaces)

    def drop_claim(self, claim: Claim) -> None:
        self._count()
        super().drop_claim(claim)

    def put_blob(self, name: str, data: bytes) -> None:
        self._count()
        super().put_blob(name, data)

    def history(self, target: Target) -> list[OperationRecord]:
        self._count()
        return super().history(target)

    def probe(self) -> None:
        self._count()
        super().probe()


def test_nothing_is_copied_or_imported_under_a_run() -> None:
    """
    Of the destination: it would believe half a history.
    """
    destination, lines = MemoryStore(), list(export_store(filled()))
    destination.take_claim(claim("run-1"))

    with pytest.raises(Busy, match="run-1"):
        copy_store(filled(), destination, holder())
    with pytest.raises(Busy, match="run-1"):
        import_store(lines, destination, holder(), source="x", progress=lambda _: None)

    assert destination.records() == []


@pytest.mark.parametrize(("source", "blueprint"), [(MemoryStore(), None), (filled(), "shop")])
def test_a_copy_of_nothing_is_refused(source: MemoryStore, blueprint: str | None) -> None:
    """
    A store that does not exist reads as empty: a mistyped place is no copy.
    """
    with pytest.raises(Invalid, match="no records"):
        copy_store(source, MemoryStore(), holder(), blueprint=blueprint, environment="prod")


def test_an_import_of_nothing_is_refused() -> None:
    """
    So is an export that is empty.
    """
    with pytest.raises(Invalid, match="no records"):
        import_store(["", "\n"], MemoryStore(), holder(), source="x", progress=lambda _: None)


def test_a_copy_overwrites_no_other_entries() -> None:
    """
    A target that has a history of its own in the other store is refused.
    """
    destination = MemoryStore()
    destination.append(entry(NETWORK, 1, "somebody else's"))

    with pytest.raises(Fenced):
        copy_store(filled(), destination, holder())

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
        [json.dumps(first), *lines[1:]],
        store,
        holder("import"),
        source="records.jsonl",
        progress=lambda _: None,
    )

    assert store.history(OTHER) == source.history(OTHER)
    oldest = store.history(NETWORK)[-1]
    assert json.loads(oldest.to_json())["of_a_newer_minor"] == {"a": 1}


def test_an_export_has_what_a_later_run_needs() -> None:
    """
    The recorded inputs and the deployment that the newest entry names, and nothing else that an
    entry may say is one.
    """
    source, destination = MemoryStore(), MemoryStore()
    inputs = "runs/r/steps/network/1/resolved.inputs.yml"
    named = {"resolved_inputs_file": inputs, "deployment": "sha256:d"}
    source.append(entry(NETWORK, 1, **named))
    source.append(entry(OTHER, 1, resolved_inputs_file="project-key"))
    for name in (inputs, "deployments/sha256:d", "deployments/sha256:e", "project-key"):
        source.put_blob(name, name.encode())
    lines = list(export_store(source))
    planted = lines[1].replace('"blobs":{}', '"blobs":{"project-key":"planted"}')
    assert planted != lines[1]

    done = import_store(
        [lines[0], planted],
        destination,
        holder("import"),
        source="records.jsonl",
        progress=lambda _: None,
    )

    assert done.blobs == 2
    assert {name: destination.blob(name) for name in destination.blobs("")} == {
        name: name.encode() for name in (inputs, "deployments/sha256:d")
    }


def test_a_broken_export_is_refused_before_anything_is_written() -> None:
    """
    The error names the line.
    """
    lines = [*export_store(filled()), '{"schema": "orchestrator.store_export/1"}']
    store = MemoryStore()

    with pytest.raises(Invalid) as caught:
        import_store(
            lines, store, holder("import"), source="records.jsonl", progress=lambda _: None
        )

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
        store, holder("prune"), now=START, older_than=timedelta(days=90), keep=keep, remove=remove
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


def test_what_a_run_names_that_ends_meanwhile_is_not_pruned() -> None:
    """
    Between the first look and the claims: what is named is read when everything is held.
    """

    class Late(MemoryStore):
        def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
            if self.newest(NETWORK) == first:
                self.append(entry(NETWORK, 2, run_id=third, deployment="sha256:d3"))
            return super().take_claim(claim, replaces=replaces)

    store = Late()
    third = with_runs(store)[2]
    first = store.newest(NETWORK)
    pruned(store, keep=0, remove=True)

    assert store.blob(f"runs/{third}/run.json") is not None
    assert store.blob("deployments/sha256:d3") is not None


def test_what_a_run_names_that_cannot_be_read_is_not_pruned() -> None:
    """
    A newer version may have written it.
    """
    store = MemoryStore()
    newer = b'{"schema": "orchestrator.run/2", "deployed": "sha256:d9"}'
    store.put_blob("runs/20290101T000000000Z-newer/run.json", newer)
    store.put_blob("deployments/sha256:d9", b"steps")

    assert pruned(store, keep=0, remove=True).blobs == ()


def test_nothing_is_pruned_under_the_first_run_of_a_blueprint(store: OperationStore) -> None:
    """
    It has no entries yet, and what it has stored is named by its run only.
    """
    with_runs(store)
    run = run_of(5, 400, "sha256:d5").model_copy(update={"blueprint": "new"})
    store.put_blob(f"runs/{run.run_id}/run.json", run.to_json().encode())
    store.take_claim(claim("live", blueprint="new"))

    with pytest.raises(Busy, match="live"):
        pruned(store, keep=0, remove=True)

    assert store.blob(f"runs/{run.run_id}/run.json") is not None


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
