"""
One step through one pipeline: plan to a file, guards, approval, marker, mutation, outcome.

Settling and ``init`` come before it (`preparation`, `settling`). Apply and destroy are the same
pipeline; they differ in the plan's mode and in what ends it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from orchestrator.app.event_relay import relay
from orchestrator.app.session import Session
from orchestrator.app.steps.absence import (
    absence_facts,
    check_objects_visible,
    drop_saved_states,
    recheck_absence,
    with_absence_findings,
)
from orchestrator.app.steps.entry_facts import EntryFacts
from orchestrator.app.steps.guards import check_created_again, check_state
from orchestrator.app.steps.planned_step import (
    Direction,
    PlanOptions,
    StateCheck,
    StepPlan,
    plan_step,
    write_variables,
)
from orchestrator.app.steps.preparation import PreparedStep, call_spec, pull, pull_after, stopped
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.app.steps.recording import record_entry, record_outcome, write_events
from orchestrator.app.steps.verification import run_checks
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.events.events import PhaseStarted
from orchestrator.domain.record.assessment import inventory
from orchestrator.domain.record.conclusion import conclude
from orchestrator.domain.record.entries import gone_without_mutation, mark, never_applied, unchanged
from orchestrator.domain.record.faults import MutationEvidence, targeted_fault
from orchestrator.domain.record.journal import Journal
from orchestrator.domain.record.record import (
    Fault,
    OperationRecord,
    PlannedAction,
    Verification,
)
from orchestrator.domain.record.state_operations import adopted_unapplied
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.errors import (
    ApprovalMissing,
    EngineFailed,
    OrchestratorError,
    Refused,
    StoreUnavailable,
)
from orchestrator.ports.engine import Apply, CallResult


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    How the pipeline ended: the entry it wrote, the state it saw, whether anything was mutated, and
    what went wrong in it: a record that was restored keeps the fault of an earlier run.
    """

    record: OperationRecord
    state: PulledState | None
    mutated: bool
    fault: Fault | None


#: What comes between the approval of a plan and its marker: the entry that it ended with, if it
#: wrote any to the record of the same step.
BeforeMutation = Callable[[], StepResult | None]


def nothing_before() -> None:
    """
    For a mutation that nothing comes before.
    """


class StepPipeline:
    """
    One attempt at one step of a run.
    """

    def __init__(
        self,
        session: Session,
        prepared: PreparedStep,
        inputs: StepInputs,
        wishes: PlanOptions,
        *,
        verb: Direction,
        attempt: int,
    ) -> None:
        self.session = session
        self.services = session.services
        self.prepared = prepared
        self.inputs = inputs
        self.options = wishes
        self.verb = verb
        self.attempt = attempt
        self.step = prepared.step
        self.target = str(session.deployment.target(self.step.name))
        self.evidence = self.services.files.attempt(session.run_id, self.step.name, attempt)
        self.var_file = self.evidence / "inputs.tfvars.json"
        self.facts = EntryFacts(
            session, prepared, inputs, wishes, verb=verb, attempt=attempt, evidence=self.evidence
        )

    def run(self, first: BeforeMutation = nothing_before) -> StepResult:
        """
        Carry it out. Errors before the marker leave the record as it was and are raised; what
        happens after it is in the record that is returned.

        ``first`` is done once the plan is approved; where it goes wrong nothing else is done.
        """
        with self._planned(check_state) as proposal:
            if proposal.empty:
                return self._record_unchanged(proposal)
            if not self.options.refresh:
                proposal = check_objects_visible(self._query, proposal, self.options)
            if self.verb == "apply":
                check_created_again(
                    self.target,
                    self.prepared.record,
                    proposal.before,
                    proposal.journal,
                    accepted=self.options.accept_vanished,
                )
            self._approve(proposal)
            if self.services.stop.stopping:
                raise stopped(self.services.stop)
            before = first()
            if before is not None:
                if before.fault is not None:
                    return before
                if self.services.stop.stopping:
                    raise stopped(self.services.stop)
                self.prepared = replace(self.prepared, record=before.record)
            return self._mutate(proposal)

    def adopt(self, *, accepted: str | None) -> StepResult:
        """
        Record a provider state that somebody else made: as ``ok`` if a plan on it is empty, else as
        ``error`` if a reason accepts what an apply would change.
        """
        with self._planned(lambda *_: None) as proposal:
            if not proposal.before.objects:
                raise Refused(
                    "nothing_to_adopt",
                    f"{self.target}: its provider state holds nothing",
                    hint="apply it instead",
                )
            if not proposal.empty and accepted is not None:
                return self._record_accepted(proposal, accepted)
            if not proposal.empty:
                count = len(proposal.journal.changes) + len(proposal.journal.outputs)
                raise Refused(
                    "not_as_described",
                    f"{self.target}: module and inputs would change {count} of what is there",
                    hint="make them describe it as it is, or accept what an apply would change (it "
                    "is above) with --accept-changes REASON",
                )
            return self._record_unchanged(proposal)

    def _record_accepted(self, proposal: StepPlan, reason: str) -> StepResult:
        services = self.services
        state = pull(services, self.prepared.work_dir, self.evidence, "pull")
        self.facts.store_for_reruns()
        entry = record_entry(
            services,
            adopted_unapplied(
                self.prepared.record,
                self.facts.of(state),
                state,
                proposal.journal.changes,
                services.stamp(),
                reason=reason,
            ),
        )
        return StepResult(record=entry, state=state, mutated=False, fault=entry.error)

    def confirm_absent(self) -> StepResult:
        """
        Record that a target which was never applied is not there: its provider state is empty. The
        working directory needs nothing but the backend.

        Refused where it is not empty.
        """
        services = self.services
        state = pull(services, self.prepared.work_dir, self.evidence, "pull")
        check_state(self.target, None, state)
        unused = dict.fromkeys(
            ("module_digest", "inputs_digest", "resolved_inputs_file", "rerun_inputs_file")
        )
        entry = record_entry(
            services, never_applied(self.facts.of(state) | unused, services.stamp())
        )
        return StepResult(record=entry, state=state, mutated=False, fault=None)

    @contextlib.contextmanager
    def _planned(self, hold: StateCheck) -> Iterator[StepPlan]:
        """
        The plan to carry out; its file and the variable file are gone at the end.
        """
        try:
            self.facts.write_inputs()
            self._phase("plan")
            yield plan_step(
                self.services,
                self.prepared,
                self.inputs,
                self.options,
                target=self.target,
                direction=self.verb,
                evidence=self.evidence,
                run_id=self.session.run_id,
                check=hold,
            )
        finally:
            for secret in (self.evidence / "plan.tfplan", self.var_file):
                secret.unlink(missing_ok=True)

    def _phase(self, name: str) -> None:
        self.services.sink.emit(
            PhaseStarted(at=self.services.clock.now(), step=self.step.name, phase=name)
        )

    @property
    def _ephemeral(self) -> bool:
        """
        Whether the module has variables that an apply must be given again.
        """
        return any(item.ephemeral for item in self.prepared.snapshot.variables.values())

    def _approve(self, proposal: StepPlan) -> None:
        if self.options.approved:
            return
        approved = self.services.approver.approve(self.verb, self.step.name, proposal.shown)
        if not approved and not self.services.stop.stopping:
            raise ApprovalMissing(
                f"{self.step.name}: not approved; nothing was changed",
                hint="run it again and answer yes, or approve with --yes",
            )

    def _record_unchanged(self, proposal: StepPlan) -> StepResult:
        services, known = self.services, self.prepared.record
        state = pull(services, self.prepared.work_dir, self.evidence, "pull")
        self._keep_inventory(state)
        if self.verb == "destroy":
            assert known is not None, "a target without a record is not destroyed"
            known = _weighed(known, proposal)
            entry = gone_without_mutation(
                known,
                services.stamp(),
                recheck_absence(self._query, known, patience=self._query.patience),
                run_id=self.session.run_id,
            )
        else:
            checks = self._check(state)
            if checks.verdict == "failed" and services.stop.stopping:
                raise stopped(services.stop)
            left = self._left_undone()
            if left:
                raise Refused(
                    "targeted",
                    f"{targeted_fault(left).summary}; the targeted plan is empty, so nothing was "
                    "applied or recorded",
                    hint="apply without --target",
                )
            self.facts.store_for_reruns()
            facts = self.facts.of(state)
            entry = unchanged(
                known,
                facts,
                state,
                services.stamp(),
                verification=checks,
                settled=proposal.settled,
            )
        entry = record_entry(services, entry)
        drop_saved_states(services, entry)
        return StepResult(record=entry, state=state, mutated=False, fault=entry.error)

    def _check(self, state: PulledState) -> Verification:
        return run_checks(
            self.services,
            self.session.deployment,
            self.step,
            self.inputs,
            state,
        )

    def _mutate(self, proposal: StepPlan) -> StepResult:
        services, known = self.services, self.prepared.record
        facts = self.facts.of(proposal.before)
        if self.verb == "destroy":
            facts |= absence_facts(
                self._query,
                self.options,
                proposal.before,
                run_id=self.session.run_id,
                attempt=self.attempt,
            )
            facts["unavailable_secrets"] = self.inputs.unavailable
        marker = mark(
            known,
            facts,
            services.stamp(),
            command=self.verb,
            planned=proposal.journal.changes,
            state=proposal.before,
            doubts=proposal.doubts,
            settled=proposal.settled,
        )
        try:
            self.facts.store_for_reruns()
            self.session.check_claim()
            marker = record_entry(services, marker)
        except OrchestratorError:
            drop_saved_states(services, marker)
            raise
        self._phase(self.verb)
        spec = call_spec(
            services,
            self.prepared.work_dir,
            self.evidence,
            "apply",
            delete_after=(proposal.file, self.var_file),
            timeout=self.step.timeout or services.limits.timeout,
        )
        request = Apply(
            plan=proposal.file,
            var_file=self.var_file if self._ephemeral else None,
            parallelism=self.options.parallelism,
            lock_timeout=self.options.lock_timeout,
        )
        observe = relay(self.session, self.step.name, self.target)
        try:
            if self._ephemeral:
                write_variables(
                    services, self.var_file, self.inputs, self.prepared.work_dir.variables
                )
            result = services.engine.call(request, spec, stop=services.stop, observe=observe)
        except (EngineFailed, StoreUnavailable) as exc:
            evidence = MutationEvidence(
                exit_code=None,
                journal=Journal.of((), whole=True),
                state=None,
                not_started=exc.message,
            )
        else:
            evidence = self._gather(result)
        self.session.clear_in_flight(self.target)
        checks = None
        left: tuple[PlannedAction, ...] = ()
        if self.verb == "apply" and evidence.clean and evidence.state is not None:
            checks = self._check(evidence.state)
            left = self._left_undone()
            evidence = replace(evidence, stopped=evidence.stopped or services.stop.stopping)
        evidence = with_absence_findings(self._query, marker, evidence)
        outcome = conclude(
            marker,
            known,
            evidence,
            services.stamp(),
            refused_on=self.step.refused_on,
            verification=checks,
            left=left,
        )
        outcome = record_outcome(services, outcome)
        drop_saved_states(services, outcome, marker=marker)
        services.engine.discard(spec)
        mutated = not evidence.touched_nothing
        fault = outcome.error
        if not mutated and outcome.last_attempt is not None:
            fault = outcome.last_attempt.error
        return StepResult(record=outcome, state=evidence.state, mutated=mutated, fault=fault)

    @property
    def _query(self) -> QueryContext:
        return QueryContext(self.services, self.prepared, self.inputs, self.evidence)

    def _left_undone(self) -> tuple[PlannedAction, ...]:
        """
        What an untargeted plan would still change after a targeted apply; all that was planned if
        that cannot be told.
        """
        if not self.options.targets:
            return ()
        try:
            place = self.services.files.inside(self.evidence, "untargeted")
            proposal = plan_step(
                self.services,
                self.prepared,
                self.inputs,
                replace(self.options, targets=()),
                target=self.target,
                direction="apply",
                evidence=place,
                check=lambda *_: None,
            )
        except OrchestratorError as exc:
            return (
                PlannedAction(address=f"unknown ({exc.message.splitlines()[0]})", action="noop"),
            )
        proposal.file.unlink(missing_ok=True)
        changed = (
            PlannedAction(address=f"output.{o}", action="update") for o in proposal.journal.outputs
        )
        return (*proposal.journal.changes, *changed)

    def _gather(self, result: CallResult) -> MutationEvidence:
        """
        What is known after the mutation; a provider state that cannot be read is known as that.
        """
        services, root = self.services, self.prepared.work_dir
        write_events(services, self.evidence, result.messages)
        state, why = pull_after(services, root, self.evidence)
        if state is not None:
            self._keep_inventory(state)
        errored = services.workdirs.errored_state(root)
        if errored is not None:
            services.note(
                f"the engine could not save its last provider state; it lies in {errored}, and "
                "nothing is applied until it is saved or dismissed",
                hint=command_line(
                    self.session.deployment,
                    "reconcile",
                    *step_options(self.session.deployment, self.step.name),
                    "--push-errored-state",
                ),
                level="error",
                step=self.step.name,
            )
        return MutationEvidence(
            exit_code=result.exit_code,
            journal=Journal.of(result.messages, whole=result.complete),
            state=state,
            stopped=result.stopped,
            timed_out=result.timed_out,
            lock=result.lock,
            state_error=why,
            errored_state=str(errored) if errored else None,
        )

    def _keep_inventory(self, state: PulledState) -> None:
        rows = [ref.model_dump(exclude_none=True) for ref in inventory(state)]
        with contextlib.suppress(StoreUnavailable):
            self.services.files.write(
                self.evidence / "inventory.json", json.dumps(rows, indent=2) + "\n"
            )


def _weighed(known: OperationRecord, proposal: StepPlan) -> OperationRecord:
    """
    The record with the doubts that the proposal leaves open.
    """
    resources = known.resources.model_copy(update={"in_doubt": proposal.doubts})
    settled = (*known.settled, *proposal.settled)
    return known.model_copy(update={"resources": resources, "settled": settled})
