"""
The SQLite store when things go wrong under it: kills, full disks, damage, other processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.domain.target import Target
from orchestrator.errors import OrchestratorError, StoreUnavailable
from orchestrator.stores.sql_store import migrations
from orchestrator.stores.sqlite import APPLICATION_ID, Mount, SqliteStore, migrate, mount_table
from tests.fakes.entries import NETWORK, entry, lease

ROOT = Path(__file__).parents[2]

# Four threads append to a target each; an entry is acknowledged on stdout once append returned.
APPENDER = """
import os, sys, threading
from pathlib import Path
from orchestrator.domain.target import Target
from orchestrator.stores.sqlite import SqliteStore
from tests.fakes.entries import entry

store = SqliteStore(Path(sys.argv[1]))

def work(step):
    target = Target("web", "prod", step)
    newest = store.newest(target)
    for sequence in range(newest.sequence + 1 if newest else 1, 1_000_000):
        store.append(entry(target, sequence, last_error="x" * (sequence * 997 % 20_000)))
        os.write(1, f"{step} {sequence}\\n".encode())

for step in ("a", "b", "c", "d"):
    threading.Thread(target=work, args=(step,)).start()
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )


_OPENED: list[SqliteStore] = []


def opened(
    path: Path, *, mounts: Callable[[], Sequence[Mount]] = mount_table, busy_timeout: float = 30.0
) -> SqliteStore:
    """
    A store that is closed when the test ends.
    """
    _OPENED.append(SqliteStore(path, mounts=mounts, busy_timeout=busy_timeout))
    return _OPENED[-1]


@pytest.fixture(autouse=True)
def closing_what_was_opened() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".orchestrator" / "operations.db"


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_a_kill(path: Path, seed: int) -> None:
    """
    SIGKILL at any point loses no acknowledged entry, leaves no gap and no damage; and again, on
    what is left.
    """
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}

    for _ in range(3):
        with start(APPENDER, str(path)) as child:
            assert child.stdout is not None
            for _ in range(chance.choice([0, 1, 2, 3, 50, 200])):
                child.stdout.readline()
            child.kill()
            rest = child.stdout.read()
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n"):
                step, sequence = line.split()
                acknowledged[step] = max(acknowledged.get(step, 0), int(sequence))

    store = opened(path)
    for step in "abcd":
        sequences = [r.sequence for r in store.history(Target("web", "prod", step))]
        assert sequences == list(range(len(sequences), 0, -1))
        assert len(sequences) >= acknowledged.get(step, 0)
    store.probe()
    store.close()


@pytest.mark.parametrize("survivor", ["empty", "half"])
def test_a_kill_while_it_is_made_leaves_no_store(path: Path, survivor: str) -> None:
    """
    A store appears under its name whole or not at all: a scratch that was left is no obstacle.
    """
    scratch = path.parent / ".new-store-left"
    scratch.mkdir(parents=True)
    (scratch / path.name).write_bytes(b"" if survivor == "empty" else b"SQLite format 3\x00half")

    opened(path).append(entry())

    assert opened(path).newest(NETWORK) == entry()


def test_the_store_is_private(path: Path) -> None:
    """
    The directory is 0700; the file and its log are 0600, whatever the umask.
    """
    before = os.umask(0)
    try:
        store = opened(path)
        store.append(entry())
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ("operations.db", "operations.db-wal", "operations.db-shm"), 0o600
    )
    store.close()


def test_commits_are_synchronous(path: Path) -> None:
    """
    WAL mode stays with the file: another process that opens it finds it so.
    """
    opened(path).append(entry())

    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_reading_changes_no_byte(path: Path) -> None:
    """
    Law: reading changes nothing.
    Reading leaves the file and the directory as they were.
    """
    store = opened(path)
    store.append(entry())
    store.close()
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}

    reader = opened(path)
    reader.records()
    reader.history(NETWORK)
    reader.claim("web", "prod")
    reader.lease("run")
    reader.close()

    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def test_the_heartbeat_ages_by_the_databases_clock(path: Path) -> None:
    """
    The age is computed in SQL from the stamp in the file.
    """
    store = opened(path)
    store.put_lease(lease("run-1"))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE leases SET heartbeat = heartbeat - 100.0 / 86400")

    found = store.lease("run-1")

    assert found is not None
    assert 99.9 < found.age < 1000


def _refuses(store: SqliteStore, match: str) -> None:
    """
    Neither append nor probe succeed, and both say why.
    """
    with pytest.raises(StoreUnavailable, match=match) as caught:
        store.append(entry(sequence=2))
    assert caught.value.hint
    with pytest.raises(StoreUnavailable, match=match):
        store.probe()


@pytest.mark.parametrize(
    "damage", [b"", b"\x00" * 4096, b"not a database at all" * 400], ids=["empty", "zeros", "text"]
)
def test_a_damaged_file_is_never_a_new_store(path: Path, damage: bytes) -> None:
    """
    Law: unreadable is not empty.
    A file that is emptied or overwritten stops every command and stays as it is.
    """
    opened(path).append(entry())
    for each in path.parent.iterdir():
        each.unlink()
    path.write_bytes(damage)

    _refuses(opened(path), "operations.db")
    with pytest.raises(StoreUnavailable, match=r"operations\.db"):
        opened(path).records()

    assert path.read_bytes() == damage


def test_a_damaged_page_is_found_by_the_probe(path: Path) -> None:
    """
    Damage where no query looks yet is found before anything is mutated.
    """
    store = opened(path)
    for sequence in range(1, 40):
        store.append(entry(sequence=sequence, last_error="x" * 3000))
    store.close()
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)

    with pytest.raises(StoreUnavailable, match=r"damaged|malformed"):
        opened(path).probe()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("record = '{'", "entry 1 of web/prod/network cannot be read"),
        ("record = replace(record, 'operation/1', 'operation/2')", "schema 'orch.*operation/2'"),
        ("record = replace(record, '\"sequence\":1', '\"sequence\":3')", "checksum"),
        ("record = x'ff'", "cannot be read|decode"),
    ],
)
def test_a_record_that_cannot_be_read_stops_the_command(
    path: Path, change: str, match: str
) -> None:
    """
    Law: unreadable is not empty.
    A damaged or newer record is named by target and sequence, never treated as empty.
    """
    store = opened(path)
    store.append(entry())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER entries_are_never_changed")
        connection.execute(f"UPDATE entries SET {change}")

    for read in (store.records, lambda: store.newest(NETWORK), lambda: store.history(NETWORK)):
        with pytest.raises(StoreUnavailable, match=match):
            read()


def test_entries_cannot_be_changed_or_removed(path: Path) -> None:
    """
    History is append-only in the database itself.
    """
    opened(path).append(entry())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in ("UPDATE entries SET record = ''", "DELETE FROM entries"):
            with pytest.raises(sqlite3.IntegrityError, match="never"):
                connection.execute(statement)


def test_a_newer_schema_is_left_untouched(path: Path) -> None:
    """
    A file of a newer schema version is refused, and no byte of it changes.
    """
    opened(path).append(entry())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    _refuses(opened(path), "schema version 99")

    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_untouched(path: Path) -> None:
    """
    A SQLite file that is not ours is not made ours.
    """
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()

    _refuses(opened(path), "not an operation store")

    assert path.read_bytes() == before


def test_migrations_are_applied_whole_or_not_at_all() -> None:
    """
    A migration that fails leaves schema, data and version of before; a good one goes on from there.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with contextlib.closing(connection):
        migrate(connection, migrations(), location="here")
        bad = (*migrations(), "CREATE TABLE more (x);\nINSERT INTO nowhere VALUES (1);\n")
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, bad, location="here")
        after_bad = connection.execute("PRAGMA user_version").fetchone()[0]

        migrate(connection, (*migrations(), "CREATE TABLE more (x);\n"), location="here")

        assert after_bad == len(migrations())
        assert connection.execute("SELECT count(*) FROM more").fetchone()[0] == 0
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(migrations()) + 1


def test_a_log_without_its_file_is_not_a_new_store(path: Path) -> None:
    """
    Where somebody removed the file but not its log, records would be lost or mixed: refused.
    """
    store = opened(path)
    store.append(entry())
    path.unlink()

    _refuses(opened(path), "missing")
    with pytest.raises(StoreUnavailable, match="missing"):
        opened(path).records()
    assert not path.exists()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_removed_while_in_use_is_noticed(path: Path, replaced: bool) -> None:
    """
    Nothing is written to a file that no longer has a name.
    """
    store = opened(path)
    store.append(entry())
    moved = path.rename(path.with_name("elsewhere.db"))
    if replaced:
        path.write_bytes(moved.read_bytes())

    _refuses(store, "removed or replaced while in use")


def test_network_file_systems_are_refused(path: Path) -> None:
    """
    Locks do not hold across machines there: refused before anything is made.
    """
    mounts = [Mount("/", "ext4"), Mount(str(path.parent.parent.resolve()), "nfs4")]

    _refuses(opened(path, mounts=lambda: mounts), "network file system")

    assert not path.exists()


def test_a_store_locked_by_another_process_says_so(path: Path) -> None:
    """
    After the time to wait, a lock is reported as what it is; the earlier entry is untouched.
    """
    opened(path).append(entry())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        _refuses(opened(path, busy_timeout=0.01), "locked")

        assert opened(path).history(NETWORK) == [entry()]


def test_who_waits_for_a_locked_store_hears_signals(path: Path) -> None:
    """
    SQLite's own wait would hold the interpreter, and a signal with it, until the lock is free.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    opened(path).append(entry())
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            started = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                opened(path).append(entry(sequence=2))
            assert time.monotonic() - started < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """
    A file system of 512 KiB; a named skip where none may be mounted.
    """
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(point)]
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            yield point
            subprocess.run(["umount", "-l", str(point)], check=True)
            return
    pytest.skip("mounting a tmpfs is not permitted: needs root with CAP_SYS_ADMIN")


def test_a_full_disk_leaves_the_entry_before(small_disk: Path) -> None:
    """
    Law: no record, no mutation.
    Where the entry cannot be made durable nothing changes, the probe finds it, and with
    room again the same store goes on.
    """
    path = small_disk / ".orchestrator" / "operations.db"
    store = opened(path)
    store.append(entry())
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    big = "x" * 30_000

    with pytest.raises(StoreUnavailable, match="full") as caught:
        store.append(entry(sequence=2, last_error=big))
    with pytest.raises(StoreUnavailable, match="full"):
        store.probe()
    during = store.history(NETWORK)
    ballast.unlink()
    store.append(entry(sequence=2, last_error=big))

    assert "make room" in caught.value.hint
    assert during == [entry()]
    assert opened(path).history(NETWORK) == [entry(sequence=2, last_error=big), entry()]
    store.close()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.sqlite import SqliteStore
from tests.fakes.entries import entry

store = SqliteStore(Path(sys.argv[1]))
store.append(entry())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = Path(sys.argv[1] + "-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
for attempt in (lambda: store.append(entry(sequence=2)), store.probe):
    try:
        attempt()
        print("done")
    except StoreUnavailable as exc:
        print("refused")
print(*(record.sequence for record in store.history(entry().target)))
"""


def test_a_disk_that_takes_no_more_leaves_the_entry_before(path: Path) -> None:
    """
    Law: no record, no mutation.
    Where nothing may be mounted: a limit on file sizes stands for the full disk.
    """
    with start(LIMITED, str(path)) as child:
        said = child.communicate()[0].split()

    assert said == ["refused", "refused", "1"]
    assert opened(path).history(NETWORK) == [entry()]


def test_a_probe_needs_room_for_a_large_record(small_disk: Path) -> None:
    """
    A disk that would take only a few bytes more is found full before anything is mutated.
    """
    store = opened(small_disk / "operations.db")
    store.append(entry())
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, ballast.stat().st_size - 32 * 1024)

    with pytest.raises(StoreUnavailable, match="full"):
        store.probe()


def test_a_store_on_a_full_disk_is_read_and_not_written(small_disk: Path) -> None:
    """
    SQLite has no room for what it writes beside the file even to read; what helps is told.
    """
    path = small_disk / "operations.db"
    store = opened(path)
    store.append(entry())
    store.close()
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)

    store = opened(path)
    assert store.history(NETWORK) == [entry()]
    with pytest.raises(StoreUnavailable) as refused:
        store.append(entry(sequence=2))

    assert "the disk is full" in str(refused.value.hint)
    (small_disk / "ballast").unlink()
    opened(path).append(entry(sequence=2))


def test_a_full_disk_makes_no_half_store(small_disk: Path) -> None:
    """
    A store that cannot be made is not there: reading still finds a fresh project.
    """
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    path = small_disk / "operations.db"

    with pytest.raises(StoreUnavailable):
        opened(path).append(entry())

    assert not path.exists()
    assert opened(path).records() == []


def test_a_read_only_store_is_not_written(small_disk: Path) -> None:
    """
    On a read-only file system nothing is written, the probe finds it, and what was there stays.
    """
    path = small_disk / ".orchestrator" / "operations.db"
    store = opened(path)
    store.append(entry())
    store.close()
    remount = ["mount", "-o", "remount,{}", str(small_disk)]
    subprocess.run([part.format("ro") for part in remount], check=True)

    _refuses(opened(path), r"operations\.db")

    subprocess.run([part.format("rw") for part in remount], check=True)
    assert opened(path).history(NETWORK) == [entry()]


def test_a_store_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    """
    A directory that is a file is named in the error.
    """
    (tmp_path / "file").write_text("")

    with pytest.raises(OrchestratorError, match="file"):
        opened(tmp_path / "file" / "operations.db").append(entry())


def test_a_path_that_is_too_long_is_told_as_that(tmp_path: Path) -> None:
    """
    Up to the limit of SQLite it is opened; beyond it the way out is another place.
    """
    base = tmp_path
    while len(str(base)) < 400:
        base = base / ("d" * 50)
    works = base / ("e" * (460 - len(str(base)) - 1)) / "operations.db"
    SqliteStore(works).probe()
    beyond = base / ("e" * (505 - len(str(base)) - 15)) / "operations.db"

    with pytest.raises(StoreUnavailable, match="longer than SQLite can open") as caught:
        SqliteStore(beyond).probe()

    assert "shorter path" in (caught.value.hint or "")


def test_the_application_id_marks_the_file(path: Path) -> None:
    """
    Other programs can tell an operation store by its application id.
    """
    opened(path).append(entry())

    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
