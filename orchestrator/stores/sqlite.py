"""
The embedded operation store: one SQLite file in WAL mode, shared by threads and processes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import StoreUnavailable
from orchestrator.stores.database import Database, Mount, is_writable, mount_table, readable_errors
from orchestrator.stores.schema import migrations, queries
from orchestrator.stores.sql_store import Parameters, Row, Run, SqlStore

#: Bytes that a probe writes: more than the record of a large step.
_PROBE_SIZE = 64 * 1024

#: Up to this size in bytes a probe reads the whole file: later a run must not wait for that.
_CHECKED_SIZE = 64 * 1024 * 1024


class SqliteStore(SqlStore):
    """
    Operation records in ``path``. Reading creates neither the file nor its directory.

    Raises Refused on network file systems: their locks and shared memory do not work across
    machines. ``mounts`` are the mounted file systems, ``busy_timeout`` how many seconds to wait for
    other processes. If the file or its directory is not ``writable``, it is only read.
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
        self._database = Database(
            self._path, migrations(), mounts=mounts, busy_timeout=busy_timeout, writable=writable
        )

    @property
    def url(self) -> str:
        return self._path.as_uri().replace("file://", "sqlite://", 1)

    @property
    def _place(self) -> str:
        return str(self._path)

    def probe(self) -> None:
        """
        Write and remove data of the size of a large record, and check the file for damage.
        """
        with self._lock, readable_errors(self._path):
            with self._database.transaction() as connection:
                connection.execute(queries()["put_probe"], {"size": _PROBE_SIZE})
            with self._database.transaction() as connection:
                connection.execute(queries()["drop_probes"])
            result = _checked(connection)
        if result != "ok":
            raise StoreUnavailable(
                f"{self._path}: damaged: {' '.join(str(result).split())}",
                hint="keep a copy, then restore a backup or use `sqlite3 FILE .recover`",
            )

    def close(self) -> None:
        """
        Close the file. A later call opens it again.
        """
        with self._lock, readable_errors(self._path):
            self._database.close()

    def _select(self, query: str, parameters: Parameters) -> list[Row]:
        with self._lock, readable_errors(self._path):
            connection = self._database.existing()
            if connection is None:
                return []
            return connection.execute(queries()[query], parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        with (
            self._lock,
            readable_errors(self._path),
            self._database.transaction() as connection,
        ):
            yield lambda name, parameters: connection.execute(queries()[name], parameters)


def _checked(connection: sqlite3.Connection) -> str:
    """
    Return "ok", or the damage, of a file that is small enough to be read on every run.
    """
    size = connection.execute(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    ).fetchone()[0]
    if size > _CHECKED_SIZE:
        return "ok"
    return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
