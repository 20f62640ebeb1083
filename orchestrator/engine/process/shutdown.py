"""
The rungs of stopping an engine call.
"""

from __future__ import annotations

import time

from orchestrator.engine.process.child import Child, ReadingChild
from orchestrator.ports.engine import CallSpec
from orchestrator.ports.system import StopToken

_AFTER_KILL = 10.0  # seconds after SIGKILL until a process that cannot die is given up


class ShutdownLadder:
    """
    One SIGINT when a stop is asked for or the timeout has passed; SIGKILL only when killing is
    asked for, or the grace since the SIGINT has passed. No grace: it is waited for as long as it
    takes.

    ``interrupted`` tells that the engine got its SIGINT, ``timed_out`` that the timeout was why.
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
        Let the timeout, another one than before, count from now.
        """
        self._began, self._timeout = time.monotonic(), timeout

    def climb(self) -> None:
        """
        Take the next rung if it is time.
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
        Whether SIGKILL was long ago: a process in uninterruptible sleep does not die.
        """
        return self._killed_at is not None and time.monotonic() - self._killed_at > _AFTER_KILL
