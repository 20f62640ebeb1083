"""
Checks plans against the policy of the blueprint.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.domain.addresses import without_keys
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.documents.plan import PlanDocument, PlannedStep
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.plan.changes import PlannedObject, ResourceChange
from orchestrator.domain.plan.violations import (
    Violation,
    destroys,
    violations_of_plan,
    violations_of_steps,
)
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.redaction import redacted
from orchestrator.errors import Location, OrchestratorError, Refused

_HINT = "change what is planned, or say why it may be: --override-policy REASON"


def check_policy(session: Session, step: str, plan: CheckedPlan, *, override: str | None) -> None:
    """
    Raise Refused if the plan of a step violates the policy, unless a reason overrides it.
    """
    policy = session.deployment.policy
    if policy.empty or plan.content is None:
        return
    objects = plan.content.objects
    before = session.count_destroys(destroys(objects))
    violations = [
        *violations_of_plan(policy, step, objects, regions=plan.content.regions, destroyed=before)
    ]
    row = _row(session, step).with_plan(plan.shown).counted()
    _judge(session, violations, [row], "apply", override=override)


def check_policy_of_destroy(
    session: Session, records: Collection[OperationRecord], *, override: str | None
) -> None:
    """
    Raise Refused if destroying all objects in these records violates the policy, unless a reason
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
    violations = [*violations_of_steps(session.deployment.policy, steps)]
    _judge(session, violations, rows, "destroy", override=override)


def _judge(
    session: Session,
    violations: Sequence[Violation],
    rows: Sequence[PlannedStep],
    command: Literal["apply", "destroy"],
    *,
    override: str | None,
) -> None:
    """
    Raise Refused if violations, or those of the Rego rules by a plan of these rows, forbid it.
    """
    deployment, note = session.deployment, session.services.note
    document = PlanDocument.of_steps(deployment, rows, command=command)
    one = rows[0].step if len(rows) == 1 else ""
    found = [*violations]
    for item in rego_violations(session.services, deployment, document):
        found.append(item.model_copy(update={"step": item.step or one}))
    for item in found:
        if item.verdict == "warn":
            note(f"the policy warns: {item.text}", level="warning", step=item.step)
    forbidden = [item for item in found if item.verdict == "fail"]
    if forbidden and override is None:
        raise _refusal(forbidden)
    if forbidden:
        text = describe_violations(forbidden)
        note(f"the policy is overridden ({override}): {text}", level="warning")


def rego_violations(
    services: Services, deployment: Deployment, document: PlanDocument
) -> Sequence[Violation]:
    """
    Return the plan's violations of the policy's Rego rules. They get the masked document.
    """
    rules = [Path(deployment.project_dir) / name for name in deployment.policy.rego]
    if not rules:
        return ()
    text = redacted(document, services.masker).to_json()
    return services.policy_rules(rules, text, services.stop)


def _row(session: Session, step: str) -> PlannedStep:
    return PlannedStep(step=step, target=str(session.deployment.target(step)), status="planned")


def describe_violations(violations: Sequence[Violation]) -> str:
    """
    Describe the violations in one line.
    """
    return "; ".join(f"{item.step}: {item.text}" if item.step else item.text for item in violations)


def refusals(violations: Iterable[Violation]) -> dict[str, OrchestratorError]:
    """
    Return the refusals for the violations by step; those of the whole plan under "".
    """
    steps: dict[str, list[Violation]] = {}
    for item in violations:
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


# What neither a destroy nor a rollback may take down: found before anything is destroyed, all of
# it at once.


def check_protected(
    services: Services,
    deployment: Deployment,
    records: Iterable[OperationRecord],
    *,
    confirmed: str | None,
) -> None:
    """
    Raise Refused if ``prevent_destroy`` protects recorded objects, in the recorded or the current
    module: a new protection counts immediately, and only an apply removes an old one. The error
    names every object and the place that protects it, and also a protected environment that was not
    ``confirmed``.
    """
    protected = [
        line
        for record in records
        if record.status not in NOTHING_THERE
        for line in _protected_lines(services, deployment, record)
    ]
    if not protected:
        return
    listed = "".join(f"\n  {line}" for line in protected)
    unconfirmed = deployment.protected and confirmed != deployment.environment
    also = f"; and {deployment.environment} is a protected environment" if unconfirmed else ""
    name = f"; and add --confirm {deployment.environment}" if unconfirmed else ""
    raise Refused(
        "prevent_destroy",
        f"nothing is destroyed: prevent_destroy holds {len(protected)} of the objects{also}"
        f"{listed}",
        hint="leave the steps out (--exclude), or take `prevent_destroy` out of their modules and "
        f"apply them{name}",
    )


def check_protected_since(
    services: Services, deployment: Deployment, record: OperationRecord | None, journal: Journal
) -> None:
    """
    Raise Refused if the plan of a rollback would destroy objects that a later applied module
    protects: the engine knows only the earlier module.
    """
    if record is None or not journal.removed:
        return
    protected = _protected_lines(services, deployment, record, journal.removed)
    if protected:
        raise Refused(
            "prevent_destroy",
            f"it would destroy what prevent_destroy holds since then: {'; '.join(protected)}",
            hint="take `prevent_destroy` out of the module and apply that first",
        )


def _protected_lines(
    services: Services,
    deployment: Deployment,
    record: OperationRecord,
    removed: Collection[str] | None = None,
) -> list[str]:
    """
    Return one line for each protected object of a target, of all or only the ``removed`` ones.
    Registry modules are not in the snapshot: the plan of their step finds what they protect.
    """
    places = _places(services, deployment, record)
    lines = []
    for ref in record.resources.inventory:
        address = without_keys(ref.address)
        held = address in places or address in record.protected
        if held and (removed is None or ref.address in removed):
            at = places.get(address)  # none where a person moved it in the provider state
            by = _shown_place(record, at) if at else "the module that it was applied from"
            lines.append(f"{record.target.step}: {ref.address}, by {by}")
    return lines


def _shown_place(record: OperationRecord, at: Location) -> str:
    """
    Return a place in the module of a record; for a local module relative to the project.
    """
    if not record.module_ref.startswith("."):
        return f"{record.module_ref}: {at}"
    blueprints = posixpath.dirname(record.source.blueprint_path)
    file = posixpath.normpath(posixpath.join(blueprints, record.module_ref, at.file))
    return str(Location(file, at.line, at.column))


def _places(
    services: Services, deployment: Deployment, record: OperationRecord
) -> Mapping[str, Location]:
    """
    Return the protected addresses of a target's recorded and current modules, with the place of
    each. A current module that cannot be read adds none.
    """
    snapshots = []
    step = deployment.steps.get(record.target.step)
    if step is not None and record.target.step not in deployment.orphans:
        with suppress(OrchestratorError):
            snapshots.append(services.workdirs.snapshot(step.module))
    digest = record.module_digest
    archive = services.store.blob(f"snapshots/{digest}") if digest else None
    if archive is not None:
        snapshots.append(services.workdirs.unpack(archive))
    return {item.address: item.at for snapshot in snapshots for item in snapshot.protected}
