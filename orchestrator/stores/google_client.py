"""
The client for Google Cloud Storage, with the credentials and keys of the Terraform backend `gcs`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.client_settings import (
    RETRIES,
    TIMEOUT,
    ask,
    client_options,
    read_setting,
    setting_or_variable,
)

if TYPE_CHECKING:
    from obstore import GetResult, PutResult
    from obstore.store import ClientConfig, GCSConfig, GCSCredential, GCSStore

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_IAM = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"


class ClientWithKey(NamedTuple):
    """
    A client for objects encrypted with a customer-supplied key. Google accepts the headers with the
    key only with requests for the content of an object.
    """

    plain: GCSStore
    reading: GCSStore
    writing: GCSStore

    def get(self, path: str) -> GetResult:
        return self.reading.get(path)

    def put(self, path: str, data: bytes, **how: Any) -> PutResult:
        return self.writing.put(path, data, **how)

    def delete(self, path: str) -> None:
        self.plain.delete(path)

    def list(self, prefix: str) -> Iterable[Any]:
        """
        List the objects below a prefix, in pages.
        """
        return self.plain.list(prefix)


def google_client(
    bucket: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[GCSStore | ClientWithKey, str]:
    """
    Return the client and the address of its servers.
    """
    from obstore.store import GCSStore

    setting = partial(setting_or_variable, settings, environ)
    endpoint = setting(
        "storage_custom_endpoint",
        "GOOGLE_BACKEND_STORAGE_CUSTOM_ENDPOINT",
        "GOOGLE_STORAGE_CUSTOM_ENDPOINT",
        "STORAGE_EMULATOR_HOST",
    )
    # Terraform's setting names the JSON API below the host, the client wants the host.
    base = endpoint.split("/storage/v1")[0].rstrip("/")
    if base and "://" not in base:
        base = f"http://{base}"
    config: GCSConfig = {"base_url": base} if base else {}
    secret = setting("encryption_key", "GOOGLE_ENCRYPTION_KEY")
    kms_key = setting("kms_encryption_key", "GOOGLE_KMS_ENCRYPTION_KEY")
    token = setting("access_token", "GOOGLE_OAUTH_ACCESS_TOKEN")
    account = setting(
        "impersonate_service_account",
        "GOOGLE_BACKEND_IMPERSONATE_SERVICE_ACCOUNT",
        "GOOGLE_IMPERSONATE_SERVICE_ACCOUNT",
    )
    credentials = setting(
        "credentials",
        "GOOGLE_BACKEND_CREDENTIALS",
        "GOOGLE_CREDENTIALS",
        "GOOGLE_APPLICATION_CREDENTIALS",
    )
    key = _credentials(_path_or_contents(credentials, "credentials")) if credentials else None
    options: dict[str, Any] = {}
    if account:
        source = (lambda: token) if token else (lambda: google_token(key)["token"])
        delegates = [
            str(name) for name in settings.get("impersonate_service_account_delegates") or ()
        ]
        options["credential_provider"] = impersonated(account, delegates, source)
    elif token:
        config["bearer_token"] = token
    elif key and key.get("type") == "service_account":
        config["service_account_key"] = json.dumps(key)
    elif base and not key:
        config["skip_signature"] = True
    elif key or secret or kms_key:
        # Whoever gives tokens to the client itself would be sent its headers, the key among them.
        options["credential_provider"] = lambda: google_token(key)

    def client(headers: dict[str, str]) -> GCSStore:
        connection: ClientConfig = client_options(base, settings, environ)
        if headers:
            connection["default_headers"] = headers
        return GCSStore(
            bucket,
            prefix=prefix,
            config=config,
            client_options=connection,
            retry_config=RETRIES,
            **options,
        )

    server = base or "https://storage.googleapis.com"
    plain = client({})
    if secret:
        keyed = client(_customer_key(secret))
        return ClientWithKey(plain, reading=keyed, writing=keyed), server
    if kms_key:
        keyed = client({"x-goog-encryption-kms-key-name": kms_key})
        return ClientWithKey(plain, reading=plain, writing=keyed), server
    return plain, server


def _path_or_contents(value: str, setting: str) -> str:
    """
    Return the text of a setting that holds either a path or the content, as Terraform reads it.
    """
    try:
        is_file = Path(value).expanduser().is_file()
    except OSError:  # too long for a name
        is_file = False
    return read_setting(value, setting).decode() if is_file else value


def _customer_key(encoded: str) -> dict[str, str]:
    """
    Return the request headers for a customer-supplied encryption key.
    """
    try:
        key = base64.b64decode(_path_or_contents(encoded, "encryption_key"), validate=False)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise Invalid([Problem("operations in gcs: encryption_key: not 32 bytes in base64")])
    return {
        "x-goog-encryption-algorithm": "AES256",
        "x-goog-encryption-key": base64.b64encode(key).decode(),
        "x-goog-encryption-key-sha256": base64.b64encode(hashlib.sha256(key).digest()).decode(),
    }


def _credentials(text: str) -> dict[str, Any]:
    try:
        credentials = json.loads(text)
    except ValueError as exc:
        raise Invalid([Problem("operations in gcs: credentials: neither a file nor JSON")]) from exc
    if not isinstance(credentials, dict):
        raise Invalid([Problem("operations in gcs: credentials: JSON, but no key")])
    return credentials


def impersonated(
    account: str, delegates: list[str], source: Callable[[], str]
) -> Callable[[], GCSCredential]:
    """
    Return a source of tokens for a service account that the identity of ``source``'s token
    impersonates.
    """

    def current() -> GCSCredential:
        answer = ask(
            f"{_IAM}/{account}:generateAccessToken",
            json.dumps(
                {
                    "scope": [_SCOPE],
                    "delegates": [f"projects/-/serviceAccounts/{name}" for name in delegates],
                }
            ).encode(),
            {"Authorization": f"Bearer {source()}", "Content-Type": "application/json"},
        )
        expires = datetime.fromisoformat(str(answer["expireTime"]).replace("Z", "+00:00"))
        return {"token": str(answer["accessToken"]), "expires_at": expires}

    return current


def google_token(key: Mapping[str, Any] | None) -> GCSCredential:
    """
    Return an access token for credentials of any type; without credentials, for the application
    default credentials.

    Raises StoreUnavailable if Google's library is not installed.
    """
    try:
        import google.auth
    except ImportError as exc:
        raise StoreUnavailable(
            "these credentials need google-auth: the extra `objects` brings it",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    if key is None:
        library: Any = google.auth
        credentials, _ = library.default(scopes=[_SCOPE], request=_request)
    else:
        module, loader = _loader(key)
        kind = importlib.import_module(module).Credentials
        credentials = getattr(kind, loader)(dict(key), scopes=[_SCOPE])
    credentials.refresh(_request)
    return {
        "token": str(credentials.token),
        "expires_at": credentials.expiry.replace(tzinfo=UTC),
    }


def _loader(key: Mapping[str, Any]) -> tuple[str, str]:
    """
    Return the module and function of Google's library that load credentials of this type.
    """
    source = key.get("credential_source") or {}
    match key.get("type"):
        case "service_account":
            return "google.oauth2.service_account", "from_service_account_info"
        case "authorized_user":
            return "google.oauth2.credentials", "from_authorized_user_info"
        case "impersonated_service_account":
            loader = "from_impersonated_service_account_info"
            return "google.auth.impersonated_credentials", loader
        case "external_account" if "environment_id" in source:
            return "google.auth.aws", "from_info"
        case "external_account" if "executable" in source:
            return "google.auth.pluggable", "from_info"
        case "external_account":
            return "google.auth.identity_pool", "from_info"
        case other:
            raise StoreUnavailable(f"credentials of type {other!r} are not known")


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    data: bytes


def _request(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> _Response:
    """
    Make a request as Google's library expects from its transport.
    """
    request = urllib.request.Request(url, body, dict(headers or {}), method=method)
    try:
        with urllib.request.build_opener().open(request, timeout=timeout or TIMEOUT) as answer:
            return _Response(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as exc:
        return _Response(exc.code, dict(exc.headers), exc.read())
