"""
Buckets of S3, Google Cloud Storage and Azure Blob Storage: opened with the credentials of the
Terraform backend block, the requests to them, and what their errors mean.

Settings that the block leaves out come from the environment variables that Terraform's backend
reads. Credentials that expire are renewed by their client.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.azure_client import azure_client, storage_account
from orchestrator.stores.client_settings import TIMEOUT, check_address, opener
from orchestrator.stores.google_client import ClientWithKey, google_client
from orchestrator.stores.s3_client import endpoint_of, s3_client

if TYPE_CHECKING:
    from obstore import PutResult
    from obstore.store import ObjectStore

#: What the client library calls a request without an answer.
_NO_ANSWER = {"Connect": "cannot be reached", "Timeout": "does not answer"}

#: What S3 and Google, and Azure, say where the bucket is there and the object is not.
_NO_OBJECT = ("NoSuchKey", "BlobNotFound")

#: Writers at once, and rounds of them, that must not both win where conditional writes are proven.
_WRITERS, _ROUNDS = 16, 4

Version = dict[str, str | None]


class StoredObject(Struct, frozen=True):
    """
    Content as it was read, the version for a conditional write, and the time of the write by the
    store's clock.
    """

    data: bytes
    version: Version
    written: datetime


class Bucket(Struct, frozen=True):
    """
    A bucket or container with its prefix, and a ``directory`` in it: requests for the objects in
    that, by name. ``url`` is its address without credentials, ``now`` the clock of its servers.

    Every request raises StoreUnavailable if it fails for another reason than it names.
    """

    client: ObjectStore | ClientWithKey
    url: str
    now: Callable[[], datetime]
    directory: str = ""

    def get(self, name: str) -> StoredObject | None:
        with self._readable_errors(name):
            try:
                answer = self.client.get(f"{self.directory}/{name}")
            except FileNotFoundError as exc:
                self._check_bucket(exc)
                return None
            meta = answer.meta
            return StoredObject(
                bytes(answer.bytes()),
                {"e_tag": meta["e_tag"], "version": meta["version"]},
                meta["last_modified"],
            )

    def put(self, name: str, data: bytes) -> None:
        with self._readable_errors(name):
            self.client.put(f"{self.directory}/{name}", data, use_multipart=False)

    def put_if(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """
        Create an object, or update the ``version`` that was read. Returns None if another writer
        was first.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create"
        if version is not None:
            mode = {key: value for key, value in version.items() if value is not None}
        with self._readable_errors(name):
            try:
                done = self._write(name, data, mode)
            except AlreadyExistsError:
                return None
            except (PreconditionError, FileNotFoundError) as exc:
                if "404 Not Found" in str(exc):
                    self._check_bucket(exc)
                return None
            return {"e_tag": done["e_tag"], "version": done["version"]}

    def _write(self, name: str, data: bytes, mode: Any) -> PutResult:
        from obstore.exceptions import GenericError

        path = f"{self.directory}/{name}"
        try:
            return self.client.put(path, data, mode=mode, use_multipart=False)
        except GenericError as exc:
            # No answer, on a connection that may be open on this side only. The client does not
            # try conditional writes again; whoever makes them recognises what is theirs.
            if "kind: Timeout" not in str(exc):
                raise
            return self.client.put(path, data, mode=mode, use_multipart=False)

    def _check_bucket(self, missing: Exception) -> None:
        """
        Raise the error of a listing if the bucket is missing, not just the object: the content of a
        missing bucket is not known to be empty.

        Law: unreadable is not empty.
        """
        if not any(f"<Code>{code}</Code>" in str(missing) for code in _NO_OBJECT):
            for _ in self.client.list(f"{self.directory}/none/"):
                break

    def delete(self, name: str) -> None:
        with self._readable_errors(name), suppress(FileNotFoundError):
            self.client.delete(f"{self.directory}/{name}")

    def listing(self, prefix: str) -> Iterator[tuple[str, str | None]]:
        """
        Yield the names that begin with ``prefix``, each with its ETag.
        """
        with self._readable_errors(prefix):
            for page in self.client.list(f"{self.directory}/{prefix}"):
                for item in page:
                    yield item["path"].partition(f"{self.directory}/")[2], etag(item)

    def prove_conditional_writes(self) -> None:
        """
        Let many writers race to create and to update one object, for some rounds.

        Raises StoreUnavailable if more than one of them wins. Two sequential writes would prove
        nothing: some servers are right in sequence and wrong in a race.
        """
        for _ in range(_ROUNDS):
            name = f"probes/{uuid.uuid4().hex}"
            try:
                self._race(name, None)
                current = self.get(name)
                assert current is not None, "somebody created it"
                self._race(name, current.version)
            finally:
                self.delete(name)

    def _race(self, name: str, version: Version | None) -> None:
        start = threading.Barrier(_WRITERS)
        # Bytes of their own: equal ones have equal tags, and a condition on them holds again.
        texts = [uuid.uuid4().bytes for _ in range(_WRITERS)]

        def write(number: int) -> bool:
            start.wait()
            return self.put_if(name, texts[number], version) is not None

        with ThreadPoolExecutor(_WRITERS) as pool:
            winners = [number for number, won in enumerate(pool.map(write, range(_WRITERS))) if won]
        current = self.get(name)
        # None is fine: the answer to the winner may have been lost, and its retry refused.
        if len(winners) > 1 or (winners and current and current.data != texts[winners[0]]):
            what = "created" if version is None else "updated"
            raise StoreUnavailable(
                f"{self.url}: {len(winners)} of {_WRITERS} writers {what} one object at once: "
                "conditional writes do not hold there",
                hint="entries would be lost: use another store (PostgreSQL, or a bucket whose "
                "If-None-Match and If-Match hold under a race)",
            )

    @contextmanager
    def _readable_errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError) as exc:
            # A listing or a removal that is forbidden is no error of its own to the client library.
            refused = isinstance(exc, PermissionDeniedError | UnauthenticatedError)
            external = re.search(r"External \w+ credential provider: ", str(exc))
            if external is not None:
                why = str(exc)[external.end() :].removeprefix("StoreUnavailable: ")
                why = " ".join(why.partition("Debug source:")[0].split())[:300]
                raise StoreUnavailable(
                    f"{self.url}: no credentials: {why}",
                    hint="log in again, or look at the profile, role or token that they come from",
                ) from exc
            if refused or re.search(r"403 Forbidden|\(code: (403|AccessDenied)\)", str(exc)):
                reason = _server_message(str(exc))
                raise StoreUnavailable(
                    f"{self.url}: {name}: not allowed{f': {reason}' if reason else ''}",
                    hint="look at the credentials and at the clock of this machine; "
                    "docs/stores.md lists the permissions needed",
                ) from exc
            raise StoreUnavailable(
                f"{self.url}: {name}: {_reason(exc)}",
                hint="look whether the bucket exists and can be reached from here",
            ) from exc


def etag(meta: Mapping[str, Any]) -> str | None:
    """
    Return an object's ETag without quotes: it is quoted in a response, bare in a listing.
    """
    tag = meta["e_tag"]
    return tag.strip('"') if tag else None


def _reason(exc: Exception) -> str:
    """
    Return the server's message, else the first line of the client library's: the rest is about its
    retries.
    """
    text = str(exc).strip()
    if "169.254.169.254" in text:  # the last place to ask, on a machine that is no instance
        return "no credentials: neither in the environment or backend block, nor of the machine"
    address = re.search(r"https?://[^/\s]+", text)
    for kind, words in _NO_ANSWER.items():
        if address is not None and f"kind: {kind}" in text:
            return f"{address[0]} {words}"
    return _server_message(text) or (text.splitlines() or [type(exc).__name__])[0][:300]


def _server_message(text: str) -> str | None:
    match = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text, re.S)
    return f"{match[1]}: {' '.join(match[2].split())}"[:300] if match else None


# How a bucket is opened.


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
        address = bare.partition("?")[0]
        raise Invalid([Problem(f"operations in {address}: {why}")]) from exc
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
