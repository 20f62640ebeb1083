"""
Confirms absence: queries the provider for what a destroy removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.app.steps.guards import check_vanished
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.app.steps.provider_query import (
    QueryContext,
    ScratchRoot,
    keep_state,
    scratch_root,
)
from orchestrator.domain.provider_query.query import (
    Answer,
    ProviderQuery,
    QueryResult,
    RefreshResult,
    unexplained,
)
from orchestrator.domain.provider_query.scope import differing
from orchestrator.domain.provider_state import PulledState, is_encrypted
from orchestrator.domain.record.entry_changes import EntryChanges
from orchestrator.domain.record.objects import (
    CheckedState,
    Doubt,
    ObjectKey,
    ObjectRef,
    SavedState,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.absence import (
    ABSENCE_TIMEOUT,
    AbsenceFinding,
    MutationEvidence,
    absence_findings,
    absence_method,
    describe_remaining,
    has_remote_side,
    with_explanation,
)
from orchestrator.domain.transitions.assessment import not_deleted
from orchestrator.domain.transitions.conclusion import forgotten_refs, is_parent_destroy
from orchestrator.domain.values import replace
from orchestrator.errors import OrchestratorError

# Provider states from before a destroy, saved until the provider has confirmed what it removed.
#
# They stay on this machine, readable to their owner only: nothing else knows the objects well
# enough to ask for them.


#: The file in the directory of the destroy's attempt. It holds secrets.
STATE_BEFORE = "before.tfstate"


class SavedObjects(Struct, frozen=True):
    """
    Objects whose absence is to be confirmed, and the saved provider state that holds them; ``raw``
    is None if it is not on this machine.
    """

    saved: SavedState
    raw: bytes | None
    objects: tuple[ObjectRef, ...]


def awaiting_confirmation(
    record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[Doubt]:
    """
    Return the doubts that a kept provider state could answer, except at ``forgotten`` addresses.
    """
    doubts = record.resources.in_doubt
    return [d for d in doubts if d.saved is not None and d.address not in forgotten]


def saved_objects(
    services: Services, record: OperationRecord, *, forgotten: Collection[str] = ()
) -> list[SavedObjects]:
    """
    Return the objects of a record that earlier destroys removed and that are not confirmed gone, by
    saved state; none at ``forgotten`` addresses.
    """
    by_state: dict[SavedState, set[ObjectKey]] = {}
    for doubt in awaiting_confirmation(record, forgotten=forgotten):
        if doubt.saved is not None:
            by_state.setdefault(doubt.saved, set()).add(doubt.key)
    return [
        SavedObjects(
            saved,
            _read(services, record.target.step, saved),
            tuple(ref for ref in record.resources.inventory if ref.key in keys),
        )
        for saved, keys in by_state.items()
    ]


def removed_objects(
    services: Services, marker: OperationRecord, saved: SavedState, evidence: MutationEvidence
) -> SavedObjects:
    """
    Return the objects that the destroy of a marker removed from provider state and that were not in
    doubt before.
    """
    inventory = marker.resources.inventory
    if evidence.state is not None:
        remaining = {item.key for item in evidence.state.objects}
    else:
        ended_well = evidence.exit_code == 0
        refs = not_deleted(inventory, evidence.journal, ended_well=ended_well)
        remaining = {ref.key for ref in refs}
    remaining |= {d.key for d in marker.resources.in_doubt if d.action == "forget"}
    remaining |= {ref.key for ref in forgotten_refs(marker)}  # they live on
    removed = tuple(ref for ref in inventory if ref.key not in remaining)
    return SavedObjects(saved, _read(services, marker.target.step, saved), removed)


def _read(services: Services, step: str, saved: SavedState) -> bytes | None:
    path = _saved_state_path(services, step, saved.run_id, saved.attempt)
    try:
        return path.read_bytes() if path else None
    except OSError:
        return None


def _saved_state_path(services: Services, step: str, run_id: str, attempt: int) -> Path | None:
    """
    Return the file of the provider state that an attempt saved on this machine, None if there is
    none.
    """
    attempts = dict(services.files.attempts(run_id, step))
    return attempts[attempt] / STATE_BEFORE if attempt in attempts else None


def drop_saved_states(
    services: Services, entry: OperationRecord, *, marker: OperationRecord | None = None
) -> None:
    """
    Remove the kept provider states that no doubt of ``entry`` needs any more: of its own run, of
    the ``marker`` it follows, and of settled doubts. Once nothing exists, the engine's backup of a
    local state is removed, too.
    """
    needed = {(d.saved.run_id, d.saved.attempt) for d in entry.resources.in_doubt if d.saved}
    settled = (item.doubt.saved for item in entry.settled if item.doubt.saved is not None)
    saved = {(entry.run_id, entry.attempt), *((s.run_id, s.attempt) for s in settled)}
    if marker is not None:
        saved.add((marker.run_id, marker.attempt))
    for run_id, attempt in sorted(saved - needed):
        path = _saved_state_path(services, entry.target.step, run_id, attempt)
        if path is not None:
            with contextlib.suppress(OSError):  # not ours to remove any more
                path.unlink(missing_ok=True)
    if entry.status in NOTHING_THERE and entry.provider_state is not None:
        services.workdirs.drop_state_backup(entry.provider_state)


# The provider, asked.


_LONGEST_PAUSE = 30.0


def check_objects_visible(
    context: QueryContext, proposal: CheckedPlan, options: PlanOptions
) -> CheckedPlan:
    """
    Query the provider whether it sees the objects of a plan that was made without a refresh, and
    return the plan: a wrong scope would not have been noticed.

    Raises Refused as `check_vanished` does. Objects that cannot be queried do not stop it; but then
    a destroy that needs the provider's confirmation will not get it.
    """
    step, record, before = context.prepared.step, context.prepared.record, proposal.before
    refs = before.inventory
    here = SavedState(run_id="", host="", scope=context.scope(refs))
    findings = confirm_absence(context, [SavedObjects(here, before.raw, refs)], wait=0.0)
    state_of = {finding.key: finding for finding in findings}
    remote = [item for item in before.objects if has_remote_side(item.provider)]
    states = {item: state_of[item.key] for item in remote}
    gone = tuple(item for item in remote if states[item].state == "gone")
    visible = [item for item in remote if states[item].state == "remaining"]
    target = f"{record.target}" if record else step.name
    refresh = RefreshResult(gone, unexplained(gone, visible))
    check_vanished(target, before, refresh, accepted=options.accept_vanished)
    if absence_method(options.verify_absence, step.verify_absence, record) != "provider":
        return proposal
    unsure = unexplained([item for item in remote if states[item].state == "unknown"], visible)
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
    context: QueryContext, options: PlanOptions, before: PulledState, *, run_id: str, attempt: int
) -> EntryChanges:
    """
    Return the fields of a destroy's marker that say how absence will be confirmed. If the provider
    is to be queried, the provider state that the destroy is about to empty is kept durably.
    """
    step, record = context.prepared.step, context.prepared.record
    method = absence_method(options.verify_absence, step.verify_absence, record)
    if method == "state":
        return {"verify_absence": method, "saved_state": None}
    saved = _save_state(context, before, run_id=run_id, attempt=attempt)
    return {"verify_absence": method, "saved_state": saved}


def _save_state(
    context: QueryContext, before: PulledState, *, run_id: str, attempt: int
) -> SavedState:
    keep_state(context.services, context.prepared, before, context.evidence, STATE_BEFORE)
    return SavedState(
        run_id=run_id,
        attempt=attempt,
        host=context.services.actor.host,
        scope=context.scope(before.inventory),
    )


def with_state_to_ask(
    context: QueryContext, marker: OperationRecord, options: PlanOptions, before: PulledState
) -> OperationRecord:
    """
    Return the marker of an apply; if it destroys objects and the provider is to confirm that, with
    the prior provider state, kept durably.
    """
    step, record = context.prepared.step, context.prepared.record
    planned = marker.resources.planned
    removed = {item.address for item in planned if item.action in ("delete", "replace")}
    remote = any(has_remote_side(o.provider) for o in before.objects if o.address in removed)
    method = absence_method(options.verify_absence, step.verify_absence, record)
    if not remote or method == "state":
        return marker
    saved = _save_state(context, before, run_id=marker.run_id, attempt=marker.attempt)
    return marker.model_copy(update={"saved_state": saved})


def with_absence_findings(
    context: QueryContext, marker: OperationRecord, evidence: MutationEvidence
) -> MutationEvidence:
    """
    Return the evidence with the provider's answers: after a destroy about the objects that it or an
    earlier destroy removed, if requested; after an apply about objects that it removed and the
    provider still has.

    After a successful destroy the query is repeated until the time is over or a signal comes; after
    any other mutation it is made once; after a stop not at all.
    """
    if marker.active_command == "apply" and marker.saved_state is not None:
        return _with_remaining(context, marker, marker.saved_state, evidence)
    emptied = marker.active_command == "destroy" and not is_parent_destroy(marker)
    if not emptied or evidence.touched_nothing:
        return evidence
    services = context.services
    objects = saved_objects(services, marker)
    if marker.saved_state is not None:
        objects.append(removed_objects(services, marker, marker.saved_state, evidence))
    if services.stop.stopping or evidence.stopped or evidence.state is None:
        findings = unasked_findings(objects)
    else:
        findings = confirm_absence(
            context, objects, wait=absence_timeout(context) if evidence.clean else 0.0
        )
    return replace(
        evidence, absence_findings=findings, stopped=evidence.stopped or services.stop.stopping
    )


def _with_remaining(
    context: QueryContext, marker: OperationRecord, saved: SavedState, evidence: MutationEvidence
) -> MutationEvidence:
    """
    Return the evidence of an apply with the objects that it removed from provider state and the
    provider still has. Without an answer an object is taken as gone, as the engine reported.
    """
    stop = context.services.stop
    if evidence.state is None or evidence.touched_nothing or stop.stopping:
        return evidence
    in_state = {(item.type, item.id) for item in evidence.state.objects}
    removed = removed_objects(context.services, marker, saved, evidence)
    removed = replace(
        removed,  # a moved object has another address, and is the same
        objects=tuple(ref for ref in removed.objects if (ref.type, ref.id) not in in_state),
    )
    wait = absence_timeout(context) if evidence.clean else 0.0
    findings = confirm_absence(context, [removed], wait=wait)
    still = tuple(item for item in findings if item.state in ("remaining", "terminating"))
    return replace(evidence, absence_findings=still, stopped=evidence.stopped or stop.stopping)


def recheck_absence(
    context: QueryContext,
    record: OperationRecord,
    *,
    wait: float,
    forgotten: Collection[str] = (),
) -> tuple[AbsenceFinding, ...]:
    """
    Query the provider again, as `confirm_absence` does, for objects that earlier destroys removed
    and that are not confirmed gone, except at ``forgotten`` addresses.
    """
    objects = saved_objects(context.services, record, forgotten=forgotten)
    return confirm_absence(context, objects, wait=wait)


def absence_timeout(context: QueryContext) -> float:
    """
    Return for how many seconds an accepted delete may still be under way.
    """
    return context.prepared.step.absence_timeout or ABSENCE_TIMEOUT


def confirm_absence(
    context: QueryContext, objects: Sequence[SavedObjects], *, wait: float
) -> tuple[AbsenceFinding, ...]:
    """
    Query the provider for each object. For those it still has the query is repeated with growing
    pauses, for ``wait`` seconds or until a signal.
    """
    services, step = context.services, context.prepared.step.name
    findings = {
        (item.saved, finding.key): finding
        for item in objects
        for finding in unasked_findings([item])
    }
    if all(item.state == "gone" for item in findings.values()):
        return tuple(findings.values())
    services.report_phase(step, "readback")
    began, pause = services.clock.monotonic(), 1.0
    with contextlib.ExitStack() as stack:
        checks = [_AbsenceCheck(context, item, stack) for item in objects]
        while True:
            for check in checks:
                findings |= check.ask(findings)
            waited = services.clock.monotonic() - began
            remaining = describe_remaining(findings.values())
            if not remaining or waited >= wait or services.stop.stopping:
                break
            pause = max(1.0, min(pause, wait - waited))
            services.note(f"still there, asked for again in {pause:.0f} s: {remaining}", step=step)
            services.pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
    over: CheckedState = "terminating" if services.stop.stopping else "remaining"
    return tuple(
        with_explanation(replace(item, state=over) if item.state == "terminating" else item)
        for item in findings.values()
    )


def unasked_findings(objects: Sequence[SavedObjects]) -> tuple[AbsenceFinding, ...]:
    """
    Return findings without a query: only objects that exist in provider state alone are gone.
    """
    return tuple(
        with_explanation(AbsenceFinding(ref, "requested", saved=item.saved))
        if has_remote_side(ref.provider)
        else AbsenceFinding(ref, "gone", "it existed in provider state only", item.saved)
        for item in objects
        for ref in item.objects
    )


_Findings = Mapping[tuple[SavedState, ObjectKey], AbsenceFinding]


class _AbsenceCheck:
    """
    The objects of one saved provider state, queried in one scratch root as often as needed. The
    root is created for the first query; if that fails, the reason is the answer for all objects.
    """

    def __init__(
        self, context: QueryContext, objects: SavedObjects, stack: contextlib.ExitStack
    ) -> None:
        self._context = context
        self._saved_objects = objects
        self._stack = stack
        self._root: ScratchRoot | None = None
        self._state = b""
        self._obstacle = self._reason_not_to_ask()

    def ask(self, findings: _Findings) -> dict[tuple[SavedState, ObjectKey], AbsenceFinding]:
        """
        Query the provider for the objects that are not known to be gone.
        """
        saved = self._saved_objects.saved
        open_ = {
            key: item
            for (of, key), item in findings.items()
            if of == saved and item.state != "gone"
        }
        if not open_:
            return {}
        try:
            result = self._result(open_)
        except OrchestratorError as exc:
            result = _unknown(open_, exc.message.splitlines()[0])
        refs = [item.ref for item in open_.values()]
        return {
            (saved, item.key): item
            for item in absence_findings(refs, result, saved)
            # A signal cut it short: what was known before still is.
            if not (item.state == "unknown" and self._context.services.stop.stopping)
        }

    def _result(self, open_: Mapping[ObjectKey, AbsenceFinding]) -> QueryResult:
        inputs, raw = self._context.inputs, self._saved_objects.raw
        if self._obstacle or inputs is None or raw is None:
            return _unknown(open_, self._obstacle)
        if self._root is None:
            services = self._context.services
            name = f"absence-{services.ids.entry_id()[:8]}"
            evidence = services.files.inside(self._context.evidence, name)
            root = scratch_root(services, self._context.prepared, evidence)
            try:
                self._root = self._stack.enter_context(root)
                self._state = self._root.decrypted(raw).raw if is_encrypted(raw) else raw
            except OrchestratorError as exc:
                self._obstacle = exc.message.splitlines()[0]
                raise
        state, objects = self._context.services.engine.isolated_state(self._state, open_.keys())
        snapshot = self._context.prepared.snapshot
        configurations = {item.configuration for item in objects.values()}
        untrusted = frozenset(filter(snapshot.configuration_depends_on_resources, configurations))
        query = ProviderQuery(saved=objects, untrusted=untrusted, state=state)
        return self._root.ask(query, inputs)

    def _reason_not_to_ask(self) -> str:
        context, saved = self._context, self._saved_objects.saved
        if self._saved_objects.raw is None:
            return f"the provider state from before is not here, but on {saved.host}"
        if context.inputs is None:
            return context.why
        providers = {ref.provider for ref in self._saved_objects.objects}
        moved = differing(saved.scope, context.scope(self._saved_objects.objects), providers)
        if moved:
            return f"this is not the scope it was destroyed in: {', '.join(moved)} differ"
        return ""


def _unknown(open_: Mapping[ObjectKey, AbsenceFinding], why: str) -> QueryResult:
    return QueryResult(saved=dict.fromkeys(open_, Answer("unknown", why=why)))
