"""
Operation state lies beside provider state: where that is, and what is refused elsewhere.
"""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.values import changed_fields
from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.loading.summary import neighbour_urls, seen_locations
from orchestrator.project import project_context
from orchestrator.stores.project_store import public_url
from orchestrator.stores.sqlite import MemoryStore, SqliteStore
from orchestrator.stores.watched_store import SequenceMemory, WatchedStore
from tests.fakes.entries import claim, entry
from tests.fakes.project import ProjectOnDisk

STEPS = "steps: {a: {module: ../modules/plain}}\n"


class Known(MemoryStore):
    """
    A known store at a URL, in which a run has noted where the environment ``old`` has its own.
    """

    def __init__(self, url: str, noted: str) -> None:
        super().__init__()
        self._known_url = url
        self.put_blob("stores/b/old", noted.encode())

    @property
    def url(self) -> str:
        return self._known_url


_ENDPOINT = "endpoint=http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("known", "opened", "noted", "found"),
    [
        (
            StoreLocation(url=f"s3://a/o?{_ENDPOINT}&region=x", config={"profile": "p"}),
            f"s3://a/o?{_ENDPOINT}",
            f"s3://old/o?{_ENDPOINT}",
            StoreLocation(
                url=f"s3://old/o?{_ENDPOINT}",
                config={"profile": "p", "endpoint": "http://127.0.0.1:9000", "region": "x"},
            ),
        ),
        (
            StoreLocation(url="postgresql://ada:secret@db/a?sslmode=require"),
            "postgres://db/a",
            "postgres://db/old",
            StoreLocation(url="postgresql://ada:secret@db/old?sslmode=require"),
        ),
        (
            StoreLocation(url="postgres:", config={"conn_str": "postgres://ada:secret@db/a"}),
            "postgres://db/a",
            "postgres://db/old",
            StoreLocation(url="postgres://ada:secret@db/old"),
        ),
        (
            StoreLocation(url="postgres://ada:secret@db/a"),
            "postgres://db/a",
            "postgres://elsewhere/old",
            StoreLocation(url="postgres://elsewhere/old", is_trusted=False),
        ),
        (
            StoreLocation(url="az://a/o", config={"access_key": "secret"}),
            "az://a/o?account=acme",
            "az://old/o?account=another",
            StoreLocation(url="az://old/o?account=another", is_trusted=False),
        ),
    ],
)
def test_a_noted_store_gets_the_credentials_of_a_known_one_on_its_server_only(
    project: ProjectOnDisk, known: StoreLocation, opened: str, noted: str, found: StoreLocation
) -> None:
    """
    Those of a URL as well as those of a backend block. Whoever may write into one store does not
    have the credentials sent to a server of theirs.
    """

    def open_store(_: StoreLocation) -> closing[MemoryStore]:
        return closing(Known(opened, noted))

    def seen(wanted: str) -> list[StoreLocation]:
        def is_wanted(_: str, environment: str) -> bool:
            return environment == wanted

        context = project_context(project.root)
        return seen_locations(context, [known], is_wanted, open_store)

    (location,) = seen("old")
    assert dict(changed_fields(location)) == dict(changed_fields(found))
    assert seen("prod") == []
    assert "secret" not in location.shown


@pytest.mark.parametrize(
    ("operations", "noted"),
    [
        (
            "backend: {type: s3, config: {bucket: b, key: k, profile: none, endpoint: 'http://h'}}",
            "s3://b/orchestrator?endpoint=http://h",
        ),
        ("backend: {type: gcs, config: {bucket: b, credentials: none}}", "gs://b/orchestrator"),
        (
            "backend: {type: azurerm, config: {storage_account_name: acme, container_name: c}}",
            "az://c/orchestrator?account=acme",
        ),
        (
            "backend: {type: pg, config: {conn_str: 'postgres://ada:secret@h/d?sslmode=require'}}",
            "postgres://h/d",
        ),
        ("operations: {url: 's3://b/o?secret_key=secret'}", "s3://b/o"),
        ("operations: {url: 'az://c/o'}", None),
        ("operations: {url: 'ops.db'}", None),
    ],
)
def test_a_run_notes_the_store_of_another_environment_without_a_client_for_it(
    project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch, operations: str, noted: str | None
) -> None:
    """
    Who runs in one environment may have no credentials for the next, and does not wait for those
    that a cloud would give. What is noted is the URL that the store has for those who open it.
    """
    project.blueprint(f"environments:\n  dev: {{}}\n  prod: {{{operations}}}\n{STEPS}")
    for library in ("obstore.store", "botocore.session", "google.auth"):
        monkeypatch.setitem(sys.modules, library, None)
    context = project_context(project.root)

    urls = neighbour_urls(context, project.load(environment="dev"), partial(public_url, {}))

    assert urls == ({"prod": noted} if noted else {})


@pytest.mark.parametrize(
    ("backend", "url"),
    [
        ("type: s3, config: {bucket: b, key: '${step.name}'}", "s3://b/orchestrator"),
        ("type: gcs, config: {bucket: b, prefix: '${step.name}'}", "gs://b/orchestrator"),
        (
            "type: azurerm, config: {storage_account_name: acme, container_name: c, key: x}",
            "az://c/orchestrator",
        ),
        ("type: pg, config: {conn_str: 'postgres://h/d', schema_name: x}", "postgres:"),
        ("type: local", None),
        ("type: http, config: {address: 'https://h/x'}", None),
        ("type: consul, config: {path: x}", None),
    ],
)
def test_records_lie_beside_provider_states(
    project: ProjectOnDisk, backend: str, url: str | None
) -> None:
    """
    In the same bucket, container or database, whatever tells one state there from another; with
    the credentials that the backend block has.
    """
    project.blueprint(f"backend: {{{backend}}}\n{STEPS}")

    found = project.outline().operations

    assert found == project.load().operations
    assert found.url == url
    assert found.lacks_shared_store == (url is None and "local" not in backend)
    assert not found.config.keys() & {"key", "prefix", "schema_name"}


def test_each_environment_has_its_own_place(project: ProjectOnDisk) -> None:
    """
    Environments that differ in their backend differ in their operation store; references are
    resolved.
    """
    project.blueprint(
        """
        backend: {type: s3, config: {bucket: "acme-${environment}", key: k, region: r}}
        environments:
          dev: {}
          edge: {backend: {type: gcs, config: {bucket: far, prefix: p}}}
          here: {backend: {type: local}}
        """
        + STEPS
    )

    places = {name: project.outline(environment=name).operations for name in ("dev", "edge")}

    assert places["dev"] == StoreLocation(
        "s3", "s3://acme-dev/orchestrator", {"bucket": "acme-dev", "region": "r"}
    )
    assert places["edge"].url == "gs://far/orchestrator"
    assert project.outline(environment="here").operations == StoreLocation("local", None, {})


def test_the_backend_of_a_step_places_the_records_of_a_blueprint_without_one(
    project: ProjectOnDisk,
) -> None:
    """
    One store holds all records of a blueprint: a step with shared state needs a shared one.
    """
    project.blueprint(
        """
        steps:
          a: {module: ../modules/plain}
          b: {module: ../modules/plain, backend: {type: s3, config: {bucket: b, key: k}}}
        """
    )

    assert project.outline().operations.url == "s3://b/orchestrator"


def test_a_place_that_differs_from_step_to_step_is_none(project: ProjectOnDisk) -> None:
    """
    A bucket for each step cannot hold the records of all: a store must be named.
    """
    project.blueprint("backend: {type: s3, config: {bucket: 'b-${step.name}', key: k}}\n" + STEPS)

    assert project.outline().operations.lacks_shared_store


def test_a_named_bucket_has_the_credentials_of_the_backend(project: ProjectOnDisk) -> None:
    """
    Of the same kind as the backend: its block tells region, role and endpoint. Of another kind it
    tells nothing.
    """
    backend = "backend: {type: s3, config: {bucket: b, key: k, profile: ops}}\n"
    project.blueprint(backend + 'operations: {url: "s3://records/x"}\n' + STEPS)
    same = project.outline().operations
    project.blueprint(backend + 'operations: {url: "postgres://h/d"}\n' + STEPS)
    other = project.outline().operations

    assert same == StoreLocation("s3", "s3://records/x", {"bucket": "b", "profile": "ops"})
    assert other == StoreLocation("s3", "postgres://h/d")


def test_a_store_may_be_named_by_a_variable(project: ProjectOnDisk) -> None:
    """
    Beside a backend that says nothing of one; without the variable the blueprint is invalid.
    """
    backend = "backend: {type: http, config: {address: 'https://h/x'}}\n"
    project.blueprint(backend + 'operations: {url: "${env.RECORDS}"}\n' + STEPS)
    with pytest.raises(Invalid, match="RECORDS is not set"):
        project.load()

    found = project.load(environ={"RECORDS": "s3://records/x"}).operations

    assert found == StoreLocation("http", "s3://records/x")


class Placed:
    """
    A store that should lie at ``location``, in a project with records of ``web/prod``, if
    ``known``, in its own file.
    """

    def __init__(self, place: Path, location: StoreLocation, *, known: bool) -> None:
        self.told: list[str] = []
        self.inner = MemoryStore()
        own = place / ".orchestrator" / "operations.db"
        if known:
            store = SqliteStore(own)
            store.append(entry())
            store.close()
        memory = SequenceMemory(place / "seen", "x")
        self.store = WatchedStore(self.inner, memory, location, own, self.told.append)

    def refusal(self) -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as raised:
            self.store.take_claim(claim("new"))
        assert self.inner.claim("web", "prod") is None
        return raised.value


def test_without_a_shared_store_nothing_is_mutated(tmp_path: Path) -> None:
    """
    Provider state in Consul and records on one machine: mutating commands end before they write
    anything, and say how to get a store; reading ones say what they know.
    """
    placed = Placed(tmp_path, StoreLocation("consul"), known=False)

    with pytest.raises(StoreUnavailable):
        placed.store.create_blob("project-key", b"")
    error = placed.refusal()
    placed.store.records("web", "prod")
    placed.store.records("web", "prod")

    assert "'consul'" in error.message
    assert 'operations: {url: "sqlite:.orchestrator/operations.db"}' in error.hint
    assert "store copy" in error.hint
    assert [line.startswith(error.message) for line in placed.told] == [True]


def test_a_shared_store_that_knows_nothing_of_what_this_machine_knows_is_refused(
    tmp_path: Path,
) -> None:
    """
    A blueprint whose records lie in the project's own file does not start afresh in a bucket: the
    command that moves them is named.
    """
    location = StoreLocation("s3", "s3://b/orchestrator")
    placed = Placed(tmp_path, location, known=True)

    hint = placed.refusal().hint
    placed.store.records("web", "prod")

    command = "orchestrator store copy --blueprint web -e prod"
    assert f"`{command} sqlite:.orchestrator/operations.db`" in hint
    assert len(placed.told) == 1


@pytest.mark.parametrize("url", [None, "sqlite:ops.db"])
def test_a_file_on_this_machine_is_a_place_by_choice(tmp_path: Path, url: str | None) -> None:
    """
    Beside local state, or where the blueprint says so in words.
    """
    backend = "consul" if url else "local"
    placed = Placed(tmp_path, StoreLocation(backend, url), known=True)

    assert placed.store.take_claim(claim("new")) is None
    assert placed.told == []


def test_a_shared_store_that_knows_the_blueprint_is_believed(tmp_path: Path) -> None:
    """
    What this machine still has of it is history.
    """
    placed = Placed(tmp_path, StoreLocation("s3", "s3://b/orchestrator"), known=True)
    placed.inner.append(entry())

    assert placed.store.take_claim(claim("new")) is None
