"""
Clients for buckets and containers, with the credentials that the Terraform backend block has.

What a block leaves out is read from the environment variables that Terraform's backend reads.
Credentials that expire are renewed by the client that they come from.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3Credential,
    )

#: Schemes of ``operations.url`` and the Terraform backend that each belongs to.
BACKENDS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azurerm", "azurerm": "azurerm"}

#: Seconds: one request, all tries of one request together.
_TIMEOUT = 10
_RETRIES = 30


@dataclass(frozen=True, slots=True)
class Bucket:
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
    return Bucket(client, bare, ServerClock(endpoint))


class ServerClock:
    """
    The clock of the servers behind an address, as they tell it in the ``Date`` of any answer.

    It is asked once; after that the time of this machine, which may be wrong, only measures how
    much has passed.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._asked: tuple[datetime, float] | None = None

    def __call__(self) -> datetime:
        if self._asked is None:
            self._asked = (self._ask(), time.monotonic())
        told, then = self._asked
        return told + timedelta(seconds=time.monotonic() - then)

    def _ask(self) -> datetime:
        request = urllib.request.Request(self._endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                told = answer.headers["Date"]
        except urllib.error.HTTPError as exc:  # refused without credentials: it has a clock, too
            told = exc.headers["Date"]
        except OSError as exc:
            raise StoreUnavailable(f"{self._endpoint}: {exc}") from exc
        if told is None:
            raise StoreUnavailable(f"{self._endpoint}: tells no time")
        return parsedate_to_datetime(told).astimezone(UTC)


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
    options: dict[str, Any] = {"client_options": _client_options(str(endpoint or ""))}
    provider = _aws_credentials(settings, environ, str(region))
    if provider is not None:
        options["credential_provider"] = provider
    else:
        config |= cast("S3Config", _static_aws_keys(settings, environ))
    client = S3Store(bucket, prefix=prefix, config=config, retry_config=_retries(), **options)
    return client, str(endpoint or f"https://s3.{region}.amazonaws.com")


_KEY_PARTS = ("access_key_id", "secret_access_key", "session_token")


def _static_aws_keys(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """
    Keys as they are written down.
    """
    names = {
        "access_key_id": ("access_key", "AWS_ACCESS_KEY_ID"),
        "secret_access_key": ("secret_key", "AWS_SECRET_ACCESS_KEY"),
        "session_token": ("token", "AWS_SESSION_TOKEN"),
    }
    found = {
        name: settings.get(setting) or environ.get(variable)
        for name, (setting, variable) in names.items()
    }
    if not found["access_key_id"]:
        return {}
    return {name: str(value) for name, value in found.items() if value}


def _aws_credentials(
    settings: Mapping[str, Any], environ: Mapping[str, str], region: str
) -> Callable[[], S3Credential] | None:
    """
    What gets credentials of an assumed role, chained ones too, a web identity, a profile, the
    container or the machine, and renews them all along the chain; None for keys that are written
    down, and where there are none.
    """
    roles = settings.get("assume_role") or []
    roles = [roles] if isinstance(roles, Mapping) else roles
    if not roles and settings.get("role_arn"):
        roles = [{"role_arn": settings["role_arn"]}]
    identity = settings.get("assume_role_with_web_identity")
    profile = settings.get("profile") or environ.get("AWS_PROFILE")
    static = _static_aws_keys(settings, environ)
    if static and not (roles or identity or profile):
        return None
    try:
        import botocore.credentials
        import botocore.session
    except ImportError as exc:
        raise StoreUnavailable(
            "credentials that are renewed need the AWS SDK: the extra `objects` brings it",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    core = botocore.session.Session(profile=str(profile) if profile else None)
    core.set_config_variable("region", region)
    for name, setting in _SHARED_FILES.items():
        given = settings.get(name)
        if given:
            core.set_config_variable(setting, given[0] if isinstance(given, list) else given)
    if static:
        core.set_credentials(*(static.get(name) for name in _KEY_PARTS))
    endpoints = settings.get("endpoints")
    endpoint = (
        endpoints.get("sts") if isinstance(endpoints, Mapping) else settings.get("sts_endpoint")
    )
    sts = partial(core.create_client, region_name=region, endpoint_url=endpoint)
    held: Any = None
    if isinstance(identity, Mapping):
        held = _renewed(
            botocore.credentials.AssumeRoleWithWebIdentityCredentialFetcher(
                sts,
                lambda: _web_identity_token(identity),
                str(identity.get("role_arn") or ""),
                extra_args=_assume_role(identity),
            )
        )
    else:
        held = core.get_credentials()
    for role in roles:
        held = _renewed(
            botocore.credentials.AssumeRoleCredentialFetcher(
                sts, held, str(role["role_arn"]), extra_args=_assume_role(role)
            )
        )

    def current() -> S3Credential:
        frozen = held.get_frozen_credentials()
        # What does not expire is asked for again now and then: a file may have changed.
        expires = getattr(held, "_expiry_time", None) or datetime.now(UTC) + timedelta(minutes=30)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires.astimezone(UTC),
        }

    return current if held is not None else None


def _renewed(fetcher: Any) -> Any:
    from botocore.credentials import DeferredRefreshableCredentials

    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _web_identity_token(identity: Mapping[str, Any]) -> str:
    """
    The token as it is now: whoever hands them out replaces the file.
    """
    file = identity.get("web_identity_token_file")
    return Path(file).read_text() if file else str(identity.get("web_identity_token") or "")


#: Settings of the backend, and what the AWS SDK calls them.
_SHARED_FILES = {
    "shared_credentials_file": "credentials_file",
    "shared_credentials_files": "credentials_file",
    "shared_config_files": "config_file",
}


def _assume_role(role: Mapping[str, Any]) -> dict[str, Any]:
    """
    What a block says of a role beside its name, as the service takes it.
    """
    names = {
        "external_id": "ExternalId",
        "policy": "Policy",
        "source_identity": "SourceIdentity",
        "transitive_tag_keys": "TransitiveTagKeys",
    }
    asked = {ours: role[name] for name, ours in names.items() if role.get(name)}
    if role.get("policy_arns"):
        asked["PolicyArns"] = [{"arn": arn} for arn in role["policy_arns"]]
    if role.get("tags"):
        asked["Tags"] = [{"Key": key, "Value": value} for key, value in role["tags"].items()]
    if role.get("duration"):
        asked["DurationSeconds"] = sum(
            int(number) * {"h": 3600, "m": 60, "s": 1}[unit]
            for number, unit in re.findall(r"(\d+)([hms])", str(role["duration"]))
        )
    return asked | {"RoleSessionName": role.get("session_name") or "orchestrator"}


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
    given = (
        settings.get("credentials")
        or environ.get("GOOGLE_BACKEND_CREDENTIALS")
        or environ.get("GOOGLE_CREDENTIALS")
    )
    if token := settings.get("access_token") or environ.get("GOOGLE_OAUTH_ACCESS_TOKEN"):
        config["bearer_token"] = token
    elif given:
        inline = str(given).lstrip().startswith("{")
        config["service_account_key" if inline else "service_account"] = given
    elif path := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        config["application_credentials"] = path
    elif base:
        config["skip_signature"] = True
    if settings.get("impersonate_service_account"):
        raise Invalid(
            [
                Problem(
                    "operations in gcs: impersonate_service_account is not supported there",
                    hint="name the operations store with credentials of its own: operations.url",
                )
            ]
        )
    options = _client_options(base)
    headers = {}
    if key := settings.get("kms_encryption_key") or environ.get("GOOGLE_KMS_ENCRYPTION_KEY"):
        headers["x-goog-encryption-kms-key-name"] = str(key)
    if headers:
        options["default_headers"] = headers
    client = GCSStore(
        bucket,
        prefix=prefix,
        config=config,
        client_options=options,
        retry_config=_retries(),
    )
    return client, base or "https://storage.googleapis.com"


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
    config: AzureConfig = {"account_name": account}
    names = {
        "account_key": ("access_key", "ARM_ACCESS_KEY"),
        "sas_key": ("sas_token", "ARM_SAS_TOKEN"),
        "client_id": ("client_id", "ARM_CLIENT_ID"),
        "client_secret": ("client_secret", "ARM_CLIENT_SECRET"),
        "tenant_id": ("tenant_id", "ARM_TENANT_ID"),
        "msi_endpoint": ("msi_endpoint", "ARM_MSI_ENDPOINT"),
        "federated_token_file": ("oidc_token_file_path", "ARM_OIDC_TOKEN_FILE_PATH"),
        "endpoint": ("endpoint", "AZURE_STORAGE_ENDPOINT"),
    }
    given = {
        name: settings.get(setting) or environ.get(variable)
        for name, (setting, variable) in names.items()
    }
    config |= cast("AzureConfig", {name: value for name, value in given.items() if value})
    if _flag(settings.get("use_cli")) or environ.get("ARM_USE_CLI") == "true":
        config["use_azure_cli"] = True
    endpoint = str(config.get("endpoint") or f"https://{account}.blob.core.windows.net")
    client = AzureStore(
        container,
        prefix=prefix,
        config=config,
        client_options=_client_options(endpoint),
        retry_config=_retries(),
    )
    return client, endpoint


def _client_options(endpoint: str) -> ClientConfig:
    return {"timeout": f"{_TIMEOUT}s", "allow_http": endpoint.startswith("http://")}


def _retries() -> RetryConfig:
    return {"max_retries": 8, "retry_timeout": timedelta(seconds=_RETRIES)}


def _flag(value: Json) -> bool:
    return value is True or str(value).lower() in ("true", "1")
