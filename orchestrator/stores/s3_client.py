"""
The client for S3, with the credentials of the Terraform backend `s3` and the environment: static
keys, and temporary credentials, which are renewed along their whole chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.client_settings import (
    RETRIES,
    certificates,
    client_options,
    flag,
    proxies,
    setting_or_variable,
    unsupported,
)

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential, S3Store

_KEY_PARTS = ("access_key_id", "secret_access_key", "session_token")

#: What regions outside the ordinary partition begin with, and the names of their servers end with.
_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}


def s3_client(
    bucket: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[S3Store, str]:
    """
    Return the client and the address of its servers.
    """
    from obstore.store import S3Store

    setting = partial(setting_or_variable, settings, environ)
    region = setting("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    custom = endpoint_of("s3", settings, environ) or environ.get("AWS_ENDPOINT_URL")
    server = custom or _regional_endpoint(region, settings, environ)
    wanted = flag(settings.get("use_path_style") or settings.get("force_path_style"))
    path_style = wanted or _is_address(urlsplit(server).hostname or "")
    # The client wants the bucket in the host's name itself where it is to be there.
    scheme, _, host = server.partition("://")
    config: S3Config = {
        "region": region,
        "virtual_hosted_style_request": not path_style,
        "endpoint": server if path_style else f"{scheme}://{bucket}.{host}",
    }
    if settings.get("kms_key_id"):
        config |= {
            "server_side_encryption": "aws:kms",
            "sse_kms_key_id": settings["kms_key_id"],
        }
    elif key := setting("sse_customer_key", "AWS_SSE_CUSTOMER_KEY"):
        config |= {"server_side_encryption": "sse-c", "sse_customer_key_base64": key}
    elif flag(settings.get("encrypt")):
        config["server_side_encryption"] = "AES256"
    options: dict[str, Any] = {"client_options": client_options(server, settings, environ)}
    provider = renewed_aws_credentials(settings, environ, region)
    if provider is not None:
        options["credential_provider"] = provider
    else:
        config |= cast("S3Config", static_aws_keys(settings, environ))
    return S3Store(bucket, prefix=prefix, config=config, retry_config=RETRIES, **options), server


def endpoint_of(service: str, settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """
    Return the custom endpoint of a service, from the block or the environment; "" if there is none.
    """
    endpoints = settings.get("endpoints")
    values = (
        endpoints.get(service) if isinstance(endpoints, Mapping) else None,
        settings.get("endpoint" if service == "s3" else f"{service}_endpoint"),
        environ.get(f"AWS_ENDPOINT_URL_{service.upper()}"),
        environ.get(f"AWS_{service.upper()}_ENDPOINT"),
    )
    return str(next(filter(None, values), ""))


def _is_address(host: str) -> bool:
    """
    Return whether a host is an IP address, which cannot be prefixed with a bucket name.
    """
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _regional_endpoint(region: str, settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    fips, dual = _variants(settings, environ)
    suffix = next((end for head, end in _SUFFIXES.items() if region.startswith(head)), None)
    service = f"s3{'-fips' * fips}{'.dualstack' * dual}"
    return f"https://{service}.{region}.{suffix or 'amazonaws.com'}"


def _variants(settings: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[bool, bool]:
    """
    Return whether to use FIPS endpoints, and dual-stack endpoints.
    """
    fips, dual = (
        flag(
            setting_or_variable(
                settings, environ, f"use_{name}_endpoint", f"AWS_USE_{name.upper()}_ENDPOINT"
            )
        )
        for name in ("fips", "dualstack")
    )
    return fips, dual


def static_aws_keys(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the static keys of the backend block, else of the environment.
    """
    names = {
        "access_key_id": ("access_key", "AWS_ACCESS_KEY_ID"),
        "secret_access_key": ("secret_key", "AWS_SECRET_ACCESS_KEY"),
        "session_token": ("token", "AWS_SESSION_TOKEN"),
    }
    keys = {name: setting_or_variable(settings, environ, *both) for name, both in names.items()}
    return {name: key for name, key in keys.items() if key} if keys["access_key_id"] else {}


def renewed_aws_credentials(
    settings: Mapping[str, Any], environ: Mapping[str, str], region: str
) -> Callable[[], S3Credential] | None:
    """
    Return a source of temporary credentials (assumed role, chained roles, web identity, profile,
    container or instance metadata), which renews the whole chain; None for static keys.
    """
    roles = settings.get("assume_role") or []
    roles = [roles] if isinstance(roles, Mapping) else roles
    if not roles and settings.get("role_arn"):
        roles = [{name: settings.get(old) for name, old in _ROLE_BESIDE.items()}]
    if any(not isinstance(role, Mapping) or not role.get("role_arn") for role in roles):
        raise Invalid([Problem("operations in s3: assume_role: a role without role_arn")])
    identity = settings.get("assume_role_with_web_identity")
    profile = setting_or_variable(settings, environ, "profile", "AWS_PROFILE")
    static = static_aws_keys(settings, environ)
    if static and not (roles or identity or profile):
        return None
    session = _sdk_session(settings, environ, region, profile)
    from botocore import credentials as sdk

    if static:
        session.set_credentials(*(static.get(name) for name in _KEY_PARTS))
    sts = partial(
        session.create_client,
        region_name=settings.get("sts_region") or region,
        endpoint_url=endpoint_of("sts", settings, environ) or None,
        **({"verify": False} if flag(settings.get("insecure")) else {}),
    )
    credentials: Any = None
    if isinstance(identity, Mapping):
        fetcher: Any = sdk.AssumeRoleWithWebIdentityCredentialFetcher(
            sts,
            lambda: _web_identity_token(identity, environ),
            str(identity.get("role_arn") or environ.get("AWS_ROLE_ARN") or ""),
            extra_args=_assume_role(identity, environ),
        )
        credentials = sdk.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    else:
        credentials = session.get_credentials()
    for role in roles:
        fetcher = sdk.AssumeRoleCredentialFetcher(
            sts, credentials, str(role["role_arn"]), extra_args=_assume_role(role, {})
        )
        credentials = sdk.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")

    def current() -> S3Credential:
        if credentials is None:  # nobody else is asked: the client would ask a machine's service
            raise StoreUnavailable(
                "neither in the environment or backend block, nor of the machine"
            )
        frozen = credentials.get_frozen_credentials()
        # What does not expire is asked for again now and then: a file may have changed.
        expires = getattr(credentials, "_expiry_time", None) or datetime.now(UTC) + timedelta(
            minutes=30
        )
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires.astimezone(UTC),
        }

    return current


#: Settings of the backend about files and the machine's own service, and what the SDK calls them.
_SDK_SETTINGS = {
    "shared_credentials_file": "credentials_file",
    "shared_credentials_files": "credentials_file",
    "shared_config_files": "config_file",
    "ec2_metadata_service_endpoint": "ec2_metadata_service_endpoint",
    "ec2_metadata_service_endpoint_mode": "ec2_metadata_service_endpoint_mode",
}


def _sdk_session(
    settings: Mapping[str, Any], environ: Mapping[str, str], region: str, profile: str
) -> Any:
    """
    Return an AWS SDK session with the files and endpoints of the block.

    Raises StoreUnavailable if the SDK is not installed, Invalid for settings that it does not
    support.
    """
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError as exc:
        raise StoreUnavailable(
            "credentials that are renewed need the AWS SDK: the extra `objects` brings it",
            hint="pip install 'orchestrator[objects]'",
        ) from exc
    session = botocore.session.Session(profile=profile or None)
    session.set_config_variable("region", region)
    session.set_config_variable("ca_bundle", certificates(settings, environ))
    fips, dual = _variants(settings, environ)
    session.set_default_client_config(
        Config(
            proxies=proxies(settings) or None,
            use_fips_endpoint=fips or None,
            use_dualstack_endpoint=dual or None,
        )
    )
    files = {"shared_config_files": environ.get("AWS_SHARED_CONFIG_FILE"), **settings}
    for name, variable in _SDK_SETTINGS.items():
        value = files.get(name)
        values = value if isinstance(value, list) else [value] if value else []
        if len(values) > 1:
            raise unsupported("s3", f"more than one of {name}", "put the profiles into one file")
        if values:
            session.set_config_variable(variable, values[0])
    endpoints = settings.get("endpoints")
    if isinstance(endpoints, Mapping) and endpoints.get("sso"):
        raise unsupported("s3", "endpoints.sso", "name it in AWS_ENDPOINT_URL_SSO")
    if flag(settings.get("skip_metadata_api_check")):
        session.get_component("credential_provider").remove("iam-role")
    return session


def _web_identity_token(identity: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """
    Read the current token: its issuer replaces the file.
    """
    token = identity.get("web_identity_token")
    file = identity.get("web_identity_token_file") or environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    return str(token) if token or not file else Path(file).read_text()


#: Settings of a role, and how they are called beside a `role_arn` that stands in the block itself.
_ROLE_BESIDE = {
    "role_arn": "role_arn",
    "session_name": "session_name",
    "external_id": "external_id",
    "duration": "assume_role_duration_seconds",
    "policy": "assume_role_policy",
    "policy_arns": "assume_role_policy_arns",
    "tags": "assume_role_tags",
    "transitive_tag_keys": "assume_role_transitive_tag_keys",
}


def _assume_role(role: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the settings of a role, except its name, as STS takes them.
    """
    names = {
        "external_id": "ExternalId",
        "policy": "Policy",
        "source_identity": "SourceIdentity",
        "transitive_tag_keys": "TransitiveTagKeys",
    }
    arguments = {ours: role[name] for name, ours in names.items() if role.get(name)}
    if role.get("policy_arns"):
        arguments["PolicyArns"] = [{"arn": arn} for arn in role["policy_arns"]]
    if isinstance(role.get("tags"), Mapping):
        arguments["Tags"] = [{"Key": key, "Value": value} for key, value in role["tags"].items()]
    if role.get("duration"):
        arguments["DurationSeconds"] = sum(
            int(number) * {"h": 3600, "m": 60, "s": 1, "": 1}[unit]
            for number, unit in re.findall(r"(\d+)([hms]?)", str(role["duration"]))
        )
    name = role.get("session_name") or environ.get("AWS_ROLE_SESSION_NAME")
    return arguments | {"RoleSessionName": name or "orchestrator"}
