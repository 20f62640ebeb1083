"""
Tokens for Google Cloud and Azure, as the Terraform backend blocks ask for them: who is asked, in
what order, and again when one expires.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from obstore.store import AzureStore

from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.stores.object_clients import open_bucket
from orchestrator.stores.objects import ObjectsStore
from tests.certificates import certified
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def google(clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    """
    The same under the names of Google's servers.
    """
    tls = certified(tmp_path, "iamcredentials.googleapis.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, text = clouds.answer(self.path, {}, bearer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """
            Nothing.
            """

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tunnel_to(server.server_address[1]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("SSL_CERT_FILE", str(tls.authority))
        yield clouds
    server.shutdown()
    server.server_close()


def read(
    url: str, config: Mapping[str, Any], environ: Mapping[str, str], *, pause: float = 0
) -> None:
    """
    Ask a store, twice, for a claim that nobody holds.
    """
    bucket = open_bucket(url, config, environ)
    store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)
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


@pytest.mark.parametrize(
    ("url", "config", "said"),
    [
        ("az://c/x", {**AZURE, "client_certificate_path": "/x.pfx"}, "a client certificate"),
        ("az://c/x", {**AZURE, "environment": "moon"}, "environment 'moon'"),
        ("gs://c/x", {"encryption_key": "a2V5"}, "encryption_key"),
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


def test_a_missing_file_of_authorities_of_the_machine_is_ignored() -> None:
    """
    As the engine does it.
    """
    open_bucket("s3://c/x", {"access_key": "k", "secret_key": "s"}, {"SSL_CERT_FILE": "/nowhere"})


def test_a_cloud_of_azure_has_its_own_names() -> None:
    """
    As the block says: the store is where the backend's states are.
    """
    config = {**AZURE, "environment": "usgovernment", "access_key": "a2V5"}

    client = open_bucket("az://c/x", config, {}).client

    assert isinstance(client, AzureStore)
    assert client.config.get("endpoint") == "https://acme.blob.core.usgovcloudapi.net"


def test_a_token_that_is_refused_is_told(clouds: Clouds) -> None:
    """
    What the one who gives tokens said.
    """
    clouds.refuses = True
    config = {**AZURE, **WHO, "use_oidc": True, "oidc_token": "old", "endpoint": clouds.url}
    bucket = open_bucket("az://c/x", config, {"AZURE_AUTHORITY_HOST": clouds.url})
    store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)

    with pytest.raises(StoreUnavailable, match=r"no credentials: .*invalid_client"):
        store.claim("web", "prod")
