"""
The laws of ``ports.OperationStore``, held by every store.

A store joins by a place in `tests.contract.stores`.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from orchestrator.domain.record.record import OperationRecord, parse_record
from orchestrator.domain.record.states import Status
from orchestrator.domain.target import Target
from orchestrator.domain.values import changed_fields, replace
from orchestrator.errors import Fenced, StoreUnavailable
from orchestrator.ports.store import OperationStore
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore, path_name
from orchestrator.stores.sql_store import SqlStore
from orchestrator.stores.sqlite import SqliteStore
from tests.contract.clients import Place
from tests.contract.stores import SCHEMES, STORES, shared_place, store_place
from tests.engine.postgres import Postgres
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.servers import ObjectServer, filled_server

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from orchestrator.stores.google_client import ClientWithKey

Open = Callable[[], OperationStore]


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """
    Opens stores on one place that is empty at first.
    """
    opened: list[OperationStore] = []
    make = store_place(request, request.param, tmp_path)

    def open_one() -> OperationStore:
        opened.append(make())
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(place: Open) -> OperationStore:
    return place()


def test_a_target_without_entries_has_no_newest_entry(store: OperationStore) -> None:
    """
    What was never written reads as None and empty, not as an error.
    """
    found = (store.newest(NETWORK), store.history(NETWORK), store.records())

    assert found == (None, [], [])


def test_the_newest_entry_is_what_was_appended_last(place: Open) -> None:
    """
    What one store appended another store on the same place reads, equal in every field.
    """
    second = entry(sequence=2, status=Status.ERROR, outputs={"id": [1, {"ä": None}]})
    place().append(entry(sequence=1))
    place().append(second)

    assert place().newest(NETWORK) == second


def test_history_is_newest_first_and_complete(store: OperationStore) -> None:
    """
    Older entries are history: none is lost or changed by a newer one.
    """
    entries = [entry(sequence=number, last_error=f"try {number}") for number in (1, 2, 3)]
    for each in entries:
        store.append(each)

    assert store.history(NETWORK) == entries[::-1]


def test_records_are_the_newest_of_each_target_sorted_by_target(store: OperationStore) -> None:
    """
    ``records`` returns one entry per target, filtered by blueprint and environment.
    """
    targets = [
        Target("web", "prod", "b"),
        Target("api", "prod", "z"),
        Target("web", "dev", "c"),
        Target("web", "prod", 'a["x.y"]'),
    ]
    for target in targets:
        store.append(entry(target, 1))
        store.append(entry(target, 2))

    def listed(found: list[OperationRecord]) -> list[tuple[str, int]]:
        return [(str(record.target), record.sequence) for record in found]

    assert listed(store.records("web", "prod")) == [('web/prod/a["x.y"]', 2), ("web/prod/b", 2)]
    assert [name for name, _ in listed(store.records("web"))] == [
        "web/dev/c",
        'web/prod/a["x.y"]',
        "web/prod/b",
    ]
    assert [name for name, _ in listed(store.records(environment="prod"))] == [
        "api/prod/z",
        'web/prod/a["x.y"]',
        "web/prod/b",
    ]
    assert [target for target, _ in listed(store.records())] == [str(t) for t in sorted(targets)]


def test_what_another_store_appended_is_read(place: Open) -> None:
    """
    However much a store has read and written before: ``newest``, ``records`` and ``history`` show
    what others wrote since. ``newest_known`` may not, and an append after it is fenced then.
    """
    store, other = place(), place()
    store.append(entry(sequence=1))
    store.records()
    other.append(entry(sequence=2, entry_id="theirs"))
    known = store.newest_known(NETWORK)
    assert known is not None and known.sequence in (1, 2)

    with pytest.raises(Fenced):
        store.append(entry(sequence=2, entry_id="ours"))
    other.append(entry(sequence=3))

    assert [record.sequence for record in store.records()] == [3]
    assert [record.sequence for record in store.history(NETWORK)] == [3, 2, 1]
    assert store.newest(NETWORK) == entry(sequence=3)
    assert store.newest_known(NETWORK) == entry(sequence=3)


def test_an_entry_whose_place_is_taken_is_fenced(place: Open) -> None:
    """
    Of two appends with one sequence exactly one returns; the other changes nothing.
    """
    store = place()
    store.append(entry(sequence=1, entry_id="mine"))

    with pytest.raises(Fenced, match="entry 1 of web/prod/network"):
        place().append(entry(sequence=1, entry_id="theirs"))

    assert [record.entry_id for record in store.history(NETWORK)] == ["mine"]


@pytest.mark.parametrize("sequence", [1, 3, 4, 9])
def test_an_entry_is_appended_only_after_its_predecessor(
    store: OperationStore, sequence: int
) -> None:
    """
    Entry N is appended only if N-1 is the newest: no gap, and nothing between older entries.
    """
    store.append(entry(sequence=1))
    store.append(entry(sequence=2))
    expected = sequence == 3

    try:
        store.append(entry(sequence=sequence, entry_id="new"))
        appended = True
    except Fenced:
        appended = False

    assert appended is expected
    assert [r.sequence for r in store.history(NETWORK)] == ([3, 2, 1] if expected else [2, 1])


def test_a_first_entry_is_number_one(store: OperationStore) -> None:
    """
    A target's entries begin at 1.
    """
    with pytest.raises(Fenced):
        store.append(entry(sequence=2))

    assert store.newest(NETWORK) is None


def test_our_own_entry_is_recognised(place: Open) -> None:
    """
    Appending the same entry id again returns, also after newer entries: the answer was lost.
    """
    first = entry(sequence=1)
    place().append(first)
    place().append(entry(sequence=2))

    place().append(first)

    assert [record.sequence for record in place().history(NETWORK)] == [2, 1]


def test_of_many_appends_at_once_exactly_one_returns(place: Open) -> None:
    """
    Threads that append the same sequence: one wins, all others are fenced.
    """
    outcomes: list[str] = []
    ready = threading.Barrier(8)
    store = place()

    def append(name: str) -> None:
        ready.wait()
        try:
            store.append(entry(sequence=1, entry_id=name))
            outcomes.append(name)
        except Fenced:
            outcomes.append("fenced")

    threads = [threading.Thread(target=append, args=(f"entry-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    winners = [name for name in outcomes if name != "fenced"]
    assert len(winners) == 1
    assert len(outcomes) == 8
    newest = store.newest(NETWORK)
    assert newest is not None
    assert newest.entry_id == winners[0]


def test_forty_steps_append_in_parallel(place: Open) -> None:
    """
    Appends to different targets from many threads all arrive, whole and in order.
    """
    store = place()
    targets = [Target("web", "prod", f"s{number:02d}") for number in range(40)]

    def append(target: Target) -> None:
        for sequence in (1, 2, 3):
            store.append(entry(target, sequence))

    threads = [threading.Thread(target=append, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [(r.target, r.sequence) for r in place().records()] == [(t, 3) for t in targets]


def test_unknown_fields_of_a_newer_minor_survive(place: Open) -> None:
    """
    Fields that this version does not know come back, also after a change of the record.
    """
    document = json.loads(entry(sequence=1).to_json())
    del document["checksum"]
    document |= {"schema": "orchestrator.operation/1.7", "colour": {"of": ["sky"]}}
    document["actor"] |= {"badge": 7}
    newer = parse_record(json.dumps(document))
    place().append(newer)
    read = place().newest(NETWORK)
    assert read is not None

    place().append(read.model_copy(update={"sequence": 2, "entry_id": "next"}))

    kept = place().newest(NETWORK)
    assert kept is not None
    assert kept.model_extra == {"colour": {"of": ["sky"]}}
    assert kept.actor.model_extra == {"badge": 7}
    assert kept.schema_ == "orchestrator.operation/1.7"


def test_a_claim_is_held_by_one_run(place: Open) -> None:
    """
    A second run is told who holds the claim, and changes nothing.
    """
    store = place()
    assert store.take_claim(claim("run-1")) is None

    holder = place().take_claim(claim("run-2"))

    assert holder == claim("run-1")
    assert store.claim("web", "prod") == claim("run-1")


def test_claims_of_other_environments_do_not_meet(store: OperationStore) -> None:
    """
    The claim is of a blueprint in an environment.
    """
    store.take_claim(claim("run-1"))

    taken = [
        store.take_claim(claim("run-2", environment="dev")),
        store.take_claim(claim("run-3", blueprint="api")),
    ]

    assert taken == [None, None]


def test_a_claim_that_the_run_holds_can_be_taken_again(store: OperationStore) -> None:
    """
    Taking a claim that the same run holds succeeds.
    """
    store.take_claim(claim("run-1"))

    assert store.take_claim(claim("run-1")) is None


@pytest.mark.parametrize(
    ("held", "taken"), [("dead", True), ("other", False), (None, True), ("run-2", True)]
)
def test_a_claim_is_replaced_only_where_it_is_the_expected_one(
    store: OperationStore, held: str | None, taken: bool
) -> None:
    """
    With ``replaces`` a claim is taken from exactly that holder; one that is free can be taken.
    """
    if held is not None:
        store.take_claim(claim(held))

    holder = store.take_claim(claim("run-2"), replaces=claim("dead"))

    assert (holder is None) is taken
    now = store.claim("web", "prod")
    assert now is not None
    assert now.run_id == ("run-2" if taken else held)


def test_a_claim_renewed_by_its_holder_is_no_longer_the_expected_one(
    store: OperationStore,
) -> None:
    """
    ``replaces`` compares the whole claim, not only its run.
    """
    dead = claim("dead")
    store.take_claim(dead.model_copy(update={"command": "destroy"}))

    holder = store.take_claim(claim("run-2"), replaces=dead)

    assert holder is not None
    assert holder.command == "destroy"


def test_of_many_that_take_a_claim_exactly_one_gets_it(place: Open) -> None:
    """
    Threads that take one claim: one gets it, all others learn its name.
    """
    answers: dict[str, str | None] = {}
    ready = threading.Barrier(8)
    store = place()

    def take(run_id: str) -> None:
        ready.wait()
        holder = store.take_claim(claim(run_id))
        answers[run_id] = holder.run_id if holder else None

    threads = [threading.Thread(target=take, args=(f"run-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    winners = [run_id for run_id, holder in answers.items() if holder is None]
    assert len(winners) == 1
    assert {holder for holder in answers.values() if holder} == set(winners)


def test_only_the_holder_drops_a_claim(store: OperationStore) -> None:
    """
    Nothing happens where another run holds the claim; its own run gives it up.
    """
    store.take_claim(claim("run-1"))

    store.drop_claim(claim("run-2"))
    after_stranger = store.claim("web", "prod")
    store.drop_claim(claim("run-1"))

    assert after_stranger == claim("run-1")
    assert store.claim("web", "prod") is None


def test_the_age_of_a_lease_is_the_stores(place: Open) -> None:
    """
    A heartbeat is stamped by the store's clock: what the writer says of its age does not count.
    """
    store = place()
    store.put_lease(lease("run-1", age=1e9))

    first, second = place().lease("run-1"), place().lease("run-1")

    assert first is not None
    assert second is not None
    assert 0 <= first.age <= second.age < 1e9
    assert first.owner == lease("run-1").owner


def test_a_heartbeat_replaces_the_one_before(store: OperationStore) -> None:
    """
    A run has one lease; a dropped one is gone, and dropping none is no error.
    """
    store.put_lease(lease("run-1"))
    moved = lease("run-1").owner.model_copy(update={"pid": 1})
    store.put_lease(lease("run-1").model_copy(update={"owner": moved}))
    found = store.lease("run-1")
    store.drop_lease("run-1")
    store.drop_lease("run-1")

    assert found is not None
    assert found.owner.pid == 1
    assert store.lease("run-1") is None


def test_blobs_are_bytes_by_name(place: Open) -> None:
    """
    A blob comes back byte for byte; the same name again replaces it; an unknown one is None.
    """
    data = bytes(range(256)) * 1000
    place().put_blob("modules/sha256:1", b"old")
    place().put_blob("modules/sha256:1", data)

    assert place().blob("modules/sha256:1") == data
    assert place().blob("modules/sha256:2") is None


def test_a_blob_is_created_once(place: Open) -> None:
    """
    Of many that create a blob at once all get the bytes of one, and so do those that come later.
    """
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda n: place().create_blob("key", b"%d" % n), range(16)))

    assert len(found) == 1
    assert {place().create_blob("key", b"late"), place().blob("key")} == found


def test_an_empty_blob_is_not_a_missing_one(store: OperationStore) -> None:
    """
    No bytes are bytes.
    """
    store.put_blob("empty", b"")

    assert store.blob("empty") == b""


def test_blobs_are_listed_by_prefix(store: OperationStore) -> None:
    """
    A prefix is plain text: it has no wildcards, and matches case.
    """
    for name in ("runs/b", "runs/a", "RUNS/c", "runs_d", "runs%e", "räder"):
        store.put_blob(name, b"")

    assert store.blobs("runs/") == ["runs/a", "runs/b"]
    assert store.blobs("runs_") == ["runs_d"]
    assert store.blobs("runs%") == ["runs%e"]
    assert store.blobs("rä") == ["räder"]
    assert len(store.blobs("")) == 6


def test_a_probe_leaves_nothing_behind(store: OperationStore) -> None:
    """
    Proving that it can be written changes no record, claim, lease or blob.
    """
    store.append(entry())

    store.probe()

    assert (store.history(NETWORK), store.blobs("")) == ([entry()], [])


def test_the_url_names_the_store(store: OperationStore) -> None:
    """
    The URL has a scheme and is stable.
    """
    assert store.url.partition(":")[0] in SCHEMES


def test_a_file_that_may_not_be_written_is_read_and_nothing_else(tmp_path: Path) -> None:
    """
    On a read-only file system the newest entries are read, those of the log too; whoever wants to
    write is told, and file and directory are as they were.
    """
    file = tmp_path / "o.db"
    writer = SqliteStore(file)
    writer.append(entry(sequence=1))
    writer.append(entry(sequence=2, entry_id="second"))
    before = sorted(path.name for path in tmp_path.iterdir())

    reader = SqliteStore(file, writable=lambda _: False)
    newest = reader.newest(NETWORK)
    with pytest.raises(StoreUnavailable, match="readonly"):
        reader.append(entry(sequence=3, entry_id="third"))
    reader.close()

    assert newest is not None and newest.sequence == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert len(writer.history(NETWORK)) == 2
    writer.close()


def test_what_is_no_store_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A FIFO is not opened, which would wait for ever; the private copy of a file that may not be
    written goes also where it turns out to be no store.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("x" * 4096)
    for name, said in (("fifo", "not a regular file"), ("text", "not a database")):
        with pytest.raises(StoreUnavailable, match=said):
            SqliteStore(tmp_path / name, writable=lambda _: False).newest(NETWORK)

    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("name", ["s3", "gs", "az"])
def test_a_bucket_that_is_gone_is_not_an_empty_one(
    request: pytest.FixtureRequest, name: str
) -> None:
    """
    Law: unreadable is not empty.
    Nothing reads as missing there, and what is written is not fenced: it waits for the bucket.
    """
    server: ObjectServer = request.getfixturevalue(name)
    bucket = open_bucket(f"{server.scheme}://gone-bucket/operations", server.config, server.environ)
    store = ObjectsStore(bucket, project="acme")
    calls: list[Callable[[], object]] = [
        lambda: store.newest(NETWORK),
        lambda: store.history(NETWORK),
        lambda: store.records(),
        lambda: store.append(entry(sequence=1)),
        lambda: store.append(entry(sequence=2)),
        lambda: store.take_claim(claim("run-1")),
        lambda: store.claim("web", "prod"),
        lambda: store.lease("run-1"),
        lambda: store.blob("project-key"),
        lambda: store.create_blob("project-key", b"key"),
        lambda: store.put_blob("b", b""),
        store.probe,
    ]

    for call in calls:
        with pytest.raises(StoreUnavailable, match="gone-bucket"):
            call()


def _spoil(
    place: Place, name: str, request: pytest.FixtureRequest, before: str, after: str
) -> None:
    """
    Change the text of the newest entry where it lies.
    """
    if name == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        database = place.url.rpartition("/")[2].partition("?")[0]
        table = "orchestrator.entries"
        server.query_in(database, f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        server.query_in(
            database, f"UPDATE {table} SET record = replace(record, '{before}', '{after}')"
        )
        return
    client = open_bucket(place.url, place.config, place.environ).client
    key = "1/acme/heads/web/prod/network"
    text = bytes(client.get(key).bytes()).decode()
    client.put(key, text.replace(before, after).encode())


@pytest.mark.parametrize("name", ["postgres", "s3", "gs", "az"])
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("operation/1", "operation/2", "operation/2"),
        ("modules/network", "modules/notwork", "checksum"),
        ('"schema"', '"schema', "entry"),
        ("{", "", "entry"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_written_after_it(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, before: str, after: str, said: str
) -> None:
    """
    Law: unreadable is not empty.
    An entry of a newer version, one that was changed, one that is cut: reading it fails, in a
    listing and alone.
    """
    place = shared_place(request, name, tmp_path)
    writer = place.open()
    writer.append(entry(sequence=1))
    writer.close()
    _spoil(place, name, request, before, after)
    store = place.open()
    reads: list[Callable[[], object]] = [
        lambda: store.newest(NETWORK),
        lambda: store.history(NETWORK),
        lambda: store.records(),
        lambda: store.append(entry(sequence=1, entry_id="another")),
    ]
    for read in reads:
        with pytest.raises(StoreUnavailable, match=said) as raised:
            read()
        way = "newer version" if said == "operation/2" else "restore it from a backup"
        assert way in raised.value.hint
    store.close()


@pytest.mark.parametrize("name", ["s3", "gs", "az"])
def test_what_others_put_into_a_bucket_is_left_alone(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """
    Objects between ours with names that we would not give are not taken for records or blobs.
    """
    place = shared_place(request, name, tmp_path)
    store = place.open()
    odd = Target("web", "prod", 'x["ä/b"]')
    store.append(entry())
    store.append(entry(odd))
    store.put_blob("runs/r/run.json", b"{}")
    client = open_bucket(place.url, place.config, place.environ).client
    for stray in ("heads/README", "heads/web/prod/.a", "heads/web/prod/=ZZ", "heads/web/x/_é"):
        client.put(f"1/acme/{stray}", b"not ours")
    for stray in ("blobs/é", "blobs/runs/=ZZ", "blobs/runs/r/.DS_Store"):
        client.put(f"1/acme/{stray}", b"not ours")

    assert store.records() == [entry(), entry(odd)]
    assert store.records("web", "prod") == [entry(), entry(odd)]
    assert store.blobs("") == ["runs/r/run.json"]
    assert store.blobs("runs/") == ["runs/r/run.json"]
    store.close()


@pytest.mark.parametrize("name", ["s3", "gs", "az"])
def test_a_bucket_of_a_newer_layout_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """
    Before anything is written there: the probe that comes before every mutation says so.
    """
    place = shared_place(request, name, tmp_path)
    client = open_bucket(place.url, place.config, place.environ).client
    client.put("1/acme/conditional-writes", b"layout 2\n")
    store = place.open()

    with pytest.raises(StoreUnavailable, match="another layout") as raised:
        store.probe()

    assert "newer version" in raised.value.hint
    assert bytes(client.get("1/acme/conditional-writes").bytes()) == b"layout 2\n"
    store.close()


class Listing(NamedTuple):
    """
    A client that lists what is in a bucket, and knows what it holds: to ask for ten thousand
    objects one by one would take half a minute.
    """

    client: ObjectStore | ClientWithKey
    objects: Mapping[str, str]

    def list(self, prefix: str) -> Iterable[Any]:
        return self.client.list(prefix)

    def get(self, path: str) -> SimpleNamespace:
        data = self.objects[path].encode()
        meta = {"e_tag": None, "version": None, "last_modified": None}
        return SimpleNamespace(bytes=lambda: data, meta=meta)


def _fill(store: OperationStore, records: Sequence[OperationRecord]) -> None:
    """
    Append entries, many to a transaction where there are any.
    """
    if not isinstance(store, SqlStore):
        for record in records:
            store.append(record)
        return
    for begin in range(0, len(records), 500):
        with store._transaction() as run:
            for record in records[begin : begin + 500]:
                own = {"sequence": record.sequence, "entry_id": record.entry_id}
                names = dict(changed_fields(record.target))
                run("append", {**names, **own, "record": record.to_json()})


@contextmanager
def _filled_bucket(
    scheme: str, directory: Path, records: Iterable[OperationRecord]
) -> Iterator[OperationStore]:
    """
    A store of these newest entries, of which only a listing is asked of the server.
    """
    objects = {
        f"1/acme/heads/{path_name(str(record.target))}": record.to_json() for record in records
    }
    stored = {f"operations/{key}": text for key, text in objects.items()}
    with filled_server(scheme, directory, "bucket", stored) as server:
        bucket = open_bucket(f"{scheme}://bucket/operations", server.config, server.environ)
        client = cast("ObjectStore", Listing(bucket.client, objects))
        yield ObjectsStore(replace(bucket, client=client), project="acme")


@cache
def _ten_thousand() -> tuple[OperationRecord, ...]:
    """
    The newest entries of a blueprint, sorted by target; some are second ones, some have odd names.
    """
    odd = "".join(c for c in map(chr, range(32, 127)) if c not in '/"') + "ä€😀"
    steps = [
        f"s{number:04d}" if number % 50 else f's{number:04d}["{odd[number % 97 :]}"]'
        for number in range(10_000)
    ]
    targets = sorted(Target("web", "prod", step) for step in steps)
    return tuple(entry(target, 1 + (n % 7 == 0), f"{n}") for n, target in enumerate(targets))


@pytest.mark.parametrize("name", STORES)
def test_thousands_of_targets_are_listed_whole(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """
    In order, each once and as its newest entry, whatever a page of the server holds and whatever
    stands in their names.
    """
    newest = _ten_thousand()
    places = (("web", "prod-2"), ("web-2", "prod"), ("wea", "prod"))
    beside = [entry(Target(*place, "s")) for place in places]
    with ExitStack() as stack:
        if name in ("s3", "gs", "az"):
            filled = _filled_bucket(name, tmp_path, [*beside, *newest])
            store = stack.enter_context(filled)
        else:
            store = stack.enter_context(closing(store_place(request, name, tmp_path)()))
            older = [entry(record.target) for record in newest if record.sequence > 1]
            _fill(store, [*beside, *older, *newest])

        found = store.records("web", "prod")

    assert [(record.target, record.entry_id) for record in found] == [
        (record.target, f"{number}") for number, record in enumerate(newest)
    ]


@pytest.mark.parametrize("number", range(2))
def test_names_may_hold_every_legal_character(place: Open, number: int) -> None:
    """
    What the blueprint allows in a name comes back as it was, in targets, claims, leases and blobs,
    and no name is taken for another.
    """
    odd = "".join(c for c in map(chr, range(32, 127)) if c not in "/")[number::2] + "ä€😀"
    names = [odd, odd.swapcase(), f'{odd}["{odd}"]', ".", "..", f".{odd}", f"{odd}="]
    store = place()
    for name in names:
        store.append(entry(Target("web", "prod", name), 1, entry_id=name))
        store.put_blob(f"runs/{name}/run.json", name.encode())
        store.put_lease(lease(name))

    found = {record.target.step: record.entry_id for record in place().records("web", "prod")}
    assert found == {name: name for name in names}
    assert place().blobs("runs/") == sorted(f"runs/{name}/run.json" for name in names)
    for name in names:
        assert place().blob(f"runs/{name}/run.json") == name.encode()
        assert place().lease(name) is not None


def test_a_blob_may_be_large(place: Open) -> None:
    """
    50 MB, written whole.
    """
    data = bytes(range(256)) * 4096 * 50

    place().put_blob("runs/r/evidence.zip", data)

    assert place().blob("runs/r/evidence.zip") == data


def test_a_wrong_clock_here_does_not_age_a_lease(
    place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An hour ahead or behind on this machine: the age is what the store measured.
    """
    store = place()
    store.put_lease(lease("run-1"))
    real = time.time
    ages = []
    for skew in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        found = place().lease("run-1")
        assert found is not None
        ages.append(found.age)

    assert all(0 <= age < 60 for age in ages)
