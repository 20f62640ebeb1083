"""
Clients for buckets and containers, with the credentials that the Terraform backend block has.

What a block leaves out is read from the environment variables that Terraform's backend reads.
Credentials that expire are renewed by the client that they come from.
"""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.aws_credentials import renewed_aws_credentials, static_aws_keys
from orchestrator.stores.token_credentials import (
    federated,
    google_token,
    identity_of_job,
    impersonated,
)

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
    )

#: Schemes of ``operations.url`` and the Terraform backend that each belongs to.
BACKENDS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azurerm", "azurerm": "azurerm"}

#: Seconds: one request, all tries of one request together.
_TIMEOUT = 10
_RETRIES = 30


class Bucket(Struct, frozen=True):
    """
    A client, where it is without credentials, and the clock of its servers.
    """

    client: ObjectStore
    url: str
    now: Callable[[], datetime]


def open_bucket(url: str, config: Mapping[str, Json], environ: Mapping[str, str]) -> Bucket:
    """
    The bucket or container and prefix that ``url`` names: ``s3://BUCKET/PREFIX``, ``gs://...`` or
    ``az://CONTAINER/PREFIX``. ``config`` is the configuration of the backend block of the same
    kind, empty without one; parameters of the URL go before it.

    StoreUnavailable where the extra ``objects`` is not installed; Invalid where a setting is wrong.
    """
    try:
        import obstore  # noqa: F401
    except ImportError as exc:
        raise StoreUnavailable(
            "operations in an object store need the extra `objects`",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    parts = urlsplit(url)
    bare = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    if not parts.netloc:
        raise Invalid([Problem(f"operations.url {bare}: names no bucket")])
    settings = {**config, **dict(parse_qsl(parts.query))}
    prefix = parts.path.strip("/") or None
    match BACKENDS[parts.scheme]:
        case "s3":
            client, endpoint = _s3(parts.netloc, prefix, settings, environ)
        case "gcs":
            client, endpoint = _gcs(parts.netloc, prefix, settings, environ)
        case _:
            client, endpoint = _azure(parts.netloc, prefix, settings, environ)
    return Bucket(client, bare, ServerClock(endpoint, partial(_opener, settings, environ)))


class ServerClock:
    """
    The clock of the servers behind an address, as they tell it in the ``Date`` of any answer.

    It is asked once; after that the time of this machine, which may be wrong, only measures how
    much has passed.
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
            with self._opener().open(request, timeout=_TIMEOUT) as answer:
                date = answer.headers["Date"]
        except urllib.error.HTTPError as exc:  # refused without credentials: it has a clock, too
            date = exc.headers["Date"]
        except OSError as exc:
            raise StoreUnavailable(f"{self._endpoint}: {exc}") from exc
        if date is None:
            raise StoreUnavailable(f"{self._endpoint}: tells no time")
        return parsedate_to_datetime(date).astimezone(UTC)


def _s3(
    bucket: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[ObjectStore, str]:
    from obstore.store import S3Store

    region = (
        settings.get("region")
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION", "us-east-1")
    )
    endpoints = settings.get("endpoints")
    endpoint = (
        (endpoints.get("s3") if isinstance(endpoints, Mapping) else None)
        or settings.get("endpoint")
        or environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
    )
    path_style = _flag(settings.get("use_path_style") or settings.get("force_path_style"))
    config: S3Config = {"region": region, "virtual_hosted_style_request": not path_style}
    if endpoint:
        # The client wants the bucket in the host's name itself where it is to be there.
        scheme, _, host = str(endpoint).partition("://")
        config["endpoint"] = endpoint if path_style else f"{scheme}://{bucket}.{host}"
    if settings.get("kms_key_id"):
        config |= {
            "server_side_encryption": "aws:kms",
            "sse_kms_key_id": settings["kms_key_id"],
        }
    elif key := settings.get("sse_customer_key") or environ.get("AWS_SSE_CUSTOMER_KEY"):
        config |= {"server_side_encryption": "sse-c", "sse_customer_key_base64": key}
    elif _flag(settings.get("encrypt")):
        config["server_side_encryption"] = "AES256"
    options: dict[str, Any] = {
        "client_options": _client_options(str(endpoint or ""), settings, environ)
    }
    provider = renewed_aws_credentials(settings, environ, str(region))
    if provider is not None:
        options["credential_provider"] = provider
    else:
        config |= cast("S3Config", static_aws_keys(settings, environ))
    client = S3Store(bucket, prefix=prefix, config=config, retry_config=_retries(), **options)
    return client, str(endpoint or f"https://s3.{region}.amazonaws.com")


def _gcs(
    bucket: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[ObjectStore, str]:
    from obstore.store import GCSStore

    emulator = environ.get("STORAGE_EMULATOR_HOST")
    endpoint = settings.get("storage_custom_endpoint") or environ.get(
        "GOOGLE_BACKEND_STORAGE_CUSTOM_ENDPOINT"
    )
    # Terraform's setting names the JSON API below the host, the client wants the host.
    base = str(endpoint or emulator or "").split("/storage/v1")[0].rstrip("/")
    if base and "://" not in base:
        base = f"http://{base}"
    config: GCSConfig = {"base_url": base} if base else {}
    credentials = (
        settings.get("credentials")
        or environ.get("GOOGLE_BACKEND_CREDENTIALS")
        or environ.get("GOOGLE_CREDENTIALS")
    )
    token = settings.get("access_token") or environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    account = (
        settings.get("impersonate_service_account")
        or environ.get("GOOGLE_BACKEND_IMPERSONATE_SERVICE_ACCOUNT")
        or environ.get("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT")
    )
    options: dict[str, Any] = {}
    if account:
        source = (
            (lambda: str(token))
            if token
            else google_token(str(credentials) if credentials else None)
        )
        delegates = [
            str(name) for name in settings.get("impersonate_service_account_delegates", [])
        ]
        options["credential_provider"] = impersonated(str(account), delegates, source)
    elif token:
        config["bearer_token"] = token
    elif credentials:
        inline = str(credentials).lstrip().startswith("{")
        config["service_account_key" if inline else "service_account"] = credentials
    elif path := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        config["application_credentials"] = path
    elif base:
        config["skip_signature"] = True
    if settings.get("encryption_key") or environ.get("GOOGLE_ENCRYPTION_KEY"):
        raise _unsupported("gcs", "encryption_key")
    client_options = _client_options(base, settings, environ)
    if key := settings.get("kms_encryption_key") or environ.get("GOOGLE_KMS_ENCRYPTION_KEY"):
        client_options["default_headers"] = {"x-goog-encryption-kms-key-name": str(key)}
    client = GCSStore(
        bucket,
        prefix=prefix,
        config=config,
        client_options=client_options,
        retry_config=_retries(),
        **options,
    )
    return client, base or "https://storage.googleapis.com"


def _unsupported(backend: str, setting: str) -> Invalid:
    return Invalid(
        [
            Problem(
                f"operations in {backend}: {setting} is not supported there",
                hint="name the operations store with credentials of its own: operations.url",
            )
        ]
    )


#: Settings of the client of Azure, of the backend, and the variables that say the same.
_AZURE_SETTINGS = {
    "account_key": ("access_key", "ARM_ACCESS_KEY"),
    "sas_key": ("sas_token", "ARM_SAS_TOKEN"),
    "client_id": ("client_id", "ARM_CLIENT_ID"),
    "client_secret": ("client_secret", "ARM_CLIENT_SECRET"),
    "tenant_id": ("tenant_id", "ARM_TENANT_ID"),
    "msi_endpoint": ("msi_endpoint", "ARM_MSI_ENDPOINT"),
    "endpoint": ("endpoint", "AZURE_STORAGE_ENDPOINT"),
}
#: The clouds of Azure: where tokens are given, and what the names of storage accounts end with.
_AZURE_CLOUDS = {
    "public": ("https://login.microsoftonline.com", "core.windows.net"),
    "usgovernment": ("https://login.microsoftonline.us", "core.usgovcloudapi.net"),
    "china": ("https://login.chinacloudapi.cn", "core.chinacloudapi.cn"),
}


def _azure(
    container: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[ObjectStore, str]:
    from obstore.store import AzureStore

    account = settings.get("storage_account_name") or settings.get("account")
    if not account:
        raise Invalid(
            [
                Problem(
                    "operations in azurerm: no storage account",
                    hint="operations.url: az://CONTAINER/PREFIX?account=NAME",
                )
            ]
        )
    cloud = str(settings.get("environment") or environ.get("ARM_ENVIRONMENT") or "public").lower()
    if cloud not in _AZURE_CLOUDS:
        raise _unsupported("azurerm", f"environment {cloud!r}")
    authority, suffix = _AZURE_CLOUDS[cloud]
    values = {
        name: str(settings.get(setting) or environ.get(variable) or "")
        for name, (setting, variable) in _AZURE_SETTINGS.items()
    }
    for name in ("client_id", "client_secret"):
        file = settings.get(f"{name}_file_path") or environ.get(f"ARM_{name.upper()}_FILE_PATH")
        if file and not values[name]:
            values[name] = _read(str(file), f"{name}_file_path").decode().strip()
    endpoint = values.pop("endpoint") or f"https://{account}.blob.{suffix}"
    config: AzureConfig = {"account_name": account, "endpoint": endpoint}
    options: dict[str, Any] = {}
    # As the backend: a key or a signature goes before whom the environment names.
    names = [name for name in ("account_key", "sas_key") if values[name]][:1]
    if not names:
        authority = environ.get("AZURE_AUTHORITY_HOST") or authority
        config["authority_host"] = authority
        names = list(values)
        _log_in_to_azure(config, options, values, authority, settings, environ)
    config |= cast("AzureConfig", {name: values[name] for name in names if values[name]})
    client = AzureStore(
        container,
        prefix=prefix,
        config=config,
        client_options=_client_options(endpoint, settings, environ),
        retry_config=_retries(),
        **options,
    )
    return client, endpoint


def _log_in_to_azure(
    config: AzureConfig,
    options: dict[str, Any],
    values: dict[str, str],
    authority: str,
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
) -> None:
    """
    Set who asks for tokens, in the order of the backend: an application by its secret, an
    application by what another issuer has signed, the machine, the person who has logged in.
    """

    def setting(name: str) -> str:
        return str(settings.get(name) or environ.get(f"ARM_{name.upper()}") or "")

    if setting("client_certificate_path") or setting("client_certificate"):
        raise _unsupported("azurerm", "a client certificate")
    if values["client_secret"]:
        return
    if _flag(setting("use_aks_workload_identity")):
        config["federated_token_file"] = environ.get("AZURE_FEDERATED_TOKEN_FILE", "")
        values["client_id"] = values["client_id"] or environ.get("AZURE_CLIENT_ID", "")
        values["tenant_id"] = values["tenant_id"] or environ.get("AZURE_TENANT_ID", "")
        return
    if _flag(setting("use_oidc")):
        if file := setting("oidc_token_file_path"):
            config["federated_token_file"] = file
            return
        token = setting("oidc_token")
        url = setting("oidc_request_url") or environ.get("ACTIONS_ID_TOKEN_REQUEST_URL", "")
        key = setting("oidc_request_token") or environ.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "")
        if token or (url and key):
            assertion = (lambda: token) if token else identity_of_job(url, key)
            options["credential_provider"] = federated(
                authority, values["tenant_id"], values["client_id"], assertion
            )
            return
    if not _flag(setting("use_msi")) and setting("use_cli").lower() != "false":
        config["use_azure_cli"] = True


def _client_options(
    endpoint: str, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> ClientConfig:
    options: ClientConfig = {
        "timeout": f"{_TIMEOUT}s",
        "allow_http": endpoint.startswith("http://"),
    }
    if bundle := _certificates(settings, environ):
        options["root_certificate"] = _read(bundle, "custom_ca_bundle")
    if _flag(settings.get("insecure")):
        options["allow_invalid_certificates"] = True
    if proxy := settings.get("https_proxy") or settings.get("http_proxy"):
        options["proxy_url"] = str(proxy)
        options["proxy_excludes"] = str(settings.get("no_proxy") or "")
    return options


def _opener(
    settings: Mapping[str, Any], environ: Mapping[str, str]
) -> urllib.request.OpenerDirector:
    """
    An opener that makes requests under the same conditions as the client.
    """
    context = ssl.create_default_context()
    if bundle := _certificates(settings, environ):
        context.load_verify_locations(bundle)
    if _flag(settings.get("insecure")):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if proxy := settings.get("https_proxy") or settings.get("http_proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": str(proxy), "https": str(proxy)}))
    return urllib.request.build_opener(*handlers)


def _certificates(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """
    The file with further certificate authorities that Terraform trusts.
    """
    file = settings.get("custom_ca_bundle") or environ.get("AWS_CA_BUNDLE")
    trusted = environ.get("SSL_CERT_FILE")
    if not file and trusted and Path(trusted).is_file():  # Go ignores one that does not exist
        file = trusted
    return str(file) if file else None


def _read(file: str, setting: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        raise Invalid([Problem(f"operations: {setting} {file}: {exc.strerror}")]) from exc


def _retries() -> RetryConfig:
    return {"max_retries": 8, "retry_timeout": timedelta(seconds=_RETRIES)}


def _flag(value: Json) -> bool:
    return value is True or str(value).lower() in ("true", "1")
