"""
A plan is covered by what was approved if it does the same or less, with values that were known as
they were known.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.plan.approval import Approval, ApprovedStep, approved_objects, not_covered
from orchestrator.domain.plan.changes import PlannedObject
from orchestrator.domain.record.objects import Action

KEY = b"k" * 32


def planned(
    action: Action = "update", after: Any = None, unknown: Any = False, address: str = "x.y"
) -> PlannedObject:
    return PlannedObject(address, action, None, after, unknown)


def differences(approved: list[PlannedObject], actual: list[PlannedObject]) -> list[str]:
    step = ApprovedStep(step="s", status="planned", objects=approved_objects(approved, KEY))
    return not_covered(step, actual, KEY)


SHOWN = planned(after={"name": "a", "tags": {"k": "v"}}, unknown={"id": True, "disks": True})


def test_what_is_unknown_in_a_list_may_be_anything_and_the_rest_of_it_may_not() -> None:
    """
    Each item is compared by itself.
    """
    approved = [planned(after={"disks": ["a", None]}, unknown={"disks": [False, True]})]

    assert differences(approved, [planned(after={"disks": ["a", "b"]})]) == []
    assert differences(approved, [planned(after={"disks": ["c", "b"]})]) == [
        "x.y: disks[0] is not what was approved"
    ]


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        ([SHOWN], []),
        ([], []),
        ([planned(after={"name": "a", "tags": {"k": "v"}, "id": "i-1", "disks": [{"s": 1}]})], []),
        (
            [planned(after={"name": "b", "tags": {"k": "v"}})],
            ["x.y: name is not what was approved"],
        ),
        (
            [planned(after={"name": "a", "tags": {"k": "v", "new": "w"}})],
            ["x.y: tags.new is not what was approved"],
        ),
        (
            [planned(after={"name": "a", "tags": {"k": "v"}, "extra": 1})],
            ["x.y: extra is not what was approved"],
        ),
        ([planned(after={"name": "a"})], ["x.y: values that were approved are gone"]),
        (
            [planned(after={"tags": {"k": "v"}}, unknown={"name": True})],
            ["x.y: name is not what was approved"],
        ),
        ([planned("replace", SHOWN.after)], ["x.y: replace was not approved (approved: update)"]),
        ([SHOWN, planned("delete", address="a.b")], ["a.b: delete was not approved"]),
    ],
)
def test_same_or_less_is_covered_and_nothing_else(
    actual: list[PlannedObject], said: list[str]
) -> None:
    """
    The unknown may be known by now, an action may be gone; anything else is named.
    """
    assert differences([SHOWN], actual) == said


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(shown=VALUES, actual=VALUES)
def test_only_equal_values_are_covered(shown: Any, actual: Any) -> None:
    """
    For all values of an attribute that was known: covered exactly if it is the same.
    """
    covered = not differences([planned(after={"v": shown})], [planned(after={"v": actual})])
    assert covered == (repr(shown) == repr(actual) or _same(shown, actual))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(actual=VALUES)
def test_what_was_unknown_may_be_anything(actual: Any) -> None:
    """
    It was shown as such.
    """
    shown = planned(unknown={"v": True}, after={})
    assert differences([shown], [planned(after={"v": actual})]) == []


@given(secret=st.text("abcdef0123456789", min_size=8))
def test_no_value_and_no_key_of_a_map_is_in_an_approval(secret: str) -> None:
    """
    Law: secrets travel with values.
    An approval leaves the machine.
    """
    objects = approved_objects([planned(after={"m": {f"key-{secret}": f"val-{secret}"}})], KEY)
    text = approval(objects=objects).to_json()
    assert f"key-{secret}" not in text
    assert f"val-{secret}" not in text


def approval(**fields: Any) -> Approval:
    return Approval(
        project="p",
        blueprint="b",
        environment="e",
        command="apply",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=(ApprovedStep(step="s", status="planned", **fields),),
    ).signed(KEY)


def test_an_approval_that_was_touched_is_not_signed() -> None:
    """
    By nobody without the key, whatever of it was changed; reading it back changes nothing.
    """
    made = approval(lineage="l")
    read = Approval.model_validate_json(made.to_json())
    assert read.is_signed(KEY)
    assert not read.is_signed(b"o" * 32)
    for other in (
        read.model_copy(update={"environment": "prod"}),
        read.model_copy(update={"steps": ()}),
        read.model_copy(update={"signature": ""}),
        read.model_copy(update={"created_at": datetime(2027, 1, 1, tzinfo=UTC)}),
    ):
        assert not other.is_signed(KEY)
