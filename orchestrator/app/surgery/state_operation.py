"""
Surgery on a step under the marker contract: intent, engine call, what the provider state holds.

It changes provider state and no remote object, and never makes ``ok``. An interrupted one
is settled by `settling` from the same evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.entry_facts import EntryFacts
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.pipeline import StepResult
from orchestrator.app.steps.planned_step import PlanOptions, write_variables
from orchestrator.app.steps.preparation import (
    PreparedStep,
    call_spec,
    ignore_message,
    pull,
    pull_after,
    stopped,
)
from orchestrator.app.steps.recording import record_entry, record_outcome, write_events
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.engine_messages import Message, PulledState
from orchestrator.domain.events.events import PhaseStarted
from orchestrator.domain.record.entries import mark, with_serial_of
from orchestrator.domain.record.faults import MutationEvidence
from orchestrator.domain.record.journal import Journal
from orchestrator.domain.record.record import Command, Fault, OperationRecord, PlannedAction
from orchestrator.domain.record.state_operations import surgery_ended
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus
from orchestrator.errors import (
    ApprovalMissing,
    EngineFailed,
    Refused,
    StoreUnavailable,
)
from orchestrator.ports.engine import CallResult, CallSpec, Surgery


@dataclass(frozen=True, slots=True)
class StateOperation:
    """
    Surgery that was asked for.

    ``shown`` says it in one line, for the person who approves it. ``planned`` are the addresses
    that it works on. ``check`` refuses a provider state that it must not be done to.

    ``inputs`` are in the file that ``request`` is given while the engine runs; without them it can
    only be done to what has a record of objects.
    """

    command: Command
    shown: str
    request: Callable[[Path], Surgery]
    planned: tuple[PlannedAction, ...] = ()
    inputs: StepInputs | None = None
    check: Callable[[PulledState], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class StateOperationResult:
    """
    The entry that surgery ended with, the provider state then, None where it could not be read, and
    what went wrong with it.
    """

    record: OperationRecord
    state: PulledState | None
    fault: Fault | None

    @property
    def told(self) -> StepResult:
        """
        The same, as the step's row of the run tells it: no remote object was mutated.
        """
        return StepResult(record=self.record, state=self.state, mutated=False, fault=self.fault)


def operate(
    runner: StepRunner,
    name: str,
    operation: StateOperation,
    *,
    observe: Callable[[Message], None] = ignore_message,
) -> StateOperationResult:
    """
    Carry out surgery on a prepared step whose record is settled.

    What is raised before the marker leaves the record as it was: Refused where provider state is
    not the one that the record knows, ApprovalMissing, Stopped. What happens after it is in the
    record that is returned.
    """
    return _OperationRun(runner, name, operation).operate(observe)


def report_operation(
    runner: StepRunner, name: str, started: float, done: StateOperationResult, said: str
) -> None:
    """
    Report a step whose surgery was all there was to do; ``said`` tells of it where it went well.
    """
    if done.fault is not None:
        runner.end_with_record(name, started, done.told, 1)
        return
    record = done.record
    runner.end(
        name,
        started,
        StepStatus(str(record.status)),
        attempts=1,
        reason=said,
        sequence=record.sequence,
        error=record.error,
        last_error=record.last_error,
        in_doubt=record.resources.in_doubt,
    )


class _OperationRun:
    def __init__(self, runner: StepRunner, name: str, operation: StateOperation) -> None:
        self.runner = runner
        self.name = name
        self.operation = operation
        self.services = runner.services
        self.prepared: PreparedStep = runner.steps.prepared[name]
        self.target = str(runner.deployment.target(name))
        files, run_id = self.services.files, runner.session.run_id
        # An attempt of its own: settling looks for one mutating call in each.
        self.attempt = max((n for n, _ in files.attempts(run_id, name)), default=0) + 1
        self.evidence = files.attempt(run_id, name, self.attempt)
        self.var_file = self.evidence / "inputs.tfvars.json"

    def operate(self, observe: Callable[[Message], None]) -> StateOperationResult:
        services, known = self.services, self.prepared.record
        state = pull(services, self.prepared.work_dir, self.evidence, "pull-before")
        back_is_meant = self.runner.request.verb == "reconcile"  # it is what records that
        moved = check_state(self.target, known, state, serial_may_fall=back_is_meant)
        if moved is not None:
            services.note(moved, level="warning", step=self.name)
        self.operation.check(state)
        self._approve()
        if services.stop.stopping:
            raise stopped(services.stop)
        marker = mark(
            known,
            self._facts(state),
            services.stamp(),
            command=self.operation.command,
            planned=self.operation.planned,
            state=state,
            doubts=known.resources.in_doubt if known else (),
        )
        self.runner.session.check_claim()
        marker = record_entry(services, marker)
        services.note(self.operation.shown, step=self.name)
        services.sink.emit(
            PhaseStarted(at=services.clock.now(), step=self.name, phase=self.operation.command)
        )
        spec = call_spec(
            services, self.prepared.work_dir, self.evidence, "apply", delete_after=(self.var_file,)
        )
        evidence = self._call(spec, observe)
        outcome = record_outcome(services, surgery_ended(marker, known, evidence, services.stamp()))
        services.engine.discard(spec)
        self.runner.steps.update(self.name, outcome)
        attempt = outcome.last_attempt
        return StateOperationResult(outcome, evidence.state, attempt.error if attempt else None)

    def _approve(self) -> None:
        approver, stop = self.services.approver, self.services.stop
        if self.runner.request.plan_options.approved:
            return
        shown = self.services.masker.mask(self.operation.shown)
        if not approver.agree(f"{self.name}: {shown}") and not stop.stopping:
            raise ApprovalMissing(
                f"{self.name}: not approved; nothing was changed",
                hint="run it again and answer yes, or approve with --yes",
            )

    def _facts(self, state: PulledState) -> Mapping[str, Any]:
        """
        A record of objects keeps what was applied; only its place in this run is new.
        """
        known, session = self.prepared.record, self.runner.session
        if known is not None and known.status not in NOTHING_THERE:
            return {
                "run_id": session.run_id,
                "run_record": f"runs/{session.run_id}",
                "attempt": self.attempt,
                "provider_state": with_serial_of(known.provider_state, state),
            }
        inputs = self.operation.inputs
        if inputs is None:
            raise Refused(
                "nothing_there",
                f"{self.target}: there is nothing to work on: "
                + (f"it is `{known.status}`" if known else "it was never applied"),
                hint="apply it, or take an existing object in with `orchestrator import`",
            )
        facts = EntryFacts(
            session,
            self.prepared,
            inputs,
            PlanOptions(),
            verb="apply",
            attempt=self.attempt,
            evidence=self.evidence,
        )
        facts.write_inputs()
        found = facts.of(state)
        facts.store_for_reruns()
        return found

    def _call(self, spec: CallSpec, observe: Callable[[Message], None]) -> MutationEvidence:
        services, operation = self.services, self.operation
        try:
            if operation.inputs is not None:
                extra = self.prepared.work_dir.variables
                write_variables(services, self.var_file, operation.inputs, extra)
            request = operation.request(self.var_file)
            result = services.engine.call(request, spec, stop=services.stop, observe=observe)
        except (EngineFailed, StoreUnavailable) as exc:
            result = CallResult(exit_code=None, messages=(), complete=True)
            return self._gather(result, not_started=exc.message)
        finally:
            self.var_file.unlink(missing_ok=True)
        return self._gather(result)

    def _gather(self, result: CallResult, *, not_started: str | None = None) -> MutationEvidence:
        """
        What is known after the call; a provider state that cannot be read is known as that.
        """
        services, root = self.services, self.prepared.work_dir
        write_events(services, self.evidence, result.messages)
        state, why = pull_after(services, root, self.evidence)
        return MutationEvidence(
            exit_code=result.exit_code,
            journal=Journal.of(result.messages, whole=result.complete),
            state=state,
            stopped=result.stopped,
            lock=result.lock,
            state_error=why,
            not_started=not_started,
            stderr=result.stderr_text,
        )
