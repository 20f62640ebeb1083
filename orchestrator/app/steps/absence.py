"""
Confirming absence: the provider is asked for what a destroy removed.

The provider state from before the destroy is kept, on this machine and readable to its owner only,
until the provider has confirmed all that the destroy removed: nothing else knows the objects well
enough to ask for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_vanished
from orchestrator.app.steps.planned_step import PlanOptions, StepPlan
from orchestrator.app.steps.provider_query import (
    QueryContext,
    SavedObjects,
    confirm_absence,
    unasked_findings,
)
from orchestrator.domain.destroy.absence import (
    AbsenceFinding,
    ObjectKey,
    absence_method,
    has_remote_side,
)
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.provider_query.refresh import RefreshResult, unexplained
from orchestrator.domain.record.assessment import inventory, not_deleted
from orchestrator.domain.record.conclusion import is_parent_destroy
from orchestrator.domain.record.entry_facts import DestroyFacts
from orchestrator.domain.record.faults import MutationEvidence
from orchestrator.domain.record.record import Doubt, OperationRecord, SavedState

#: The provider state from before a destroy, in its attempt's directory. It holds secrets.
BEFORE = "before.tfstate"


def check_objects_visible(asker: QueryContext, proposal: StepPlan, wishes: PlanOptions) -> StepPlan:
    """
    A proposal that was planned without a refresh, once the provider was asked all the same whether
    it sees the objects: no plan has noticed that the scope is a wrong one.

    Refused as `check_vanished` does. What cannot be asked for does not stop it; but a destroy that
    wants the provider's word on it will not have it.
    """
    step, record, before = asker.prepared.step, asker.prepared.record, proposal.before
    refs = inventory(before)
    here = SavedState(run_id="", host="", scope=asker.scope(refs))
    found = confirm_absence(asker, [SavedObjects(here, before.raw, refs)], patience=0.0)
    state_of = {finding.key: finding for finding in found}
    remote = [item for item in before.objects if has_remote_side(item.provider)]
    states = {item: state_of[item.address, item.id] for item in remote}
    gone = tuple(item for item in remote if states[item].state == "gone")
    there = [item for item in remote if states[item].state == "remaining"]
    target = f"{record.target.target}" if record else step.name
    seen = RefreshResult(gone, unexplained(gone, there))
    check_vanished(target, record, before, seen, accepted=wishes.accept_vanished)
    if absence_method(wishes.verify_absence, step.verify_absence, record) != "provider":
        return proposal
    unsure = unexplained([item for item in remote if states[item].state == "unknown"], there)
    doubts = (
        Doubt(
            address=item.address,
            action="forget",
            id=item.id,
            why=f"it was destroyed without having been seen: {states[item].why}",
        )
        for item in unsure
    )
    return replace(proposal, doubts=(*proposal.doubts, *doubts))


def absence_facts(
    asker: QueryContext, wishes: PlanOptions, before: PulledState, *, run_id: str, attempt: int
) -> DestroyFacts:
    """
    What the marker of a destroy says of how absence is to be confirmed. Where the provider is to be
    asked, the provider state that the destroy is about to empty is kept, durably.
    """
    step, record = asker.prepared.step, asker.prepared.record
    wanted = absence_method(wishes.verify_absence, step.verify_absence, record)
    if wanted == "state":
        return DestroyFacts(verify_absence=wanted)
    asker.services.files.write(asker.place / BEFORE, before.raw.decode())
    saved = SavedState(
        run_id=run_id,
        attempt=attempt,
        host=asker.services.actor.host,
        scope=asker.scope(inventory(before)),
    )
    return DestroyFacts(verify_absence=wanted, saved_state=saved)


def with_absence_findings(
    asker: QueryContext, marker: OperationRecord, evidence: MutationEvidence
) -> MutationEvidence:
    """
    The evidence of a destroy with what the provider says of the objects that it removed, where that
    is wanted, and of those that an earlier destroy removed.

    After a destroy that ended well what is still there is asked for again, until the time is over
    or a signal comes; after any other once; after one that a signal stopped not at all.
    """
    emptied = marker.active_command == "destroy" and not is_parent_destroy(marker)
    if not emptied or evidence.touched_nothing:
        return evidence
    services = asker.services
    wanted = _unconfirmed(services, marker)
    if marker.saved_state is not None:
        wanted.append(_removed(services, marker, marker.saved_state, evidence))
    if services.stop.stopping or evidence.stopped or evidence.state is None:
        findings = unasked_findings(wanted)
    else:
        findings = confirm_absence(
            asker, wanted, patience=asker.patience if evidence.clean else 0.0
        )
    return replace(
        evidence, absence_findings=findings, stopped=evidence.stopped or services.stop.stopping
    )


def recheck_absence(
    asker: QueryContext,
    record: OperationRecord,
    *,
    patience: float,
    forgotten: Collection[str] = (),
) -> tuple[AbsenceFinding, ...]:
    """
    What the provider says now of what earlier destroys removed and it has not confirmed, as
    `confirm` does; nothing of ``forgotten`` addresses.
    """
    wanted = _unconfirmed(asker.services, record, forgotten=forgotten)
    return confirm_absence(asker, wanted, patience=patience)


def awaiting_confirmation(
    record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[Doubt]:
    """
    The doubts that a kept provider state could answer, but for ``forgotten`` addresses.
    """
    doubts = record.resources.in_doubt
    return [d for d in doubts if d.saved is not None and d.address not in forgotten]


def _unconfirmed(
    services: Services, record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[SavedObjects]:
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


def _removed(
    services: Services, marker: OperationRecord, saved: SavedState, evidence: MutationEvidence
) -> SavedObjects:
    """
    What the destroy of a marker has removed from provider state and nobody has doubted before.
    """
    known = marker.resources.inventory
    if evidence.state is not None:
        held = {(item.address, item.id) for item in evidence.state.objects}
    else:
        ended_well = evidence.exit_code == 0
        left = not_deleted(known, evidence.journal, ended_well=ended_well)
        held = {(ref.address, ref.id) for ref in left}
    held |= {(d.address, d.id) for d in marker.resources.in_doubt if d.action == "forget"}
    removed = tuple(ref for ref in known if (ref.address, ref.id) not in held)
    return SavedObjects(saved, _read(services, marker.target.step, saved), removed)


def _read(services: Services, step: str, saved: SavedState) -> bytes | None:
    place = _place(services, step, saved.run_id, saved.attempt)
    try:
        return place.read_bytes() if place else None
    except OSError:
        return None


def _place(services: Services, step: str, run_id: str, attempt: int) -> Path | None:
    """
    Where it is on this machine, None where nothing of that attempt is.
    """
    attempts = dict(services.files.attempts(run_id, step))
    return attempts[attempt] / BEFORE if attempt in attempts else None


def drop_saved_states(
    services: Services, entry: OperationRecord, *, marker: OperationRecord | None = None
) -> None:
    """
    Remove the kept provider states that no doubt of ``entry`` needs any more: that of its own run,
    that of the ``marker`` it follows, and those of doubts that were settled.
    """
    needed = {(d.saved.run_id, d.saved.attempt) for d in entry.resources.in_doubt if d.saved}
    settled = (item.doubt.saved for item in entry.settled if item.doubt.saved is not None)
    kept = {(entry.run_id, entry.attempt), *((s.run_id, s.attempt) for s in settled)}
    if marker is not None:
        kept.add((marker.run_id, marker.attempt))
    for run_id, attempt in sorted(kept - needed):
        place = _place(services, entry.target.step, run_id, attempt)
        if place is not None:
            with contextlib.suppress(OSError):  # not ours to remove any more
                place.unlink(missing_ok=True)
