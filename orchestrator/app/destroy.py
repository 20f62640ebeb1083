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

from orchestrator.app.run.hooks import HookRun, check_outcome_known
from orchestrator.app.run.request import DestroyRequest
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import Outcome, failures_of
from orchestrator.app.steps.engine_calls import call_spec, pull
from orchestrator.app.steps.mutation import StepResult, call_engine, mutate
from orchestrator.app.steps.preparation import check_recorded_state
from orchestrator.app.steps.provider_query import keep_state
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.events.journal import Journal
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
from orchestrator.ports.engine import Push


def destroy_hook_resources(runner: StepRunner, roots: Sequence[str]) -> None:
    """
    Destroy the modules of hooks, in any order: no target depends on them.
    """
    check_hooks_settled(
        runner, [root for root in roots if _why_skip(runner.steps.status(root)) is None]
    )
    runner.run(
        roots,
        partial(_destroy_root, runner),
        skip=lambda root: _why_skip(runner.steps.status(root)),
        graph=Graph.unordered(roots),
    )


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
    result, attempts = runner.attempt(root, inputs, verb="destroy")
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
    if action is None or record is None or runner.request.skip_before_destroy is not None:
        return None
    if completed_before_destroy(record) is not None:
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


def empty_owned_step(runner: StepRunner, name: str, *, is_approved: bool) -> StepResult:
    """
    Empty the provider state of an owned step whose parent is confirmed gone. ``is_approved``: the
    user approved the parent's destroy, and this with it, in this run. An error before the marker is
    raised and leaves the record as it was.
    """
    services, session, options = runner.services, runner.session, runner.options.plan
    record, prepared = runner.steps.recorded(name), runner.steps.prepared[name]
    evidence = services.files.attempt(session.run_id, name, 1)
    state = pull(services, prepared.work_dir, evidence, "pull-before")
    check_recorded_state(services, prepared, state)
    forgotten = (PlannedAction(address=o.address, action="forget") for o in state.objects)
    shown = PlanReady(at=services.clock.now(), step=name, actions=tuple(forgotten))
    services.sink.emit(shown)
    if not (is_approved or options.approved or options.reviewed):
        services.approve("destroy", name, shown)
    services.check_not_stopped()
    if state.raw:  # kept as it was, beside the run: it holds secrets
        keep_state(services, prepared, state, evidence, "saved.tfstate")
    bound = with_serial_of(record.provider_state, state)
    changes: EntryChanges = {
        **changes_in_run(session.run_id, provider_state=bound),
        "source": services.source(),
        "engine": EngineRef(kind=prepared.engine.kind, version=prepared.engine.version),
        "lineage": session.run.lineage,
    }
    marker = mark_with_parent(record, changes, state, services.stamp())
    empty = evidence / "empty.tfstate"
    spec = call_spec(services, prepared.work_dir, evidence, "apply", delete_after=(empty,))

    def request() -> Push:
        services.files.write(empty, services.engine.emptied_state(state))
        return Push(state=empty, lock_timeout=options.lock_timeout)

    def push() -> MutationEvidence:
        if not state.objects:  # it is left as it is
            return MutationEvidence(exit_code=0, journal=Journal.of((), whole=True), state=state)
        return call_engine(session, prepared, request, spec, before=state)

    outcome, after = mutate(
        session,
        marker,
        push,
        lambda written, after: conclude(written, record, after, services.stamp()),
        spec,
    )
    fault = outcome.error
    if outcome.last_attempt is not None and outcome.last_attempt.run_id == marker.run_id:
        fault = outcome.last_attempt.error
    return StepResult(record=outcome, state=after.state, mutated=fault is None, fault=fault)
