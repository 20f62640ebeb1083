"""
Recognises credentials among literal settings in a blueprint.
"""

from __future__ import annotations

import re

from orchestrator.domain.text import Json

#: Names of what may be a credential, written out, in a provider's configuration.
CREDENTIAL = re.compile("key|secret|token|password|credential", re.IGNORECASE)
#: Names that are such only by their looks: the place of a state, and who is named for one.
_NO_CREDENTIALS = frozenset({"key", "secret_suffix", "key_vault_id", "kms_key_id", "key_name"})
_IN_TEXT = re.compile(
    r"://[^\s/:@]*:[^\s/@]+@|\b(?:password|token|secret|sig|key)\s*=", re.IGNORECASE
)


def is_credential(name: str, value: Json) -> bool:
    """
    Return whether the setting of this name is a credential, or contains one, as a URL may.

    >>> is_credential("password", "x"), is_credential("conn_str", "postgres://u:p@db/x")
    (True, True)
    >>> is_credential("key", "prod/network.tfstate"), is_credential("address", "https://state/x")
    (False, False)
    """
    if not isinstance(value, str) or not value:
        return False
    has_secret_name = name not in _NO_CREDENTIALS and CREDENTIAL.search(name) is not None
    return has_secret_name or _IN_TEXT.search(value) is not None
