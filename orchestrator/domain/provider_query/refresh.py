"""
Which objects of a provider state a refresh saw, and which provider configurations saw nothing: in
another region or account, or with other credentials, every object reads as gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import Struct

from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState, StateObject


class RefreshResult(Struct, frozen=True):
    """
    What a refresh made of the objects of a state. ``missing`` are those that it could not find;
    ``unexplained`` are those among them that nobody vouches for: the scope may be the wrong one.
    """

    missing: tuple[StateObject, ...] = ()
    unexplained: tuple[StateObject, ...] = ()

    def without(self, deleted: Collection[StateObject]) -> RefreshResult:
        """
        The result without the objects that are missing because a delete removed them.
        """
        return RefreshResult(
            tuple(item for item in self.missing if item not in deleted),
            tuple(item for item in self.unexplained if item not in deleted),
        )


def refresh_result(
    journal: Journal, state: PulledState, *, destroying: bool, targeted: bool
) -> RefreshResult:
    """
    What the plan of a step saw of ``state``, the one before its refresh.

    The plan of a destroy tells of no drift, and no plan does of deposed objects: what these would
    not delete has vanished. A ``targeted`` plan asks only for what it says it has found or lost.
    """
    lost = {item.address for item in journal.drifted if item.action == "delete"}
    planned = {item.address for item in journal.planned}
    gone, present = [], []
    for item in state.objects:
        if item.deposed is None and not destroying:
            missing = item.address in lost
        else:
            missing = not targeted and item.address not in planned
        if missing:
            gone.append(item)
        elif not targeted or item.address in journal.refreshed:
            present.append(item)
    return RefreshResult(tuple(gone), unexplained(gone, present))


def unexplained(
    gone: Collection[StateObject], present: Collection[StateObject]
) -> tuple[StateObject, ...]:
    """
    Those of ``gone`` whose provider configuration is not believed: it found nothing at all, or lost
    two objects or more of whose types it found none.

    In a wrong region a provider still finds what has no region (roles, policies, buckets): that
    does not vouch for objects of other types. A single object may be gone.
    """
    configurations = {item.configuration for item in present}
    kinds = {(item.configuration, item.type) for item in present}
    lost = [item for item in gone if (item.configuration, item.type) not in kinds]
    count = Counter(item.configuration for item in lost)
    return tuple(
        item
        for item in lost
        if item.configuration not in configurations or count[item.configuration] > 1
    )
