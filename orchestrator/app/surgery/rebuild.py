"""
Rebuilds a provider state that lost objects: imports all recorded objects that it lacks by one plan.

Besides imports, the plan may only update imported objects in place, to write what an import cannot
read. It creates, replaces and deletes nothing, and does not touch objects that the state holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

from msgspec import Struct

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.app.surgery.imports import check_unmanaged, import_object, plan_imports
from orchestrator.app.surgery.state_operation import (
    StateOperation,
    approve,
    operate,
)
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.blueprint import Step
from orchestrator.domain.blueprint.inputs import ReferenceScope, StepInputs
from orchestrator.domain.blueprint.references import Lookup, Unresolvable
from orchestrator.domain.provider_query.doubt_query import import_id
from orchestrator.domain.provider_query.query import refused_imports
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import ObjectRef, PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.transitions.doubts import lost_objects
from orchestrator.domain.transitions.reconciliation import not_taken_back
from orchestrator.errors import EngineFailed, StateDamaged
from orchestrator.ports.engine import Apply


class _Rebuild(Struct, frozen=True):
    """
    ``plan`` imports ``imports`` (ids by address) and changes nothing else; None if it would, or if
    nothing can be imported. ``obstacles`` say why the other objects cannot be imported.
    """

    plan: CheckedPlan | None
    imports: Mapping[str, str]
    obstacles: Mapping[str, str]


def rebuild_state(runner: StepRunner, name: str) -> StepResult | None:
    """
    Import every recorded object that a prepared step's provider state lacks. Returns the result,
    None if there was nothing to do. Objects that cannot be imported are listed and in doubt.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    record = runner.steps.recorded(name)
    state = _sound_state(runner, name)
    missing = lost_objects(record, state)
    if not missing.importable and not missing.obstacles:
        services.note("the provider state holds every recorded object", step=name)
        return None
    inputs = runner.steps.values.recorded_inputs(prepared)
    lookup = ReferenceScope(runner.deployment, prepared.step, inputs=inputs).look_up
    imports = {
        address: import_id_of(prepared.step, ref, lookup)
        for address, ref in missing.importable.items()
    }
    result: StepResult | None = None
    with _planned(runner, name, inputs, imports) as rebuild:
        why_not = {**missing.obstacles}
        why_not |= {missing.importable[at]: why for at, why in rebuild.obstacles.items()}
        for ref, why in why_not.items():
            shown = f"{ref.address} ({ref.id})" if ref.id else ref.address
            services.note(f"cannot be imported: {shown}: {why}", level="warning", step=name)
        if rebuild.plan is not None:
            result = _carry_out(runner, name, inputs, rebuild.plan, rebuild.imports)
        elif rebuild.imports:
            result = _one_by_one(runner, name, rebuild.imports)
    if result is not None and result.fault is not None:
        return result
    if why_not:
        record = runner.steps.recorded(name)
        runner.record(name, not_taken_back(record, why_not, services.stamp()))
    return result


def import_together(runner: StepRunner, name: str, imports: Mapping[str, str]) -> StepResult | None:
    """
    Import objects (ids by address) into the provider state of a prepared step by one plan and one
    approval; one by one if that plan would do more.
    """
    inputs = runner.steps.values.recorded_inputs(runner.steps.prepared[name])
    with _planned(runner, name, inputs, imports) as planned:
        if planned.plan is not None and not planned.obstacles:
            return _carry_out(runner, name, inputs, planned.plan, imports)
    return _one_by_one(runner, name, imports)


def _sound_state(runner: StepRunner, name: str) -> PulledState:
    """
    Return the current provider state. A damaged file of a local backend is set aside first, because
    it prevents imports.
    """
    services, work_dir = runner.services, runner.steps.prepared[name].work_dir
    evidence = runner.steps.evidence(name)
    try:
        return pull(services, work_dir, evidence, "pull-rebuild")
    except StateDamaged as exc:
        file = services.workdirs.damaged_state(work_dir)
        if file is None:
            raise StateDamaged(
                exc.message,
                hint=f"put what is stored at {work_dir.location} aside, then do this again",
                phase=exc.phase,
            ) from exc
    approve(runner, name, f"set the damaged provider state aside ({file})")
    backup = services.workdirs.set_aside(file, evidence)
    services.note(f"the damaged provider state is kept as {backup}", step=name)
    return pull(services, work_dir, evidence, "pull-aside")


def import_id_of(step: Step, ref: ObjectRef, lookup: Lookup) -> str:
    """
    Return the import id of an object: the step's declared identity, else its own id.
    """
    declared = None
    with contextlib.suppress(Unresolvable):
        declared = import_id(step, parse_address(ref.address), lookup)
    return declared or ref.id or ""


@contextlib.contextmanager
def _planned(
    runner: StepRunner, name: str, inputs: StepInputs, imports: Mapping[str, str]
) -> Iterator[_Rebuild]:
    """
    Yield the plan of the imports; its file is removed at the end.

    An import that fails, or would replace its object, fails the whole plan, which is then made
    again without it. Raises EngineFailed if the plan fails for another reason.
    """
    importable, obstacles = dict(imports), dict[str, str]()
    plan: CheckedPlan | None = None
    try:
        while importable:
            plan, refused = _try_plan(runner, name, inputs, importable)
            if not refused:
                break
            obstacles |= refused
            importable = {
                address: id_ for address, id_ in importable.items() if address not in refused
            }
        only_imported = plan is not None and all(
            item.action in ("import", "update") and item.address in importable
            for item in plan.journal.changes
        )
        yield _Rebuild(plan if only_imported else None, importable, obstacles)
    finally:
        if plan is not None:
            plan.file.unlink(missing_ok=True)


def _try_plan(
    runner: StepRunner, name: str, inputs: StepInputs, imports: Mapping[str, str]
) -> tuple[CheckedPlan | None, dict[str, str]]:
    """
    Return the plan of these imports, or why some of them fail.

    If an error names none of them, each is tried alone. Raises EngineFailed if all fail so: then
    the reason is another.
    """
    try:
        plan = plan_imports(runner, name, inputs, imports)
    except EngineFailed as exc:
        diagnostics = [item for item in exc.diagnostics if isinstance(item, Diagnostic)]
        refused = refused_imports(imports, diagnostics)
        if not refused and len(imports) == 1:
            refused = dict.fromkeys(imports, exc.message.splitlines()[0])
        elif not refused:
            for address, id_ in imports.items():
                alone, why = _try_plan(runner, name, inputs, {address: id_})
                if alone is not None:
                    alone.file.unlink(missing_ok=True)
                refused |= why
            if len(refused) == len(imports):
                raise
        return None, refused
    refused = {
        item.address: "its import would replace it"
        for item in plan.journal.changes
        if item.action == "replace" and item.address in imports
    }
    if not refused:
        return plan, {}
    plan.file.unlink(missing_ok=True)
    return None, refused


def _carry_out(
    runner: StepRunner,
    name: str,
    inputs: StepInputs,
    plan: CheckedPlan,
    imports: Mapping[str, str],
) -> StepResult:
    ephemeral = runner.steps.prepared[name].snapshot.has_ephemeral_variables
    updated = tuple(item for item in plan.journal.changes if item.action == "update")
    lock_timeout = runner.options.plan.lock_timeout
    return operate(
        runner,
        name,
        StateOperation(
            command="import",
            shown=_shown(imports, updated),
            request=lambda file: Apply(
                plan.file, file if ephemeral else None, lock_timeout=lock_timeout
            ),
            planned=plan.journal.changes,
            inputs=inputs,
            check=partial(check_unmanaged, imports),
            secret=(plan.file,),
        ),
    )


def _shown(imports: Mapping[str, str], updated: tuple[PlannedAction, ...]) -> str:
    text = "import " + ", ".join(f"{id_} as {address}" for address, id_ in imports.items())
    if updated:
        text += "; update in place " + ", ".join(item.address for item in updated)
    return text


def _one_by_one(runner: StepRunner, name: str, imports: Mapping[str, str]) -> StepResult | None:
    """
    Import objects one by one on one approval: a plan of all would do more than import, because
    objects they need are missing, too, and cannot be imported.
    """
    approve(runner, name, _shown(imports, ()))
    result: StepResult | None = None
    for address, id_ in imports.items():
        result = import_object(runner, name, address, id_, approved=True)
        if result.fault is not None:
            break
    return result
