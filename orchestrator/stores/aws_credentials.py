"""
Credentials for S3, as the Terraform backend block and the environment have them: static keys, and
credentials that expire and are renewed along their whole chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import S3Credential

_KEY_PARTS = ("access_key_id", "secret_access_key", "session_token")


def static_aws_keys(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """
    The static keys of the backend block, else of the environment.
    """
    names = {
        "access_key_id": ("access_key", "AWS_ACCESS_KEY_ID"),
        "secret_access_key": ("secret_key", "AWS_SECRET_ACCESS_KEY"),
        "session_token": ("token", "AWS_SESSION_TOKEN"),
    }
    keys = {
        name: settings.get(setting) or environ.get(variable)
        for name, (setting, variable) in names.items()
    }
    if not keys["access_key_id"]:
        return {}
    return {name: str(value) for name, value in keys.items() if value}


def renewed_aws_credentials(
    settings: Mapping[str, Any], environ: Mapping[str, str], region: str
) -> Callable[[], S3Credential] | None:
    """
    A source of credentials of an assumed role, chained ones too, a web identity, a profile, the
    container or the machine, which renews all of the chain; None for static keys, and where there
    are none.
    """
    roles = settings.get("assume_role") or []
    roles = [roles] if isinstance(roles, Mapping) else roles
    if not roles and settings.get("role_arn"):
        roles = [{"role_arn": settings["role_arn"]}]
    identity = settings.get("assume_role_with_web_identity")
    profile = settings.get("profile") or environ.get("AWS_PROFILE")
    static = static_aws_keys(settings, environ)
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
        files = settings.get(name)
        if files:
            core.set_config_variable(setting, files[0] if isinstance(files, list) else files)
    if static:
        core.set_credentials(*(static.get(name) for name in _KEY_PARTS))
    endpoints = settings.get("endpoints")
    endpoint = (
        endpoints.get("sts") if isinstance(endpoints, Mapping) else settings.get("sts_endpoint")
    )
    sts = partial(core.create_client, region_name=region, endpoint_url=endpoint)
    credentials: Any = None
    if isinstance(identity, Mapping):
        credentials = _renewed(
            botocore.credentials.AssumeRoleWithWebIdentityCredentialFetcher(
                sts,
                lambda: _web_identity_token(identity),
                str(identity.get("role_arn") or ""),
                extra_args=_assume_role(identity),
            )
        )
    else:
        credentials = core.get_credentials()
    for role in roles:
        credentials = _renewed(
            botocore.credentials.AssumeRoleCredentialFetcher(
                sts, credentials, str(role["role_arn"]), extra_args=_assume_role(role)
            )
        )

    def current() -> S3Credential:
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

    return current if credentials is not None else None


def _renewed(fetcher: Any) -> Any:
    from botocore.credentials import DeferredRefreshableCredentials

    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _web_identity_token(identity: Mapping[str, Any]) -> str:
    """
    The current token: its issuer replaces the file.
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
    The settings of a role beside its name, as the service takes them.
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
    if role.get("tags"):
        arguments["Tags"] = [{"Key": key, "Value": value} for key, value in role["tags"].items()]
    if role.get("duration"):
        arguments["DurationSeconds"] = sum(
            int(number) * {"h": 3600, "m": 60, "s": 1}[unit]
            for number, unit in re.findall(r"(\d+)([hms])", str(role["duration"]))
        )
    return arguments | {"RoleSessionName": role.get("session_name") or "orchestrator"}
