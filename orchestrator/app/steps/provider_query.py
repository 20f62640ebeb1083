"""
The one way of asking a provider about objects: an engine plan in a scratch root, which writes
nothing but there.

The scratch root holds the configuration of the step, so that aliases, ``for_each``, child modules
and provider configuration are those of the step, on a private state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import call, call_spec, patiently, stopped
from orchestrator.app.steps.planned_step import write_variables
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.private_root import PrivateRoot, private_root
from orchestrator.domain.blueprint.inputs import StepInputs, digest
from orchestrator.domain.events.events import PhaseStarted
from orchestrator.domain.provider_query.query import (
    ProviderQuery,
    QueryResult,
    read_result,
    unanswered,
)
from orchestrator.domain.provider_query.scope import Scope, differing, fingerprint, scope
from orchestrator.domain.provider_state import is_encrypted
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.domain.record.record import OperationRecord
from orchestrator.errors import EngineFailed, Invalid
from orchestrator.ports.engine import CallResult, Plan


@dataclass(frozen=True)
class QueryContext:
    """
    What asking takes: the step and the inputs that it was applied with, None where these cannot be
    had, and then ``why``. ``evidence`` is the directory of an attempt, for the logs.
    """

    services: Services
    prepared: PreparedStep
    inputs: StepInputs | None
    evidence: Path
    why: str = ""

    def scope(self, objects: Iterable[ObjectRef]) -> Scope:
        """
        The scope in which the providers of these objects are queried now.
        """
        services = self.services
        return scope(
            {ref.provider for ref in objects},
            services.environ,
            self.prepared.configured,
            lambda value: digest(value, services.key),
        )

    def scope_change(self, record: OperationRecord, provider: str) -> str | None:
        """
        Why a provider, by its local name, may be asked elsewhere than where it made the objects of
        a record; None where nothing says so.
        """
        snapshot = self.prepared.snapshot
        if snapshot.provider_may_depend_on_resources(provider):
            return f"{provider} is configured from other objects of the module"
        if record.scope is None:
            return f"where {provider} created is not recorded"
        source = snapshot.all_provider_sources.get(provider, provider)
        now = scope({source}, self.services.environ, self.prepared.configured, fingerprint)
        moved = ", ".join(differing(record.scope, now, {source}))
        return f"this is not the scope it was applied in ({moved} differ)" if moved else None

    def announce(self) -> None:
        """
        Report that the provider is being asked.
        """
        services, step = self.services, self.prepared.step.name
        services.sink.emit(PhaseStarted(at=services.clock.now(), step=step, phase="readback"))


class ScratchRoot:
    """
    A private copy of a step's root, initialised, in which queries are asked.
    """

    def __init__(self, context: QueryContext, inputs: StepInputs, root: PrivateRoot) -> None:
        self._context = context
        self._inputs = inputs
        self._root = root
        self._query_count = 0

    def clear_state(self, state: bytes) -> bytes:
        """
        A stored provider state in clear.
        """
        if not is_encrypted(state):
            return state
        return self._root.decrypted(state).raw

    def ask(self, query: ProviderQuery) -> QueryResult:
        """
        Ask in one plan; on transient errors again, as the step's retries say. A plan that fails
        answers what it got to.
        """
        services, work_dir = self._context.services, self._root.work_dir
        var_file = work_dir.directory / "query.tfvars.json"
        plan_file = work_dir.directory / "query.tfplan"
        self._query_count += 1
        if query.state:
            self._root.set_state(query.state)
        request = Plan(
            out=plan_file,
            mode="refresh-only" if query.saved else "normal",
            var_file=var_file,
            refresh=bool(query.saved),
            targets=query.targets,
        )

        def attempt(number: int) -> CallResult:
            write_variables(services, var_file, self._inputs, work_dir.variables)
            spec = call_spec(
                services,
                work_dir,
                self._root.evidence,
                f"query-{self._query_count}-{number}",
                delete_after=(var_file,),
            )
            return call(services, request, spec, stop=services.stop)

        try:
            result = patiently(services, self._context.prepared.step.name, "readback", attempt)
        finally:
            plan_file.unlink(missing_ok=True)
        return read_result(query, result.messages, succeeded=result.exit_code == 0)


@contextlib.contextmanager
def scratch_root(
    context: QueryContext, inputs: StepInputs, evidence: Path, query: ProviderQuery
) -> Iterator[ScratchRoot]:
    """
    A scratch root with what ``query`` adds to the configuration, removed at the end. Its calls
    leave their logs in ``evidence``.

    EngineFailed where it cannot be laid out or initialised.
    """
    services, prepared = context.services, context.prepared
    snapshot = prepared.snapshot
    sources = {
        name: source
        for name, source in (snapshot.provider_uses or {}).items()
        if name not in snapshot.provider_sources
    }
    files = query.files(sources)
    with private_root(services, prepared, evidence, extra=files) as root:
        yield ScratchRoot(context, inputs, root)


def ask_provider(
    context: QueryContext, inputs: StepInputs, evidence: Path, query: ProviderQuery
) -> QueryResult:
    """
    The answers to a query that is asked once, with these inputs; whatever keeps the provider from
    being asked leaves them unknown, and says why. Stopped where a signal came.
    """
    services = context.services
    context.announce()
    try:
        with scratch_root(context, inputs, evidence, query) as root:
            result = root.ask(query)
    except (EngineFailed, Invalid) as exc:
        result = unanswered(query, services.masker.mask(exc.message).splitlines()[0])
    if services.stop.stopping:
        raise stopped(services.stop)
    return result
