"""
The records of a run beside those of its targets: run record, claim and lease; the lock of a state.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

import io
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Self, TypedDict

from msgspec import Struct
from pydantic import Field

from orchestrator.domain.record.objects import (
    Absence,
    Action,
    Doubt,
    ObjectRef,
    RecordModel,
    ReleasedObject,
)
from orchestrator.domain.record.record import (
    Actor,
    Diagnostic,
    EngineRef,
    Fault,
    Lineage,
    Retention,
    Source,
    Verification,
)
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.text import Json, Word


class StepRun(RecordModel):
    """
    The result of a step in a run.

    ``module_digest`` and ``lock_digest`` name the snapshot and the lock file that the run uses; a
    step skipped as ok has them only if it was applied from this very deployment. ``remaining`` are,
    after a destroy, the objects of a target that is not gone; ``released`` those that this run
    released; ``moved`` those that got another address. ``hint`` is the hint of ``error``, if it had
    one.
    """

    step: Word
    target: Word
    status: StepStatus
    blocked_by: tuple[Word, ...] = ()
    reason: str | None = None
    attempts: int = 0
    sequence: int | None = None
    error: Fault | None = None
    last_error: str | None = None
    hint: str | None = None
    absence: Absence | None = None
    verification: Verification | None = None
    warnings: tuple[Diagnostic, ...] = ()
    imported: tuple[Word, ...] = ()
    moved: tuple[Word, ...] = ()
    created: tuple[Word, ...] = ()
    updated: tuple[Word, ...] = ()
    replaced: tuple[Word, ...] = ()
    deleted: tuple[Word, ...] = ()
    not_attempted: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    directory: Word | None = None
    module_digest: Word | None = None
    lock_digest: Word | None = None
    retained: Retention | None = None
    remaining: tuple[ObjectRef, ...] = ()
    released: tuple[ReleasedObject, ...] = ()


class StepRunChanges(TypedDict, total=False):
    """
    The fields of a `StepRun` that its step may set.
    """

    status: StepStatus
    blocked_by: tuple[str, ...]
    reason: str | None
    attempts: int
    sequence: int | None
    error: Fault | None
    last_error: str | None
    hint: str | None
    absence: Absence | None
    verification: Verification | None
    warnings: tuple[Diagnostic, ...]
    imported: tuple[str, ...]
    moved: tuple[str, ...]
    created: tuple[str, ...]
    updated: tuple[str, ...]
    replaced: tuple[str, ...]
    deleted: tuple[str, ...]
    not_attempted: tuple[str, ...]
    in_doubt: tuple[Doubt, ...]
    directory: str | None
    module_digest: str | None
    lock_digest: str | None
    retained: Retention | None
    remaining: tuple[ObjectRef, ...]
    released: tuple[ReleasedObject, ...]


class RunRecord(RecordModel):
    """
    ``run.json``: one invocation that may mutate. Finished runs are never edited.

    ``deployment`` is the digest of the stored deployment of an applying run, ``store`` the URL of
    the operation store with its records, None with older versions. ``orphaned`` are, after a
    destroy, the targets that are alive and no longer in the blueprint. ``request_token`` is the
    caller's name for the request, which is carried out only once.
    """

    schema_: Word = Field(default="orchestrator.run/1", alias="schema")
    run_id: Word
    project: Word
    blueprint: Word
    environment: Word
    command: Word
    arguments: dict[Word, Json] = {}
    actor: Actor
    reason: str | None = None
    request_token: Word | None = None
    lineage: Lineage | None = None
    source: Source
    engine: EngineRef | None = None
    skipped_preflight: str | None = None
    deployment: Word | None = None
    store: Word | None = None
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    error: Fault | None = None
    steps: tuple[StepRun, ...] = ()
    orphaned: tuple[Word, ...] = ()

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2)


class RunChanges(TypedDict, total=False):
    """
    The fields of a `RunRecord` that change while the run goes on.
    """

    deployment: str
    steps: tuple[StepRun, ...]
    orphaned: tuple[str, ...]
    ended_at: datetime
    exit_code: int
    error: Fault | None


class ProcessIdentity(RecordModel):
    """
    A process, identified despite pid reuse. ``started`` is in kernel clock ticks since boot.
    """

    host: Word
    boot_id: Word
    pid: int
    pid_namespace: Word
    started: int


class Claim(RecordModel):
    """
    The right to mutate a blueprint in an environment: one run at a time, except jobs of one
    pipeline, which have the same ``request_token`` and no step in common. ``others`` are the claims
    of the other holders.
    """

    blueprint: Word
    environment: Word
    run_id: Word
    command: Word
    owner: ProcessIdentity
    actor: Actor
    taken_at: datetime
    request_token: Word | None = None
    steps: tuple[Word, ...] = ()
    others: tuple["Claim", ...] = ()

    @property
    def holders(self) -> tuple["Claim", ...]:
        """
        The claims of all holders, each without the others.
        """
        return (self.model_copy(update={"others": ()}), *self.others)

    def may_share(self, other: "Claim") -> bool:
        """
        Return whether the claim's run may work beside the run of the ``other`` claim.
        """
        request = (self.request_token, self.command)
        same = self.request_token is not None and request == (other.request_token, other.command)
        return same and not {*self.steps} & {*other.steps}

    def without(self, run_id: str) -> "Claim | None":
        """
        Return the claim after a run has released it, None if no other run holds it. The first
        remaining holder becomes its run, because a store lets the same run replace its claim.
        """
        remaining = (item for item in self.holders if item.run_id != run_id)
        holders = sorted(remaining, key=lambda item: item.run_id == self.run_id)
        return holders[0].model_copy(update={"others": tuple(holders[1:])}) if holders else None


class InFlight(RecordModel):
    """
    An object that a mutation works on. ``sequence`` is that of its marker, None in a lease of an
    earlier version.
    """

    target: Word
    address: Word
    action: Action
    started_at: datetime
    sequence: int | None = None


class Completed(InFlight):
    """
    An object that a mutation created, updated or deleted, with the id that the engine reported.
    """

    id: Word | None = None


#: How many completed objects a lease names.
NAMED = 500


#: Seconds without a heartbeat after which a run that cannot be seen counts as silent.
SILENCE = 60.0


class Lease(RecordModel):
    """
    The process of a run, the objects in flight, and the newest `NAMED` objects completed by
    mutations that are not concluded; ``more_completed`` counts the others by target. ``age`` is the
    seconds since the heartbeat by the store's clock, set when the lease is read.
    """

    run_id: Word
    owner: ProcessIdentity
    in_flight: tuple[InFlight, ...] = ()
    completed: tuple[Completed, ...] = ()
    more_completed: dict[Word, int] = {}
    age: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        names = (item.target for item in (*self.completed, *self.in_flight))
        return tuple(dict.fromkeys((*self.more_completed, *names)))

    def of(self, target: str, sequence: int | None = None) -> Self:
        """
        Return the part of the lease about one target, and, given the ``sequence`` of its marker,
        about one mutation.
        """

        def is_of_target(item: InFlight) -> bool:
            both_known = None not in (sequence, item.sequence)
            return item.target == target and not (both_known and item.sequence != sequence)

        more = {name: count for name, count in self.more_completed.items() if name == target}
        return self.model_copy(
            update={
                "in_flight": tuple(filter(is_of_target, self.in_flight)),
                "completed": tuple(filter(is_of_target, self.completed)),
                "more_completed": more,
            }
        )


class NextCommand(RecordModel):
    """
    A command that the reader may run next, and its purpose.
    """

    command: str
    why: str


# The evidence of a step in a run as one blob: one request, however many engine calls there were.


#: Bytes of all files of an archive together: one from a store is not believed about its size.
LIMIT = 256 * 1024**2
#: The same times in all archives: what is equal stays equal.
_TIME = (1980, 1, 1, 0, 0, 0)


def evidence_blob(run_id: str, step: str) -> str:
    return f"runs/{run_id}/evidence/{step}.zip"


def pack_evidence(files: Mapping[str, bytes]) -> bytes:
    """
    Return an archive of files by name; equal files give equal bytes.
    """
    import zipfile  # here: who only reads records need not wait for it

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack_evidence(data: bytes) -> dict[str, bytes]:
    """
    Return the files of an archive. Raises ValueError if it is none, or larger than `LIMIT`.

    >>> unpack_evidence(pack_evidence({"1/apply.log": b"done"}))
    {'1/apply.log': b'done'}
    """
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > LIMIT:
                raise ValueError("it holds too much")
            if not all(
                entry.filename.partition("/")[0].isdecimal()
                and entry.compress_type == zipfile.ZIP_DEFLATED
                for entry in entries
            ):
                raise ValueError("it holds what no attempt left")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, RuntimeError, EOFError) as exc:
        raise ValueError(str(exc)) from exc


# The lock of a provider state, as the engine describes its holder.


_CREATED = r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:\+0000 UTC|Z)"


_TEXT = (
    r"\bid (?P<id>[^\s,]+)"
    r"(?:, who (?P<who>[^,]+))?(?:, operation (?P<operation>[^,]+))?"
    r"(?:, created (?P<created>[^,;]+))?"
)

#: Backends whose locks end with what holds them, and what that is.
PASSING_LOCKS = {"pg": "the session", "local": "the process"}


class StateLock(Struct, frozen=True):
    """
    A held lock. ``id``, ``who`` (user@host), ``operation`` and ``created`` are the engine's own
    texts, None if not reported. ``raw_text`` is used if none is reported.

    >>> str(StateLock(id="1", who="ann@ci"))
    'id 1, who ann@ci'
    """

    id: str | None = None
    who: str | None = None
    operation: str | None = None
    created: str | None = None
    raw_text: str = ""

    def __str__(self) -> str:
        fields = (
            ("id", self.id),
            ("who", self.who),
            ("operation", self.operation),
            ("created", self.created),
        )
        return ", ".join(f"{label} {text}" for label, text in fields if text) or self.raw_text

    @property
    def since(self) -> datetime | None:
        """
        When it was taken, to the microsecond; None if unknown.
        """
        match = re.fullmatch(_CREATED, self.created or "")
        if match is None:
            return None
        return datetime.fromisoformat(f"{match[1]}T{match[2]}").replace(tzinfo=UTC)


def parse_lock(text: str) -> StateLock | None:
    """
    Return the lock described by a text such as a fault's summary, None if it has no id.

    >>> parse_lock("the provider state is locked: id 1, who ann@ci").who
    'ann@ci'
    """
    match = re.search(_TEXT, text)
    return StateLock(**match.groupdict()) if match else None


class RunPeriod(Struct, frozen=True):
    """
    A run that may have left a lock, and when it ran; ``ended`` is None if no end is known.
    """

    run_id: str
    actor: Actor
    began: datetime
    ended: datetime | None


def run_at(runs: Iterable[RunPeriod], since: datetime) -> RunPeriod | None:
    """
    Return the run that was active at a time. A target has only one run at a time, so it is the last
    that began before, unless that had ended.
    """
    last = max((run for run in runs if run.began <= since), key=lambda run: run.began, default=None)
    if last is None or (last.ended is not None and last.ended < since):
        return None
    return last


def unlock_objection(lock: StateLock, lock_id: str, runs: Iterable[RunPeriod]) -> str | None:
    """
    Return why the lock with the id ``lock_id`` cannot be attributed to these runs, None if it can.
    """
    if lock.id != lock_id:
        return f"the lock that is held is not {lock_id}"
    if lock.who is None or lock.since is None:
        return "the engine does not report who holds it and since when"
    run = run_at(runs, lock.since)
    if run is None:
        return "no run of ours was under way when it was taken"
    owner = f"{run.actor.user}@{run.actor.host}"
    if lock.who != owner:
        return f"run {run.run_id}, which was under way then, is of {owner}"
    return None
