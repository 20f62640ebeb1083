"""
Tokens for Google Cloud and Azure, as the Terraform backend blocks ask for them: who is asked, in
what order, and again when one expires.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID
from obstore.store import AzureStore

from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from tests.certificates import certified
from tests.loopback import served
from tests.tunnel import tunnel_to

MISSING = "<Error><Code>{}</Code><Message>not there</Message></Error>"


@dataclass
class Clouds:
    """
    Whoever gives tokens, and buckets that are empty. ``asked`` is what was asked of them, in order;
    tokens are good for so many ``seconds``.
    """

    url: str = ""
    asked: list[str] = field(default_factory=list)
    seconds: int = 3600
    refuses: bool = False

    def answer(self, path: str, form: Mapping[str, list[str]], bearer: str) -> tuple[int, str]:
        """
        Status and text of the answer to a request.
        """
        name, _, query = path.partition("?")
        number = len(self.asked) + 1
        soon = datetime.now(UTC) + timedelta(seconds=self.seconds)
        if self.refuses and "token" in name.lower():
            return 401, '{"error": "invalid_client"}'
        if name.endswith(":generateAccessToken"):
            account = name.rpartition("/")[2].partition(":")[0]
            self.asked.append(f"impersonate {account} as {bearer}")
            told = {"accessToken": f"of-{account}-{number}", "expireTime": f"{soon:%FT%TZ}"}
            return 200, json.dumps(told)
        if name == "/v1/token":
            self.asked.append(f"exchange {form['subject_token'][0]}")
            told = {"access_token": f"of-google-{number}", "token_type": "Bearer"}
            kind = "urn:ietf:params:oauth:token-type:access_token"
            told |= {"issued_token_type": kind}
            return 200, json.dumps({**told, "expires_in": self.seconds})
        if name == "/token":
            self.asked.append(f"renew {form['refresh_token'][0]}")
            told = {"access_token": f"of-person-{number}", "token_type": "Bearer"}
            return 200, json.dumps({**told, "expires_in": self.seconds})
        if name == "/pipeline":
            self.asked.append(f"pipeline {query} as {bearer}")
            return 200, json.dumps({"oidcToken": f"pipeline-{number}"})
        if name == "/job":
            self.asked.append(f"job {parse_qs(query)['audience'][0]} as {bearer}")
            return 200, json.dumps({"value": f"job-{number}"})
        if name.endswith("/oauth2/v2.0/token"):
            proof = (form.get("client_assertion") or form.get("client_secret") or [""])[0]
            tenant = name.split("/")[1]
            self.asked.append(f"token of {tenant}/{form['client_id'][0]} for {proof}")
            told = {"access_token": f"azure-{number}", "token_type": "Bearer"}
            return 200, json.dumps({**told, "expires_in": self.seconds})
        if name == "/msi":
            client = parse_qs(query).get("client_id", [""])[0]
            self.asked.append(f"machine {client}".strip())
            told = {"access_token": "machine", "expires_on": f"{int(soon.timestamp())}"}
            return 200, json.dumps({**told, "token_type": "Bearer"})
        who = bearer or ("signature" if "sig=" in query else "nobody")
        self.asked.append(f"object as {who}")
        return 404, MISSING.format("BlobNotFound" if "/acme/" in name else "NoSuchKey")


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[Clouds]:
    """
    All of them on one port, over TLS as well.
    """
    found = Clouds()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            self._reply(parse_qs(body))

        def do_GET(self) -> None:
            self._reply({})

        def _reply(self, form: dict[str, list[str]]) -> None:
            kind, _, bearer = (self.headers.get("Authorization") or "").partition(" ")
            who = "key" if kind == "SharedKey" else bearer
            status, text = found.answer(self.path, form, who)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """
            Nothing: tests read what was asked.
            """

    with served(Handler) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


@pytest.fixture
def google(clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    """
    The same under the names of Google's servers.
    """
    tls = certified(
        tmp_path, *(f"{name}.googleapis.com" for name in ("iamcredentials", "sts", "oauth2"))
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, text = clouds.answer(self.path, parse_qs(body), bearer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """
            Nothing.
            """

    with served(Handler, context) as port, tunnel_to(port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("SSL_CERT_FILE", str(tls.authority))
        yield clouds


def read(
    url: str, config: Mapping[str, Any], environ: Mapping[str, str], *, pause: float = 0
) -> None:
    """
    Ask a store, twice, for a claim that nobody holds.
    """
    bucket = open_bucket(url, config, environ)
    store = ObjectsStore(bucket, project="acme")
    assert store.claim("web", "prod") is None
    threading.Event().wait(pause)
    assert store.claim("web", "prod") is None


@pytest.mark.parametrize(
    "how",
    [
        {"config": {"impersonate_service_account": "robot@acme"}},
        {"environ": {"GOOGLE_BACKEND_IMPERSONATE_SERVICE_ACCOUNT": "robot@acme"}},
        {"environ": {"GOOGLE_IMPERSONATE_SERVICE_ACCOUNT": "robot@acme"}},
    ],
)
def test_a_service_account_is_impersonated(google: Clouds, how: dict[str, dict[str, str]]) -> None:
    """
    As the block or the environment says: by the token that is given the account's own is asked for,
    once for as long as it is good, and it is the one that reads.
    """
    config = {
        "storage_custom_endpoint": google.url,
        "access_token": "mine",
        **how.get("config", {}),
    }

    read("gs://acme/x", config, how.get("environ", {}))

    asked = "impersonate robot@acme as mine"
    assert google.asked == [asked, "object as of-robot@acme-1", "object as of-robot@acme-1"]


def test_a_short_token_is_asked_for_again(google: Clouds) -> None:
    """
    When it expires while a run goes on.
    """
    google.seconds = 1
    config = {
        "storage_custom_endpoint": google.url,
        "access_token": "mine",
        "impersonate_service_account": "robot@acme",
    }

    read("gs://acme/x", config, {}, pause=1.1)

    assert [line.split()[0] for line in google.asked] == ["impersonate", "object"] * 2


@pytest.mark.parametrize(
    ("config", "environ"),
    [
        ({"credentials": "{file}"}, {}),
        ({}, {"GOOGLE_CREDENTIALS": "{text}"}),
        ({}, {"GOOGLE_APPLICATION_CREDENTIALS": "{file}"}),
        ({"kms_encryption_key": "projects/p/k"}, {"GOOGLE_APPLICATION_CREDENTIALS": "{file}"}),
    ],
)
def test_what_a_pipeline_has_signed_is_exchanged(
    google: Clouds, tmp_path: Path, config: dict[str, str], environ: dict[str, str]
) -> None:
    """
    Workload identity federation, as CI services set it up: a file or its text says what is
    exchanged, and the token that comes of it reads.
    """
    (tmp_path / "signed").write_text("signed-by-the-pipeline")
    text = json.dumps(
        {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {"file": str(tmp_path / "signed")},
        }
    )
    (tmp_path / "credentials.json").write_text(text)
    known = {"{file}": str(tmp_path / "credentials.json"), "{text}": text}
    config = {name: known.get(value, value) for name, value in config.items()}
    environ = {name: known[value] for name, value in environ.items()}

    read("gs://acme/x", {**config, "storage_custom_endpoint": google.url}, environ)

    asked = "exchange signed-by-the-pipeline"
    assert google.asked == [asked, "object as of-google-1", "object as of-google-1"]


def test_a_person_and_a_key_are_read_as_they_are_named(google: Clouds, tmp_path: Path) -> None:
    """
    What a person has logged in as is renewed at the place that it names; the key of a service
    account signs by itself, and nobody is asked.
    """
    person = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
    person |= {"refresh_token": "mine", "token_uri": "https://oauth2.googleapis.com/token"}
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    robot = {"type": "service_account", "client_email": "robot@acme", "private_key_id": "1"}
    robot |= {"private_key": private.decode(), "token_uri": "https://oauth2.googleapis.com/token"}
    (tmp_path / "robot.json").write_text(json.dumps(robot))
    place = {"storage_custom_endpoint": google.url}

    read("gs://acme/x", {**place, "credentials": json.dumps(person)}, {})
    read("gs://acme/x", {**place, "credentials": str(tmp_path / "robot.json")}, {})

    renewed, *reads = google.asked
    assert renewed == "renew mine"
    assert reads[:2] == ["object as of-person-1"] * 2
    for line in reads[2:]:
        _, claims, _ = line.removeprefix("object as ").split(".")
        assert json.loads(_decoded(claims))["iss"] == "robot@acme"


AZURE = {"storage_account_name": "acme", "container_name": "c"}
WHO = {"tenant_id": "t", "client_id": "app"}


@pytest.mark.parametrize(
    ("config", "environ", "asked"),
    [
        (WHO | {"client_secret": "s3cret"}, {}, ["token of t/app for s3cret", "azure-1"]),
        (WHO, {"ARM_CLIENT_SECRET": "s3cret"}, ["token of t/app for s3cret", "azure-1"]),
        (
            WHO | {"use_oidc": True, "oidc_token": "signed"},
            {},
            ["token of t/app for signed", "azure-1"],
        ),
        (
            WHO | {"use_oidc": True, "oidc_token_file_path": "{file}"},
            {},
            ["token of t/app for of-a-file", "azure-1"],
        ),
        (
            WHO,
            {"ARM_USE_OIDC": "true", "ARM_OIDC_TOKEN_FILE_PATH": "{file}"},
            ["token of t/app for of-a-file", "azure-1"],
        ),
        (
            WHO | {"use_oidc": True},
            {
                "ACTIONS_ID_TOKEN_REQUEST_URL": "{url}/job?v=1",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "runner",
            },
            ["job api://AzureADTokenExchange as runner", "token of t/app for job-1", "azure-2"],
        ),
        (
            WHO | {"use_oidc": True, "ado_pipeline_service_connection_id": "c1"},
            {"SYSTEM_OIDCREQUESTURI": "{url}/pipeline", "SYSTEM_ACCESSTOKEN": "agent"},
            [
                "pipeline api-version=7.1&serviceConnectionId=c1 as agent",
                "token of t/app for pipeline-1",
                "azure-2",
            ],
        ),
        (
            {"use_aks_workload_identity": True},
            {
                "AZURE_FEDERATED_TOKEN_FILE": "{file}",
                "AZURE_CLIENT_ID": "pod",
                "AZURE_TENANT_ID": "t",
            },
            ["token of t/pod for of-a-file", "azure-1"],
        ),
        (
            {"use_msi": True, "client_id": "vm", "msi_endpoint": "{url}/msi"},
            {},
            ["machine vm", "machine"],
        ),
        ({}, {}, ["person"]),
        ({"access_key": "a2V5"}, {"ARM_CLIENT_SECRET": "s3cret"}, ["key"]),
        (
            {"sas_token": "?sv=1&sig=x"},
            {
                "ARM_CLIENT_SECRET": "s3cret",
            },
            ["signature"],
        ),
    ],
)
def test_azure_is_reached_as_the_backend_reaches_it(
    clouds: Clouds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    environ: dict[str, str],
    asked: list[str],
) -> None:
    """
    By a key or a signature before anything else; then by the secret of an application, by what a CI
    service or a cluster has signed, by the machine, and by whoever has logged in: each as the block
    says it or the environment.
    """
    (tmp_path / "token").write_text("of-a-file")
    program = tmp_path / "az"
    told = {
        "accessToken": "person",
        "expiresOn": "2099-01-01 00:00:00.000000",
        "tokenType": "Bearer",
    }
    told |= {"subscription": "s", "tenant": "t"}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    known = {"file": str(tmp_path / "token"), "url": clouds.url}
    config = {
        name: value.format(**known) if isinstance(value, str) else value
        for name, value in config.items()
    }
    environ = {name: value.format(**known) for name, value in environ.items()}

    read(
        "az://c/x",
        {**AZURE, **config, "endpoint": f"{clouds.url}/acme"},
        {**environ, "AZURE_AUTHORITY_HOST": clouds.url},
    )

    assert clouds.asked == [*asked[:-1], *[f"object as {asked[-1]}"] * 2]


class Application:
    """
    An application of Azure that proves itself by a certificate, in a bundle with its key.
    """

    def __init__(self, password: str) -> None:
        key = rsa.generate_private_key(65537, 2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "app")])
        self.certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .sign(key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        self.bundle = pkcs12.serialize_key_and_certificates(
            b"app", key, self.certificate, None, encryption
        )

    def claims(self, assertion: str) -> dict[str, Any]:
        """
        What an assertion claims, if it is signed by the key of the certificate that it names.
        """
        header, claims, signature = assertion.split(".")
        named = json.loads(_decoded(header))
        assert _decoded(named["x5t#S256"]) == self.certificate.fingerprint(hashes.SHA256())
        key = self.certificate.public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        try:
            key.verify(_decoded(signature), f"{header}.{claims}".encode(), pss, hashes.SHA256())
        except InvalidSignature:
            pytest.fail("signed by another key")
        told: dict[str, Any] = json.loads(_decoded(claims))
        return told


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.parametrize("password", ["", "pass word"])
@pytest.mark.parametrize("way", ["file", "text", "environment"])
def test_an_application_is_known_by_its_certificate(
    clouds: Clouds, tmp_path: Path, way: str, password: str
) -> None:
    """
    It signs an assertion for the place where tokens are given, good for minutes, and goes before a
    secret, as in the backend.
    """
    application = Application(password)
    (tmp_path / "app.pfx").write_bytes(application.bundle)
    values = {"client_certificate_password": password}
    if way == "text":
        values["client_certificate"] = base64.b64encode(application.bundle).decode()
    else:
        values["client_certificate_path"] = str(tmp_path / "app.pfx")
    config: dict[str, Any] = {
        **AZURE,
        **WHO,
        "client_secret": "s",
        "endpoint": f"{clouds.url}/acme",
    }
    environ = {"AZURE_AUTHORITY_HOST": clouds.url}
    if way == "environment":
        environ |= {f"ARM_{name.upper()}": value for name, value in values.items()}
    else:
        config |= values

    read("az://c/x", config, environ)

    asked, *reads = clouds.asked
    who, _, assertion = asked.partition(" for ")
    claims = application.claims(assertion)
    assert (who, reads) == ("token of t/app", ["object as azure-1"] * 2)
    assert claims["aud"] == f"{clouds.url}/t/oauth2/v2.0/token"
    assert (claims["iss"], claims["sub"]) == ("app", "app")
    assert 0 < claims["exp"] - datetime.now(UTC).timestamp() <= 600


def test_a_certificate_that_cannot_be_read_is_told(clouds: Clouds, tmp_path: Path) -> None:
    """
    With another password nothing is asked, and what is wrong is said.
    """
    (tmp_path / "app.pfx").write_bytes(Application("right").bundle)
    config = {**AZURE, **WHO, "client_certificate_path": str(tmp_path / "app.pfx")}
    environ = {"ARM_CLIENT_CERTIFICATE_PASSWORD": "wrong", "AZURE_AUTHORITY_HOST": clouds.url}

    with pytest.raises(StoreUnavailable, match=r"no credentials: client certificate of azurerm"):
        read("az://c/x", {**config, "endpoint": clouds.url}, environ)

    assert clouds.asked == []


KEYS = {"access_key": "k", "secret_key": "s"}


@pytest.mark.parametrize(
    ("url", "config", "said"),
    [
        ("az://c/x", {**AZURE, "client_certificate_path": "/x.pfx"}, "/x.pfx: No such file"),
        ("az://c/x", {**AZURE, "client_certificate": "?"}, "client_certificate: no base64"),
        ("az://c/x", {**AZURE, "environment": "moon"}, "environment 'moon'"),
        ("az://c/x", {**AZURE, "metadata_host": "moon"}, "metadata_host is not supported"),
        ("az://c/x", {**AZURE, "lookup_blob_endpoint": True}, "lookup_blob_endpoint is not"),
        ("az://c/x", {**AZURE, "customer_provided_key": "a2V5"}, "customer_provided_key is not"),
        ("az://c/x", {**AZURE, "encryption_scope": "s"}, "encryption_scope is not supported"),
        (
            "s3://c/x",
            {"profile": "p", "endpoints": {"sso": "x"}},
            "AWS_ENDPOINT_URL_SSO|sso is not",
        ),
        ("s3://c/x", {"shared_config_files": ["a", "b"]}, "more than one of shared_config_files"),
        ("gs://c/x", {"encryption_key": "a2V5"}, "encryption_key: not 32 bytes"),
        ("gs://c/x", {"credentials": "/nowhere"}, "neither a file nor JSON"),
        ("gs://c/x", {"credentials": "[]"}, "JSON, but no key"),
        ("gs://c/x", {"credentials": '{"type": "service_account"}'}, "missing field"),
        ("gs://c/x", {"storage_custom_endpoint": "::/"}, "no address"),
        ("az://c/x", {**AZURE, "access_key": "%%%"}, "Invalid Access Key"),
        ("az://c/x", {**AZURE, "sas_token": "nonsense"}, "Missing component in SAS"),
        ("az://c/x", {**AZURE, "endpoint": "::"}, "Unable parse source url"),
        ("s3://c/../x", KEYS, "illegal character sequence"),
        ("s3://c/x", {**KEYS, "endpoint": "localhost:9000"}, "no address"),
        ("s3://c/x", {**KEYS, "endpoint": "not a url"}, "no address"),
        ("s3://c/x?endpoint=http://h:port", KEYS, "Port could not be cast"),
        ("s3://c/x", {**KEYS, "sse_customer_key": "short"}, "Invalid encryption header"),
        ("s3://c/x", {**KEYS, "https_proxy": "::"}, "proxy ::: no address"),
        ("s3://c/x", {**KEYS, "custom_ca_bundle": __file__}, "No certificates found"),
        ("s3://c/x", {**KEYS, "assume_role": [{}]}, "a role without role_arn"),
        ("s3://c/x", {"custom_ca_bundle": "/nowhere"}, "/nowhere: No such file"),
        ("az://c/x", {**AZURE, "client_secret_file_path": "/nowhere"}, "/nowhere: No such file"),
    ],
)
def test_what_is_not_supported_is_refused(url: str, config: dict[str, str], said: str) -> None:
    """
    Rather than reached as somebody else, or written in clear.
    """
    with pytest.raises(Invalid, match=said):
        open_bucket(url, config, {})


def test_a_server_that_is_not_there_is_told() -> None:
    """
    Which one cannot be reached, and nothing of how often it was tried.
    """
    config = {**KEYS, "endpoint": "http://127.0.0.1:9", "use_path_style": True}

    with pytest.raises(StoreUnavailable, match=r": http://127.0.0.1:9 cannot be reached$"):
        read("s3://acme/x", config, {})


def test_a_missing_file_of_authorities_of_the_machine_is_ignored() -> None:
    """
    As the engine does it.
    """
    keys = {"access_key": "k", "secret_key": "s"}

    bucket = open_bucket("s3://c/x", keys, {"SSL_CERT_FILE": "/nowhere"})

    assert bucket.url == "s3://c/x"


def test_a_cloud_of_azure_has_its_own_names() -> None:
    """
    As the block says: the store is where the backend's states are.
    """
    config = {**AZURE, "environment": "usgovernment", "access_key": "a2V5"}

    client = open_bucket("az://c/x", config, {}).client

    assert isinstance(client, AzureStore)
    assert client.config.get("endpoint") == "https://acme.blob.core.usgovcloudapi.net"


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        ("az://c/x", AZURE, {**AZURE, "storage_account_name": "other"}),
        ("s3://c/x", {"endpoint": "http://one:9000"}, {"endpoints": {"s3": "http://other:9000"}}),
        ("s3://c/x", {"endpoint": "http://one:9000"}, {}),
        ("gs://c/x", {"storage_custom_endpoint": "http://one"}, {}),
    ],
)
def test_buckets_of_one_name_are_told_apart(
    url: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """
    Two accounts, or servers of one's own, may have the same name: what a machine remembers of one
    is not held against the other, and the URL alone leads back to it.
    """
    keys = {"access_key": "a2V5", "secret_key": "s", "access_token": "t"}

    first, second = (open_bucket(url, {**config, **keys}, {}) for config in (one, other))
    again = open_bucket(first.url, keys, {})

    assert first.url != second.url
    assert (again.url, again.client) == (first.url, first.client)


def test_a_token_that_is_refused_is_told(clouds: Clouds) -> None:
    """
    What the one who gives tokens said.
    """
    clouds.refuses = True
    config = {**AZURE, **WHO, "use_oidc": True, "oidc_token": "old", "endpoint": clouds.url}
    bucket = open_bucket("az://c/x", config, {"AZURE_AUTHORITY_HOST": clouds.url})
    store = ObjectsStore(bucket, project="acme")

    with pytest.raises(StoreUnavailable, match=r"no credentials: .*invalid_client"):
        store.claim("web", "prod")
