"""
What a policy forbids of a plan, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.domain.blueprint.blueprint import Policy
from orchestrator.domain.plan.changes import PlannedObject
from orchestrator.domain.plan.violations import Rule, violations_of_plan
from orchestrator.domain.record.objects import Action

EXISTING: tuple[Action, ...] = ("update", "delete", "replace", "forget", "unknown")


def planned(
    action: Action,
    address: str = "aws_db.main",
    after: Any = None,
    unknown: Any = False,
    previous: str | None = None,
) -> PlannedObject:
    return PlannedObject(address, action, None, after, unknown, previous)


def broken(
    policy: Policy,
    *objects: PlannedObject,
    step: str = "db",
    destroyed: int = 0,
    **regions: str | None,
) -> list[str]:
    found = violations_of_plan(policy, step, objects, regions=regions, destroyed=destroyed)
    return [item.rule for item in found]


@pytest.mark.parametrize("action", get_args(Action))
def test_an_empty_policy_forbids_nothing(action: Action) -> None:
    """
    Whatever is planned.
    """
    assert broken(Policy(), planned(action, after={"tags": {}, "region": "x"}), aws="x") == []
    assert Policy().empty


@pytest.mark.parametrize("action", get_args(Action))
@pytest.mark.parametrize(
    ("pattern", "address", "meant"),
    [
        ("aws_db", 'module.a["x"].aws_db.main[0]', True),
        ("aws_db.main", "aws_db.main[0]", True),
        ('aws_db.main["a"]', 'aws_db.main["a"]', True),
        ('aws_db.main["a"]', 'aws_db.main["b"]', False),
        ("module.data.*", "module.data.aws_db.main", True),
        ("aws_*", "aws_db.main", True),
        ("db", "aws_db.main", False),
    ],
)
def test_what_must_not_be_lost_is_not_destroyed_replaced_or_forgotten(
    action: Action, pattern: str, address: str, meant: bool
) -> None:
    """
    By type, by resource, by instance, by pattern; also where the plan moves it first.
    """
    lost = action in ("delete", "replace", "forget")
    expected = ["no_destroy"] if lost and meant else []
    assert broken(Policy(no_destroy=(pattern,)), planned(action, address)) == expected
    moved = planned(action, "aws_cache.other", previous=address)
    assert broken(Policy(no_destroy=(pattern,)), moved) == expected


@pytest.mark.parametrize("action", get_args(Action))
def test_only_additions(action: Action) -> None:
    """
    What exists stays as it is.
    """
    expected = ["additive_only"] if action in EXISTING else []
    assert broken(Policy(additive_only=True), planned(action)) == expected


def test_a_protected_step_loses_nothing() -> None:
    """
    It may grow and change.
    """
    policy = Policy(protected_steps=("db*",))
    assert broken(policy, planned("delete"), step="db-main") == ["protected_steps"]
    assert broken(policy, planned("update"), step="db-main") == []
    assert broken(policy, planned("delete"), step="web") == []


def test_destroys_are_counted_over_the_run() -> None:
    """
    The step that goes over the limit is named, once.
    """
    policy = Policy(max_destroys=2)
    two = (planned("delete"), planned("replace"))
    assert broken(policy, *two) == []
    assert broken(policy, planned("delete"), destroyed=2) == ["max_destroys"]
    assert broken(policy, planned("update"), destroyed=2) == []
    assert broken(policy, planned("delete"), destroyed=3) == []


@pytest.mark.parametrize(
    ("after", "unknown", "expected"),
    [
        ({"tags": {"owner": "a", "cost": "1"}}, False, []),
        ({"labels": {"owner": "a", "cost": "1"}}, False, []),
        ({"tags": {"owner": "a"}}, False, ["required_tags"]),
        ({"tags": None}, False, ["required_tags"]),
        ({"tags": None, "tags_all": {"owner": "a", "cost": "1"}}, False, []),
        ({"tags": {"owner": "a"}}, {"tags": {"cost": True}}, []),
        ({}, {"tags": True}, ["required_tags"]),
        ({"name": "x"}, False, []),
        ({"tags": ["owner", "cost"]}, False, []),
        ({"tags": ["owner"]}, False, ["required_tags"]),
        ({"tag": [{"key": "owner", "value": "a"}, {"key": "cost"}]}, False, []),
        ({"tag": [{"key": "owner", "value": "a"}]}, False, ["required_tags"]),
        ({"tag": "v1"}, False, []),
    ],
)
def test_tags_are_required_of_what_can_have_some(
    after: Any, unknown: Any, expected: list[str]
) -> None:
    """
    A value that only the apply makes known is a tag; tags of which nothing is known are none.
    """
    policy = Policy(required_tags=("owner", "cost"))
    assert broken(policy, planned("create", after=after, unknown=unknown)) == expected
    assert broken(policy, planned("delete", after=after, unknown=unknown)) == []


@pytest.mark.parametrize(
    ("after", "unknown", "message"),
    [
        ({}, {"tags": True}, "has tags that only the apply makes known, and needs owner"),
        ({"tags": {"x": "1"}}, False, "has no tag owner"),
        (
            {"tags": {"x": "1"}},
            {"tags_all": True},
            "has tags that only the apply makes known, and needs owner",
        ),
    ],
)
def test_unknown_tags_are_told_from_missing_ones(after: Any, unknown: Any, message: str) -> None:
    """
    Of the former a plan after the next apply may tell more.
    """
    item = planned("create", after=after, unknown=unknown)
    policy = Policy(required_tags=("owner",))
    (found,) = violations_of_plan(policy, "db", (item,), regions={}, destroyed=0)

    assert found.message == message


def test_regions_of_objects_and_of_providers() -> None:
    """
    Of both, and of providers only where something changes.
    """
    policy = Policy(regions=("eu-west-1",))
    assert broken(policy, planned("create", after={"region": "us-east-1"})) == ["regions"]
    assert broken(policy, planned("create", after={"location": "eu-west-1"})) == []
    assert broken(policy, planned("create"), aws="us-east-1") == ["regions"]
    assert broken(policy, planned("create"), aws=None) == ["regions"], "nobody can tell"
    assert broken(policy, aws="us-east-1") == []


def test_every_rule_is_tried() -> None:
    """
    A rule that is added is tried here as well, but for those in Rego, which a program judges.
    """
    text = Path(__file__).read_text(encoding="utf-8") + '"rego"'
    assert [rule for rule in get_args(Rule) if f'"{rule}"' not in text] == []
