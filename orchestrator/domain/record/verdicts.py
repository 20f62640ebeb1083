"""
The verdict over the records of a blueprint, and what a record says beyond its status.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from orchestrator.domain.record.record import Attempt, HookResult, OperationRecord
from orchestrator.domain.record.states import (
    NOTHING_THERE,
    READY,
    Condition,
    Status,
    Verdict,
    verdict,
)
from orchestrator.domain.target import HookKind
from orchestrator.errors import InDoubt

#: What an attempt may have found instead of what is recorded as it should be, by its error's code.
FINDINGS = {
    InDoubt.code: "objects in doubt",
    "vanished": "none of its objects",
    "lineage": "another provider state",
    "serial_back": "an older provider state",
}


def is_unmade(record: OperationRecord | None) -> bool:
    """
    Return whether nothing of the target exists, and its newest apply or import failed before it
    made anything, or found other objects there: then the record from before is kept, with the
    failed attempt beside it.
    """
    if record is None or record.status not in NOTHING_THERE:
        return False
    attempt = record.last_attempt
    return attempt is not None and attempt.stands_beside


def with_failed_attempt(record: OperationRecord, tried: Attempt | None) -> OperationRecord:
    """
    Return the record with the newest attempt ``tried``, if it failed before it was recorded, and
    not with what is recorded as the error of its step already.
    """
    if tried is None or tried.run_id <= record.run_id or tried.error == record.error:
        return record
    return record.model_copy(update={"last_attempt": tried})


def finding(tried: Attempt | None) -> str | None:
    """
    Return what an attempt found instead of what is recorded, None if nothing.
    """
    return FINDINGS.get(tried.error.code) if tried is not None and tried.error else None


def is_partly_applied(record: OperationRecord | None) -> bool:
    """
    Return whether the newest apply succeeded, but was restricted to a part.
    """
    return record is not None and record.error is not None and record.error.code == "targeted"


def _status(record: OperationRecord | None) -> Status | None:
    if record is None:
        return None
    if is_partly_applied(record) and not record.resources.in_doubt:
        return Status.OK
    doubtful = record.resources.in_doubt or finding(record.last_attempt)
    in_doubt = record.status in READY and doubtful
    return Status.ERROR if in_doubt or is_unmade(record) else record.status


def verdict_of(
    rows: Mapping[str, tuple[OperationRecord | None, Condition | None]],
    steps: Container[str] = (),
    orphaned: Collection[str] = (),
) -> Verdict:
    """
    Return the verdict over the records of targets, each with its condition. A failed apply is an
    error even if nothing exists, and so is an ok step with an object in doubt, or whose newest
    attempt found something else than recorded. The blueprint is not destroyed while an orphan is
    alive.

    Beside ``steps`` of the blueprint, module hooks and orphans count only if they went wrong. What
    a hook made remains, and does not prevent the verdict destroyed. A step that was applied in
    part, as requested, is neither an error nor ok.
    """
    failing = (Status.ERROR, Status.RUNNING)
    own = [row for step, row in rows.items() if step in steps]
    others = [row for step, row in rows.items() if step not in steps]
    failed = [row for row in others if row[0] is not None and row[0].status in failing]
    counted = [*own, *failed] if own else others
    result = verdict((_status(record), condition) for record, condition in counted)
    if result is Verdict.OK and any(is_partly_applied(record) for record, _ in counted):
        return Verdict.PARTIAL
    gone = (Verdict.DESTROYED, Verdict.DESTROYED_WITH_RETAINED)
    return Verdict.PARTIAL if orphaned and result in gone else result


# The last run of a hook, as the record has it.


def last_hook_result(record: OperationRecord, kind: HookKind) -> HookResult | None:
    """
    Return the result of the hook's last run since the last apply.
    """
    return record.compensation if kind == "compensate" else record.before_destroy


def completed_before_destroy(record: OperationRecord) -> HookResult | None:
    """
    Return the result of a before_destroy hook that must not run again: since it ran, a destroy has
    deleted, or may have deleted, some of the objects it ran for.
    """
    last = record.before_destroy
    if last is None or last.verdict not in ("done", "skipped"):
        return None
    remaining = {ref.address for ref in record.resources.inventory}
    doubtful = any(doubt.of_a_delete for doubt in record.resources.in_doubt)
    return last if doubtful or not remaining.issuperset(last.on) else None


def is_compensated(record: OperationRecord | None) -> bool:
    """
    Return whether the last apply has been compensated since.
    """
    last = record.compensation if record is not None else None
    return last is not None and last.verdict == "done"


def is_hook_unknown(record: OperationRecord | None, kind: HookKind) -> bool:
    """
    Return whether the result of the hook is unknown: then repeating it requires a reason.
    """
    last = last_hook_result(record, kind) if record is not None else None
    return last is not None and last.verdict == "unknown"


def has_completed_work(record: OperationRecord) -> bool:
    return record.status is not Status.ERROR or bool(
        record.resources.inventory or record.outputs or record.sensitive_outputs
    )
