"""
The client for Azure Blob Storage, with the credentials of the Terraform backend `azurerm`.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.stores.client_settings import (
    RETRIES,
    ask,
    client_options,
    flag,
    read_setting,
    setting_or_variable,
    unsupported,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential, AzureStore

_SCOPE = "https://storage.azure.com/.default"

#: Settings of the client, and what the backend calls them.
_SETTINGS = {
    "account_key": "access_key",
    "sas_key": "sas_token",
    **{name: name for name in ("client_id", "client_secret", "tenant_id", "msi_endpoint")},
}
#: Settings under other variables than ARM_ and their name, and what CI services call them.
_VARIABLES = {
    "oidc_token_file_path": ("AZURE_FEDERATED_TOKEN_FILE",),
    "oidc_request_url": ("ACTIONS_ID_TOKEN_REQUEST_URL", "SYSTEM_OIDCREQUESTURI"),
    "oidc_request_token": ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SYSTEM_ACCESSTOKEN"),
    "ado_pipeline_service_connection_id": (
        "ARM_OIDC_AZURE_SERVICE_CONNECTION_ID",
        "AZURESUBSCRIPTION_SERVICE_CONNECTION_ID",
    ),
    "metadata_host": ("ARM_METADATA_HOSTNAME",),
    "encryption_scope": ("ARM_ENCYRPTION_SCOPE",),  # as OpenTofu spells it
}
#: The clouds: where tokens are given, and what the names of storage accounts end with.
_CLOUDS = {
    "public": ("https://login.microsoftonline.com", "core.windows.net"),
    "usgovernment": ("https://login.microsoftonline.us", "core.usgovcloudapi.net"),
    "china": ("https://login.chinacloudapi.cn", "core.chinacloudapi.cn"),
}
#: Settings that change where a container is, or who can read it.
_UNSUPPORTED = (
    "metadata_host",
    "lookup_blob_endpoint",
    "customer_provided_key",
    "encryption_scope",
)


def azure_client(
    container: str, prefix: str | None, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[AzureStore, str]:
    """
    Return the client and the address of its servers.
    """
    from obstore.store import AzureStore

    account = storage_account(settings)

    def setting(name: str) -> str:
        variables = (f"ARM_{name.upper()}", *_VARIABLES.get(name, ()))
        return setting_or_variable(settings, environ, name, *variables)

    for name in _UNSUPPORTED:
        if setting(name).lower() not in ("", "false"):
            raise unsupported("azurerm", name)
    cloud = (setting("environment") or "public").lower()
    if cloud not in _CLOUDS:
        raise unsupported("azurerm", f"environment {cloud!r}")
    authority, suffix = _CLOUDS[cloud]
    values = {name: setting(ours) for name, ours in _SETTINGS.items()}
    for name in ("client_id", "client_secret"):
        file = setting(f"{name}_file_path")
        if file and not values[name]:
            values[name] = read_setting(file, f"{name}_file_path").decode().strip()
    endpoint = setting_or_variable(settings, environ, "endpoint", "AZURE_STORAGE_ENDPOINT")
    endpoint = endpoint or f"https://{account}.blob.{suffix}"
    config: AzureConfig = {"account_name": account, "endpoint": endpoint}
    options: dict[str, Any] = {}
    # As the backend: a key or a signature goes before whom the environment names.
    names = [name for name in ("account_key", "sas_key") if values[name]][:1]
    if not names:
        authority = environ.get("AZURE_AUTHORITY_HOST") or authority
        config["authority_host"] = authority
        names = list(values)
        _log_in(config, options, values, authority, setting, environ)
    config |= cast("AzureConfig", {name: values[name] for name in names if values[name]})
    client = AzureStore(
        container,
        prefix=prefix,
        config=config,
        client_options=client_options(endpoint, settings, environ),
        retry_config=RETRIES,
        **options,
    )
    return client, endpoint


def storage_account(settings: Mapping[str, Any]) -> str:
    """
    Return the storage account of the settings. Raises Invalid if they name none.
    """
    account = settings.get("storage_account_name") or settings.get("account")
    if not account:
        hint = "operations.url: az://CONTAINER/PREFIX?account=NAME"
        raise Invalid([Problem("operations in azurerm: no storage account", hint=hint)])
    return str(account)


def _log_in(
    config: AzureConfig,
    options: dict[str, Any],
    values: dict[str, str],
    authority: str,
    setting: Callable[[str], str],
    environ: Mapping[str, str],
) -> None:
    """
    Add the credentials to ``options``, in the backend's order: client certificate, client secret,
    federated token, managed identity, Azure CLI login.
    """
    token_url = f"{authority.rstrip('/')}/{values['tenant_id']}/oauth2/v2.0/token"

    def exchange(assertion: Callable[[], str]) -> None:
        options["credential_provider"] = federated(token_url, values["client_id"], assertion)

    if file := setting("client_certificate_path"):
        bundle = read_setting(file, "client_certificate_path")
    else:
        text = "".join(setting("client_certificate").split())
        try:
            bundle = base64.b64decode(text, validate=True)
        except ValueError as exc:
            problem = Problem("operations in azurerm: client_certificate: no base64")
            raise Invalid([problem]) from exc
    if bundle:
        password = setting("client_certificate_password")
        exchange(certificate_assertion(bundle, password, values["client_id"], token_url))
        return
    if values["client_secret"]:
        return
    if flag(setting("use_aks_workload_identity")):
        config["federated_token_file"] = environ.get("AZURE_FEDERATED_TOKEN_FILE", "")
        values["client_id"] = values["client_id"] or environ.get("AZURE_CLIENT_ID", "")
        values["tenant_id"] = values["tenant_id"] or environ.get("AZURE_TENANT_ID", "")
        return
    if flag(setting("use_oidc")):
        if file := setting("oidc_token_file_path"):
            config["federated_token_file"] = file
            return
        token = setting("oidc_token")
        url, key = setting("oidc_request_url"), setting("oidc_request_token")
        connection = setting("ado_pipeline_service_connection_id") or setting(
            "ado_service_connection_id"
        )
        if token:
            exchange(lambda: token)
            return
        if url and key:
            exchange(identity_of_job(url, key, connection))
            return
    if not flag(setting("use_msi")) and setting("use_cli").lower() != "false":
        config["use_azure_cli"] = True


def federated(
    token_url: str, client: str, assertion: Callable[[], str]
) -> Callable[[], AzureCredential]:
    """
    Return a source of access tokens for an application, obtained with a client ``assertion``:
    signed with the application's certificate, or by an issuer that it trusts.
    """

    def current() -> AzureCredential:
        form = {
            "client_id": client,
            "scope": _SCOPE,
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": assertion(),
        }
        answer = ask(token_url, urlencode(form).encode(), {})
        expires = datetime.now(UTC) + timedelta(seconds=int(answer["expires_in"]))
        return {"token": str(answer["access_token"]), "expires_at": expires}

    return current


def identity_of_job(url: str, token: str, connection: str) -> Callable[[], str]:
    """
    Return a source of the CI job's identity token for Azure: in Azure Pipelines for a service
    ``connection``, elsewhere for the audience.
    """

    def current() -> str:
        bearer = {"Authorization": f"Bearer {token}"}
        join = "&" if "?" in url else "?"
        if connection:
            address = f"{url}{join}api-version=7.1&serviceConnectionId={quote(connection)}"
            answer = ask(address, b"", {**bearer, "Content-Type": "application/json"})
            return str(answer["oidcToken"])
        return str(ask(f"{url}{join}audience=api://AzureADTokenExchange", None, bearer)["value"])

    return current


def certificate_assertion(
    bundle: bytes, password: str, client: str, token_url: str
) -> Callable[[], str]:
    """
    Return a source of client assertions signed with the key in a PKCS#12 ``bundle``.

    Raises StoreUnavailable if the bundle cannot be decrypted with the password, or has no RSA key.
    """

    def current() -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding, rsa
        from cryptography.hazmat.primitives.serialization import pkcs12

        try:
            key, certificate, _ = pkcs12.load_key_and_certificates(
                bundle, password.encode() or None
            )
        except ValueError as exc:
            raise StoreUnavailable(f"client certificate of azurerm: {exc}") from exc
        if certificate is None or not isinstance(key, rsa.RSAPrivateKey):
            raise StoreUnavailable("client certificate of azurerm: no certificate with an RSA key")
        now = int(time.time())
        thumbprint = certificate.fingerprint(hashes.SHA256())
        header = {"alg": "PS256", "typ": "JWT", "x5t#S256": _base64url(thumbprint)}
        claims = {
            "aud": token_url,
            "iss": client,
            "sub": client,
            "jti": uuid.uuid4().hex,
            "nbf": now - 60,
            "exp": now + 600,
        }
        parts = (_base64url(json.dumps(part).encode()) for part in (header, claims))
        signed = ".".join(parts)
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        return f"{signed}.{_base64url(key.sign(signed.encode(), pss, hashes.SHA256()))}"

    return current


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
