"""
SIGINT, SIGTERM and SIGHUP while a run goes on: counted here, acted on by those who look.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignals:
    """
    Implements `orchestrator.ports.system.StopToken`.

    CI systems send SIGINT and then SIGTERM: the second signal of the other kind only counts as a
    note. A person who means it presses Ctrl-C three times.
    """

    def __init__(self) -> None:
        self._first = 0
        self._interrupts = 0

    @property
    def stopping(self) -> bool:
        """
        Whether a signal came.
        """
        return self._first != 0

    @property
    def killing(self) -> bool:
        """
        Whether Ctrl-C came three times.
        """
        return self._interrupts >= 3

    @property
    def exit_code(self) -> int:
        """
        130 or 143 by the first signal, 0 before.
        """
        return 128 + self._first if self._first else 0

    def note(self, number: int, _: FrameType | None) -> None:
        """
        The signal handler: nothing but counting, because it may interrupt anything.
        """
        self._first = self._first or number
        if number == signal.SIGINT:
            self._interrupts += 1

    @contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """
        Handle the signals while the body runs. SIGHUP is ignored: a closed terminal is no reason to
        stop a mutation. After one signal has stopped us the others are ignored to the end of the
        process, whose exit code says how it ended.
        """
        before = {
            number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.stopping else handler)
