"""
How a person at the terminal is asked.
"""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from orchestrator.cli.approval import NoApprover, TerminalApprover
from orchestrator.cli.running import StopSignals
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.values import replace
from orchestrator.errors import ApprovalMissing
from tests.fakes.clock import START, SetStop
from tests.fakes.services import Premises


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [
        ("yse\nyes\n", True),
        ("?\nno\n", False),
        ("\nyes\n", True),
        ("\n", False),
        ("ja\n", False),
        ("all\n", True),
    ],
)
def test_a_typo_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, agreed: bool
) -> None:
    """
    Only yes, y, no, n and all answer, no empty line does; nobody there any more is a no.
    """
    (tmp_path / "typed").write_text(typed)
    with (tmp_path / "typed").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        asked = TerminalApprover(StopSignals(), "a/b", hold=nullcontext)
        assert asked.agree("apply x: 1 change") is agreed


def test_what_is_typed_ahead_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An answer that was there before its question is dropped.
    """
    master, slave = pty.openpty()
    os.write(master, b"yes\n")
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        stop = StopSignals()
        timer = threading.Timer(1.0, stop.note, (signal.SIGTERM, None))
        timer.start()
        assert TerminalApprover(stop, "a/b", hold=nullcontext).agree("destroy x: 1 change") is False
        timer.cancel()
    os.close(master)


@pytest.mark.parametrize("asks", ["approve", "agree"])
def test_only_a_no_that_no_signal_caused_is_a_missing_approval(asks: str) -> None:
    """
    The answer to a question that a signal ended is no, and what is told is the signal.
    """
    stop, answers = SetStop(), iter((True, False, False))

    class Person(NoApprover):
        def approve(self, command: str, step: str, plan: PlanReady) -> bool:
            return next(answers)

        def agree(self, what: str, name: str | None = None) -> bool:
            return next(answers)

    there = Premises({"web": []})
    services = replace(there.services, approver=Person(), stop=stop)
    shown = PlanReady(at=START, step="web", actions=(), outputs=(), drifted=(), inputs={})

    def ask() -> None:
        if asks == "agree":
            services.agree("web", "is it meant?")
        else:
            services.approve("apply", "web", shown)

    try:
        ask()
        with pytest.raises(ApprovalMissing, match="not approved"):
            ask()
        stop.stop_now = True
        ask()
    finally:
        there.close()
    assert next(answers, None) is None
