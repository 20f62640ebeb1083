"""
What the use cases need from outside, as small protocols whose docstrings state laws.

Adapters do not inherit from these; each passes the contract suite in tests/contract. The file is
long because all laws of all adapters stand in this one place, with the shapes that they exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.domain.record.states import Liveness as Liveness

if TYPE_CHECKING:  # the shapes cost a reading command more to import than it has to do
    from orchestrator.domain.blueprint.blueprint import Module, Protected, Reach, Variable
    from orchestrator.domain.events.engine_messages import Message, PulledState, StateObject
    from orchestrator.domain.events.events import Event, PlanReady
    from orchestrator.domain.record.record import (
        Check,
        Claim,
        Json,
        Lease,
        OperationRecord,
        ProcessIdentity,
        RunRecord,
    )
    from orchestrator.domain.record.state_lock import StateLock
    from orchestrator.domain.target import Target


class Clock(Protocol):
    """
    Time arrives as an argument.
    """

    def now(self) -> datetime:
        """
        The time in UTC.
        """

    def monotonic(self) -> float:
        """
        Seconds that only grow.
        """

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """
    Randomness arrives as an argument.
    """

    def run_id(self, now: datetime) -> str:
        """
        A new run id; ids sort by time.
        """

    def entry_id(self) -> str: ...


class Sink(Protocol):
    """
    Takes events. May be called from several threads at once, and must not raise.
    """

    def emit(self, event: Event) -> None: ...


class Approver(Protocol):
    """
    Asks a person. Called by one thread at a time.
    """

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        """
        Whether the plan may be carried out.
        """

    def agree(self, what: str) -> bool:
        """
        Whether this may be done; ``what`` says it in one line.
        """


class StopToken(Protocol):
    """
    Whether somebody asked us to stop. ``killing`` only after the third Ctrl-C.
    """

    @property
    def stopping(self) -> bool: ...

    @property
    def killing(self) -> bool: ...

    @property
    def exit_code(self) -> int:
        """
        What a run ends with that was stopped by it: 130 or 143; 0 while nobody asked.
        """


class OperationStore(Protocol):
    """
    Operation records, claims, leases and blobs. Safe to use from several threads.

    Any method raises StoreUnavailable where the store cannot be reached, written, or holds what
    cannot be read; what cannot be read is never treated as empty.
    """

    @property
    def url(self) -> str:
        """
        Where it is, without credentials.
        """

    def probe(self) -> None:
        """
        Prove by a real, durable write that it can be written; leaves nothing behind.
        """

    def newest(self, target: Target) -> OperationRecord | None:
        """
        The newest entry of the target; None where there has never been one.
        """

    def append(self, record: OperationRecord) -> None:
        """
        Append entry N for its target if N-1 is the newest and N does not exist.

        Durable when it returns. Of two appends with one sequence exactly one returns; the other
        raises Fenced and changes nothing. Appending the same ``entry_id`` again returns: the answer
        to our own write was lost.
        """

    def history(self, target: Target) -> list[OperationRecord]:
        """
        All entries of the target, newest first.
        """

    def records(
        self, blueprint: str | None = None, environment: str | None = None
    ) -> list[OperationRecord]:
        """
        The newest entry of every target there, sorted by target.
        """

    def take_claim(self, claim: Claim, *, replaces: Claim | None = None) -> Claim | None:
        """
        Take the claim of a blueprint and environment; None on success, else the holder's.

        With ``replaces`` it is taken only if exactly that one is held, or none any more.
        Taking a claim that the same run holds succeeds.
        """

    def drop_claim(self, claim: Claim) -> None:
        """
        Give the claim up. Nothing happens where another run holds it.
        """

    def claim(self, blueprint: str, environment: str) -> Claim | None: ...

    def put_lease(self, lease: Lease) -> None:
        """
        Write the heartbeat of a run, stamped by the store's clock.
        """

    def lease(self, run_id: str) -> Lease | None:
        """
        The lease of a run, its age by the store's clock.
        """

    def drop_lease(self, run_id: str) -> None: ...

    def put_blob(self, name: str, data: bytes) -> None:
        """
        Store bytes under a name, durable when it returns; the same name again replaces them.
        """

    def blob(self, name: str) -> bytes | None: ...

    def blobs(self, prefix: str) -> list[str]:
        """
        The names that begin with ``prefix``, sorted.
        """

    def close(self) -> None: ...


class Spool(Protocol):
    """
    Outcomes that could not be recorded, on local disk, until they are.
    """

    def put(self, record: OperationRecord) -> Path:
        """
        Keep the record durably; returns the file.
        """

    def pending(self) -> list[OperationRecord]:
        """
        What waits, oldest first.
        """

    def drop(self, record: OperationRecord) -> None: ...


class RunFiles(Protocol):
    """
    The evidence directories of runs: 0700, files 0600, written whole or not at all.
    """

    def directory(self, run_id: str) -> Path: ...

    def attempt(self, run_id: str, step: str, number: int) -> Path:
        """
        The directory of a step's attempt, made if need be.
        """

    def write(self, path: Path, text: str) -> None:
        """
        Write a file durably by rename.
        """

    def write_run(self, run: RunRecord) -> None: ...

    def read_run(self, run_id: str) -> RunRecord | None: ...

    def runs(self) -> list[str]:
        """
        The ids of the runs on this machine, newest first.
        """

    def inside(self, attempt: Path, name: str) -> Path:
        """
        A directory of its own inside an attempt's, made if need be.
        """

    def sweep(self, run_id: str, *, settled: str | None = None) -> None:
        """
        Remove what a run left unmasked, private directories included, but for what its mutating
        calls said: that is evidence until they are settled. Of the step ``settled`` remove that
        too.
        """

    def private(self, attempt: Path) -> AbstractContextManager[Path]:
        """
        A directory inside an attempt's for files that hold secrets: removed at the end, by `sweep`
        where that was not reached.
        """

    def attempts(self, run_id: str, step: str) -> list[tuple[int, Path]]:
        """
        The attempts of a step that left files on this machine, by number.
        """

    def scratch(self) -> AbstractContextManager[Path]:
        """
        A private directory for the evidence of a reading command, removed at the end.
        """

    def engine_identities(self, run_id: str, step: str) -> list[ProcessIdentity]:
        """
        The processes of all engine calls that a step of a run left on this machine.
        """

    def late(self) -> list[Path]:
        """
        The files, on this machine, of outcomes that came too late to be recorded.
        """

    def engine_identity(self, run_id: str, step: str, number: int) -> ProcessIdentity | None:
        """
        The process of an attempt's mutating engine call, read without touching anything; None
        where its files are not on this machine or it never began.
        """


class Processes(Protocol):
    """
    Who we are and whether another process still is.
    """

    def me(self) -> ProcessIdentity: ...

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        """
        GONE only if proven: same host and pid namespace, and the pid is free or reused, or the
        host has booted since.
        """


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """
    The engine in use: ``program`` is the argv that starts it, ``why`` says how it was chosen.
    """

    kind: Literal["terraform", "tofu"]
    version: str
    program: tuple[str, ...]
    source: Literal["option", "blueprint", "record", "path", "embedded"]
    why: str


@dataclass(frozen=True, slots=True)
class Init:
    """
    ``init -reconfigure``; with ``upgrade`` providers are chosen anew.
    """

    upgrade: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """
    ``plan -json -out``.
    """

    out: Path
    mode: Literal["normal", "destroy", "refresh-only"] = "normal"
    var_file: Path | None = None
    refresh: bool = True
    replace: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parallelism: int | None = None
    lock_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """
    ``apply -json`` of a plan file. ``var_file`` only where the module has ephemeral variables.
    """

    plan: Path
    var_file: Path | None = None
    parallelism: int | None = None
    lock_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """
    ``state pull``.
    """


@dataclass(frozen=True, slots=True)
class Import:
    """
    ``import``: take an object that exists into the provider state, at an address.
    """

    address: str
    id: str
    var_file: Path | None = None
    lock_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Untaint:
    """
    ``untaint``: an object that was marked for replacement is sound.
    """

    address: str
    lock_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """
    ``state push`` of a file; the engine itself checks lineage and serial.
    """

    state: Path
    lock_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class Unlock:
    """
    ``force-unlock`` of the lock with this id.
    """

    lock_id: str


@dataclass(frozen=True, slots=True)
class Exec:
    """
    Any other command of the engine, as a person typed it.
    """

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """
    Another program than the engine, carried out as its calls are: the command of an action. A name
    with "/" starts at the directory of the call.
    """

    argv: tuple[str, ...]


Surgery = Import | Untaint | Push | Unlock | Exec
Request = Init | Plan | Apply | Pull | Surgery | Program


@dataclass(frozen=True, slots=True)
class CallSpec:
    """
    Where an engine call runs and leaves its evidence.

    ``directory`` is the working directory, ``evidence`` the attempt's directory; ``name`` is unique
    in it. ``delete_after`` are files the wrapper removes when the call ends, whoever is alive then.
    ``timeout`` and ``grace`` in seconds: at the timeout the engine gets its one SIGINT; SIGKILL
    once the grace since the SIGINT, whatever it was for, has passed. None means no limit.
    """

    directory: Path
    evidence: Path
    name: str
    mask: Callable[[str], str] = str
    environment: Mapping[str, str] = field(default_factory=dict)
    delete_after: tuple[Path, ...] = ()
    timeout: float | None = None
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """
    How an engine call ended. ``exit_code`` is None where the engine or its wrapper was killed.

    ``messages`` are all that it printed. ``complete``: the event file ends with a whole line and
    the answer file exists. ``stopped``: we sent SIGINT. ``lock`` is the state lock that somebody
    else holds, as the engine described it.
    """

    exit_code: int | None
    messages: tuple[Message, ...]
    complete: bool
    stopped: bool = False
    timed_out: bool = False
    lock: StateLock | None = None
    stdout: Path | None = None
    stderr_text: str = ""


@dataclass(frozen=True, slots=True)
class RecoveredCall:
    """
    What is left on disk of an engine call of an earlier process.

    ``started`` is False only where it is certain that the engine never started and never will.
    """

    started: bool
    liveness: Liveness
    result: CallResult


class Engine(Protocol):
    """
    One terraform or tofu program.

    The engine runs in a session of its own with its output in files, so that our death does not
    end it; it gets at most one SIGINT from us, however often we are asked to stop.
    """

    @property
    def info(self) -> EngineInfo: ...

    def call(
        self,
        request: Request,
        spec: CallSpec,
        *,
        stop: StopToken,
        observe: Callable[[Message], None],
    ) -> CallResult:
        """
        Run it to its end. ``observe`` gets each message once, in order, masked, as it appears.

        EngineFailed(phase="engine") where it cannot be started at all.
        """

    def recover_call(self, spec: CallSpec, *, complete_log: bool = True) -> RecoveredCall:
        """
        What an earlier call with this spec left. A call that had not begun is made impossible.

        With ``complete_log`` the masked log is written anew from all that the call said.
        """

    def discard(self, spec: CallSpec) -> None:
        """
        Remove what the call left unmasked; its masked log stays.
        """

    def pulled_state(self, result: CallResult) -> PulledState:
        """
        The state that a ``Pull`` printed; EngineFailed where it is none.
        """

    def state_in_file(self, file: Path) -> PulledState:
        """
        The state in a file that an engine left; EngineFailed(phase="surgery") where it is none.
        """

    def state_in_plan(self, plan: Path) -> PulledState | None:
        """
        The provider state that a saved plan was made on, as it was before the refresh; None where
        the plan file does not tell.
        """

    def emptied_state(self, state: PulledState) -> str:
        """
        The text of the provider state that follows this one and holds nothing, for a ``Push``.
        """

    def isolated_state(
        self, state: bytes, wanted: Collection[tuple[str, str | None]]
    ) -> tuple[bytes, Mapping[str, StateObject]]:
        """
        A provider state of the ``wanted`` objects (address, id) of ``state``, and which
        object each of its addresses stands for. Refreshed beside the same configuration, each is
        asked for by the provider configuration that manages it, whatever becomes of the others.

        EngineFailed where ``state`` is no provider state.
        """


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    A module and the local modules it uses, content-addressed.

    ``digest`` is "sha256:..."; ``module_path`` is where the module lies inside ("." or "a/b");
    ``archive`` is a deterministic tar that `WorkDirs.unpack` takes back; ``has_lock_file``
    tells that the module brings a lock file of its own.
    """

    digest: str
    module_path: str
    archive: bytes
    variables: Mapping[str, Variable]
    provider_sources: Mapping[str, str]
    provider_blocks: tuple[str, ...] = ()
    provider_uses: Mapping[str, str] | None = None
    has_lock_file: bool = False
    provider_reach: Mapping[str, Reach] | None = None
    protected: tuple[Protected, ...] = ()

    def uses_provider(self, provider: str) -> bool:
        """
        Whether a configuration of the provider with this local name is of any use to the module.
        """
        uses = self.provider_uses
        return uses is None or provider in uses or provider in self.provider_sources

    @property
    def all_provider_sources(self) -> Mapping[str, str]:
        """
        The source addresses of the providers that the module is known to use, by local name.
        """
        return {**(self.provider_uses or {}), **self.provider_sources}

    def configuration_depends_on_resources(self, configuration: str) -> bool:
        """
        Whether the module makes a provider configuration, named as a `StateObject` names it, from
        managed objects. That of a module in it may be, and that of a snapshot from before it was
        noted.
        """
        if configuration.startswith("module."):
            return True
        source, _, alias = configuration.removeprefix('provider["').partition('"]')
        names = self.provider_blocks if self.provider_reach is None else (*self.provider_reach,)
        for name in names:
            label, _, own = name.partition(".")
            if not f"/{source}".endswith(
                f"/{self.all_provider_sources.get(label, f'hashicorp/{label}')}"
            ):
                continue
            if self.provider_reach is None:
                return True
            if own == alias.removeprefix(".") and self.provider_reach[name].objects:
                return True
        return False

    def provider_may_depend_on_resources(self, name: str) -> bool:
        """
        The same of a provider's local name, whichever its alias; of one that the module does not
        have, whether it configures any so.
        """
        reach = self.provider_reach
        if reach is None:
            return bool(self.provider_blocks)
        own = [
            item
            for key, item in reach.items()
            if name in (key.partition(".")[0], key.removeprefix("module."))
        ]
        if own:
            return any(item.objects for item in own)
        known = {*self.provider_sources, *(self.provider_uses or ())}
        return name not in known and any(item.objects for item in reach.values())

    def provider_may_depend_on_variable(self, variable: str) -> bool:
        """
        Whether the module configures a provider with what it is given for a variable; one that was
        stored before that was noted may.
        """
        if self.provider_reach is None:
            return bool(self.provider_blocks)
        return any(variable in reach.variables for reach in self.provider_reach.values())


@dataclass(frozen=True, slots=True)
class Secret:
    """
    A sensitive leaf in provider configuration: passed as a variable, never written in a file.
    """

    value: Json


@dataclass(frozen=True, slots=True)
class WorkDirConfig:
    """
    What is generated around a snapshot: backend and provider configuration (values may hold
    Secret), and the lock file to start from.
    """

    backend_type: str
    backend_config: Mapping[str, Json]
    providers: Mapping[str, Json] = field(default_factory=dict)
    lock_file: bytes | None = None


@dataclass(frozen=True, slots=True)
class WorkDir:
    """
    A working directory, ready for ``init``.

    ``location`` names the provider state as the record holds it; ``variables`` are extra values for
    the variable file (secrets of provider configuration). ``init_needed`` is False where the last
    init of this directory still holds.
    """

    directory: Path
    location: str
    backend_type: str
    variables: Mapping[str, Json]
    init_needed: bool


class WorkDirs(Protocol):
    """
    Snapshots of modules and the working directories made from them.
    """

    def lock(self, blueprint: str, environment: str) -> AbstractContextManager[None]:
        """
        Be the only process that uses these working directories; Busy where another one does. Who
        dies lets go.
        """

    def snapshot(self, module: Module) -> Snapshot:
        """
        Pack a module. Invalid where it reaches for files outside itself and its local modules.
        """

    def unpack(self, archive: bytes) -> Snapshot:
        """
        A stored snapshot, parsed as untrusted; StoreUnavailable where it is damaged.
        """

    def empty_snapshot(self) -> Snapshot:
        """
        A module that holds nothing: enough where only the provider state matters.
        """

    def prepare(
        self, target: Target, snapshot: Snapshot, setup: WorkDirConfig, engine: str
    ) -> WorkDir:
        """
        Lay out the target's working directory. What the engine left there (``.terraform``,
        ``errored.tfstate``, lock file) stays. ``engine`` is its kind and version, as text.
        """

    def mark_initialised(self, root: WorkDir) -> None:
        """
        Remember that ``init`` succeeded in it.
        """

    def lock_file(self, root: WorkDir) -> bytes | None: ...

    def make_state_private(self, root: WorkDir) -> None:
        """
        Make provider state that the engine wrote on this machine readable to its owner only.
        """

    def errored_state(self, root: WorkDir) -> Path | None:
        """
        The ``errored.tfstate`` that lies in the directory.
        """

    def set_aside(self, root: WorkDir, place: Path) -> Path:
        """
        Move ``errored.tfstate`` out of the directory into ``place``, 0600; where it is then.
        """

    def scratch_copy(
        self, root: WorkDir, place: Path, *, state: bytes, extra: Mapping[str, str]
    ) -> WorkDir:
        """
        The configuration of ``root`` in the directory ``place``, on a local copy of ``state`` (none
        where it is empty): what is asked there changes neither ``root`` nor its provider state.

        ``extra`` are further files by name. It holds secrets: the caller removes ``place``.
        """


class Checks(Protocol):
    """
    The ``verify`` checks: http, tcp, command.
    """

    def run(
        self, kind: str, settings: Mapping[str, Json], *, directory: Path, stop: StopToken
    ) -> Check:
        """
        Run one check until it holds or its ``within`` has passed. Never raises for a failing check.
        """
