"""
What a new entry takes from elsewhere than the entry before it: who writes it, and what its run
knows of the target apart from evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from msgspec import Struct
from msgspec.structs import asdict

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
    """
    Who writes an entry, and when.
    """

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
    target: TargetRef
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


class RunFacts(Struct, frozen=True):
    """
    Where the run comes from, and the engine it uses.
    """

    source: Source
    engine: EngineRef | None
    lineage: Lineage | None = None


class ModuleFacts(Struct, frozen=True):
    """
    The module snapshot that the engine works on, the versions that its lock file pins, and the
    addresses without keys that ``prevent_destroy`` protects.
    """

    module_digest: str
    providers: Mapping[str, str]
    protected: tuple[str, ...] = ()


class AppliedFacts(Struct, frozen=True):
    """
    What an apply makes of the target. A destroy works from the recorded inputs and leaves these.

    The digest of the inputs and their files (paths relative to the tool's directory) are None where
    nothing was ever applied.
    """

    project: str
    target: TargetRef
    module_ref: str
    targets: tuple[str, ...] = ()
    inputs_digest: str | None = None
    resolved_inputs_file: str | None = None
    resolved_inputs_digest: str | None = None
    rerun_inputs_file: str | None = None
    parent: str | None = None
    needs: tuple[str, ...] = ()
    deployment: str | None = None
    verify_absence: AbsenceMethod | None = None
    scope: tuple[tuple[str, str], ...] | None = None
    state_encryption: str = ""


class DestroyFacts(Struct, frozen=True):
    """
    How a destroy is to confirm absence, and what it had to do without.
    """

    verify_absence: AbsenceMethod
    saved_state: SavedState | None = None
    unavailable_secrets: tuple[str, ...] = ()


class EntryFacts(Struct, frozen=True):
    """
    What a run knows of a target before it mutates it. A group that is None stays as recorded; the
    first entry of a target needs all but ``destroy``.
    """

    run_id: str
    attempt: int = 1
    provider_state: ProviderState | None = None
    run: RunFacts | None = None
    module: ModuleFacts | None = None
    applied: AppliedFacts | None = None
    destroy: DestroyFacts | None = None

    def changes(self) -> EntryChanges:
        """
        The fields that these facts set.
        """
        changes: EntryChanges = {
            "run_id": self.run_id,
            "run_record": f"runs/{self.run_id}",
            "attempt": self.attempt,
        }
        if self.provider_state is not None:
            changes["provider_state"] = self.provider_state
        # The destroy comes last: it may confirm absence in another way than the step declares.
        for group in (self.run, self.module, self.applied, self.destroy):
            if group is not None:
                changes.update(asdict(group))  # type: ignore[typeddict-item]
        return changes
