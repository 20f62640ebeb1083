"""
The changes in a plan for display: values, inputs, warnings.
"""

from __future__ import annotations

from orchestrator.app.services import Services
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.blueprint.inputs import StepInputs, digest
from orchestrator.domain.blueprint.recorded_inputs import RecordedInputs, read_recorded_inputs
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.masking import Masker
from orchestrator.domain.plan.changes import (
    UNKNOWN,
    InputChange,
    PlanChanges,
    PlanContent,
    PlanDiagnostic,
)
from orchestrator.domain.record.record import SENSITIVE, Diagnostic, Fault, OperationRecord
from orchestrator.domain.redaction import redacted
from orchestrator.domain.secrets import value_at, without_leaves
from orchestrator.errors import EngineFailed, OrchestratorError, Refused, StoreUnavailable

# Which inputs of a step differ from those that it was applied with.


_NOT_SET = "not set: the default of the module"


def changed_inputs(applied: RecordedInputs, now: StepInputs, key: bytes) -> tuple[InputChange, ...]:
    """
    Return the inputs that differ. Secrets are compared by their keyed digests.
    """
    names = dict.fromkeys([*now.values, *applied.values])
    changes = (_changed_input(name, applied, now, key) for name in names)
    return tuple(change for change in changes if change is not None)


def _changed_input(
    name: str, applied: RecordedInputs, now: StepInputs, key: bytes
) -> InputChange | None:
    secrets = {path for path in (*applied.digests, *now.secrets) if path[0] == name}
    hidden = {path[1:] for path in secrets}
    before = without_leaves(applied.values.get(name), hidden)
    after = without_leaves(now.values.get(name), hidden)
    other_secret = False
    for path in secrets:
        new = value_at(dict(now.values), path)
        old = applied.digests.get(path) or digest(value_at(dict(applied.values), path), key)
        other_secret = other_secret or old != digest(new, key)
    if before == after and not other_secret:
        return None
    whole, known = () in hidden, after != UNKNOWN
    return InputChange(
        name=name,
        before=None if whole else before,
        after=None if whole or not known else after,
        known=known,
        sensitive=whole or other_secret,
        source=now.sources.get(name, _NOT_SET),
    )


def plan_changes(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs | None,
    content: PlanContent,
    journal: Journal,
) -> PlanChanges:
    """
    Return the changes in a plan, masked; ``inputs`` are compared with those of the last apply.
    """
    record, snapshot = prepared.record, prepared.snapshot
    changes = content.changes.model_copy(
        update={
            "inputs_changed": () if inputs is None else _inputs_changed(services, record, inputs),
            "module_changed": inputs is not None
            and record is not None
            and record.module_digest not in (None, snapshot.digest),
            "diagnostics": tuple(
                PlanDiagnostic.of_diagnostic(item) for item in dict.fromkeys(journal.diagnostics)
            ),
        }
    )
    # What the plan calls sensitive is hidden here, and no secret of the run: only who looks at a
    # plan has read it, and a record must not depend on whether somebody did.
    return redacted(redacted(changes, services.masker), Masker(content.secrets))


def _inputs_changed(
    services: Services, record: OperationRecord | None, inputs: StepInputs
) -> tuple[InputChange, ...]:
    if record is None or record.inputs_digest == inputs.digest(services.key):
        return ()
    try:
        text = recorded_inputs_text(services, record)
    except StoreUnavailable as exc:
        services.note(exc.message, level="warning")
        return ()
    if text is None:
        return ()
    applied = read_recorded_inputs(text, lambda _path, _origin: SENSITIVE)
    return changed_inputs(applied, inputs, services.key)


def recorded_inputs_text(services: Services, record: OperationRecord | None) -> bytes | None:
    """
    Return the document with a target's recorded inputs, None if it was never applied.

    Raises StoreUnavailable if neither the store nor the run on this machine has what the record
    names.
    """
    if record is None or record.resolved_inputs_file is None:
        return None
    stored = services.store.blob(record.resolved_inputs_file)
    match record.resolved_inputs_file.split("/", 4):
        case ["runs", run_id, "steps", _, name] if stored is None:  # an export has records only
            stored = services.files.masked(run_id, record.target.step).get(name)
        case _:
            pass
    if stored is None:
        raise StoreUnavailable(
            f"{record.target}: the recorded inputs {record.resolved_inputs_file} are "
            "not in the operation store",
            hint="is it the store that the target was applied with?",
        )
    return stored


def plan_fault(services: Services, exc: OrchestratorError) -> Fault:
    """
    Return why a step could not be planned.
    """
    code = exc.reason if isinstance(exc, Refused) else exc.code
    return Fault(code=code, phase="plan", summary=services.masker.mask(exc.message))


def diagnostics_of(exc: OrchestratorError) -> tuple[PlanDiagnostic, ...]:
    """
    Return the engine's diagnostics about a step that could not be planned.
    """
    diagnostics = exc.diagnostics if isinstance(exc, EngineFailed) else ()
    return tuple(
        PlanDiagnostic.of_diagnostic(item) for item in diagnostics if isinstance(item, Diagnostic)
    )
