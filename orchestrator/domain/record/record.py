"""
The operation record of a target: wire format ``orchestrator.operation/1`` and domain value in one.

Every entry carries the whole record. Unknown fields of a newer minor version survive a round trip.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Literal

from pydantic import Field, ValidationError

from orchestrator.domain.record.objects import (
    Absence,
    AbsenceMethod,
    AdoptedObject,
    ObjectRef,
    RecordModel,
    RecordPart,
    Resources,
    SavedState,
    SettledDoubt,
)
from orchestrator.domain.record.states import Status
from orchestrator.domain.target import HookKind, Target
from orchestrator.domain.text import Json, Word, is_date

SCHEMA = "orchestrator.operation/1"

Phase = Literal[
    "settings", "blueprint", "module", "engine", "init", "plan", "lock",
    "apply", "verify", "destroy", "readback", "record", "surgery",
]  # fmt: skip
Command = Literal[
    "apply", "destroy", "verify", "import", "adopt", "untaint", "push", "unlock",
    "forget", "reconcile", "compensate", "before_destroy", "retain", "release", "exec",
]  # fmt: skip
#: The codes by which a refusal says that the provider state is not to be where it is recorded.
MISPLACED = frozenset({"backend_changed", "state_of_another"})
#: The codes by which a refusal says that what is there is not what is recorded.
CONTRADICTIONS = MISPLACED | {
    "unrecorded_state",
    "exists_already",
    "vanished",
    "in_doubt",
    "lineage",
    "serial_back",
}
#: Stands for a value that nobody is shown.
SENSITIVE = "(sensitive)"
#: Commands that change provider state and no remote object.
SURGERY: frozenset[Command] = frozenset({"import", "untaint", "push", "unlock", "exec"})


class TargetRef(RecordModel):
    blueprint: Word
    environment: Word
    step: Word


#: How a diagnostic begins that was made of an engine's crash.
CRASHED = "the engine crashed"


class Diagnostic(RecordPart):
    """
    A diagnostic of the engine, masked. ``address`` is None if the engine names none.
    """

    severity: Literal["error", "warning"] = "error"
    summary: str
    detail: str = ""
    address: Word | None = None
    at: Word | None = None  # "file:line" within the module

    @property
    def place(self) -> tuple[str | None, int | None]:
        """
        The file and the line.

        >>> Diagnostic(summary="no", at="main.tf:3").place, Diagnostic(summary="no").place
        (('main.tf', 3), (None, None))
        """
        file, _, line = (self.at or "").rpartition(":")
        return (file, int(line)) if file and line.isdecimal() else (self.at, None)


class Fault(RecordPart):
    """
    The reason why a target is in ``error``: stable code, phase and one-line summary. ``hook`` is
    set if a hook failed, in the phase of its command.
    """

    code: Word
    phase: Phase
    summary: str
    resources: tuple[Word, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    retriable: bool = False
    hook: HookKind | None = None


class Attempt(RecordPart):
    """
    An attempt that did not change the status and is kept beside it: one that changed nothing, or
    surgery, which changes provider state but no remote object.
    """

    command: Command
    run_id: Word
    at: datetime
    mutated: bool = False
    error: Fault | None = None

    @property
    def stands_beside(self) -> bool:
        """
        Whether it is shown beside the status: a failed apply or import, or anything that found a
        state that differs from the record.
        """
        if self.error is None:
            return False
        return self.command in ("apply", "import") or self.error.code in CONTRADICTIONS


class Actor(RecordPart):
    user: Word
    host: Word
    ci: str | None = None  # name and job address of the CI system, where there is one


class OutputOrigin(RecordModel):
    """
    The run that an output comes from.
    """

    run_id: Word
    at: datetime


class Source(RecordPart):
    revision: Word | None = None
    dirty: bool = False
    blueprint_path: Word  # relative to the project, with "/"


class EngineRef(RecordPart):
    kind: Literal["terraform", "tofu"]
    version: Word


class ProviderState(RecordModel):
    """
    The provider state that the target is bound to. ``location`` is its address in the backend.
    """

    backend: Word
    location: Word
    workspace: Word = "default"
    lineage: Word | None = None
    serial: int | None = None


class Retention(RecordPart):
    """
    The reason, owner and date of review of a retained target; ``was`` is the status before.
    """

    reason: str
    owner: str
    review_by: Word
    was: Status | None = None

    @property
    def words(self) -> tuple[str, str, str]:
        """
        The reason, owner and date, whoever set them.
        """
        return self.reason, self.owner, self.review_by

    def is_overdue(self, today: date) -> bool:
        """
        Return whether the review date has passed; an unreadable date counts as passed.
        """
        return not is_date(self.review_by) or self.review_by < today.isoformat()


class Check(RecordPart):
    """
    The result of one ``verify`` check.
    """

    name: str
    passed: bool
    detail: str = ""


class Verification(RecordPart):
    verdict: Literal["verified", "failed", "unverified"]
    checks: tuple[Check, ...] = ()
    at: datetime


class PriorStatus(RecordModel):
    """
    The status of a target before a hook began, which a successful hook restores.
    """

    status: Status
    run_id: Word
    run_record: Word | None = None
    attempt: int = 1
    failed_command: Command | None = None
    last_error: str | None = None
    error: Fault | None = None


class HookResult(RecordPart):
    """
    The result of the last run of a step's hook, ``compensate`` or ``before_destroy``. ``unknown``:
    it is not known whether it completed. ``by`` is its declaration without values; ``target`` the
    target of its module. ``on`` are the objects that it ran for.
    """

    verdict: Literal["running", "done", "failed", "unknown", "skipped"]
    by: str
    run_id: Word
    at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str | None = None
    target: Word | None = None
    on: tuple[Word, ...] = ()
    was: PriorStatus | None = None


class Lineage(RecordPart):
    """
    The run that this one repeats: by retry, redeploy, rollback or promotion.
    """

    kind: Word
    from_run: Word
    reason: str | None = None


class OperationRecord(RecordModel):
    """
    One entry: the whole record of a target as of ``sequence`` (from 1, without gaps).
    """

    schema_: Word = Field(default=SCHEMA, alias="schema")
    module_ref: Word
    status: Status
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    outputs: dict[Word, Json] = {}
    run_id: Word
    resolved_inputs_file: Word | None = None
    resolved_inputs_digest: Word | None = None  # of that file: the same ones are stored once
    rerun_inputs_file: Word | None = None
    run_record: Word | None = None

    project: Word
    target_ref: TargetRef = Field(alias="target")
    sequence: int = Field(ge=1)
    entry_id: Word
    previous_status: Status | None = None
    updated_at: datetime
    started_at: datetime | None = None
    attempt: int = 1
    actor: Actor
    error: Fault | None = None
    last_attempt: Attempt | None = None
    sensitive_outputs: tuple[Word, ...] = ()
    outputs_from: dict[Word, OutputOrigin] = {}
    #: Of the sensitive outputs those that only hold a secret somewhere, its leaves replaced.
    masked_outputs: dict[Word, Json] = {}
    module_digest: Word | None = None
    source: Source
    inputs_digest: Word | None = None
    engine: EngineRef | None = None
    providers: dict[Word, Word] = {}
    scope: tuple[tuple[Word, Word], ...] | None = (
        None  # where they were asked (`provider_query.scope`)
    )
    protected: tuple[Word, ...] = ()  # by prevent_destroy, addresses without keys
    #: Keyed digest of how the provider state was encrypted, empty where it was not.
    state_encryption: Word = ""
    provider_state: ProviderState | None = None
    resources: Resources = Resources.model_construct()  # built with the record, not before it
    parent: Word | None = None
    retained: Retention | None = None
    retained_as_declared: bool = False  # by the blueprint, not by a person
    verification: Verification | None = None
    warnings: tuple[Diagnostic, ...] = ()  # of the engine, in the last apply or its empty plan
    absence: Absence | None = None
    lineage: Lineage | None = None
    compensation: HookResult | None = None  # until the next apply, like the other
    before_destroy: HookResult | None = None
    settled: tuple[SettledDoubt, ...] = ()
    adopted: tuple[AdoptedObject, ...] = ()  # not proven ours
    needs: tuple[Word, ...] = ()  # the steps that it needs directly, as it was applied
    deployment: Word | None = None  # the digest of what was applied (`stored_deployment`)
    verify_absence: AbsenceMethod | None = None  # as declared; of a destroy, as it is to be done
    saved_state: SavedState | None = None  # of a destroy under way that the provider is to confirm
    unavailable_secrets: tuple[Word, ...] = ()  # what a destroy went without, as it was told to
    previous_checksum: Word | None = None  # of the entry before, see `checksum_of`
    targets: tuple[Word, ...] = ()  # of a targeted apply; while it is set the target is not `ok`

    @property
    def target(self) -> Target:
        return Target(self.target_ref.blueprint, self.target_ref.environment, self.target_ref.step)

    @property
    def deleted_in_state(self) -> tuple[ObjectRef, ...]:
        """
        Objects that the last mutation deleted and that provider state still holds: a destroy
        reported them but could not save its state, or a refresh did not find them.
        """
        unsaved = self.error is not None and self.error.code in ("errored_state", "state_put_aside")
        by_destroy = unsaved and self.failed_command == "destroy"
        reported = self.resources.deleted if by_destroy else ()
        since = self.started_at
        gone = {
            item.doubt.key
            for item in self.settled
            if item.how == "gone" and since is not None and item.at >= since
        }
        return tuple(
            ref for ref in self.resources.inventory if ref.name in reported or ref.key in gone
        )

    @property
    def live_objects(self) -> tuple[ObjectRef, ...]:
        """
        The objects of the inventory that may be alive.
        """
        deleted = self.deleted_in_state
        return tuple(ref for ref in self.resources.inventory if ref not in deleted)

    def unproven(self, objects: Iterable[ObjectRef]) -> tuple[AdoptedObject, ...]:
        """
        Return those of ``objects`` that were adopted and are not proven ours, at the addresses that
        they have now: type and id tell an object, because a move changes its address. One without
        an id is told by its address.
        """
        adopted = {_identity(item): item for item in self.adopted}
        return tuple(
            adopted[_identity(ref)].model_copy(update={"address": ref.address})
            for ref in objects
            if _identity(ref) in adopted
        )

    def to_json(self) -> str:
        """
        Return the record as one line of JSON with its checksum.
        """
        document = self.model_dump(mode="json", by_alias=True)
        return json.dumps(
            document | {"checksum": checksum_of(document)},
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def own_checksum(self) -> str:
        return checksum_of(self.model_dump(mode="json", by_alias=True))


def _identity(item: AdoptedObject | ObjectRef) -> tuple[str, str | None]:
    return (item.address if item.id is None else item.type, item.id)


def parent_of(
    record: OperationRecord, records: Mapping[str, OperationRecord]
) -> OperationRecord | None:
    """
    Return the record of the step that owns the target.
    """
    return records.get(Target.parse(record.parent).step) if record.parent else None


def checksum_of(document: Mapping[str, Json]) -> str:
    """
    Return the checksum over everything in a record, "sha256:" and 64 hex digits.

    Empty fields do not count: a field that a later version adds, empty by default, leaves the
    checksums of older entries unchanged.
    """
    text = json.dumps(_without_empty(dict(document)), sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _without_empty(value: Json) -> Json:
    match value:
        case dict():
            fields = {name: _without_empty(item) for name, item in value.items()}
            return {
                name: item
                for name, item in fields.items()
                if item is not None and item is not False and item not in ("", [], {})
            }
        case list():
            return [_without_empty(item) for item in value]
        case _:
            return value


class UnreadableRecord(Exception):
    """
    A stored record is damaged or of a newer major schema; it must not be treated as empty.
    """


class NewerRecord(UnreadableRecord):
    """
    A stored record is of a newer major schema.
    """


# The store is asked for the newest records more than once in a command; most are as they were.
@lru_cache(maxsize=1024)
def parse_record(text: str | bytes) -> OperationRecord:
    """
    Return the record in ``text``. Raises UnreadableRecord if it is damaged or of a newer major
    schema.
    """
    try:
        data = json.loads(text)
        schema = data["schema"]
    except (ValueError, KeyError, TypeError) as exc:
        raise UnreadableRecord(f"not an operation record: {exc}") from exc
    name, _, version = str(schema).partition("/")
    if f"{name}/{version.split('.')[0]}" != SCHEMA:
        raise NewerRecord(f"schema {schema!r}; this version reads {SCHEMA!r}")
    checksum = data.pop("checksum", None)  # entries of older versions have none
    if checksum is not None and checksum != checksum_of(data):
        raise UnreadableRecord("damaged record: it is not what its checksum was made of")
    try:
        return OperationRecord.model_validate(data)
    except ValidationError as exc:
        fields = ", ".join(".".join(map(str, e["loc"])) for e in exc.errors())
        raise UnreadableRecord(f"damaged record: {fields}") from exc
