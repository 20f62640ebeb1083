"""
What a saved plan holds, secrets included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.text import Json

#: What the address of an output begins with among the objects of a plan.
OUTPUT = "output."


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """
    What a plan does with an object, or with an output as ``output.NAME``, and its values after
    that, secrets included; ``unknown`` is true where only the apply makes them known.
    """

    address: str
    action: Action
    deposed: str | None = None
    after: Json = field(default=None, repr=False)
    unknown: Json = False

    @property
    def is_output(self) -> bool:
        return self.address.startswith(OUTPUT)


@dataclass(frozen=True, slots=True)
class PlanContent:
    """
    What a saved plan holds: its actions, the addresses that it only moves, the outputs that it
    changes, and all of that with its values. ``secrets`` are the sensitive ones among them,
    ``objects`` what it changes, as it is: both stay in memory. ``regions`` are those of the
    provider configurations of the root, as far as they do not depend on objects.
    """

    actions: tuple[PlannedAction, ...]
    moved: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    changes: PlanChanges = field(default_factory=PlanChanges)
    secrets: tuple[Json, ...] = field(default=(), repr=False)
    objects: tuple[PlannedObject, ...] = ()
    regions: Mapping[str, str] = field(default_factory=dict)
