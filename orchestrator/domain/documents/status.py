"""
What ``status`` and ``outputs`` say of the steps: the JSON documents.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Literal

from pydantic import Field

from orchestrator.domain.json_model import HookTarget, JsonDocument, JsonModel
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
    A step as its newest record tells it; without a record ``status`` is ``pending``.

    ``condition`` is set for ``running`` only. ``last_run_status`` is what became of the step in
    ``run_id``, None if that is not known. ``spooled`` tells that the status shown is an outcome
    that still waits on disk to be recorded. ``outputs`` are those last known. ``in_flight``,
    ``completed`` and how many more were completed are told by the last heartbeat. ``last_attempt``
    left the status alone: it changed no object. ``objects`` are those that are alive of the module
    of a hook, or of what left the blueprint (while it is ``running``, those that were before);
    ``released`` those that it had and no longer manages, and that nobody has proven gone.
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
        The newest attempt, where it failed before it changed anything: the status is not its own.
        """
        tried = self.last_attempt
        return tried if tried is not None and tried.stands_beside else None


class StatusDocument(JsonDocument):
    """
    What ``status`` tells of a blueprint in an environment.

    ``orphaned`` are targets with a record whose step is no longer in the blueprint. Where steps
    were selected, verdict and ``steps`` are theirs alone: ``selected``.
    """

    schema_: Literal["orchestrator.status/1"] = Field("orchestrator.status/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    verdict: Verdict
    selected: tuple[Word, ...] = ()
    steps: tuple[StepState, ...]
    orphaned: tuple[Word, ...] = ()
    next: tuple[NextCommand, ...] = ()


class UnreadStore(JsonModel):
    """
    An operation store that could not be read, and why. ``blueprint`` is whose it is, with the
    environment; empty in a list of runs, and where no blueprint leads there any more, and this
    machine has used it.
    """

    url: Word
    message: str
    blueprint: Word = ""


class StatusListDocument(JsonDocument):
    """
    What ``status --all`` tells: every blueprint and environment with a record or a file.
    """

    schema_: Literal["orchestrator.status_list/1"] = Field(
        "orchestrator.status_list/1", alias="schema"
    )
    project: Word
    blueprints: tuple[StatusDocument, ...]
    unread_stores: tuple[UnreadStore, ...] = ()


class StepOutputs(JsonModel):
    """
    The outputs of a step that its newest record knows; the values of ``sensitive_outputs`` are in
    the provider state only.
    """

    step: Word
    target: Word
    status: StepStatus
    outputs: dict[str, Json] = Field(default_factory=dict)
    sensitive_outputs: tuple[Word, ...] = ()


class OutputsDocument(JsonDocument):
    """
    The outputs of the steps of a blueprint, upstreams first. Those of a step that is not ``ok`` are
    what was known last.
    """

    schema_: Literal["orchestrator.outputs/1"] = Field("orchestrator.outputs/1", alias="schema")
    project: Word
    blueprint: Word
    environment: Word
    steps: tuple[StepOutputs, ...]
