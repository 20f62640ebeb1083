"""
A running engine call, from the side of the process that started it: with a wrapper that outlives us
if the call mutates (`Child`), without one if nobody needs its result once we are dead
(`ReadingChild`).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.domain.events.events import ApplyStart, ChangeSummary, Message
from orchestrator.domain.record.states import Liveness
from orchestrator.engine.process import wrapper
from orchestrator.engine.process.call_files import CallFiles, IdentityFile
from orchestrator.engine.process.identity import kill_session, signal_session
from orchestrator.local_files import replace_file
from orchestrator.ports.engine import CallSpec
from orchestrator.ports.system import Processes, StopToken

_REAP = 1.0  # seconds for a wrapper that has ended to become a zombie
_ENDED_WELL = (0, 2)  # exit codes after which an engine has stopped its providers; 2: plan changes

#: By these CI runners find the children of a cancelled job, own session or not, and kill them.
CI_TRACKING_VARS = (
    "RUNNER_TRACKING_ID",
    "VSTS_PROCESS_LOOKUP_ID",
    "JENKINS_NODE_COOKIE",
    "JENKINS_SERVER_COOKIE",
)


#: Who gets the SIGINT of a stop: the engine, which stops its providers itself and takes a second
#: one as an order to quit at once, or all that was started, as Ctrl-C at a terminal does it.
Audience = Literal["engine", "session"]


class Child:
    """
    A running wrapper and its engine. If this object is lost, the engine is not affected.

    The wrapper stays a zombie until `finish`, so that its session id cannot be reused.
    """

    def __init__(
        self,
        files: CallFiles,
        processes: Processes,
        process: subprocess.Popen[bytes],
        lifeline: int,
        audience: Audience = "engine",
    ) -> None:
        self._files = files
        self._processes = processes
        self._process = process
        self._lifeline = lifeline
        self._audience = audience
        self._interrupted = False
        self.pid = process.pid
        #: Whether we fenced the call ourselves, because a stop came before it began.
        self.fenced = False

    @classmethod
    def start(
        cls,
        files: CallFiles,
        processes: Processes,
        *,
        seed: str,
        program: Sequence[str],
        environment: Mapping[str, str],
        umask: str,
        audience: Audience = "engine",
        asks: bool = False,
    ) -> Child:
        """
        Start the wrapper. Raises OSError if that is not possible. ``umask`` is an argument of the
        wrapper. An engine that ``asks`` waits for `answer`.
        """
        lifeline, end = os.pipe()
        try:
            process = _start(
                files,
                [
                    sys.executable,
                    "-I",
                    "-S",
                    wrapper.__file__,
                    str(end),
                    str(files.spec.evidence.absolute()),
                    files.spec.name,
                    seed,
                    umask,
                    str(len(files.temporary)),
                    *(str(path.absolute()) for path in files.temporary),
                    *program,
                ],
                environment,
                pass_fds=(end,),
                asks=asks,
            )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(end)
        return cls(files, processes, process, lifeline, audience)

    def answer(self, word: str) -> None:
        """
        Answer the engine's first question; later ones get no answer.
        """
        answers, self._process.stdin = self._process.stdin, None
        if answers is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                answers.write(f"{word}\n".encode())
                answers.close()

    def wait(self, seconds: float) -> bool:
        """
        Wait up to ``seconds`` for the wrapper to end. Returns whether the call is over.

        A killed wrapper leaves its engine running: then the call is not over.
        """
        if not select.select([self._lifeline], [], [], seconds)[0]:
            return False
        if self._files.read_answer() is None:
            beginning = self._files.read_identity()
            if (
                isinstance(beginning, IdentityFile)
                and beginning.wrapper.pid == self.pid
                and self._processes.liveness(beginning.engine) is not Liveness.GONE
            ):
                time.sleep(seconds)
                return False
        return True

    def interrupt(self) -> bool:
        """
        Send the engine one SIGINT; returns whether it was sent. An engine that has not begun is
        fenced.

        If the program is not an engine, its whole session gets the signal: a shell neither forwards
        a signal to the command it waits for nor ends before that command does.
        """
        beginning = self._beginning()
        if beginning is None or self._processes.liveness(beginning.engine) is Liveness.GONE:
            return False
        if self._audience == "session":
            self._interrupted = signal_session(self.pid, signal.SIGINT, spare=self.pid)
            return self._interrupted
        try:
            os.kill(beginning.engine.pid, signal.SIGINT)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """
        SIGKILL the engine and everything it started. The wrapper stays to record how it ended.
        """
        if self._beginning() is not None:
            kill_session(self.pid, spare=self.pid)

    def finish(self) -> None:
        """
        Reap the wrapper, and kill providers that outlived an engine whose wrapper was killed. After
        a stop, what a hook program left behind is killed, too: a shell's background jobs ignore
        SIGINT.
        """
        self.answer("no")
        if self._interrupted:
            kill_session(self.pid, spare=self.pid)
        if self._files.read_answer() is None:
            _end_providers(self.pid)
        try:
            self._process.wait(_REAP)
        except subprocess.TimeoutExpired:  # it waits for an engine that does not even die
            self.abandon()
        else:
            os.close(self._lifeline)

    def abandon(self) -> None:
        """
        Stop watching the call: it goes on and writes its answer, unless it waits for approval. Only
        the zombie is reaped.
        """
        self.answer("no")
        os.close(self._lifeline)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def _beginning(self) -> IdentityFile | None:
        if self.fenced or self._files.fence():
            self.fenced = True
            return None
        beginning = self._files.read_identity()
        return beginning if isinstance(beginning, IdentityFile) else None


class ReadingChild:
    """
    The running engine of a call that mutates nothing. If this object is lost, the engine ends by
    itself and releases the state lock; only its answer is not written.

    The engine stays a zombie until `finish`, so that its session id cannot be reused.
    """

    fenced = False

    def __init__(self, files: CallFiles, process: subprocess.Popen[bytes], ended: int) -> None:
        self._files = files
        self._process = process
        self._ended = ended
        self.pid = process.pid

    @staticmethod
    def possible() -> bool:
        """
        Return whether this system can wait for a process without reaping it.
        """
        if sys.platform != "linux":
            return False
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):  # an old kernel, or a container that forbids it
            return False
        return True

    @classmethod
    def start(
        cls,
        files: CallFiles,
        *,
        seed: str,
        program: Sequence[str],
        environment: Mapping[str, str],
    ) -> ReadingChild:
        """
        Start the engine. Raises OSError if that is not possible. If the call was made before, the
        new engine is killed at once, and the identity file stays that of the earlier call.
        """
        assert sys.platform == "linux"
        process = _start(files, program, environment, umask=0o077)
        child = cls(files, process, os.pidfd_open(process.pid))
        try:
            # Who looks for a lock's holder must find this process: it is its own wrapper here. If
            # we die before this, nobody does, and a plan that only reads may lose its lock.
            identity = wrapper.identity_text(seed, process.pid, process.pid)
            if not files.write_identity(identity):
                child.kill()
        except BaseException:
            child.kill()
            child.abandon()
            raise
        return child

    def wait(self, seconds: float) -> bool:
        """
        Wait up to ``seconds`` for the engine to end. Returns whether the call is over.
        """
        return bool(select.select([self._ended], [], [], seconds)[0])

    def interrupt(self) -> bool:
        """
        Send the engine one SIGINT. Returns whether it was sent.
        """
        if self.wait(0):
            return False
        os.kill(self.pid, signal.SIGINT)  # it is not reaped: the number is still its own
        return True

    def kill(self) -> None:
        """
        SIGKILL the engine and everything it started.
        """
        kill_session(self.pid, spare=0)

    def finish(self) -> None:
        """
        Reap the engine, kill providers that outlived it, and write its answer.
        """
        if not self.wait(0):  # it does not even die
            self.abandon()
            return
        how = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if how is None or how.si_code != os.CLD_EXITED or how.si_status not in _ENDED_WELL:
            _end_providers(self.pid)
        code = self._process.wait()
        os.close(self._ended)
        with contextlib.suppress(OSError):  # a full disk: the call counts as one without an answer
            replace_file(self._files.answer, wrapper.answer_text(code).encode())

    def abandon(self) -> None:
        """
        Stop watching the call; only the zombie is reaped.
        """
        os.close(self._ended)
        threading.Thread(target=self._process.wait, daemon=True).start()


def _start(
    files: CallFiles,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    umask: int = -1,
    pass_fds: Sequence[int] = (),
    asks: bool = False,
) -> subprocess.Popen[bytes]:
    """
    Return a process in a new session whose output goes to the files of the call. One that ``asks``
    writes events itself: its stdout is its text, and stdin is a pipe for answers.
    """
    outputs = files.open_output(files.text if asks else files.stdout)
    try:
        return subprocess.Popen(
            argv,
            cwd=files.spec.directory,
            env={k: v for k, v in environment.items() if k not in CI_TRACKING_VARS},
            stdin=subprocess.PIPE if asks else subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
            umask=umask,
            pass_fds=pass_fds,
        )
    finally:
        for descriptor in outputs:
            os.close(descriptor)


def _end_providers(session: int) -> None:
    """
    SIGKILL the providers that outlived their engine.
    """
    for pid in wrapper.providers_left(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# The rungs of stopping an engine call.


_AFTER_KILL = 10.0  # seconds after SIGKILL until a process that cannot die is given up


class ShutdownLadder:
    """
    Sends one SIGINT when a stop is requested or the timeout has passed. Sends SIGKILL only if
    killing is requested, or ``grace`` seconds after the SIGINT; without a grace it waits without
    limit.

    ``interrupted`` is true once SIGINT was sent, ``timed_out`` if the timeout was the reason.
    """

    def __init__(self, child: Child | ReadingChild, spec: CallSpec, stop: StopToken) -> None:
        self._child = child
        self._timeout, self._grace = spec.timeout, spec.grace
        self._stop = stop
        self._began = time.monotonic()
        self._stopped_at: float | None = None
        self._killed_at: float | None = None
        self.interrupted = False
        self.timed_out = False

    def restart(self, timeout: float | None) -> None:
        """
        Start a new timeout from now.
        """
        self._began, self._timeout = time.monotonic(), timeout

    def climb(self) -> None:
        """
        Send the next signal if it is due.
        """
        now = time.monotonic()
        overdue = self._timeout is not None and now - self._began >= self._timeout
        if self._stopped_at is None and (self._stop.stopping or overdue):
            self.timed_out = not self._stop.stopping
            self.interrupted = self._child.interrupt()
            self._stopped_at = now
        since = self._stopped_at
        too_long = self._grace is not None and since is not None and now - since >= self._grace
        if self._killed_at is None and (self._stop.killing or too_long):
            self._killed_at = now
            self._child.kill()

    def engine_abandoned(self) -> bool:
        """
        Return whether the engine survived SIGKILL too long (a process in uninterruptible sleep does
        not die).
        """
        return self._killed_at is not None and time.monotonic() - self._killed_at > _AFTER_KILL


# The question that an apply asks between its plan and what it makes of it.


#: The end of the text of an apply that waits. A variable is asked for in other words.
_QUESTION = re.compile(rb"Only 'yes' will be accepted to approve\.\s+Enter a value:\s*\Z")
_TAIL = 200  # bytes, more than the question has
_PATIENCE = 5.0  # seconds from the summary of the plan to the question


class ApprovalPrompt:
    """
    Detects whether an apply waits for approval, by its text in ``file`` and its messages. A
    question in unknown words is answered no.
    """

    def __init__(self, file: Path, child: Child) -> None:
        self._file = file
        self.child = child
        self._planned_at: float | None = None
        self.is_passed_over = False

    def observe(self, message: Message) -> None:
        """
        Note that the plan is complete, or that the apply has begun (``is_passed_over``).
        """
        if isinstance(message, ChangeSummary) and self._planned_at is None:
            self._planned_at = time.monotonic()
        self.is_passed_over |= isinstance(message, ApplyStart)

    def is_due(self) -> bool:
        """
        Return whether the engine asks for approval, or will not ask any more. The plan is complete
        then.
        """
        if self._planned_at is not None and time.monotonic() - self._planned_at > _PATIENCE:
            self.child.answer("no")
        return self.is_passed_over or self._is_asked()

    def _is_asked(self) -> bool:
        try:
            with self._file.open("rb") as text:
                text.seek(-min(_TAIL, self._file.stat().st_size), 2)
                return _QUESTION.search(text.read()) is not None
        except FileNotFoundError:
            return False
