"""
``backend move``: move the provider state of a step to the blueprint's backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from orchestrator.app.run.prepared_steps import recorded_source
from orchestrator.app.run.request import MoveRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.planned_step import plan_step
from orchestrator.app.steps.preparation import PreparedStep, check_recorded_state, store_once
from orchestrator.app.surgery.state_operation import nothing_there, operate
from orchestrator.domain.blueprint.blueprint import (
    Backend,
    Deployment,
    InputValue,
    ModuleHook,
    Step,
)
from orchestrator.domain.blueprint.inputs import ReferenceScope
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import (
    StoredDeployment,
    UnreadableDeployment,
    content_digest,
    parse_deployment,
    with_hook_steps,
)
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import OperationRecord, ProviderState
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.target import hook_of, step_of
from orchestrator.domain.text import Json, count
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.surgery import same_content, surgery_ended
from orchestrator.domain.values import replace
from orchestrator.errors import OrchestratorError, Refused
from orchestrator.ports.engine import Push


def move_state(services: Services, deployment: Deployment, request: MoveRequest) -> int:
    """
    Move the provider state of the selected step and return the exit code.
    """
    return run(services, deployment, request, _work)


def _work(runner: StepRunner, selected: Sequence[str]) -> None:
    runner.run(selected, partial(_move, runner), source=None)


def _move(runner: StepRunner, name: str) -> Outcome:
    steps, services = runner.steps, runner.services
    record, step = steps.records.get(name), steps.roots[name]
    if record is None or record.status in NOTHING_THERE:
        what = f"{runner.deployment.target(name)} has no provider state to move"
        hint = "its next apply writes it where the blueprint says"
        raise nothing_there(what, record, hint)
    applied = _applied(runner, record)
    applied_step = _as_applied(runner, applied, step, record)
    steps.prepare_elsewhere(applied_step, recorded_source, moving=False)
    runner.settle(name)
    runner.check_saved(name)
    old = steps.prepared[name]
    state = pull(services, old.work_dir, steps.evidence(name), "pull-old")
    check_recorded_state(services, old, state)
    new = steps.prepare_elsewhere(step, recorded_source, moving=True)
    places = [(item.work_dir.backend_type, item.work_dir.location) for item in (old, new)]
    if places[0] == places[1]:
        status = StepStatus(str(steps.status(name)))
        runner.end(name, status, reason="its provider state is there already")
        return Outcome(ready=True)
    result = move_to(runner, old, new, state, deployment=_stored_as_moved(runner, applied, step))
    if result.fault is not None:
        return runner.end_with_record(name, result)
    place = f"its provider state is {new.work_dir.backend_type} {new.work_dir.location} now"
    reason = f"{place}; {_what_a_plan_says(runner, name)}"
    return runner.end_with_entry(name, result.record, reason=reason)


def _applied(runner: StepRunner, record: OperationRecord) -> StoredDeployment:
    """
    Return the deployment that the target was applied from. Raises Refused if the operation store
    lacks it.
    """
    own = runner.steps.records.get(step_of(record.target.step))
    digest = record.deployment or (own.deployment if own else None)
    text = runner.services.store.blob(deployment_blob(digest)) if digest else None
    try:
        applied = parse_deployment(text, digest) if text and digest else None
    except UnreadableDeployment:
        applied = None
    if applied is None or _root(applied, record.target.step) is None:
        raise Refused(
            "not_kept",
            f"the operation store does not have what was applied: {record.target}",
            hint="set the backend back, apply, and move it then",
        )
    return applied


def _as_applied(
    runner: StepRunner, applied: StoredDeployment, step: Step, record: OperationRecord
) -> Step:
    """
    Return the step with the backend that it was applied with, and the inputs that the backend
    refers to.
    """
    root = _root(applied, step.name)
    assert root is not None, "it was applied from this"
    values = {
        name: InputValue(item.value, sensitive=False, origin=f"run {record.run_id}", type=item.type)
        for name, item in applied.inputs.items()
        if not item.sensitive
    }
    return replace(step, backend=root.backend, given={**runner.deployment.inputs, **values})


def _root(applied: StoredDeployment, name: str) -> Step | None:
    step, hook = applied.steps.get(step_of(name)), hook_of(name)
    if step is None or hook is None:
        return step
    action = step.compensate if hook[1] == "compensate" else step.before_destroy
    return action.root if isinstance(action, ModuleHook) else None


def _stored_as_moved(runner: StepRunner, applied: StoredDeployment, step: Step) -> str:
    """
    Store the applied deployment with the current backend and return its digest.
    """
    services = runner.services
    value = step.backend.config.resolve(ReferenceScope(runner.deployment, step).look_up).value
    backend = Backend(step.backend.type, Template(_literal(value)))
    name = step_of(step.name)
    own = applied.steps[name]
    if hook_of(step.name) is None:
        moved = replace(own, backend=backend)
    else:
        moved = with_hook_steps(
            own, lambda root: replace(root, backend=backend) if root.name == step.name else root
        )
    deployment = replace(applied, steps={**applied.steps, name: moved})
    text = deployment.to_json().encode()
    digest = content_digest(text)
    store_once(services, deployment_blob(digest), text)
    return digest


def _literal(value: Json) -> Json:
    """
    Return a value as a template without references.
    """
    match value:
        case str():
            return value.replace("${", "$${")
        case dict():
            return {key: _literal(item) for key, item in value.items()}
        case list():
            return [_literal(item) for item in value]
        case _:
            return value


def _what_a_plan_says(runner: StepRunner, name: str) -> str:
    """
    Describe whether a plan on the moved state, with the recorded module and inputs, is empty.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    try:
        plan = plan_step(
            services,
            prepared,
            runner.steps.values.recorded_inputs(prepared),
            runner.options.plan,
            direction="apply",
            evidence=runner.steps.evidence(name),
            missing_objects="doubted",
        )
    except OrchestratorError as exc:
        return f"a plan on it could not be made: {services.masker.mask(exc.message)}"
    plan.file.unlink(missing_ok=True)
    if plan.empty:
        return "the plan on it is empty"
    return f"a plan on it would change {len(plan.journal.changes) or 'outputs or state only'}"


def move_to(
    runner: StepRunner,
    old: PreparedStep,
    new: PreparedStep,
    state: PulledState,
    *,
    deployment: str,
) -> StepResult:
    """
    Write ``state``, which is that of ``old``, to the backend of ``new``. Once the new place holds
    it, the record is bound to that place and to ``deployment``, which names it; until then it stays
    bound to the old place, whatever happens.

    Raises Refused if the new place holds another state, or belongs to another target. A local file
    at the old place is kept as evidence; a remote one is left there.
    """
    where = f"{new.work_dir.backend_type} {new.work_dir.location}"

    def request(private: Path) -> Push:
        runner.services.files.write(private, state.raw.decode())
        return Push(private, runner.options.plan.lock_timeout)

    result = operate(
        runner,
        new.step.name,
        command="push",
        shown=f"move its provider state with {count(len(state.objects), 'object')} to {where}",
        request=request,
        check=partial(_check_free, new, state),
        moves=state,
        conclude=partial(_conclude, runner, new, state, deployment),
    )
    if result.fault is None:
        _keep_old(runner, old)
    return result


def _check_free(new: PreparedStep, state: PulledState, present: PulledState) -> None:
    """
    Raise Refused if the new place holds another state than the one to move: a move that was killed
    has left its copy there.
    """
    if present.lineage and not same_content(present, state):
        raise Refused(
            "unrecorded_state",
            f"{new.target}: there is a provider state at {new.work_dir.location} already, with "
            f"{count(len(present.objects), 'object')} and lineage {present.lineage}",
            hint="name another place in the blueprint, or find out which target has that state",
        )


def _conclude(
    runner: StepRunner,
    new: PreparedStep,
    state: PulledState,
    deployment: str,
    marker: OperationRecord,
    evidence: MutationEvidence,
) -> OperationRecord:
    record, written = runner.steps.recorded(new.step.name), evidence.state
    stamp = runner.services.stamp()
    if evidence.exit_code != 0 or written is None or not same_content(written, state):
        # The old place is as it was, and the record bound to it.
        return surgery_ended(marker, record, replace(evidence, state=state), stamp)
    bound = ProviderState(
        backend=new.work_dir.backend_type,
        location=new.work_dir.location,
        workspace=runner.services.workspace,
        lineage=written.lineage,
        serial=written.serial,
    )
    moved = record.model_copy(update={"provider_state": bound, "deployment": deployment})
    return surgery_ended(marker, moved, evidence, stamp)


def _keep_old(runner: StepRunner, old: PreparedStep) -> None:
    services, name = runner.services, old.step.name
    file = services.workdirs.state_file(old.work_dir)
    if file is None:
        services.note(
            f"the state at {old.work_dir.backend_type} {old.work_dir.location} is left as it was; "
            "nothing reads it any more",
            step=name,
        )
        return
    backup = services.workdirs.set_aside(file, runner.steps.evidence(name))
    services.note(f"the former state file is kept as {backup}", step=name)
