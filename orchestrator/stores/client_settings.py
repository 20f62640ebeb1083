"""
The common settings of the clients of all clouds: connections to servers and requests for tokens.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

TIMEOUT = 10  # seconds for one request
#: How long a client retries.
RETRIES: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=30)}


def setting_or_variable(
    settings: Mapping[str, Any], environ: Mapping[str, str], name: str, *variables: str
) -> str:
    """
    Return a setting of the block, else the first of these variables that is set, else "".
    """
    values = (settings.get(name), *map(environ.get, variables))
    return str(next(filter(None, values), ""))


def client_options(
    endpoint: str, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> ClientConfig:
    """
    Return how a client of ``endpoint`` connects: certificate authorities, proxies, timeouts.
    """
    options: ClientConfig = {
        "timeout": f"{TIMEOUT}s",
        "allow_http": endpoint.startswith("http://"),
    }
    if bundle := certificates(settings, environ):
        options["root_certificate"] = read_setting(bundle, "custom_ca_bundle")
    if flag(settings.get("insecure")):
        options["allow_invalid_certificates"] = True
    if proxy := proxies(settings).get("http" if options["allow_http"] else "https"):
        check_address(proxy, "proxy")
        options["proxy_url"] = proxy
        options["proxy_excludes"] = str(settings.get("no_proxy") or "")
    return options


def opener(
    endpoint: str, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> urllib.request.OpenerDirector:
    """
    Return an opener for requests to ``endpoint`` that connects as the client does.
    """
    context = ssl.create_default_context()
    if bundle := certificates(settings, environ):
        context.load_verify_locations(bundle)
    if flag(settings.get("insecure")):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if configured := proxies(settings):
        host = urlsplit(endpoint).hostname or ""
        for name in filter(None, str(settings.get("no_proxy") or "").replace(" ", "").split(",")):
            end = name.removeprefix("*").lstrip(".")  # a host, or a domain above it
            if not end or host == end or host.endswith(f".{end}"):
                configured = {}
        handlers.append(urllib.request.ProxyHandler(configured))
    return urllib.request.build_opener(*handlers)


def proxies(settings: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the proxies of a backend block by scheme. Clients read those of the environment
    themselves.
    """
    configured = {scheme: settings.get(f"{scheme}_proxy") for scheme in ("http", "https")}
    return {scheme: str(url) for scheme, url in configured.items() if url}


def check_address(address: str, what: str) -> None:
    """
    Raise ValueError for an invalid address: the client library would panic.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in parts.netloc:
        raise ValueError(f"{what} {address}: no address, which is http://HOST or https://HOST")
    _ = parts.port  # it raises where that is no number


def certificates(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """
    Return the file with additional certificate authorities that Terraform trusts.
    """
    file = settings.get("custom_ca_bundle") or environ.get("AWS_CA_BUNDLE")
    trusted = environ.get("SSL_CERT_FILE")
    if not file and trusted and Path(trusted).is_file():  # Go ignores one that does not exist
        file = trusted
    return str(file) if file else None


def read_setting(file: str, setting: str) -> bytes:
    """
    Return the bytes of the file that a setting names. Raises Invalid if it cannot be read.
    """
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as exc:
        raise Invalid([Problem(f"operations: {setting} {file}: {exc.strerror}")]) from exc


def flag(value: Json) -> bool:
    """
    Return whether a setting of the block, a URL or the environment is true.
    """
    return value is True or str(value).lower() in ("true", "1")


def unsupported(backend: str, setting: str, hint: str | None = None) -> Invalid:
    """
    Return the error for a setting that, if ignored, would put records elsewhere or expose them.
    """
    advice = "name the operations store with credentials of its own: operations.url"
    message = f"operations in {backend}: {setting} is not supported there"
    return Invalid([Problem(message, hint=hint or advice)])


def ask(url: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the JSON response of a request. Raises StoreUnavailable with the server's message on an
    error.
    """
    address = url.partition("?")[0]
    for tries_left in (2, 1, 0):
        try:
            request = urllib.request.Request(url, body, dict(headers))
            with urllib.request.build_opener().open(request, timeout=TIMEOUT) as answer:
                data: dict[str, Any] = json.loads(answer.read())
                return data
        except urllib.error.HTTPError as exc:
            text = " ".join(exc.read().decode("utf-8", "replace").split())[:300]
            if exc.code < 500 or not tries_left:
                raise StoreUnavailable(f"{address}: {exc.code}: {text}") from exc
        except OSError as exc:
            if not tries_left:
                raise StoreUnavailable(f"{address}: {exc}") from exc
        time.sleep(1)
    raise AssertionError("the last try returns or raises")
