"""
The additions of a new entry to the entry before it: who writes it, and which fields change.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from msgspec import Struct

from orchestrator.domain.record.objects import (
    Absence,
    AbsenceMethod,
    AdoptedObject,
    Resources,
    SavedState,
    SettledDoubt,
)
from orchestrator.domain.record.record import (
    Actor,
    Attempt,
    Command,
    Diagnostic,
    EngineRef,
    Fault,
    HookResult,
    Lineage,
    OutputOrigin,
    ProviderState,
    Retention,
    Source,
    TargetRef,
    Verification,
)
from orchestrator.domain.record.states import Status
from orchestrator.domain.text import Json


class EntryStamp(Struct, frozen=True):
    at: datetime
    entry_id: str
    actor: Actor


class EntryChanges(TypedDict, total=False):
    """
    The fields of a record that an entry may set, as `OperationRecord` declares them.
    """

    module_ref: str
    status: Status
    active_command: Command | None
    failed_command: Command | None
    last_error: str | None
    outputs: Mapping[str, Json]
    run_id: str
    resolved_inputs_file: str | None
    resolved_inputs_digest: str | None
    rerun_inputs_file: str | None
    run_record: str | None
    project: str
    target_ref: TargetRef
    sequence: int
    entry_id: str
    previous_status: Status | None
    updated_at: datetime
    started_at: datetime | None
    attempt: int
    actor: Actor
    error: Fault | None
    last_attempt: Attempt | None
    sensitive_outputs: tuple[str, ...]
    outputs_from: Mapping[str, OutputOrigin]
    masked_outputs: Mapping[str, Json]
    module_digest: str | None
    source: Source
    inputs_digest: str | None
    engine: EngineRef | None
    providers: Mapping[str, str]
    scope: tuple[tuple[str, str], ...] | None
    protected: tuple[str, ...]
    state_encryption: str
    provider_state: ProviderState | None
    resources: Resources
    parent: str | None
    retained: Retention | None
    retained_as_declared: bool
    verification: Verification | None
    warnings: tuple[Diagnostic, ...]
    absence: Absence | None
    lineage: Lineage | None
    compensation: HookResult | None
    before_destroy: HookResult | None
    settled: tuple[SettledDoubt, ...]
    adopted: tuple[AdoptedObject, ...]
    needs: tuple[str, ...]
    deployment: str | None
    verify_absence: AbsenceMethod | None
    saved_state: SavedState | None
    unavailable_secrets: tuple[str, ...]
    targets: tuple[str, ...]
    previous_checksum: str | None


def changes_in_run(
    run_id: str, *, attempt: int = 1, provider_state: ProviderState | None = None
) -> EntryChanges:
    """
    Return the fields that name an entry's run and attempt. Without ``provider_state`` the recorded
    one stays.
    """
    changes: EntryChanges = {
        "run_id": run_id,
        "run_record": f"runs/{run_id}",
        "attempt": attempt,
    }
    if provider_state is not None:
        changes["provider_state"] = provider_state
    return changes
