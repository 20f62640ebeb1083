"""
The content of a saved plan, from ``show -json``: the one reader of that format.

The event stream of a plan is a summary for people: OpenTofu 1.12 calls a replacement that forgets
the old object a no-op there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.domain.plan.changes import (
    OUTPUT,
    CheckResult,
    OutputValueChange,
    PlanChanges,
    PlanContent,
    PlannedObject,
    ResourceChange,
)
from orchestrator.domain.plan.differences import (
    Marks,
    attribute_changes,
    attribute_path,
    secret_values,
    shown_value,
)
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.text import Json

_ACTIONS: Mapping[str, Action] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "forget": "forget",
    "read": "read",
}
_CHECKS = ("pass", "fail", "error")


def parse_plan(text: str) -> PlanContent:
    """
    Return the content of a plan. Raises ValueError if the text is not a plan.
    """
    try:
        data = json.loads(text[text.index("{") :])
        changes = [
            (item, resource["change"])
            for resource in data.get("resource_changes") or ()
            for item in _resources(resource)
        ]
        resources = tuple(item for item, _ in changes)
        outputs = [
            (_output(name, change), change)
            for name, change in (data.get("output_changes") or {}).items()
            if tuple(change["actions"]) != ("no-op",)
        ]
        drift = tuple(
            item
            for change in data.get("resource_drift") or ()
            for item in _resources(change)
            if item.action in ("update", "delete")
        )
        return PlanContent(
            actions=tuple(
                PlannedAction(
                    address=item.address,
                    action=item.action,
                    previous_address=item.previous_address,
                    engine_word=item.engine_word,
                    importing=item.importing,
                    deposed=item.deposed or None,
                )
                for item in resources
                if item.action != "read"
            ),
            moved=frozenset(r.address for r in resources if r.previous_address is not None),
            outputs=tuple(output.name for output, _ in outputs),
            changes=PlanChanges(
                resources=resources,
                drift=drift,
                outputs_changed=tuple(output for output, _ in outputs),
                checks=tuple(_checks(data.get("checks") or [])),
            ),
            secrets=tuple(_secrets(data)),
            objects=tuple(_planned_objects(changes, outputs)),
            regions=dict(_regions(data)),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a plan: {exc!r}") from exc


def _resources(data: dict[str, Any]) -> Iterator[ResourceChange]:
    """
    Yield the changes of each object: none, one, or two if a replacement forgets the old object.
    """
    change, address = data["change"], data["address"]
    previous = data.get("previous_address")
    moved = previous if previous != address else None
    importing = change.get("importing")
    words: list[tuple[Action, str | None]] = list(_actions(change["actions"]))
    if importing and not words:
        words = [("import", None)]
    elif moved and not words:
        words = [("noop", None)]
    for action, unknown_word in words:
        yield ResourceChange(
            address=address,
            type=data.get("type", ""),
            name=data.get("name", ""),
            index=data.get("index"),
            module=data.get("module_address"),
            action=action,
            engine_word=unknown_word,
            reason=data.get("action_reason"),
            replace_paths=tuple(
                attribute_path(tuple(path)) for path in change.get("replace_paths") or ()
            ),
            create_first=change["actions"][0] == "create" and action == "replace",
            previous_address=moved,
            importing=(importing.get("id") or "by its identity") if importing else None,
            deposed=data.get("deposed") or None,
            attributes=attribute_changes(
                change.get("before"),
                change.get("after"),
                before_marks=Marks(change.get("before_sensitive", False)),
                after_marks=Marks(
                    change.get("after_sensitive", False), change.get("after_unknown", False)
                ),
                replace_paths=change.get("replace_paths") or (),
            ),
        )


def _actions(words: list[str]) -> Iterator[tuple[Action, str | None]]:
    """
    Yield the actions for the engine's words; an unknown word is returned beside its action.
    """
    if sorted(words) == ["create", "delete"]:
        yield "replace", None
        return
    for word in words:
        if word != "no-op":
            yield _ACTIONS.get(word, "unknown"), None if word in _ACTIONS else word


def _output(name: str, change: dict[str, Any]) -> OutputValueChange:
    before = Marks(change.get("before_sensitive", False))
    after = Marks(change.get("after_sensitive", False), change.get("after_unknown", False))
    sensitive = before.sensitive is True or after.sensitive is True
    known = after.unknown is not True
    (action,) = {action for action, _ in _actions(change["actions"])}
    return OutputValueChange(
        name=name,
        action=action,
        before=None if sensitive else shown_value(change.get("before"), before),
        after=None if sensitive or not known else shown_value(change.get("after"), after),
        sensitive=sensitive,
        known=known,
    )


def _checks(checks: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """
    Yield the results of ``check`` blocks, one for each instance.
    """
    for check in checks:
        for item in check.get("instances") or (check,):
            status = item["status"] if item["status"] in _CHECKS else "unknown"
            yield CheckResult(
                address=item["address"]["to_display"],
                status=status,
                problems=tuple(p["message"] for p in item.get("problems") or () if "message" in p),
            )


def _planned_objects(
    changes: Iterable[tuple[ResourceChange, dict[str, Any]]],
    outputs: Iterable[tuple[OutputValueChange, dict[str, Any]]],
) -> Iterator[PlannedObject]:
    """
    Yield the objects and outputs that the plan changes, with all planned values.
    """
    for item, change in changes:
        if item.action != "read":
            after = change.get("after"), change.get("after_unknown", False)
            yield PlannedObject(
                item.address, item.action, item.deposed, *after, item.previous_address
            )
    for output, change in outputs:
        after = change.get("after"), change.get("after_unknown", False)
        yield PlannedObject(OUTPUT + output.name, output.action, None, *after)


def _regions(data: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """
    Yield the region of each provider configuration that sets one, by its name in the plan; None if
    only an evaluation tells it.
    """
    configuration = data.get("configuration") or {}
    root = configuration.get("root_module") or {}
    variables = {name: item.get("value") for name, item in (data.get("variables") or {}).items()}
    for name, block in (configuration.get("provider_config") or {}).items():
        expression = (block.get("expressions") or {}).get("region")
        if expression:
            calls = name.rpartition(":")[0].split(".")[1::2]
            region = _value(expression, calls, root, variables)
            yield name, region if isinstance(region, str) else None


def _value(
    expression: dict[str, Any],
    calls: list[str],
    root: dict[str, Any],
    variables: Mapping[str, Json],
    keys: tuple[str, ...] = (),
) -> Json:
    """
    Return the value below ``keys`` of an expression in the module that ``calls`` lead to: of a
    constant, or of a variable as it is given to the module. None if it is anything else.
    """
    found = expression.get("constant_value")
    if found is None:
        whole, *parents = expression.get("references") or [""]
        kind, _, path = whole.partition(".")
        if kind != "var" or not all(whole.startswith(f"{parent}.") for parent in parents):
            return None
        name, *fields = path.split(".")
        keys = (*fields, *keys)
        call: dict[str, Any] = {"module": root}
        for step in calls:
            call = call["module"]["module_calls"][step]
        if name in call.get("expressions", {}):
            return _value(call["expressions"][name], calls[:-1], root, variables, keys)
        declared = call["module"].get("variables", {}).get(name, {})
        found = declared.get("default") if calls else variables.get(name)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _secrets(data: dict[str, Any]) -> Iterator[Json]:
    """
    Yield the sensitive values in a plan, so that the same values are masked elsewhere, too.
    """
    objects = [*(data.get("resource_changes") or ()), *(data.get("resource_drift") or ())]
    changes = [item["change"] for item in objects]
    for change in [*changes, *(data.get("output_changes") or {}).values()]:
        for side in ("before", "after"):
            yield from secret_values(change.get(side), change.get(f"{side}_sensitive", False))
