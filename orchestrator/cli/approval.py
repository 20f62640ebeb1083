"""
Asks the user at the terminal.
"""

from __future__ import annotations

import select
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import click

from orchestrator.domain.events.events import PlanReady
from orchestrator.ports.system import StopToken
from orchestrator.views.formats import planned

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import PlanDocument

#: What ends the question: None is nobody there any more.
_ANSWERS = ("yes", "y", "no", "n", "all", None)


class TerminalApprover:
    """
    Implements the port `Approver`: asks once per plan; "all" approves the remaining ones, too.
    ``where`` is the blueprint and environment. While it asks, nothing else is shown:
    `HumanView.hold`.
    """

    def __init__(
        self,
        stop: StopToken,
        where: str,
        *,
        hold: Callable[[], AbstractContextManager[None]],
        verbose: bool = False,
    ) -> None:
        self._stop = stop
        self._where = where
        self._verbose = verbose
        self._hold = hold
        self._lock = threading.Lock()
        self._all = False

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        """
        Return whether the user approves the plan. A signal during the question means no.
        """
        what = planned(plan.actions) if plan.actions else "only outputs change"
        return self._ask(f"{command} {self._where}, {step}: {what}")

    def review(self, document: PlanDocument) -> bool:
        from orchestrator.cli.invocation import paper
        from orchestrator.views.plan import plan_text

        actions = [action for step in document.steps for action in step.actions]
        steps = sum(step.status == "planned" for step in document.steps)
        later = sum(step.status == "deferred" for step in document.steps)
        what = planned(actions) if actions else "only outputs change"
        parts = [f"{what} in {steps} step{'' if steps == 1 else 's'}"] if steps else []
        parts += [f"{later} to be approved later"] if later else []
        with self._hold():
            click.echo(plan_text(document, paper(sys.stdout, verbose=self._verbose)))
        return self._ask(f"{document.command} {self._where}: {'; '.join(parts)}")

    def agree(self, what: str, name: str | None = None) -> bool:
        if name is None:
            return self._ask(f"{self._where}, {what}")
        with self._lock, self._hold():
            _drop_typed_ahead()
            return self._answer(f"\n{what}.\nType {name} to continue:") == name.lower()

    def _ask(self, what: str) -> bool:
        with self._lock:
            if self._all:
                return True
            with self._hold():
                _drop_typed_ahead()
                question = f"\n{what}. Continue?"
                while (answer := self._answer(f"{question} [yes/no/all]")) not in _ANSWERS:
                    question = "Please answer yes, no, or all for all that is left."
            self._all = answer == "all"
            return answer in ("yes", "y", "all")

    def _answer(self, question: str) -> str | None:
        """
        Return a line from the terminal, None on a stop or end of input.
        """
        click.echo(f"{question} ", nl=False)
        while not self._stop.stopping:
            ready, _, _ = select.select([sys.stdin], [], [], 0.2)
            if ready:
                line = sys.stdin.readline()
                if not line.endswith("\n"):
                    click.echo()  # Ctrl-D: what is said next begins a line
                return line.strip().lower() if line else None
        click.echo()
        return None


def _drop_typed_ahead() -> None:
    """
    Discard what was typed before the question was shown.
    """
    with suppress(termios.error, OSError, ValueError):  # no terminal: nothing is typed ahead
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


class NoApprover:
    """
    The approver of commands that never ask: it answers no.
    """

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        return False

    def review(self, document: PlanDocument) -> bool:
        return False

    def agree(self, what: str, name: str | None = None) -> bool:
        return False
