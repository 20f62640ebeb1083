"""
Runs the steps of one run: selects, prepares, settles, works on and reports them.

`StepRunner.run` is the only loop over steps of mutating commands; its arguments say what a
command does with each.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar, Unpack

from orchestrator.app.run.prepared_steps import PreparedSteps, SourceOf, recorded_module
from orchestrator.app.run.request import RunRequest
from orchestrator.app.run.run_summary import exit_codes_of, fault_of
from orchestrator.app.schedule import OnFailure, Outcome, Unstarted, failures_of, run_steps
from orchestrator.app.session import Session
from orchestrator.app.steps.engine_plan import Direction, EnginePlan
from orchestrator.app.steps.guards import check_doubts
from orchestrator.app.steps.mutation import StepResult, record_entry
from orchestrator.app.steps.pipeline import BeforeMutation, StepPipeline
from orchestrator.app.steps.preparation import check_engine_gone
from orchestrator.app.steps.settling import RecalledInputs, settle, settle_hook
from orchestrator.domain.blueprint.blueprint import RetryRule
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import StepFinished, StepRetried
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import Fault, OperationRecord
from orchestrator.domain.record.run_record import StepRun, StepRunChanges
from orchestrator.domain.record.states import READY, Status, StepStatus
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.target import hook_kind, hook_of, hook_step_name, shown_step
from orchestrator.domain.transitions.doubts import StateObservation
from orchestrator.errors import (
    ApprovalMissing,
    Busy,
    EngineFailed,
    Fenced,
    InDoubt,
    Invalid,
    OrchestratorError,
    PlanChanged,
    Refused,
    Spooled,
    Stopped,
    StoreUnavailable,
)

#: Works on one step and reports its end.
StepWork = Callable[[str], Outcome]


class StepRunner:
    """
    Runs the steps of one run. Methods may be called from several threads.
    """

    def __init__(self, session: Session, request: RunRequest) -> None:
        self.session = session
        self.services = session.services
        self.deployment = session.deployment
        self.request = request
        self.options = request.options
        self.steps = PreparedSteps(
            session.services,
            session.deployment,
            evidence=lambda step: session.services.files.attempt(session.run_id, step, 1),
            jobs=self.options.jobs,
            allow_engine_change=self.options.allow_engine_change,
            run_id=session.run_id,
            unavailable_secrets=self.options.unavailable_secrets,
        )
        self._started: dict[str, float] = {}

    def run(
        self,
        selected: Sequence[str],
        work: StepWork,
        *,
        skip: Callable[[str], str | None] = lambda _: None,
        source: SourceOf | None = recorded_module,
        settles: bool = True,
        early: Callable[[str], bool] = lambda _: True,
        check: Callable[[Sequence[str]], Mapping[str, OrchestratorError] | None] = lambda _: None,
        graph: Graph | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """
        Do ``work`` on each of the selected steps that is not skipped, upstreams first.

        ``skip`` returns why one is skipped. ``source`` returns what working directories are laid
        out from, None if only records change; interrupted steps are settled unless ``settles`` is
        False. ``early`` are the steps to prepare before the first is worked on. ``check`` returns
        further errors by step, or raises; it is called once all are prepared and settled. ``graph``
        orders the steps instead of the blueprint's graph.

        Whatever can be found wrong is found before work on the first step: then nothing is started.
        The records must have been read.
        """
        todo = []
        for name in selected:
            reason = skip(name)
            if reason is None:
                todo.append(name)
            else:
                self.end_skipped(name, reason)
        failures: dict[str, OrchestratorError] = {}
        if source is not None:
            failures = self.steps.prepare_all([name for name in todo if early(name)], source)
            if settles:
                failures |= self.settle_all()
        if not failures:
            failures = dict(check(todo) or {})
        if failures:
            self.end_before_work(todo, failures)
            return
        hooks = any(hook_of(name) for name in todo)  # their modules need nothing
        unordered = Graph.unordered(todo) if hooks else None
        graph = graph or unordered or self.deployment.graph
        self.work_on(graph.subset(todo), work, on_failure=on_failure)

    def work_on(
        self,
        graph: Graph,
        work: StepWork,
        *,
        on_failure: OnFailure | None = None,
        done: Collection[str] = (),
        missing: Collection[str] = (),
    ) -> list[Unstarted]:
        """
        Run the steps of a graph concurrently (`run_steps`) and report how each ended. Returns those
        that never ran, which are reported, too.
        """
        unstarted = run_steps(
            graph,
            partial(self._guarded, work),
            jobs=self.options.jobs,
            stop=self.services.stop,
            on_failure=on_failure or self.options.on_failure,
            done=done,
            missing=missing,
        )
        for item in unstarted:
            reason = None if item.blocked_by else item.reason or None
            self.end(item.step, StepStatus.PENDING, blocked_by=item.blocked_by, reason=reason)
        return unstarted

    def _guarded(self, work: StepWork, name: str) -> Outcome:
        self._started[name] = self.services.clock.monotonic()
        try:
            return work(name)
        except OrchestratorError as exc:
            return self.end_with_error(name, exc, attempts=1 if name in self.steps.prepared else 0)

    def attempt(
        self,
        name: str,
        inputs: StepInputs,
        *,
        verb: Direction,
        first: BeforeMutation | None = None,
        engine_plan: EnginePlan | None = None,
    ) -> tuple[StepResult, int]:
        """
        Apply or destroy a prepared step until that succeeds or its ``retry`` rule allows no further
        attempt; returns the last result and the number of attempts. ``first`` and ``engine_plan``
        are for the first attempt (`StepPipeline`).

        If a later attempt cannot begin, the result of the last one that did is returned.
        """
        services, step = self.services, self.deployment.steps.get(name)
        rule = step.retry if step is not None else None  # the module of a hook is not tried again
        result: StepResult | None = None
        for number in itertools.count(1):
            prepared, options = self.steps.prepared[name], self.options.plan
            pipeline = StepPipeline(
                self.session,
                prepared,
                inputs,
                options,
                verb=verb,
                attempt=number,
                engine_plan=engine_plan if number == 1 else None,
            )
            try:
                result = pipeline.run(first if number == 1 else None)
            except OrchestratorError as exc:
                if result is None or isinstance(exc, Spooled | Fenced):
                    raise
                services.note(f"attempt {number}: {exc.message}", level="warning", step=name)
                self.session.codes.append(exc.exit_code)
                return result, number
            self.steps.update(name, result.record, result.state)
            fault = result.fault
            if rule is None or fault is None or not _may_retry(rule, result, fault, number):
                return result, number
            services.sink.emit(
                StepRetried(
                    at=services.clock.now(),
                    step=name,
                    phase=fault.phase,
                    attempt=number + 1,
                    reason=fault.summary,
                )
            )
            services.pause(rule.pause(number, services.ids.fraction()))
            if services.stop.stopping:
                return result, number
        raise AssertionError("an attempt ends the loop")

    def settle_all(self) -> dict[str, OrchestratorError]:
        """
        Conclude every interrupted record among the prepared steps, upstreams first, and return the
        errors by step.
        """
        prepared = self.steps.prepared
        hooks = [name for name in prepared if hook_of(name)]
        steps = (name for name in (*self.deployment.graph.order, *hooks) if name in prepared)
        return failures_of(steps, self.settle, (Busy, EngineFailed, Invalid, Refused))

    def settle(self, name: str) -> None:
        """
        Conclude the record of a prepared step if it is interrupted.
        """
        if self.steps.status(name) is not Status.RUNNING:
            return
        prepared = self.steps.prepared[name]
        if self.options.takeover is not None:
            check_engine_gone(self.services, prepared)
        try:
            recalled = self.steps.values.recalled(prepared)
        except Invalid as exc:
            recalled = RecalledInputs(None, secrets_known=False, why=exc.message.splitlines()[0])
        kind = hook_kind(prepared.record.active_command if prepared.record else None)
        if kind is None:
            outcome = settle(self.services, self.deployment, prepared, recalled)
        else:
            root = hook_step_name(name, kind)
            if self.steps.status(root) is Status.RUNNING:
                if root not in self.steps.roots:
                    raise Refused(
                        "action_gone",
                        f"{shown_step(root)} was interrupted, and the blueprint no longer declares "
                        "it",
                        hint="put it back, so that what it left can be settled",
                    )
                self.steps.prepare(root, recorded_module)
                self.settle(root)
                del self.steps.prepared[root]  # it is prepared again later

            def knows_outputs() -> bool:
                try:
                    self.steps.outputs(name)
                except OrchestratorError:
                    return False
                return True

            outcome = settle_hook(
                self.services,
                prepared,
                kind,
                recalled,
                self.steps.records.get(root),
                knows_outputs=knows_outputs,
            )
        self.steps.update(name, outcome)

    def record(
        self, name: str, entry: OperationRecord, state: PulledState | None = None
    ) -> OperationRecord:
        """
        Make an entry of a step durable, and return it; ``state`` is its provider state, if it was
        read.
        """
        entry = record_entry(self.services, entry)
        self.steps.update(name, entry, state)
        return entry

    def check_certain(self, name: str) -> None:
        """
        Raise InDoubt if a doubt or an unsaved provider state forbids to apply a step.
        """
        self.check_saved(name)  # first: saved, it settles most doubts
        plan = self.options.plan
        observation = StateObservation(
            at=self.services.clock.now(),
            run_id=self.session.run_id,
            settling_time=self.services.limits.settle,
            refreshed=plan.refresh and not plan.targets,
            accepted=plan.accept_vanished is not None,
            reason=plan.accept_vanished,
        )
        options = () if hook_of(name) is None else ("--step", name)
        reconcile = command_line(self.deployment, "reconcile", *options)
        check_doubts(self.steps.records.get(name), observation, reconcile)

    # What is reported

    def end(
        self,
        name: str,
        status: StepStatus,
        /,
        *,
        changed: bool = False,
        **changes: Unpack[StepRunChanges],
    ) -> StepRun:
        """
        Report the end of a step, to the run record and to the user.
        """
        now = self.services.clock.monotonic()
        prepared = self.steps.prepared.get(name)
        if prepared is not None:
            changes.setdefault("directory", str(prepared.work_dir.directory))
        changes["status"] = status
        row = self.session.update_row(name, **changes)
        self.services.sink.emit(
            StepFinished(
                at=self.services.clock.now(),
                step=name,
                status=status,
                result=row,
                changed=changed,
                seconds=now - self._started.get(name, now),
                error=row.error,
            )
        )
        self.session.share(name)
        return row

    def end_with_record(
        self, name: str, result: StepResult, *, attempts: int = 1, verb: str | None = None
    ) -> Outcome:
        """
        Report the entry that a pipeline wrote; ``verb`` is what it did, if not the run's command.
        """
        verb = verb or self.request.verb
        record, resources = result.record, result.record.resources
        fault, restored = result.fault, result.fault is not None and result.fault != record.error
        stopped = self.services.stop.exit_code
        self.session.codes += exit_codes_of(fault, resources.in_doubt, stopped)
        gone = record.status in (Status.DESTROYED, Status.ABSENT)
        row: StepRunChanges = {
            "attempts": attempts,
            "sequence": record.sequence,
            "error": fault,
            "last_error": record.last_error,
            "absence": record.absence,
            "verification": record.verification,
            "warnings": record.warnings if self.request.verb != "destroy" else (),
            "retained": record.retained,
            "in_doubt": resources.in_doubt,
            # Where nothing is left to manage, what was let go at any time is told once more.
            "released": tuple(
                it for it in resources.still_released if gone or it.run_id == self.session.run_id
            ),
        }
        if result.mutated:
            row |= {
                "deleted": resources.deleted,
                "not_attempted": resources.not_attempted,
                "moved": tuple(i.address for i in resources.planned if i.action == "noop"),
            }
        if result.mutated and verb != "destroy":  # what an earlier apply made does not count
            row |= {
                "imported": resources.imported,
                "created": resources.created,
                "updated": resources.updated,
                "replaced": resources.replaced,
            }
        status = StepStatus.ERROR if restored else StepStatus(record.status)
        self.end(name, status, changed=result.mutated, **row)
        well = record.status in READY if verb != "destroy" else gone
        return Outcome(ready=well and not restored)

    def end_with_entry(
        self, name: str, entry: OperationRecord, /, **changes: Unpack[StepRunChanges]
    ) -> Outcome:
        """
        Report the entry that ended a step without a pipeline; ``changes`` are further fields of its
        row.
        """
        row: StepRunChanges = {
            "attempts": 1,
            "sequence": entry.sequence,
            "error": entry.error,
            "last_error": entry.last_error,
            "in_doubt": entry.resources.in_doubt,
            **changes,
        }
        self.end(name, StepStatus(entry.status), **row)
        return Outcome(ready=True)

    def end_with_error(self, name: str, exc: OrchestratorError, *, attempts: int = 1) -> Outcome:
        """
        Report an error that left the record as this run found it; if its outcome was spooled, the
        record is still ``running``.
        """
        self.session.codes.append(exc.exit_code)
        if isinstance(exc, Stopped | ApprovalMissing | PlanChanged):
            reason = exc.message.removeprefix(f"{name}: ")
            self.end(name, StepStatus.PENDING, reason=reason, hint=exc.hint or None)
            return Outcome(ready=False, halt=True)
        message = self.services.masker.mask(exc.message)
        status = StepStatus.RUNNING if isinstance(exc, Spooled) else StepStatus.ERROR
        last_error = f"{message}\n{exc.hint}" if exc.hint else message
        record = self.steps.records.get(name)
        doubts = record.resources.in_doubt if record and isinstance(exc, InDoubt) else ()
        self.end(
            name,
            status,
            attempts=attempts,
            error=fault_of(exc, self.services.masker),
            last_error=last_error,
            hint=exc.hint or None,
            in_doubt=doubts,
        )
        return Outcome(ready=False, halt=isinstance(exc, Spooled | Fenced | StoreUnavailable))

    def check_saved(self, name: str) -> None:
        """
        Raise InDoubt if the engine left a provider state that it could not save.
        """
        prepared = self.steps.prepared.get(name)
        errored = self.services.workdirs.errored_state(prepared.work_dir) if prepared else None
        if errored is not None:
            options = (*step_options(self.deployment, name), "--push-errored-state")
            raise InDoubt(
                f"{name}: the engine could not save its last provider state; it is in {errored}",
                hint=f"save it: {command_line(self.deployment, 'reconcile', *options)}",
            )

    def end_skipped(self, name: str, reason: str, /, **changes: Unpack[StepRunChanges]) -> None:
        """
        Report a step that this run skips.
        """
        changes["reason"] = reason
        self.end(name, StepStatus.SKIPPED, **changes)

    def end_settled(self, name: str) -> None:
        """
        Report a step whose interrupted call turned out to have reached the run's goal.
        """
        record = self.steps.recorded(name)
        self.end(
            name,
            StepStatus(record.status),
            sequence=record.sequence,
            absence=record.absence,
            deleted=record.resources.deleted,
        )

    def end_before_work(
        self, steps: Sequence[str], failures: Mapping[str, OrchestratorError]
    ) -> None:
        """
        Report a run that ends before its first mutation: the errors, and all other steps pending.

        An error in a step that is only read (not selected) is raised.
        """
        for name in steps:
            exc = failures.get(name)
            if exc is not None:
                self.end_with_error(name, exc, attempts=0)
        for name, exc in failures.items():
            if name not in steps:
                raise exc
        failed = ", ".join(failures)
        reason = f"held back by {failed}; nothing was started"
        for name in steps:
            if name not in failures:
                self.end(name, StepStatus.PENDING, reason=reason)


R = TypeVar("R", bound=RunRequest)


class CommandRunner(StepRunner, Generic[R]):
    """
    Runs the steps of one command, whose request it holds.
    """

    request: R


def _may_retry(rule: RetryRule, result: StepResult, fault: Fault, number: int) -> bool:
    """
    Return whether the rule covers this failure: every error matches, and nothing is in doubt.
    """
    if number >= rule.attempts or result.record.resources.in_doubt or fault.code != "engine_failed":
        return False
    texts = [f"{diagnostic.summary}\n{diagnostic.detail}" for diagnostic in fault.diagnostics]
    return bool(texts) and all(any(re.search(p, text) for p in rule.on) for text in texts)
