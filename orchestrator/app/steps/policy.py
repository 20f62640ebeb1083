"""
Plans held against the policy of the blueprint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from orchestrator.app.session import Session
from orchestrator.app.steps.planned_step import StepPlan
from orchestrator.domain.events.engine_messages import PlannedObject
from orchestrator.domain.plan.violation import Violation
from orchestrator.domain.plan.violations import destroys, violations, violations_of_steps
from orchestrator.domain.record.record import OperationRecord
from orchestrator.errors import Refused

_HINT = "change what is planned, or say why it may be: --override-policy REASON"


def check_policy(session: Session, step: str, plan: StepPlan, *, override: str | None) -> None:
    """
    Refused where the plan of a step does what the policy forbids, unless a reason overrides it.
    """
    policy = session.deployment.policy
    if policy.empty or plan.content is None:
        return
    objects = plan.content.objects
    before = session.count_destroys(destroys(objects))
    found = violations(policy, step, objects, regions=plan.content.regions, destroyed=before)
    _refuse(session, list(found), override=override)


def check_policy_of_destroy(
    session: Session, records: Collection[OperationRecord], *, override: str | None
) -> None:
    """
    The same of a destroy of all that these records know, before any of it is gone.
    """
    steps: list[tuple[str, list[PlannedObject], Mapping[str, str]]] = [
        (
            record.target.step,
            [PlannedObject(item.address, "delete") for item in record.resources.inventory],
            {},
        )
        for record in records
    ]
    found = list(violations_of_steps(session.deployment.policy, steps))
    _refuse(session, found, override=override)


def describe_violations(found: Sequence[Violation]) -> str:
    """
    What is forbidden, in one line.
    """
    return "; ".join(f"{item.step}: {item.text}" for item in found)


def _refuse(session: Session, found: Sequence[Violation], *, override: str | None) -> None:
    if not found:
        return
    said = describe_violations(found)
    if override is None:
        raise Refused(
            "policy",
            f"the policy forbids it: {said}",
            hint=_HINT,
            accepted_by=("--override-policy", "WHY"),
        )
    session.services.note(f"the policy is overridden ({override}): {said}", level="warning")
