"""
The work of a destroy besides engine calls: before_destroy hooks, objects of hook modules, and owned
steps.

Owned steps go with their parent: once that is confirmed gone, the provider state of the owned step
is saved and emptied, and it is recorded as destroyed. Its own engine run would fail, because its
objects cannot be reached any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from orchestrator.app.run.attempts import attempt_step
from orchestrator.app.run.hooks import HookRun, check_outcome_known
from orchestrator.app.run.request import DestroyRequest
from orchestrator.app.run.step_runner import CommandRunner, StepPolicy, StepRunner
from orchestrator.app.schedule import Outcome, failures_of
from orchestrator.app.steps.engine_calls import call_spec, ignore_message, pull
from orchestrator.app.steps.mutation import StepResult, call_engine, mutate
from orchestrator.app.steps.preparation import PreparedStep, check_recorded_state
from orchestrator.app.steps.provider_query import keep_state
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryChanges, changes_in_run
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import EngineRef, OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.record.verdicts import completed_before_destroy
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of, step_of
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.assessment import with_serial_of
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.hooks import hook_description, hook_skipped
from orchestrator.domain.transitions.transitions import mark_with_parent
from orchestrator.errors import Busy, OrchestratorError
from orchestrator.ports.engine import CallSpec, Push


def destroy_hook_resources(runner: StepRunner, roots: Sequence[str]) -> None:
    """
    Destroy the modules of hooks, in any order: no target depends on them.
    """
    policy = StepPolicy(
        partial(_destroy_root, runner),
        skip=lambda root: _why_skip(runner.steps.status(root)),
        graph=Graph.unordered(roots),
    )
    check_hooks_settled(
        runner, [root for root in roots if _why_skip(runner.steps.status(root)) is None]
    )
    runner.run(roots, policy)


def _why_skip(status: Status | None) -> str | None:
    if status is None:
        return "it made nothing"
    return f"already {status}" if status in NOTHING_THERE else None


def check_hooks_settled(runner: StepRunner, names: Sequence[str]) -> None:
    """
    Raise Busy if a hook's module and its step are both interrupted: they are settled together.
    """
    unsettled = [
        name
        for name in names
        if hook_of(name)
        and runner.steps.status(name) is Status.RUNNING
        and runner.steps.status(step_of(name)) is Status.RUNNING
    ]
    if unsettled:
        steps = dict.fromkeys(step_of(root) for root in unsettled)
        options = [word for step in steps for word in ("--step", step)]
        raise Busy(
            f"interrupted, and not settled yet: {', '.join(unsettled)}",
            hint=command_line(runner.deployment, "reconcile", *options),
        )


def _destroy_root(runner: StepRunner, root: str) -> Outcome:
    runner.check_saved(root)
    inputs = runner.steps.values.recorded_inputs(runner.steps.prepared[root])
    result, attempts = attempt_step(runner, root, inputs, verb="destroy")
    return runner.end_with_record(root, result, attempts=attempts)


# ``before_destroy``: what a step declares to be done before it is destroyed. If that goes wrong,
# nothing of the step is destroyed.
#
# Each destroy does it again for as long as all that it is done for is there; once a destroy has
# deleted some of it, the work cannot be repeated, and the next destroy goes on without.


def before_destroy_failures(
    runner: CommandRunner[DestroyRequest], steps: Iterable[str]
) -> dict[str, OrchestratorError]:
    """
    Return, by step, the errors of ``before_destroy`` hooks that are known before the first of them
    runs.
    """

    def check(name: str) -> None:
        hook = _due_hook(runner, name)
        if hook is not None:
            hook.check()

    return failures_of(steps, check)


def note_before_destroy(runner: CommandRunner[DestroyRequest], steps: Iterable[str]) -> None:
    """
    Report, before approval, which hooks will run before which step is destroyed.
    """
    for name in steps:
        action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
        if action is None or record is None:
            continue
        completed = completed_before_destroy(record)
        if runner.request.skip_before_destroy is not None:
            runner.services.note(
                f"before_destroy is left out ({runner.request.skip_before_destroy}): "
                f"{hook_description(action)}",
                level="warning",
                step=name,
            )
        elif completed is not None:
            runner.services.note(
                f"before_destroy is not repeated: it was {completed.verdict} in run "
                f"{completed.run_id}, and some of what it was for has been deleted since",
                step=name,
            )
        else:
            runner.services.note(f"before it is destroyed: {hook_description(action)}", step=name)


def run_before_destroy(runner: CommandRunner[DestroyRequest], name: str) -> StepResult | None:
    """
    Run the ``before_destroy`` hook of a step whose destroy is approved; None if none is due.
    """
    action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
    if action is None or record is None:
        return None
    reason = runner.request.skip_before_destroy
    if reason is not None:
        left_out = hook_skipped(
            record, hook_description(action), runner.session.run_id, runner.services.stamp(), reason
        )
        entry = record.model_copy(update={"before_destroy": left_out})
        return StepResult(record=entry, state=None, mutated=False, fault=None)
    hook = _due_hook(runner, name)
    return hook.run() if hook is not None else None


def _due_hook(runner: CommandRunner[DestroyRequest], name: str) -> HookRun | None:
    """
    Return the hook to run before a destroy of the step. Raises Refused if the result of its last
    run is unknown.
    """
    action, record = runner.deployment.steps[name].before_destroy, runner.steps.records[name]
    if action is None or record is None or not _is_due(runner.request, record):
        return None
    if runner.request.repeat is None:
        check_before_destroy_known(runner.deployment, record, name)
    return HookRun(runner, name, "before_destroy", action, reason=runner.request.repeat)


def check_before_destroy_known(deployment: Deployment, record: OperationRecord, name: str) -> None:
    """
    Raise Refused if the last run of the hook was interrupted.
    """
    options = ("--step", name, "--repeat-before-destroy", "WHY")
    again = command_line(deployment, "destroy", *options)
    check_outcome_known(record.before_destroy, name, again)


def _is_due(request: DestroyRequest, record: OperationRecord) -> bool:
    return request.skip_before_destroy is None and completed_before_destroy(record) is None


#: The provider state as it was, kept beside the run: it holds secrets.
SAVED = "saved.tfstate"


class OwnedStep:
    """
    An owned step in a destroy whose parent is confirmed gone.

    ``is_approved``: the user approved the parent's destroy, and this with it, in this run.
    """

    def __init__(self, runner: StepRunner, name: str, *, is_approved: bool) -> None:
        self.runner = runner
        self.services = runner.services
        self.name = name
        self.is_approved = is_approved
        self.prepared: PreparedStep = runner.steps.prepared[name]
        self.evidence = self.services.files.attempt(runner.session.run_id, name, 1)

    def run(self) -> StepResult:
        """
        Empty the provider state of the step. An error before the marker is raised and leaves the
        record as it was.
        """
        services, record = self.services, self.runner.steps.recorded(self.name)
        state = pull(services, self.prepared.work_dir, self.evidence, "pull-before")
        check_recorded_state(services, self.prepared, state)
        self._approve(state)
        services.check_not_stopped()
        if state.raw:
            keep_state(services, self.prepared, state, self.evidence, SAVED)
        marker = mark_with_parent(record, self._facts(record, state), state, services.stamp())
        empty = self.evidence / "empty.tfstate"
        spec = call_spec(
            services, self.prepared.work_dir, self.evidence, "apply", delete_after=(empty,)
        )
        outcome, evidence = mutate(
            self.runner.session,
            marker,
            partial(self._empty, state, empty, spec),
            lambda written, after: conclude(written, record, after, services.stamp()),
            spec,
        )
        fault = outcome.error
        if outcome.last_attempt is not None and outcome.last_attempt.run_id == marker.run_id:
            fault = outcome.last_attempt.error
        return StepResult(record=outcome, state=evidence.state, mutated=fault is None, fault=fault)

    def _approve(self, state: PulledState) -> None:
        """
        Show what is forgotten; ask, unless the parent was approved in this run.
        """
        services = self.services
        forgotten = (PlannedAction(address=o.address, action="forget") for o in state.objects)
        shown = PlanReady(at=services.clock.now(), step=self.name, actions=tuple(forgotten))
        services.sink.emit(shown)
        options = self.runner.options.plan
        if not (self.is_approved or options.approved or options.reviewed):
            services.approve("destroy", self.name, shown)

    def _facts(self, record: OperationRecord, state: PulledState) -> EntryChanges:
        run, info = self.runner.session.run, self.prepared.engine
        return {
            **changes_in_run(
                run.run_id, provider_state=with_serial_of(record.provider_state, state)
            ),
            "source": self.services.source(),
            "engine": EngineRef(kind=info.kind, version=info.version),
            "lineage": run.lineage,
        }

    def _empty(self, state: PulledState, file: Path, spec: CallSpec) -> MutationEvidence:
        """
        Push the empty provider state and read it back. A state without objects is left as it is.
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
