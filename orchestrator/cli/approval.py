"""
Asking a person at the terminal.
"""

from __future__ import annotations

import select
import sys
import termios
import threading
from contextlib import suppress

import click

from orchestrator.domain.events.events import PlanReady
from orchestrator.ports.system import StopToken

#: What ends the question: "" is nobody there any more.
_ANSWERS = ("yes", "y", "no", "n", "all", "")


class TerminalApprover:
    """
    Implements the port `Approver`: asks once per plan; "all" answers for the rest too.
    """

    def __init__(self, stop: StopToken) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._all = False

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        """
        Whether the person answered yes. A signal while we ask means no.
        """
        count = len(plan.actions)
        what = f"{count} changes" if count != 1 else "1 change"
        if not plan.actions:
            what = "changed outputs"
        return self.agree(f"{command} {step}: {what}")

    def agree(self, what: str) -> bool:
        """
        The same, asked in these words.
        """
        with self._lock:
            if self._all:
                return True
            _drop_typed_ahead()
            answer = None
            while answer not in _ANSWERS:
                if answer is not None:
                    click.echo("Please answer yes, no or all.")
                click.echo(f"\n{what}. Go on? [yes/no/all] ", nl=False)
                answer = self._answer()
            self._all = answer == "all"
            return answer in ("yes", "y", "all")

    def _answer(self) -> str:
        """
        A line from the terminal, "no" for an empty one; "" if we are asked to stop or nobody is
        there any more.
        """
        while not self._stop.stopping:
            ready, _, _ = select.select([sys.stdin], [], [], 0.2)
            if ready:
                line = sys.stdin.readline()
                return line.strip().lower() or ("no" if line else "")
        return ""


def _drop_typed_ahead() -> None:
    """
    Forget what was typed before the question stood there: it answers nothing.
    """
    with suppress(termios.error, OSError, ValueError):  # no terminal: nothing is typed ahead
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


class Nobody:
    """
    For commands that never ask.
    """

    def approve(self, command: str, step: str, plan: PlanReady) -> bool:
        """
        No.
        """
        return False

    def agree(self, what: str) -> bool:
        """
        No.
        """
        return False
