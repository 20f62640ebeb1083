"""
The lines of ``plan -json`` and ``apply -json`` as domain messages.

Free text is masked here: diagnostics, provisioner lines, and whatever is passed on as it is.
Addresses, actions and ids are never touched: they are what records are compared by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    ChangeSummary,
    DiagnosticMessage,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
    ProvisionProgress,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import Diagnostic
from orchestrator.engine.diagnostics import named

Mask = Callable[[str], str]

#: The engine's words for actions. A move touches state only, like a forget.
ACTIONS: Mapping[str, Action] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "replace": "replace",
    "read": "read",
    "noop": "noop",
    "import": "import",
    "remove": "forget",
    "forget": "forget",
    "move": "noop",
}
_MUTATIONS = ("create", "update", "delete", "unknown")
_UI_MAJOR = "1"
_COUNTED = ("operation", "add", "change", "remove", "forget", "import")


class ParsedLine(Struct, frozen=True):
    """
    A line of the engine: masked text for people, and the messages it stands for.
    """

    text: str
    messages: tuple[Message, ...] = ()


def parse_line(line: str, mask: Mask = str) -> ParsedLine:
    """
    The messages of one line of ``-json`` output. A line that is no JSON object, or whose type is
    not known, is passed on as a `LogLine`; types that only tell of reading give text but no
    message.
    """
    try:
        data = json.loads(line)
        text = str(data["@message"])
        kind = data["type"]
    except (ValueError, KeyError, TypeError):
        plain = mask(line)
        return ParsedLine(plain, (LogLine(plain),) if plain.strip() else ())
    parser = _PARSERS.get(kind, _logged)
    try:
        messages = tuple(parser(data, mask))
    except (KeyError, TypeError, ValueError):  # a known type in a shape we do not know
        messages = tuple(_logged(data, mask))
    for message in messages:
        if isinstance(message, DiagnosticMessage):
            return ParsedLine(render(message.diagnostic), messages)
    return ParsedLine(mask(text), messages)


def render(diagnostic: Diagnostic) -> str:
    """
    A diagnostic as text, as the engine prints it without colour.
    """
    lines = [f"{diagnostic.severity.capitalize()}: {diagnostic.summary}"]
    place = ", ".join(filter(None, (diagnostic.address, diagnostic.at)))
    if place:
        lines.append(f"  with {place}")
    lines += [f"  {line}" for line in diagnostic.detail.splitlines()]
    return "\n".join(lines)


def _planned(data: dict[str, Any], mask: Mask) -> list[Message]:
    change = data["change"]
    resource, word = change["resource"], change["action"]
    if word in ("read", "noop"):
        return []
    reason = "move" if word == "move" else change.get("reason")
    importing = (change.get("importing") or {}).get("id")
    action = ACTIONS.get(word, "unknown")
    return [
        PlannedChange(
            resource["addr"],
            action,
            resource["resource_type"],
            reason,
            importing,
            (change.get("previous_resource") or {}).get("addr"),
            word if action == "unknown" else None,
        )
    ]


def _refreshed(data: dict[str, Any], mask: Mask) -> list[Message]:
    hook = data["hook"]
    object_id = hook.get("id_value")
    return [RefreshComplete(hook["resource"]["addr"], object_id)] if object_id else []


def _drifted(data: dict[str, Any], mask: Mask) -> list[Message]:
    change = data["change"]
    if change["action"] not in ("update", "delete"):
        return []
    resource = change["resource"]
    return [ResourceDrift(resource["addr"], ACTIONS[change["action"]], resource["resource_type"])]


def _outputs(data: dict[str, Any], mask: Mask) -> list[Message]:
    return [
        OutputChange(name, ACTIONS.get(output["action"], "unknown"))
        for name, output in data["outputs"].items()
        if output.get("action", "noop") not in ("noop", "")
    ]


def _began(data: dict[str, Any], mask: Mask) -> list[Message]:
    address, action, hook = _hook(data)
    if action not in _MUTATIONS:
        return []
    return [ApplyStart(address, action, _at(data), hook.get("id_value"))]


def _going(data: dict[str, Any], mask: Mask) -> list[Message]:
    address, action, hook = _hook(data)
    if action not in _MUTATIONS:
        return []
    return [ApplyProgress(address, action, _at(data), float(hook["elapsed_seconds"]))]


def _completed(data: dict[str, Any], mask: Mask) -> list[Message]:
    address, action, hook = _hook(data)
    if action not in _MUTATIONS:
        return []
    return [ApplyComplete(address, action, _at(data), hook.get("id_value"))]


def _errored(data: dict[str, Any], mask: Mask) -> list[Message]:
    address, action, _ = _hook(data)
    return [ApplyErrored(address, action, _at(data))] if action in _MUTATIONS else []


def _diagnosed(data: dict[str, Any], mask: Mask) -> list[Message]:
    content = data["diagnostic"]
    place = content.get("range")
    diagnostic = Diagnostic(
        severity="warning" if content["severity"] == "warning" else "error",
        summary=mask(content["summary"]),
        detail=mask(content.get("detail") or ""),
        address=content.get("address") or None,
        at=f"{place['filename']}:{place['start']['line']}" if place else None,
    )
    return [DiagnosticMessage(named(diagnostic))]


def _provisioning(data: dict[str, Any], mask: Mask) -> list[Message]:
    hook = data["hook"]
    return [ProvisionProgress(hook["resource"]["addr"], mask(hook["output"]))]


def _summarised(data: dict[str, Any], mask: Mask) -> list[Message]:
    count = data["changes"]
    other = sum(n for name, n in count.items() if name not in _COUNTED and isinstance(n, int))
    counts = (count["add"], count["change"], count["remove"], count.get("forget", 0))
    return [ChangeSummary(count["operation"], *counts, other, count.get("import", 0))]


def _version(data: dict[str, Any], mask: Mask) -> list[Message]:
    ui = str(data["ui"])
    if ui.split(".")[0] == _UI_MAJOR:
        return []
    summary = f"The engine speaks version {ui} of its output format; known is {_UI_MAJOR}"
    return [DiagnosticMessage(Diagnostic(severity="warning", summary=summary))]


def _quiet(data: dict[str, Any], mask: Mask) -> list[Message]:
    return []


def _logged(data: dict[str, Any], mask: Mask) -> list[Message]:
    return [LogLine(mask(str(data["@message"])))]


def _hook(data: dict[str, Any]) -> tuple[str, Action, dict[str, Any]]:
    hook = data["hook"]
    return hook["resource"]["addr"], ACTIONS.get(hook["action"], "unknown"), hook


def _at(data: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(data["@timestamp"]).astimezone(UTC)


_PARSERS: Mapping[str, Callable[[dict[str, Any], Mask], list[Message]]] = {
    "version": _version,
    "planned_change": _planned,
    "resource_drift": _drifted,
    "outputs": _outputs,
    "apply_start": _began,
    "apply_progress": _going,
    "apply_complete": _completed,
    "apply_errored": _errored,
    "diagnostic": _diagnosed,
    "provision_progress": _provisioning,
    "change_summary": _summarised,
    "provision_start": _quiet,
    "provision_complete": _quiet,
    "provision_errored": _quiet,
    "refresh_start": _quiet,
    "refresh_complete": _refreshed,
    "ephemeral_op_start": _quiet,
    "ephemeral_op_progress": _quiet,
    "ephemeral_op_complete": _quiet,
    "ephemeral_op_errored": _quiet,
}
