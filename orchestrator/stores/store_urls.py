"""
From an ``operations.url`` to its store, and from a backend to the URL that lies beside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from orchestrator.errors import Invalid, Problem, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.ports.store import OperationStore

#: The embedded default, relative to the project.
DEFAULT_PATH = ".orchestrator/operations.db"

_FORMS = "sqlite:///ABSOLUTE/PATH, sqlite:RELATIVE/PATH, a path, or memory:"
_NOT_BUILT = {
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "pg": "PostgreSQL",
    "s3": "S3",
    "gs": "Google Cloud Storage",
    "gcs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "azure": "Azure Blob Storage",
    "azurerm": "Azure Blob Storage",
}
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):")


def open_store(url: str, *, root: Path) -> OperationStore:
    """
    The store that ``url`` names: a SQLite file (paths relative to ``root``) or ``memory:``.

    Nothing is opened or made before the first use. Invalid for a URL of no known kind;
    StoreUnavailable for a kind that is not built yet.
    """
    match = _SCHEME.match(url)
    scheme = match["scheme"].lower() if match else "path"
    if scheme == "memory":
        from orchestrator.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("sqlite", "path"):
        from orchestrator.stores.sqlite import SqliteStore

        return SqliteStore(root / (_sqlite_path(url) if match else url))
    if scheme in _NOT_BUILT:
        raise StoreUnavailable(
            f"operations.url {_shown(url)}: stores on {_NOT_BUILT[scheme]} are not built yet",
            hint=f"use one of: {_FORMS}",
        )
    raise Invalid(
        [Problem(f"operations.url {_shown(url)}: unknown kind {scheme!r}", hint=f"use {_FORMS}")]
    )


def store_url(backend_type: str, operations_url: str | None, root: Path) -> tuple[str, str | None]:
    """
    Where the records of a blueprint with this backend live, and a warning where that is not beside
    its provider state: while other stores are not built, SQLite in the project is used.
    """
    if operations_url:
        return operations_url, None
    url = (root.absolute() / DEFAULT_PATH).as_uri().replace("file://", "sqlite://", 1)
    if backend_type == "local":
        return url, None
    why = (
        f"operation stores on {_NOT_BUILT[backend_type]} are not built yet"
        if backend_type in _NOT_BUILT
        else f"no operation store lies beside backend {backend_type!r}, and operations.url is unset"
    )
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
