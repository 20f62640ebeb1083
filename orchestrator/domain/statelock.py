"""
The lock of a provider state, as far as the engine tells of its holder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

_CREATED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?) ?(?:\+0000 UTC|Z)")


@dataclass(frozen=True, slots=True)
class StateLock:
    """
    A lock that is held. ``id``, ``who`` (user@host), ``operation`` and ``created`` are the engine's
    own texts, None where it does not tell. ``said`` stands for all of them where it tells none.

    ``ends_with`` names what takes the lock with it when it ends; None for one that stays until it
    is released.

    >>> str(StateLock(id="1", who="ann@ci"))
    'id 1, who ann@ci'
    """

    id: str | None = None
    who: str | None = None
    operation: str | None = None
    created: str | None = None
    said: str = ""
    ends_with: Literal["session"] | None = None

    def __str__(self) -> str:
        known = (
            ("id", self.id),
            ("who", self.who),
            ("operation", self.operation),
            ("created", self.created),
        )
        return ", ".join(f"{label} {text}" for label, text in known if text) or self.said

    @property
    def since(self) -> datetime | None:
        """
        When it was taken, to the microsecond; None where that is not known.
        """
        found = _CREATED.fullmatch(self.created or "")
        if found is None:
            return None
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
