"""
The documents of ``history`` and ``runs``: entries of a record, and runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.record.objects import Absence, Doubt, SettledDoubt
from orchestrator.domain.record.record import Actor, Attempt, Command, HookResult, Lineage
from orchestrator.domain.record.states import Status, StepStatus
from orchestrator.domain.text import Word


class HistoryEntry(JsonModel):
    """
    One entry of a target's record, without what does not change from entry to entry. ``settled``
    are the doubts that it settled.
    """

    sequence: int
    entry_id: Word
    status: Status
    previous_status: Status | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    run_id: Word
    updated_at: datetime
    actor: Actor
    in_doubt: tuple[Doubt, ...] = ()
    lineage: Lineage | None = None
    last_attempt: Attempt | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    absence: Absence | None = None
    settled: tuple[SettledDoubt, ...] = ()


class HistoryDocument(JsonDocument):
    """
    All entries of a target, newest first.
    """

    schema_: Literal["orchestrator.history/1"] = Field("orchestrator.history/1", alias="schema")
    project: Word
    target: Word
    entries: tuple[HistoryEntry, ...]


class StepOutcome(JsonModel):
    step: Word
    status: StepStatus


class RunLine(JsonModel):
    """
    A run in a list. ``exit_code`` and ``ended_at`` are None where it has not ended, or was killed.
    """

    run_id: Word
    blueprint: Word
    environment: Word
    command: Word
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    actor: Actor
    reason: str | None = None
    lineage: Lineage | None = None
    steps: tuple[StepOutcome, ...] = ()


class OverdueReview(JsonModel):
    """
    A retained target whose date of review has passed.
    """

    target: Word
    owner: str
    review_by: Word


class RunsDocument(JsonDocument):
    """
    Runs, newest first, and the retained targets of the project that nobody has looked at in time.
    """

    schema_: Literal["orchestrator.runs/1"] = Field("orchestrator.runs/1", alias="schema")
    project: Word
    runs: tuple[RunLine, ...]
    overdue: tuple[OverdueReview, ...] = ()
