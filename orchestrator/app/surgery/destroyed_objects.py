"""
What is recorded as gone is asked for once more, by its address and id.

Law: destroyed means confirmed. A provider that reported a delete done may have the object all the
same; what it says it has is taken back into the record, in doubt.
"""

from __future__ import annotations

from datetime import datetime

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.provider_query import QueryContext, ask_provider
from orchestrator.app.surgery.rebuild import import_id_of
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import own_lookup
from orchestrator.domain.provider_query.query import Answer, ProviderQuery
from orchestrator.domain.record.objects import ObjectRef, Readback
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.transitions.absence import has_remote_side
from orchestrator.domain.transitions.reconciliation import (
    confirmed_by_provider,
    found_again,
    objects_of_last_life,
)


def verify_destroyed(
    runner: StepRunner, name: str, record: OperationRecord
) -> OperationRecord | None:
    """
    The entry of a step that is recorded as gone: of what the provider has all the same, or that it
    has none, where nobody had asked it yet. None where there is nothing to record. What it does not
    answer, or answers where it may be another one, is told and changes nothing.

    Refused where the provider state holds objects.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    evidence = runner.steps.evidence(name)
    state = pull(services, prepared.work_dir, evidence, "pull-gone")
    check_state(str(record.target.target), record, state)
    objects = objects_of_last_life(services.store.history(record.target.target))
    remote = [ref for ref in objects if has_remote_side(ref.provider)]
    asked = {ref.address: ref for ref in remote if ref.id is not None and ref.deposed is None}
    inputs = runner.steps.values.recorded_inputs(prepared)
    lookup = own_lookup(runner.deployment, prepared.step, inputs, {})
    imports = {at: import_id_of(prepared.step, ref, lookup) for at, ref in asked.items()}
    if not imports:
        services.note("nothing of it can be asked for", step=name)
        return None
    context = QueryContext(services, prepared, inputs, evidence)
    result = ask_provider(context, inputs, evidence, ProviderQuery(imports)).imports
    answers = {at: _answer_here(context, record, ref, result[at]) for at, ref in asked.items()}
    managed = {
        (ref.type, ref.id)
        for other in services.store.records()
        for ref in other.resources.inventory
        if other.target.target != record.target.target
    }
    at = services.clock.now()
    found = {
        ref: _readback(record, ref, at)
        for address, ref in asked.items()
        if answers[address].verdict == "exists" and (ref.type, ref.id) not in managed
    }
    for verdict, said in (
        ("absent", "the provider has none of these any more"),
        ("unknown", "the provider could not tell of these"),
    ):
        named = ", ".join(
            f"{ref.address} ({ref.id})"
            + (f": {answers[address].why}" if verdict == "unknown" else "")
            for address, ref in asked.items()
            if answers[address].verdict == verdict
        )
        if named:
            services.note(f"{said}: {named}", step=name)
    if found:
        return found_again(record, found, services.stamp())
    all_gone = all(
        ref in asked.values() and answers[ref.address].verdict == "absent" for ref in remote
    )
    return confirmed_by_provider(record, objects, services.stamp()) if all_gone else None


def _answer_here(
    context: QueryContext, record: OperationRecord, ref: ObjectRef, answer: Answer
) -> Answer:
    """
    The answer about an object, unknown where it was not found and may have been made elsewhere.
    """
    elsewhere = context.scope_change(record, parse_address(ref.address).provider_name)
    if answer.verdict != "absent" or elsewhere is None:
        return answer
    return Answer("unknown", why=elsewhere)


def _readback(record: OperationRecord, ref: ObjectRef, at: datetime) -> Readback:
    """
    What it means that the provider has a destroyed object: if it was seen to be gone in between,
    somebody has made another one under the same id.
    """
    was_gone = record.absence is not None and record.absence.method == "provider"
    return Readback(
        verdict="exists",
        method="id",
        ids=(ref.id,) if ref.id else (),
        why="it was destroyed, and the provider has it",
        at=at,
        ownership="found" if was_gone else "ours",
        evidence="the provider did not have it after the destroy: nothing proves who made it since"
        if was_gone
        else "it is the one that this target had, by its id",
    )
