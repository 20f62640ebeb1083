"""
What the use cases need of the machine and its user: time, ids, processes, signals, events,
approvals and checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.blueprint.references import Resolved
    from orchestrator.domain.documents.plan import PlanDocument
    from orchestrator.domain.events.events import Event, PlanReady
    from orchestrator.domain.plan.violations import Violation
    from orchestrator.domain.record.record import Check
    from orchestrator.domain.record.run_record import ProcessIdentity
    from orchestrator.domain.record.states import Liveness


class PolicyRules(Protocol):
    """
    Rules that a policy names, in a language of their own.
    """

    def violations(
        self, rules: Sequence[Path], document: str, *, stop: StopToken
    ) -> Sequence[Violation]:
        """
        What rules in these files and directories forbid of a plan document, or warn of; also that
        they could not be asked. Never raises.
        """


class Clock(Protocol):
    """
    Time arrives as an argument.
    """

    def now(self) -> datetime:
        """
        Return the time in UTC.
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
        Return a new run id; ids sort by time.
        """

    def entry_id(self) -> str: ...

    def fraction(self) -> float:
        """
        Return a random number from 0 to 1, without 1.
        """


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
        Return whether the plan may be carried out.
        """

    def review(self, document: PlanDocument) -> bool:
        """
        Show the plan of a whole run; whether it may be carried out.
        """

    def agree(self, what: str) -> bool:
        """
        Return whether this may be done; ``what`` says it in one line.
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
        The exit code of a run that was stopped by the signal: 130 or 143; 0 while nobody asked.
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
        settings. No secret of the settings, and nothing that ``mask`` knows, is in what it returns.
        """
