"""
The SQL of the stores: named queries, and the numbered migrations of the schema.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from orchestrator.errors import StoreUnavailable
from orchestrator.stores.stored_entries import NEWER

#: Marks a SQLite file as ours ("orch").
APPLICATION_ID = 0x6F726368

#: Bytes of the header of a SQLite file, and where our mark stands in it.
_HEADER, _MAGIC, _MARK = 100, b"SQLite format 3\0", slice(68, 72)

_DIRECTORY = Path(__file__).parent / "sql"


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


def pending(version: int, scripts: Sequence[str], *, place: str) -> int:
    """
    Return the number of migrations that a schema of this version lacks. Raises StoreUnavailable if
    it is newer than ``scripts``.
    """
    if version > len(scripts):
        raise StoreUnavailable(
            f"{place}: schema version {version}; this version knows up to {len(scripts)}",
            hint=NEWER,
        )
    return len(scripts) - version


def migrate(connection: sqlite3.Connection, scripts: Sequence[str], *, place: str) -> None:
    """
    Migrate an open database to the newest schema version in one transaction.

    Raises StoreUnavailable, and changes nothing, if its version is newer than ``scripts``.
    """
    if pending(_version(connection), scripts, place=place) == 0:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for script in scripts[_version(connection) :]:  # another process may have done it by now
            for statement in _statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(scripts)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """
    Yield the statements of a script; `executescript` cannot be used, because it commits first.
    """
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
