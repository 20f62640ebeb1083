"""
Which objects of a provider state a refresh saw, and which provider configurations saw nothing: in
another region or account, or with other credentials, every object reads as gone (law 21).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.domain.journal import Journal
from orchestrator.domain.messages import PulledState, StateObject


@dataclass(frozen=True, slots=True)
class Sight:
    """
    What a refresh made of the objects of a state. ``vanished`` are those that it could not find;
    ``unseen`` those among them whose provider configuration found no other object either.
    """

    vanished: tuple[StateObject, ...] = ()
    unseen: tuple[StateObject, ...] = ()


def sight(journal: Journal, state: PulledState, *, destroying: bool, targeted: bool) -> Sight:
    """
    What the plan of a step saw of ``state``, the one before its refresh.

    The plan of a destroy tells of no drift, and no plan does of deposed objects: what these would
    not delete has vanished. A ``targeted`` plan asks only for what it says it has found or lost.
    """
    lost = {item.address for item in journal.drifted if item.action == "delete"}
    planned = {item.address for item in journal.planned}
    gone, found = [], []
    for item in state.objects:
        if item.deposed is None and not destroying:
            missing = item.address in lost
        else:
            missing = not targeted and item.address not in planned
        if missing:
            gone.append(item)
        elif not targeted or item.address in journal.refreshed:
            found.append(item)
    return Sight(tuple(gone), unseen(gone, found))


def unseen(
    gone: Collection[StateObject], found: Collection[StateObject]
) -> tuple[StateObject, ...]:
    """
    Those of ``gone`` whose provider configuration is that of none of ``found``.
    """
    seeing = {item.configuration for item in found}
    return tuple(item for item in gone if item.configuration not in seeing)
