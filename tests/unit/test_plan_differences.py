"""
What differs between two values of an object, down to the single value, and nothing of a secret.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.blueprint.blueprint import DriftRule
from orchestrator.domain.plan.changes import AttributeChange, ResourceChange, remaining_drift
from orchestrator.domain.plan.differences import Marks, attribute_changes, secret_values


def changes(
    before: Any,
    after: Any,
    *,
    sensitive: Any = False,
    unknown: Any = False,
    forces: tuple[list[str | int], ...] = (),
) -> list[AttributeChange]:
    found = attribute_changes(
        before,
        after,
        before_marks=Marks(sensitive),
        after_marks=Marks(sensitive, unknown),
        replace_paths=forces,
    )
    return list(found)


def lines(found: list[AttributeChange]) -> list[tuple[str, str, Any, Any]]:
    return [(item.path, item.change, item.before, item.after) for item in found]


RULES = [{"port": 80, "cidr": "a"}, {"port": 443, "cidr": "b"}]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, [("a", "changed", 1, True)]),
        ({"t": {"x y": 1}}, {"t": {"x y": 2}}, [('t["x y"]', "changed", 1, 2)]),
        ({"t": "a"}, {"t": ""}, [("t", "changed", "a", "")]),
        ({"t": ""}, {"t": "a"}, [("t", "changed", "", "a")]),
        ({"t": None}, {"t": {"x": 1}}, [("t.x", "added", None, 1)]),
        ({"t": {"x": 1}}, {"t": None}, [("t.x", "removed", 1, None)]),
        ({"t": {"x": 1}}, {"t": {}}, [("t.x", "removed", 1, None)]),
        ({"l": ["a"]}, {"l": ["b"]}, [("l[0]", "changed", "a", "b")]),
        ({"l": ["a", "b"]}, {"l": ["x", "a", "b"]}, [("l[0]", "added", None, "x")]),
        ({"l": ["a", "b"]}, {"l": ["b", "a"]}, [("l", "reordered", ["a", "b"], ["b", "a"])]),
        (
            {"rule": RULES},
            {"rule": [RULES[1], {"port": 81, "cidr": "a"}]},
            [("rule[1].port", "changed", 80, 81)],
        ),
        ({"rule": RULES}, {"rule": RULES[1:]}, [("rule[0]", "removed", RULES[0], None)]),
    ],
)
def test_the_least_that_differs_is_told(
    before: Any, after: Any, expected: list[tuple[str, str, Any, Any]]
) -> None:
    """
    A value within a structure, an element of a list or set, a block that came or went.
    """
    assert lines(changes(before, after)) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, []), ([], None), ("", None), ({}, []), ('{"a":1,"b":[2]}', '{"b": [2], "a": 1}')],
)
def test_what_only_differs_in_notation_is_marked(before: Any, after: Any) -> None:
    """
    Nothing is nothing, and JSON is JSON: a reader need not see it.
    """
    found = changes({"a": before}, {"a": after})
    assert all(item.equivalent for item in found)
    assert [item.path for item in found] == ([] if before is after else ["a"])


@pytest.mark.parametrize("after", ["[1]", '{"b": [2], "a": 2}', "text", 0, False])
def test_what_is_another_value_is_not_called_notation(after: Any) -> None:
    """
    Only the same JSON is equivalent to JSON; 0 and false are values.
    """
    (found,) = changes({"a": '{"a":1,"b":[2]}'}, {"a": after})
    assert not found.equivalent
    (found,) = changes({"a": None}, {"a": after})
    assert not found.equivalent


def test_what_forces_a_replacement_is_never_folded_away() -> None:
    """
    Whatever it looks like: it is the cause.
    """
    (found,) = changes({"a": None}, {"a": []}, forces=(["a"],))
    assert found.forces_replacement
    assert not found.equivalent
    inner = changes({"a": [{"b": 1, "c": 1}]}, {"a": [{"b": 2, "c": 1}]}, forces=(["a", 0, "b"],))
    assert [(item.path, item.forces_replacement) for item in inner] == [("a[0].b", True)]


def test_a_secret_is_null_and_a_part_of_a_structure_is_replaced() -> None:
    """
    Law: secrets travel with values.
    That it changes is told, what it is never.
    """
    found = changes(
        {"key": "one", "new": None, "same": "s"},
        {
            "key": "two",
            "new": {"user": "u", "password": "hunter22"},
            "same": "s",
            "list": [{"password": "hunter23"}],
        },
        sensitive={
            "key": True,
            "new": {"password": True},
            "same": True,
            "list": [{"password": True}],
        },
    )
    assert lines(found) == [
        ("key", "changed", None, None),
        ("new.user", "added", None, "u"),
        ("new.password", "added", None, None),
        ("list", "added", None, [{"password": "(sensitive)"}]),
    ]
    assert [item.sensitive for item in found] == [True, False, True, False]


def test_what_the_apply_makes_known_is_unknown() -> None:
    """
    Alone, within structures, and where the value after does not even have the key.
    """
    found = changes(
        {"id": "i-1", "disk": [{"size": 1, "volume": "v"}]},
        {"disk": [{"size": 1}]},
        unknown={"id": True, "disk": [{"volume": True}]},
    )
    assert [(item.path, item.before, item.known) for item in found] == [
        ("id", "i-1", False),
        ("disk[0].volume", "v", False),
    ]
    (made,) = changes(None, {"disk": None}, unknown={"disk": [{"volume": True}]})
    assert made.after == [{"volume": "(known after apply)"}]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(before=VALUES, after=VALUES)
def test_a_difference_is_told_where_there_is_one_and_only_there(before: Any, after: Any) -> None:
    """
    For all values: no change means equal, but for keys that are null.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return (type(value).__name__, value)

    found = changes({"v": before}, {"v": after})
    assert bool(found) == (plain({"v": before}) != plain({"v": after}))


@given(value=VALUES, other=VALUES)
def test_no_part_of_a_sensitive_value_is_ever_told(value: Any, other: Any) -> None:
    """
    Law: secrets travel with values.
    """
    for item in changes({"v": value}, {"v": other}, sensitive={"v": True}):
        assert (item.before, item.after, item.sensitive) == (None, None, True)


def test_the_secret_values_are_those_that_the_engine_marks() -> None:
    """
    Law: secrets travel with values.
    Whole, or where the mark says within the value; false marks nothing.
    """
    value = {"user": "u", "keys": ["open", "closed"]}

    assert list(secret_values(value, True)) == [value]
    assert list(secret_values(value, {"user": False, "keys": [False, True]})) == ["closed"]
    assert list(secret_values(value, False)) == []


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (None, ["a_host.x/size", "a_host.x/tags.team", "a_host.x/tags[0]", "a_host.gone/"]),
        (DriftRule("a_host.x", "scaled by hand"), ["a_host.gone/"]),
        (
            DriftRule("a_host.x", "tagged elsewhere", attribute="tags"),
            ["a_host.x/size", "a_host.gone/"],
        ),
        (
            DriftRule("a_host", "a type", attribute="size"),
            ["a_host.x/tags.team", "a_host.x/tags[0]", "a_host.gone/"],
        ),
        (
            DriftRule("a_host.gone", "it may go"),
            ["a_host.x/size", "a_host.x/tags.team", "a_host.x/tags[0]"],
        ),
        (DriftRule("*", "to the last day", until="2030-01-02"), []),
        (
            DriftRule("*", "expired", until="2030-01-01"),
            ["a_host.x/size", "a_host.x/tags.team", "a_host.x/tags[0]", "a_host.gone/"],
        ),
    ],
)
def test_drift_remains_but_for_what_a_valid_rule_accepts(
    rule: DriftRule | None, left: list[str]
) -> None:
    """
    By object, and by attribute with all below it; a difference in notation is no drift at all.
    """
    paths = ("size", "tags.team", "tags[0]")
    changed = ResourceChange(
        address="a_host.x",
        type="a_host",
        name="x",
        action="update",
        attributes=(
            *(AttributeChange(path=path) for path in paths),
            AttributeChange(path="notation", equivalent=True),
        ),
    )
    gone = ResourceChange(address="a_host.gone", type="a_host", name="gone", action="delete")

    remaining = remaining_drift([changed, gone], [rule] if rule else [], date(2030, 1, 2))

    assert left == [
        f"{item.address}/{path}"
        for item in remaining
        for path in ([a.path for a in item.attributes] or [""])
    ]
