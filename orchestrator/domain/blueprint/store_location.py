"""
Where the operation store of a blueprint in an environment lies.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orchestrator.domain.text import Json

#: Where records lie beside provider states in a bucket or container.
PREFIX = "orchestrator"
#: The schemes of ``operations.url`` by which a store is one for several machines.
DATABASES, BUCKETS = ("postgres", "postgresql"), ("s3", "gs", "az")
SHARED_SCHEMES = (*DATABASES, *BUCKETS)


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
        return (self.url or "").partition(":")[0].lower() in SHARED_SCHEMES


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
