"""
Implements `Engine` for Terraform and OpenTofu: a process per call, evidence in files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.events import Message
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.provider_state import PulledState, StateObject
from orchestrator.domain.record.states import Liveness
from orchestrator.domain.values import replace
from orchestrator.engine.arguments import argument_vector, with_early_variables
from orchestrator.engine.choose import ask, check_accepted, choose_for, may_differ_in, program_path
from orchestrator.engine.plan_content import parse_plan
from orchestrator.engine.process.call_files import (
    CallFiles,
    FencedCall,
    IdentityFile,
    Transcript,
    discard,
    failure_reason,
    identity_seed,
)
from orchestrator.engine.process.child import ApprovalPrompt, Child, ReadingChild, ShutdownLadder
from orchestrator.engine.process.environment import filling_plugin_cache, plugin_cache
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.engine.process.wrapper import (
    CALLERS_UMASK,
    PRIVATE_UMASK,
    providers_left,
    session_members,
)
from orchestrator.engine.state import (
    emptied_state,
    isolated_state,
    local_state,
    parse_state,
    state_in_plan,
)
from orchestrator.errors import EngineFailed, Fenced
from orchestrator.ports.engine import (
    Apply,
    Approve,
    CallResult,
    CallSpec,
    Cancel,
    EngineInfo,
    Init,
    Plan,
    PlanAndAsk,
    Program,
    Pull,
    RecoveredCall,
    Request,
    ShowPlan,
)
from orchestrator.ports.store import OperationStore
from orchestrator.ports.system import StopToken
from orchestrator.project import ProjectContext

_POLL = 0.03  # seconds between looks at the output; the end itself is noticed at once
_QUESTION_POLL = 0.01  # the same while an engine is about to wait for us
_LAST_WORDS = 5.0  # seconds a wrapper may take to write the answer of an engine that has ended

#: The answer where a stop came first: the engine never started, and never will.
NEVER_STARTED = CallResult(exit_code=None, messages=(), complete=True, stopped=True)


class TerraformEngine:
    """
    A terraform or tofu program; implements `orchestrator.ports.engine.Engine`.

    ``environment`` is the base of every call's environment (`child_environment`); the variables of
    the `CallSpec` override it. If a stop is requested before the engine starts, `call` returns
    `NEVER_STARTED`: no exit code, yet complete, and ``stdout`` None.
    """

    state_in_plan = staticmethod(state_in_plan)
    emptied_state = staticmethod(emptied_state)

    def __init__(
        self,
        info: EngineInfo,
        *,
        environment: Mapping[str, str],
        plugin_cache: Path | None = None,
    ) -> None:
        self._plugin_cache = plugin_cache
        self._asked_in = Path.cwd()
        self._told: dict[Path, EngineInfo] = {}
        self._small_files = threading.Lock()  # read one after the other sooner than side by side
        self._waiting: dict[Path, tuple[ApprovalPrompt, ShutdownLadder, Transcript]] = {}
        self.info = info
        self._environment = dict(environment)
        self._processes = SystemProcesses()

    def info_in(self, directory: Path) -> EngineInfo:
        program = self.info.program
        launched = len(program) > 1
        if launched or not directory.is_dir():
            return self.info
        if not may_differ_in(directory, Path(program[0]), self._asked_in):
            return self.info
        if directory not in self._told:
            kind, version = ask(program, self._environment, directory)
            self._told[directory] = replace(self.info, kind=kind, version=version)
        return self._told[directory]

    def call(
        self,
        request: Request,
        spec: CallSpec,
        *,
        stop: StopToken,
        observe: Callable[[Message], None] = lambda _: None,
    ) -> CallResult:
        """
        Run the request to its end. Raises EngineFailed if the engine cannot be started, Fenced if
        somebody else fenced the call. A local provider state is read without the engine.

        An exception from ``observe``, KeyboardInterrupt included, leaves the engine running.
        """
        files = CallFiles(spec)
        if isinstance(request, Approve | Cancel):
            return self._answer(request, files, stop=stop, observe=observe)
        if stop.stopping:
            discard(spec.delete_after)
            return NEVER_STARTED
        environment = self._environment | dict(spec.environment)
        if isinstance(request, Pull):
            with self._small_files:
                state = local_state(spec.directory, environment)
            if state is not None:
                return CallResult(exit_code=0, messages=(), complete=True, state=state)
        with contextlib.ExitStack() as opened:
            if isinstance(request, Init) and self._plugin_cache is not None:
                cache = filling_plugin_cache(self._plugin_cache, spec.directory)
                environment |= opened.enter_context(cache)
            transcript = Transcript(files, request.verb, log=files.open_log())
            opened.callback(transcript.close)
            child = self._start(request, files, environment)
            ladder = ShutdownLadder(child, spec, stop)
            if not isinstance(request, PlanAndAsk) or not isinstance(child, Child):
                return self._end(files, child, ladder, transcript, observe)
            ladder.restart(timeout=None)  # a plan takes the time that it takes
            prompt = ApprovalPrompt(files.text, child)
            over = _watch(child, ladder, transcript, prompt.observe, prompt)
            if over and not prompt.is_passed_over:
                result = self._end(files, child, ladder, transcript, observe)
                self._withdraw(files)
                return result
            if prompt.is_passed_over:
                files.end_waiting()
            opened.pop_all()
            self._waiting[files.identity] = prompt, ladder, transcript
            return replace(transcript.result(None), waits=True)

    def _answer(
        self,
        request: Approve | Cancel,
        files: CallFiles,
        *,
        stop: StopToken,
        observe: Callable[[Message], None],
    ) -> CallResult:
        if files.identity not in self._waiting:
            return NEVER_STARTED
        prompt, ladder, transcript = self._waiting[files.identity]
        approved = isinstance(request, Approve) and not stop.stopping
        if approved and not prompt.is_passed_over:
            try:
                files.end_waiting()
            except OSError as exc:
                raise EngineFailed("engine", f"cannot note the approval: {exc}") from exc
        del self._waiting[files.identity]
        with contextlib.closing(transcript):
            dead = not prompt.is_passed_over and prompt.child.wait(0)
            prompt.child.answer("yes" if approved else "no")
            ladder.restart(files.spec.timeout)
            result = self._end(files, prompt.child, ladder, transcript, observe)
        if dead:  # whatever ended it, it was told nothing
            result = replace(result, complete=True)
        if isinstance(request, Cancel):
            self._withdraw(files)
        return result

    def _withdraw(self, files: CallFiles) -> None:
        """
        Remove the files of a call that is over and changed nothing, so that it can be made again.
        Its log is kept until then.
        """
        self.discard(files.spec)
        discard((files.identity, files.answer, files.waiting))

    def _end(
        self,
        files: CallFiles,
        child: Child | ReadingChild,
        ladder: ShutdownLadder,
        transcript: Transcript,
        observe: Callable[[Message], None],
    ) -> CallResult:
        """
        Follow a call to its end. Raises EngineFailed if the engine did not start, Fenced if the
        call is another process's.
        """
        _watch(child, ladder, transcript, observe)
        child.finish()
        ending = files.read_answer()
        for message in transcript.end(ending):
            observe(message)
        discard(files.temporary)  # for a wrapper that was killed
        if child.fenced:
            return replace(NEVER_STARTED, timed_out=ladder.timed_out)
        match files.read_identity():
            case None:
                lines = files.stderr.read_text(errors="replace").strip().splitlines()
                why = lines[-1] if lines else "its wrapper ended without a word"
                raise EngineFailed("engine", f"cannot start {self.info.program[0]}: {why}")
            case FencedCall():
                raise Fenced(f"another process has ruled out the engine call {files.identity}")
            case IdentityFile(wrapper=owner) if owner.pid != child.pid:
                raise Fenced(f"the engine call {files.identity} was made before")
        if ending is not None and not ending.started:
            why = files.stderr.read_text(errors="replace").strip()
            raise EngineFailed("engine", why, hint="check --engine and the program's permissions")
        return transcript.result(ending, stopped=ladder.interrupted, timed_out=ladder.timed_out)

    def check_program(self, request: Program, spec: CallSpec) -> None:
        program_path(request.argv[0], spec.directory, self._environment | dict(spec.environment))

    def recover_call(self, spec: CallSpec, *, complete_log: bool = True) -> RecoveredCall:
        """
        Return what an earlier call left. If the engine has ended and its wrapper is about to write
        the answer, this waits for it.
        """
        files = CallFiles(spec)
        try:
            beginning = None if files.fence() else files.read_identity()
        except ValueError:
            result = CallResult(exit_code=None, messages=(), complete=False)
            return RecoveredCall(started=True, liveness=Liveness.UNKNOWN, result=result)
        if not isinstance(beginning, IdentityFile):
            discard(files.temporary)
            return RecoveredCall(started=False, liveness=Liveness.GONE, result=NEVER_STARTED)
        liveness = self._settled(files, beginning)
        if liveness is Liveness.GONE:
            discard(files.temporary)
            _reap(beginning)
        ending = files.read_answer()
        keep = liveness is Liveness.ALIVE or not complete_log
        log = None if keep else files.open_log()
        transcript = Transcript(files, beginning.verb, log=log)
        with contextlib.closing(transcript):
            transcript.more()
            transcript.end(ending)
        result = transcript.result(ending)
        if files.waiting.exists():  # whatever ended it, it was told nothing
            result = replace(result, complete=True)
        return RecoveredCall(
            started=ending is None or ending.started, liveness=liveness, result=result
        )

    def discard(self, spec: CallSpec) -> None:
        files = CallFiles(spec)
        discard((files.stdout, files.stderr, files.text))
        with contextlib.suppress(OSError):  # another call's output is in it
            files.stdout.parent.rmdir()

    def pulled_state(self, result: CallResult) -> PulledState:
        if result.state is not None:
            return result.state
        if result.exit_code != 0 or result.stdout is None:
            raise EngineFailed(
                "readback",
                f"{self.info.kind} could not read the provider state: {failure_reason(result)}",
                hint="check the backend's configuration and credentials",
            )
        try:
            return parse_state(result.stdout.read_bytes())
        except (OSError, ValueError) as exc:
            raise EngineFailed(
                "readback",
                f"what {self.info.kind} state pull printed is no provider state: {exc}",
            ) from exc

    def state_in_file(self, file: Path) -> PulledState:
        try:
            return parse_state(file.read_bytes())
        except (OSError, ValueError) as exc:
            raise EngineFailed(
                "surgery",
                f"{file} is no provider state that can be read: {exc}",
                hint="look at it: it may be all that is known of the objects",
            ) from exc

    def plan_content(self, result: CallResult) -> PlanContent:
        if result.exit_code != 0 or result.stdout is None:
            raise EngineFailed("plan", failure_reason(result))
        try:
            return parse_plan(result.stdout.read_text())
        except (OSError, ValueError) as exc:
            raise EngineFailed("plan", f"the plan cannot be read: {exc}") from exc

    def isolated_state(
        self, state: bytes, wanted: Collection[tuple[str, str | None]]
    ) -> tuple[bytes, Mapping[str, StateObject]]:
        try:
            return isolated_state(state, wanted)
        except ValueError as exc:
            raise EngineFailed("readback", f"a saved provider state cannot be read: {exc}") from exc

    def _start(
        self, request: Request, files: CallFiles, environment: Mapping[str, str]
    ) -> Child | ReadingChild:
        spec, info = files.spec, self.info
        if spec.early_values or (info.kind == "tofu" and isinstance(request, Apply)):
            info = self.info_in(spec.directory)
        vector = argument_vector(info, request)
        asks = isinstance(request, PlanAndAsk)
        if asks:
            vector.append(f"-json-into={files.stdout.absolute()}")
        if isinstance(request, Program):
            vector[0] = program_path(vector[0], spec.directory, environment)
        elif spec.early_values:
            vector = with_early_variables(info, vector, files.early_variables.absolute())
        try:
            if spec.early_values:
                files.write_early_variables(spec.early_values)
            if asks:
                files.waiting.touch(0o600)
            seed = identity_seed(self._processes, request.verb)
            reads = isinstance(request, Init | Plan | ShowPlan | Pull)
            # Without a wrapper, unless work remains when the call ends after our death: recording
            # how a mutation ended, or removing a file.
            if reads and not (spec.delete_after or spec.early_values) and ReadingChild.possible():
                return ReadingChild.start(files, seed=seed, program=vector, environment=environment)
            return Child.start(
                files,
                self._processes,
                seed=seed,
                program=vector,
                environment=environment,
                umask=(
                    CALLERS_UMASK
                    if isinstance(request, Apply | PlanAndAsk | Program)
                    else PRIVATE_UMASK
                ),
                audience="session" if isinstance(request, Program) else "engine",
                asks=asks,
            )
        except OSError as exc:
            discard(files.temporary)
            hint = "check --engine and the program's permissions"
            raise EngineFailed("engine", f"cannot start {vector[0]}: {exc}", hint=hint) from exc

    def _settled(self, files: CallFiles, beginning: IdentityFile) -> Liveness:
        deadline = time.monotonic() + _LAST_WORDS
        while True:
            if files.read_answer() is not None:
                return Liveness.GONE
            engine = self._processes.liveness(beginning.engine)
            if engine is not Liveness.GONE:
                return engine
            wrapper = self._processes.liveness(beginning.wrapper)
            if wrapper is not Liveness.ALIVE:
                return wrapper if files.read_answer() is None else Liveness.GONE
            if time.monotonic() > deadline:
                return Liveness.ALIVE
            time.sleep(_POLL)


def _watch(
    child: Child | ReadingChild,
    ladder: ShutdownLadder,
    transcript: Transcript,
    observe: Callable[[Message], None],
    prompt: ApprovalPrompt | None = None,
) -> bool:
    """
    Follow a call until it ends or asks for approval. Returns whether it has ended.
    """
    poll = _POLL if prompt is None else _QUESTION_POLL
    over = False
    try:
        while not over and not (prompt is not None and prompt.is_due()):
            over = child.wait(poll) or ladder.engine_abandoned()
            for message in transcript.more():
                observe(message)
            if not over:
                ladder.climb()
        for message in transcript.more():
            observe(message)
    except BaseException:
        child.abandon()
        raise
    return over


def _reap(beginning: IdentityFile) -> None:
    """
    SIGKILL the providers that outlived engine and wrapper, if nothing else runs in their session:
    if the session id was reused, a live engine does.
    """
    session = beginning.wrapper.pid
    pids = providers_left(session)
    if set(pids) == set(session_members(session)):
        for pid in pids:
            os.kill(pid, 9)


def project_engine(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment,
    store: OperationStore,
    environment: Mapping[str, str],
    *,
    check: bool,
) -> TerraformEngine:
    """
    Return the engine of `choose_for`, by the records in ``store``, with ``environment`` for its
    processes. With ``check``, raises Invalid if the modules do not accept it.
    """
    records = store.records(deployment.blueprint, deployment.environment)
    engine = TerraformEngine(
        choose_for(project, option, deployment.engine, records),
        environment=environment,
        plugin_cache=plugin_cache(environment, project.own_dir / "cache" / "providers"),
    )
    if check:
        check_accepted(engine.info_in, deployment)
    return engine
