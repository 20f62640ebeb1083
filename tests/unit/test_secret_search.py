"""
Law: secrets travel with values. A secret of which only the digest is known is found again.
"""

from __future__ import annotations

import base64
import json
import time
from functools import partial
from urllib.parse import quote

import pytest

from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.secrets import find_secrets
from orchestrator.domain.text import Json

KEYED = partial(digest, key=b"k" * 32)


@pytest.mark.parametrize("secret", ["hunter2", 's3c&<r"\\x/+?=%', "a b  c", "first\nsecond: x\n"])
@pytest.mark.parametrize(
    "hide",
    [
        lambda s: s,
        lambda s: {"deep": ["other", {"x": s}]},
        lambda s: {s: "as a key"},
        lambda s: json.dumps({"deep": [s]}),
        lambda s: json.dumps(json.dumps([s])),
        lambda s: f"postgres://user:{s}@host/db",
        lambda s: f"pre{s}post",
        lambda s: base64.b64encode(f"user:{s}".encode()).decode(),
        lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
        lambda s: f"x={quote(s, safe='')}",
    ],
)
def test_a_secret_is_found_by_its_digest_within_what_was_made_of_it(
    secret: str, hide: partial[Json]
) -> None:
    """
    Whole, in structures, in JSON within texts, in longer texts, in base64 and percent signs.
    """
    wanted = KEYED(secret)

    assert find_secrets([["nothing", 12], hide(secret)], {wanted}, KEYED) == {wanted: secret}


@pytest.mark.parametrize("secret", [91827364, 1.5, {"user": "u", "password": "p4ss"}, ["a", "b"]])
def test_numbers_and_structures_are_found_as_well(secret: Json) -> None:
    wanted = KEYED(secret)

    assert find_secrets([{"x": secret}], {wanted}, KEYED) == {wanted: secret}


def test_a_search_ends_whatever_there_is_to_search() -> None:
    """
    Large texts are searched as far as the budget goes, smaller ones first.
    """
    wanted, absent = KEYED("hunter2"), KEYED("not there")
    began = time.process_time()

    found = find_secrets(["x" * 1_000_000, "ab:hunter2:cd", "y-" * 50_000], {wanted, absent}, KEYED)

    assert found == {wanted: "hunter2"}
    assert time.process_time() - began < 20
