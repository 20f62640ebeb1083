"""
Tokens for Google Cloud and Azure that are exchanged for other ones, as the Terraform backend blocks
ask for it: a service account that is impersonated, and the identity that a CI job is given.

Each expires after an hour or less, and is asked for again then.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from orchestrator.errors import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import AzureCredential, GCSCredential

#: Seconds: one request.
_TIMEOUT = 10

_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLE_IAM = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"
_AZURE_SCOPE = "https://storage.azure.com/.default"


def impersonated(
    account: str, delegates: list[str], source: Callable[[], str]
) -> Callable[[], GCSCredential]:
    """
    A source of tokens of a Google service account, in the name of the identity whose token
    ``source`` gives.
    """

    def current() -> GCSCredential:
        answer = _ask(
            f"{_GOOGLE_IAM}/{account}:generateAccessToken",
            json.dumps(
                {
                    "scope": [_GOOGLE_SCOPE],
                    "delegates": [f"projects/-/serviceAccounts/{name}" for name in delegates],
                }
            ).encode(),
            {"Authorization": f"Bearer {source()}", "Content-Type": "application/json"},
        )
        expires = datetime.fromisoformat(str(answer["expireTime"]).replace("Z", "+00:00"))
        return {"token": str(answer["accessToken"]), "expires_at": expires}

    return current


def google_token(key: str | None) -> Callable[[], str]:
    """
    A source of tokens for the ``key`` or configuration, a file or its text; without one, for the
    identity that the machine or the person is logged in as.

    StoreUnavailable where Google's library is not installed.
    """
    try:
        import google.auth
    except ImportError as exc:
        raise StoreUnavailable(
            "a service account is impersonated with google-auth: the extra `objects` brings it",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    library: Any = google.auth

    def current() -> str:
        if key is None:
            credentials, _ = library.default(scopes=[_GOOGLE_SCOPE])
        else:
            text = key if key.lstrip().startswith("{") else Path(key).read_text()
            credentials, _ = library.load_credentials_from_dict(
                json.loads(text), scopes=[_GOOGLE_SCOPE]
            )
        credentials.refresh(_request)
        return str(credentials.token)

    return current


class _Answer(NamedTuple):
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
) -> _Answer:
    """
    A request as Google's library makes it.
    """
    wanted = urllib.request.Request(url, body, dict(headers or {}), method=method)
    try:
        with urllib.request.build_opener().open(wanted, timeout=timeout or _TIMEOUT) as answer:
            return _Answer(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as exc:
        return _Answer(exc.code, dict(exc.headers), exc.read())


def federated(
    authority: str, tenant: str, client: str, assertion: Callable[[], str]
) -> Callable[[], AzureCredential]:
    """
    A source of tokens of an Azure application in exchange for what ``assertion`` gives, which
    another issuer has signed.
    """

    def current() -> AzureCredential:
        form = {
            "client_id": client,
            "scope": _AZURE_SCOPE,
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": assertion(),
        }
        url = f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token"
        answer = _ask(url, urlencode(form).encode(), {})
        expires = datetime.now(UTC) + timedelta(seconds=int(answer["expires_in"]))
        return {"token": str(answer["access_token"]), "expires_at": expires}

    return current


def identity_of_job(url: str, token: str) -> Callable[[], str]:
    """
    A source of the job's identity, which the CI service signs for Azure.
    """

    def current() -> str:
        address = f"{url}{'&' if '?' in url else '?'}audience=api://AzureADTokenExchange"
        return str(_ask(address, None, {"Authorization": f"Bearer {token}"})["value"])

    return current


def _ask(url: str, body: bytes | None, headers: dict[str, str]) -> dict[str, Any]:
    """
    The JSON of an answer; StoreUnavailable with the server's message where it refuses.
    """
    place = url.partition("?")[0]
    for tries_left in (2, 1, 0):
        try:
            request = urllib.request.Request(url, body, headers)
            with urllib.request.build_opener().open(request, timeout=_TIMEOUT) as answer:
                data: dict[str, Any] = json.loads(answer.read())
                return data
        except urllib.error.HTTPError as exc:
            text = " ".join(exc.read().decode("utf-8", "replace").split())[:300]
            if exc.code < 500 or not tries_left:
                raise StoreUnavailable(f"{place}: {exc.code}: {text}") from exc
        except OSError as exc:
            if not tries_left:
                raise StoreUnavailable(f"{place}: {exc}") from exc
        time.sleep(1)
    raise AssertionError("the last try returns or raises")
