"""
Where the operation store of a blueprint in an environment lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from orchestrator.domain.text import Json

#: Where records lie beside provider states in a bucket or container.
PREFIX = "orchestrator"
#: The schemes of ``operations.url`` by which a store is one for several machines.
DATABASES, BUCKETS = ("postgres", "postgresql"), ("s3", "gs", "az")
SHARED_SCHEMES = (*DATABASES, *BUCKETS)


#: The forms of ``operations.url``.
STORE_URLS = (
    "sqlite:///ABSOLUTE/PATH, sqlite:RELATIVE/PATH, a path, postgres://HOST/DATABASE, "
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or memory:"
)
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(//(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?P<more>.*)",
    re.DOTALL,
)
_HOST = re.compile(r"(?:.*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(?::(?P<port>[^:]*))?")
#: The variables by which PostgreSQL's own client finds a database that no URL names.
_DATABASE_VARIABLES = ("PG_CONN_STR", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


def url_scheme(url: str) -> str | None:
    """
    The scheme of an ``operations.url``, None where it is a path.

    >>> url_scheme("S3://bucket"), url_scheme("ops.db")
    ('s3', None)
    """
    match = _URL.fullmatch(url)
    return match["scheme"].lower() if match else None


def store_url_problem(url: str, environ: Mapping[str, str]) -> str | None:
    """
    Why this can be no ``operations.url``; None where it can. Nothing of it is repeated: it may hold
    a password.

    >>> store_url_problem("s3:///prefix", {}), store_url_problem("postgres://db/ops", {})
    ('names no bucket', None)
    """
    match = _URL.fullmatch(url)
    if match is None or match["scheme"].lower() == "memory":
        return None
    scheme, authority = match["scheme"].lower(), match["authority"] or ""
    if scheme == "sqlite":
        is_path = match["path"].strip("/") and not (authority or match["more"])
        return None if is_path else "not a SQLite path"
    if scheme in BUCKETS:
        return None if authority else "names no bucket"
    if scheme not in DATABASES:
        return f"unknown kind {scheme!r}"
    elsewhere = url.endswith(":") or any(environ.get(name) for name in _DATABASE_VARIABLES)
    if not elsewhere and not url.partition(":")[2].strip("/"):
        return "names no database"
    hosts = [_HOST.fullmatch(host) for host in authority.split(",")]
    is_valid = all(host and (host["port"] or "0").isdecimal() for host in hosts)
    return None if is_valid else "its host or port is none"


class StoreLocation(Struct, frozen=True):
    """
    ``url`` is what ``operations.url`` says, else the place beside the provider states of
    ``backend``. Without one, records are kept on this machine: as they should with the backend
    ``local``, for want of a shared store with any other.

    ``config`` is the backend block where it has the credentials for ``url``.
    """

    backend: str = "local"
    url: str | None = None
    config: Mapping[str, Json] = {}

    def __repr__(self) -> str:
        return f"StoreLocation({self.backend!r}, {self.url!r})"

    @property
    def lacks_shared_store(self) -> bool:
        """
        Whether provider states are shared and the records would not be.
        """
        return self.url is None and self.backend != "local"

    @property
    def is_shared(self) -> bool:
        """
        Whether the store is one for several machines.
        """
        return url_scheme(self.url or "") in SHARED_SCHEMES


def location_beside(backend: str, config: Mapping[str, Json]) -> StoreLocation:
    """
    The location beside the provider states that a backend block holds.

    >>> location_beside("s3", {"bucket": "acme-tfstate"}).url
    's3://acme-tfstate/orchestrator'
    """
    match backend, config:
        case "s3", {"bucket": str(bucket)}:
            url = f"s3://{bucket}/{PREFIX}"
        case "gcs", {"bucket": str(bucket)}:
            url = f"gs://{bucket}/{PREFIX}"
        case "azurerm", {"container_name": str(container), "storage_account_name": str(_)}:
            url = f"az://{container}/{PREFIX}"
        case "pg", _:
            url = "postgres:"  # the block, or the environment, says which
        case _:
            return StoreLocation(backend)
    return StoreLocation(backend, url, config)
