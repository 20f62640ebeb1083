"""
Plans held against the policy of the blueprint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.documents.plan import PlanDocument, PlannedStep
from orchestrator.domain.plan.changes import PlannedObject, ResourceChange
from orchestrator.domain.plan.violations import Violation, destroys, violations, violations_of_steps
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.redaction import redacted
from orchestrator.errors import OrchestratorError, Refused

_HINT = "change what is planned, or say why it may be: --override-policy REASON"


def check_policy(session: Session, step: str, plan: CheckedPlan, *, override: str | None) -> None:
    """
    Refused where the plan of a step does what the policy forbids, unless a reason overrides it.
    """
    policy = session.deployment.policy
    if policy.empty or plan.content is None:
        return
    objects = plan.content.objects
    before = session.count_destroys(destroys(objects))
    breaches = [*violations(policy, step, objects, regions=plan.content.regions, destroyed=before)]
    row = _row(session, step).with_plan(plan.shown).counted()
    breaches += _rego_violations(session, [row], "apply")
    _refuse(session, breaches, override=override)


def check_policy_of_destroy(
    session: Session, records: Collection[OperationRecord], *, override: str | None
) -> None:
    """
    Refused where a destroy of all objects in these records breaks the policy, unless a reason
    overrides it. Checked before anything is destroyed.
    """
    steps: list[tuple[str, list[PlannedObject], Mapping[str, str]]] = []
    rows: list[PlannedStep] = []
    for record in records:
        step, inventory = record.target.step, record.resources.inventory
        steps.append((step, [PlannedObject(item.address, "delete") for item in inventory], {}))
        resources = tuple(
            ResourceChange(
                address=item.address,
                type=item.type,
                name=item.address.rpartition(".")[2].partition("[")[0],
                action="delete",
                deposed=item.deposed,
            )
            for item in inventory
        )
        actions = tuple(PlannedAction(address=o.address, action="delete") for o in inventory)
        changes = {"resources": resources, "actions": actions}
        rows.append(_row(session, step).model_copy(update=changes).counted())
    breaches = [*violations_of_steps(session.deployment.policy, steps)]
    breaches += _rego_violations(session, rows, "destroy")
    _refuse(session, breaches, override=override)


def rego_violations(
    services: Services, deployment: Deployment, document: PlanDocument
) -> Sequence[Violation]:
    """
    What the rules that the policy names say of a plan. They are shown what anybody may see.
    """
    rules = [Path(deployment.project_dir) / name for name in deployment.policy.rego]
    if not rules:
        return ()
    text = redacted(document, services.masker).to_json()
    return services.policy_rules.violations(rules, text, stop=services.stop)


def _rego_violations(
    session: Session, rows: Sequence[PlannedStep], command: Literal["apply", "destroy"]
) -> Iterator[Violation]:
    deployment = session.deployment
    document = PlanDocument.of_steps(
        rows,
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        command=command,
    )
    for item in rego_violations(session.services, deployment, document):
        one = rows[0].step if len(rows) == 1 else ""
        yield item.model_copy(update={"step": item.step or one})


def _row(session: Session, step: str) -> PlannedStep:
    return PlannedStep(step=step, target=str(session.deployment.target(step)), status="planned")


def describe_violations(breaches: Sequence[Violation]) -> str:
    """
    What is forbidden, in one line.
    """
    return "; ".join(f"{item.step}: {item.text}" if item.step else item.text for item in breaches)


def refusals(breaches: Iterable[Violation]) -> dict[str, OrchestratorError]:
    """
    The refusal of each step of which a plan does what is forbidden; of the whole plan under "".
    """
    steps: dict[str, list[Violation]] = {}
    for item in breaches:
        if item.verdict == "fail":
            steps.setdefault(item.step, []).append(item)
    return {step: _refusal(items) for step, items in steps.items()}


def _refusal(forbidden: Sequence[Violation]) -> Refused:
    return Refused(
        "policy",
        f"the policy forbids it: {describe_violations(forbidden)}",
        hint=_HINT,
        accepted_by=("--override-policy", "WHY"),
    )


def _refuse(session: Session, breaches: Sequence[Violation], *, override: str | None) -> None:
    warnings = [item for item in breaches if item.verdict == "warn"]
    forbidden = [item for item in breaches if item.verdict == "fail"]
    for item in warnings:
        session.services.note(f"the policy warns: {item.text}", level="warning", step=item.step)
    if not forbidden:
        return
    if override is None:
        raise _refusal(forbidden)
    text = describe_violations(forbidden)
    session.services.note(f"the policy is overridden ({override}): {text}", level="warning")
