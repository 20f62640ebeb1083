"""
The XML API of Google Cloud Storage before fake-gcs-server, which speaks the JSON API only.

The client of the store uses the XML API; this translates the few requests that it makes, with their
conditions, and leaves the semantics to the server behind.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Set
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tests.loopback import served

_BOUNDARY = "d3c1ff0e5b3a"

#: The server behind looks at a condition and then writes: in a race two updates would win.
_WRITING = Lock()


@contextmanager
def xml_api_before(json_api: str, refused: Set[str] = frozenset()) -> Iterator[str]:
    """
    The address of an XML API before a server of the JSON API. Whoever calls has all permissions for
    objects but those that are ``refused`` at the time: to replace one is to create and delete it.
    """

    class Handler(_Handler):
        behind = json_api
        lacking = refused

    with served(Handler) as port:
        yield f"http://127.0.0.1:{port}"


class _Handler(BaseHTTPRequestHandler):
    behind: str
    lacking: Set[str]
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: the body would wait 40 ms for an ACK of the head
    began = (datetime.now(UTC), time.monotonic())

    def date_time_string(self, timestamp: float | None = None) -> str:
        """
        The time of the server, whatever a test makes of the clock of this process.
        """
        told, then = self.began
        return format_datetime(told + timedelta(seconds=time.monotonic() - then), usegmt=True)

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            self._list(parts.path.strip("/"), parse_qs(parts.query))
        else:
            self._object(body=True)

    def do_PUT(self) -> None:
        bucket, name = self._names()
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refuse("create") or ("delete" in self.lacking and self._replaces(bucket, name)):
            return
        # As multipart: the server heeds conditions of no other kind of upload.
        query = {"uploadType": "multipart"}
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None:
            query["ifGenerationMatch"] = condition
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        with _WRITING:
            told = self._ask(path, "POST", _multipart(name, data))
        if told is not None:
            self._answer(200, b"", json.loads(told))

    def do_DELETE(self) -> None:
        bucket, name = self._names()
        if self._refuse("delete"):
            return
        if self._ask(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", "DELETE") is not None:
            self._answer(204, b"", {})

    def _refuse(self, permission: str) -> bool:
        """
        Whether the caller lacks a permission, and was told so.
        """
        if permission not in self.lacking:
            return False
        text = (
            "<Error><Code>AccessDenied</Code><Message>Access denied.</Message><Details>robot does "
            f"not have storage.objects.{permission} access.</Details></Error>"
        )
        self._answer(403, text.encode(), {})
        return True

    def _missing(self, bucket: str) -> bytes:
        """
        Which is missing, the object or its bucket, as the XML API says it.
        """
        code = "NoSuchKey"
        try:
            urllib.request.urlopen(f"{self.behind}/storage/v1/b/{bucket}", timeout=20).close()
        except urllib.error.HTTPError:
            code = "NoSuchBucket"
        return f"<Error><Code>{code}</Code><Message>It does not exist.</Message></Error>".encode()

    def _replaces(self, bucket: str, name: str) -> bool:
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        try:
            urllib.request.urlopen(f"{self.behind}{path}", timeout=20).close()
        except urllib.error.HTTPError:
            return False
        return self._refuse("delete")

    def _object(self, *, body: bool) -> None:
        bucket, name = self._names()
        if self._refuse("get"):
            return
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        # Bytes and generation in one answer: the object may be another one a moment later.
        try:
            with urllib.request.urlopen(f"{self.behind}{path}?alt=media", timeout=20) as answer:
                data, told = answer.read(), answer.headers
        except urllib.error.HTTPError as exc:
            self._answer(exc.code, self._missing(bucket), {})
            return
        meta = {
            "generation": told["X-Goog-Generation"],
            "etag": told["ETag"].strip('"'),
            "updated": parsedate_to_datetime(told["Last-Modified"]).isoformat(),
        }
        self._answer(200, data, meta, body=body)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        if self._refuse("list"):
            return
        asked = {"prefix": query.get("prefix", [""])[0]}
        told = self._ask(f"/storage/v1/b/{bucket}/o?{urlencode(asked)}", "GET")
        if told is None:
            return
        items = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><LastModified>{item['updated']}"
            f"</LastModified><ETag>{escape(item['etag'])}</ETag><Size>{item['size']}</Size></Contents>"
            for item in json.loads(told).get("items", ())
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        self._answer(200, text.encode(), {})

    def _names(self) -> tuple[str, str]:
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, name

    def _ask(self, path: str, method: str, data: bytes | None = None) -> bytes | None:
        """
        What the server behind says; None where it refused, and that was passed on.
        """
        kind = f"multipart/related; boundary={_BOUNDARY}"
        headers = {"Content-Type": kind} if data is not None else {}
        request = urllib.request.Request(
            self.behind + path, data=data, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                told: bytes = answer.read()
                return told
        except urllib.error.HTTPError as exc:
            self._answer(exc.code, exc.read(), {})
            return None

    def _answer(self, code: int, data: bytes, meta: dict[str, Any], *, body: bool = True) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        if meta:
            written = datetime.fromisoformat(meta["updated"])
            self.send_header("ETag", f'"{meta["etag"]}"')
            self.send_header("x-goog-generation", str(meta["generation"]))
            self.send_header("Last-Modified", format_datetime(written, usegmt=True))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """
        Say nothing.
        """


def _multipart(name: str, data: bytes) -> bytes:
    head = json.dumps({"name": name}).encode()
    parts = (b"Content-Type: application/json\r\n\r\n" + head, b"Content-Type: x/y\r\n\r\n" + data)
    mark = f"--{_BOUNDARY}".encode()
    return b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
