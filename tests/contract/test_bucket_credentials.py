"""
Credentials of a bucket that expire while a run goes on: whoever made them is asked again.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import botocore.config
import botocore.session
import pytest
from obstore.store import S3Store

from orchestrator.errors import StoreUnavailable
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from tests.certificates import certified
from tests.contract.stores import shared_place
from tests.fakes.entries import entry
from tests.loopback import served
from tests.tunnel import tls_before, tunnel_to

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
    are the roles with the key that asked, ``forms`` what was asked for; with ``refuses`` nobody
    gets any.
    """

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
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
            scope = re.search("/([a-z0-9-]+)/sts/", self.headers.get("Authorization") or "")
            region = {"region": scope[1]} if scope else {}
            found.forms.append({name: values[0] for name, values in body.items()} | region)
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

    with served(Handler) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


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
    request: pytest.FixtureRequest,
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
    place = shared_place(request, "s3", tmp_path)
    bucket = open_bucket(place.url, {**place.config, **config}, environ)
    store = ObjectsStore(bucket, project="acme")
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
    store = ObjectsStore(bucket, project="acme")

    with pytest.raises(StoreUnavailable, match="not your role any more"):
        store.append(entry(sequence=1))


@dataclass
class Writes:
    """
    The headers of each request to a bucket, by method, and the ``addresses`` that they named.
    """

    url: str = ""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)


def _of_the_machine(path: str) -> bytes:
    """
    What the metadata service of a machine answers: a token, the name of its role, and the keys.
    """
    if path.endswith("/token"):
        return b"a-token"
    if path.endswith("/security-credentials/"):
        return b"robot"
    soon = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    keys = {"AccessKeyId": "of-the-machine", "SecretAccessKey": "s", "Token": "t"}
    return json.dumps({"Code": "Success", "Expiration": soon, **keys}).encode()


@pytest.fixture
def writes() -> Iterator[Writes]:
    found = Writes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_call(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.seen.append((self.command, headers))
            found.addresses.append(self.path)
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("x-goog-generation", "1")
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            text = b"<ListBucketResult/>" if "list-type" in self.path else b""
            if self.path.startswith("/latest/"):
                text = _of_the_machine(self.path)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            found.seen.append(("POST", {}))
            soon = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
            text = _ASSUMED.format("AssumeRole", "key", soon).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_DELETE = do_HEAD = handle_one_call  # noqa: N815

        def log_message(self, *_: object) -> None:
            """
            Nothing: tests read what was asked.
            """

    with served(Handler) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


POLICY = '{"Version": "2012-10-17"}'
ROLE = ROLES[0]["role_arn"]


@pytest.mark.parametrize(
    ("config", "environ", "asked"),
    [
        (
            {"assume_role": {"role_arn": ROLE}},
            {},
            {"RoleSessionName": "orchestrator", "region": "eu-west-1"},
        ),
        ({"assume_role": {"role_arn": ROLE}, "sts_endpoint": "{sts}"}, {}, {"RoleArn": ROLE}),
        ({"role_arn": ROLE}, {"AWS_STS_ENDPOINT": "{sts}"}, {"RoleArn": ROLE}),
        (
            {
                "assume_role": {
                    "role_arn": ROLE,
                    "duration": "1h30m",
                    "external_id": "x-1",
                    "policy": POLICY,
                    "policy_arns": ["arn:aws:iam::1:policy/p"],
                    "session_name": "ci",
                    "source_identity": "me",
                    "tags": {"team": "a"},
                    "transitive_tag_keys": ["team"],
                }
            },
            {},
            {
                "DurationSeconds": "5400",
                "ExternalId": "x-1",
                "Policy": POLICY,
                "PolicyArns.member.1.arn": "arn:aws:iam::1:policy/p",
                "RoleSessionName": "ci",
                "SourceIdentity": "me",
                "Tags.member.1.Key": "team",
                "Tags.member.1.Value": "a",
                "TransitiveTagKeys.member.1": "team",
            },
        ),
        (
            {
                "role_arn": ROLE,
                "assume_role_duration_seconds": 900,
                "external_id": "x-1",
                "assume_role_policy": POLICY,
                "assume_role_policy_arns": ["arn:aws:iam::1:policy/p"],
                "session_name": "ci",
                "assume_role_tags": {"team": "a"},
                "assume_role_transitive_tag_keys": ["team"],
            },
            {},
            {
                "DurationSeconds": "900",
                "ExternalId": "x-1",
                "Policy": POLICY,
                "PolicyArns.member.1.arn": "arn:aws:iam::1:policy/p",
                "RoleSessionName": "ci",
                "Tags.member.1.Key": "team",
                "TransitiveTagKeys.member.1": "team",
            },
        ),
        (
            {"assume_role": {"role_arn": ROLE}, "sts_region": "us-east-2"},
            {},
            {"region": "us-east-2"},
        ),
        (
            {"assume_role_with_web_identity": {"web_identity_token": "a-token"}},
            {"AWS_ROLE_ARN": ROLE, "AWS_ROLE_SESSION_NAME": "job"},
            {"WebIdentityToken": "a-token", "RoleSessionName": "job"},
        ),
        (
            {"assume_role_with_web_identity": {"role_arn": ROLE, "duration": "15m"}},
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "{token}"},
            {"WebIdentityToken": "of-a-file", "DurationSeconds": "900"},
        ),
    ],
)
def test_a_role_is_assumed_as_the_block_says(
    clouds: Clouds,
    writes: Writes,
    tmp_path: Path,
    config: dict[str, Any],
    environ: dict[str, str],
    asked: dict[str, str],
) -> None:
    """
    With everything that a block can say of a role, also in the words that it had before; and the
    service is asked where the block says that it is.
    """
    (tmp_path / "token").write_text("of-a-file")
    places = {"token": tmp_path / "token", "sts": clouds.url}
    environ = {name: value.format(**places) for name, value in environ.items()}
    known: dict[str, Any] = {
        "access_key": "k",
        "secret_key": "s",
        "region": "eu-west-1",
        "use_path_style": True,
    }
    known["endpoint"] = writes.url
    if "sts_endpoint" in config:
        config = {**config, "sts_endpoint": clouds.url}
    elif not environ.get("AWS_STS_ENDPOINT"):
        known |= {"endpoints": {"sts": clouds.url}}

    bucket = open_bucket("s3://acme/orchestrator", {**known, **config}, environ)
    ObjectsStore(bucket, project="acme").put_blob("b", b"x")

    (form,) = clouds.forms
    assert form["RoleArn"] == ROLE
    assert asked.items() <= form.items()


@pytest.mark.parametrize(
    ("config", "environ", "key"),
    [
        ({"access_key": "block", "secret_key": "s", "token": "t"}, {}, "block"),
        ({}, {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "s"}, "env"),
        ({"profile": "team", "shared_credentials_files": ["{file}"]}, {}, "of-a-file"),
        ({"profile": "team", "shared_credentials_file": "{file}"}, {}, "of-a-file"),
        ({"shared_credentials_files": ["{file}"]}, {"AWS_PROFILE": "team"}, "of-a-file"),
        ({"profile": "team", "shared_config_files": ["{config}"]}, {}, "of-a-config"),
        ({"profile": "team"}, {"AWS_SHARED_CONFIG_FILE": "{config}"}, "of-a-config"),
        ({"ec2_metadata_service_endpoint": "{machine}"}, {}, "of-the-machine"),
        (
            {"ec2_metadata_service_endpoint": "{machine}", "skip_metadata_api_check": True},
            {},
            None,
        ),
    ],
)
def test_keys_are_found_where_the_block_says(
    writes: Writes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: dict[str, Any],
    environ: dict[str, str],
    key: str | None,
) -> None:
    """
    In the block, the environment, the files that it names, or the service of the machine, unless
    that is not to be asked.
    """
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    pair = "aws_access_key_id = {}\naws_secret_access_key = s\n"
    (tmp_path / "keys").write_text("[team]\n" + pair.format("of-a-file"))
    (tmp_path / "config").write_text("[profile team]\n" + pair.format("of-a-config"))
    places = {"{file}": f"{tmp_path}/keys", "{config}": f"{tmp_path}/config"}
    places["{machine}"] = writes.url

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        return places.get(value, value) if isinstance(value, str) else value

    config = {name: placed(value) for name, value in config.items()}
    environ = {name: placed(value) for name, value in environ.items()}
    known = {"region": "eu-west-1", "use_path_style": True, "endpoint": writes.url}
    bucket = open_bucket("s3://acme/x", {**known, **config}, environ)
    store = ObjectsStore(bucket, project="acme")

    if key is None:
        with pytest.raises(StoreUnavailable, match="no credentials: neither in the environment"):
            store.put_blob("b", b"x")
        assert writes.addresses == []
        return
    store.put_blob("b", b"x")

    (signed,) = [headers for method, headers in writes.seen if "x-amz-date" in headers]
    assert f"Credential={key}/" in signed["authorization"]


@pytest.mark.parametrize(
    ("config", "environ", "host"),
    [
        ({"region": "eu-west-1"}, {}, "s3.eu-west-1.amazonaws.com"),
        ({}, {"AWS_REGION": "us-east-2"}, "s3.us-east-2.amazonaws.com"),
        ({"region": "cn-north-1"}, {}, "s3.cn-north-1.amazonaws.com.cn"),
        ({"region": "eusc-de-east-1"}, {}, "s3.eusc-de-east-1.amazonaws.eu"),
        (
            {"region": "us-gov-west-1", "use_fips_endpoint": True},
            {},
            "s3-fips.us-gov-west-1.amazonaws.com",
        ),
        (
            {"region": "eu-west-1", "use_dualstack_endpoint": True},
            {},
            "s3.dualstack.eu-west-1.amazonaws.com",
        ),
        (
            {"region": "us-east-1"},
            {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "s3-fips.dualstack.us-east-1.amazonaws.com",
        ),
        ({"endpoint": "https://other:9000"}, {}, "other:9000"),
        ({"endpoint": "https://10.0.0.7:9000"}, {}, "10.0.0.7:9000"),
        ({"endpoint": "https://[::1]:9000"}, {}, "[::1]:9000"),
        ({}, {"AWS_S3_ENDPOINT": "https://other"}, "other"),
        ({}, {"AWS_ENDPOINT_URL": "https://other"}, "other"),
    ],
)
@pytest.mark.parametrize("path_style", [True, False])
def test_a_bucket_is_where_the_backend_looks_for_it(
    config: dict[str, Any], environ: dict[str, str], host: str, path_style: bool
) -> None:
    """
    In every partition, by the servers that the block asks for, as the SDK of AWS has them.
    """
    keys = {"access_key": "k", "secret_key": "s", "use_path_style": path_style}

    client = open_bucket("s3://acme/x", {**keys, **config}, environ).client

    assert isinstance(client, S3Store)
    by_path = path_style or host.endswith(("7:9000", "]:9000"))  # no name is before an address
    expected = f"https://{host}" if by_path else f"https://acme.{host}"
    assert client.config.get("endpoint") == expected
    if host.startswith("s3"):
        region = str(client.config.get("region"))
        sdk = botocore.session.Session()
        sdk.set_credentials("k", "s")
        names = botocore.config.Config(
            use_fips_endpoint="fips" in host, use_dualstack_endpoint="dualstack" in host
        )
        assert sdk.create_client("s3", region, config=names).meta.endpoint_url == f"https://{host}"


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
    store = ObjectsStore(bucket, project="acme")

    store.put_blob("b", b"x")
    store.blob("b")

    (found,) = [seen for asked, seen in writes.seen if asked == method]
    about = {name: value for name, value in found.items() if name.startswith(_BY)}
    assert headers.items() <= about.items()
    assert bool(headers) == bool(about)


_SECRET = base64.b64encode(bytes(range(32))).decode()
_OF_SECRET = {
    "x-goog-encryption-algorithm": "AES256",
    "x-goog-encryption-key": _SECRET,
    "x-goog-encryption-key-sha256": base64.b64encode(sha256(bytes(range(32))).digest()).decode(),
}
_OF_SERVICE = {"x-goog-encryption-kms-key-name": "projects/p/k"}


@pytest.mark.parametrize(
    ("config", "environ", "reading", "writing"),
    [
        ({}, {}, {}, {}),
        ({"encryption_key": _SECRET}, {}, _OF_SECRET, _OF_SECRET),
        ({"encryption_key": "{file}"}, {}, _OF_SECRET, _OF_SECRET),
        ({}, {"GOOGLE_ENCRYPTION_KEY": _SECRET}, _OF_SECRET, _OF_SECRET),
        ({"kms_encryption_key": "projects/p/k"}, {}, {}, _OF_SERVICE),
        ({}, {"GOOGLE_KMS_ENCRYPTION_KEY": "projects/p/k"}, {}, _OF_SERVICE),
    ],
)
def test_google_is_given_the_key_with_the_bytes_only(
    writes: Writes,
    tmp_path: Path,
    config: dict[str, str],
    environ: dict[str, str],
    reading: dict[str, str],
    writing: dict[str, str],
) -> None:
    """
    The customer's own key, itself or in a file, is needed to write and to read; one of the key
    service is named when something is written. Neither is sent with anything else.
    """
    (tmp_path / "key").write_text(f"{_SECRET}\n")
    config = {name: value.format(file=tmp_path / "key") for name, value in config.items()}
    known = {"access_token": "t", "storage_custom_endpoint": writes.url}
    bucket = open_bucket("gs://acme/orchestrator", {**known, **config}, environ)
    store = ObjectsStore(bucket, project="acme")

    store.put_blob("b", b"x")
    store.blob("b")
    store.drop_blob("b")
    store.blobs("b")
    bucket.now()

    keys = [
        {name: value for name, value in headers.items() if "encryption" in name}
        for _, headers in writes.seen
    ]
    asked = [method for method, _ in writes.seen]
    assert asked == ["PUT", "GET", "DELETE", "GET", "HEAD"]
    assert keys == [writing, reading, {}, {}, {}]


@pytest.mark.parametrize(
    ("config", "through"),
    [
        ({}, False),
        ({"http_proxy": "{proxy}"}, True),
        ({"http_proxy": "{proxy}", "no_proxy": "other.example"}, True),
        ({"http_proxy": "{proxy}", "no_proxy": "other.example,127.0.0.1"}, False),
        ({"https_proxy": "{proxy}"}, False),
    ],
)
def test_a_proxy_of_the_block_is_used_for_its_scheme(
    writes: Writes, config: dict[str, str], through: bool
) -> None:
    """
    By every client: of the bucket, of its clock, and of the service that gives credentials; and for
    no host that the block excludes.
    """
    other = "http://127.0.0.1:9"  # where nobody listens: only a proxy gets there
    config = {name: value.format(proxy=writes.url) for name, value in config.items()}
    known = {"access_key": "k", "secret_key": "s", "region": "eu-west-1", "use_path_style": True}
    place = other if through else writes.url
    bucket = open_bucket("s3://acme/x", {**known, **config, "endpoint": place}, {})
    store = ObjectsStore(bucket, project="acme")

    store.put_blob("b", b"x")
    bucket.now()

    assert len(writes.addresses) == 2
    assert all(address.startswith(other) == through for address in writes.addresses)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("trust", ["custom_ca_bundle", "AWS_CA_BUNDLE", "insecure", ""])
def test_a_server_is_trusted_as_the_block_says(writes: Writes, tmp_path: Path, trust: str) -> None:
    """
    Behind a proxy for its scheme and a certificate of a private authority, bucket, clock and the
    service that gives credentials are reached where the block trusts them, and not otherwise.
    """
    hosts = ("s3.eu-west-1.amazonaws.com", "sts.eu-west-1.amazonaws.com")
    tls = certified(tmp_path, *hosts)
    config: dict[str, Any] = {"region": "eu-west-1", "use_path_style": True}
    config |= {"access_key": "k", "secret_key": "s", "assume_role": {"role_arn": ROLE}}
    environ = {}
    match trust:
        case "custom_ca_bundle":
            config["custom_ca_bundle"] = str(tls.authority)
        case "AWS_CA_BUNDLE":
            environ["AWS_CA_BUNDLE"] = str(tls.authority)
        case "insecure":
            config["insecure"] = True
    with tls_before(writes.url, tls) as port, tunnel_to(port) as proxy:
        bucket = open_bucket("s3://acme/x", {**config, "https_proxy": proxy}, environ)
        store = ObjectsStore(bucket, project="acme")
        if trust:
            store.put_blob("b", b"x")
            bucket.now()
        else:
            for call in (lambda: store.put_blob("b", b"x"), bucket.now):
                with pytest.raises(StoreUnavailable, match=r"(?i)certificate|SSL"):
                    call()

    assert [method for method, _ in writes.seen] == (["POST", "PUT", "HEAD"] if trust else [])
