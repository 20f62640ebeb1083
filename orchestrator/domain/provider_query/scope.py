"""
The scope of a provider query: region, account and endpoint, as far as known without a query.

An object that is not found proves something only if the provider is queried in the scope in which
the object was destroyed. Provider settings are compared by digest, except credentials, which change
all the time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping

from orchestrator.domain.blueprint.references import Resolved
from orchestrator.domain.record.record import SENSITIVE
from orchestrator.domain.secrets import replaced_at
from orchestrator.domain.text import CREDENTIAL, Json

_WHO = re.compile(f"role|profile|user|{CREDENTIAL.pattern}", re.IGNORECASE)

#: Name and digest of everything that was looked at, sorted.
Scope = tuple[tuple[str, str], ...]

#: How the variables begin that providers read, where it is not the provider's name.
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "google": ("GOOGLE_", "GCLOUD_", "CLOUDSDK_"),
    "google-beta": ("GOOGLE_", "GCLOUD_", "CLOUDSDK_"),
    "azurerm": ("ARM_", "AZURE_"),
    "azuread": ("ARM_", "AZURE_"),
    "azapi": ("ARM_", "AZURE_"),
    "kubernetes": ("KUBE",),
    "helm": ("KUBE", "HELM_"),
    "openstack": ("OS_",),
}
_USER = re.compile(r"://[^/@\s\"]*@")
_RENEWED = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|EXPIR")


def scope(
    providers: Iterable[str],
    environ: Mapping[str, str],
    configured: Mapping[str, Resolved],
    digest: Callable[[Json], str],
) -> Scope:
    """
    Return the scope of these providers (source addresses): their environment variables, and their
    configuration in the blueprint, ``configured``, without credentials.

    >>> scope(["hashicorp/aws"], {"AWS_REGION": "x", "AWS_SECRET_KEY": "y", "HOME": "z"}, {}, str)
    (('AWS_REGION', 'x'),)
    """
    prefixes = tuple(prefix for provider in providers for prefix in _prefixes(provider))
    values = {
        name: digest(value)
        for name, value in environ.items()
        if name.startswith(prefixes) and not _RENEWED.search(name)
    }
    values |= {
        f"providers.{name}": digest(
            replaced_at(item.value, item.secrets, lambda _path, _value: None)
        )
        for name, item in configured.items()
    }
    return tuple(sorted(values.items()))


def fingerprint(value: Json) -> str:
    """
    Return a digest of a value that is no secret, the same on every machine; the user in a URL does
    not count.

    >>> fingerprint("https://ann:secret@host/x") == fingerprint("https://host/x")
    True
    """
    text = _USER.sub("://", json.dumps(value, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differing(then: Scope, now: Scope, providers: Iterable[str]) -> list[str]:
    """
    Return the sorted names of the settings of ``providers`` that have changed.
    """
    prefixes = ("providers.", *(prefix for item in providers for prefix in _prefixes(item)))
    changed = {name for name, _ in {*then} ^ {*now}}
    return sorted(name for name in changed if name.startswith(prefixes))


def _prefixes(provider: str) -> tuple[str, ...]:
    name = provider.rpartition("/")[2]
    return _PREFIXES.get(name, (f"{name.upper().replace('-', '_')}_",))


def without_credentials(value: Json, *, is_credential: bool = False) -> Json:
    """
    Return a provider's configuration for people, without values of credentials, even literal ones.
    ``is_credential``: the value is that of a credential.

    >>> without_credentials({"region": "eu", "assume": [{"token": "x", "role": "y"}]})
    {'region': 'eu', 'assume': [{'token': '(sensitive)', 'role': 'y'}]}
    """
    match value:
        case dict():
            return {
                key: without_credentials(
                    item, is_credential=is_credential or CREDENTIAL.search(key) is not None
                )
                for key, item in value.items()
            }
        case list():
            return [without_credentials(item, is_credential=is_credential) for item in value]
        case _:
            return SENSITIVE if is_credential else value


def without_identity(value: Json) -> Json:
    """
    Return a provider's configuration without the caller's identity: a plan may use read-only
    credentials.

    >>> without_identity({"region": "eu", "assume_role": [{"role_arn": "y"}], "profile": "x"})
    {'region': 'eu'}
    """
    match value:
        case dict():
            return {k: without_identity(item) for k, item in value.items() if not _WHO.search(k)}
        case list():
            return [without_identity(item) for item in value]
        case _:
            return value
