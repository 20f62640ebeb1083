"""
The lock of a provider state, as the engine describes its holder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from orchestrator.domain.record.record import Actor

_CREATED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:\+0000 UTC|Z)")


_TEXT = re.compile(
    r"\bid (?P<id>[^\s,]+)"
    r"(?:, who (?P<who>[^,]+))?(?:, operation (?P<operation>[^,]+))?"
    r"(?:, created (?P<created>[^,;]+))?"
)

#: Backends whose locks end with what holds them, and what that is.
PASSING_LOCKS = {"pg": "the session", "local": "the process"}


class StateLock(Struct, frozen=True):
    """
    A held lock. ``id``, ``who`` (user@host), ``operation`` and ``created`` are the engine's own
    texts, None if not reported. ``raw_text`` is used if none is reported.

    >>> str(StateLock(id="1", who="ann@ci"))
    'id 1, who ann@ci'
    """

    id: str | None = None
    who: str | None = None
    operation: str | None = None
    created: str | None = None
    raw_text: str = ""

    def __str__(self) -> str:
        fields = (
            ("id", self.id),
            ("who", self.who),
            ("operation", self.operation),
            ("created", self.created),
        )
        return ", ".join(f"{label} {text}" for label, text in fields if text) or self.raw_text

    @property
    def since(self) -> datetime | None:
        """
        When it was taken, to the microsecond; None if unknown.
        """
        match = _CREATED.fullmatch(self.created or "")
        if match is None:
            return None
        return datetime.fromisoformat(f"{match[1]}T{match[2]}").replace(tzinfo=UTC)


def parse_lock(text: str) -> StateLock | None:
    """
    Return the lock described by a text such as a fault's summary, None if it has no id.

    >>> parse_lock("the provider state is locked: id 1, who ann@ci").who
    'ann@ci'
    """
    match = _TEXT.search(text)
    return StateLock(**match.groupdict()) if match else None


class RunPeriod(Struct, frozen=True):
    """
    A run that may have left a lock, and when it ran; ``ended`` is None if no end is known.
    """

    run_id: str
    actor: Actor
    began: datetime
    ended: datetime | None


def run_at(runs: Iterable[RunPeriod], since: datetime) -> RunPeriod | None:
    """
    Return the run that was active at a time. A target has only one run at a time, so it is the last
    that began before, unless that had ended.
    """
    last = max((run for run in runs if run.began <= since), key=lambda run: run.began, default=None)
    if last is None or (last.ended is not None and last.ended < since):
        return None
    return last


def unlock_objection(lock: StateLock, lock_id: str, runs: Iterable[RunPeriod]) -> str | None:
    """
    Return why the lock with the id ``lock_id`` cannot be attributed to these runs, None if it can.
    """
    if lock.id != lock_id:
        return f"the lock that is held is not {lock_id}"
    if lock.who is None or lock.since is None:
        return "the engine does not report who holds it and since when"
    run = run_at(runs, lock.since)
    if run is None:
        return "no run of ours was under way when it was taken"
    owner = f"{run.actor.user}@{run.actor.host}"
    if lock.who != owner:
        return f"run {run.run_id}, which was under way then, is of {owner}"
    return None
