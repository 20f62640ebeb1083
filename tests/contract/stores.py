"""
Every operation store, each on an empty place of a test's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.ports.store import OperationStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.sqlite import SqliteStore
from tests.engine.postgres import Postgres, postgres_server
from tests.servers import ObjectServer, azure_server, gcs_server, s3_server

STORES = ("memory", "sqlite", "postgres", "s3", "gs", "az")

#: What the URLs of stores begin with.
SCHEMES = STORES

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


def store_place(
    request: pytest.FixtureRequest, name: str, directory: Path
) -> Callable[[], OperationStore]:
    """
    What opens a store on one empty place; a named skip where its server is missing.
    """
    match name:
        case "memory":
            memory = MemoryStore()
            return lambda: memory
        case "sqlite":
            return lambda: SqliteStore(directory / ".orchestrator" / "operations.db")
        case "postgres":
            return _postgres(request.getfixturevalue("postgres"))
        case _:
            return _objects(request.getfixturevalue(name))


def _postgres(server: Postgres) -> Callable[[], OperationStore]:
    from orchestrator.stores.postgres import PostgresStore

    name = f"store{next(_numbers)}"
    server.query(f"CREATE DATABASE {name}")
    url = server.url.replace("/postgres?", f"/{name}?")
    return lambda: PostgresStore(url, project="acme")


def _objects(server: ObjectServer) -> Callable[[], OperationStore]:
    from orchestrator.stores.object_clients import open_bucket
    from orchestrator.stores.objects import ObjectsStore

    name = f"bucket-{next(_numbers)}"
    server.make_bucket(name)

    def open_one() -> OperationStore:
        url = f"{server.scheme}://{name}/operations"
        bucket = open_bucket(url, server.config, server.environ)
        return ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)

    return open_one
