from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.backend_location import location, render
from orchestrator.errors import Invalid

PROJECT = Path("/project")


@pytest.mark.parametrize(
    ("backend_type", "config", "address"),
    [
        ("local", {"path": "state/web.tfstate"}, "state/web.tfstate"),
        ("local", {"path": "./state/../state/web.tfstate"}, "state/web.tfstate"),
        ("local", {"path": "/project/state/web.tfstate"}, "state/web.tfstate"),
        ("local", {"path": "/elsewhere/web.tfstate"}, "/elsewhere/web.tfstate"),
        ("s3", {"bucket": "b", "key": "k/x", "region": "eu-west-1"}, "s3://b/k/x"),
        (
            "s3",
            {"bucket": "b", "key": "k", "endpoints": {"s3": "https://u:p@Minio:9000"}},
            "s3://b/k?endpoint=https://minio:9000",
        ),
        ("gcs", {"bucket": "b", "prefix": "/p/q/"}, "gs://b/p/q/default.tfstate"),
        ("gcs", {"bucket": "b"}, "gs://b/default.tfstate"),
        (
            "azurerm",
            {
                "storage_account_name": "a",
                "container_name": "c",
                "key": "k",
                "sas_token": 1,
            },
            "azurerm://a/c/k",
        ),
        (
            "pg",
            {"conn_str": "postgres://me:s3cret@DB:5432/infra?sslmode=disable"},
            "postgres://db/infra?schema=terraform_remote_state",
        ),
        (
            "pg",
            {
                "conn_str": "host=db dbname=infra user=me password='s3 cret' port=5433",
                "schema_name": "web",
            },
            "postgres://db:5433/infra?schema=web",
        ),
        ("pg", {}, "postgres:///?schema=terraform_remote_state"),
        (
            "http",
            {
                "address": "https://me:s3cret@Host/state/web?env=prod&token=x",
                "password": "p",
            },
            "https://host/state/web?env=prod",
        ),
        (
            "consul",
            {
                "path": "tf/web",
                "address": "consul:8500",
                "access_token": "s3cret",
                "http_auth": "u:p",
            },
            'consul:{"address":"consul:8500","path":"tf/web"}',
        ),
        (
            "kubernetes",
            {"secret_suffix": "web", "token": "s3cret", "exec": {"args": ["a"], "client_key": "x"}},
            'kubernetes:{"exec":{"args":["a"]},"secret_suffix":"web"}',
        ),
    ],
)
def test_address(backend_type: str, config: dict[str, Any], address: str) -> None:
    """
    One place has one address however it is written, and no credential is part of it.
    """
    assert location(backend_type, config, PROJECT) == address


@pytest.mark.parametrize(
    ("backend_type", "config", "missing"),
    [("local", {}, "path"), ("s3", {"bucket": "b"}, "key"), ("http", {}, "address")],
)
def test_no_address(backend_type: str, config: dict[str, Any], missing: str) -> None:
    """
    A setting without which the state has no address is asked for by name.
    """
    with pytest.raises(Invalid, match=f'backend "{backend_type}" needs `{missing}`'):
        render(backend_type, config, PROJECT)


@pytest.mark.parametrize(
    ("backend_type", "config"),
    [
        ("local", {"path": "a\0b"}),
        ("http", {"address": "http://u:s3cret@[::::]/"}),
        ("http", {"address": "http://u:s3cret@["}),
        ("http", {"address": "http://u:s3cret@\u2100/"}),
        ("s3", {"bucket": "b", "key": "k", "endpoints": {"s3": "http://u:s3cret@["}}),
        ("pg", {"conn_str": "postgres://u:s3cret@[/db"}),
    ],
)
def test_what_is_no_address_is_refused(backend_type: str, config: dict[str, Any]) -> None:
    """
    Without what may be secret in it.
    """
    with pytest.raises(Invalid, match=f'backend "{backend_type}"') as raised:
        render(backend_type, config, PROJECT)
    assert "s3cret" not in str(raised.value)


def test_local_paths_are_absolute() -> None:
    """
    The engine runs elsewhere: what is relative in a local backend starts at the project.
    """
    assert render("local", {"path": "s/x.tfstate", "workspace_dir": "w"}, PROJECT) == {
        "path": "/project/s/x.tfstate",
        "workspace_dir": "/project/w",
    }


def test_any_backend_is_rendered_as_given() -> None:
    """
    A backend type that the tool has never heard of is passed on untouched.
    """
    config = {"deep": {"list": [1, {"a": None}]}, "flag": True}
    assert render("someday", config, PROJECT) == config
