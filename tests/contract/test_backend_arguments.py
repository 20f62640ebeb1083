"""
The arguments of the backend blocks, as the documentation of Terraform and OpenTofu lists them:
each counts, is for provider states only, or is refused, and docs/stores.md says which.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from orchestrator.errors import Invalid
from orchestrator.stores.bucket import open_bucket
from tests.project import REPOSITORY

DOCUMENTED = {
    "s3": """
        access_key acl allowed_account_ids assume_role assume_role_duration_seconds
        assume_role_policy assume_role_policy_arns assume_role_tags assume_role_transitive_tag_keys
        assume_role_with_web_identity custom_ca_bundle dynamodb_endpoint dynamodb_table
        ec2_metadata_service_endpoint ec2_metadata_service_endpoint_mode encrypt endpoint
        endpoints.dynamodb endpoints.iam endpoints.s3 endpoints.sso endpoints.sts external_id
        forbidden_account_ids force_path_style http_proxy https_proxy iam_endpoint insecure key
        kms_key_id max_retries no_proxy profile region retry_mode role_arn secret_key session_name
        shared_config_files shared_credentials_file shared_credentials_files
        skip_credentials_validation skip_metadata_api_check skip_region_validation
        skip_requesting_account_id skip_s3_checksum sse_customer_key sts_endpoint sts_region token
        use_dualstack_endpoint use_fips_endpoint use_lockfile use_path_style workspace_key_prefix
    """,
    "gcs": """
        access_token credentials encryption_key impersonate_service_account
        impersonate_service_account_delegates kms_encryption_key prefix storage_custom_endpoint
    """,
    "azurerm": """
        access_key ado_pipeline_service_connection_id ado_service_connection_id client_certificate
        client_certificate_password client_certificate_path client_id client_id_file_path
        client_secret client_secret_file_path customer_provided_key encryption_scope environment key
        lookup_blob_endpoint metadata_host msi_endpoint oidc_request_token oidc_request_url
        oidc_token oidc_token_file_path resource_group_name sas_token snapshot subscription_id
        tenant_id timeout_seconds use_aks_workload_identity use_azuread_auth use_cli use_msi
        use_oidc
    """,
}
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "s3": ("s3://b/x", {"region": "eu-west-1", "access_key": "k", "secret_key": "s"}),
    "gcs": ("gs://b/x", {"access_token": "t"}),
    "azurerm": ("az://c/x", {"storage_account_name": "acme", "access_key": "a2V5"}),
}


def column(backend: str, number: int) -> list[str]:
    """
    The arguments in a column of the page's table.
    """
    page = (REPOSITORY / "docs/stores.md").read_text()
    table = page[page.index("is for provider states only") :]
    row = next(line for line in table.splitlines() if line.startswith(f"| `{backend}` |"))
    return re.findall(r"`([a-z0-9_.]+)`", row.split("|")[number])


def each(number: int) -> list[tuple[str, str]]:
    """
    Backend and argument, of one column.
    """
    return [(backend, name) for backend in DOCUMENTED for name in column(backend, number)]


def opened(backend: str, name: str) -> object:
    """
    What a client is made with, where a block has this argument.
    """
    url, block = BLOCKS[backend]
    value: object = "elsewhere"
    if name.startswith("shared_"):
        value = ["a", "b"]
    whole, _, part = name.partition(".")
    extra: dict[str, object] = {whole: {part: value}} if part else {name: value}
    if name.startswith(("shared_", "endpoints.sso")):
        extra["profile"] = "team"
    client = open_bucket(url, {**block, **extra}, {}).client
    assert isinstance(client, S3Store | GCSStore | AzureStore)
    return client.config, client.client_options


@pytest.mark.parametrize("backend", DOCUMENTED)
def test_each_argument_is_told(backend: str) -> None:
    """
    Each of them stands in one column, or with a part of it in the last one, and no other does.
    """
    counts, beside, refused = (column(backend, number) for number in (2, 3, 4))
    listed = [*counts, *beside, *(name for name in refused if name not in counts)]

    assert sorted(listed) == sorted(DOCUMENTED[backend].split())


@pytest.mark.parametrize(("backend", "name"), each(3))
def test_what_is_for_provider_states_changes_nothing(backend: str, name: str) -> None:
    """
    A client with it is a client without it.
    """
    assert opened(backend, name) == opened(backend, "of_no_meaning")


@pytest.mark.parametrize(("backend", "name"), each(4))
def test_what_would_lead_elsewhere_is_refused(backend: str, name: str) -> None:
    """
    In a sentence that names it, before anything is asked.
    """
    with pytest.raises(Invalid, match=f"{name} is not supported"):
        opened(backend, name)
