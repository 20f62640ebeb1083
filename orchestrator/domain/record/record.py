"""
The operation record of a target: wire format ``orchestrator.operation/1`` and domain value in one.

Every entry carries the whole record. Unknown fields of a newer minor version survive a round trip.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.domain.record.states import Status
from orchestrator.domain.target import HookKind, Target
from orchestrator.domain.text import Json as Json
from orchestrator.domain.text import Word

SCHEMA = "orchestrator.operation/1"

Phase = Literal[
    "settings", "blueprint", "module", "engine", "init", "plan", "lock",
    "apply", "verify", "destroy", "readback", "record", "surgery",
]  # fmt: skip
Command = Literal[
    "apply", "destroy", "verify", "import", "adopt", "untaint", "push", "unlock",
    "forget", "reconcile", "compensate", "before_destroy", "retain", "release", "exec",
]  # fmt: skip
CheckedState = Literal["requested", "terminating", "gone", "remaining", "unknown", "forgotten"]
AbsenceMethod = Literal["state", "provider"]
#: How absence is established where it rests on the word of a person.
PERSON = "person"
#: Stands for a value that nobody is shown.
SENSITIVE = "(sensitive)"
#: Commands that change provider state and no remote object.
SURGERY: frozenset[Command] = frozenset({"import", "untaint", "push", "unlock", "exec"})

Settlement = Literal["forgotten", "accepted", "in_state", "refreshed", "absent", "adopted", "gone"]

#: Whose an object is: ours is proven; found exists, by whom is not known; foreign is disproven.
Ownership = Literal["ours", "found", "foreign"]

#: ``unknown`` is an action of the engine that this version does not know: it counts as a change.
Action = Literal[
    "create", "update", "delete", "replace", "read", "forget", "import", "noop", "unknown"
]


class RecordModel(BaseModel):
    """
    A value that is also a wire format: immutable, unknown fields kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, defer_build=True)


class TargetRef(RecordModel):
    blueprint: Word
    environment: Word
    step: Word

    @property
    def target(self) -> Target:
        return Target(self.blueprint, self.environment, self.step)


class Diagnostic(RecordModel):
    """
    One diagnostic of the engine, masked. ``address`` is None where the engine names none.
    """

    severity: Literal["error", "warning"] = "error"
    summary: str
    detail: str = ""
    address: Word | None = None
    at: Word | None = None  # "file:line" within the module

    @property
    def place(self) -> tuple[str | None, int | None]:
        """
        File and line.
        """
        file, _, line = (self.at or "").rpartition(":")
        return (file, int(line)) if file and line.isdecimal() else (self.at, None)


class Fault(RecordModel):
    """
    Why a target is in ``error``: stable code, phase and one-line summary. ``hook`` is set where it
    was a hook that failed, in the phase of the command that it belongs to.
    """

    code: Word
    phase: Phase
    summary: str
    resources: tuple[Word, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    retriable: bool = False
    hook: HookKind | None = None


class Attempt(RecordModel):
    """
    An attempt that left the status alone, kept beside it: one that changed nothing, or surgery,
    which changes provider state and no remote object.
    """

    command: Command
    run_id: Word
    at: datetime
    mutated: bool = False
    error: Fault | None = None


class Actor(RecordModel):
    user: Word
    host: Word
    ci: str | None = None  # name and job address of the CI system, where there is one


class OutputOrigin(RecordModel):
    """
    The run that a known output comes from.
    """

    run_id: Word
    at: datetime


class Source(RecordModel):
    revision: Word | None = None
    dirty: bool = False
    blueprint_path: Word  # relative to the project, with "/"


class EngineRef(RecordModel):
    kind: Literal["terraform", "tofu"]
    version: Word


class ProviderState(RecordModel):
    """
    Which provider state the target is bound to. ``location`` is the backend's address of it.
    """

    backend: Word
    location: Word
    workspace: Word = "default"
    lineage: Word | None = None
    serial: int | None = None


def object_name(address: str, deposed: str | None) -> str:
    """
    An object among those at its address.

    >>> object_name("a.b", None), object_name("a.b", "8a1b2c3d")
    ('a.b', 'a.b (deposed 8a1b2c3d)')
    """
    return f"{address} (deposed {deposed})" if deposed else address


class PlannedAction(RecordModel):
    """
    A planned action of the engine; an object that only moves is a ``noop`` with its
    ``previous_address``. ``engine_word`` is the engine's own for an unknown action. ``importing``
    is the import id of an object that is taken into the provider state first; ``deposed`` is the
    key of an object that its successor has displaced at the address.
    """

    address: Word
    action: Action
    previous_address: Word | None = None
    engine_word: Word | None = None
    importing: Word | None = None
    deposed: Word | None = None

    @property
    def name(self) -> str:
        """
        The object among those at its address.
        """
        return object_name(self.address, self.deposed)

    @property
    def imports(self) -> bool:
        """
        Whether it takes an object into the provider state.
        """
        return self.action == "import" or self.importing is not None


class ObjectRef(RecordModel):
    """
    An object of the provider state: never its attributes, only what names it.
    """

    address: Word
    type: Word
    provider: Word
    id: Word | None = None
    deposed: Word | None = None

    @property
    def name(self) -> str:
        """
        The object among those at its address.
        """
        return object_name(self.address, self.deposed)


class ManualSearch(RecordModel):
    """
    Where a person may look for an object that nobody can ask the provider for. ``inputs`` and
    ``provider`` (its configuration as the blueprint gives it) are masked. ``declare`` are lines by
    which the step in the blueprint ``file`` would have the provider asked.
    """

    since: datetime | None = None
    until: datetime
    inputs: dict[Word, str] = {}
    provider: dict[Word, str] = {}
    file: Word = ""
    declare: tuple[str, ...] = ()


class AdoptedObject(RecordModel):
    """
    An object that was taken into the provider state and is not proven ours (law: not ours until
    proven), and what speaks for and against.
    """

    address: str
    type: str
    id: str | None
    ownership: Ownership
    why: str
    run_id: str
    at: datetime


class Readback(RecordModel):
    """
    What the provider answered when it was asked for an object in doubt, and ``why`` that means no
    more. ``method`` is how it was asked: by its import id (``identity``, or the ``id`` that its
    create returned) or by a ``search``; ``ids`` are what was found, or the candidates.
    ``adoptable`` is False where the address of the object in doubt holds another one.
    ``ownership`` is set where one object was found; ``evidence`` is what speaks for and against.
    """

    verdict: Literal["exists", "absent", "unknown"]
    method: Literal["identity", "id", "search", "none"]
    ids: tuple[Word, ...] = ()
    adoptable: bool = True
    why: str
    at: datetime
    look: ManualSearch | None = None
    ownership: Ownership | None = None
    evidence: str | None = None

    @property
    def adopts(self) -> str | None:
        """
        The id under which the object may be adopted because it is proven ours; None where none was
        found, more than one, where nothing proves it, or where its address is taken.
        """
        return self._the_one() if self.ownership == "ours" else None

    @property
    def unproven(self) -> str | None:
        """
        The id of the only object that was found, where nothing proves whose it is.
        """
        return self._the_one() if self.ownership == "found" else None

    def _the_one(self) -> str | None:
        found = self.verdict == "exists" and self.adoptable and len(self.ids) == 1
        return self.ids[0] if found else None


class SavedState(RecordModel):
    """
    A provider state from before a destroy, kept beside the attempt that made it on that host until
    the provider has confirmed what was destroyed. ``scope`` is where the provider was asked then
    (`domain.scope`): names and keyed digests.
    """

    run_id: Word
    attempt: int = 1
    host: Word
    scope: tuple[tuple[Word, Word], ...] = ()


class Doubt(RecordModel):
    """
    An object of which evidence does not tell whether the last mutation made, changed or removed it.
    The action ``forget`` means that it left the provider state without being known to be gone: not
    by a delete of this tool, or by one that the provider has not confirmed; ``saved`` knows it.
    """

    address: Word
    action: Action
    started_at: datetime | None = None
    at: datetime | None = None  # when it was found
    id: Word | None = None
    why: str
    readback: Readback | None = None
    saved: SavedState | None = None

    def is_proven(self, object_id: str | None) -> bool:
        """
        Whether the object with this id is proven to be the one in doubt: its create returned that
        id, or the provider showed it to be ours.
        """
        if self.id is not None:
            return self.id == object_id
        found = self.readback
        return found is not None and found.ownership == "ours" and found.ids == (object_id,)


class SettledDoubt(RecordModel):
    """
    A doubt that is none any more, and how it was settled: by a person, or by evidence.
    """

    doubt: Doubt
    how: Settlement
    reason: str | None = None
    run_id: Word
    at: datetime


ReleaseReason = Literal["forgotten", "vanished"]


class ReleasedObject(RecordModel):
    """
    An object that we no longer manage and that nobody has proven gone: one that a plan forgot, or
    that its refresh did not find, in the run ``run_id``.
    """

    address: Word
    type: Word
    provider: Word
    id: str | None = None
    how: ReleaseReason
    reason: str | None = None
    run_id: Word
    at: datetime


class Resources(RecordModel):
    """
    What the last mutation planned, what its journal proves, what the provider state holds, and what
    of it was ``released`` at any time.
    """

    planned: tuple[PlannedAction, ...] = ()
    journal: Literal["complete", "partial", "missing"] | None = None
    imported: tuple[Word, ...] = ()
    created: tuple[Word, ...] = ()
    updated: tuple[Word, ...] = ()
    replaced: tuple[Word, ...] = ()
    deleted: tuple[Word, ...] = ()
    failed: tuple[Word, ...] = ()
    not_attempted: tuple[Word, ...] = ()
    tainted: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    inventory: tuple[ObjectRef, ...] = ()
    released: tuple[ReleasedObject, ...] = ()


class Retention(RecordModel):
    """
    Why a target is kept, who answers for it, and when somebody looks at it again; ``was`` is the
    status before.
    """

    reason: str
    owner: str
    review_by: Word
    was: Status | None = None


class Check(RecordModel):
    """
    The result of one ``verify`` check.
    """

    name: str
    passed: bool
    detail: str = ""


class Verification(RecordModel):
    verdict: Literal["verified", "failed", "unverified"]
    checks: tuple[Check, ...] = ()
    at: datetime


class CheckedObject(RecordModel):
    """
    An object whose absence was asked for: its delete was requested and nobody has asked since; the
    provider has it, and may still be deleting it; it is gone; it remains; or nothing can be told.
    A forgotten one is gone by the word of a person: ``why`` is their reason, ``run_id`` the run
    that wrote it down.
    """

    address: Word
    id: Word | None = None
    state: CheckedState
    why: str | None = None
    run_id: Word | None = None


class Absence(RecordModel):
    """
    How absence was established: ``method`` is state, provider, parent, never_applied, or person
    where it rests on anybody's word.
    """

    verdict: Literal["confirmed", "unconfirmed"]
    method: Word
    checked: tuple[CheckedObject, ...] = ()
    at: datetime


class PriorStatus(RecordModel):
    """
    How a target stood before an action of it began: what an action that ends well goes back to.
    """

    status: Status
    run_id: Word
    run_record: Word | None = None
    attempt: int = 1
    failed_command: Command | None = None
    last_error: str | None = None
    error: Fault | None = None


class HookResult(RecordModel):
    """
    What became of a declared action of a step, ``compensate`` or ``before_destroy``, the last time.

    ``unknown``: it may have run to its end or not. ``by`` is what the blueprint says of it, without
    values; ``target`` the target of its module. ``on`` are the objects that it was carried out for.
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


class Lineage(RecordModel):
    """
    The run that this one comes from: by retry, redeploy, rollback or promotion.
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
    rerun_inputs_file: Word | None = None
    run_record: Word | None = None

    project: Word
    target: TargetRef
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
    scope: tuple[tuple[Word, Word], ...] | None = None  # where they were asked (`domain.scope`)
    #: Keyed digest of how the provider state was encrypted, empty where it was not.
    state_encryption: Word = ""
    provider_state: ProviderState | None = None
    resources: Resources = Resources()
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
    deployment: Word | None = None  # the digest of what was applied (`domain.frozen`)
    verify_absence: AbsenceMethod | None = None  # as declared; of a destroy, as it is to be done
    saved_state: SavedState | None = None  # of a destroy under way that the provider is to confirm
    unavailable_secrets: tuple[Word, ...] = ()  # what a destroy went without, as it was told to
    previous_checksum: Word | None = None  # of the entry before, see `checksum_of`
    targets: tuple[Word, ...] = ()  # of a targeted apply; while it is set the target is not `ok`

    def to_json(self) -> str:
        """
        The record as one line of JSON, with the checksum over it.
        """
        document = self._document()
        return json.dumps(
            document | {"checksum": checksum_of(document)},
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def own_checksum(self) -> str:
        """
        The checksum that the record is stored with.
        """
        return checksum_of(self._document())

    def _document(self) -> dict[str, Json]:
        return self.model_dump(mode="json", by_alias=True)


def checksum_of(document: Mapping[str, Json]) -> str:
    """
    The checksum over everything that a record says, "sha256:" and 64 hex digits.

    What is empty does not count: a field that a later version adds, and that is empty by default,
    leaves the checksums of older entries as they are.
    """
    text = json.dumps(_without_empty(dict(document)), sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _without_empty(value: Json) -> Json:
    match value:
        case dict():
            said = {name: _without_empty(item) for name, item in value.items()}
            return {name: item for name, item in said.items() if not _is_empty(item)}
        case list():
            return [_without_empty(item) for item in value]
        case _:
            return value


def _is_empty(value: Json) -> bool:
    return value is None or value is False or value in ("", [], {})


class UnreadableRecord(Exception):
    """
    A stored record that is damaged or of a newer major schema: never to be treated as empty.
    """


def parse_record(text: str | bytes) -> OperationRecord:
    """
    The record in ``text``; UnreadableRecord where it is damaged or of a newer major schema.
    """
    try:
        data = json.loads(text)
        schema = data["schema"]
    except (ValueError, KeyError, TypeError) as exc:
        raise UnreadableRecord(f"not an operation record: {exc}") from exc
    name, _, version = str(schema).partition("/")
    if f"{name}/{version.split('.')[0]}" != SCHEMA:
        raise UnreadableRecord(f"schema {schema!r}; this version reads {SCHEMA!r}")
    known = data.pop("checksum", None)  # entries of older versions have none
    if known is not None and known != checksum_of(data):
        raise UnreadableRecord("damaged record: it is not what its checksum was made of")
    try:
        return OperationRecord.model_validate(data)
    except ValidationError as exc:
        fields = ", ".join(".".join(map(str, e["loc"])) for e in exc.errors())
        raise UnreadableRecord(f"damaged record: {fields}") from exc
