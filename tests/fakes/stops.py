"""
A stop that tests ask for.
"""

from __future__ import annotations


class Stop:
    """
    Satisfies the port `StopToken`; set ``stopping`` and ``killing`` from any thread.
    """

    def __init__(self, *, stopping: bool = False, killing: bool = False) -> None:
        self.stopping = stopping
        self.killing = killing

    @property
    def exit_code(self) -> int:
        """
        130 once stopping.
        """
        return 130 if self.stopping else 0
