"""
The journal of an engine call: its messages, collected into what was planned, began and ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyStart,
    ChangeSummary,
    Message,
    OutputChange,
    PlannedChange,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.run_record import Lease
from orchestrator.domain.values import replace

#: The actions that change remote objects, or may; everything else in a plan does not.
MUTATIONS: frozenset[Action] = frozenset({"create", "update", "delete", "replace", "unknown"})

#: What the engine does, in its journal, for one planned action.
ENGINE_ACTIONS: Mapping[Action, tuple[Action, ...]] = {
    "create": ("create",),
    "update": ("update",),
    "delete": ("delete",),
    "replace": ("delete", "create"),
    "unknown": ("unknown",),
}

_FORGOT = "Destroy was successful but left behind forgotten instances"

ObjectAction = tuple[str, Action]


def adds_up(messages: Iterable[Message], *, changed: bool) -> bool:
    """
    Return whether a plan's event stream is complete: all planned changes are known, their number
    equals the engine's count, and there are some if ``changed``.
    """
    items = list(messages)
    planned = [item for item in items if isinstance(item, PlannedChange)]
    counts = Counter(item.action for item in planned)
    if counts["unknown"]:
        return False
    totals = (
        counts["create"] + counts["replace"],
        counts["update"],
        counts["delete"] + counts["replace"],
        counts["forget"],
        sum(item.importing is not None for item in planned),
    )
    summaries = [item for item in items if isinstance(item, ChangeSummary)]
    for item in summaries:
        counted = (item.add, item.change, item.remove, item.forget, item.imports)
        if item.operation == "plan" and (item.other or totals != counted):
            return False
    outputs = any(isinstance(item, OutputChange) and item.action != "noop" for item in items)
    return bool(summaries) and bool(planned or outputs) == changed


def lasting_warnings(
    planned: Iterable[Diagnostic], applied: Iterable[Diagnostic]
) -> tuple[Diagnostic, ...]:
    """
    Return the warnings of a plan and its apply without repetition. Warnings of the plan about
    `check` blocks are dropped, because the apply evaluates them again.
    """
    warnings = (item for item in planned if not item.summary.startswith("Check block assertion"))
    return tuple(dict.fromkeys((*warnings, *applied)))


class Journal(Struct, frozen=True):
    """
    The facts that the messages of one call prove. Keys of ``began``, ``completed`` and ``errored``
    are (address, create | update | delete); an address with a deposed object has two that may be
    deleted. ``unfinished`` began more often than it completed or failed.

    ``moved`` are the addresses that the plan moves in provider state: planned as a no-op, they are
    a change nevertheless; ``refreshed`` those where the provider found an object. ``extent`` is
    "complete" only with an answer file and a whole event file.
    """

    extent: Literal["complete", "partial", "missing"]
    planned: tuple[PlannedAction, ...]
    drifted: tuple[PlannedAction, ...]
    outputs: tuple[str, ...]
    began: Mapping[ObjectAction, datetime]
    completed: Mapping[ObjectAction, str | None]
    errored: frozenset[ObjectAction]
    unfinished: frozenset[ObjectAction]
    diagnostics: tuple[Diagnostic, ...]
    moved: frozenset[str] = frozenset()
    refreshed: frozenset[str] = frozenset()

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """
        The errors, in order, without repetition.
        """
        return tuple(dict.fromkeys(d for d in self.diagnostics if d.severity == "error"))

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """
        The warnings, including failed `check` blocks, without repetition.
        """
        return tuple(dict.fromkeys(d for d in self.diagnostics if d.severity == "warning"))

    @property
    def only_forgot(self) -> bool:
        """
        Whether the only error is that a destroy forgot objects as told to: then it succeeded
        (OpenTofu 1.12, without -suppress-forget-errors).
        """
        return [error.summary for error in self.errors] == [_FORGOT]

    @property
    def changes(self) -> tuple[PlannedAction, ...]:
        """
        The planned actions that change remote objects or provider state.
        """
        changing = MUTATIONS | {"forget", "import"}
        return tuple(p for p in self.planned if p.action in changing or p.address in self.moved)

    @property
    def removed(self) -> frozenset[str]:
        """
        The addresses whose objects the plan deletes or replaces.
        """
        removing = (item for item in self.planned if item.action in ("delete", "replace"))
        return frozenset(item.address for item in removing)

    @property
    def vanished(self) -> frozenset[str]:
        """
        The addresses whose objects the refresh did not find.
        """
        return frozenset(item.address for item in self.drifted if item.action == "delete")

    def with_heartbeat(self, lease: Lease) -> Journal:
        """
        Return the journal with objects that the last heartbeat reports as begun or completed and
        the messages do not.
        """
        items = (*lease.completed, *lease.in_flight)
        began = {(item.address, item.action): item.started_at for item in items}
        done = {(item.address, item.action): item.id for item in lease.completed}
        in_flight = {(item.address, item.action) for item in lease.in_flight}
        return replace(
            self,
            began={**began, **self.began},
            completed={**done, **self.completed},
            unfinished=self.unfinished | (in_flight - self.began.keys()),
        )

    def with_deletes(self, addresses: Iterable[str]) -> Journal:
        """
        Return the journal with deletes that were requested earlier: this plan removes their objects
        from the provider state.
        """
        deletes = (PlannedAction(address=address, action="delete") for address in addresses)
        return replace(self, planned=(*self.planned, *deletes))

    def with_absent(self, absent: Mapping[str, tuple[str, ...]]) -> Journal:
        """
        Return the journal with what is known, by address, of the absence of objects before their
        create.
        """
        planned = (
            item.model_copy(update={"absent_before": absent[item.address]})
            if item.action == "create" and item.address in absent
            else item
            for item in self.planned
        )
        return replace(self, planned=tuple(planned))

    def with_content(self, content: PlanContent) -> Journal:
        """
        Return the journal with the content of the plan file instead of the event stream's summary
        of it.
        """
        return replace(self, planned=content.actions, moved=content.moved, outputs=content.outputs)

    @classmethod
    def of(cls, messages: Iterable[Message], *, whole: bool) -> Journal:
        """
        Collect ``messages``; ``whole`` is true if none can be missing.
        """
        planned: dict[ObjectAction, PlannedAction] = {}
        drifted: dict[str, PlannedAction] = {}
        outputs: dict[str, None] = {}
        began: dict[ObjectAction, datetime] = {}
        completed: dict[ObjectAction, str | None] = {}
        errored: set[ObjectAction] = set()
        in_flight: Counter[ObjectAction] = Counter()
        diagnostics: list[Diagnostic] = []
        moved: set[str] = set()
        refreshed: set[str] = set()
        has_messages = False
        for message in messages:
            has_messages = True
            match message:
                case PlannedChange(address, action, _, reason):
                    if reason == "move":
                        moved.add(address)
                    planned[address, action] = PlannedAction(
                        address=address,
                        action=action,
                        previous_address=message.previous_address,
                        engine_word=message.engine_word,
                        importing=message.importing,
                    )
                case RefreshComplete(address):
                    refreshed.add(address)
                case ResourceDrift(address, action):
                    drifted[address] = PlannedAction(address=address, action=action)
                case OutputChange(name, action) if action != "noop":
                    outputs[name] = None
                case ApplyStart(address, action, at) if action in MUTATIONS:
                    began[address, action] = at
                    in_flight[address, action] += 1
                case ApplyComplete(address, action, _, object_id) if action in MUTATIONS:
                    completed[address, action] = object_id
                    in_flight[address, action] -= 1
                case ApplyErrored(address, action) if action in MUTATIONS:
                    errored.add((address, action))
                    in_flight[address, action] -= 1
                case Diagnostic() as diagnostic:
                    diagnostics.append(diagnostic)
                case _:
                    pass
        return cls(
            extent="complete" if whole else "partial" if has_messages else "missing",
            planned=tuple(planned.values()),
            drifted=tuple(drifted.values()),
            outputs=tuple(outputs),
            began=began,
            completed=completed,
            errored=frozenset(errored),
            unfinished=frozenset(part for part, count in in_flight.items() if count > 0),
            diagnostics=tuple(diagnostics),
            moved=frozenset(moved),
            refreshed=frozenset(refreshed),
        )
