"""
Time and ids that a test sets: fakes of ``ports.Clock``, ``ports.Ids`` and ``ports.StopToken``.
"""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class SetClock:
    """
    Stands still until it is moved; sleeping moves it. ``slept`` lists all sleeps, in seconds.
    """

    def __init__(self, start: datetime = START) -> None:
        self._lock = threading.Lock()
        self._start = start
        self._passed = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._passed += seconds


class CountedIds:
    """
    Ids in order: ``20300102T030405Z-000001`` and ``entry-000001``.
    """

    def __init__(self) -> None:
        self._runs = itertools.count(1)
        self._entries = itertools.count(1)

    def run_id(self, now: datetime, after: str = "") -> str:
        return f"{now:%Y%m%dT%H%M%SZ}-{next(self._runs):06d}"

    def fraction(self) -> float:
        return 0.5

    def entry_id(self) -> str:
        return f"entry-{next(self._entries):06d}"


class SetStop:
    """
    A stop token that a test sets. With ``after`` it stops by itself at the n-th look.
    """

    def __init__(self, *, after: int | None = None) -> None:
        self._left = after
        self.stop_now = False
        self.kill_now = False

    @property
    def stopping(self) -> bool:
        if self._left is not None:
            self._left -= 1
            self.stop_now = self.stop_now or self._left <= 0
        return self.stop_now

    @property
    def killing(self) -> bool:
        return self.kill_now

    @property
    def exit_code(self) -> int:
        return 130 if self.stop_now else 0
