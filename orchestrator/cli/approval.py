"""
Asking a person at the terminal.
"""

from __future__ import annotations

import select
import sys
import threading

import click

from orchestrator.domain.events.events import PlanReady
from orchestrator.ports.system import StopToken


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
            click.echo(f"\n{what}. Go on? [yes/no/all] ", nl=False)
            answer = self._answer()
            self._all = answer == "all"
            return answer in ("yes", "y", "all")

    def _answer(self) -> str:
        """
        A line from the terminal; "" if we are asked to stop or nobody is there any more.
        """
        while not self._stop.stopping:
            ready, _, _ = select.select([sys.stdin], [], [], 0.2)
            if ready:
                return sys.stdin.readline().strip().lower()
        return ""


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
