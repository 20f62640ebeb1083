"""
``gate``: may a change be merged? One verdict over records, plan and policy; changes nothing and
takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date
from typing import Literal, get_args

from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment, DriftRule
from orchestrator.domain.documents.plan import GateDocument, GateReason, PlanDocument, StepDrift
from orchestrator.domain.documents.status import StatusDocument, StepState
from orchestrator.domain.plan.changes import remaining_drift
from orchestrator.domain.record.states import Condition, StepStatus
from orchestrator.domain.recovery.command_line import BlueprintAddress, command_line
from orchestrator.errors import Busy, Invalid, OrchestratorError, StoreUnavailable

#: What a step may be in that a gate refuses unless it is allowed.
Refusable = Literal["in_doubt", "interrupted", "silent"]
#: Step and condition that are allowed, by ``--allow STEP=CONDITION``.
Allowed = Collection[tuple[str, str]]

_REFUSABLE: tuple[str, ...] = get_args(Refusable)


def parse_allowed(texts: Collection[str], steps: Collection[str]) -> Allowed:
    """
    Return the pairs of ``STEP=CONDITION``. Raises ValueError if one is malformed.
    """
    pairs = [(step, condition) for step, _, condition in (text.partition("=") for text in texts)]
    for step, condition in pairs:
        if condition not in _REFUSABLE:
            raise ValueError(f"--allow takes STEP=CONDITION, one of {', '.join(_REFUSABLE)}")
        if step not in steps:
            raise ValueError(f"there is no step {step!r}")
    return pairs


def failed_gate(
    exc: OrchestratorError, *, project: str, blueprint: str, environment: str
) -> GateDocument:
    """
    Return the verdict on a blueprint that cannot be loaded, or whose records cannot be read.
    """
    reasons = [_of_error(exc)]
    if isinstance(exc, Invalid):
        reasons = [
            GateReason(
                code=exc.code,
                severity="fail",
                message=f"{item.at}: {item.message}" if item.at else item.message,
                remedy=item.hint,
                file=item.at.file if item.at else None,
                line=(item.at.line or None) if item.at else None,
            )
            for item in exc.problems
        ]
    return GateDocument.of_reasons(
        reasons, project=project, blueprint=blueprint, environment=environment
    )


def _of_error(exc: OrchestratorError) -> GateReason:
    return GateReason(code=exc.code, severity="fail", message=exc.message, remedy=exc.hint)


def status_to_judge(
    services: Services, read: Callable[[], StatusDocument], *, wait: bool
) -> StatusDocument:
    """
    Return the status of the blueprint; with ``wait``, after its current runs have ended.
    """
    status = read()
    live = [step.run_id for step in status.steps if step.condition is Condition.LIVE]
    if live and wait:
        services.note(f"waiting for run {live[0]}")
    while live and wait and not services.stop.stopping:
        services.clock.sleep(1.0)
        status = read()
        live = [step.run_id for step in status.steps if step.condition is Condition.LIVE]
    return status


def gate(
    deployment: Deployment,
    status: StatusDocument,
    planned: PlanDocument | OrchestratorError,
    *,
    allowed: Allowed,
    drift_on: date | None,
    refusal: StoreUnavailable | None = None,
) -> GateDocument:
    """
    Return the verdict. ``planned`` is the plan, or the error if there is none. Drift counts if
    ``drift_on`` is given: the day by which drift rules expire. ``refusal`` is the error that an
    apply would end with if it may not rely on the records.
    """
    plan = planned if isinstance(planned, PlanDocument) else None
    drift = _drift(plan, deployment.drift_rules, drift_on) if plan and drift_on else ()
    reasons = [*_of_state(deployment, status, allowed), *_of_plan(deployment, planned)]
    if refusal is not None:
        reasons.insert(0, _of_error(refusal))
    reasons += [
        GateReason(
            code="drift",
            severity="warn",
            step=item.step,
            message="changed outside the engine: "
            + ", ".join(change.address for change in item.resources),
            remedy=f"{command_line(deployment, 'apply', '--step', item.step)} sets it back",
        )
        for item in drift
    ]
    return GateDocument.of_reasons(
        reasons,
        project=status.project,
        blueprint=status.blueprint,
        environment=status.environment,
        plan=plan,
        policy=plan.policy if plan else (),
        drift=drift,
    )


def _of_state(
    blueprint: BlueprintAddress, status: StatusDocument, allowed: Allowed
) -> Iterator[GateReason]:
    """
    Yield the reasons from the records of the steps. A failed step only warns: the change may repair
    it.
    """
    for step in status.steps:
        for code, message in _conditions(step):
            refused = code in _REFUSABLE and (step.step, code) not in allowed
            verb = "reconcile" if code in _REFUSABLE else "recover"
            yield GateReason(
                code=code,
                severity="fail" if refused else "warn",
                step=step.step,
                message=message,
                remedy=command_line(blueprint, verb, "--step", step.step),
            )
    if status.orphaned:
        yield GateReason(
            code="orphaned",
            severity="warn",
            message=f"alive, and no longer in the blueprint: {', '.join(status.orphaned)}",
            remedy=command_line(blueprint, "destroy", "--orphaned"),
        )


def _conditions(step: StepState) -> Iterator[tuple[str, str]]:
    if step.condition is Condition.LIVE:
        yield "running", f"run {step.run_id} is at work on it"
    elif step.condition is not None:
        yield str(step.condition), f"run {step.run_id} was interrupted ({step.active_command})"
    if step.in_doubt:
        addresses = ", ".join(doubt.address for doubt in step.in_doubt)
        yield "in_doubt", f"it is unknown whether it exists: {addresses}"
    if step.status is StepStatus.ERROR:
        last = (step.last_error or "").partition("\n")[0]
        yield "error", f"{step.failed_command or 'the last command'} failed: {last}"
    if step.review_overdue and step.retained is not None:
        yield "retained", f"the review of what is retained was due {step.retained.review_by}"


def _of_plan(
    blueprint: BlueprintAddress, planned: PlanDocument | OrchestratorError
) -> Iterator[GateReason]:
    if isinstance(planned, OrchestratorError):
        busy = isinstance(planned, Busy)
        yield GateReason(
            code=planned.code,
            severity="warn" if busy else "fail",
            message=f"no plan could be made: {planned.message}",
            remedy=planned.hint,
        )
        return
    for step in planned.steps:
        if step.status == "failed" and step.error is not None:
            yield GateReason(
                code="plan_failed",
                severity="fail",
                step=step.step,
                message=step.error.summary,
                remedy=step.reason or "",
            )
        elif step.status == "deferred":
            yield GateReason(
                code="deferred",
                severity="warn",
                step=step.step,
                message=step.reason or "it cannot be planned yet",
                remedy=_DEFERRED if step.waits_for else "",
            )
    for item in planned.policy:
        yield GateReason(
            code="policy",
            severity=item.verdict,
            step=item.step or None,
            message=item.text,
            remedy=f"{command_line(blueprint, planned.command)} --override-policy REASON",
        )


_DEFERRED = "plan again once what it waits for is applied"


def _drift(plan: PlanDocument, rules: Iterable[DriftRule], today: date) -> tuple[StepDrift, ...]:
    rows = {step.step: remaining_drift(step.drift, rules, today) for step in plan.steps}
    return tuple(
        StepDrift.model_validate({"step": step, "resources": changes})
        for step, changes in rows.items()
        if changes
    )
