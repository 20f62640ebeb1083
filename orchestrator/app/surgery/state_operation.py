"""
Operations on the provider state of a step: import, untaint, push, unlock and engine commands.

Each is a mutation: it changes provider state and no remote object, and never makes ``ok``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.steps.engine_calls import call_spec, pull, write_variables
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.app.steps.mutation import StepResult, call_engine, mutate, relay
from orchestrator.app.steps.preparation import PreparedStep, check_recorded_state
from orchestrator.app.steps.step_attempt import StepAttempt
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import Message
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import changes_in_run
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Command, OperationRecord
from orchestrator.domain.record.run_record import InFlight
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.assessment import with_serial_of
from orchestrator.domain.transitions.surgery import surgery_ended
from orchestrator.domain.transitions.transitions import mark
from orchestrator.errors import Refused
from orchestrator.ports.engine import Apply, Surgery


def operate(
    runner: StepRunner,
    name: str,
    *,
    command: Command,
    shown: str,
    request: Callable[[Path], Surgery | Apply],
    planned: tuple[PlannedAction, ...] = (),
    inputs: StepInputs | None = None,
    check: Callable[[PulledState], None] = lambda _: None,
    approved: bool = False,
    secret: tuple[Path, ...] = (),
    moves: PulledState | None = None,
    conclude: Callable[[OperationRecord, MutationEvidence], OperationRecord] | None = None,
    observe: Callable[[Message], None] | None = None,
) -> StepResult:
    """
    Run an operation on the provider state of a prepared step whose record is settled.

    ``shown`` describes it in one line for approval. ``planned`` are its addresses. ``check`` raises
    if it must not be done to a provider state. ``approved``: already approved, together with
    others. ``secret`` are files for the call that are removed when it ends. ``inputs`` are passed
    to ``request`` in a file while the engine runs; without them the target needs a record of
    objects. ``moves`` is the recorded provider state, if it is written to another place; then
    ``conclude`` makes the final entry. Without ``observe`` the engine's messages are shown as those
    of an apply.

    An error before the marker leaves the record as it was: Refused if provider state is not the
    recorded one, ApprovalMissing, Stopped. Later errors are in the returned record.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    record = prepared.record
    files, run_id = services.files, runner.session.run_id
    # An attempt of its own: settling looks for one mutating call in each.
    attempt = max((number for number, _ in files.attempts(run_id, name)), default=0) + 1
    evidence = files.attempt(run_id, name, attempt)
    before = pull(services, prepared.work_dir, evidence, "pull-before")
    prepared.bindings.check(str(prepared.target), lineage=before.lineage)
    if moves is None:
        check_recorded_state(
            services,
            prepared,
            before,
            serial_may_fall=runner.request.verb == "reconcile",  # it is what records that
            may_be_missing=command in ("import", "push", "unlock"),
        )
    check(before)
    state = moves or before
    if not approved:
        approve(runner, name, shown)
    services.check_not_stopped()
    first = None
    if record is None or record.status in NOTHING_THERE:
        first = _first_attempt(runner, prepared, inputs, attempt)
        changes = first.facts(state)
    else:  # a record of objects keeps what was applied: only its place in this run is new
        bound = with_serial_of(record.provider_state, state)
        changes = changes_in_run(run_id, attempt=attempt, provider_state=bound)
    marker = mark(
        record,
        changes,
        state,
        services.stamp(),
        command=command,
        planned=planned,
        doubts=record.resources.in_doubt if record else (),
    )
    var_file = evidence / "inputs.tfvars.json"
    secret = (var_file, *secret)
    spec = call_spec(services, prepared.work_dir, evidence, "apply", delete_after=secret)

    def begin() -> Surgery | Apply:
        services.note(shown, step=name)
        if inputs is not None:
            values = {**inputs.values, **prepared.work_dir.variables}
            write_variables(services, var_file, values)
        _start_imports(runner, marker)
        return request(var_file)

    try:
        outcome, after = mutate(
            runner.session,
            marker,
            partial(
                call_engine,
                runner.session,
                prepared,
                begin,
                spec,
                before=before,
                observe=observe or partial(relay, runner.session, marker),
            ),
            conclude
            or (lambda written, after: surgery_ended(written, record, after, services.stamp())),
            spec,
            store=first.store_for_reruns if first else runner.session.publish,
        )
    finally:
        var_file.unlink(missing_ok=True)
    runner.steps.update(name, outcome)
    last = outcome.last_attempt
    fault = last.error if last else None
    return StepResult(record=outcome, state=after.state, mutated=False, fault=fault)


def _start_imports(runner: StepRunner, marker: OperationRecord) -> None:
    """
    Report the planned imports as in flight in the heartbeat, because the engine does not report
    them.
    """
    for item in marker.resources.planned:
        if item.action == "import":
            runner.session.object_started(
                InFlight(
                    target=str(marker.target),
                    address=item.address,
                    action=item.action,
                    started_at=runner.services.clock.now(),
                    sequence=marker.sequence,
                )
            )


def approve(runner: StepRunner, name: str, shown: str) -> None:
    """
    Ask whether ``shown`` may be done to a step. Raises ApprovalMissing if not.
    """
    if not runner.options.plan.approved:
        runner.services.agree(name, f"{name}: {shown}")


def _first_attempt(
    runner: StepRunner, prepared: PreparedStep, inputs: StepInputs | None, attempt: int
) -> StepAttempt:
    """
    Return the attempt at a target without recorded objects. Raises Refused if there are no inputs
    for it.
    """
    if inputs is None:
        hint = "apply it, or take an existing object in with `orchestrator import`"
        raise nothing_there(
            f"{prepared.target}: there is nothing to work on", prepared.record, hint
        )
    first = StepAttempt(
        runner.session, prepared, inputs, PlanOptions(), verb="apply", attempt=attempt
    )
    first.write_inputs()
    return first


def nothing_there(what: str, record: OperationRecord | None, hint: str) -> Refused:
    """
    Return the error of an operation on a target that does not exist.
    """
    why = f"it is `{record.status}`" if record else "it was never applied"
    return Refused("nothing_there", f"{what}: {why}", hint=hint)


def report_operation(runner: StepRunner, name: str, result: StepResult, reason: str) -> Outcome:
    """
    Report a step that had only this operation; ``reason`` describes its success.
    """
    if result.fault is not None:
        return runner.end_with_record(name, result)
    return runner.end_with_entry(name, result.record, reason=reason)
