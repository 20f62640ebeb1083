"""
The handlers of a command's signals.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDING = """
import os, signal, sys
from orchestrator.cli.running import StopSignals
with StopSignals().installed() as stop:
    os.kill(os.getpid(), signal.{first})
os.kill(os.getpid(), signal.{second})
sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize(
    ("first", "second", "code"), [("SIGINT", "SIGTERM", 130), ("SIGTERM", "SIGINT", 143)]
)
def test_a_second_signal_at_the_very_end_keeps_the_exit_code(
    first: str, second: str, code: int
) -> None:
    """
    Law: signals.
    CI sends both; the second only counts as a note, also where it meets a process that has
    recorded everything and is about to end.
    """
    script = ENDING.format(first=first, second=second)

    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)

    assert ended.returncode == code
