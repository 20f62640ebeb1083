"""
The question that an apply asks between its plan and what it makes of it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from orchestrator.domain.events.events import ApplyStart, ChangeSummary, Message
from orchestrator.engine.process.child import Child

#: The end of the text of an apply that waits. A variable is asked for in other words.
_QUESTION = re.compile(rb"Only 'yes' will be accepted to approve\.\s+Enter a value:\s*\Z")
_TAIL = 200  # bytes, more than the question has
_PATIENCE = 5.0  # seconds from the summary of the plan to the question


class Question:
    """
    Whether an apply waits for its approval, by the text that it prints into ``file`` and by its
    messages. One that asks in words that are not known is told no.
    """

    def __init__(self, file: Path, child: Child) -> None:
        self._file = file
        self.child = child
        self._planned_at: float | None = None
        self.is_passed_over = False

    def observe(self, message: Message) -> None:
        """
        Take note of a message: the plan is whole, or (``is_passed_over``) the apply has begun.
        """
        if isinstance(message, ChangeSummary) and self._planned_at is None:
            self._planned_at = time.monotonic()
        self.is_passed_over |= isinstance(message, ApplyStart)

    def is_due(self) -> bool:
        """
        Whether it is asked, or nobody will ask any more. All of the plan is written by then.
        """
        if self._planned_at is not None and time.monotonic() - self._planned_at > _PATIENCE:
            self.child.answer("no")
        return self.is_passed_over or self._is_asked()

    def _is_asked(self) -> bool:
        try:
            with self._file.open("rb") as text:
                text.seek(-min(_TAIL, self._file.stat().st_size), 2)
                return _QUESTION.search(text.read()) is not None
        except FileNotFoundError:
            return False
