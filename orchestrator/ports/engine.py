"""
The engine: its requests, the evidence of its calls, and their results.

The ``verb`` of a request is its name in files and logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from msgspec import Struct, field

from orchestrator.domain.provider_state import is_newer

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.events.events import Message
    from orchestrator.domain.plan.changes import PlanContent
    from orchestrator.domain.provider_state import PulledState, StateObject
    from orchestrator.domain.record.run_record import StateLock
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
        Whether module sources may use variables, so that no command loads the configuration without
        them: OpenTofu, and Terraform from 1.15.
        """
        return self.kind == "tofu" or not is_newer("1.15.0", self.version)

    @property
    def asks_for_approval(self) -> bool:
        """
        Whether one process can plan, wait for approval, and apply, with its events in a file:
        OpenTofu from 1.12.
        """
        return self.kind == "tofu" and not is_newer("1.12.0", self.version)


class Init(Struct, frozen=True):
    """
    ``init -reconfigure``; ``upgrade`` selects provider versions anew. ``backend_file`` holds
    backend settings beside those of the configuration, relative to the call's directory.
    """

    verb: ClassVar[str] = "init"
    backend_file: Path | None = None
    upgrade: bool = False


class Plan(Struct, frozen=True):
    """
    ``plan -json -out``. With ``detailed`` (``-detailed-exitcode``) the exit code is 2 if the plan
    has changes. Without ``lock`` the state is not locked.
    """

    verb: ClassVar[str] = "plan"
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
    ``show -json`` of a plan file: the full content, of which the event stream is a summary.
    """

    verb: ClassVar[str] = "show"
    plan: Path


class Apply(Struct, frozen=True):
    """
    ``apply -json`` of a plan file. ``var_file`` is given only if the module has ephemeral
    variables.
    """

    verb: ClassVar[str] = "apply"
    plan: Path
    var_file: Path | None = None
    parallelism: int | None = None
    lock_timeout: str | None = None


class PlanAndAsk(Struct, frozen=True):
    """
    ``apply`` without a plan file and without ``-auto-approve``: the call returns with the plan when
    the engine asks for approval (``CallResult.waits``). `Approve` or `Cancel` with the same
    `CallSpec` continues it to its end.
    """

    verb: ClassVar[str] = "apply"
    var_file: Path
    parallelism: int | None = None
    lock_timeout: str | None = None


class Approve(Struct, frozen=True):
    """
    Approve the waiting apply.
    """

    verb: ClassVar[str] = "approve"


class Cancel(Struct, frozen=True):
    """
    End the waiting apply without changes; does nothing if none waits. The call of the same
    `CallSpec` may be made again.
    """

    verb: ClassVar[str] = "cancel"


class Pull(Struct, frozen=True):
    """
    ``state pull``.
    """

    verb: ClassVar[str] = "pull"


class Import(Struct, frozen=True):
    """
    ``import``: add an existing object to the provider state, at an address.
    """

    verb: ClassVar[str] = "import"
    address: str
    id: str
    var_file: Path | None = None
    lock_timeout: str | None = None


class Untaint(Struct, frozen=True):
    """
    ``untaint``: remove the taint mark from an object.
    """

    verb: ClassVar[str] = "untaint"
    address: str
    lock_timeout: str | None = None


class Push(Struct, frozen=True):
    """
    ``state push`` of a file; the engine checks lineage and serial, unless ``force`` is set.
    """

    verb: ClassVar[str] = "push"
    state: Path
    lock_timeout: str | None = None
    force: bool = False


class Unlock(Struct, frozen=True):
    """
    ``force-unlock`` of the lock with this id.
    """

    verb: ClassVar[str] = "unlock"
    lock_id: str


class Exec(Struct, frozen=True):
    """
    Any other engine command, as the user typed it.
    """

    verb: ClassVar[str] = "exec"
    arguments: tuple[str, ...]


class Program(Struct, frozen=True):
    """
    A program other than the engine, run as an engine call: the command of a hook. A name with "/"
    is relative to the directory of the call. A stop sends SIGINT to all processes that the program
    has started; none of them outlives a stopped program.
    """

    verb: ClassVar[str] = "program"
    argv: tuple[str, ...]


Surgery = Import | Untaint | Push | Unlock | Exec
Request = Init | Plan | ShowPlan | Apply | PlanAndAsk | Approve | Cancel | Pull | Surgery | Program


class CallSpec(Struct, frozen=True):
    """
    Where an engine call runs and leaves its evidence.

    ``directory`` is the working directory, ``evidence`` the attempt's directory; ``name`` is unique
    in it. ``delete_after`` are files that the wrapper removes when the call ends, even if we are
    dead. ``timeout`` and ``grace`` are seconds, None for no limit: at the timeout the engine gets
    SIGINT; SIGKILL follows ``grace`` seconds after the SIGINT, whatever its reason.
    ``early_values`` are the variables that OpenTofu needs to load the configuration: they are
    passed in a private file that is removed when the call ends. ``module`` is the module's path for
    people: file names in diagnostics are shown below it. ``crash_log`` is the file for the output
    of a crashed engine, if ``evidence`` is temporary.
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
    The result of an engine call. ``exit_code`` is None if the engine or its wrapper was killed.

    ``messages`` are all that it printed. ``complete``: the event file ends with a whole line and
    the answer file exists. ``stopped``: we sent SIGINT. ``lock`` is the state lock that somebody
    else holds, as the engine described it. ``waits``: it has not ended, see `PlanAndAsk`. ``state``
    is the provider state that a `Pull` read without an engine.
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
    state: PulledState | None = None


class RecoveredCall(Struct, frozen=True):
    """
    The files of an engine call that an earlier process made.

    ``started`` is False only if it is certain that the engine never started and never will.
    """

    started: bool
    liveness: Liveness
    result: CallResult


class Engine(Protocol):
    """
    A terraform or tofu program.

    The engine runs in a session of its own with its output in files, so that it survives our death.
    It gets at most one SIGINT from us, however often we are asked to stop.
    """

    info: EngineInfo

    def info_in(self, directory: Path) -> EngineInfo:
        """
        Return the engine in a directory: a version manager may choose another version there.
        """

    def call(
        self,
        request: Request,
        spec: CallSpec,
        *,
        stop: StopToken,
        observe: Callable[[Message], None] = lambda _: None,
    ) -> CallResult:
        """
        Run the request to its end. ``observe`` gets each message once, in order, masked, as it
        appears; the result has them all.

        Raises EngineFailed(phase="engine") if the engine cannot be started.
        """

    def check_program(self, request: Program, spec: CallSpec) -> None:
        """
        Raise EngineFailed(phase="engine") if the program does not exist or is not executable.
        """

    def recover_call(self, spec: CallSpec, *, complete_log: bool = True) -> RecoveredCall:
        """
        Return what an earlier call with this spec left. A call that has not begun is fenced.

        With ``complete_log`` the masked log is written again from the full output.
        """

    def discard(self, spec: CallSpec) -> None:
        """
        Remove the call's unmasked files; the masked log stays.
        """

    def pulled_state(self, result: CallResult) -> PulledState:
        """
        Return the state that a ``Pull`` printed. Raises EngineFailed if it is none.
        """

    def state_in_file(self, file: Path) -> PulledState:
        """
        Return the state in a file that an engine wrote. Raises EngineFailed(phase="surgery") if it
        is none.
        """

    def state_in_plan(self, plan: Path, *, refreshed: bool = False) -> PulledState | None:
        """
        Return the provider state that a saved plan was made from, or that state ``refreshed``; None
        if the file cannot be read.
        """

    def plan_content(self, result: CallResult) -> PlanContent:
        """
        Return the plan that a ``ShowPlan`` printed. Raises EngineFailed if it cannot be read.
        """

    def emptied_state(self, state: PulledState) -> str:
        """
        Return a state without objects that succeeds this one, as text for a ``Push``.
        """

    def isolated_state(
        self, state: bytes, wanted: Collection[tuple[str, str | None]]
    ) -> tuple[bytes, Mapping[str, StateObject]]:
        """
        Return a state that holds only the ``wanted`` objects (address, id) at new addresses, and
        the object for each of these addresses. In a refresh with the same configuration each object
        is read through the provider configuration that manages it, independently of the others.

        Raises EngineFailed if ``state`` is no provider state.
        """
