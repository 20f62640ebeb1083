"""
The embedded operation store: one SQLite file in WAL mode, shared by threads and processes. Commits
are durable, and the file is created atomically. For tests and throw-away runs also one in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.errors import StoreUnavailable
from orchestrator.local_files import make_private
from orchestrator.stores.sql_store import (
    Parameters,
    Row,
    Run,
    SqlStore,
    migrations,
    pending,
    queries,
)

#: Marks a SQLite file as ours ("orch").
APPLICATION_ID = 0x6F726368

#: Bytes of the header of a SQLite file, and where our mark stands in it.
_HEADER, _MAGIC, _MARK = 100, b"SQLite format 3\0", slice(68, 72)


def is_ours(file: Path) -> bool:
    """
    Return whether a path is a regular file with operation records, by its SQLite header.
    """
    try:
        if file.is_symlink() or not file.is_file():  # nothing else is opened: a pipe would block
            return False
        with file.open("rb") as opened:
            header = opened.read(_HEADER)
    except OSError:
        return False
    mark = APPLICATION_ID.to_bytes(4, "big")
    return header.startswith(_MAGIC) and header[_MARK] == mark


def migrate(connection: sqlite3.Connection, scripts: Sequence[str], *, location: str) -> None:
    """
    Migrate an open database to the newest schema version in one transaction.

    Raises StoreUnavailable, and changes nothing, if its version is newer than ``scripts``.
    """
    version = "PRAGMA user_version"
    if pending(connection.execute(version).fetchone()[0], scripts, location=location) == 0:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        (done,) = connection.execute(version).fetchone()  # another process may have done it by now
        for script in scripts[done:]:
            statement = ""
            for line in script.splitlines(keepends=True):  # `executescript` would commit first
                statement += line
                if sqlite3.complete_statement(statement):
                    connection.execute(statement)
                    statement = ""
        connection.execute(f"{version} = {len(scripts)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# Which file system a path lies on, for stores that must not lie on a network.


#: File systems where several machines see one file but not each other's locks or memory maps;
#: also those that say "fuse." before the name.
NETWORK = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "smbnetfs", "afs", "afpfs"),
        *("ncpfs", "webdav", "davfs", "davfs2", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"),
        *("orangefs", "pvfs2", "sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "mount-s3"),
        *("blobfuse", "blobfuse2"),
    ]
)


class Mount(Struct, frozen=True):
    """
    A mounted file system: mount point and type.
    """

    point: str
    type: str


def mount_table() -> tuple[Mount, ...]:
    """
    Return the file systems mounted on this machine.
    """
    if (table := Path("/proc/self/mounts")).exists():  # psutil costs more than all the rest here
        octal = re.compile(r"\\([0-7]{3})")  # how it writes spaces and the like
        mounts = []
        for line in table.read_text(errors="surrogateescape").splitlines():
            _, point, kind, *_ = line.split(" ")
            mounts.append(Mount(octal.sub(lambda code: chr(int(code[1], 8)), point), kind))
        return tuple(mounts)
    import psutil

    return tuple(Mount(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True))


def network_mount(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """
    Return the network file system of ``path`` (absolute, resolved), None if it is local.
    """
    top = None
    for mount in mounts:  # of two at one point the later one is on top
        if path.is_relative_to(mount.point) and (not top or len(mount.point) >= len(top.point)):
            top = mount
    return top if top is not None and top.type.lower().removeprefix("fuse.") in NETWORK else None


_HINTS = {
    "FULL": "the disk is full, or a limit on file sizes is reached: make room and run it again",
    "READONLY": "the file, its directory or the file system is read-only for this user",
    "CANTOPEN": "check that its directory exists and that this user may read and write there",
    "BUSY": "another process keeps it locked: see `lsof` on the file",
    "CORRUPT": "it is damaged: keep a copy, then restore a backup or use `sqlite3 FILE .recover`",
    "NOTADB": "it is damaged or no SQLite file: keep a copy, then restore a backup",
    "IOERR": "the disk reports errors: see the system's log",
}
_HINTS["IOERR_SHMSIZE"] = _HINTS["FULL"]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Bytes of a path that SQLite opens on Unix: its 512 without "-journal".
_LONGEST = 504
#: Seconds that SQLite itself waits for another process before it comes back to us.
_TURN = 0.2


@contextmanager
def readable_errors(file: Path) -> Iterator[None]:
    """
    Convert errors of SQLite and the file system to StoreUnavailable, with a hint.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of ours, not a fault of the store
    except sqlite3.Error as exc:
        name = getattr(exc, "sqlite_errorname", "").removeprefix("SQLITE_")
        hint = _HINTS.get(name) or _HINTS.get(name.partition("_")[0], "")
        raise StoreUnavailable(f"{file}: {exc}", hint=hint) from exc
    except OSError as exc:
        raise StoreUnavailable(
            f"{exc.filename or file}: {exc.strerror or exc}",
            hint=_HINTS["FULL" if exc.errno in _NO_ROOM else "CANTOPEN"],
        ) from exc


def is_writable(path: Path) -> bool:
    """
    Return whether this user may write the file and the files that SQLite creates beside it.
    """
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


class PatientConnection(sqlite3.Connection):
    """
    A connection whose statements wait for other processes in short intervals, so that the
    interpreter can handle signals in between. ``patience`` is the total time in seconds.
    """

    patience = 0.0

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        give_up = time.monotonic() + self.patience
        while True:
            try:
                return super().execute(*statement)
            except sqlite3.OperationalError as exc:
                is_busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() >= give_up:
                    raise


#: Bytes that a probe writes: more than the record of a large step.
_PROBE_SIZE = 64 * 1024

#: Up to this size in bytes a probe reads the whole file: later a run must not wait for that.
_CHECKED_SIZE = 64 * 1024 * 1024


class SqliteStore(SqlStore):
    """
    Operation records in ``path``, by one connection. Reading creates neither the file nor its
    directory.

    Raises StoreUnavailable on network file systems: their locks and shared memory do not work
    across machines. ``mounts`` are the mounted file systems, ``busy_timeout`` how many seconds a
    statement waits for other processes. If the file or its directory is not ``writable``, or the
    disk is full, a private copy is read: in WAL mode SQLite must write even to read.
    """

    def __init__(
        self,
        path: Path,
        *,
        mounts: Callable[[], Sequence[Mount]] = mount_table,
        busy_timeout: float = 30.0,
        writable: Callable[[Path], bool] = is_writable,
    ) -> None:
        self._path = path.absolute()
        self._lock = threading.RLock()
        self._mounts = mounts
        self._busy_timeout = busy_timeout
        self._writable = writable
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._full: sqlite3.OperationalError | None = None
        self._connection: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None

    @property
    def url(self) -> str:
        return self._path.as_uri().replace("file://", "sqlite://", 1)

    def probe(self) -> None:
        """
        Write and remove data of the size of a large record, and check the file for damage.
        """
        self._write("put_probe", {"size": _PROBE_SIZE})
        self._write("drop_probes", {})
        (size,) = self._select("size", {})[0]
        damage = self._select("check", {}) if size <= _CHECKED_SIZE else [("ok",)]
        if damage != [("ok",)]:
            raise StoreUnavailable(
                f"{self._path}: damaged: {' '.join(str(damage[0][0]).split())}",
                hint="keep a copy, then restore a backup or use `sqlite3 FILE .recover`",
            )

    def close(self) -> None:
        with self._lock, readable_errors(self._path):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None
                self._full = None

    def _select(self, query: str, parameters: Parameters) -> list[Row]:
        with self._lock, readable_errors(self._path):
            connection = self._existing()
            if connection is None:
                return []
            return connection.execute(queries()[query], parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        """
        Run a write transaction: durable at the end, rolled back on an exception. Creates the file.
        """
        with self._lock, readable_errors(self._path):
            connection = self._existing()
            if connection is None:
                self._create()
                connection = self._existing()
            if connection is None:
                raise StoreUnavailable(f"{self._path}: it was removed as soon as it was made")
            if self._full is not None:
                raise self._full
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda name, parameters: connection.execute(queries()[name], parameters)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    # What went wrong first is what the caller must hear.
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def _existing(self) -> sqlite3.Connection | None:
        """
        Return the connection, None if there is no file. Creates nothing.
        """
        if self._connection is not None:
            self._require_same_file()
            return self._connection
        if not self._path.exists():
            log = self._path.with_name(f"{self._path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise StoreUnavailable(
                    f"{self._path}: it is missing, but its log {log.name} holds records",
                    hint="restore the file beside its log; a new store would lose what is in the "
                    "log",
                )
            return None
        if not self._path.is_file():  # a FIFO or a device may never end
            raise StoreUnavailable(
                f"{self._path}: not a regular file",
                hint="name another file, or its path in a directory, as operations.url",
            )
        self._refuse_network()
        if not self._writable(self._path):
            return self._open(is_copy=True)
        try:
            return self._open(is_copy=False)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_IOERR_SHMSIZE:
                raise
            self._full = exc
            return self._open(is_copy=True)

    def _require_same_file(self) -> None:
        # SQLite would go on writing to the removed file, and everything would be lost.
        try:
            same = self._file is not None and os.path.samestat(self._path.stat(), self._file)
        except FileNotFoundError:
            same = False
        if not same:
            raise StoreUnavailable(
                f"{self._path}: it was removed or replaced while in use",
                hint="put it back before anything else is run: it holds the records of this run",
            )

    def _open(self, *, is_copy: bool) -> sqlite3.Connection:
        """
        Return a connection to the file, or to a copy of it and its WAL in a private directory.
        """
        path = self._path
        try:
            if is_copy:
                self._copy = tempfile.TemporaryDirectory(prefix="orchestrator-store-")
                path = Path(self._copy.name) / path.name
                for source in (self._path, self._path.with_name(f"{self._path.name}-wal")):
                    if source.exists():
                        path.with_name(source.name).write_bytes(source.read_bytes())
            connection = self._connection = self._connect(path)
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreUnavailable(
                    f"{self._path}: not an operation store (an empty or foreign database)",
                    hint="no new one is made in its place: restore a backup, or name another file",
                )
            migrate(connection, migrations(), location=str(self._path))
            connection.execute("PRAGMA journal_mode = WAL")
            if is_copy:
                connection.execute("PRAGMA query_only = ON")
            self._file = self._path.stat()
        except BaseException:
            self.close()
            raise
        return connection

    def _connect(self, path: Path) -> PatientConnection:
        longer = len(os.fsencode(path)) - _LONGEST
        if longer > 0:
            raise StoreUnavailable(
                f"{self._path}: its path is {longer} bytes longer than SQLite can open",
                hint="move the project to a shorter path, or name another file by operations.url",
            )
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw",
            uri=True,
            timeout=min(_TURN, self._busy_timeout),
            isolation_level=None,
            check_same_thread=False,
            factory=PatientConnection,
        )
        connection.patience = self._busy_timeout
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone leaves it in the drive
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _create(self) -> None:
        """
        Create the file with its schema under a temporary name and rename it.

        An empty file under the real name is therefore never ours, and not mistaken for a new store.
        """
        parent = self._path.parent
        make_private(parent, durable=True)
        self._refuse_network()
        handle = os.open(parent, os.O_RDONLY)
        try:
            # Of several processes one makes it; the lock ends with its holder.
            fcntl.flock(handle, fcntl.LOCK_EX)
            if self._path.exists():
                return
            with tempfile.TemporaryDirectory(dir=parent, prefix=".new-store-") as scratch:
                new = Path(scratch) / self._path.name
                os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600))
                with closing(self._connect(new)) as connection:
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    migrate(connection, migrations(), location=str(self._path))
                    connection.execute("PRAGMA journal_mode = WAL")
                new.rename(self._path)
            os.fsync(handle)
        finally:
            os.close(handle)

    def _refuse_network(self) -> None:
        mount = network_mount(self._path.resolve(), self._mounts())
        if mount is not None:
            raise StoreUnavailable(
                f"{self._path}: it would lie on a network file system ({mount.type} on "
                f"{mount.point}), where SQLite cannot be kept safe",
                hint="name a path on a local disk as operations.url",
            )


class MemoryStore(SqliteStore):
    """
    Operation records in memory; lost when the process ends. ``seconds`` is the store's clock.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Path(os.devnull))
        self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._memory.create_function("julianday", 1, lambda _: seconds() / 86400)
        migrate(self._memory, migrations(), location="memory")

    def __del__(self) -> None:
        self._memory.close()

    @property
    def url(self) -> str:
        return "memory:"

    def close(self) -> None:
        """
        Do nothing: what is in it can be read again.
        """

    def _existing(self) -> sqlite3.Connection:
        return self._memory
