"""
Imports existing objects into the provider state of a step, at addresses of its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.planned_step import CheckedPlan, plan_step, warn_of_shared_objects
from orchestrator.app.surgery.state_operation import StateOperation, operate
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.provider_query.query import ProviderQuery
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.transitions.surgery import managing_address
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, Refused
from orchestrator.ports.engine import Import


def plan_imports(
    runner: StepRunner, name: str, inputs: StepInputs, imports: Mapping[str, str]
) -> CheckedPlan:
    """
    Return the plan of imports (ids by address), limited to these addresses and what they need. The
    caller removes its file.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    place = f"imports-{services.ids.entry_id()[:8]}"
    with services.workdirs.with_files(prepared.work_dir, ProviderQuery(imports).files({})):
        return plan_step(
            services,
            prepared,
            inputs,
            replace(runner.options.plan, targets=tuple(imports)),
            direction="apply",
            evidence=services.files.inside(runner.steps.evidence(name), place),
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
    if not approved and _is_unproven(runner, name, address, object_id):
        shown += f"; {_consequence(runner, name, inputs, address, object_id)}"
    lock_timeout = runner.options.plan.lock_timeout
    return operate(
        runner,
        name,
        StateOperation(
            command="import",
            shown=shown,
            request=lambda file: Import(address, object_id, file, lock_timeout),
            planned=(PlannedAction(address=address, action="import"),),
            inputs=inputs,
            check=partial(check_unmanaged, {address: object_id}),
            approved=approved,
        ),
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


def _is_unproven(runner: StepRunner, name: str, address: str, object_id: str) -> bool:
    record = runner.steps.prepared[name].record
    doubts = [d for d in record.resources.in_doubt if d.address == address] if record else []
    return bool(doubts) and not any(doubt.is_proven(object_id) for doubt in doubts)


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
