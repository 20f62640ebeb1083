"""
Credentials of a bucket that expire while a run goes on: whoever made them is asked again.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from orchestrator.errors import StoreUnavailable
from orchestrator.stores.object_clients import open_bucket
from orchestrator.stores.objects import ObjectsStore
from tests.fakes.entries import entry
from tests.servers import s3_server

_ASSUMED = """<{0}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{0}Result>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>R:s</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{1}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>
<SessionToken>token-{1}</SessionToken><Expiration>{2}</Expiration></Credentials>
</{0}Result></{0}Response>"""


_REFUSED = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>
<Type>Sender</Type><Code>AccessDenied</Code><Message>not your role any more</Message></Error>
</ErrorResponse>"""


@dataclass
class Clouds:
    """
    STS and a container's endpoint for credentials, which are good for a second or two. ``asked``
    are the roles with the key that asked; with ``refuses`` nobody gets any.
    """

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuses: bool = False


def _key(headers: Any) -> str:
    found = re.search("Credential=([^/]*)", headers.get("Authorization") or "")
    return found[1] if found else ""


@pytest.fixture
def clouds() -> Iterator[Clouds]:
    found = Clouds()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            role = body["RoleArn"][0].rpartition("/")[2]
            found.asked.append((role, _key(self.headers)))
            text = _ASSUMED.format(body["Action"][0], f"{role}{len(found.asked)}", self._soon())
            if found.refuses:
                text = _REFUSED
            self._answer(text.encode(), "text/xml")

        def do_GET(self) -> None:
            found.asked.append(("container", self.headers.get("Authorization") or ""))
            answer = {
                "AccessKeyId": f"container{len(found.asked)}",
                "SecretAccessKey": "secret",
                "Token": "token",
                "Expiration": self._soon(),
            }
            self._answer(json.dumps(answer).encode(), "application/json")

        def _soon(self) -> str:
            return f"{datetime.now(UTC) + timedelta(seconds=2):%Y-%m-%dT%H:%M:%SZ}"

        def _answer(self, text: bytes, kind: str) -> None:
            self.send_response(403 if found.refuses else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """
            Nothing: tests read what was asked.
            """

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


ROLES = [{"role_arn": f"arn:aws:iam::1:role/{name}"} for name in ("first", "second")]


@pytest.mark.parametrize(
    ("how", "config", "asked"),
    [
        ("role", {"assume_role": ROLES[0]}, ["first"]),
        ("chain", {"assume_role": ROLES}, ["first", "second"]),
        (
            "web identity",
            {"assume_role_with_web_identity": {**ROLES[0], "web_identity_token": "a-token"}},
            ["first"],
        ),
        ("web identity of the environment", {}, ["first"]),
        ("container", {}, ["container"]),
        ("profile", {"profile": "team"}, ["first"]),
    ],
)
def test_credentials_that_expire_are_renewed(
    clouds: Clouds,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
    config: dict[str, Any],
    asked: list[str],
) -> None:
    """
    Each time that what is held has expired all of the chain is asked again, each role by what the
    one before it gives now, and the store goes on.
    """
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    environ: dict[str, str] = {"AWS_ENDPOINT_URL_STS": clouds.url, "AWS_REGION": "eu-west-1"}
    (tmp_path / "token").write_text("a-token")
    (tmp_path / "config").write_text(
        "[profile team]\nrole_arn = arn:aws:iam::1:role/first\nsource_profile = keys\n"
        "[profile keys]\naws_access_key_id = base\naws_secret_access_key = secret\n"
    )
    match how:
        case "role" | "chain":
            config = {**config, "access_key": "base", "secret_key": "secret"}
        case "web identity of the environment":
            environ |= {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/first",
            }
        case "container":
            environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"{clouds.url}/credentials"
        case "profile":
            environ["AWS_CONFIG_FILE"] = str(tmp_path / "config")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        server.make_bucket("acme")
        bucket = open_bucket("s3://acme/orchestrator", {**server.config, **config}, environ)
        store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)
        store.append(entry(sequence=1))
        before = len(clouds.asked)
        threading.Event().wait(2.1)
        store.append(entry(sequence=2))
        renewed = clouds.asked[before:]

    assert [role for role, _ in renewed[: len(asked)]] == asked
    if how == "chain":
        number = before + 1
        assert renewed[1][1] == f"first{number}"


def test_credentials_that_are_not_renewed_are_told(clouds: Clouds) -> None:
    """
    A role that may no longer be assumed: what the service said, not only that it is not allowed.
    """
    keys = {"access_key": "base", "secret_key": "secret", "region": "eu-west-1"}
    config = {**keys, "assume_role": ROLES[0], "endpoints": {"sts": clouds.url}}
    clouds.refuses = True
    bucket = open_bucket("s3://acme/orchestrator", config, {})
    store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)

    with pytest.raises(StoreUnavailable, match="not your role any more"):
        store.append(entry(sequence=1))


@dataclass
class Writes:
    """
    The headers of each request to a bucket, by method.
    """

    url: str = ""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def writes() -> Iterator[Writes]:
    found = Writes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_call(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.seen.append((self.command, headers))
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = handle_one_call  # noqa: N815

        def log_message(self, *_: object) -> None:
            """
            Nothing: tests read what was asked.
            """

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    server.server_close()


_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
_BY = "x-amz-server-side-encryption"


@pytest.mark.parametrize(
    ("config", "environ", "method", "headers"),
    [
        ({"encrypt": True}, {}, "PUT", {_BY: "AES256"}),
        (
            {"encrypt": True, "kms_key_id": "arn:k"},
            {},
            "PUT",
            {_BY: "aws:kms", f"{_BY}-aws-kms-key-id": "arn:k"},
        ),
        ({"sse_customer_key": _KEY}, {}, "PUT", {f"{_BY}-customer-key": _KEY}),
        ({"sse_customer_key": _KEY}, {}, "GET", {f"{_BY}-customer-key": _KEY}),
        ({}, {"AWS_SSE_CUSTOMER_KEY": _KEY}, "GET", {f"{_BY}-customer-key": _KEY}),
        ({"encrypt": True}, {}, "GET", {}),
    ],
)
def test_records_are_encrypted_as_the_backend_encrypts_states(
    writes: Writes,
    config: dict[str, Any],
    environ: dict[str, str],
    method: str,
    headers: dict[str, str],
) -> None:
    """
    With a key of the service, of its key service, or the customer's, which is needed to read, too.
    """
    known = {"access_key": "k", "secret_key": "s", "region": "eu-west-1", "use_path_style": True}
    config = {**known, **config, "endpoints": {"s3": writes.url}}
    bucket = open_bucket("s3://acme/orchestrator", config, environ)
    store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)

    store.put_blob("b", b"x")
    store.blob("b")

    (found,) = [seen for asked, seen in writes.seen if asked == method]
    about = {name: value for name, value in found.items() if name.startswith(_BY)}
    assert headers.items() <= about.items()
    assert bool(headers) == bool(about)
