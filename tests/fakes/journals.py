"""
Journals and provider states for tests, from one line each.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyStart,
    Message,
    OutputChange,
    PlannedChange,
)
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState, StateObject, StateOutput
from orchestrator.domain.record.objects import Action, ObjectRef, PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json
from tests.fakes.clock import START

PROVIDER = "registry.terraform.io/test/fakecloud"


def planned(*items: str) -> tuple[PlannedAction, ...]:
    """
    Planned actions from texts such as "create a.b" and "delete a.b deposed=d1".
    """
    return tuple(
        PlannedAction.model_validate(
            {"action": action, "address": address, **dict(mark.split("=") for mark in marks)}
        )
        for action, address, *marks in (item.split() for item in items)
    )


def messages(*lines: str) -> list[Message]:
    """
    Messages from texts: "plan create a.b", "plan update a.c from=a.b", "output x",
    "began create a.b", "done create a.b id", "failed create a.b", "error a.b text", "error - text".
    """
    return [_message(line) for line in lines]


def _message(line: str) -> Message:
    word, rest = line.split(" ", 1)
    if word == "output":
        return OutputChange(rest, "create")
    if word == "error":
        address, text = rest.split(" ", 1)
        return Diagnostic(summary=text, address=None if address == "-" else address)
    action, address, *more = rest.split(" ")
    verb: Action = PlannedAction.model_validate({"action": action, "address": address}).action
    match word:
        case "plan":
            previous = next((item.removeprefix("from=") for item in more), None)
            return PlannedChange(address, verb, "fakecloud_server", previous_address=previous)
        case "began":
            return ApplyStart(address, verb, START)
        case "done":
            return ApplyComplete(address, verb, START, more[0] if more else None)
        case "failed":
            return ApplyErrored(address, verb, START)
        case _:
            raise ValueError(line)


def journal(*lines: str, whole: bool = True) -> Journal:
    """
    The journal of those messages.
    """
    return Journal.of(messages(*lines), whole=whole)


def state(
    objects: Iterable[str] = (),
    *,
    serial: int = 3,
    lineage: str | None = "lin-1",
    outputs: dict[str, Json] | None = None,
    secrets: Iterable[str] = (),
) -> PulledState:
    """
    A provider state from texts such as "a.b id", "a.b id tainted", "a.b id deposed=1", and
    "a.b id by=us" for the provider configuration.
    """
    return PulledState(
        lineage=lineage,
        serial=serial,
        objects=tuple(_object(text) for text in objects),
        outputs={
            name: StateOutput(value=value, sensitive=name in set(secrets))
            for name, value in (outputs or {}).items()
        },
    )


def _object(text: str) -> StateObject:
    address, object_id, *marks = text.split()
    deposed = next((m.removeprefix("deposed=") for m in marks if m.startswith("deposed=")), None)
    return StateObject(
        address=address,
        type=address.split(".")[0],
        provider=PROVIDER,
        id=object_id,
        tainted="tainted" in marks,
        deposed=deposed,
        configuration=next((m for m in marks if m.startswith("by=")), ""),
    )


def refs(*objects: str) -> tuple[ObjectRef, ...]:
    """
    Inventory rows from the texts of `state`.
    """
    return tuple(
        ObjectRef(
            address=item.address,
            type=item.type,
            provider=item.provider,
            id=item.id,
            deposed=item.deposed,
        )
        for item in state(objects).objects
    )
