"""
What is recorded as gone is asked for once more, by its address and id.

Law: destroyed means confirmed. A provider that reported a delete done may have the object all the
same; what it says it has is taken back into the record, in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    The entry of a step that is recorded as gone, after its objects were looked up at the provider:
    either objects that exist all the same, or the confirmation that none does. None where there is
    nothing to record. A lookup without a certain answer is noted and changes nothing.

    Refused where the provider state holds objects.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    evidence = runner.steps.evidence(name)
    state = pull(services, prepared.work_dir, evidence, "pull-gone")
    check_state(str(record.target.target), record, state)
    objects = objects_of_last_life(services.store.history(record.target.target))
    vanished = [item.ref for item in record.resources.still_released if item.how == "vanished"]
    remote = [ref for ref in (*objects, *vanished) if has_remote_side(ref.provider)]
    answers = _ask(runner, name, record, [ref for ref in remote if ref.id is not None])
    if not answers:
        services.note("nothing of it can be asked for", step=name)
        return None
    managed = {
        (ref.type, ref.id)
        for other in services.store.records()
        for ref in other.resources.inventory
        if other.target.target != record.target.target
    }
    at = services.clock.now()
    existing = {
        ref: _readback(record, ref, at, vanished=ref in vanished)
        for ref, answer in answers.items()
        if answer.verdict == "exists" and (ref.type, ref.id) not in managed
    }
    for verdict, message in (
        ("absent", "the provider has none of these any more"),
        ("unknown", "the provider could not tell of these"),
    ):
        named = ", ".join(
            f"{ref.name} ({ref.id})" + (f": {answer.why}" if verdict == "unknown" else "")
            for ref, answer in answers.items()
            if answer.verdict == verdict
        )
        if named:
            services.note(f"{message}: {named}", step=name)
    if existing:
        return found_again(record, existing, services.stamp())
    all_gone = all(ref in answers and answers[ref].verdict == "absent" for ref in remote)
    return confirmed_by_provider(record, objects, services.stamp()) if all_gone else None


def _ask(
    runner: StepRunner, name: str, record: OperationRecord, refs: Sequence[ObjectRef]
) -> dict[ObjectRef, Answer]:
    """
    What the provider says of each object. A plan imports one object at an address: of several that
    had the same one each is asked for by a plan of its own.
    """
    prepared, evidence = runner.steps.prepared[name], runner.steps.evidence(name)
    inputs = runner.steps.values.recorded_inputs(prepared)
    lookup = own_lookup(runner.deployment, prepared.step, inputs, {})
    context = QueryContext(runner.services, prepared, inputs, evidence)
    answers: dict[ObjectRef, Answer] = {}
    remaining = list(dict.fromkeys(refs))
    while remaining:
        batch = {ref.address: ref for ref in remaining}
        # An identity names whichever is there now: it tells nothing of one of several.
        several = {at for at in batch if sum(ref.address == at for ref in refs) > 1}
        imports = {
            at: str(ref.id) if at in several else import_id_of(prepared.step, ref, lookup)
            for at, ref in batch.items()
        }
        place = runner.services.files.inside(evidence, f"destroyed-{len(answers)}")
        result = ask_provider(context, inputs, place, ProviderQuery(imports)).imports
        for at, ref in batch.items():
            answers[ref] = _answer_here(context, record, ref, result[at])
        remaining = [ref for ref in remaining if ref not in answers]
    return answers


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


def _readback(record: OperationRecord, ref: ObjectRef, at: datetime, *, vanished: bool) -> Readback:
    """
    The readback of an object that exists although it was destroyed, or that had ``vanished``. If it
    was confirmed to be absent in between, somebody has made another one with the same id.
    """
    confirmed = record.absence is not None and record.absence.method == "provider"
    was_gone = confirmed and not vanished
    return Readback(
        verdict="exists",
        method="id",
        ids=(ref.id,) if ref.id else (),
        why=f"{'it was not found' if vanished else 'it was destroyed'}, and the provider has it",
        at=at,
        ownership="found" if was_gone else "ours",
        evidence="the provider did not have it after the destroy: nothing proves who made it since"
        if was_gone
        else "it is the one that this target had, by its id",
    )
