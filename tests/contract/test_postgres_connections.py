"""
How the store reaches PostgreSQL: through a pooler, by service and password files, over TLS; what it
waits for; and programs of two versions at one schema.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.app.commands.store import check_store
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.postgres import PostgresStore
from orchestrator.stores.project_store import open_store
from orchestrator.stores.sql_store import migrations
from tests.certificates import certified
from tests.contract.stores import postgres
from tests.engine.postgres import Postgres, postgres_server
from tests.fakes.entries import NETWORK, claim, entry
from tests.pooler import pooler_before

__all__ = ["postgres"]


@pytest.fixture
def database(postgres: Postgres) -> str:
    """
    The name of an empty database.
    """
    postgres.query("DROP DATABASE IF EXISTS reached WITH (FORCE)")
    postgres.query("CREATE DATABASE reached")
    return "reached"


def of(url: str, database: str) -> str:
    return url.replace("/postgres?", f"/{database}?")


def test_a_pooler_may_give_each_transaction_another_connection(
    postgres: Postgres, database: str
) -> None:
    """
    Nothing is kept in a session: not the path to the tables, the time limits or the durability, no
    prepared statement and no lock. A role or database whose own settings are others changes that as
    little as tables of another program with the same names. (Tried with PgBouncer 1.18, too.)
    """
    for statement in (
        "CREATE TABLE public.entries (x int)",
        "CREATE TABLE public.blobs (x int)",
        f"ALTER DATABASE {database} SET synchronous_commit = off",
    ):
        postgres.query_in(database, statement)
    with pooler_before(postgres.port) as port:
        url = postgres.url.replace(f":{postgres.port}/", f":{port}/")
        stores = [PostgresStore(of(url, database), project="acme") for _ in range(4)]
        for number in range(12):
            stores[number % 4].append(entry(sequence=number + 1))
        documents = [
            check_store(store, claim(f"run-{number}", blueprint="store-check", environment="e"))
            for number, store in enumerate(stores)
        ]
        history = stores[0].history(NETWORK)
        for store in stores:
            store.close()

    assert [document.ok for document in documents] == [True] * 4, documents
    assert [item.sequence for item in history] == [*range(12, 0, -1)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Path]]:
    """
    A server that lets a role in by its password only, and over TLS only; its certificate.
    """
    tls = certified(tmp_path_factory.mktemp("tls"), "127.0.0.1")
    with postgres_server() as server:
        for statement in (
            "SET password_encryption = 'scram-sha-256'; CREATE ROLE team LOGIN PASSWORD 'tr0ub4d'",
            "CREATE DATABASE teams OWNER team",
            "ALTER SYSTEM SET ssl_cert_file = 'certificate.pem'",
            "ALTER SYSTEM SET ssl_key_file = 'key.pem'",
            "ALTER SYSTEM SET ssl = on",
        ):
            server.query(statement)
        for file in (tls.certificate, tls.key):
            server.adopt(file)
        rules = server.data / "pg_hba.conf"
        only = "hostssl all team 127.0.0.1/32 scram-sha-256\nhost all team 127.0.0.1/32 reject\n"
        rules.write_text(only + rules.read_text())
        server.query("SELECT pg_reload_conf()")
        yield server, tls.authority


@pytest.mark.parametrize("named", ["service", "PGSERVICE", "variables", "backend"])
def test_a_database_is_reached_as_by_psql(
    guarded: tuple[Postgres, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """
    By a service of the service file, named by the URL or a variable, or by variables; the password
    from the password file; the certificate of the server verified. The store calls itself by what
    names it, without credentials.
    """
    server, certificate = guarded
    monkeypatch.delenv("PG_CONN_STR", raising=False)
    (tmp_path / "services").write_text(
        f"[records]\nhost=127.0.0.1\nport={server.port}\nuser=team\ndbname=teams\n"
        f"sslmode=verify-full\nsslrootcert={certificate}\n"
    )
    (tmp_path / "passwords").write_text(f"127.0.0.1:{server.port}:teams:team:tr0ub4d\n")
    (tmp_path / "passwords").chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passwords"))
    url, config, shown = "postgres:", {}, "postgres:///?service=records"
    variables = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGUSER": "team",
        "PGDATABASE": "teams",
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": str(certificate),
    }
    match named:
        case "service":
            url = "postgres://?service=records"
        case "PGSERVICE":
            monkeypatch.setenv("PGSERVICE", "records")
        case "variables":
            shown = f"postgres://127.0.0.1:{server.port}/teams"
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
        case _:
            config = {"conn_str": "service=records"}
    store = open_store(url, project_dir=tmp_path, project="acme", environ=os.environ, config=config)
    store.append(entry())
    found = store.newest(NETWORK)
    store.close()

    assert (found, store.url) == (entry(), shown)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("sslmode=disable", "pg_hba.conf rejects"),
        ("sslmode=verify-full sslrootcert=/nowhere", "root certificate file"),
        ("sslmode=require password=other", "password authentication failed"),
        ("sslmode=require port=1", "connection failed"),
    ],
)
def test_why_a_database_is_not_reached_is_told(
    guarded: tuple[Postgres, Path], wrong: str, said: str
) -> None:
    """
    As the server or the client library says it; no password is repeated.
    """
    server, _ = guarded
    where = f"host=127.0.0.1 port={server.port} user=team dbname=teams password=tr0ub4d {wrong}"
    store = PostgresStore(where, project="acme")

    with pytest.raises(StoreUnavailable, match=said) as raised:
        store.records()

    assert "tr0ub4d" not in raised.value.message + raised.value.hint


def test_a_lock_is_waited_for_no_longer_than_a_statement_may_take(
    postgres: Postgres, database: str
) -> None:
    """
    Somebody holds the table: the call ends as an outage, the next one succeeds, and the entry is
    there once.
    """
    import psycopg

    store = PostgresStore(of(postgres.url, database), project="acme", timeout=1)
    store.append(entry(sequence=1))
    with psycopg.connect(of(postgres.url, database)) as other:
        other.execute("LOCK TABLE orchestrator.entries")
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            store.append(entry(sequence=2))
        other.rollback()
    store.append(entry(sequence=2))
    found = [item.sequence for item in store.history(NETWORK)]
    store.close()

    assert found == [2, 1]


#: Migrations of later versions: one that only adds, one that a version before cannot work with.
_MORE = "ALTER TABLE entries ADD COLUMN note text NOT NULL DEFAULT ''"
_OTHER = "ALTER TABLE entries RENAME COLUMN record TO document"


def test_a_schema_is_migrated_under_a_program_that_runs(postgres: Postgres, database: str) -> None:
    """
    A later version adds to the tables while an older one works: the older one goes on to its end,
    and nothing that either writes is lost. From then on the older one does not start: 22, and says
    so.
    """
    url, known = of(postgres.url, database), migrations("postgres")
    old = PostgresStore(url, project="acme")
    old.append(entry(sequence=1))
    new = PostgresStore(url, project="acme", scripts=[*known, _MORE])
    new.append(entry(sequence=2))
    old.append(entry(sequence=3))
    with pytest.raises(StoreUnavailable, match="schema version 2; this version knows up to 1"):
        PostgresStore(url, project="acme").records()
    histories = [[item.sequence for item in store.history(NETWORK)] for store in (old, new)]
    old.close()
    with pytest.raises(StoreUnavailable, match="schema version 2"):
        old.append(entry(sequence=4))
    new.close()

    assert histories == [[3, 2, 1]] * 2


def test_a_program_that_cannot_work_with_the_tables_any_more_is_told(
    postgres: Postgres, database: str
) -> None:
    """
    Its append fails and writes nothing, as an outage, so that an outcome is kept in the spool; the
    next call names the version.
    """
    url, known = of(postgres.url, database), migrations("postgres")
    old = PostgresStore(url, project="acme")
    old.append(entry(sequence=1))
    new = PostgresStore(url, project="acme", scripts=[*known, _OTHER])
    new.probe()

    with pytest.raises(StoreUnavailable, match="record") as raised:
        old.append(entry(sequence=2))
    with pytest.raises(StoreUnavailable, match="schema version 2"):
        old.append(entry(sequence=2))
    count = postgres.query_in(database, "SELECT count(*) FROM orchestrator.entries")
    old.close()
    new.close()

    assert "a newer one may have changed them" in raised.value.hint
    assert count == ["1"]


def test_of_an_old_and_a_new_program_that_make_a_schema_at_once_none_goes_back(
    postgres: Postgres, database: str
) -> None:
    """
    Whoever comes first, the version that is written is the highest; the older one works or is told.
    """
    url, known = of(postgres.url, database), migrations("postgres")
    stores = [
        PostgresStore(url, project="acme", scripts=[*known, _MORE][: 1 + number % 2])
        for number in range(8)
    ]
    start = threading.Barrier(len(stores))

    def use(store: PostgresStore) -> str:
        start.wait()
        try:
            store.records()
        except StoreUnavailable as exc:
            return exc.message
        return ""

    with ThreadPoolExecutor(len(stores)) as pool:
        said = list(pool.map(use, stores))
    for store in stores:
        store.close()

    assert postgres.query_in(database, "SELECT version FROM orchestrator.schema_version") == ["2"]
    assert said[1::2] == [""] * 4
    assert all("schema version 2; this" in text for text in said if text)


def test_what_was_acknowledged_survives_the_end_of_the_server(
    postgres: Postgres, database: str
) -> None:
    """
    Its processes are killed while entries are appended: what an append returned for is there, in
    order, and the next entry fits.
    """
    url = of(postgres.url, database)
    store = PostgresStore(url, project="acme")
    store.append(entry(sequence=1))
    done = [1]

    def append() -> None:
        with suppress(StoreUnavailable):
            while True:
                store.append(entry(sequence=done[-1] + 1))
                done.append(done[-1] + 1)

    thread = threading.Thread(target=append)
    thread.start()
    threading.Event().wait(0.5)
    postgres.kill()
    thread.join()
    postgres.start()
    store.append(entry(sequence=done[-1] + 1))
    found = [item.sequence for item in store.history(NETWORK)]
    store.close()

    assert len(done) > 1
    assert found == [*range(done[-1] + 1, 0, -1)]
