"""
The one way to mutate anything: intent, deed, outcome.

Applies, destroys, operations on provider state, emptied owned steps and hooks differ in what they
plan, call and conclude. The order of the durable writes is the same for all, and it is here.
`settling` ends a mutation whose end nobody saw by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.absence import with_absence_findings
from orchestrator.app.steps.engine_calls import pull_after
from orchestrator.app.steps.preparation import PreparedStep, refusal_rules
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.app.steps.recording import (
    drop_saved_states,
    keep_inventory,
    record_entry,
    record_outcome,
    write_events,
)
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.events import Message
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import SURGERY, Fault, OperationRecord, Verification
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.surgery import surgery_ended
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, OrchestratorError, StoreUnavailable
from orchestrator.ports.engine import CallResult, CallSpec, Request


class StepResult(Struct, frozen=True):
    """
    The result of the work on a step: the entry written, the provider state read (None if none),
    whether anything was mutated, and the fault: a restored record keeps the fault of an earlier
    run.
    """

    record: OperationRecord
    state: PulledState | None
    mutated: bool
    fault: Fault | None


E = TypeVar("E")


class Mutation(Struct, Generic[E], frozen=True):
    """
    A mutation that is approved and has not begun.

    ``marker`` is the entry that records the intent: command, planned actions, inputs, binding.
    ``call`` executes it and returns the evidence; ``conclude`` makes the final entry from marker
    and evidence. ``store`` stores durably what settling on another machine needs. ``spec`` is where
    the call leaves its files, None if other targets have files of their own.
    """

    marker: OperationRecord
    call: Callable[[], E]
    conclude: Callable[[OperationRecord, E], OperationRecord]
    spec: CallSpec | None
    store: Callable[[], None] = lambda: None


def mutate(session: Session, mutation: Mutation[E]) -> tuple[OperationRecord, E]:
    """
    Execute a mutation and return the final entry with the evidence for it.

    An error before the marker is durable leaves everything as it was. Spooled and Fenced are raised
    after the call: then the record stays ``running``, and the outcome is kept beside it.
    """
    services, step = session.services, mutation.marker.target.step
    # Intent first: the marker is the last thing before the call. Until it is durable, whatever goes
    # wrong ends here: no claim any more, no room on the disk, a race lost. No record, no mutation.
    try:
        mutation.store()
        session.check_claim()
        marker = record_entry(services, mutation.marker)
    except OrchestratorError:
        drop_saved_states(services, mutation.marker)
        raise
    assert marker.active_command is not None, "a marker names its command"
    services.report_phase(step, marker.active_command)
    # From here on we may be killed at any moment. The engine goes on and leaves its answer on disk;
    # the marker tells the next command where to look for it.
    evidence = mutation.call()
    outcome = mutation.conclude(marker, evidence)
    outcome = end_mutation(services, marker, outcome, mutation.spec)
    session.forget_objects(str(marker.target))
    return outcome, evidence


def end_mutation(
    services: Services, marker: OperationRecord, outcome: OperationRecord, spec: CallSpec | None
) -> OperationRecord:
    """
    Record the outcome of a mutation, in the store or else in the spool; then remove the files that
    only settling needs.

    In this order: until the outcome is durable, those files are its only evidence. A fenced writer
    keeps its outcome as late evidence and overwrites nothing.
    """
    outcome = record_outcome(services, outcome)
    drop_saved_states(services, outcome, marker=marker)
    if spec is not None:
        services.engine.discard(spec)
    return outcome


def call_engine(
    session: Session,
    prepared: PreparedStep,
    request: Callable[[], Request],
    spec: CallSpec,
    *,
    before: PulledState,
    observe: Callable[[Message], None],
) -> MutationEvidence:
    """
    Make a mutating call in a step's working directory and return the evidence.

    ``request`` writes the files that only this call may see, immediately before it. ``before`` is
    the provider state of the intent, unchanged if the call cannot be started.
    """
    services, root = session.services, prepared.work_dir
    saved_before = services.workdirs.errored_state(root)
    try:
        result = services.engine.call(request(), spec, stop=services.stop, observe=observe)
    except (EngineFailed, StoreUnavailable) as exc:
        return not_started(exc.message, state=before)
    state, why = pull_after(services, root, spec.evidence)
    errored = services.workdirs.errored_state(root) if saved_before is None else None
    if errored is not None:
        _note_errored(services, session.deployment, prepared.step.name, errored)
    return gather(services, spec, result, state=state, state_error=why, errored=errored)


def not_started(why: str, *, state: PulledState | None = None) -> MutationEvidence:
    """
    Return the evidence of a call that could not be started: it changed nothing.
    """
    return MutationEvidence(
        exit_code=None, journal=Journal.of((), whole=True), state=state, not_started=why
    )


def gather(
    services: Services,
    spec: CallSpec,
    result: CallResult,
    *,
    state: PulledState | None,
    state_error: str | None = None,
    errored: Path | None = None,
) -> MutationEvidence:
    """
    Return the evidence of a call and the provider state after it, observed or found on disk. The
    engine's messages are kept as events beside its log.
    """
    write_events(services, spec.evidence, result.messages)
    if state is not None:
        keep_inventory(services, spec.evidence, state)
    journal = Journal.of(result.messages, whole=result.complete)
    return MutationEvidence(
        exit_code=0 if journal.only_forgot else result.exit_code,
        journal=journal,
        state=state,
        stopped=result.stopped,
        timed_out=result.timed_out,
        lock=result.lock,
        state_error=state_error,
        errored_state=str(errored) if errored else None,
        stderr=result.stderr_text,
    )


def conclude_engine_call(
    query: QueryContext,
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    *,
    checks: Callable[[PulledState], Verification | None],
    left_undone: Callable[[], tuple[PlannedAction, ...]],
) -> OperationRecord:
    """
    Return the entry that ends the engine call of ``marker``, which was written over ``before``.

    ``checks`` run after a successful apply, and ``left_undone`` returns what a targeted one did not
    do; after a destroy the provider is queried for what was removed.
    """
    services = query.services
    if marker.active_command in SURGERY:
        return surgery_ended(marker, before, evidence, services.stamp())
    verification: Verification | None = None
    undone: tuple[PlannedAction, ...] = ()
    if marker.active_command == "apply" and evidence.clean and evidence.state is not None:
        verification = checks(evidence.state)
        undone = left_undone()
        # Checks that a signal cut short have not failed: asked again after they ran.
        evidence = replace(evidence, stopped=evidence.stopped or services.stop.stopping)
    evidence = with_absence_findings(query, marker, evidence)
    return conclude(
        marker,
        before,
        evidence,
        services.stamp(),
        refusals=refusal_rules(query.prepared.step),
        verification=verification,
        undone=undone,
    )


def _note_errored(services: Services, deployment: Deployment, step: str, errored: Path) -> None:
    services.note(
        f"the engine could not save its last provider state; it is in {errored}, and nothing is "
        "applied until it is saved or dismissed",
        hint=command_line(
            deployment, "reconcile", *step_options(deployment, step), "--push-errored-state"
        ),
        level="error",
        step=step,
    )
