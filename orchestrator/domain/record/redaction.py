"""
The last look at a record before it is written: no secret leaves the process in it.
"""

from __future__ import annotations

from orchestrator.domain.masking import Masker
from orchestrator.domain.record.record import (
    Absence,
    Diagnostic,
    Doubt,
    Fault,
    HookResult,
    Lineage,
    OperationRecord,
    Retention,
    RunRecord,
    SettledDoubt,
    Verification,
)


def redacted(record: OperationRecord, masker: Masker) -> OperationRecord:
    """
    The record with every text masked that comes from an engine, a provider, a check or a person.

    An output that is not called sensitive but quotes a secret is masked too. Addresses, types and
    ids stay as they are: they name objects.
    """
    resources, attempt = record.resources, record.last_attempt
    doubts = tuple(_doubt(doubt, masker) for doubt in resources.in_doubt)
    return record.model_copy(
        update={
            "outputs": {name: masker.mask_json(value) for name, value in record.outputs.items()},
            "last_error": _text(record.last_error, masker),
            "error": _fault(record.error, masker),
            "resources": resources.model_copy(update={"in_doubt": doubts}),
            "verification": _verification(record.verification, masker),
            "absence": _absence(record.absence, masker),
            "settled": tuple(_settled(item, masker) for item in record.settled),
            "lineage": record.lineage and _lineage(record.lineage, masker),
            "retained": record.retained and redacted_retention(record.retained, masker),
            "compensation": _action(record.compensation, masker),
            "before_destroy": _action(record.before_destroy, masker),
            "last_attempt": attempt
            and attempt.model_copy(update={"error": _fault(attempt.error, masker)}),
        }
    )


def redacted_run(run: RunRecord, masker: Masker) -> RunRecord:
    """
    A run's record with what a person typed masked; its steps are when they are reported.
    """
    return run.model_copy(
        update={
            "arguments": masker.mask_json(run.arguments),
            "reason": _text(run.reason, masker),
            "skipped_preflight": _text(run.skipped_preflight, masker),
            "lineage": run.lineage and _lineage(run.lineage, masker),
        }
    )


def redacted_retention(retained: Retention, masker: Masker) -> Retention:
    """
    Why something is kept, as it may be seen.
    """
    said = {"reason": masker.mask(retained.reason), "owner": masker.mask(retained.owner)}
    return retained.model_copy(update=said)


def _action(action: HookResult | None, masker: Masker) -> HookResult | None:
    if action is None:
        return None
    was = action.was and action.was.model_copy(
        update={
            "last_error": _text(action.was.last_error, masker),
            "error": _fault(action.was.error, masker),
        }
    )
    said = {"by": masker.mask(action.by), "reason": _text(action.reason, masker), "was": was}
    return action.model_copy(update=said)


def _lineage(lineage: Lineage, masker: Masker) -> Lineage:
    return lineage.model_copy(update={"reason": _text(lineage.reason, masker)})


def _text(text: str | None, masker: Masker) -> str | None:
    return None if text is None else masker.mask(text)


def _doubt(doubt: Doubt, masker: Masker) -> Doubt:
    asked = doubt.readback and doubt.readback.model_copy(
        update={"why": masker.mask(doubt.readback.why)}
    )
    return doubt.model_copy(update={"why": masker.mask(doubt.why), "readback": asked})


def _settled(item: SettledDoubt, masker: Masker) -> SettledDoubt:
    doubt, reason = _doubt(item.doubt, masker), _text(item.reason, masker)
    return item.model_copy(update={"doubt": doubt, "reason": reason})


def _fault(fault: Fault | None, masker: Masker) -> Fault | None:
    if fault is None:
        return None
    found = tuple(_diagnostic(diagnostic, masker) for diagnostic in fault.diagnostics)
    return fault.model_copy(update={"summary": masker.mask(fault.summary), "diagnostics": found})


def _diagnostic(diagnostic: Diagnostic, masker: Masker) -> Diagnostic:
    return diagnostic.model_copy(
        update={
            "summary": masker.mask(diagnostic.summary),
            "detail": masker.mask(diagnostic.detail),
        }
    )


def _verification(verification: Verification | None, masker: Masker) -> Verification | None:
    if verification is None:
        return None
    checks = tuple(
        check.model_copy(
            update={"name": masker.mask(check.name), "detail": masker.mask(check.detail)}
        )
        for check in verification.checks
    )
    return verification.model_copy(update={"checks": checks})


def _absence(absence: Absence | None, masker: Masker) -> Absence | None:
    if absence is None:
        return None
    checked = tuple(
        item.model_copy(update={"why": _text(item.why, masker)}) for item in absence.checked
    )
    return absence.model_copy(update={"checked": checked})
