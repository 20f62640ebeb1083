"""
Readback of creates in doubt: the provider is queried for all of a target in one plan.

The plan runs in a private copy of the step's root module, so that aliases, ``for_each``, child
modules and provider configuration are those of the step. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext, ask_provider
from orchestrator.app.surgery.imports import import_id_of
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import (
    ReferenceScope,
    StepInputs,
    digest,
    read_recorded_inputs,
)
from orchestrator.domain.blueprint.references import Lookup, Unresolvable
from orchestrator.domain.provider_query.doubt_query import (
    DoubtQuery,
    declaration,
    declared,
    doubt_queries,
    import_id,
    question,
)
from orchestrator.domain.provider_query.query import Answer, ProviderQuery, QueryResult
from orchestrator.domain.provider_query.readback import existed_before, known_objects, read_back
from orchestrator.domain.provider_query.scope import without_credentials
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, ManualSearch, ObjectRef, Readback
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.transitions.absence import has_remote_side
from orchestrator.domain.transitions.doubts import settling_seconds_left
from orchestrator.domain.transitions.reconciliation import (
    confirmed_by_provider,
    found_again,
    objects_of_last_life,
)


@dataclass(frozen=True)
class DoubtReadback:
    """
    One step's readback: ``inputs`` are its recorded ones, ``state`` its current provider state.
    """

    steps: PreparedSteps
    prepared: PreparedStep
    record: OperationRecord
    inputs: StepInputs
    state: PulledState
    evidence: Path

    def ask(self, doubts: Iterable[Doubt]) -> OperationRecord:
        """
        Return the record with the provider's answers about the creates among ``doubts``.

        If the provider cannot be queried, they stay unknown, with the reason. Raises Stopped if a
        signal came.
        """
        services, step = self.steps.services, self.prepared.step
        query, queries = doubt_queries(step, doubts, self._lookup, self.state)
        if not queries:
            return self.record
        result = QueryResult()
        if query.imports or query.searches:
            result = ask_provider(self._context, self.inputs, self.evidence, query)
        at = services.clock.now()
        doubts_read = read_back(
            queries,
            result,
            known_objects(self.record, self._others(), self.state),
            at=at,
            seconds_left=lambda doubt: settling_seconds_left(
                doubt, self.record, at, services.limits.settle
            ),
            has_named=self._identity_has_named,
            existed=lambda doubt: existed_before(self.record, doubt),
            was_absent=lambda item, method: (
                digest(question(item, query, method), services.key) in item.doubt.absent_before
            ),
            scope_change=partial(self._context.scope_change, self.record),
            where_to_look=self._manual_search,
        )
        return self._with(doubts_read)

    @cached_property
    def _context(self) -> QueryContext:
        return QueryContext(self.steps.services, self.prepared, self.inputs, self.evidence)

    @cached_property
    def _lookup(self) -> Lookup:
        return self._lookup_with(self.inputs)

    def _lookup_with(self, inputs: StepInputs) -> Lookup:
        step = self.prepared.step
        return ReferenceScope(self.steps.deployment, step, inputs=inputs).look_up

    def _others(self) -> list[OperationRecord]:
        """
        Return the records of all other targets in the store, also of other blueprints: their
        objects are not the missing ones.
        """
        records = self.steps.services.store.records()
        return [item for item in records if item.target != self.record.target]

    def _identity_has_named(self, query: DoubtQuery) -> bool:
        """
        Return whether the same identity was once the id of an object of this target, with its
        inputs at that time.
        """
        step = self.prepared.step
        key = declared(step.identity, query.address)
        lookups: dict[str | None, Lookup | None] = {}
        for entry in self.steps.services.store.history(self.record.target):
            for ref in entry.resources.inventory:
                address = parse_address(ref.address)
                if ref.id is None or declared(step.identity, address) != key:
                    continue
                file = entry.resolved_inputs_file
                if file not in lookups:
                    lookups[file] = self._lookup_of(file)
                lookup = lookups[file]
                try:
                    if lookup is not None and import_id(step, address, lookup) == ref.id:
                        return True
                except Unresolvable:
                    continue
        return False

    def _lookup_of(self, file: str | None) -> Lookup | None:
        """
        Return a lookup in recorded inputs without secrets, None if the store lacks them.
        """
        text = self.steps.services.store.blob(file) if file else None
        if text is None:
            return None
        recorded = read_recorded_inputs(text, lambda _path, _origin: None)
        return self._lookup_with(recorded)

    def _manual_search(self, doubt: Doubt, provider: str) -> ManualSearch:
        return ManualSearch(
            since=doubt.started_at or self.record.started_at,
            until=doubt.at or self.record.updated_at,
            inputs=self.inputs.masked(),
            provider=self._provider(provider),
            file=self.steps.deployment.path,
            declare=declaration(
                self.prepared.step, parse_address(doubt.address), self.inputs.masked()
            ),
        )

    def _provider(self, name: str) -> dict[str, str]:
        """
        Return a provider's configuration in the blueprint, masked; empty if there is none.
        """
        step, deployment = self.prepared.step, self.steps.deployment
        template = step.providers.get(name)
        if template is None:
            return {}
        try:
            scope = ReferenceScope(deployment, step, self.steps.outputs)
            resolved = template.resolve(scope.look_up)
        except Unresolvable:
            return {}
        value = without_credentials(resolved.value)
        if isinstance(value, dict):
            return StepInputs(value, resolved.secrets).masked()
        secrets = {(name, *path): origin for path, origin in resolved.secrets.items()}
        return StepInputs({name: value}, secrets).masked()

    def _with(self, updated: Iterable[Doubt]) -> OperationRecord:
        by_key = {(doubt.address, doubt.action, doubt.started_at): doubt for doubt in updated}
        resources = self.record.resources
        doubts = tuple(
            by_key.get((d.address, d.action, d.started_at), d) for d in resources.in_doubt
        )
        return self.record.model_copy(
            update={"resources": resources.model_copy(update={"in_doubt": doubts})}
        )


# What is recorded as gone is asked for once more, by its address and id.
#
# Law: destroyed means confirmed. A provider that reported a delete done may have the object all
# the same; what it says it has is taken back into the record, in doubt.


def verify_destroyed(
    runner: StepRunner, name: str, record: OperationRecord
) -> OperationRecord | None:
    """
    Query the provider for the objects of a step that is recorded as gone, and return its next
    entry: with objects that still exist, or with the confirmation that none does. None if there is
    nothing to record. An uncertain answer is noted and changes nothing.

    Raises Refused if the provider state holds objects.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    evidence = runner.steps.evidence(name)
    state = pull(services, prepared.work_dir, evidence, "pull-gone")
    check_state(str(record.target), record, state, prepared.reconcile)
    objects = objects_of_last_life(services.store.history(record.target))
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
        if other.target != record.target
    }
    at = services.clock.now()
    existing = {
        ref: _readback(record, ref, at, vanished=ref in vanished)
        for ref, answer in answers.items()
        if answer.verdict == "exists" and (ref.type, ref.id) not in managed
    }
    for verdict, message in (
        ("absent", "the provider has none of these any more"),
        ("unknown", "the provider gave no certain answer about these"),
    ):
        listed = ", ".join(
            f"{ref.name} ({ref.id})" + (f": {answer.why}" if verdict == "unknown" else "")
            for ref, answer in answers.items()
            if answer.verdict == verdict
        )
        if listed:
            services.note(f"{message}: {listed}", step=name)
    if existing:
        return found_again(record, existing, services.stamp())
    all_gone = all(ref in answers and answers[ref].verdict == "absent" for ref in remote)
    return confirmed_by_provider(record, objects, services.stamp()) if all_gone else None


def _ask(
    runner: StepRunner, name: str, record: OperationRecord, refs: Sequence[ObjectRef]
) -> dict[ObjectRef, Answer]:
    """
    Query the provider about each object. A plan imports one object per address, so that objects
    with the same address are queried in separate plans.
    """
    prepared, evidence = runner.steps.prepared[name], runner.steps.evidence(name)
    inputs = runner.steps.values.recorded_inputs(prepared)
    lookup = ReferenceScope(runner.deployment, prepared.step, inputs=inputs).look_up
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
        directory = runner.services.files.inside(evidence, f"destroyed-{len(answers)}")
        result = ask_provider(context, inputs, directory, ProviderQuery(imports)).imports
        for at, ref in batch.items():
            answers[ref] = _answer_here(context, record, ref, result[at])
        remaining = [ref for ref in remaining if ref not in answers]
    return answers


def _answer_here(
    context: QueryContext, record: OperationRecord, ref: ObjectRef, answer: Answer
) -> Answer:
    """
    Return the answer about an object; unknown if it was not found and may have been made in another
    scope.
    """
    elsewhere = context.scope_change(record, parse_address(ref.address).provider_name)
    if answer.verdict != "absent" or elsewhere is None:
        return answer
    return Answer("unknown", why=elsewhere)


def _readback(record: OperationRecord, ref: ObjectRef, at: datetime, *, vanished: bool) -> Readback:
    """
    Return the readback of an object that exists although it was destroyed, or had ``vanished``. If
    its absence was confirmed in between, somebody has made a new one with the same id.
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
