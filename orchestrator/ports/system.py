"""
The ports to the machine and its user: time, ids, processes, signals, events, approvals and checks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.blueprint.references import Resolved
    from orchestrator.domain.documents.plan import PlanDocument
    from orchestrator.domain.events.events import Event, PlanReady
    from orchestrator.domain.record.record import Check
    from orchestrator.domain.record.run_record import ProcessIdentity
    from orchestrator.domain.record.states import Liveness


class Clock(Protocol):
    """
    The current time.
    """

    def now(self) -> datetime:
        """
        Return the time in UTC.
        """

    def monotonic(self) -> float:
        """
        Return seconds that never decrease.
        """

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """
    Random ids and numbers.
    """

    def run_id(self, now: datetime, after: str = "") -> str:
        """
        Return a new run id; ids sort by time, and behind the id ``after``.
        """

    def entry_id(self) -> str: ...

    def fraction(self) -> float:
        """
        Return a random number x with 0 <= x < 1.
        """


class Sink(Protocol):
    """
    Receives events. May be called from several threads at once, and must not raise.
    """

    def emit(self, event: Event) -> None: ...


class Approver(Protocol):
    """
    Asks the user. Called by one thread at a time.
    """

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        """
        Return whether the user approves the plan of a step.
        """

    def review(self, document: PlanDocument) -> bool:
        """
        Show the plan of a whole run and return whether the user approves it.
        """

    def agree(self, what: str, name: str | None = None) -> bool:
        """
        Return whether the user agrees to ``what``, which is one line; with a ``name`` by typing it.
        """


class StopToken(Protocol):
    """
    Tells whether a stop was requested. ``killing`` is true only after the third Ctrl-C.
    """

    @property
    def stopping(self) -> bool: ...

    @property
    def killing(self) -> bool: ...

    @property
    def exit_code(self) -> int:
        """
        The exit code of a run that the signal stopped: 130 or 143; 0 without a stop.
        """


class Processes(Protocol):
    """
    Identifies this process and tells whether another one is alive.
    """

    def me(self) -> ProcessIdentity: ...

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        """
        Return the liveness of a process. GONE only if proven: same host and pid namespace, and the
        pid is free or reused, or the host was rebooted.
        """


class Checks(Protocol):
    """
    The ``verify`` checks: http, tcp, command.
    """

    def run(
        self,
        kind: str,
        settings: Resolved,
        *,
        mask: Callable[[str], str],
        directory: Path,
        stop: StopToken,
    ) -> Check:
        """
        Run one check until it holds or its ``within`` has passed. Never raises, whatever the
        settings. The result contains no secret of the settings and nothing that ``mask`` hides.
        """
