"""
``resolved.inputs.yml`` read back.
"""

from __future__ import annotations

from typing import NoReturn

import pytest

from orchestrator.app.steps.planned_step import changed_inputs
from orchestrator.domain.blueprint.inputs import StepInputs, read_recorded_inputs, to_yaml
from orchestrator.domain.blueprint.references import Unresolvable
from orchestrator.domain.text import Json, ValuePath
from orchestrator.errors import Invalid

KEY = b"k" * 32
GIVEN = StepInputs(
    values={"name": "a", "db": {"user": "u", "password": "s3cret"}, "list": [1, "t0ken"]},
    secrets={("db", "password"): "inputs.db_password", ("list", 1): "env.TOKEN"},
)
TEXT = to_yaml(GIVEN.with_stand_ins(KEY), header="x")


def today(path: ValuePath, origin: str) -> Json:
    return {"inputs.db_password": "s3cret", "env.TOKEN": "t0ken"}[origin]


def test_what_was_written_comes_back_with_the_secrets_of_today() -> None:
    """
    The values are those that were recorded; secrets, which are never recorded, are fetched anew.
    """
    found = read_recorded_inputs(TEXT, today)
    assert (found.values, found.secrets) == (GIVEN.values, GIVEN.secrets)


def test_the_document_holds_no_secret() -> None:
    """
    Law: secrets travel with values.
    Only where a secret comes from, and its keyed digest.
    """
    assert "s3cret" not in TEXT
    assert "t0ken" not in TEXT


def test_the_same_secrets_have_not_changed() -> None:
    """
    Equal values have equal keyed digests.
    """
    found = read_recorded_inputs(TEXT, today)
    assert found.other_secrets(found.values, KEY) == {}


def test_a_changed_secret_is_told_by_its_origin() -> None:
    """
    Where the digest differs it is said.
    """
    found = read_recorded_inputs(TEXT, lambda path, origin: "other" if path[0] == "db" else "t0ken")
    changed = found.other_secrets(found.values, KEY)
    assert list(changed.values()) == ["inputs.db_password"]


def test_what_differs_from_the_applied_inputs_is_shown_without_secrets() -> None:
    """
    Law: secrets travel with values.
    That a secret within a value has changed is said, and neither of the two.
    """
    applied = read_recorded_inputs(TEXT, today)
    now = StepInputs(
        values={"name": "b", "db": {"user": "u", "password": "0ther"}, "list": [2, "t0ken"]},
        secrets=GIVEN.secrets,
    )

    changes = {item.name: item for item in changed_inputs(applied, now, KEY)}

    assert changed_inputs(applied, GIVEN, KEY) == ()
    assert {name: item.sensitive for name, item in changes.items()} == {
        "name": False,
        "db": True,
        "list": False,
    }
    assert (changes["name"].before, changes["name"].after) == ("a", "b")
    assert not any(secret in str(changes) for secret in ("s3cret", "0ther", "t0ken"))


def test_secrets_that_cannot_be_had_are_all_named() -> None:
    """
    All problems at once, each with the origin and the input.
    """

    def gone(path: ValuePath, origin: str) -> NoReturn:
        raise Unresolvable("it is not set")

    with pytest.raises(Invalid) as caught:
        read_recorded_inputs(TEXT, gone)
    password, token = map(str, caught.value.problems)
    assert "the secret inputs.db_password of input 'db' cannot be had" in password
    assert "the secret env.TOKEN of input 'list' cannot be had" in token


@pytest.mark.parametrize(
    "text", ["[", "a: b: c", "\x00", "", "# cut", "ab", "- a", "a: 2026-02-31", b"a: \xff"]
)
def test_damaged_documents_are_an_error(text: str | bytes) -> None:
    """
    What cannot be read is never taken for no inputs.
    """
    with pytest.raises(Invalid, match="cannot be read"):
        read_recorded_inputs(text, today)
