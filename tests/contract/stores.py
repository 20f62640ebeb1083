"""
Every operation store, each on an empty place of a test's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.domain.values import replace
from orchestrator.ports.store import OperationStore
from orchestrator.stores.sqlite import MemoryStore
from tests.aws.proxy import Proxy, proxy_before
from tests.contract.clients import Place
from tests.engine.postgres import Postgres, postgres_server
from tests.servers import ObjectServer, azure_server, gcs_server, s3_server

#: Stores that several processes can open.
PLACES = ("sqlite", "postgres", "s3", "gs", "az")
STORES = ("memory", *PLACES)

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
    if name == "memory":
        memory = MemoryStore()
        return lambda: memory
    return shared_place(request, name, directory).open


def shared_place(request: pytest.FixtureRequest, name: str, directory: Path) -> Place:
    """
    An empty place that several processes can open; a named skip where its server is missing.
    """
    match name:
        case "sqlite":
            return Place(f"sqlite://{directory / '.orchestrator' / 'operations.db'}")
        case "postgres":
            postgres: Postgres = request.getfixturevalue("postgres")
            database = f"store{next(_numbers)}"
            postgres.query(f"CREATE DATABASE {database}")
            return Place(postgres.url.replace("/postgres?", f"/{database}?"))
        case _:
            return bucket_place(request.getfixturevalue(name))


def bucket_place(server: ObjectServer) -> Place:
    """
    A place in an empty bucket.
    """
    bucket = f"bucket-{next(_numbers)}"
    server.make_bucket(bucket)
    return Place(f"{server.scheme}://{bucket}/operations", server.config, server.environ)


@pytest.fixture
def proxied(
    request: pytest.FixtureRequest, s3: ObjectServer, tmp_path: Path
) -> Iterator[tuple[Place, Proxy]]:
    """
    An empty bucket, and the proxy through which it is reached.
    """
    place = shared_place(request, "s3", tmp_path)
    with proxy_before(int(s3.endpoint.rpartition(":")[2])) as proxy:
        config = {**place.config, "endpoints": {"s3": proxy.url}}
        yield replace(place, config=config), proxy
