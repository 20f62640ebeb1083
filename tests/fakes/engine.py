"""
An engine without processes: passes the same contract suite as Terraform, and fails on request.

``FakeWorld`` stands for disk and cloud: it outlives engines, as they outlive processes. A working
directory is scripted through its `FakeRoot`: what its module describes, and what goes wrong where.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any, assert_never

import pygohcl

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyStart,
    ChangeSummary,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
    ResourceDrift,
)
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.provider_state import PulledState, StateObject, StateOutput
from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.run_record import StateLock
from orchestrator.domain.record.states import Liveness
from orchestrator.domain.values import replace
from orchestrator.engine.workdir.generated import BACKEND_FILE
from orchestrator.errors import EngineFailed, Fenced
from orchestrator.ports.engine import (
    Apply,
    Approve,
    CallResult,
    CallSpec,
    Cancel,
    EngineInfo,
    Exec,
    Import,
    Init,
    Plan,
    PlanAndAsk,
    Program,
    Pull,
    Push,
    RecoveredCall,
    Request,
    ShowPlan,
    Surgery,
    Unlock,
    Untaint,
)
from orchestrator.ports.system import StopToken

PROVIDER = "terraform.io/builtin/terraform"
#: Of objects in a `Cloud`: it can be asked for them.
REMOTE_PROVIDER = "registry.terraform.io/test/fake"
NEVER_STARTED = CallResult(exit_code=None, messages=(), complete=True, stopped=True)
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Fault(Enum):
    """
    What happens when the engine works on an object.
    """

    FAIL = auto()  # the provider made it, then failed: in state, tainted
    REFUSE = auto()  # the provider refused: nothing made, nothing in state
    LOSE = auto()  # the provider made it and lost the answer: not in state
    HANG = auto()  # it takes until somebody stops the engine
    KILL_ENGINE = auto()  # the engine gets SIGKILL
    KILL_BOTH = auto()  # this program and the engine get SIGKILL
    KILL_US = auto()  # this program gets SIGKILL; the engine finishes by itself
    LIE = auto()  # the provider says that it deleted the object, and did not


class Killed(BaseException):
    """
    Stands for the SIGKILL of this program: nothing after it runs.
    """


@dataclass
class Thing:
    """
    An object in provider state.
    """

    value: Any
    id: str
    tainted: bool = False


@dataclass
class Cloud:
    """
    The provider's side of a root: objects by id that lead a life of their own. ``made`` are those
    that the engine created, ``deleted`` those that it deleted.
    """

    alive: dict[str, str] = field(default_factory=dict)  # id -> address
    made: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    def create(self, address: str) -> str:
        """
        A new object that the engine made; its id.
        """
        identifier = f"id-{address}-{len(self.made)}"
        self.alive[identifier] = self.made[identifier] = address
        return identifier

    def delete(self, identifier: str) -> None:
        """
        Remove an object, as the engine asks for it.
        """
        if self.alive.pop(identifier, None) is not None:
            self.deleted.append(identifier)


@dataclass
class FakeRoot:
    """
    A working directory: its module, its provider state, and its script.

    ``desired`` maps addresses to values; ``outputs`` are known once everything desired exists.
    ``drifted`` objects the refresh finds changed or vanished; vanished ones leave the state.
    ``wait`` holds the engine up before its first object, until set.
    """

    desired: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, StateOutput] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)  # address -> summary of its fault
    init_error: str | None = None
    plan_error: str | None = None
    pull_error: str | None = None
    locked_by: StateLock | None = None
    vanished: set[str] = field(default_factory=set)
    start_error: str | None = None
    wait: threading.Event | None = None

    things: dict[str, Thing] = field(default_factory=dict)
    remote: dict[str, str] = field(default_factory=dict)  # address -> id, whatever state says
    cloud: Cloud | None = None  # where a test counts objects; else what state holds is there
    lineage: str | None = None
    serial: int = 0
    unreadable_after_apply: bool = False  # the backend goes away while the engine applies
    state_outputs: dict[str, StateOutput] = field(default_factory=dict)

    @property
    def unseen(self) -> set[str]:
        """
        Addresses in state whose objects a refresh does not find.
        """
        gone = (
            set()
            if self.cloud is None
            else {a for a, thing in self.things.items() if thing.id not in self.cloud.alive}
        )
        return self.vanished | gone


@dataclass
class _Evidence:
    messages: list[Message] = field(default_factory=list)
    exit_code: int | None = None
    ended: bool = False
    alive: bool = True
    stdout: Path | None = None


@dataclass
class FakeWorld:
    """
    All that lasts: roots by working directory, evidence of calls, and the list of calls made.
    """

    roots: dict[Path, FakeRoot] = field(default_factory=dict)
    requests: list[tuple[Path, Request]] = field(default_factory=list)
    evidence: dict[tuple[Path, str], _Evidence | None] = field(default_factory=dict)  # None: fenced
    ticks: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def root(self, directory: Path) -> FakeRoot:
        """
        The root at a working directory, made if need be.
        """
        with self.lock:
            return self.roots.setdefault(directory, FakeRoot())

    def clouds(self) -> list[Cloud]:
        """
        The clouds in which a test counts objects.
        """
        with self.lock:
            return [root.cloud for root in self.roots.values() if root.cloud is not None]

    def now(self) -> datetime:
        """
        A time later than any before.
        """
        with self.lock:
            self.ticks += 1
            return _EPOCH + timedelta(milliseconds=self.ticks)

    def verbs(self, directory: Path | None = None) -> list[str]:
        """
        The names of the requests made, in order.
        """
        return [
            type(request).__name__.lower()
            for place, request in self.requests
            if directory in (None, place)
        ]


class FakeEngine:
    """
    Satisfies `orchestrator.ports.engine.Engine` over a `FakeWorld`.
    """

    def __init__(self, world: FakeWorld, *, info: EngineInfo | None = None) -> None:
        self._world = world
        self.info = info or EngineInfo("terraform", "1.11.4", ("fake",), "option", "a fake")
        self._waiting: set[tuple[Path, str]] = set()

    def call(
        self,
        request: Request,
        spec: CallSpec,
        *,
        stop: StopToken,
        observe: Callable[[Message], None] = lambda _: None,
    ) -> CallResult:
        root, key = self._world.root(spec.directory), (spec.evidence, spec.name)
        if isinstance(request, Approve | Cancel):
            if key not in self._waiting:
                return NEVER_STARTED
            self._waiting.remove(key)
            evidence = self._world.evidence.pop(key)
            assert evidence is not None, "what waits has begun"
            if isinstance(request, Cancel) or stop.stopping:
                return _answer(evidence)
            said = tuple(evidence.messages)
            plan = Apply(_plan_file(spec))
            done = self.call(plan, spec, stop=stop, observe=observe)
            return replace(done, messages=(*said, *done.messages))
        if root.start_error is not None:
            raise EngineFailed("engine", root.start_error)
        if stop.stopping:
            _discard(spec)
            return NEVER_STARTED
        evidence = _Evidence()
        with self._world.lock:
            if key in self._world.evidence:
                _discard(spec)
                raise Fenced(f"the call {spec.name} cannot be made")
            self._world.evidence[key] = evidence
            self._world.requests.append((spec.directory, request))
        call = _Call(self._world, root, spec, stop, evidence, observe)
        code: int | None
        try:
            match request:
                case Init():
                    code = call.init(request)
                case Plan() if any(spec.directory.glob("*.call.tf.json")):
                    code = 1  # steps composed in one root: here each is planned by itself
                case Plan():
                    code = call.plan(request)
                case ShowPlan():
                    code = call.show(request)
                case Apply():
                    code = call.apply(request)
                case PlanAndAsk():
                    spec.evidence.mkdir(parents=True, exist_ok=True)
                    code = call.plan(Plan(_plan_file(spec), detailed=True))
                    if code == 2:  # our death is a no
                        self._waiting.add(key)
                        evidence.exit_code, evidence.ended = 1, True
                        waiting = CallResult(None, tuple(evidence.messages), complete=False)
                        return replace(waiting, waits=True)
                    del self._world.evidence[key]
                case Approve() | Cancel():
                    raise AssertionError("answered above")
                case Pull():
                    code = call.pull()
                case Import() | Untaint() | Push() | Unlock() | Exec():
                    code = call.surgery(request)
                case Program():
                    code = call.program(request)
                case _:
                    assert_never(request)
            evidence.exit_code, evidence.ended = code, code is not None
            if call.orphaned:
                raise Killed
        finally:
            evidence.alive = False
            if key not in self._waiting:
                _discard(spec)
        return replace(
            _answer(evidence), stopped=call.stopped, timed_out=call.timed_out, lock=call.lock
        )

    def check_program(self, request: Program, spec: CallSpec) -> None:
        if request.argv[0] not in ("echo", "false", "sleep", "sh"):
            raise EngineFailed("engine", f"cannot start {request.argv[0]}: it is not on PATH")

    def recover_call(self, spec: CallSpec, *, complete_log: bool = True) -> RecoveredCall:
        key = (spec.evidence, spec.name)
        with self._world.lock:
            evidence = self._world.evidence.setdefault(key, None)
        if evidence is None:
            _discard(spec)
            return RecoveredCall(started=False, liveness=Liveness.GONE, result=NEVER_STARTED)
        return RecoveredCall(
            started=True,
            liveness=Liveness.ALIVE if evidence.alive else Liveness.GONE,
            result=_answer(evidence),
        )

    def discard(self, spec: CallSpec) -> None:
        for stream in ("stdout", "stderr"):
            (spec.evidence / "raw" / f"{spec.name}.{stream}").unlink(missing_ok=True)

    def pulled_state(self, answer: CallResult) -> PulledState:
        if answer.exit_code != 0 or answer.stdout is None:
            raise EngineFailed("readback", "the fake could not read the provider state")
        return _parsed(answer.stdout.read_text())

    def info_in(self, directory: Path) -> EngineInfo:
        return self.info

    def state_in_file(self, file: Path) -> PulledState:
        try:
            return _parsed(file.read_text())
        except (OSError, ValueError, KeyError) as exc:
            raise EngineFailed("surgery", f"{file} is no provider state: {exc}") from exc

    def state_in_plan(self, plan: Path, *, refreshed: bool = False) -> PulledState | None:
        try:
            data = json.loads(plan.read_text())
            state = json.loads(data["state"])
        except (OSError, ValueError, KeyError):
            return None
        for address in data.get("dropped", ()) if refreshed else ():
            state["things"].pop(address, None)
        return _parsed(json.dumps(state))

    def plan_content(self, result: CallResult) -> PlanContent:
        assert result.stdout is not None, "a plan that is shown prints"
        data = json.loads(result.stdout.read_text())
        return PlanContent(
            tuple(PlannedAction(address=a, action=b) for a, b in data["actions"] if b != "noop"),
            outputs=tuple(data["outputs"]),
        )

    def emptied_state(self, state: PulledState) -> str:
        return json.dumps(
            {"lineage": state.lineage, "serial": state.serial + 1, "things": {}, "outputs": {}}
        )

    def isolated_state(
        self, state: bytes, wanted: Collection[tuple[str, str | None]]
    ) -> tuple[bytes, Mapping[str, StateObject]]:
        try:
            parsed, data = _parsed(state.decode()), json.loads(state)
        except (ValueError, KeyError) as exc:
            raise EngineFailed("readback", f"no provider state: {exc}") from exc
        kept = [o for o in parsed.objects if (o.address, o.id) in wanted]
        names = {f"{item.type}.alone_{n}": item for n, item in enumerate(kept)}
        things = {name: data["things"][item.address] for name, item in names.items()}
        return json.dumps({**data, "things": things, "outputs": {}}).encode(), names


class _Call:
    def __init__(
        self,
        world: FakeWorld,
        root: FakeRoot,
        spec: CallSpec,
        stop: StopToken,
        evidence: _Evidence,
        observe: Callable[[Message], None],
    ) -> None:
        self._world = world
        self._root = root
        self._spec = spec
        self._stop = stop
        self._evidence = evidence
        self._observe = observe
        self.stopped = False
        self.timed_out = False
        self.orphaned = False
        self.lock: StateLock | None = None

    def init(self, request: Init) -> int:
        if self._root.init_error is not None:
            return self._fails(self._root.init_error)
        self._note_backend(request.backend_file)
        self._say(LogLine("initialized"))
        return 0

    def _note_backend(self, backend_file: Path | None) -> None:
        """
        Note which backend is in force, where the engine does.
        """
        generated = self._spec.directory / BACKEND_FILE
        if generated.is_file():
            settings = pygohcl.loads(generated.read_text())["terraform"]["backend"]
            ((kind, config),) = settings.items()
            if backend_file is not None:
                config |= pygohcl.loads((self._spec.directory / backend_file).read_text())
            note = self._spec.directory / ".terraform" / "terraform.tfstate"
            note.parent.mkdir(exist_ok=True)
            note.write_text(json.dumps({"backend": {"type": kind, "config": config}}))

    def pull(self) -> int:
        if self._root.pull_error is not None:
            return self._fails(self._root.pull_error)
        path = self._spec.evidence / "raw" / f"{self._spec.name}.stdout"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(_dumped(self._root))
        self._evidence.stdout = path
        return 0

    def program(self, request: Program) -> int | None:
        """
        What the programs of these names do; ``sleep`` and ``kill`` are ended by a signal.
        """
        match request.argv:
            case ("echo", *words):
                self._say(LogLine(self._spec.mask(" ".join(words))))
                return 0
            case ("false",):
                return 1
            case ("sleep", _):
                self._hang()
                return None
            case ("sh", "-c", "kill -KILL $$"):
                return None
            case _:
                raise EngineFailed("engine", f"cannot start {request.argv[0]}: not on PATH")

    def surgery(self, request: Surgery) -> int:
        """
        What changes provider state alone; each fails where a real engine would.
        """
        root = self._root
        if root.locked_by is not None and not isinstance(request, Unlock | Exec):
            return self._is_locked(root.locked_by)
        match request:
            case Import(address, object_id):
                if address in root.things:
                    return self._fails("Resource already managed by Terraform")
                known = root.remote.values() if root.cloud is None else root.cloud.alive
                if object_id not in known:
                    return self._fails("Cannot import non-existent remote object")
                root.things[address] = Thing(root.desired.get(address), object_id)
                self._write_state()
            case Untaint(address):
                if address not in root.things or not root.things[address].tainted:
                    return self._fails("Resource instance is not tainted")
                root.things[address].tainted = False
                self._write_state()
            case Push(file):
                pushed = json.loads(file.read_text())
                if pushed["lineage"] != root.lineage or pushed["serial"] < root.serial:
                    return self._fails("Failed to write state")
                root.lineage, root.serial = pushed["lineage"], pushed["serial"]
                root.things = {address: Thing(*row) for address, row in pushed["things"].items()}
                root.state_outputs = {
                    name: StateOutput(*pair) for name, pair in pushed["outputs"].items()
                }
            case Unlock(lock_id):
                if root.locked_by is None or lock_id != root.locked_by.id:
                    return self._fails("Failed to unlock state")
                root.locked_by = None
            case Exec(("state", "rm", address)):
                if root.things.pop(address, None) is None:
                    return self._fails("Invalid target address")
                self._write_state()
                self._say(LogLine("Successfully removed 1 resource instance(s)."))
            case Exec():
                return self._fails("the fake does not know this command")
            case _:
                assert_never(request)
        return 0

    def plan(self, request: Plan) -> int:
        root = self._root
        if root.locked_by is not None:
            return self._is_locked(root.locked_by)
        if root.plan_error is not None:
            return self._fails(root.plan_error)
        if request.mode == "refresh-only":
            self._read_private_state()
        before = _dumped(root)
        if request.refresh and request.mode != "destroy":  # its plan tells of no drift
            for address in sorted(root.unseen & set(root.things)):
                self._say(ResourceDrift(address, "delete", _type(address)))
        present = {
            address: thing
            for address, thing in root.things.items()
            if address not in root.unseen or not request.refresh
        }
        actions = [] if request.mode == "refresh-only" else list(_actions(root, present, request))
        outputs = _output_actions(root, request)
        for address, action in actions:
            self._say(PlannedChange(address, action, _type(address)))
        add, change, remove = _counts(action for _, action in actions)
        self._say(ChangeSummary("plan", add, change, remove))
        for name, action in outputs:
            self._say(OutputChange(name, action))
        dropped = sorted(root.vanished & set(root.things)) if request.refresh else []
        request.out.write_text(
            json.dumps(
                {
                    "state": before,
                    "actions": actions,
                    "mode": request.mode,
                    "dropped": dropped,
                    "outputs": [name for name, _ in outputs],
                }
            )
        )
        changed = outputs or any(action not in ("noop", "read") for _, action in actions)
        return 2 if request.detailed and changed else 0

    def show(self, request: ShowPlan) -> int:
        path = self._spec.evidence / "raw" / f"{self._spec.name}.stdout"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(request.plan.read_text())
        self._evidence.stdout = path
        return 0

    def apply(self, request: Apply) -> int | None:
        root = self._root
        if root.locked_by is not None:
            return self._is_locked(root.locked_by)
        plan = json.loads(request.plan.read_text())
        if plan["state"] != _dumped(root):
            return self._fails("Saved plan is stale")
        for address in root.unseen:
            root.things.pop(address, None)
        if root.unreadable_after_apply:
            root.pull_error = "the backend cannot be reached"
        if root.wait is not None:
            root.wait.wait()
        failed: list[str] = []
        done: list[Action] = []
        for address, action in plan["actions"]:
            if self._stop.stopping:
                self._interrupt()
                failed.append(address)
                break
            if action in ("forget", "noop"):
                root.things.pop(address, None)
                continue
            outcome = self._work(address, action)
            if outcome is None:
                self._write_state()
                return None
            if outcome:
                done.append(action)
            else:
                failed.append(address)
        self._write_state()
        if failed:
            return 1
        root.state_outputs = {} if plan["mode"] == "destroy" else dict(root.outputs)
        self._say(ChangeSummary("apply", *_counts(iter(done))))
        return 0

    def _work(self, address: str, action: Action) -> bool | None:
        """
        Whether it went well; None where the engine was killed meanwhile.
        """
        for part in ("delete", "create") if action == "replace" else (action,):
            went = self._part(address, part)
            if not went:
                return went
        return True

    def _part(self, address: str, part: Action) -> bool | None:
        root = self._root
        thing = root.things.get(address)
        fault = root.faults.get(address)
        self._say(ApplyStart(address, part, self._world.now(), thing.id if thing else None))
        match fault:
            case Fault.KILL_ENGINE:
                return None
            case Fault.KILL_BOTH:
                raise Killed
            case Fault.HANG:
                if not self._hang():
                    return None
                self._make(address, part, tainted=True)
                return self._errors(address, part, "execution halted")
            case Fault.FAIL:
                self._make(address, part, tainted=True)
                return self._errors(address, part, "it failed")
            case Fault.REFUSE:
                return self._errors(address, part, "AccessDenied: not allowed")
            case Fault.LOSE:
                if part == "create":
                    root.remote[address] = self._create(address)
                elif part == "delete":
                    self._delete(address)
                return self._errors(address, part, "connection reset")
            case Fault.LIE if part == "delete":
                root.things.pop(address, None)
                self._say(ApplyComplete(address, part, self._world.now(), None))
                return True
            case None | Fault.KILL_US | Fault.LIE:
                if fault is Fault.KILL_US:
                    self._observe, self.orphaned = _nobody, True
                identifier = self._make(address, part, tainted=False)
                self._say(ApplyComplete(address, part, self._world.now(), identifier))
                return True
            case _:
                assert_never(fault)

    def _make(self, address: str, part: Action, *, tainted: bool) -> str | None:
        root = self._root
        if part == "delete":
            if tainted:
                return None
            self._delete(address)
            root.things.pop(address, None)
            return None
        known = root.things.get(address)
        identifier = known.id if known and part == "update" else self._create(address)
        root.things[address] = Thing(root.desired.get(address), identifier, tainted)
        root.remote[address] = identifier
        return identifier

    def _read_private_state(self) -> None:
        """
        In a scratch root: the state put there, over the objects that all clouds have.
        """
        root, clouds = self._root, self._world.clouds()
        near = (self._spec.directory, *self._spec.directory.parents[:3])
        private = next((p for p in (d / "private.tfstate" for d in near) if p.exists()), None)
        if private is None or not clouds:
            return
        rows = json.loads(private.read_text())["things"].items()
        root.things = {address: Thing(*row) for address, row in rows}
        root.cloud = Cloud({id_: name for cloud in clouds for id_, name in cloud.alive.items()})

    def _create(self, address: str) -> str:
        cloud = self._root.cloud
        return f"id-{address}" if cloud is None else cloud.create(address)

    def _delete(self, address: str) -> None:
        root = self._root
        root.remote.pop(address, None)
        if root.cloud is not None and address in root.things:
            root.cloud.delete(root.things[address].id)

    def _hang(self) -> bool:
        """
        Wait for a stop; False where it ended in SIGKILL.
        """
        until = None if self._spec.timeout is None else time.monotonic() + self._spec.timeout
        while not (self._stop.stopping or (until is not None and time.monotonic() >= until)):
            time.sleep(0.001)
        self.timed_out = not self._stop.stopping
        self._interrupt()
        return not self._stop.killing

    def _interrupt(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        self._say(LogLine("Interrupt received."))

    def _errors(self, address: str, part: Action, summary: str) -> bool:
        self._say(ApplyErrored(address, part, self._world.now()))
        text = self._root.errors.get(address, summary)
        self._say(Diagnostic(summary=self._spec.mask(text), address=address))
        return False

    def _is_locked(self, holder: StateLock) -> int:
        self.lock = holder
        return self._fails("Error acquiring the state lock")

    def _fails(self, summary: str) -> int:
        self._say(Diagnostic(summary=self._spec.mask(summary)))
        return 1

    def _say(self, message: Message) -> None:
        self._evidence.messages.append(message)
        self._observe(message)

    def _write_state(self) -> None:
        if self._root.lineage is None:
            self._root.lineage = f"lineage-{self._spec.directory.name}"
        self._root.serial += 1


def _plan_file(spec: CallSpec) -> Path:
    """
    Where the plan of a call lies that waits.
    """
    return spec.evidence / f"{spec.name}.plan"


def _actions(
    root: FakeRoot, present: dict[str, Thing], request: Plan
) -> Iterator[tuple[str, Action]]:
    wanted = {} if request.mode == "destroy" else root.desired
    for address in sorted(set(present) | set(wanted)):
        if request.targets and address not in request.targets:
            continue
        thing = present.get(address)
        if address not in wanted:
            yield address, "delete"
        elif thing is None:
            yield address, "create"
        elif thing.tainted or address in request.replace:
            yield address, "replace"
        elif thing.value != wanted[address]:
            yield address, "update"


def _output_actions(root: FakeRoot, request: Plan) -> list[tuple[str, Action]]:
    wanted = {} if request.mode == "destroy" else root.outputs
    changes: list[tuple[str, Action]] = []
    for name in sorted(set(wanted) | set(root.state_outputs)):
        if name not in wanted:
            changes.append((name, "delete"))
        elif name not in root.state_outputs:
            changes.append((name, "create"))
        elif wanted[name] != root.state_outputs[name]:
            changes.append((name, "update"))
    return changes


def _counts(actions: Iterator[Action]) -> tuple[int, int, int]:
    found = list(actions)
    replaced = found.count("replace")
    return (
        found.count("create") + replaced,
        found.count("update"),
        found.count("delete") + replaced,
    )


def _answer(evidence: _Evidence) -> CallResult:
    return CallResult(
        exit_code=evidence.exit_code,
        messages=tuple(evidence.messages),
        complete=evidence.ended,
        stdout=evidence.stdout,
    )


def _dumped(root: FakeRoot) -> str:
    if root.lineage is None:
        return ""
    return json.dumps(
        {
            "lineage": root.lineage,
            "serial": root.serial,
            "provider": PROVIDER if root.cloud is None else REMOTE_PROVIDER,
            "things": {a: [t.value, t.id, t.tainted] for a, t in sorted(root.things.items())},
            "outputs": {n: [o.value, o.sensitive] for n, o in sorted(root.state_outputs.items())},
        }
    )


def _parsed(text: str) -> PulledState:
    if not text:
        return PulledState(lineage=None, serial=0, objects=(), outputs={})
    data = json.loads(text)
    return PulledState(
        lineage=data["lineage"],
        serial=data["serial"],
        objects=tuple(
            StateObject(
                address, _type(address), data.get("provider", PROVIDER), identifier, tainted
            )
            for address, (_, identifier, tainted) in data["things"].items()
        ),
        outputs={name: StateOutput(*pair) for name, pair in data["outputs"].items()},
        raw=text.encode(),
    )


def _type(address: str) -> str:
    return address.rsplit(".", 2)[-2]


def _discard(spec: CallSpec) -> None:
    for path in spec.delete_after:
        path.unlink(missing_ok=True)


def _nobody(_message: Message) -> None:
    """
    Observes nothing.
    """
