"""
The permissions that docs/stores.md asks for: they are enough, and each of them is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.app.commands.store import check_store
from orchestrator.domain.record.run_record import Claim
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from orchestrator.stores.postgres import PostgresStore
from tests.contract.stores import bucket_place, postgres, shared_place
from tests.engine.postgres import Postgres
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.project import REPOSITORY
from tests.servers import ObjectServer, container_signature, gcs_server

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

    def __init__(self, server: Postgres, name: str) -> None:
        self.owner = server.url.replace("/postgres?", f"/{name}?")

    def grant(self) -> None:
        """
        Make the tables, and grant what the page does.
        """
        store = PostgresStore(self.owner, project="acme")
        store.probe()
        store.close()
        self._execute(
            "GRANT USAGE ON SCHEMA orchestrator TO runs",
            *(f"GRANT {what} ON orchestrator.{table} TO runs" for table, what in GRANTS),
        )

    def revoke(self, table: str, privilege: str) -> None:
        self._execute(f"REVOKE {privilege} ON orchestrator.{table} FROM runs")

    def open(self) -> PostgresStore:
        """
        The store as the role of the runs sees it.
        """
        return PostgresStore(self.owner.replace("postgres@", "runs@"), project="acme")

    def _execute(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(self.owner, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture(scope="module")
def granted(postgres: Postgres) -> str:
    """
    The name of a database with the grants, and nothing in its tables.
    """
    postgres.query("CREATE ROLE runs LOGIN")
    postgres.query("CREATE DATABASE granted")
    Database(postgres, "granted").grant()
    return "granted"


@pytest.fixture
def database(postgres: Postgres, granted: str) -> Database:
    """
    A copy of it.
    """
    postgres.query("DROP DATABASE IF EXISTS used WITH (FORCE)")
    postgres.query(f"CREATE DATABASE used TEMPLATE {granted}")
    return Database(postgres, "used")


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


#: What the page asks for in a bucket, and the checks that fail without it.
_WRITES = {"write", "write and read a blob", "write a heartbeat", "conditional writes"}
_REMOVES = {"write", "remove a blob", "remove a heartbeat"}
_READS = {"write", "write and read a blob", "read a heartbeat", "conditional writes"}
BUCKETS = {
    "s3": {
        "s3:GetObject": _READS,
        "s3:PutObject": _WRITES,
        "s3:DeleteObject": _REMOVES,
        "s3:ListBucket": {"read records"},
    },
    "gs": {
        "storage.objects.get": _READS,
        "storage.objects.create": _WRITES,
        # What exists is replaced by deleting it.
        "storage.objects.delete": _WRITES | _REMOVES,
        "storage.objects.list": {"read records"},
    },
    "az": {"r": _READS, "w": _WRITES, "d": _REMOVES, "l": {"read records"}},
}
#: The requests to S3 that each permission is for.
_CALLS = {
    "s3:GetObject": "GET object",
    "s3:PutObject": "PUT object",
    "s3:DeleteObject": "POST bucket?delete",
    "s3:ListBucket": "GET bucket?list-type",
}


@pytest.fixture(scope="module")
def refusing(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ObjectServer, set[str]]]:
    """
    GCS, and the permissions that nobody has there.
    """
    refused = set[str]()
    with gcs_server(tmp_path_factory.mktemp("refusing"), refused=refused) as server:
        yield server, refused


def bucket_without(
    request: pytest.FixtureRequest, directory: Path, kind: str, permission: str
) -> ObjectsStore:
    """
    A store in an empty bucket, for somebody who lacks a permission; nobody lacks "".
    """
    match kind:
        case "s3":
            place, proxy = request.getfixturevalue("proxied")
            if permission:
                proxy.arm(_CALLS[permission], "deny", times=10_000)
            config = place.config
        case "gs":
            server, refused = request.getfixturevalue("refusing")
            refused.clear()
            place = bucket_place(server)
            config = server.config
            refused.add(permission.removeprefix("storage.objects."))
        case _:
            place = shared_place(request, kind, directory)
            container = place.url.split("/")[2]
            letters = "".join(name for name in BUCKETS["az"] if name != permission)
            config = {**place.config, "sas_token": container_signature(container, letters)}
            del config["access_key"]
    opened = open_bucket(place.url, config, place.environ)
    return ObjectsStore(opened, project="acme")


@pytest.mark.parametrize(
    ("kind", "permission"),
    [(kind, name) for kind, needed in BUCKETS.items() for name in ("", *needed)],
)
def test_each_permission_of_a_bucket_is_needed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, permission: str
) -> None:
    """
    With those that the page names everything works. Refused one by one: `store check` tells what
    fails, and that it is not allowed.
    """
    store = bucket_without(request, tmp_path, kind, permission)
    checks = check_store(store, scratch()).checks

    failed = {item.name.partition(":")[0]: item.message or "" for item in checks if not item.ok}
    assert set(failed) == BUCKETS[kind].get(permission, set())
    assert all("not allowed" in message for message in failed.values())


def test_the_page_names_the_permissions_of_buckets() -> None:
    """
    Each that is tested, and no other.
    """
    page = (REPOSITORY / "docs/stores.md").read_text()
    for kind, prefix in (("s3", "s3"), ("gs", "storage.objects")):
        section = page[page.index("### Permissions in buckets") : page.index("### Grants in Post")]
        named = set(re.findall(rf"\b{re.escape(prefix)}[:.]\w+", section)) - {"s3:prefix"}
        assert named == set(BUCKETS[kind])
    assert f"`{''.join(sorted(BUCKETS['az'], key='rwdl'.index))}`" in page
