"""
The operation store in PostgreSQL: schema ``orchestrator``, beside the state of backend ``pg``.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.sql_store import (
    Cursor,
    Parameters,
    Row,
    Run,
    SqlStore,
    migrations,
    pending,
    queries,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_SCHEMA = "orchestrator"
_DIALECT = "postgres"
#: What names a database, and the variable that says it where the connection string does not.
_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "service": "PGSERVICE",
}
#: Serialises migrations of one database across machines ("orch").
_MIGRATION_LOCK = 0x6F726368


class PostgresStore(SqlStore):
    """
    Operation records of one project in the database of ``conninfo``, a URL or keywords.

    Settings that it leaves out come from the usual ``PG*`` variables and service files. ``timeout``
    limits connecting, a statement and waiting for a lock, in seconds. ``scripts`` are the
    migrations that this program knows.

    No state is kept in a session: a pooler may give each transaction another one.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        project: str,
        timeout: float = 10.0,
        scripts: Sequence[str] | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._project = project
        self._timeout = timeout
        self._scripts = migrations(_DIALECT) if scripts is None else scripts
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    @property
    def url(self) -> str:
        return database_url(self._conninfo)

    def probe(self) -> None:
        """
        Write and remove data of the size of a large record.
        """
        name = f"probe/{id(self)}"
        with self._transaction() as run:
            run("put_blob", {"name": name, "data": bytes(64 * 1024)})
            run("drop_blob", {"name": name})

    def close(self) -> None:
        """
        Close the connection. A later call opens another.
        """
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _select(self, query: str, parameters: Parameters) -> list[Row]:
        with self._transaction() as run:
            return run(query, parameters).fetchall()

    def _run(self, connection: Connection, query: str, parameters: Parameters) -> Cursor:
        return connection.execute(queries(_DIALECT)[query], parameters | {"project": self._project})

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        """
        Run a transaction and commit it at the end.

        A connection that the server closed while it was idle (restart, failover) is replaced once
        before the work begins. One that breaks during the work is an outage: it is not known
        whether the transaction was committed, and only the caller can recognise its own write.
        """
        with self._lock, self._readable_errors():
            import psycopg

            connection = self._begun()
            try:
                with _time_limit(self._timeout * 2, connection):
                    yield partial(self._run, connection)
                    connection.commit()
            except BaseException:
                with suppress(psycopg.Error):
                    connection.rollback()
                raise

    def _begun(self) -> Connection:
        """
        Return the connection in a new transaction with our settings.
        """
        import psycopg

        if self._connection is not None:
            try:
                self._begin(self._connection)
                return self._connection
            except psycopg.OperationalError:
                self.close()
        self._connection = self._connect()
        self._begin(self._connection)
        return self._connection

    def _begin(self, connection: Connection) -> None:
        """
        Begin a transaction with our settings, which must be set for each: a pooler may use another
        session next time.
        """
        with _time_limit(self._timeout, connection):
            connection.execute(
                queries(_DIALECT)["settings"],
                {"path": _SCHEMA, "timeout": f"{int(self._timeout * 1000)}"},
            )

    def _connect(self) -> Connection:
        import psycopg

        connection = psycopg.connect(
            self._conninfo,
            connect_timeout=max(2, int(self._timeout)),
            application_name="orchestrator",
            # Poolers hand one connection to many clients: no statement may stay prepared on it.
            prepare_threshold=None,
            keepalives_idle=10,
            tcp_user_timeout=int(self._timeout * 2000),
        )
        try:
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: Connection) -> None:
        """
        Migrate the schema to the newest version in one transaction, one process at a time.

        Raises StoreUnavailable if this program cannot work with its version.
        """
        if self._missing(connection) == 0:
            return
        with connection.transaction():
            self._begin(connection)
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            missing = self._missing(connection)  # another machine may have done it by now
            if missing == 0:
                return
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)"
            )
            for script in self._scripts[-missing:]:
                connection.execute(script)
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version VALUES (%s)", (len(self._scripts),))

    def _missing(self, connection: Connection) -> int:
        """
        Return the number of migrations that the schema lacks.
        """
        version = 0
        with connection.transaction():
            # Not to_regclass: it answers from a cache of the session, which waiting for an advisory
            # lock does not refresh. Reading a table does.
            tables = connection.execute(
                "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s",
                (_SCHEMA, "schema_version"),
            )
            if tables.fetchone() is not None:
                newest = connection.execute(f"SELECT max(version) FROM {_SCHEMA}.schema_version")
                version = int((newest.fetchone() or (0,))[0] or 0)
        return pending(version, self._scripts, location=self.url)

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        psycopg = _driver()
        try:
            yield
        except psycopg.Error as exc:
            hint = "check that the server is up and that PGUSER, PGPASSWORD and PGSSLMODE fit"
            if isinstance(exc, psycopg.errors.InsufficientPrivilege):
                hint = (
                    "docs/stores.md lists what to grant; who may create tables makes them by "
                    "`orchestrator store migrate`"
                )
            elif isinstance(exc, psycopg.ProgrammingError):
                self.close()  # whoever connects again is told of a version that is too new
                hint = (
                    "the tables are not those of this version: a newer one may have changed them "
                    "meanwhile; use that version or a newer one"
                )
            first_line = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
            raise StoreUnavailable(f"{self.url}: {first_line}", hint=hint) from exc


def _driver() -> ModuleType:
    """
    Return psycopg. Raises StoreUnavailable if it is not installed.
    """
    try:
        import psycopg
    except ImportError as exc:
        raise StoreUnavailable(
            "operations on PostgreSQL need the extra `postgres`",
            hint="pip install 'orchestrator[postgres]'",
        ) from exc
    return psycopg


def database_url(conninfo: str) -> str:
    """
    Return the URL of a database without credentials. Raises Invalid if ``conninfo`` is none.
    """
    psycopg = _driver()
    try:
        parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as exc:  # it may hold a password: only what is wrong is told
        raise Invalid([Problem(f"operations in PostgreSQL: {str(exc).strip()}")]) from exc
    for part, variable in _VARIABLES.items():
        parameters.setdefault(part, os.environ.get(variable))
    host, port, name = (parameters.get(part) or "" for part in ("host", "port", "dbname"))
    if not host and parameters.get("service"):
        return f"postgres:///{name}?service={parameters['service']}"
    return f"postgres://{host}{f':{port}' if host and port else ''}/{name}"


@contextmanager
def _time_limit(seconds: float, connection: Connection) -> Iterator[None]:
    """
    Close the connection if the body takes longer than ``seconds``. The server's own limits do not
    help if it, or a pooler in front of it, accepts data and never answers.
    """

    def hang_up() -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
