"""
The common part of the SQL stores: the same named statements and numbered migrations of the schema,
in a dialect each.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import Claim, Lease
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.stored_entries import (
    NEWER,
    check_chain,
    fenced_error,
    read_entry,
    read_model,
)

Parameters = dict[str, Json]
Row = tuple[Any, ...]


class Cursor(Protocol):
    """
    The result of a statement: its rows, or the number of changed rows.
    """

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> list[Row]: ...


#: Runs a named statement in a transaction.
Run = Callable[[str, Parameters], Cursor]


_DIRECTORY = Path(__file__).parent / "sql"


@cache
def queries(dialect: str = "sqlite") -> Mapping[str, str]:
    """
    Return the statements of a dialect's ``queries.sql`` by name.
    """
    text = (_DIRECTORY / dialect / "queries.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


@cache
def migrations(dialect: str = "sqlite") -> tuple[str, ...]:
    """
    Return the scripts of all migrations in order; the N-th migrates from schema version N-1 to N.
    """
    files = sorted((_DIRECTORY / dialect).glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return tuple(file.read_text(encoding="utf-8") for file in files)


def pending(version: int, scripts: Sequence[str], *, location: str) -> int:
    """
    Return the number of migrations that a schema of this version lacks. Raises StoreUnavailable if
    it is newer than ``scripts``.
    """
    if version > len(scripts):
        raise StoreUnavailable(
            f"{location}: schema version {version}; this version knows up to {len(scripts)}",
            hint=NEWER,
        )
    return len(scripts) - version


class SqlStore(ABC):
    """
    Operation records in tables. Subclasses provide the location and transactions.
    """

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Run]:
        """
        Return a write transaction: durable at the end, rolled back on an exception.
        """

    @abstractmethod
    def _select(self, query: str, parameters: Parameters) -> list[Row]:
        """
        Return the rows of a statement that only reads.
        """

    def newest(self, target: Target) -> OperationRecord | None:
        rows = self._select("newest", _key(target))
        return self._entry(target, *rows[0]) if rows else None

    newest_known = newest

    def append(self, record: OperationRecord) -> None:
        target = record.target
        parameters = _key(target) | {
            "sequence": record.sequence,
            "entry_id": record.entry_id,
            "record": record.to_json(),
        }
        with self._transaction() as run:
            if run("append", parameters).rowcount:
                return
        # In a transaction of its own: after a conflict PostgreSQL's snapshot is too old to show it.
        rows = self._select("entry", _key(target) | {"sequence": record.sequence})
        rival = self._entry(target, record.sequence, *rows[0]) if rows else None
        if rival is None or rival.entry_id != record.entry_id:
            raise fenced_error(record, rival)

    def history(self, target: Target) -> list[OperationRecord]:
        entries = [self._entry(target, *row) for row in self._select("history", _key(target))]
        return check_chain(entries, location=self.url)

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        rows = self._select("records", {"blueprint": blueprint, "environment": environment})
        # Sorted here: a server's collation may order names in another way.
        entries = sorted((Target(*row[:3]), row[3], row[4]) for row in rows)
        return [self._entry(*row) for row in entries]

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        key = {"blueprint": claim.blueprint, "environment": claim.environment}
        with self._transaction() as run:
            run("lock_claim", key)
            current = self._claim(claim.blueprint, claim.environment, run("claim", key).fetchall())
            if current is not None and current.run_id != claim.run_id and current != replaces:
                return current
            text = {"claim": claim.model_dump_json()}
            run("put_claim", key | {"run_id": claim.run_id} | text)
            return None

    def drop_claim(self, claim: Claim) -> None:
        key = {"blueprint": claim.blueprint, "environment": claim.environment}
        self._write("drop_claim", key | {"run_id": claim.run_id})

    def claim(self, blueprint: str, environment: str) -> Claim | None:
        key = {"blueprint": blueprint, "environment": environment}
        return self._claim(blueprint, environment, self._select("claim", key))

    def put_lease(self, lease: Lease) -> None:
        self._write("put_lease", {"run_id": lease.run_id, "lease": lease.model_dump_json()})

    def lease(self, run_id: str) -> Lease | None:
        rows = self._select("lease", {"run_id": run_id})
        if not rows:
            return None
        text, age = rows[0]
        lease = read_model(Lease, text, what=f"the lease of {run_id}", location=self.url)
        return lease.model_copy(update={"age": float(age)})

    def drop_lease(self, run_id: str) -> None:
        self._write("drop_lease", {"run_id": run_id})

    def put_blob(self, name: str, data: bytes) -> None:
        self._write("put_blob", {"name": name, "data": data})

    def create_blob(self, name: str, data: bytes) -> bytes:
        self._write("create_blob", {"name": name, "data": data})
        return self.blob(name) or b""

    def blob(self, name: str) -> bytes | None:
        rows = self._select("blob", {"name": name})
        return bytes(rows[0][0]) if rows else None

    def drop_blob(self, name: str) -> None:
        self._write("drop_blob", {"name": name})

    def blobs(self, prefix: str) -> list[str]:
        return [row[0] for row in self._select("blobs", {"prefix": prefix})]

    def _write(self, query: str, parameters: Parameters) -> None:
        with self._transaction() as run:
            run(query, parameters)

    def _claim(self, blueprint: str, environment: str, rows: list[Row]) -> Claim | None:
        if not rows:
            return None
        what = f"the claim of {blueprint}/{environment}"
        return read_model(Claim, rows[0][0], what=what, location=self.url)

    def _entry(self, target: Target, sequence: int, text: Json) -> OperationRecord:
        return read_entry(text, target=target, sequence=sequence, location=self.url)


def _key(target: Target) -> Parameters:
    return {
        "blueprint": target.blueprint,
        "environment": target.environment,
        "step": target.step,
    }
