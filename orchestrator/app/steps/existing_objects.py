"""
Before a create, look: what a plan would create is asked for before the marker.

Only where the step declares an ``identity`` or a ``search`` of it; that costs one engine plan more.
"""

from __future__ import annotations

import shlex

from orchestrator.app.session import Session
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.app.steps.provider_query import QueryContext, ask_provider
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import StepInputs, digest, own_lookup
from orchestrator.domain.provider_query.doubt_query import (
    ObjectsBefore,
    doubt_queries,
    objects_before,
    to_be_created,
    whose,
)
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.errors import Refused


def look_before_create(
    session: Session, context: QueryContext, plan: CheckedPlan, inputs: StepInputs
) -> CheckedPlan:
    """
    The plan with the objects to be created that are proven absent.

    Refused where one of them exists. An object that the provider gives no answer about is created
    all the same, and counts as not proven.
    """
    services, step = context.services, context.prepared.step
    lookup = own_lookup(session.deployment, step, inputs, {})
    query, queries = doubt_queries(step, to_be_created(plan.journal.planned), lookup, plan.before)
    if query.is_empty:
        return plan
    place = services.files.inside(context.evidence, "before-create")
    result = ask_provider(context, inputs, place, query)

    def keyed(value: Json) -> str:
        return digest(value, services.key)

    records = services.store.records() if query.searches else []
    managed = {(ref.type, ref.id) for record in records for ref in record.resources.inventory}
    managed |= {(item.type, item.id) for item in plan.before.objects}
    deleted = {item.address for item in plan.journal.planned if item.action == "delete"}
    before = objects_before(
        queries,
        query,
        result,
        managed=managed,
        leaving={(o.type, o.id) for o in plan.before.objects if o.address in deleted},
        digest=keyed,
    )
    _check_absent(session, step.name, before)
    for address, why in before.unknown.items():
        services.note(
            f"{address}: the provider could not tell whether it exists already: {why}",
            step=step.name,
        )
    return replace(plan, journal=plan.journal.with_absent(before.absent))


def _check_absent(session: Session, step: str, before: ObjectsBefore) -> None:
    if not before.exist:
        return
    records = session.services.store.records()
    problems = [
        f"{address}: {' and '.join(ids)} exists already, and "
        + whose(records, parse_address(address).type, ids)
        for address, ids in before.exist.items()
    ]
    address, ids = next(iter(before.exist.items()))
    target = str(session.deployment.target(step))
    imported = shlex.join(("orchestrator", "import", target, address, ids[0]))
    raise Refused(
        "exists_already",
        f"{step}: {'; '.join(problems)}",
        hint=f"give it another name; or take it over: `{imported}`",
        phase="readback",
    )
