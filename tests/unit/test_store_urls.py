"""
From URLs and backends to stores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import Invalid
from orchestrator.ports.store import OperationStore
from orchestrator.stores import project_store
from orchestrator.stores.sqlite import Mount, network_mount


def open_store(url: str | None, *, root: Path) -> OperationStore:
    return project_store.open_store(url, project_dir=root, project="acme", environ={})


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("postgres://me:s3cret@h/db?nonsense=1", "nonsense"),
        ("postgres://me:s3cret@%zz/db", "percent-encoded"),
        ("gcs://b/x?access_token=s3cret", "unknown kind 'gcs'"),
        ("sqlite://me:s3cret@h/x?password=s3cret", "not a SQLite path"),
        ("s3://b/../x?secret_key=s3cret", "illegal character"),
        ("az://[?access_key=s3cret", "names no bucket"),
    ],
)
def test_a_wrong_url_is_told_without_its_secrets(url: str, what: str) -> None:
    """
    What is wrong with it is said, and what may be secret in it is not.
    """
    with pytest.raises(Invalid, match=what) as raised:
        _ = open_store(url, root=Path("/project")).url

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///data/ops.db", "/data/ops.db"),
        ("sqlite:////data/ops.db", "/data/ops.db"),
        ("sqlite:///data/my%20ops.db", "/data/my%20ops.db"),
        ("sqlite:ops.db", "/project/ops.db"),
        ("records/ops.db", "/project/records/ops.db"),
        ("/data/ops.db", "/data/ops.db"),
    ],
)
def test_a_sqlite_url_is_absolute_or_relative_to_the_project(url: str, path: str) -> None:
    """
    Three slashes and more are absolute; no slash is relative to the project.
    """
    assert open_store(url, root=Path("/project")).url == f"sqlite://{path}"


def test_a_stores_url_opens_the_same_store() -> None:
    """
    What a store calls itself can be given as ``operations.url``.
    """
    store = open_store("a b%/ö.db", root=Path("/project"))

    assert open_store(store.url, root=Path("/elsewhere")).url == store.url


def test_store_urls_makes_nothing(tmp_path: Path) -> None:
    """
    A store in a fresh project reads as empty and leaves it fresh.
    """
    store = open_store(None, root=tmp_path)

    assert (store.records(), store.blobs(""), store.claim("a", "b")) == ([], [], None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["redis://x", "https://x/y", "sqlite://host/ops.db", "sqlite:"])
def test_an_unknown_url_is_invalid(url: str) -> None:
    """
    The error repeats the URL and the forms that there are.
    """
    with pytest.raises(Invalid, match=r"operations\.url") as caught:
        open_store(url, root=Path("/project"))

    assert "sqlite:///ABSOLUTE/PATH" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://u:pw@h:5433/d?sslmode=disable", "postgres://h:5433/d"),
        ("s3://b/p?region=eu-west-1", "s3://b/p"),
        ("gs://b/", "gs://b"),
        ("az://c/p?account=acme", "az://c/p?account=acme"),
    ],
)
def test_a_shared_store_calls_itself_by_its_url_without_credentials(url: str, shown: str) -> None:
    """
    What is shown names the place, and no password or parameter of the connection.
    """
    assert open_store(url, root=Path("/project")).url == shown


def test_the_default_is_a_file_in_the_project() -> None:
    """
    Where nothing is named, records lie beside the local provider states.
    """
    found = open_store(None, root=Path("/project"))

    assert found.url == "sqlite:///project/.orchestrator/operations.db"


@pytest.mark.parametrize(
    ("config", "environ"),
    [
        ({"conn_str": "postgres://u:pw@h/d"}, {"PG_CONN_STR": "postgres://other/x"}),
        ({"conn_str": "host=h dbname=d password=pw"}, {}),
        ({}, {"PG_CONN_STR": "postgres://u:pw@h/d"}),
    ],
)
def test_the_database_of_the_backend_block_is_that_of_the_records(
    config: dict[str, str], environ: dict[str, str]
) -> None:
    """
    As Terraform's backend: the block goes before the variable, in either form of libpq.
    """
    found = project_store.open_store(
        "postgres:", project_dir=Path("/p"), project="acme", environ=environ, config=config
    )

    assert found.url == "postgres://h/d"


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("/mnt/nfs/project/ops.db", "nfs4"),
        ("/mnt/nfs/local/ops.db", None),
        ("/mnt/nfs-not/ops.db", None),
        ("/home/ops.db", None),
        ("/mnt/ssh/ops.db", "fuse.sshfs"),
        ("/mnt/twice/ops.db", None),
    ],
)
def test_a_network_file_system_is_found_by_the_longest_mount(path: str, type_: str | None) -> None:
    """
    The mount nearest to the path decides; of two at one point the later one.
    """
    mounts = [
        Mount("/", "ext4"),
        Mount("/mnt/nfs", "nfs4"),
        Mount("/mnt/nfs/local", "xfs"),
        Mount("/mnt/ssh", "fuse.sshfs"),
        Mount("/mnt/twice", "cifs"),
        Mount("/mnt/twice", "ext4"),
    ]

    found = network_mount(Path(path), mounts)

    assert (found.type if found else None) == type_
