"""
Readback of created objects in doubt: the provider is asked for all of a target in one plan.

It runs in a private copy of the step's root, so that aliases, ``for_each``, child modules and
provider configuration are those of the step, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import QueryContext, ask_provider
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import StepInputs, digest, own_lookup, provider_lookup
from orchestrator.domain.blueprint.recorded_inputs import read_recorded_inputs
from orchestrator.domain.blueprint.references import Lookup, Unresolvable
from orchestrator.domain.provider_query.doubt_query import (
    DoubtQuery,
    declaration,
    declared,
    doubt_queries,
    import_id,
    question,
)
from orchestrator.domain.provider_query.query import QueryResult
from orchestrator.domain.provider_query.readback import existed_before, known_objects, read_back
from orchestrator.domain.provider_query.scope import without_credentials
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, ManualSearch
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.transitions.doubts import settling_seconds_left


@dataclass(frozen=True)
class DoubtReadback:
    """
    One step's readback: ``inputs`` are those that it was applied with, ``state`` its provider
    state now.
    """

    steps: PreparedSteps
    prepared: PreparedStep
    record: OperationRecord
    inputs: StepInputs
    state: PulledState
    evidence: Path

    def ask(self, doubts: Iterable[Doubt]) -> OperationRecord:
        """
        The record with what the provider says of the creates among ``doubts``.

        Whatever keeps the provider from being asked leaves them unknown, and says why. Stopped
        where a signal came.
        """
        services, step = self.steps.services, self.prepared.step
        query, queries = doubt_queries(step, doubts, self._lookup, self.state)
        if not queries:
            return self.record
        result = QueryResult()
        if not query.is_empty:
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
        return own_lookup(self.steps.deployment, self.prepared.step, inputs, {})

    def _others(self) -> list[OperationRecord]:
        """
        The records of all other targets in the store, also of other blueprints: what these have is
        not what is missing here.
        """
        records = self.steps.services.store.records()
        return [item for item in records if item.target != self.record.target]

    def _identity_has_named(self, query: DoubtQuery) -> bool:
        """
        Whether the same identity has been the id of an object of this target, with the inputs that
        it had then.
        """
        step = self.prepared.step
        key = declared(step.identity, query.address)
        lookups: dict[str | None, Lookup | None] = {}
        for entry in self.steps.services.store.history(self.record.target.target):
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
        A lookup in recorded inputs, secrets left out; None where they are not in the store.
        """
        text = self.steps.services.store.blob(file) if file else None
        if text is None:
            return None
        recorded = read_recorded_inputs(text.decode(), lambda _path, _origin: None)
        return self._lookup_with(StepInputs(recorded.values, recorded.secrets))

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
        A provider's configuration in the blueprint, masked; empty where it has none there.
        """
        step, deployment = self.prepared.step, self.steps.deployment
        template = step.providers.get(name)
        if template is None:
            return {}
        try:
            resolved = template.resolve(provider_lookup(deployment, step, self.steps.outputs))
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
