"""
A plan that the engine calls changed is never "no changes": what its event stream does not explain
is read from the plan file. Held against what OpenTofu 1.12.6 said (tests/recordings/opentofu).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.events.events import (
    ChangeSummary,
    Message,
    OutputChange,
    PlannedChange,
)
from orchestrator.domain.events.journal import Journal, adds_up
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.engine.messages import parse_line
from orchestrator.engine.plan_content import parse_plan

RECORDINGS = Path(__file__).parents[1] / "recordings/opentofu"
ACTIONS: dict[str, list[str]] = {
    "create": ["create"],
    "update": ["update"],
    "delete": ["delete"],
    "replace": ["delete", "create"],
    "forget": ["forget"],
    "frobnicate": ["frobnicate"],
}


def calls(case: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDINGS / f"{case}.json").read_text())["calls"]
    return found


def recorded(case: str, *words: str) -> dict[str, Any]:
    """
    The last call of a recording whose arguments hold these words.
    """
    return [call for call in calls(case) if set(words) <= set(call["argv"])][-1]


def messages(call: dict[str, Any]) -> list[Message]:
    return [m for line in call["stdout"].splitlines() for m in parse_line(line).messages]


def actions(content: PlanContent) -> list[tuple[str, str]]:
    return [(item.address, item.action) for item in content.actions]


def test_a_plan_tells_what_it_imports_and_which_object_is_deposed() -> None:
    """
    Two objects at one address, and one that is taken in and changed.
    """
    gone: dict[str, Any] = {"address": "s.a", "change": {"actions": ["delete"]}}
    taken = {"actions": ["update"], "importing": {"id": "i-1"}}

    content = parse_plan(
        json.dumps(
            {
                "resource_changes": [
                    gone,
                    {**gone, "deposed": "d1"},
                    {"address": "s.b", "change": taken},
                    {"address": "s.c", "change": {**taken, "actions": ["no-op"]}},
                ]
            }
        )
    )

    assert [(item.name, item.action, item.importing) for item in content.actions] == [
        ("s.a", "delete", None),
        ("s.a (deposed d1)", "delete", None),
        ("s.b", "update", "i-1"),
        ("s.c", "import", "i-1"),
    ]


def test_an_object_that_is_switched_off_is_deleted() -> None:
    """
    `lifecycle { enabled = false }`: planned and told as a delete, with nothing left to explain.
    """
    journal = Journal.of(messages(recorded("enabled", "-var=on=false")), whole=True)

    assert [(item.address, item.action) for item in journal.changes] == [
        ("fakecloud_server.a", "delete")
    ]
    assert ("fakecloud_server.a", "delete") in journal.completed


def test_a_replacement_that_forgets_is_read_from_the_plan_file() -> None:
    """
    The stream calls it a no-op, the exit code a change: the plan file tells of both its parts.
    """
    plan = recorded("destroy-false-replaced", "plan", "-detailed-exitcode")
    shown = recorded("destroy-false-replaced", "show")

    assert plan["exit"] == 2
    assert not Journal.of(messages(plan), whole=True).changes
    assert not adds_up(messages(plan), changed=True)
    assert actions(parse_plan(shown["stdout"])) == [
        ("fakecloud_server.keep", "forget"),
        ("fakecloud_server.keep", "create"),
    ]


@pytest.mark.parametrize(
    ("case", "words", "expected"),
    [
        ("removed-forget", ("plan",), [("fakecloud_server.keep", "forget")]),
        (
            "destroy-false",
            ("plan", "-destroy"),
            [("fakecloud_server.keep", "forget"), ("fakecloud_server.go", "delete")],
        ),
    ],
)
def test_a_stream_that_adds_up_is_believed(
    case: str, words: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    """
    Forgetting is planned like any other action; then the plan file is not asked.
    """
    said = messages(recorded(case, *words))

    assert adds_up(said, changed=True)
    planned = Journal.of(said, whole=True).changes
    assert [(item.address, item.action) for item in planned] == expected


def stream(chosen: tuple[str, ...], *, outputs: bool) -> list[Message]:
    lines = [
        {
            "@message": "x",
            "type": "planned_change",
            "change": {"action": word, "resource": {"addr": f"s.{word}", "resource_type": "s"}},
        }
        for word in chosen
    ]
    said = [m for line in lines for m in parse_line(json.dumps(line)).messages]
    count = {word: chosen.count(word) for word in ACTIONS}
    summary = ChangeSummary(
        "plan",
        count["create"] + count["replace"],
        count["update"],
        count["delete"] + count["replace"],
        count["forget"],
        count["frobnicate"],
    )
    return [*said, summary, *([OutputChange("o", "update")] if outputs else [])]


@pytest.mark.parametrize(
    "importing", [{"id": "i-1"}, {"identity": {"arn": "x"}}, None], ids=["id", "identity", "untold"]
)
def test_an_import_that_the_stream_does_not_tell_is_read_from_the_plan_file(
    importing: dict[str, Any] | None,
) -> None:
    """
    What is taken into the state was there before, whatever else is done with it.
    """
    change = {"action": "update", "resource": {"addr": "s.a", "resource_type": "s"}}
    summary = {"operation": "plan", "add": 0, "change": 1, "remove": 0, "import": 1}
    lines = [
        {"@message": "x", "type": "planned_change", "change": change | {"importing": importing}},
        {"@message": "x", "type": "change_summary", "changes": summary},
    ]
    said = [m for line in lines for m in parse_line(json.dumps(line)).messages]

    assert adds_up(said, changed=True) == (importing == {"id": "i-1"})


def test_a_plan_without_a_count_of_its_changes_is_read_from_its_file() -> None:
    """
    There is nothing that the stream could agree with, changed or not.
    """
    said = [m for m in stream(("create",), outputs=False) if isinstance(m, PlannedChange)]

    assert not adds_up(said, changed=True)
    assert not adds_up([], changed=False)


def test_no_unknown_action_hides_the_other_outputs() -> None:
    """
    A newer engine's word for one of them is a change like any other.
    """
    actions = {"a": {"action": "frobnicate"}, "b": {"action": "update"}, "c": {"action": "noop"}}
    line = json.dumps({"@message": "x", "type": "outputs", "outputs": actions})

    assert Journal.of(parse_line(line).messages, whole=True).outputs == ("a", "b")


def document(chosen: tuple[str, ...], *, outputs: bool) -> str:
    changes = [
        {"address": f"s.{word}", "mode": "managed", "change": {"actions": ACTIONS[word]}}
        for word in chosen
    ]
    changed = {"o": {"actions": ["update"]}} if outputs else {}
    return json.dumps({"resource_changes": changes, "output_changes": changed})


SUBSETS = [
    (chosen, outputs)
    for size in range(len(ACTIONS) + 1)
    for chosen in itertools.combinations(ACTIONS, size)
    for outputs in (False, True)
]


@pytest.mark.parametrize("hidden", ["nothing", "one", "all"])
def test_no_subset_of_actions_is_lost(hidden: str) -> None:
    """
    For every subset of actions, known or not, alone or with outputs, and whatever part of it the
    stream does not tell: stream or plan file show each of them as a change.
    """
    for chosen, outputs in SUBSETS:
        told = {"nothing": chosen, "one": chosen[1:], "all": ()}[hidden]
        changed = bool(chosen or outputs)
        said = [
            *(m for m in stream(told, outputs=outputs) if not isinstance(m, ChangeSummary)),
            *(m for m in stream(chosen, outputs=outputs) if isinstance(m, ChangeSummary)),
        ]
        journal = Journal.of(said, whole=True)
        if not adds_up(said, changed=changed):
            journal = journal.with_content(parse_plan(document(chosen, outputs=outputs)))
        assert {item.address for item in journal.changes} == {f"s.{word}" for word in chosen}
        assert bool(journal.outputs) == outputs


def test_an_unknown_action_keeps_the_engines_word() -> None:
    """
    It is shown as the engine calls it, and counts as a change.
    """
    content = parse_plan(document(("frobnicate",), outputs=False))
    action: Action = "unknown"

    assert content.actions == (
        PlannedAction(address="s.frobnicate", action=action, engine_word="frobnicate"),
    )
    (said,) = (m for m in stream(("frobnicate",), outputs=False) if isinstance(m, PlannedChange))
    assert (said.action, said.engine_word) == ("unknown", "frobnicate")
    assert not adds_up([said], changed=True)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"resource_changes": [{}]}', '{"resource_changes": 1}']
)
def test_what_is_no_plan_is_not_read_as_one_without_changes(text: str) -> None:
    """
    Unreadable is not empty.
    """
    with pytest.raises(ValueError, match=r".+"):
        parse_plan(text)


def test_the_region_of_a_provider_is_told_by_what_its_module_is_given() -> None:
    """
    A literal, or a variable through any number of module calls; else nobody knows, and a
    configuration that sets none has none.
    """

    def by(*references: str) -> dict[str, Any]:
        return {"references": [*references]}

    inner = {"variables": {"region": {}, "zone": {"default": "eu-3"}}}
    outer = {
        "variables": {"place": {}},
        "module_calls": {
            "in": {"module": inner, "expressions": {"region": by("var.place.r", "var.place")}}
        },
    }
    given = {
        "aws": {"constant_value": "eu-1"},
        "by_variable": by("var.v0"),
        "module.out:from_root": by("var.place.r", "var.place"),
        "module.out.module.in:through": by("var.region"),
        "module.out.module.in:by_default": by("var.zone"),
        "module.out:local": by("local.region"),
        "module.out:two": by("var.place", "var.other"),
        "module.out:made": by("module.in.region", "module.in"),
    }
    blocks = {name: {"expressions": {"region": region}} for name, region in given.items()}
    document = {
        "resource_changes": [],
        "variables": {"v0": {"value": "eu-2"}, "v1": {"value": {"r": "us-1"}}},
        "configuration": {
            "provider_config": {**blocks, "none": {"expressions": {}}},
            "root_module": {
                "module_calls": {"out": {"module": outer, "expressions": {"place": by("var.v1")}}}
            },
        },
    }

    assert parse_plan(json.dumps(document)).regions == {
        "aws": "eu-1",
        "by_variable": "eu-2",
        "module.out:from_root": "us-1",
        "module.out.module.in:through": "us-1",
        "module.out.module.in:by_default": "eu-3",
        "module.out:local": None,
        "module.out:two": None,
        "module.out:made": None,
    }
