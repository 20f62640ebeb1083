"""
The permissions that docs/stores.md asks for: they are enough, and each of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.app.commands.store import check_store
from orchestrator.domain.record.run_record import Claim
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.object_clients import open_bucket
from orchestrator.stores.objects import ObjectsStore
from orchestrator.stores.postgres import PostgresStore
from tests.aws.proxy import Proxy, proxy_before
from tests.contract.stores import postgres
from tests.engine.postgres import Postgres
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.project import REPOSITORY
from tests.servers import s3_server

__all__ = ["postgres"]

#: Table and privilege, as the page grants them to the role of the runs.
GRANTS = [
    (table, privilege)
    for table, privileges in {
        "schema_version": ["SELECT"],
        "entries": ["SELECT", "INSERT"],
        "claims": ["SELECT", "INSERT", "UPDATE", "DELETE"],
        "leases": ["SELECT", "INSERT", "UPDATE", "DELETE"],
        "blobs": ["SELECT", "INSERT", "UPDATE", "DELETE"],
    }.items()
    for privilege in privileges
]


class Database:
    """
    A database whose tables belong to its owner, and a role with what the page grants.
    """

    def __init__(self, server: Postgres) -> None:
        self.server = server
        server.query("DROP DATABASE IF EXISTS granted WITH (FORCE)")
        server.query("DROP ROLE IF EXISTS runs")
        server.query("CREATE DATABASE granted")
        server.query("CREATE ROLE runs LOGIN")
        self.owner = server.url.replace("/postgres?", "/granted?")
        store = PostgresStore(self.owner, project="acme")
        store.probe()
        store.close()
        self._execute("GRANT USAGE ON SCHEMA orchestrator TO runs")
        for table, privilege in GRANTS:
            self._execute(f"GRANT {privilege} ON orchestrator.{table} TO runs")

    def revoke(self, table: str, privilege: str) -> None:
        self._execute(f"REVOKE {privilege} ON orchestrator.{table} FROM runs")

    def open(self) -> PostgresStore:
        """
        The store as the role of the runs sees it.
        """
        return PostgresStore(self.owner.replace("postgres@", "runs@"), project="acme")

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.owner, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture
def database(postgres: Postgres) -> Database:
    return Database(postgres)


def scratch() -> Claim:
    return claim("run-check", blueprint="store-check", environment="e1")


def use(store: PostgresStore) -> None:
    """
    Everything that runs do with a store.
    """
    document = check_store(store, scratch())
    assert document.ok, document.to_json()
    store.append(entry())
    assert store.newest(NETWORK) is not None


def test_what_the_page_grants_is_enough(database: Database) -> None:
    """
    A role that may not create anything, nor change or delete an entry, does all that runs do.
    """
    store = database.open()
    use(store)
    store.close()


@pytest.mark.parametrize(("table", "privilege"), GRANTS)
def test_each_grant_is_needed(database: Database, table: str, privilege: str) -> None:
    """
    Without it something fails, and says what to grant.
    """
    database.revoke(table, privilege)
    store = database.open()
    failed = [check for check in check_store(store, scratch()).checks if not check.ok]
    if not failed:
        with pytest.raises(StoreUnavailable) as raised:
            store.append(entry())
        assert "docs/stores.md" in raised.value.hint
    store.close()


def test_reading_needs_no_more_than_to_read(database: Database) -> None:
    """
    Who may only select sees everything that reading commands show; whoever wants to write is told,
    and nothing is written.
    """
    writer = database.open()
    writer.append(entry())
    writer.take_claim(claim("run-1"))
    writer.put_lease(lease("run-1"))
    writer.put_blob("runs/r/run.json", b"{}")
    writer.close()
    for table, privilege in GRANTS:
        if privilege != "SELECT":
            database.revoke(table, privilege)
    store = database.open()
    seen = (store.newest(NETWORK), store.records(), store.history(NETWORK))
    beside = (store.claim("web", "prod"), store.blobs(""), store.blob("runs/r/run.json"))
    alive = store.lease("run-1")
    writes: list[Callable[[], object]] = [
        store.probe,
        lambda: store.append(entry(sequence=2)),
        lambda: store.take_claim(claim("run-1")),
        lambda: store.put_lease(lease("run-1")),
        lambda: store.put_blob("b", b""),
        lambda: store.drop_blob("runs/r/run.json"),
    ]
    for write in writes:
        with pytest.raises(StoreUnavailable, match="permission denied"):
            write()

    assert seen == (entry(), [entry()], [entry()])
    assert beside == (claim("run-1"), ["runs/r/run.json"], b"{}")
    assert alive is not None
    assert store.history(NETWORK) == [entry()]
    store.close()


def test_the_page_grants_what_is_tested() -> None:
    """
    Each of them stands there.
    """
    page = " ".join((REPOSITORY / "docs/stores.md").read_text().split())
    for table, privilege in GRANTS:
        assert any(
            privilege in line and table in line
            for line in page.split(";")
            if "GRANT" in line and "orchestrator." in line
        ), (table, privilege)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[tuple[ObjectsStore, Proxy]]:
    with s3_server() as server, proxy_before(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.make_bucket("acme")
        config = {**server.config, "endpoints": {"s3": proxy.url}}
        opened = open_bucket("s3://acme/orchestrator", config, server.environ)
        yield ObjectsStore(opened.client, url=opened.url, project="acme", now=opened.now), proxy


@pytest.mark.parametrize(
    ("call", "action", "check"),
    [
        ("GET object", "s3:GetObject", "write and read a blob"),
        ("PUT object", "s3:PutObject", "write a heartbeat"),
        ("POST bucket?delete", "s3:DeleteObject", "remove a heartbeat"),
        ("GET bucket?list-type", "s3:ListBucket", "read records"),
    ],
)
def test_each_permission_of_a_bucket_is_needed(
    bucket: tuple[ObjectsStore, Proxy], call: str, action: str, check: str
) -> None:
    """
    Refused one by one: `store check` tells which is missing, and the page names it.
    """
    store, proxy = bucket
    proxy.arm(call, "deny", times=10_000)

    found = {item.name: item for item in check_store(store, scratch()).checks}

    assert not found[check].ok
    assert "not allowed" in (found[check].message or "")
    assert action in (REPOSITORY / "docs/stores.md").read_text()
