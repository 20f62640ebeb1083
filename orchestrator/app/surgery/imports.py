"""
Imports of existing objects into the provider state of a step, at addresses of its module: of one,
or of all that the state lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.planned_step import CheckedPlan, plan_step, warn_of_shared_objects
from orchestrator.app.surgery.state_operation import (
    approve,
    operate,
)
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.blueprint import Step
from orchestrator.domain.blueprint.inputs import ReferenceScope, StepInputs
from orchestrator.domain.blueprint.references import Lookup, Unresolvable
from orchestrator.domain.provider_query.doubt_query import import_id
from orchestrator.domain.provider_query.query import ProviderQuery, refused_imports
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import ObjectRef, PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.transitions.doubts import lost_objects
from orchestrator.domain.transitions.reconciliation import not_taken_back
from orchestrator.domain.transitions.surgery import managing_address
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, Refused, StateDamaged
from orchestrator.ports.engine import Apply, Import


def plan_imports(
    runner: StepRunner, name: str, inputs: StepInputs, imports: Mapping[str, str]
) -> CheckedPlan:
    """
    Return the plan of imports (ids by address), limited to these addresses and what they need. The
    caller removes its file.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    directory = f"imports-{services.ids.entry_id()[:8]}"
    with services.workdirs.with_files(prepared.work_dir, ProviderQuery(imports).files({})):
        return plan_step(
            services,
            prepared,
            inputs,
            replace(runner.options.plan, targets=tuple(imports)),
            direction="apply",
            evidence=services.files.inside(runner.steps.evidence(name), directory),
            check=partial(check_state, serial_may_fall=True, may_be_missing=True),
            missing_objects="doubted",
        )


def import_object(
    runner: StepRunner,
    name: str,
    address: str,
    object_id: str,
    inputs: StepInputs | None = None,
    *,
    approved: bool = False,
) -> StepResult:
    """
    Import an existing object at an address of a prepared step, by default with the recorded inputs.
    If the address is in doubt and nothing proves that this is its object, the plan of the import is
    shown before approval.

    Raises Refused if the address or the object is already managed, or if the provider showed
    another object for this address.
    """
    _check_object_in_doubt(runner, name, address, object_id)
    target = str(runner.deployment.target(name))
    warn_of_shared_objects(runner.services, name, target, {address: object_id})
    if inputs is None:
        inputs = runner.steps.values.recorded_inputs(runner.steps.prepared[name])
    shown = f"import {object_id} as {address}"
    record = runner.steps.prepared[name].record
    doubts = [d for d in record.resources.in_doubt if d.address == address] if record else []
    if not approved and doubts and not any(doubt.is_proven(object_id) for doubt in doubts):
        shown += f"; {_consequence(runner, name, inputs, address, object_id)}"
    lock_timeout = runner.options.plan.lock_timeout
    return operate(
        runner,
        name,
        command="import",
        shown=shown,
        request=lambda file: Import(address, object_id, file, lock_timeout),
        planned=(PlannedAction(address=address, action="import"),),
        inputs=inputs,
        check=partial(check_unmanaged, {address: object_id}),
        approved=approved,
    )


def _check_object_in_doubt(runner: StepRunner, name: str, address: str, object_id: str) -> None:
    record = runner.steps.prepared[name].record
    for doubt in record.resources.in_doubt if record else ():
        readback = doubt.readback
        if doubt.address != address or readback is None or readback.verdict != "exists":
            continue
        if doubt.saved is not None:
            continue  # it was found by its own id; the imported one is compared with that
        if object_id not in readback.ids:
            options = step_options(runner.deployment, name)
            forget = (*options, "--forget", address, "--reason", "WHY")
            raise Refused(
                "not_the_one_found",
                f"{address}: the provider has {' and '.join(readback.ids)} for it, not "
                f"{object_id}: the other would be left unmanaged",
                hint=f"if it is {object_id} all the same, forget what was found first: "
                + command_line(runner.deployment, "reconcile", *forget)
                + "; then `orchestrator import`",
            )


def _consequence(
    runner: StepRunner, name: str, inputs: StepInputs, address: str, object_id: str
) -> str:
    """
    Describe what an apply would do to the imported object, by the plan that is shown.
    """
    unproven = "nothing proves that it was made here, and"
    try:
        plan = plan_imports(runner, name, inputs, {address: object_id})
    except EngineFailed as exc:
        return f"{unproven} no plan of it can be made: {exc.message.splitlines()[0]}"
    plan.file.unlink(missing_ok=True)
    action = next((i.action for i in plan.journal.changes if i.address == address), "import")
    effect = "leave it as it is" if action == "import" else f"{action} it"
    return f"{unproven} an apply would {effect}"


def check_unmanaged(imports: Mapping[str, str], state: PulledState) -> None:
    """
    Raise Refused if an address of the imports (ids by address), or its object at another address,
    is in the provider state.
    """
    for address, object_id in imports.items():
        twin = managing_address(state, address, object_id)
        if twin is None and address not in state.ids:
            continue
        what = f"{object_id} is managed at {twin}"
        if twin is None:
            what = f"{address} manages {state.ids[address] or 'an object'}"
        raise Refused(
            "managed_already",
            f"{what} already: it cannot be imported again",
            hint="`orchestrator reconcile` looks at what is there",
        )


# A provider state that lost objects is rebuilt: all recorded objects that it lacks are imported by
# one plan. Besides imports, that may only update imported objects in place, to write what an import
# cannot read. It creates, replaces and deletes nothing, and touches no object that the state holds.


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
    with _planned(runner, name, inputs, imports) as (plan, imports, obstacles):
        why_not = {**missing.obstacles}
        why_not |= {missing.importable[at]: why for at, why in obstacles.items()}
        for ref, why in why_not.items():
            shown = f"{ref.address} ({ref.id})" if ref.id else ref.address
            services.note(f"cannot be imported: {shown}: {why}", level="warning", step=name)
        if plan is not None:
            result = _carry_out(runner, name, inputs, plan, imports)
        elif imports:
            result = _one_by_one(runner, name, imports)
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
    with _planned(runner, name, inputs, imports) as (plan, _, obstacles):
        if plan is not None and not obstacles:
            return _carry_out(runner, name, inputs, plan, imports)
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
) -> Iterator[tuple[CheckedPlan | None, dict[str, str], dict[str, str]]]:
    """
    Yield the plan of the imports, None if it would change more or nothing can be imported; which of
    them can be, and why the others cannot, by address. The plan's file is removed at the end.

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
            importable = {at: id_ for at, id_ in importable.items() if at not in refused}
        only_imported = plan is not None and all(
            item.action in ("import", "update") and item.address in importable
            for item in plan.journal.changes
        )
        yield plan if only_imported else None, importable, obstacles
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
        command="import",
        shown=_shown(imports, updated),
        request=lambda file: Apply(
            plan.file, file if ephemeral else None, lock_timeout=lock_timeout
        ),
        planned=plan.journal.changes,
        inputs=inputs,
        check=partial(check_unmanaged, imports),
        secret=(plan.file,),
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
