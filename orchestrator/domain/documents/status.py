"""
The documents of ``status`` and ``outputs``.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import BlueprintDocument, HookTarget, JsonDocument, JsonModel
from orchestrator.domain.record.objects import Absence, Doubt, ReleasedObject
from orchestrator.domain.record.record import (
    Attempt,
    Command,
    Diagnostic,
    HookResult,
    Lineage,
    OutputOrigin,
    Retention,
    Verification,
)
from orchestrator.domain.record.run_record import Completed, InFlight, NextCommand
from orchestrator.domain.record.states import Condition, StepStatus, Verdict
from orchestrator.domain.text import Json, Word


class StepState(JsonModel):
    """
    A step by its newest record; without a record ``status`` is ``pending``.

    ``condition`` is set for ``running`` only. ``last_run_status`` is the step's status in
    ``run_id``, None if unknown. ``spooled``: the status is an outcome that waits on disk to be
    recorded. ``outputs`` are the last known. ``in_flight``, ``completed`` and the number of further
    completed objects come from the last heartbeat. ``last_attempt`` changed no object and left the
    status as it was. ``objects`` are the live objects of a hook's module or an orphan (while
    ``running``, those from before); ``released`` those that are no longer managed and not proven
    gone.
    """

    step: Word
    target: Word
    status: StepStatus
    condition: Condition | None = None
    sequence: int | None = None
    run_id: Word | None = None
    last_run_status: StepStatus | None = None
    module_ref: Word | None = None
    active_command: Command | None = None
    failed_command: Command | None = None
    last_error: str | None = None
    last_error_code: Word | None = None
    last_attempt: Attempt | None = None
    blocked_by: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    outputs: dict[Word, Json] = {}
    sensitive_outputs: tuple[Word, ...] = ()
    verification: Verification | None = None
    warnings: tuple[Diagnostic, ...] = ()
    absence: Absence | None = None
    updated_at: datetime | None = None
    directory: Word | None = None
    outputs_from: dict[Word, OutputOrigin] = {}
    in_flight: tuple[InFlight, ...] = ()
    completed: tuple[Completed, ...] = ()
    more_completed: int = 0
    tainted: tuple[Word, ...] = ()
    retained: Retention | None = None
    review_overdue: bool = False
    spooled: bool = False
    lineage: Lineage | None = None
    compensation: HookResult | None = None
    before_destroy: HookResult | None = None
    action_roots: tuple[HookTarget, ...] = ()
    objects: tuple[Word, ...] = ()
    released: tuple[ReleasedObject, ...] = ()

    @property
    def failed_attempt(self) -> Attempt | None:
        """
        The newest attempt, if it failed before it changed anything; then the status is older than
        it.
        """
        tried = self.last_attempt
        return tried if tried is not None and tried.stands_beside else None


class StatusDocument(BlueprintDocument):
    """
    The result of ``status`` for a blueprint in an environment.

    ``orphaned`` are targets with a record whose step is no longer in the blueprint. With a
    selection, verdict and ``steps`` are those of ``selected``.
    """

    schema_: Literal["orchestrator.status/1"] = Field("orchestrator.status/1", alias="schema")
    verdict: Verdict
    selected: tuple[Word, ...] = ()
    steps: tuple[StepState, ...]
    orphaned: tuple[Word, ...] = ()
    next: tuple[NextCommand, ...] = ()


class UnreadStore(JsonModel):
    """
    An operation store that could not be read, and why. ``blueprint`` and the environment say whose
    it is; empty in a list of runs, and for a store that this machine has used and no blueprint
    names any more.
    """

    url: Word
    message: str
    blueprint: Word = ""


class StatusListDocument(JsonDocument):
    """
    The result of ``status --all``: every blueprint and environment with a record or a file.
    """

    schema_: Literal["orchestrator.status_list/1"] = Field(
        "orchestrator.status_list/1", alias="schema"
    )
    project: Word
    blueprints: tuple[StatusDocument, ...]
    unread_stores: tuple[UnreadStore, ...] = ()


class StepOutputs(JsonModel):
    """
    The outputs in a step's newest record; the values of ``sensitive_outputs`` are in the provider
    state only.
    """

    step: Word
    target: Word
    status: StepStatus
    outputs: dict[str, Json] = Field(default_factory=dict)
    sensitive_outputs: tuple[Word, ...] = ()


class OutputsDocument(BlueprintDocument):
    """
    The outputs of a blueprint's steps, upstreams first. Those of a step that is not ``ok`` are the
    last known.
    """

    schema_: Literal["orchestrator.outputs/1"] = Field("orchestrator.outputs/1", alias="schema")
    steps: tuple[StepOutputs, ...]
