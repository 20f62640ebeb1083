"""
What goes with its parent: once that is confirmed gone, the child's provider state is saved and
emptied, and the child is recorded as destroyed with it. Its own engine run would fail:
its objects cannot be reached any more.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import call_spec, ignore_message, pull, stopped
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.mutation import Mutation, StepResult, call_engine, mutate
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import keep_state
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryChanges, changes_in_run
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import EngineRef, OperationRecord
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.assessment import with_serial_of
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.transitions import mark_with_parent
from orchestrator.errors import ApprovalMissing
from orchestrator.ports.engine import CallSpec, Push

#: The provider state as it was, kept beside the run: it holds secrets.
SAVED = "saved.tfstate"


class OwnedStep:
    """
    One step of a destroy that goes with its parent, which is confirmed gone.

    ``is_approved`` says that the person approved the parent's destroy, and this with it, in this
    run.
    """

    def __init__(self, runner: StepRunner, name: str, *, is_approved: bool) -> None:
        self.runner = runner
        self.services = runner.services
        self.name = name
        self.is_approved = is_approved
        self.prepared: PreparedStep = runner.steps.prepared[name]
        self.target = str(runner.deployment.target(name))
        self.evidence = self.services.files.attempt(runner.session.run_id, name, 1)

    def run(self) -> StepResult:
        """
        Empty the provider state of the step. An error before the marker is written leaves the
        record as it was and is raised.
        """
        services, record = self.services, self.prepared.record
        assert record is not None, "a target without a record goes with nobody"
        state = pull(services, self.prepared.work_dir, self.evidence, "pull-before")
        moved = check_state(self.target, record, state, self.prepared.reconcile)
        if moved is not None:
            services.note(moved, level="warning", step=self.name)
        self._approve(state)
        if services.stop.stopping:
            raise stopped(services.stop)
        if state.raw:
            keep_state(services, self.prepared, state, self.evidence, SAVED)
        marker = mark_with_parent(record, self._facts(record, state), state, services.stamp())
        empty = self.evidence / "empty.tfstate"
        spec = call_spec(
            services, self.prepared.work_dir, self.evidence, "apply", delete_after=(empty,)
        )
        mutation = Mutation(
            marker,
            partial(self._empty, state, empty, spec),
            lambda written, after: conclude(written, record, after, services.stamp()),
            spec,
        )
        outcome, evidence = mutate(self.runner.session, mutation)
        fault = outcome.error
        if outcome.last_attempt is not None and outcome.last_attempt.run_id == marker.run_id:
            fault = outcome.last_attempt.error
        return StepResult(record=outcome, state=evidence.state, mutated=fault is None, fault=fault)

    def _approve(self, state: PulledState) -> None:
        """
        Show what is forgotten; ask, unless the parent was asked for in this run.
        """
        services = self.services
        forgotten = (PlannedAction(address=o.address, action="forget") for o in state.objects)
        shown = PlanReady(at=services.clock.now(), step=self.name, actions=tuple(forgotten))
        services.sink.emit(shown)
        options = self.runner.options.plan
        if self.is_approved or options.approved or options.reviewed:
            return
        if (
            not services.approver.approve("destroy", self.name, shown)
            and not services.stop.stopping
        ):
            raise ApprovalMissing(
                f"{self.name}: not approved; nothing was changed",
                hint="run it again and answer yes, or approve with --yes",
            )

    def _facts(self, record: OperationRecord, state: PulledState) -> EntryChanges:
        run, info = self.runner.session.run, self.prepared.engine
        return {
            **changes_in_run(
                run.run_id, provider_state=with_serial_of(record.provider_state, state)
            ),
            "source": self.services.source,
            "engine": EngineRef(kind=info.kind, version=info.version),
            "lineage": run.lineage,
        }

    def _empty(self, state: PulledState, file: Path, spec: CallSpec) -> MutationEvidence:
        """
        Push the empty provider state, and read back what is there. One that holds nothing is left.
        """
        services = self.services
        if not state.objects:
            return MutationEvidence(exit_code=0, journal=Journal.of((), whole=True), state=state)

        def request() -> Push:
            services.files.write(file, services.engine.emptied_state(state))
            return Push(state=file, lock_timeout=self.runner.options.plan.lock_timeout)

        return call_engine(
            self.runner.session,
            self.prepared,
            request,
            spec,
            before=state,
            observe=ignore_message,
        )
