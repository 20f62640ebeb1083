"""
A step's plan in an approval, and the comparison of a plan with one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_plan import Direction
from orchestrator.app.steps.planned_step import CheckedPlan
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.blueprint.blueprint import CommandHook, Deployment, Hook
from orchestrator.domain.blueprint.inputs import StepInputs, digest
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.stored_deployment import content_digest
from orchestrator.domain.plan.approval import Approval, ApprovedStep, approved_objects, not_covered
from orchestrator.domain.provider_query.scope import scope, without_identity
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.secrets import without_leaves
from orchestrator.domain.target import hook_of
from orchestrator.domain.text import Json, ValuePath
from orchestrator.errors import OrchestratorError, PlanChanged

#: References to what a run makes: of other values by the time it is applied.
_OF_OTHERS = ("step_output", "own_output", "run_id")
#: Variables by which the environment says where a provider works.
_PLACE = re.compile("REGION|ENDPOINT|PROJECT|SUBSCRIPTION|TENANT")


def approved_step(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs,
    plan: CheckedPlan,
) -> ApprovedStep:
    """
    Return a plan in the form of an approval.
    """
    return ApprovedStep(
        step=prepared.step.name,
        status="unchanged" if plan.empty else "planned",
        objects=approved_objects(plan.content.objects, services.key) if plan.content else (),
        module=prepared.snapshot.digest,
        lock_file=_lock_digest(services, prepared),
        given=_blueprint_digests(services, prepared, inputs, plan.direction),
        lineage=plan.before.lineage or None,
    )


def check_approved(
    services: Services,
    deployment: Deployment,
    approval: Approval,
    prepared: PreparedStep,
    inputs: StepInputs,
    plan: CheckedPlan,
) -> None:
    """
    Raise PlanChanged if the plan does anything that the approval does not cover, or lacks what was
    approved because it was made from other sources. The declared hooks of a step are approved with
    it.
    """
    name = prepared.step.name
    if hook_of(name) is not None:
        return
    approved = approval.step(name)
    if plan.empty and (approved is None or approved.status != "planned"):
        return
    if approved is None or approved.status == "deferred":
        why = "it was deferred: what it changes was not shown"
        differences = [why if approved else "it was not in the plan that was approved"]
    else:
        planned = plan.content.objects if plan.content else ()
        differences = _other_sources(services, approved, prepared, inputs, approval.command)
        # A serial that moved alone does not count, nor a state that this run has created.
        if approved.lineage not in (None, plan.before.lineage):
            differences.append("the provider state is another one")
        differences += not_covered(approved, planned, services.key)
    if differences:
        raise _changed(deployment, approval, name, differences)


def check_sources(
    services: Services,
    deployment: Deployment,
    approval: Approval,
    prepared: PreparedStep,
    inputs: StepInputs | None,
) -> None:
    """
    Raise PlanChanged if a step with approved changes would be planned from other sources: known
    before the first step is applied. ``inputs`` are None while they need outputs.
    """
    name = prepared.step.name
    approved = approval.step(name)
    if approved is None or approved.status != "planned":
        return
    differences = _other_sources(services, approved, prepared, inputs, approval.command)
    if differences:
        raise _changed(deployment, approval, name, differences)


def _changed(
    deployment: Deployment, approval: Approval, step: str, differences: Sequence[str]
) -> PlanChanged:
    mode = ("--destroy",) if approval.command == "destroy" else ()
    again = command_line(deployment, "plan", *mode, "--out", "FILE")
    return PlanChanged(
        f"{step}: its plan is not what was approved: {'; '.join(differences)}",
        hint=f"plan it again and have that approved: {again}",
    )


def _other_sources(
    services: Services,
    approved: ApprovedStep,
    prepared: PreparedStep,
    inputs: StepInputs | None,
    direction: Direction,
) -> list[str]:
    """
    Return the sources of a plan that differ from the reviewed ones.
    """
    compared = [
        ("the module", approved.module, prepared.snapshot.digest),
        ("the lock file", approved.lock_file, _lock_digest(services, prepared)),
    ]
    if inputs is not None:
        current = _blueprint_digests(services, prepared, inputs, direction)
        compared += [
            (name, approved.given.get(name), current.get(name))
            for name in {**approved.given, **current}
        ]
    return [f"{what} is another one" for what, shown, now in compared if shown != now]


def _blueprint_digests(
    services: Services, prepared: PreparedStep, inputs: StepInputs, direction: Direction
) -> dict[str, str]:
    """
    Return digests of what the blueprint sets: module inputs and provider configuration, which a
    plan need not show, where the environment has the providers work, and the hook that comes before
    a destroy. Credentials are left out, because an apply may use others; so are outputs of other
    steps, which their own plans cover.
    """

    def own(values: Mapping[str, object], templates: Mapping[str, Template]) -> list[str]:
        return [
            name
            for name in values
            if name not in templates
            or all(reference.kind not in _OF_OTHERS for reference in templates[name].references)
        ]

    hidden: dict[str, set[ValuePath]] = defaultdict(set)
    for name, *path in inputs.secrets:
        hidden[str(name)].add(tuple(path))
    digests = {
        f"input {name}": digest(without_leaves(inputs.values[name], hidden[name]), services.key)
        for name in own(inputs.values, prepared.step.inputs)
    }
    configured = {
        name: prepared.configured[name]
        for name in own(prepared.configured, prepared.step.providers)
    }

    def configuration(value: Json) -> str:
        return digest(without_identity(value), services.key)

    hook = prepared.step.before_destroy
    if direction == "destroy" and hook is not None:
        digests["before_destroy"] = digest(_declared(services, hook), services.key)
    providers = prepared.snapshot.all_provider_sources.values()
    places = {name: text for name, text in services.environ.items() if _PLACE.search(name)}
    return digests | dict(scope(providers, places, configured, configuration))


def _declared(services: Services, hook: Hook) -> Json:
    """
    Return a hook as the blueprint declares it, a module with its content.
    """
    if isinstance(hook, CommandHook):
        return {"command": hook.argv.raw, "environment": hook.environment.raw}
    module = None
    with suppress(OrchestratorError):  # one that is gone is told of where it is to be applied
        module = services.workdirs.snapshot(hook.root.module).digest
    return {
        "module": module,
        "inputs": {name: template.raw for name, template in hook.root.inputs.items()},
    }


def _lock_digest(services: Services, prepared: PreparedStep) -> str | None:
    lock = services.workdirs.lock_file(prepared.work_dir)
    return None if lock is None else content_digest(lock)
