"""
Parses the lines of ``plan -json`` and ``apply -json`` into domain messages.

Free text is masked here: diagnostics, provisioner output, unknown lines. Addresses, actions and ids
are not masked: records are compared by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    ChangeSummary,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
    ProvisionProgress,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import CRASHED, Diagnostic
from orchestrator.domain.record.run_record import StateLock

# Diagnostics that the engine prints as plain text, and what a lock diagnostic says of the holder.

_HEAD = re.compile(r"(Error|Warning): (.*)")
_PLACE = re.compile(r"  on (.+) line (\d+)")
_WITH = re.compile(r"  with (\S.*),$")
_CODE = re.compile(r"\s+\d+: ")
_PREFACE = re.compile(r"(Terraform|OpenTofu) encountered problems during initialisation")
_FRAME = re.compile(r"[╷│╵] ?")
_LOCKED = "Error acquiring the state lock"
_POSTGRES = re.compile(r"workspace is already locked|already locked for workspace", re.I)
_HTTP = re.compile(r"HTTP remote state already locked: ID=(\S+)")
#: How backends say that somebody holds the lock where they cannot tell who: conflicting writes.
_HELD = re.compile(
    r"already locked|locked by|temporarily unavailable|\b(?:409|412|423)\b|precondition"
    r"|ConditionalCheckFailed|conditionNotMet|LeaseAlreadyPresent",
    re.I,
)
_LOCK_FIELD = re.compile(r"^\s*(ID|Operation|Who|Created|Path):[ \t]*(\S.*)$", re.MULTILINE)

_CRASH = re.compile(r"^!+ (TERRAFORM|OPENTOFU) CRASH !+$", re.MULTILINE)
_PANIC = re.compile(r"^(?:panic|fatal error|runtime): .*", re.MULTILINE)
_STACK = re.compile(r"^(?:goroutine \d+ |\[signal )", re.MULTILINE)
_CRASH_LINES = 5


def parse_crash(text: str, *, certain: bool = False) -> Diagnostic | None:
    """
    Return the cause of an engine crash on its stderr, without banner and stack; None if there is
    none. The engine prints no diagnostic for it. If it is ``certain`` that it crashed, any text is
    the cause.

    >>> parse_crash("panic: boom\\n\\ngoroutine 1 [running]:\\n").summary
    'the engine crashed: panic: boom'
    """
    banners = list(_CRASH.finditer(text))
    panic = _PANIC.search(text)
    if not banners and panic is None and not certain:
        return None
    start = banners[-1].end() if banners else panic.start() if panic else 0
    cause = _STACK.split(text[start:], maxsplit=1)[0]
    lines = [line.strip() for line in cause.splitlines() if line.strip()][:_CRASH_LINES]
    first = lines[0] if lines else "it says no reason"
    return Diagnostic(severity="error", summary=f"{CRASHED}: {first}", detail="\n".join(lines[1:]))


#: What OpenTofu says of a state (or a plan) that it has no key for, wherever that happens: often as
#: the reason why it could not lock the state.
_SEALED = re.compile(
    r"state file is encrypted and can not be read|decryption failed for all provided methods", re.I
)
_CLEAR = re.compile(r"unencrypted payload without unencrypted method", re.I)
UNDECRYPTED = "the state cannot be decrypted"


def named(diagnostic: Diagnostic) -> Diagnostic:
    """
    Return the diagnostic under the name of its cause, where the engine's own summary hides that.

    >>> text = "Error message: state file is encrypted and can not be read"
    >>> named(Diagnostic(severity="error", summary=_LOCKED, detail=text)).summary
    'the state cannot be decrypted'
    """
    # What follows the first paragraph explains locks, and how to do without.
    text = f"{diagnostic.summary}\n{diagnostic.detail}".strip().split("\n\n")[0]
    words = " ".join(text.split())
    if diagnostic.severity == "error" and _SEALED.search(words):
        return diagnostic.model_copy(update={"summary": UNDECRYPTED, "detail": text})
    if diagnostic.severity == "error" and _CLEAR.search(words):
        summary = f"{UNDECRYPTED}: it is stored in clear, which its encryption does not allow"
        return diagnostic.model_copy(update={"summary": summary, "detail": text})
    return diagnostic


def parse_text(text: str) -> tuple[Diagnostic, ...]:
    """
    Return the diagnostics in plain engine output, with or without their frames, in order.

    >>> parse_text("Error: No such thing\\n\\n  on main.tf line 3, in output:\\n\\nReally.\\n")
    (Diagnostic(severity='error', summary='No such thing', detail='Really.', ..., at='main.tf:3'),)
    """
    diagnostics: list[Diagnostic] = []
    head: re.Match[str] | None = None
    body: list[str] = []
    blank = True  # a head follows an empty line: elsewhere "Error: " is part of a detail
    for raw in text.splitlines():
        line = _FRAME.sub("", raw, count=1).rstrip() if raw[:1] in "╷│╵" else raw.rstrip()
        match = _HEAD.fullmatch(line) if blank else None
        blank = not line
        if match is None:
            body.append(line)
            continue
        if head is not None:
            diagnostics.append(_diagnostic(head, body))
        head, body = match, []
    if head is not None:
        diagnostics.append(_diagnostic(head, body))
    specific = [item for item in diagnostics if not _PREFACE.match(item.summary)]
    return tuple(specific or diagnostics)


def lock_holder(diagnostics: Iterable[Diagnostic]) -> StateLock | None:
    """
    Return the lock that somebody else holds, by the diagnostics. None if the lock failed for
    another reason (no permission, damaged state): then there is nobody to wait for.

    PostgreSQL reports the id and name of the caller instead of the holder, and so does the http
    backend of older engines, which reports the holder's id separately: the caller's are dropped.
    """
    for diagnostic in diagnostics:
        if diagnostic.summary != _LOCKED:
            continue
        detail = " ".join(diagnostic.detail.split())
        if _POSTGRES.search(detail):
            raw_text = "PostgreSQL advisory lock: it ends with the session that holds it"
            return StateLock(raw_text=raw_text)
        fields = {key: text.strip() for key, text in _LOCK_FIELD.findall(diagnostic.detail)}
        holder = _HTTP.search(detail)
        if holder is not None and holder[1] != fields.get("ID"):
            return StateLock(id=holder[1])
        if not fields.get("ID") and not _HELD.search(detail):
            continue
        return StateLock(
            id=fields.get("ID"),
            who=fields.get("Who"),
            operation=fields.get("Operation"),
            created=fields.get("Created"),
            raw_text=detail[:200] or _LOCKED,
        )
    return None


def _diagnostic(head: re.Match[str], body: list[str]) -> Diagnostic:
    address = location = None
    wrapped = body.index("") if "" in body else len(body)  # long summaries are wrapped, too
    detail: list[str] = []
    for line in body[wrapped:]:
        where = _PLACE.match(line)
        if where and location is None:
            location = f"{where[1]}:{where[2]}"
        elif (owner := _WITH.match(line)) and address is None:
            address = owner[1]
        elif not (_CODE.match(line) and location and not any(detail)):
            detail.append(line)
    return named(
        Diagnostic(
            severity="error" if head[1] == "Error" else "warning",
            summary=" ".join([head[2], *body[:wrapped]]),
            detail="\n".join(detail).strip(),
            address=address,
            at=location,
        )
    )


# The events of ``-json`` output, a line each.

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
#: Events that only say that something is read or under way.
_QUIET = (
    *("provision_start", "provision_complete", "provision_errored", "refresh_start"),
    *("ephemeral_op_start", "ephemeral_op_progress"),
    *("ephemeral_op_complete", "ephemeral_op_errored"),
)


class ParsedLine(Struct, frozen=True):
    """
    A line of engine output: masked text for people, and its messages.
    """

    text: str
    messages: tuple[Message, ...] = ()


def parse_line(line: str, mask: Mask = str) -> ParsedLine:
    """
    Return the messages of one line of ``-json`` output. A line that is no JSON object, or of
    unknown type, becomes a `LogLine`; types that only report reading give text but no message.
    """
    try:
        data = json.loads(line)
        text, kind = str(data["@message"]), data["type"]
    except (ValueError, KeyError, TypeError):
        plain = mask(line)
        return ParsedLine(plain, (LogLine(plain),) if plain.strip() else ())
    try:
        messages = tuple(_messages(kind, data, mask))
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # a known type in a shape we do not know
        messages = (LogLine(mask(text)),)
    for message in messages:
        if isinstance(message, Diagnostic):
            return ParsedLine(render(message), messages)
    return ParsedLine(mask(text), messages)


def render(diagnostic: Diagnostic) -> str:
    """
    Return a diagnostic as text, as the engine prints it without colour.
    """
    lines = [f"{diagnostic.severity.capitalize()}: {diagnostic.summary}"]
    location = ", ".join(filter(None, (diagnostic.address, diagnostic.at)))
    if location:
        lines.append(f"  with {location}")
    lines += [f"  {line}" for line in diagnostic.detail.splitlines()]
    return "\n".join(lines)


def _messages(kind: str, data: dict[str, Any], mask: Mask) -> list[Message]:
    """
    Return the messages in an event of this type. Raises an error if its shape is not the known one.
    """
    hook = data.get("hook", {})
    match kind:
        case "planned_change":
            return _planned_change(data["change"])
        case "resource_drift":
            resource, word = data["change"]["resource"], data["change"]["action"]
            if word not in ("update", "delete"):
                return []
            return [ResourceDrift(resource["addr"], ACTIONS[word], resource["resource_type"])]
        case "outputs":
            return [
                OutputChange(name, ACTIONS.get(output["action"], "unknown"))
                for name, output in data["outputs"].items()
                if output.get("action", "noop") not in ("noop", "")
            ]
        case "apply_start" | "apply_progress" | "apply_complete" | "apply_errored":
            address, action = hook["resource"]["addr"], ACTIONS.get(hook["action"], "unknown")
            if action not in _MUTATIONS:
                return []
            at = datetime.fromisoformat(data["@timestamp"]).astimezone(UTC)
            if kind == "apply_start":
                return [ApplyStart(address, action, at, hook.get("id_value"))]
            if kind == "apply_progress":
                return [ApplyProgress(address, action, at, float(hook["elapsed_seconds"]))]
            if kind == "apply_complete":
                return [ApplyComplete(address, action, at, hook.get("id_value"))]
            return [ApplyErrored(address, action, at)]
        case "refresh_complete":
            found = hook.get("id_value")
            return [RefreshComplete(hook["resource"]["addr"], found)] if found else []
        case "provision_progress":
            return [ProvisionProgress(hook["resource"]["addr"], mask(hook["output"]))]
        case "diagnostic":
            return [_reported(data["diagnostic"], mask)]
        case "change_summary":
            count = data["changes"]
            other = sum(n for key, n in count.items() if key not in _COUNTED and isinstance(n, int))
            counts = (count["add"], count["change"], count["remove"], count.get("forget", 0))
            return [ChangeSummary(count["operation"], *counts, other, count.get("import", 0))]
        case "version":
            ui = str(data["ui"])
            if ui.split(".")[0] == _UI_MAJOR:
                return []
            summary = f"The engine speaks version {ui} of its output format; known is {_UI_MAJOR}"
            return [Diagnostic(severity="warning", summary=summary)]
    return [] if kind in _QUIET else [LogLine(mask(str(data["@message"])))]


def _planned_change(change: dict[str, Any]) -> list[Message]:
    resource, word = change["resource"], change["action"]
    if word in ("read", "noop"):
        return []
    action = ACTIONS.get(word, "unknown")
    return [
        PlannedChange(
            resource["addr"],
            action,
            resource["resource_type"],
            "move" if word == "move" else change.get("reason"),
            (change.get("importing") or {}).get("id"),
            (change.get("previous_resource") or {}).get("addr"),
            word if action == "unknown" else None,
        )
    ]


def _reported(content: dict[str, Any], mask: Mask) -> Diagnostic:
    """
    Return a diagnostic. One about the call's variable file names the variable instead of the place:
    that file is gone when the call has ended, and its lines say nothing to anybody.
    """
    location, variable = content.get("range"), None
    if location and location.get("filename", "").endswith(".tfvars.json"):
        code = (content.get("snippet") or {}).get("code") or ""
        variable = re.match(r'\s*"([^"]+)":', code)
    return named(
        Diagnostic(
            severity="warning" if content["severity"] == "warning" else "error",
            summary=mask(content["summary"]) + (f": {variable[1]}" if variable else ""),
            detail=mask(content.get("detail") or ""),
            address=content.get("address") or None,
            at=f"{location['filename']}:{location['start']['line']}"
            if location and not variable
            else None,
        )
    )
