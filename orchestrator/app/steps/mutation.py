"""
The one way to mutate anything: intent, deed, outcome.

Applies, destroys, operations on provider state, emptied owned steps and hooks differ in what they
plan, call and conclude. The order of the durable writes is the same for all, and it is here.
`settling` ends a mutation whose end nobody saw by the same functions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.absence import drop_saved_states, with_absence_findings
from orchestrator.app.steps.engine_calls import KillOnly, pull
from orchestrator.app.steps.preparation import PreparedStep, refusal_rules
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.app.steps.verification import run_checks
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    EngineDiagnostic,
    EngineLine,
    Event,
    Message,
    ObjectEvent,
    ProvisionProgress,
)
from orchestrator.domain.events.journal import MUTATIONS, Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import (
    SURGERY,
    Check,
    Diagnostic,
    Fault,
    OperationRecord,
    Verification,
)
from orchestrator.domain.record.run_record import InFlight
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.redaction import redacted
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.surgery import surgery_ended
from orchestrator.domain.values import replace
from orchestrator.errors import (
    Busy,
    EngineFailed,
    Fenced,
    OrchestratorError,
    Spooled,
    StateDamaged,
    Stopped,
    StoreUnavailable,
)
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


def mutate(
    session: Session,
    marker: OperationRecord,
    call: Callable[[], E],
    conclude: Callable[[OperationRecord, E], OperationRecord],
    spec: CallSpec | None,
    *,
    store: Callable[[], None] = lambda: None,
) -> tuple[OperationRecord, E]:
    """
    Execute a mutation that is approved, and return the final entry with the evidence for it.

    ``marker`` is the entry that records the intent: command, planned actions, inputs, binding.
    ``call`` executes it and returns the evidence; ``conclude`` makes the final entry from marker
    and evidence. ``store`` stores durably what settling on another machine needs. ``spec`` is where
    the call leaves its files, None if other targets have files of their own.

    An error before the marker is durable leaves everything as it was. Spooled and Fenced are raised
    after the call: then the record stays ``running``, and the outcome is kept beside it.
    """
    services, step = session.services, marker.target.step
    # Intent first: the marker is the last thing before the call. Until it is durable, whatever goes
    # wrong ends here: no claim any more, no room on the disk, a race lost. No record, no mutation.
    try:
        store()
        session.check_claim()
        marker = record_entry(services, marker)
    except OrchestratorError:
        drop_saved_states(services, marker)
        raise
    assert marker.active_command is not None, "a marker names its command"
    services.report_phase(step, marker.active_command)
    # From here on we may be killed at any moment. The engine goes on and leaves its answer on disk;
    # the marker tells the next command where to look for it.
    evidence = call()
    outcome = end_mutation(services, marker, conclude(marker, evidence), spec)
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
    observe: Callable[[Message], None] = lambda _: None,
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
    services.workdirs.make_state_private(root)
    state: PulledState | None = None
    why: str | None = None
    try:  # also during a stop: the outcome depends on it
        state = pull(services, root, spec.evidence, "pull", stop=KillOnly(services.stop))
    except (EngineFailed, StateDamaged, Busy) as exc:
        why = exc.message
    except Stopped:
        why = "the third Ctrl-C came first"
    errored = services.workdirs.errored_state(root) if saved_before is None else None
    if errored is not None:
        step, deployment = prepared.step.name, session.deployment
        options = (*step_options(deployment, step), "--push-errored-state")
        services.note(
            f"the engine could not save its last provider state; it is in {errored}, and nothing "
            "is applied until it is saved or dismissed",
            hint=command_line(deployment, "reconcile", *options),
            level="error",
            step=step,
        )
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
    lines = []
    for message in result.messages:
        fields: dict[str, Json]
        if isinstance(message, Diagnostic):
            kind, fields = "diagnosticmessage", message.model_dump()
        else:
            kind = type(message).__name__.lower()
            fields = msgspec.to_builtins(message, builtin_types=(datetime,), enc_hook=str)
        event = {"event": kind, **services.masker.mask_json(fields)}
        lines.append(json.dumps(event, default=datetime.isoformat) + "\n")
    with suppress(StoreUnavailable):
        services.files.write(spec.evidence / "events.jsonl", "".join(lines))
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
    deployment: Deployment,
    query: QueryContext,
    marker: OperationRecord,
    before: OperationRecord | None,
    evidence: MutationEvidence,
    *,
    left_undone: Callable[[], tuple[PlannedAction, ...]],
) -> OperationRecord:
    """
    Return the entry that ends the engine call of ``marker``, which was written over ``before``.

    The checks run after a successful apply, and ``left_undone`` returns what a targeted one did not
    do; after a destroy the provider is queried for what was removed.
    """
    services, step = query.services, query.prepared.step
    if marker.active_command in SURGERY:
        return surgery_ended(marker, before, evidence, services.stamp())
    verification: Verification | None = None
    undone: tuple[PlannedAction, ...] = ()
    if marker.active_command == "apply" and evidence.clean and evidence.state is not None:
        if query.inputs is not None:
            verification = run_checks(services, deployment, step, query.inputs, evidence.state)
        elif step.verify:
            unable = Check(name="checks", passed=False, detail=f"not run: {query.why}")
            at = services.clock.now()
            verification = Verification(verdict="failed", checks=(unable,), at=at)
        undone = left_undone()
        # Checks that a signal cut short have not failed: asked again after they ran.
        evidence = replace(evidence, stopped=evidence.stopped or services.stop.stopping)
    evidence = with_absence_findings(query, marker, evidence)
    return conclude(
        marker,
        before,
        evidence,
        services.stamp(),
        refusals=refusal_rules(step),
        verification=verification,
        undone=undone,
    )


def relay(session: Session, marker: OperationRecord, message: Message) -> None:
    """
    Show a message of the mutating call of a marker, and update the heartbeat's objects.
    """
    services, target = session.services, str(marker.target)
    step, at = marker.target.step, services.clock.now()
    seen = partial(ObjectEvent, at=at, step=step)
    event: Event
    match message:
        case ApplyStart(_, action) | ApplyComplete(_, action) if action not in MUTATIONS:
            return
        case ApplyStart(address, action, began, object_id):
            session.object_started(
                InFlight(
                    target=target,
                    address=address,
                    action=action,
                    started_at=began,
                    sequence=marker.sequence,
                )
            )
            event = seen(state="began", address=address, action=action, id=object_id)
        case ApplyProgress(address, action, _, elapsed):
            event = seen(state="going", address=address, action=action, elapsed=elapsed)
        case ApplyComplete(address, action, _, object_id):
            session.object_ended(target, address, action, completed=True, object_id=object_id)
            event = seen(state="done", address=address, action=action, id=object_id)
        case ApplyErrored(address, action):
            session.object_ended(target, address, action, completed=False)
            event = seen(state="failed", address=address, action=action)
        case Diagnostic() as diagnostic:
            event = EngineDiagnostic(at=at, step=step, diagnostic=diagnostic)
        case ProvisionProgress(address, line):
            event = EngineLine(at=at, step=step, address=address, line=line)
        case _:
            return
    services.sink.emit(event)


# Entries, durable or spooled.


#: Waits in seconds between tries to record an outcome; the last one again and again, while a store
#: that is away is waited for.
PATIENCE = (0.2, 0.5, 1.0)


def record_entry(services: Services, entry: OperationRecord) -> OperationRecord:
    """
    Make an entry durable, redacted and with the checksum of the stored entry before it, and return
    it.

    If this raises for a marker, the mutation must not start.

    Law: no record, no mutation.
    """
    entry = redacted(entry, services.masker)
    store, target = services.store, entry.target
    if entry.sequence > 1:  # the entry in memory may have been judged by newer evidence
        before = store.newest_known(target)
        if before is None or before.sequence != entry.sequence - 1:
            before = store.newest(target)
        if before is not None and before.entry_id == entry.entry_id:
            return before  # the answer to our own write was lost
        follows = before is not None and before.sequence == entry.sequence - 1
        checksum = before.own_checksum() if before is not None and follows else None
        entry = entry.model_copy(update={"previous_checksum": checksum})
    store.append(entry)
    return entry


def record_outcome(services: Services, outcome: OperationRecord) -> OperationRecord:
    """
    Make the outcome of a mutation durable, in the store or else in the spool.

    Law: spooled outcome.

    Raises Spooled if the store stayed unavailable and the outcome is in the spool; raises Fenced if
    another writer took over the target: then the outcome is kept beside the run as evidence and
    overwrites nothing.
    """
    outcome, clock = redacted(outcome, services.masker), services.clock
    grace, began = services.limits.store_grace, clock.monotonic()
    for tries in itertools.count():
        try:
            return record_entry(services, outcome)
        except Fenced:
            write_late_outcome(services, outcome)
            raise
        except StoreUnavailable as exc:
            remaining = began + grace - clock.monotonic()
            if tries >= len(PATIENCE) and remaining <= 0:
                try:
                    place = f"it is in {services.spool.put(outcome)}"
                except OrchestratorError as second:
                    place = (
                        f"nor spooled ({second.message}); the engine's result is in "
                        f"{outcome.run_record}"
                    )
                raise Spooled(
                    f"{outcome.target}: the engine finished, but its outcome could not be recorded "
                    f"({exc.message}); {place}",
                    hint="make the store writable again; the next mutating command records it "
                    "first",
                ) from exc
            if tries == len(PATIENCE):
                services.note(
                    f"the outcome waits for the operation store, {remaining:.0f} s more at most: "
                    f"{exc.message}",
                    level="warning",
                    step=outcome.target.step,
                )
            clock.sleep(PATIENCE[min(tries, len(PATIENCE) - 1)])
    raise AssertionError("a try returns or raises in the end")


def keep_inventory(services: Services, attempt: Path, state: PulledState) -> None:
    """
    Write the objects of a provider state, without attributes, as ``inventory.json`` of an attempt.
    """
    rows = [ref.model_dump(exclude_none=True) for ref in state.inventory]
    with suppress(StoreUnavailable):
        services.files.write(attempt / "inventory.json", json.dumps(rows, indent=2) + "\n")


def write_late_outcome(services: Services, outcome: OperationRecord) -> None:
    """
    Write an outcome that came too late beside its run, as evidence.
    """
    directory = services.files.directory(outcome.run_id)
    name = f"late-{outcome.target.step}-{outcome.sequence}.json".replace("/", "_")
    try:
        services.files.write(directory / name, outcome.to_json())
        if services.is_shared:
            services.store.put_blob(f"runs/{outcome.run_id}/{name}", outcome.to_json().encode())
    except StoreUnavailable as exc:
        services.note(f"a late outcome could not be kept: {exc.message}", level="warning")


def replay_spool(services: Services, deployment: Deployment) -> None:
    """
    Record spooled outcomes of earlier runs of this blueprint and environment, oldest first.
    """
    ours = (deployment.blueprint, deployment.environment)
    for outcome in services.spool.pending():
        target = outcome.target
        if (target.blueprint, target.environment) != ours:
            continue
        try:
            record_entry(services, outcome)
            drop_saved_states(services, outcome)
            services.note(f"{target}: recorded the spooled outcome `{outcome.status}`")
        except Fenced:
            write_late_outcome(services, outcome)
            services.note(
                f"{target}: a spooled outcome of run {outcome.run_id} came too late; another run "
                "has recorded since. It is kept beside its run and overwrites nothing",
                level="warning",
            )
        services.spool.drop(outcome)
        services.files.sweep(outcome.run_id, settled=target.step)
