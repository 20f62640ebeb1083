"""
Provider states from before a destroy, saved until the provider has confirmed what it removed.

They stay on this machine, readable to their owner only: nothing else knows the objects well enough
to ask for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.domain.provider_query.query import ObjectKey
from orchestrator.domain.record.objects import Doubt, ObjectRef, SavedState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.assessment import not_deleted
from orchestrator.domain.transitions.faults import MutationEvidence
from orchestrator.domain.transitions.ownership import forgotten_refs

#: The file in the directory of the destroy's attempt. It holds secrets.
STATE_BEFORE = "before.tfstate"


class SavedObjects(Struct, frozen=True):
    """
    Objects whose absence is to be confirmed, and the saved provider state that holds them; ``raw``
    is None where that is not on this machine.
    """

    saved: SavedState
    raw: bytes | None
    objects: tuple[ObjectRef, ...]


def awaiting_confirmation(
    record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[Doubt]:
    """
    The doubts that a kept provider state could answer, but for ``forgotten`` addresses.
    """
    doubts = record.resources.in_doubt
    return [d for d in doubts if d.saved is not None and d.address not in forgotten]


def saved_objects(
    services: Services, record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[SavedObjects]:
    """
    The objects of a record that earlier destroys removed and the provider has not confirmed, by the
    state that was saved; none of ``forgotten`` addresses.
    """
    by_state: dict[SavedState, set[ObjectKey]] = {}
    for doubt in awaiting_confirmation(record, forgotten=forgotten):
        if doubt.saved is not None:
            by_state.setdefault(doubt.saved, set()).add((doubt.address, doubt.id))
    return [
        SavedObjects(
            saved,
            _read(services, record.target.step, saved),
            tuple(ref for ref in record.resources.inventory if (ref.address, ref.id) in keys),
        )
        for saved, keys in by_state.items()
    ]


def removed_objects(
    services: Services, marker: OperationRecord, saved: SavedState, evidence: MutationEvidence
) -> SavedObjects:
    """
    What the destroy of a marker has removed from provider state and nobody has doubted before.
    """
    inventory = marker.resources.inventory
    if evidence.state is not None:
        remaining = {(item.address, item.id) for item in evidence.state.objects}
    else:
        ended_well = evidence.exit_code == 0
        refs = not_deleted(inventory, evidence.journal, ended_well=ended_well)
        remaining = {(ref.address, ref.id) for ref in refs}
    remaining |= {(d.address, d.id) for d in marker.resources.in_doubt if d.action == "forget"}
    remaining |= {(ref.address, ref.id) for ref in forgotten_refs(marker)}  # they live on
    removed = tuple(ref for ref in inventory if (ref.address, ref.id) not in remaining)
    return SavedObjects(saved, _read(services, marker.target.step, saved), removed)


def _read(services: Services, step: str, saved: SavedState) -> bytes | None:
    place = _place(services, step, saved.run_id, saved.attempt)
    try:
        return place.read_bytes() if place else None
    except OSError:
        return None


def _place(services: Services, step: str, run_id: str, attempt: int) -> Path | None:
    """
    The file of the provider state that an attempt saved on this machine; None where there is none.
    """
    attempts = dict(services.files.attempts(run_id, step))
    return attempts[attempt] / STATE_BEFORE if attempt in attempts else None


def drop_saved_states(
    services: Services, entry: OperationRecord, *, marker: OperationRecord | None = None
) -> None:
    """
    Remove the kept provider states that no doubt of ``entry`` needs any more: that of its own run,
    that of the ``marker`` it follows, and those of doubts that were settled. Once nothing is there,
    the copy that the engine keeps beside a local state goes as well.
    """
    needed = {(d.saved.run_id, d.saved.attempt) for d in entry.resources.in_doubt if d.saved}
    settled = (item.doubt.saved for item in entry.settled if item.doubt.saved is not None)
    saved = {(entry.run_id, entry.attempt), *((s.run_id, s.attempt) for s in settled)}
    if marker is not None:
        saved.add((marker.run_id, marker.attempt))
    for run_id, attempt in sorted(saved - needed):
        place = _place(services, entry.target.step, run_id, attempt)
        if place is not None:
            with contextlib.suppress(OSError):  # not ours to remove any more
                place.unlink(missing_ok=True)
    if entry.status in NOTHING_THERE and entry.provider_state is not None:
        services.workdirs.drop_state_backup(entry.provider_state)
