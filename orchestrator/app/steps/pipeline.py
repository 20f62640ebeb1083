"""
The pipeline of one step: saved plan, guards, approval, marker, mutation, outcome.

Settling and ``init`` come before it (`preparation`, `settling`). Apply and destroy use the same
pipeline; they differ in the plan mode and in the conclusion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from orchestrator.app.services import stopped
from orchestrator.app.session import Session
from orchestrator.app.steps.absence import (
    absence_facts,
    absence_timeout,
    check_objects_visible,
    drop_saved_states,
    recheck_absence,
    with_state_to_ask,
)
from orchestrator.app.steps.approved_plan import check_approved
from orchestrator.app.steps.engine_calls import call_spec, pull, write_variables
from orchestrator.app.steps.engine_plan import (
    Direction,
    EnginePlan,
    PlanOptions,
    can_ask,
    plan_and_ask,
)
from orchestrator.app.steps.guards import check_adopted, check_retained, check_state
from orchestrator.app.steps.mutation import (
    StepResult,
    call_engine,
    conclude_engine_call,
    keep_inventory,
    mutate,
    record_entry,
    relay,
)
from orchestrator.app.steps.planned_step import (
    CheckedPlan,
    MissingObjects,
    StateCheck,
    check_plan,
    plan_step,
    warn_of_shared_objects,
)
from orchestrator.app.steps.policy import check_policy, check_protected_since
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext, look_before_create
from orchestrator.app.steps.step_attempt import StepAttempt
from orchestrator.app.steps.verification import check_settings, run_checks
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.absence import targeted_fault
from orchestrator.domain.transitions.reconciliation import gone_without_mutation
from orchestrator.domain.transitions.transitions import (
    adopted_unapplied,
    mark,
    never_applied,
    unchanged,
)
from orchestrator.domain.values import replace
from orchestrator.errors import OrchestratorError, PlanChanged, Refused
from orchestrator.ports.engine import Apply, Approve, Cancel

#: What comes between the approval of a plan and its marker: the entry that it ended with, if it
#: wrote any to the record of the same step.
BeforeMutation = Callable[[], StepResult | None]


class StepPipeline(StepAttempt):
    """
    The work of an attempt. ``engine_plan`` is an empty plan of the step that was made before.
    """

    def __init__(
        self,
        session: Session,
        prepared: PreparedStep,
        inputs: StepInputs,
        options: PlanOptions,
        *,
        verb: Direction,
        attempt: int = 1,
        engine_plan: EnginePlan | None = None,
    ) -> None:
        super().__init__(session, prepared, inputs, options, verb=verb, attempt=attempt)
        self._engine_plan = engine_plan
        self.var_file = self.evidence / "inputs.tfvars.json"
        self._apply_spec = call_spec(
            self.services,
            prepared.work_dir,
            self.evidence,
            "apply",
            delete_after=(self.evidence / "plan.tfplan", self.var_file),
            timeout=self.step.timeout or self.services.limits.timeout,
        )
        self._query = QueryContext(self.services, prepared, inputs, self.evidence)
        self._asked = False

    def run(self, first: BeforeMutation | None = None) -> StepResult:
        """
        Run the pipeline. Errors before the marker are raised and leave the record as it was; later
        ones are in the returned record.

        ``first`` runs once the plan is approved; if it fails, nothing else is done.
        """
        if self.verb == "apply":
            check_settings(self.services, self.session.deployment, self.step, self.inputs)
        # What comes first would have an engine wait that holds the lock of the provider state.
        with self.approved_plan(may_wait=first is None) as plan:
            if plan.empty:
                return self.record_unchanged(plan)
            before = first() if first is not None else None
            if before is not None:
                if before.fault is not None:
                    return before
                self.services.check_not_stopped()
                self.prepared = replace(self.prepared, record=before.record)
                self._query = replace(self._query, prepared=self.prepared)
            return self.mutate(plan)

    @contextlib.contextmanager
    def approved_plan(self, *, may_wait: bool = False) -> Iterator[CheckedPlan]:
        """
        Yield the plan to execute, checked and approved; an empty one needs no approval. With
        ``may_wait`` it may be that of an engine which waits to apply it.
        """
        check = partial(check_state, may_be_missing=self.verb == "destroy")
        with self._planned(check, "refused", may_wait=may_wait) as plan:
            if plan.empty and not self.options.reviewed:
                # Nothing to do may be due to another input than was approved.
                self._is_covered(plan)
            if not plan.empty:
                # Without a refresh nobody has noticed yet that the provider may be a wrong one.
                if not self.options.refresh:
                    plan = check_objects_visible(self._query, plan, self.options)
                accepted = self.options.accept_adopted
                check_adopted(self.prepared.record, plan.destroyed, accepted=accepted)
                if self.verb == "apply":
                    deployment, record = self.session.deployment, self.prepared.record
                    note = check_retained(deployment, self.step, record, plan.journal)
                    if note is not None:
                        self.services.note(note, level="warning", step=self.step.name)
                lineage = self.session.run.lineage
                if lineage is not None and lineage.kind == "rollback":
                    record, journal = self.prepared.record, plan.journal
                    check_protected_since(self.services, self.session.deployment, record, journal)
                covered = self._is_covered(plan)
                if self.verb == "apply":  # a destroy was held against it as a whole
                    check_policy(
                        self.session, self.step.name, plan, override=self.options.override_policy
                    )
                if not covered:
                    self.services.approve(self.verb, self.step.name, plan.shown)
                self.services.check_not_stopped()
                # After the approval, which may take a day: what is absent must be so just before.
                if self.verb == "apply" and (self.step.identity or self.step.search):
                    plan = look_before_create(self.session, self._query, plan, self.inputs)
            yield plan

    def adopt(self, *, accepted: str | None) -> StepResult:
        """
        Record a provider state that somebody else made: as ``ok`` if a plan for it is empty, else
        as ``error`` if a reason accepts the changes of an apply.
        """
        with self._planned(lambda *_: None, "doubted") as plan:
            if not plan.before.objects:
                raise Refused(
                    "nothing_to_adopt",
                    f"{self.target}: its provider state holds nothing",
                    hint="apply it instead",
                )
            ids = {item.address: item.id for item in plan.before.objects if item.id is not None}
            warn_of_shared_objects(self.services, self.step.name, self.target, ids)
            if plan.empty:
                return self.record_unchanged(plan)
            if accepted is None:
                count = len(plan.journal.changes) + len(plan.journal.outputs)
                raise Refused(
                    "not_as_described",
                    f"{self.target}: module and inputs would change {count} of what is there",
                    hint="make them describe it as it is, or accept what an apply would change (it "
                    "is above) with --accept-changes REASON",
                )
            services = self.services
            state = pull(services, self.prepared.work_dir, self.evidence, "pull")
            self.store_for_reruns()
            entry = adopted_unapplied(
                self.prepared.record,
                self.facts(state),
                state,
                services.stamp(),
                changes=plan.journal.changes,
                reason=accepted,
            )
            entry = record_entry(services, entry)
            return StepResult(record=entry, state=state, mutated=False, fault=entry.error)

    def confirm_absent(self) -> StepResult:
        """
        Record that a target which was never applied does not exist: its provider state is empty.
        The working directory needs only the backend.

        Raises Refused if the state is not empty.
        """
        services = self.services
        state = pull(services, self.prepared.work_dir, self.evidence, "pull")
        self.prepared.bindings.check(self.target, lineage=state.lineage)
        check_state(self.target, None, state, self.prepared.reconcile)
        entry = record_entry(services, never_applied(self.facts(state), services.stamp()))
        return StepResult(record=entry, state=state, mutated=False, fault=None)

    @contextlib.contextmanager
    def _planned(
        self, check: StateCheck, missing_objects: MissingObjects, *, may_wait: bool = False
    ) -> Iterator[CheckedPlan]:
        """
        Yield the plan to execute: the ready one, or a saved one. At the end, its file and the
        variable file are removed, and no engine waits any more.
        """
        try:
            self.write_inputs()
            if self._engine_plan is None:
                self.services.report_phase(self.step.name, "plan")
            engine_plan = self._engine_plan
            may_wait = may_wait and engine_plan is None and self.verb == "apply"
            if may_wait and can_ask(self.session, self.prepared, self.options):
                self._asked = True
                engine_plan = plan_and_ask(
                    self.session,
                    self.prepared,
                    self.inputs,
                    self.options,
                    self._apply_spec,
                    var_file=self.var_file,
                )
            if engine_plan is not None:
                yield check_plan(
                    self.services,
                    self.prepared,
                    self.inputs,
                    self.options,
                    engine_plan,
                    check,
                    missing_objects,
                )
                return
            plan = plan_step(
                self.services,
                self.prepared,
                self.inputs,
                self.options,
                direction=self.verb,
                evidence=self.evidence,
                check=check,
                missing_objects=missing_objects,
            )
            if plan.shown.changes is not None:
                text = plan.shown.changes.model_dump_json(indent=2)
                self.services.files.write(self.evidence / "plan.json", f"{text}\n")
            yield plan
        finally:
            if self._asked:
                self.services.engine.call(Cancel(), self._apply_spec, stop=self.services.stop)
            for secret in (self.evidence / "plan.tfplan", self.var_file):
                try:
                    secret.unlink(missing_ok=True)
                except OSError as exc:
                    # What went wrong before, as on a disk that became read-only, must be heard.
                    self.services.note(
                        f"{secret}: not removed: {exc.strerror}",
                        hint="remove it: it may hold secrets",
                        level="warning",
                    )

    def _is_covered(self, plan: CheckedPlan) -> bool:
        """
        Return whether the plan needs no further approval. Raises PlanChanged if an approval does
        not cover it and nobody can be asked.
        """
        if self.options.approval is None:
            return self.options.approved
        try:
            check_approved(
                self.services,
                self.session.deployment,
                self.options.approval,
                self.prepared,
                self.inputs,
                plan,
            )
        except PlanChanged as exc:
            if not self.options.reviewed:
                raise
            message = exc.message.removeprefix(f"{self.step.name}: ")
            self.services.note(message, level="warning", step=self.step.name)
            self.services.sink.emit(plan.shown)
            return False
        if self.options.reviewed:
            self.services.sink.emit(plan.shown.model_copy(update={"changes": None}))
        return True

    def record_unchanged(self, plan: CheckedPlan) -> StepResult:
        services, record = self.services, self.prepared.record
        state = pull(services, self.prepared.work_dir, self.evidence, "pull")
        keep_inventory(services, self.evidence, state)
        if self.verb == "destroy":
            assert record is not None, "a target without a record is not destroyed"
            resources = record.resources.model_copy(update={"in_doubt": plan.doubts})
            settled = (*record.settled, *plan.settled)
            record = record.model_copy(update={"resources": resources, "settled": settled})
            entry = gone_without_mutation(
                record,
                services.stamp(),
                recheck_absence(self._query, record, wait=absence_timeout(self._query)),
                run_id=self.session.run_id,
            )
        else:
            deployment = self.session.deployment
            checks = run_checks(services, deployment, self.step, self.inputs, state)
            if checks.verdict == "failed" and services.stop.stopping:
                raise stopped(services.stop)
            undone = self._left_undone()
            if undone:  # the targeted plan is empty, and an untargeted one is not
                summary = targeted_fault(undone).summary
                message = f"the targeted plan is empty: nothing was applied; {summary}"
                if record is None or record.status in NOTHING_THERE:
                    raise Refused("targeted", message, hint="apply without --target")
                services.note(message, hint="apply without --target", step=self.step.name)
                return StepResult(record=record, state=state, mutated=False, fault=record.error)
            self.store_for_reruns()
            facts = self.facts(state)
            entry = unchanged(
                record,
                facts,
                state,
                services.stamp(),
                verification=checks,
                settled=plan.settled,
                warnings=plan.journal.warnings,
            )
        entry = record_entry(services, entry)
        drop_saved_states(services, entry)
        return StepResult(record=entry, state=state, mutated=False, fault=entry.error)

    def mutate(self, plan: CheckedPlan) -> StepResult:
        """
        Execute an approved plan.
        """
        services, record = self.services, self.prepared.record
        facts = self.facts(plan.before)
        if self.verb == "destroy":
            absence = absence_facts(
                self._query,
                self.options,
                plan.before,
                run_id=self.session.run_id,
                attempt=self.attempt,
            )
            # It comes last: a destroy may confirm absence in another way than the step declares.
            facts = {**facts, **absence, "unavailable_secrets": self.inputs.unavailable}
        marker = mark(
            record,
            facts,
            plan.before,
            services.stamp(),
            command=self.verb,
            planned=plan.journal.changes,
            doubts=plan.doubts,
            settled=plan.settled,
            warnings=plan.journal.warnings,
        )
        if self.verb == "apply":
            marker = with_state_to_ask(self._query, marker, self.options, plan.before)
        outcome, evidence = mutate(
            self.session,
            marker,
            partial(
                call_engine,
                self.session,
                self.prepared,
                partial(self._request, plan),
                self._apply_spec,
                before=plan.before,
                observe=partial(relay, self.session, marker),
            ),
            lambda written, after: conclude_engine_call(
                self.session.deployment,
                self._query,
                written,
                record,
                after,
                left_undone=self._left_undone,
            ),
            self._apply_spec,
            store=self.store_for_reruns,
        )
        mutated = not evidence.touched_nothing
        fault = outcome.error
        if not mutated and outcome.last_attempt is not None:
            fault = outcome.last_attempt.error
        return StepResult(record=outcome, state=evidence.state, mutated=mutated, fault=fault)

    def _request(self, plan: CheckedPlan) -> Apply | Approve:
        if plan.waits:
            return Approve()
        ephemeral = self.prepared.snapshot.has_ephemeral_variables
        if ephemeral:
            values = {**self.inputs.values, **self.prepared.work_dir.variables}
            write_variables(self.services, self.var_file, values)
        return Apply(
            plan=plan.file,
            var_file=self.var_file if ephemeral else None,
            parallelism=self.options.parallelism,
            lock_timeout=self.options.lock_timeout,
        )

    def _left_undone(self) -> tuple[PlannedAction, ...]:
        """
        Return the actions that an untargeted plan still has after a targeted apply; if that plan
        fails, one action with the reason.
        """
        if not self.options.targets:
            return ()
        try:
            plan = plan_step(
                self.services,
                self.prepared,
                self.inputs,
                replace(self.options, targets=()),
                direction="apply",
                evidence=self.services.files.inside(self.evidence, "untargeted"),
                check=lambda *_: None,
                missing_objects="doubted",
            )
        except OrchestratorError as exc:
            why = exc.message.splitlines()[0]
            return (PlannedAction(address=f"unknown ({why})", action="noop"),)
        plan.file.unlink(missing_ok=True)
        outputs = plan.journal.outputs
        changed = (PlannedAction(address=f"output.{name}", action="update") for name in outputs)
        return (*plan.journal.changes, *changed)
