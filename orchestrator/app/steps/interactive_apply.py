"""
An apply that plans, waits for approval, and continues, in one engine process (ADR 31).

It is used if nothing in the plan matters except which objects it creates: then a saved plan and a
second process have no benefit. The engine's question separates plan from mutation; the marker is
recorded before it is answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.app.session import Session
from orchestrator.app.steps.engine_calls import failure, ignore_message, pull
from orchestrator.app.steps.planned_step import EnginePlan, PlanOptions, write_variables
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import (
    ChangeSummary,
    Message,
    OutputChange,
    PlannedChange,
)
from orchestrator.domain.events.journal import Journal, adds_up
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.ports.engine import CallSpec, Cancel, PlanAndAsk


def is_possible(session: Session, prepared: PreparedStep, options: PlanOptions) -> bool:
    """
    Return whether a step may be applied this way: its first apply, approved beforehand, with
    nothing that needs to read the plan or query the provider before, and no auto-approval by
    environment.
    """
    record, step, environ = prepared.record, prepared.step, session.services.environ
    plain = PlanOptions(
        approved=True, parallelism=options.parallelism, lock_timeout=options.lock_timeout
    )
    return (
        prepared.engine.asks_for_approval
        and (record is None or record.status in NOTHING_THERE)
        and options == plain
        and session.deployment.policy.empty
        and not (step.identity or step.search)
        and not any(environ[name] for name in environ if name.startswith("TF_CLI_ARGS"))
    )


def plan_and_ask(
    session: Session,
    prepared: PreparedStep,
    inputs: StepInputs,
    options: PlanOptions,
    spec: CallSpec,
    *,
    var_file: Path,
) -> EnginePlan | None:
    """
    Return the plan of a waiting apply, for `Approve` and `Cancel` with this ``spec``. None if none
    waits, because its plan failed, was empty, or holds more than is understood, or because the
    provider state is not empty: then a saved plan is made instead. Raises StateLocked if somebody
    else holds the lock of the provider state.

    An engine that has begun without asking is not cancelled: what it does has to be recorded.
    """
    services, step = session.services, prepared.step.name
    before = pull(services, prepared.work_dir, spec.evidence, "pull-before-plan")
    if before.objects or before.outputs:
        return None
    write_variables(services, var_file, inputs, prepared.work_dir.variables)
    request = PlanAndAsk(var_file, options.parallelism, options.lock_timeout)
    result = services.engine.call(request, spec, stop=services.stop, observe=ignore_message)
    var_file.unlink(missing_ok=True)  # it is read by now
    if result.lock is not None:  # waited for long enough
        raise failure(result, "plan", services.stop)
    if not result.waits:
        return None
    journal = Journal.of(result.messages, whole=True)
    if journal.began:
        services.note(
            "the engine applies without asking for approval, before that was recorded",
            hint="use another version of it, and report this one",
            level="error",
            step=step,
        )
    elif not _only_creates(result.messages):
        services.engine.call(Cancel(), spec, stop=services.stop, observe=ignore_message)
        return None
    return EnginePlan(
        "apply",
        spec.evidence / "plan.tfplan",
        journal,
        before,
        changed=True,
        waits=True,
    )


def _only_creates(messages: Sequence[Message]) -> bool:
    """
    Return whether a plan only creates objects and outputs, as many as the engine counts, without a
    warning, refresh or line of unknown type.
    """

    def is_known(message: Message) -> bool:
        match message:
            case PlannedChange(_, action, importing=importing, previous_address=previous):
                return (action, importing, previous) == ("create", None, None)
            case OutputChange(_, action):
                return action == "create"
            case ChangeSummary(operation):
                return operation == "plan"
            case _:
                return False

    return all(map(is_known, messages)) and adds_up(messages, changed=True)
