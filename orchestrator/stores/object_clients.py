"""
Clients for buckets and containers, with the credentials of the Terraform backend block.

Settings that the block leaves out come from the environment variables that Terraform's backend
reads. Credentials that expire are renewed by their client.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.azure_client import azure_client, storage_account
from orchestrator.stores.bucket import Bucket
from orchestrator.stores.client_settings import TIMEOUT, check_address, opener
from orchestrator.stores.google_client import google_client
from orchestrator.stores.s3_client import endpoint_of, s3_client

#: What makes a client, by the scheme of ``operations.url``.
_CLIENTS = {"s3": s3_client, "gs": google_client, "az": azure_client}


def open_bucket(url: str, config: Mapping[str, Json], environ: Mapping[str, str]) -> Bucket:
    """
    Return the bucket or container and prefix of ``url``: ``s3://BUCKET/PREFIX``, ``gs://...`` or
    ``az://CONTAINER/PREFIX``. ``config`` is the backend block of the same kind, empty if there is
    none; URL parameters override it.

    Raises StoreUnavailable if the extra ``objects`` is not installed, Invalid if a setting is
    wrong.
    """
    try:
        from obstore.exceptions import BaseError
    except ImportError as exc:
        raise StoreUnavailable(
            "operations in an object store need the extra `objects`",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    parts, bare = urlsplit(url), bucket_url(url, config)
    settings = _settings(url, config)
    prefix = parts.path.strip("/") or None
    try:
        client, endpoint = _CLIENTS[parts.scheme](parts.netloc, prefix, settings, environ)
        check_address(endpoint, "endpoint")
    except (ValueError, BaseError) as exc:
        why = re.sub(r"^Generic .*? error: ", "", str(exc)).splitlines()[0][:300]
        place = bare.partition("?")[0]
        raise Invalid([Problem(f"operations in {place}: {why}")]) from exc
    return Bucket(client, bare, ServerClock(endpoint, partial(opener, endpoint, settings, environ)))


def bucket_url(url: str, config: Mapping[str, Json]) -> str:
    """
    Return the URL of a bucket and prefix without credentials, and with what distinguishes buckets
    of the same name: the account, or a custom endpoint. Raises Invalid without an account.
    """
    parts, settings = urlsplit(url), _settings(url, config)
    match parts.scheme:
        case "az":
            name, value = "account", storage_account(settings)
        case "s3":
            name, value = "endpoint", endpoint_of("s3", settings, {})
        case _:
            name = "storage_custom_endpoint"
            value = str(settings.get(name) or "")
    query = f"?{urlencode({name: value}, safe=':/')}" if value else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{query}"


def _settings(url: str, config: Mapping[str, Json]) -> dict[str, Any]:
    return {**config, **dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))}


class ServerClock:
    """
    The clock of the servers behind an address, from the ``Date`` header of a response.

    It is read once; after that the local clock, which may be wrong, only measures elapsed time.
    """

    def __init__(self, endpoint: str, opener: Callable[[], urllib.request.OpenerDirector]) -> None:
        self._endpoint = endpoint
        self._opener = opener
        self._answer: tuple[datetime, float] | None = None

    def __call__(self) -> datetime:
        if self._answer is None:
            self._answer = (self._ask(), time.monotonic())
        server_time, then = self._answer
        return server_time + timedelta(seconds=time.monotonic() - then)

    def _ask(self) -> datetime:
        request = urllib.request.Request(self._endpoint, method="HEAD")
        try:
            with self._opener().open(request, timeout=TIMEOUT) as answer:
                date = answer.headers["Date"]
        except urllib.error.HTTPError as exc:  # refused without credentials: it has a clock, too
            date = exc.headers["Date"]
        except OSError as exc:
            raise StoreUnavailable(f"{self._endpoint}: {exc}") from exc
        if date is None:
            raise StoreUnavailable(f"{self._endpoint}: its answer has no date")
        return parsedate_to_datetime(date).astimezone(UTC)
