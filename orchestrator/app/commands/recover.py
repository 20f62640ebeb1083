"""
``recover``: the facts about every step, and the remedies. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from orchestrator.app.inspection.inspection import Inspection
from orchestrator.app.inspection.read_context import ReadContext, listed_targets, orphaned_targets
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.documents.recovery import (
    LastRun,
    LateOutcome,
    ManualGap,
    ObjectInDoubt,
    ProcessLiveness,
    RecoveryDocument,
    RecoveryStep,
    StepEvidence,
)
from orchestrator.domain.record.record import MISPLACED, Fault
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.record.verdicts import verdict_of, with_failed_attempt
from orchestrator.domain.recovery.advice import Advice, advise
from orchestrator.domain.recovery.commands import lock_hint, offers, window_of
from orchestrator.domain.recovery.context import RecoveryContext, Situation
from orchestrator.domain.recovery.messages import CODE_HINTS, hint_of
from orchestrator.domain.recovery.next_commands import (
    about_all,
    about_orphans,
    about_store,
    about_unadopted,
    about_unrecorded,
    after_children,
)
from orchestrator.domain.recovery.rerun_rules import APPLYING


def recover(
    reader: ReadContext,
    summary: BlueprintSummary,
    steps: Collection[str] | None = None,
    *,
    now: datetime,
    settle: float,
) -> RecoveryDocument:
    """
    Return the facts about a blueprint in an environment and the available remedies; with ``steps``
    only of those. ``settle`` is for how many seconds a dead engine's request may be under way.
    """
    inspection = Inspection(reader, summary, now=now, settle=settle)
    listed = listed_targets(summary, inspection.records, steps)
    advised = [advise(inspection.context(step)) for step in listed]
    rows = tuple(_step(inspection, item) for item in advised)
    conditions = {}
    for step in listed:
        record = inspection.newest.get(step)
        tried = record and with_failed_attempt(record, inspection.history.failed_attempt(step))
        conditions[step] = (tried, inspection.condition(step))
    waiting = any(row.status is StepStatus.PENDING or row.blocked_by for row in rows)
    ended_ok = [run for run in inspection.history.runs if _ended_ok(run)]
    verified = next((run for run in ended_ok if not _unverified(run)), None)
    orphaned = orphaned_targets(summary, inspection.records.values())
    refusal = inspection.refusal
    beyond = (
        *about_all(summary, advised, waiting=waiting),
        *after_children(summary, summary.graph.order, inspection.records),
        *about_orphans(summary, orphaned, inspection.records),
    )
    return RecoveryDocument(
        project=reader.project,
        blueprint=summary.blueprint,
        environment=summary.environment,
        verdict=verdict_of(conditions, summary.graph, orphaned),
        selected=() if steps is None else tuple(listed),
        steps=rows,
        last_verified_run=verified.run_id if verified else None,
        manual_gap=None if verified else _gap(summary, next(iter(ended_ok), None)),
        orphaned=orphaned,
        next=(
            *(about_unrecorded(summary, refusal) if inspection.unrecorded else ()),
            *about_unadopted(summary, advised),
            *(beyond if steps is None else ()),
        )
        if refusal is None
        else tuple(about_store(summary, refusal)),
    )


def _step(inspection: Inspection, advice: Advice) -> RecoveryStep:
    context, step = advice.context, advice.step
    record, fault = context.record, inspection.history.fault(step, context.record)
    waits = advice.recommended is None and advice.situation in (
        Situation.UNADOPTED,
        Situation.UNRECORDED,
        Situation.NEVER,
        Situation.UNMADE,
        Situation.FAILED,
    )
    return RecoveryStep.of(
        record,
        step=step,
        target=str(inspection.summary.target(step)),
        status=StepStatus(record.status) if record else StepStatus.PENDING,
        condition=inspection.condition(step),
        situation=advice.situation,
        hint=_hint(context, fault) if fault else None,
        blocked_by=tuple(context.unready) if waits else (),
        evidence=_evidence(inspection, context),
        actions=offers(advice),
        recommended=advice.recommended,
    )


def _hint(context: RecoveryContext, fault: Fault) -> str | None:
    if context.facts.left_lock is not None:
        return None  # the recommended command releases it
    if context.facts.lock is not None:
        return lock_hint(context, context.facts.lock)
    if context.facts.misplaced is None and fault.code in MISPLACED:
        return None  # it is the repeated run that names another place
    if context.facts.misplaced is not None and fault.code not in MISPLACED:
        return CODE_HINTS[context.facts.misplaced]
    return hint_of(fault, context.doubts)


def _evidence(inspection: Inspection, context: RecoveryContext) -> StepEvidence:
    record, facts, step = context.record, context.facts, context.step
    signs, last = inspection.signs.get(step), inspection.history.finding(step)
    lease = signs.lease if signs else None
    doubts = [(d, *window_of(record, d)) for d in record.resources.in_doubt] if record else []
    return StepEvidence.of(
        record,
        record.resources if record else None,
        facts,
        lease,
        command=(record.active_command or record.failed_command) if record else None,
        in_doubt=tuple(
            ObjectInDoubt.of(doubt, after=after, before=before) for doubt, after, before in doubts
        ),
        objects=len(record.live_objects) if record else 0,
        last_run=LastRun.of(*last) if last else None,
        processes=tuple(
            ProcessLiveness(role=role, host=identity.host, pid=identity.pid, state=state)
            for role, (identity, state) in (signs.processes.items() if signs else ())
        ),
        heartbeat_age=lease.age if lease else None,
        more_completed=sum(lease.more_completed.values()) if lease else 0,
        late=tuple(
            LateOutcome.of(outcome, file=str(file))
            for outcome, file in inspection.late
            if outcome.target.step == step
        ),
        inputs=record.resolved_inputs_file if record else None,
        action_roots=inspection.reader.hook_targets(inspection.records, step),
        parent=inspection.summary.steps[step].owned_by
        if step in inspection.summary.steps
        else None,
        children=context.children,
    )


def _gap(summary: BlueprintSummary, newest: RunRecord | None) -> ManualGap:
    """
    Return why there is no verified run; ``newest`` is the newest that ended ok.
    """
    where = f"{summary.blueprint}/{summary.environment}"
    if newest is None:
        message = (
            f"no run of {where} is known that ended ok: there is nothing to roll back to, and a "
            "person decides whether to continue or to destroy it"
        )
        return ManualGap(code="no_run", message=message)
    steps = _unverified(newest)
    listed = ", ".join(steps[:3]) + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")
    message = (
        f"no run of {where} is known to be verified: in {newest.run_id}, the newest that ended ok, "
        f"no check vouches for {listed}; a person must know that it was good"
    )
    return ManualGap(code="unverified", message=message, steps=steps)


def _ended_ok(run: RunRecord) -> bool:
    fine = (StepStatus.OK, StepStatus.RETAINED, StepStatus.SKIPPED)
    return (
        run.command in APPLYING
        and run.exit_code == 0
        and any(row.status is StepStatus.OK for row in run.steps)
        and all(row.status in fine for row in run.steps)
    )


def _unverified(run: RunRecord) -> tuple[str, ...]:
    return tuple(
        row.step
        for row in run.steps
        if row.status is StepStatus.OK
        and not (row.verification and row.verification.verdict == "verified")
    )
