"""
The embedded operation store: one SQLite file in WAL mode, shared by threads and processes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.database import Database, Mount, is_writable, mount_table, readable_errors
from orchestrator.stores.schema import migrations, queries
from orchestrator.stores.stored_entries import check_chain, fenced_error, read_entry, read_model

#: Bytes that a probe writes: more than the record of a large step.
_PROBE_SIZE = 64 * 1024

Row = tuple[Json, ...]
Parameters = dict[str, Json]

#: Up to this size in bytes a probe reads the whole file: later a run must not wait for that.
_CHECKED_SIZE = 64 * 1024 * 1024


class SqliteStore:
    """
    Operation records in ``path``. Reading makes neither the file nor its directory.

    Refused on network file systems: their locks and shared memory do not hold across machines.
    ``mounts`` tells what is mounted, ``busy_timeout`` how many seconds to wait for other processes.
    Where the file or its directory is not ``writable`` it is read all the same, and never written.
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

    def probe(self) -> None:
        """
        Write and remove as much as a large record, and look for damage in the whole file.
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

    def newest(self, target: Target) -> OperationRecord | None:
        rows = self._select("newest", _key(target))
        return self._entry(target, *rows[0]) if rows else None

    def newest_known(self, target: Target) -> OperationRecord | None:
        return self.newest(target)

    def append(self, record: OperationRecord) -> None:
        target = record.target.target
        parameters = _key(target) | {
            "sequence": record.sequence,
            "entry_id": record.entry_id,
            "record": record.to_json(),
        }
        with self._transaction() as run:
            if run("append", parameters):
                return
            rows = self._select("entry", _key(target) | {"sequence": record.sequence})
            rival = self._entry(target, record.sequence, *rows[0]) if rows else None
            if rival is None or rival.entry_id != record.entry_id:
                raise fenced_error(record, rival)

    def history(self, target: Target) -> list[OperationRecord]:
        entries = [self._entry(target, *row) for row in self._select("history", _key(target))]
        return check_chain(entries, place=str(self._path))

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        rows = self._select("records", {"blueprint": blueprint, "environment": environment})
        return [self._entry(Target(*row[:3]), *row[3:]) for row in rows]

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        with self._transaction() as run:
            current = self.claim(claim.blueprint, claim.environment)
            if current is not None and current.run_id != claim.run_id and current != replaces:
                return current
            run("put_claim", _claim_key(claim) | {"claim": claim.model_dump_json()})
            return None

    def drop_claim(self, claim: Claim) -> None:
        with self._transaction() as run:
            run("drop_claim", _claim_key(claim))

    def claim(self, blueprint: str, environment: str) -> Claim | None:
        rows = self._select("claim", {"blueprint": blueprint, "environment": environment})
        if not rows:
            return None
        what = f"the claim of {blueprint}/{environment}"
        return read_model(Claim, rows[0][0], what=what, place=str(self._path))

    def put_lease(self, lease: Lease) -> None:
        with self._transaction() as run:
            run("put_lease", {"run_id": lease.run_id, "lease": lease.model_dump_json()})

    def lease(self, run_id: str) -> Lease | None:
        rows = self._select("lease", {"run_id": run_id})
        if not rows:
            return None
        text, age = rows[0]
        lease = read_model(Lease, text, what=f"the lease of {run_id}", place=str(self._path))
        return lease.model_copy(update={"age": age})

    def drop_lease(self, run_id: str) -> None:
        with self._transaction() as run:
            run("drop_lease", {"run_id": run_id})

    def put_blob(self, name: str, data: bytes) -> None:
        with self._transaction() as run:
            run("put_blob", {"name": name, "data": data})

    def create_blob(self, name: str, data: bytes) -> bytes:
        with self._transaction() as run:
            run("create_blob", {"name": name, "data": data})
        return self.blob(name) or b""

    def blob(self, name: str) -> bytes | None:
        rows = self._select("blob", {"name": name})
        return bytes(rows[0][0]) if rows else None

    def drop_blob(self, name: str) -> None:
        with self._transaction() as run:
            run("drop_blob", {"name": name})

    def blobs(self, prefix: str) -> list[str]:
        return [row[0] for row in self._select("blobs", {"prefix": prefix})]

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
    def _transaction(self) -> Iterator[Callable[[str, Parameters], int]]:
        """
        Yields what runs a named statement and returns how many rows it changed.
        """
        with (
            self._lock,
            readable_errors(self._path),
            self._database.transaction() as connection,
        ):
            yield lambda name, parameters: connection.execute(queries()[name], parameters).rowcount

    def _entry(self, target: Target, sequence: int, text: Json) -> OperationRecord:
        return read_entry(text, target=target, sequence=sequence, place=str(self._path))


def _key(target: Target) -> Parameters:
    return {
        "blueprint": target.blueprint,
        "environment": target.environment,
        "step": target.step,
    }


def _claim_key(claim: Claim) -> Parameters:
    return {
        "blueprint": claim.blueprint,
        "environment": claim.environment,
        "run_id": claim.run_id,
    }


def _checked(connection: sqlite3.Connection) -> str:
    """
    "ok", or what is damaged in a file that is small enough to be read on every run.
    """
    size = connection.execute(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    ).fetchone()[0]
    if size > _CHECKED_SIZE:
        return "ok"
    return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
