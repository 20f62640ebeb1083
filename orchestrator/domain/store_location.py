"""
Where the operation store of a blueprint in an environment lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from orchestrator.domain.text import Json

#: Where records lie on a machine, relative to the project.
OWN_STORE = ".orchestrator/operations.db"
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
_URL = (
    r"(?s)(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(//(?P<authority>[^/?#]*))?"
    r"(?P<path>[^?#]*)(?P<more>.*)"
)
_HOST = r"(?:.*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(?::(?P<port>[^:]*))?"
#: What a name of a bucket or container is made of.
_BUCKET = r"(?a)[\w.:@$-]+"
#: The variables by which PostgreSQL's own client finds a database that no URL names.
_DATABASE_VARIABLES = ("PG_CONN_STR", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


def url_scheme(url: str) -> str | None:
    """
    Return the scheme of an ``operations.url`` in lower case, None if it is a path.

    >>> url_scheme("S3://bucket"), url_scheme("ops.db")
    ('s3', None)
    """
    match = re.fullmatch(_URL, url)
    return match["scheme"].lower() if match else None


def store_url_problem(url: str, environ: Mapping[str, str]) -> str | None:
    """
    Return why this is not a valid ``operations.url``, None if it is one. The URL is not repeated:
    it may hold a password.

    >>> store_url_problem("s3:///prefix", {}), store_url_problem("postgres://db/ops", {})
    ('names no bucket', None)
    """
    match = re.fullmatch(_URL, url)
    if match is None or match["scheme"].lower() == "memory":
        return None
    scheme, authority = match["scheme"].lower(), match["authority"] or ""
    if scheme == "sqlite":
        is_path = match["path"].strip("/") and not (authority or match["more"])
        return None if is_path else "not a SQLite path"
    if scheme in BUCKETS:
        return None if re.fullmatch(_BUCKET, authority) else "names no bucket"
    if scheme not in DATABASES:
        return f"unknown kind {scheme!r}"
    elsewhere = url.endswith(":") or any(environ.get(name) for name in _DATABASE_VARIABLES)
    if not elsewhere and not url.partition(":")[2].strip("/"):
        return "names no database"
    hosts = [re.fullmatch(_HOST, host) for host in authority.split(",")]
    is_valid = all(host and (host["port"] or "0").isdecimal() for host in hosts)
    return None if is_valid else "its host or port is none"


def shown_url(url: str) -> str:
    """
    Return a URL without what may be secret in it.

    >>> shown_url("postgres://ada:secret@db/ops?password=secret")
    'postgres://db/ops'
    """
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


class StoreLocation(Struct, frozen=True):
    """
    The location of a blueprint's operation store.

    ``url`` is ``operations.url`` if that is set, else the place beside the provider states of
    ``backend``. If it is None, records are kept on this machine: right for the backend ``local``,
    and all that can be done for another backend beside which no store can be.

    ``config`` is the backend block if it has the credentials for ``url``. ``is_trusted``: its
    server may get credentials; not so if only another store names it.
    """

    backend: str = "local"
    url: str | None = None
    config: Mapping[str, Json] = {}
    is_trusted: bool = True

    def __repr__(self) -> str:
        return f"StoreLocation({self.backend!r}, {self.url!r})"

    @property
    def shown(self) -> str:
        """
        The URL without what may be secret in it.
        """
        return shown_url(self.url or "")

    @property
    def lacks_shared_store(self) -> bool:
        """
        Whether provider states are shared but records would stay on this machine.
        """
        return self.url is None and self.backend != "local"

    @property
    def is_shared(self) -> bool:
        """
        Whether several machines can use the store.
        """
        return url_scheme(self.url or "") in SHARED_SCHEMES


def location_beside(backend: str, config: Mapping[str, Json]) -> StoreLocation:
    """
    Return the location beside the provider states of a backend block.

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
