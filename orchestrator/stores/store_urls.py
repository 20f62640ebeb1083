"""
From an ``operations.url`` to its store, and from a backend to the URL that lies beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from orchestrator.errors import Invalid, Problem

if TYPE_CHECKING:
    from orchestrator.domain.record.record import Json
    from orchestrator.ports.store import OperationStore

#: The embedded default, relative to the project.
DEFAULT_PATH = ".orchestrator/operations.db"

_FORMS = (
    "sqlite:///ABSOLUTE/PATH, sqlite:RELATIVE/PATH, a path, postgres://HOST/DATABASE, "
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or memory:"
)
_POSTGRES = ("postgres", "postgresql")
_OBJECTS = ("s3", "gs", "az")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):")


def open_store(
    url: str,
    *,
    project_dir: Path,
    project: str,
    environ: Mapping[str, str],
    config: Mapping[str, Json] | None = None,
) -> OperationStore:
    """
    The store that ``url`` names: a SQLite file (paths relative to ``project_dir``), a PostgreSQL
    database, a bucket, or ``memory:``. A store that is shared holds ``project`` apart from others;
    ``config`` is the backend block that tells of credentials and endpoints beside ``environ``.

    Nothing is opened or made before the first use. Invalid for a URL of no known kind.
    """
    match = _SCHEME.match(url)
    scheme = match["scheme"].lower() if match else "path"
    if scheme == "memory":
        from orchestrator.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("sqlite", "path"):
        from orchestrator.stores.sqlite import SqliteStore

        return SqliteStore(project_dir / (_sqlite_path(url) if match else url))
    if scheme in _POSTGRES:
        from orchestrator.stores.postgres import PostgresStore

        return PostgresStore(url, project=project)
    if scheme in _OBJECTS:
        from orchestrator.stores.object_clients import open_bucket
        from orchestrator.stores.objects import ObjectsStore

        bucket = open_bucket(url, config or {}, environ)
        return ObjectsStore(bucket.client, url=bucket.url, project=project, now=bucket.now)
    raise Invalid(
        [Problem(f"operations.url {_shown(url)}: unknown kind {scheme!r}", hint=f"use {_FORMS}")]
    )


def store_url(backend_type: str, operations_url: str | None, root: Path) -> tuple[str, str | None]:
    """
    Where the records of a blueprint with this backend live, and a warning where that is not beside
    its provider state: then SQLite in the project is used.
    """
    if operations_url:
        return operations_url, None
    url = (root.absolute() / DEFAULT_PATH).as_uri().replace("file://", "sqlite://", 1)
    if backend_type == "local":
        return url, None
    why = f"no operation store is named for backend {backend_type!r} (operations.url)"
    return url, f"{why}: records are kept on this machine only, in {DEFAULT_PATH}"


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise Invalid(
            [Problem(f"operations.url {_shown(url)}: not a SQLite path", hint=f"use {_FORMS}")]
        )
    # sqlite:////a, as other programs write an absolute path, is /a as well.
    return re.sub(r"^//+", "/", unquote(parts.path))


def _shown(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
