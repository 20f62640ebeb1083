"""
The engine: what it is asked, where its calls leave their evidence, and how they end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct, field

from orchestrator.domain.provider_state import is_newer

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.events.events import Message
    from orchestrator.domain.plan.changes import PlanContent
    from orchestrator.domain.provider_state import PulledState, StateObject
    from orchestrator.domain.record.state_lock import StateLock
    from orchestrator.domain.record.states import Liveness
    from orchestrator.domain.text import Json
    from orchestrator.ports.system import StopToken


#: What the engine is to plan.
PlanMode = Literal["normal", "destroy", "refresh-only"]


class EngineInfo(Struct, frozen=True):
    """
    The engine in use: ``program`` is the argv that starts it, ``why`` says how it was chosen.
    """

    kind: Literal["terraform", "tofu"]
    version: str
    program: tuple[str, ...]
    source: Literal["option", "blueprint", "record", "path", "embedded"]
    why: str

    @property
    def evaluates_early(self) -> bool:
        """
        Whether module sources may depend on variables, so that nothing is loaded without them:
        with OpenTofu, and with Terraform from 1.15 on.
        """
        return self.kind == "tofu" or not is_newer("1.15.0", self.version)

    @property
    def asks_for_approval(self) -> bool:
        """
        Whether one process can plan, wait to be approved, and apply, with its events in a file:
        with OpenTofu from 1.12 on.
        """
        return self.kind == "tofu" and not is_newer("1.12.0", self.version)


class Init(Struct, frozen=True):
    """
    ``init -reconfigure``; with ``upgrade`` providers are chosen anew. ``backend_file`` has settings
    of the backend beside those of the configuration.
    """

    backend_file: Path | None = None
    upgrade: bool = False


class Plan(Struct, frozen=True):
    """
    ``plan -json -out``. With ``detailed`` the exit code is 2 where the engine says that the plan
    changes something (``-detailed-exitcode``). Without ``lock`` it takes none on the state.
    """

    out: Path
    mode: PlanMode = "normal"
    var_file: Path | None = None
    refresh: bool = True
    replace: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parallelism: int | None = None
    lock_timeout: str | None = None
    detailed: bool = False
    lock: bool = True


class ShowPlan(Struct, frozen=True):
    """
    ``show -json`` of a plan file: what it holds, beside which the event stream is a summary.
    """

    plan: Path


class Apply(Struct, frozen=True):
    """
    ``apply -json`` of a plan file. ``var_file`` only where the module has ephemeral variables.
    """

    plan: Path
    var_file: Path | None = None
    parallelism: int | None = None
    lock_timeout: str | None = None


class PlanAndAsk(Struct, frozen=True):
    """
    ``apply`` without a plan file and without ``-auto-approve``: the call returns with what it plans
    once it asks for approval (``CallResult.waits``). With the same `CallSpec`, `Approve` or
    `Cancel` carries it on to its end.
    """

    var_file: Path
    parallelism: int | None = None
    lock_timeout: str | None = None


class Approve(Struct, frozen=True):
    """
    Have the apply that waits go on.
    """


class Cancel(Struct, frozen=True):
    """
    Have the apply that waits end without changing anything; nothing where none waits. The call of
    the same `CallSpec` may then be made anew.
    """


class Pull(Struct, frozen=True):
    """
    ``state pull``.
    """


class Import(Struct, frozen=True):
    """
    ``import``: take an object that exists into the provider state, at an address.
    """

    address: str
    id: str
    var_file: Path | None = None
    lock_timeout: str | None = None


class Untaint(Struct, frozen=True):
    """
    ``untaint``: take the mark for replacement off an object.
    """

    address: str
    lock_timeout: str | None = None


class Push(Struct, frozen=True):
    """
    ``state push`` of a file; the engine itself checks lineage and serial, unless with ``force``.
    """

    state: Path
    lock_timeout: str | None = None
    force: bool = False


class Unlock(Struct, frozen=True):
    """
    ``force-unlock`` of the lock with this id.
    """

    lock_id: str


class Exec(Struct, frozen=True):
    """
    Any other command of the engine, as a person typed it.
    """

    arguments: tuple[str, ...]


class Program(Struct, frozen=True):
    """
    Another program than the engine, carried out as its calls are: the command of a hook. A name
    with "/" starts at the directory of the call. A stop sends its SIGINT to all processes that the
    program has started, and none of them outlives a program that was stopped.
    """

    argv: tuple[str, ...]


Surgery = Import | Untaint | Push | Unlock | Exec
Request = Init | Plan | ShowPlan | Apply | PlanAndAsk | Approve | Cancel | Pull | Surgery | Program


class CallSpec(Struct, frozen=True):
    """
    Where an engine call runs and leaves its evidence.

    ``directory`` is the working directory, ``evidence`` the attempt's directory; ``name`` is unique
    in it. ``delete_after`` are files the wrapper removes when the call ends, whoever is alive then.
    ``timeout`` and ``grace`` in seconds: at the timeout the engine gets its one SIGINT; SIGKILL
    once the grace since the SIGINT, whatever it was for, has passed. None means no limit.
    ``early_values`` are variables without which OpenTofu cannot load the configuration: they reach
    it in a private file that is gone when the call ends. ``module`` is the path of the module for
    people: the places that diagnostics name are told under it. ``crash_log`` is the file for what a
    crashing engine says, where ``evidence`` does not last.
    """

    directory: Path
    evidence: Path
    name: str
    mask: Callable[[str], str] = str
    environment: Mapping[str, str] = field(default_factory=dict)
    delete_after: tuple[Path, ...] = ()
    timeout: float | None = None
    grace: float | None = None
    early_values: Mapping[str, Json] = field(default_factory=dict)
    module: str = ""
    crash_log: Path | None = None


class CallResult(Struct, frozen=True):
    """
    How an engine call ended. ``exit_code`` is None if the engine or its wrapper was killed.

    ``messages`` are all that it printed. ``complete``: the event file ends with a whole line and
    the answer file exists. ``stopped``: we sent SIGINT. ``lock`` is the state lock that somebody
    else holds, as the engine described it. ``waits``: it has not ended, see `PlanAndAsk`.
    """

    exit_code: int | None
    messages: tuple[Message, ...]
    complete: bool
    stopped: bool = False
    timed_out: bool = False
    lock: StateLock | None = None
    stdout: Path | None = None
    stderr_text: str = ""
    waits: bool = False


class RecoveredCall(Struct, frozen=True):
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

    def info_in(self, directory: Path) -> EngineInfo:
        """
        Return the program as it is in a directory: there a version manager may choose another
        engine.
        """

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

        Raises EngineFailed(phase="engine") if it cannot be started at all.
        """

    def check_program(self, request: Program, spec: CallSpec) -> None:
        """
        Raise EngineFailed(phase="engine") if the program is not there, or may not be executed.
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
        Return the state that a ``Pull`` printed; raises EngineFailed if it is none.
        """

    def state_in_file(self, file: Path) -> PulledState:
        """
        Return the state in a file that an engine left; raises EngineFailed(phase="surgery") if it
        is none.
        """

    def state_in_plan(self, plan: Path) -> PulledState | None:
        """
        Return the provider state that a saved plan was made on, as it was before the refresh; None
        if the plan file does not tell.
        """

    def refreshed_state_in_plan(self, plan: Path) -> PulledState | None:
        """
        Return the same provider state after the refresh of the plan.
        """

    def plan_content(self, result: CallResult) -> PlanContent:
        """
        What the call of a ``ShowPlan`` printed; raises EngineFailed if it cannot be read.
        """

    def emptied_state(self, state: PulledState) -> str:
        """
        Return the text of the provider state that follows this one and holds nothing, for a
        ``Push``.
        """

    def isolated_state(
        self, state: bytes, wanted: Collection[tuple[str, str | None]]
    ) -> tuple[bytes, Mapping[str, StateObject]]:
        """
        Return a provider state of the ``wanted`` objects (address, id) of ``state``, and which
        object each of its addresses stands for. Refreshed beside the same configuration, each is
        asked for by the provider configuration that manages it, whatever becomes of the others.

        Raises EngineFailed if ``state`` is no provider state.
        """
