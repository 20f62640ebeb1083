"""
What a saved plan holds, from ``show -json``.

The event stream of a plan is a summary for people: OpenTofu 1.12 calls a replacement that forgets
the old object a no-op there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.domain.events.engine_messages import PlanContent
from orchestrator.domain.record.record import Action, PlannedAction

_ACTIONS: dict[str, Action] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "forget": "forget",
}
_NO_ACTION = ("no-op", "read")


def parse_plan(text: str) -> PlanContent:
    """
    The content of a plan; ValueError where the text is no plan.
    """
    try:
        data = json.loads(text[text.index("{") :])
        actions: list[PlannedAction] = []
        moved: dict[str, str] = {}
        for change in data.get("resource_changes") or ():
            if change.get("mode", "managed") != "managed":
                continue
            address = change["address"]
            found = _actions(address, change["change"])
            deposed = change.get("deposed") or None
            actions += [item.model_copy(update={"deposed": deposed}) for item in found]
            if change.get("previous_address") not in (None, address):
                moved[address] = change["previous_address"]
        known = {item.address for item in actions}
        actions += [
            PlannedAction(address=new, action="noop", previous_address=old)
            for new, old in sorted(moved.items())
            if new not in known
        ]
        outputs = tuple(
            name
            for name, change in (data.get("output_changes") or {}).items()
            if _words(change) != ("no-op",)
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a plan: {exc!r}") from exc
    return PlanContent(tuple(actions), frozenset(moved), outputs)


def _words(change: dict[str, Any]) -> tuple[str, ...]:
    words: Sequence[str] = change["actions"]
    return tuple(words)


def _actions(address: str, change: dict[str, Any]) -> list[PlannedAction]:
    words = _words(change)
    importing = (change.get("importing") or {}).get("id")
    if sorted(words) == ["create", "delete"]:
        return [PlannedAction(address=address, action="replace", importing=importing)]
    found = [_action(address, word) for word in words if word not in _NO_ACTION]
    if change.get("importing") and not found:
        return [PlannedAction(address=address, action="import", importing=importing)]
    return [item.model_copy(update={"importing": importing}) for item in found]


def _action(address: str, word: str) -> PlannedAction:
    if word in _ACTIONS:
        return PlannedAction(address=address, action=_ACTIONS[word])
    return PlannedAction(address=address, action="unknown", engine_word=word)
