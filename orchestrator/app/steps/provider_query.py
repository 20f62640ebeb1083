"""
The one way to query a provider: an engine plan in a scratch root module, which writes nothing else.

The scratch root has the configuration of the step, so that aliases, ``for_each``, child modules and
provider configuration are those of the step, with a private state.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.engine_calls import (
    call,
    call_spec,
    failure,
    patiently,
    pull,
)
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.app.steps.preparation import PreparedStep, state_encryption
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import ReferenceScope, StepInputs, digest
from orchestrator.domain.provider_query.doubt_query import (
    ObjectsBefore,
    doubt_queries,
    objects_before,
    to_be_created,
    whose,
)
from orchestrator.domain.provider_query.query import (
    ProviderQuery,
    QueryResult,
    read_result,
    unanswered,
)
from orchestrator.domain.provider_query.scope import Scope, differing, fingerprint, scope
from orchestrator.domain.provider_state import PulledState, is_encrypted
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, Invalid, Refused
from orchestrator.ports.engine import EngineInfo, Init, Plan, Push
from orchestrator.ports.workdir import WorkDir

# A private copy of a step's root on a local provider state: where a provider is asked, and where
# the engine reads and writes provider states that are not the step's own.
#
# OpenTofu may encrypt states. It refuses a clear one where it expects an encrypted one, so only
# the engine itself puts a state there and takes it out again.


class ScratchRoot(Struct, frozen=True):
    """
    The scratch root, initialised. Its calls leave their logs in ``evidence``.
    """

    services: Services
    step: str
    work_dir: WorkDir
    engine: EngineInfo
    evidence: Path
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def set_state(self, state: bytes) -> None:
        """
        Set the root's state to an unencrypted one; OpenTofu encrypts what is pushed.
        """
        services, work_dir = self.services, self.work_dir
        if self.engine.kind != "tofu":
            services.files.write(Path(work_dir.location), state.decode())
            return
        clear = work_dir.directory / "pushed.tfstate"
        services.files.write(clear, state.decode())
        name = f"push-{services.ids.entry_id()[:8]}"
        spec = call_spec(services, work_dir, self.evidence, name, delete_after=(clear,))
        result = call(services, Push(clear, force=True), spec, stop=services.stop)
        if result.exit_code != 0:
            raise failure(result, "readback", services.stop)

    def decrypted(self, state: bytes) -> PulledState:
        """
        Return a stored state as the engine reads it; it becomes that of the root.
        """
        self.services.files.write(Path(self.work_dir.location), state.decode())
        name = f"pull-{self.services.ids.entry_id()[:8]}"
        return pull(self.services, self.work_dir, self.evidence, name)

    def ask(self, query: ProviderQuery, inputs: StepInputs) -> QueryResult:
        """
        Make one plan for the query, retried on transient errors by the step's rule. A failed plan
        gives partial answers.
        """
        services, work_dir, query_number = self.services, self.work_dir, next(self.numbers)
        var_file = work_dir.directory / "query.tfvars.json"
        plan_file = work_dir.directory / "query.tfplan"
        if query.state:
            self.set_state(query.state)
        request = Plan(
            out=plan_file,
            mode="refresh-only" if query.saved else "normal",
            var_file=var_file,
            refresh=bool(query.saved),
            targets=query.targets,
        )

        try:
            result = patiently(
                services,
                self.step,
                "readback",
                request,
                work_dir,
                self.evidence,
                f"query-{query_number}",
                variables=(var_file, {**inputs.values, **work_dir.variables}),
                delete_after=(var_file,),
            )
        finally:
            plan_file.unlink(missing_ok=True)
        return read_result(query, result.messages, succeeded=result.exit_code == 0)


@contextlib.contextmanager
def scratch_root(
    services: Services, prepared: PreparedStep, evidence: Path, query: ProviderQuery | None = None
) -> Iterator[ScratchRoot]:
    """
    Yield a scratch root without any state, with what ``query`` adds to the configuration; it is
    removed at the end.

    Raises EngineFailed if it cannot be laid out or initialised.
    """
    snapshot, name = prepared.snapshot, prepared.step.name
    uses = (snapshot.provider_uses or {}).items()
    sources = {key: source for key, source in uses if key not in snapshot.provider_sources}
    with services.files.private(evidence) as directory:
        work_dir = services.workdirs.scratch_copy(
            prepared.work_dir, directory, extra=query.files(sources) if query else {}
        )

        result = patiently(services, name, "readback", Init(), work_dir, evidence, "query-init")
        if result.exit_code != 0:
            raise failure(result, "readback", services.stop)
        yield ScratchRoot(services, name, work_dir, prepared.engine, evidence)


def keep_state(
    services: Services, prepared: PreparedStep, state: PulledState, evidence: Path, name: str
) -> None:
    """
    Keep a provider state in the file ``name`` of an attempt, durably; encrypted if the step's state
    is, so that we store nothing in clear that the engine does not.
    """
    text = state.raw.decode()
    if state_encryption(services, prepared):
        directory = services.files.inside(evidence, f"encrypt-{services.ids.entry_id()[:8]}")
        with scratch_root(services, prepared, directory) as root:
            root.set_state(state.raw)
            text = Path(root.work_dir.location).read_text()
    services.files.write(evidence / name, text)


def read_state_file(
    services: Services, prepared: PreparedStep, file: Path, evidence: Path
) -> PulledState:
    """
    Return the provider state in a file that the engine wrote for a step, decrypted with the step's
    key if necessary. Raises EngineFailed if it cannot be read.
    """
    raw = file.read_bytes()
    if not is_encrypted(raw):
        return services.engine.state_in_file(file)
    directory = services.files.inside(evidence, f"decrypt-{services.ids.entry_id()[:8]}")
    with scratch_root(services, prepared, directory) as root:
        return root.decrypted(raw)


class QueryContext(Struct, frozen=True):
    """
    The context of a query: the step and its recorded inputs, None for the reason ``why`` if
    unavailable. ``evidence`` is the directory of an attempt, for the logs.
    """

    services: Services
    prepared: PreparedStep
    inputs: StepInputs | None
    evidence: Path
    why: str = ""

    def scope(self, objects: Iterable[ObjectRef]) -> Scope:
        """
        Return the current scope of the providers of these objects.
        """
        services = self.services
        return scope(
            {ref.provider for ref in objects},
            services.environ,
            self.prepared.configured,
            partial(digest, key=services.key),
        )

    def scope_change(self, record: OperationRecord, provider: str) -> str | None:
        """
        Return why a provider (local name) may be queried elsewhere than where it made the objects
        of a record; None if nothing says so.
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


def ask_provider(
    context: QueryContext, inputs: StepInputs, evidence: Path, query: ProviderQuery
) -> QueryResult:
    """
    Make a query once, with these inputs, and return the answers; if the provider cannot be queried,
    they are unknown, with the reason. Raises Stopped if a signal came.
    """
    services = context.services
    services.report_phase(context.prepared.step.name, "readback")
    try:
        with scratch_root(services, context.prepared, evidence, query) as root:
            result = root.ask(query, inputs)
    except (EngineFailed, Invalid) as exc:
        result = unanswered(query, services.masker.mask(exc.message).splitlines()[0])
    services.check_not_stopped()
    return result


# Before a create, look: what a plan would create is asked for before the marker.
#
# Only where the step declares an ``identity`` or a ``search`` of it; that costs one engine plan
# more.


def look_before_create(
    session: Session, context: QueryContext, plan: CheckedPlan, inputs: StepInputs
) -> CheckedPlan:
    """
    Return the plan, with the objects to create that are proven absent.

    Raises Refused if one of them exists. Without an answer an object is created nevertheless, and
    its absence counts as not proven.
    """
    services, step = context.services, context.prepared.step
    if not (step.identity or step.search):
        return plan
    lookup = ReferenceScope(session.deployment, step, inputs=inputs).look_up
    query, queries = doubt_queries(step, to_be_created(plan.journal.planned), lookup, plan.before)
    if not (query.imports or query.searches):
        return plan
    directory = services.files.inside(context.evidence, "before-create")
    result = ask_provider(context, inputs, directory, query)

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
        digest=partial(digest, key=services.key),
    )
    _check_absent(services, context.prepared, before)
    for address, why in before.unknown.items():
        services.note(
            f"{address}: the provider could not tell whether it exists already: {why}",
            step=step.name,
        )
    return replace(plan, journal=plan.journal.with_absent(before.absent))


def _check_absent(services: Services, prepared: PreparedStep, before: ObjectsBefore) -> None:
    if not before.exist:
        return
    records = services.store.records()
    target = str(prepared.target)
    problems, hint = [], "give it another name"
    for address, ids in before.exist.items():
        owner, is_free = whose(records, parse_address(address).type, ids)
        problems.append(f"{address}: {' and '.join(ids)} exists already, and {owner}")
        if is_free and "`" not in hint:
            imported = shlex.join(("orchestrator", "import", target, address, ids[0]))
            hint += f"; or take it over: `{imported}`"
    raise Refused(
        "exists_already",
        f"{prepared.step.name}: {'; '.join(problems)}",
        hint=hint,
        phase="readback",
    )
