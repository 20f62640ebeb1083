"""
Selects the steps of a command, and checks whether it may start.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.run.request import RunOptions, RunRequest
from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.destroy import with_children
from orchestrator.domain.plan.approval import Approval
from orchestrator.domain.target import hook_of, shown_step
from orchestrator.domain.text import count, did_you_mean
from orchestrator.errors import ApprovalMissing, PlanChanged, Refused, Usage


def match_steps(deployment: Deployment, options: RunOptions, verb: str) -> tuple[str, ...]:
    """
    Return the steps that a request names: orphans with ``orphaned``, else steps of the blueprint.
    Some commands may name the modules of hooks instead.
    """
    takes_hooks = verb in ("destroy", "exec", "move", "reconcile")
    if takes_hooks and any(hook_of(name) for name in options.steps):
        return _match_hook_targets(deployment, options.steps)
    graph = deployment.graph
    if options.orphaned:
        graph = graph.subset(deployment.orphans)
    if options.plan.approval is not None:
        gone = [step for step in options.steps if step not in graph.order]
        if gone:
            raise PlanChanged(
                f"the blueprint has no step {', '.join(gone)} any more, which was approved",
                hint="plan it again, and have that approved",
            )
        if not options.steps:
            return ()
    return graph.select_some(options.steps, options.exclude)


def _match_hook_targets(deployment: Deployment, names: Sequence[str]) -> tuple[str, ...]:
    """
    Return the named modules of hooks. Raises Usage if steps are named beside them, or if one is not
    declared.
    """
    hooks = [root for root in deployment.steps_and_hooks() if hook_of(root)]
    for name in names:
        if hook_of(name) is None:
            raise Usage(f"{name!r} is a step: modules of hooks are selected without steps")
        if name not in hooks:
            raise Usage(
                f"the blueprint declares no module as {shown_step(name)}",
                hint=did_you_mean(name, hooks),
            )
    return tuple(dict.fromkeys(names))


def select_steps(deployment: Deployment, options: RunOptions, verb: str) -> tuple[str, ...]:
    """
    Return the steps of a request. A destroy includes the steps that they own, unless excluded.

    Raises Usage if an option that is about one step is used with more: several may have an address.
    """
    chosen = match_steps(deployment, options, verb)
    plan = options.plan
    about_one = {"--at": options.at is not None}
    if verb != "retry":  # it takes over the targets of its run, whose steps are selected with them
        about_one |= {"--replace": bool(plan.replace), "--target": bool(plan.targets)}
    used = [option for option, is_used in about_one.items() if is_used]
    if used and len(chosen) != 1:
        message = f"{used[0]} is about one step, and {len(chosen)} are selected"
        raise Usage(message, hint="name the step with --step")
    if verb != "destroy" or any(hook_of(name) for name in chosen):
        return chosen
    left_out = deployment.graph.select(options.exclude) if options.exclude else ()
    return tuple(s for s in with_children(deployment, chosen) if s not in left_out)


def check_approval(
    services: Services, deployment: Deployment, request: RunRequest, selected: Sequence[str]
) -> None:
    """
    Raise ApprovalMissing if the mutation is not approved and nobody can be asked, if an approval is
    too old, or if a protected environment was not named. Raises Refused if an approval does not
    fit. A command that changes only records needs no approval; one that widens or narrows a later
    destroy needs the environment's name nevertheless.
    """
    if request.options.plan.approval is not None:
        _check_approval_file(services, deployment, request, request.options.plan.approval)
    confirm = request.options.confirm
    if confirm is not None and confirm != deployment.environment and not deployment.protected:
        raise Usage(
            f"--confirm {confirm} does not name the environment, which is {deployment.environment}"
        )
    asked = request.options.plan.approved or request.options.interactive
    if request.mutates and not asked:
        where = f"{deployment.blueprint}/{deployment.environment}"
        raise ApprovalMissing(
            f"{request.verb} of {count(len(selected), 'step')} of {where} is not approved, and "
            "there is no terminal to ask at",
            hint="add --yes",
        )
    confirmed = request.options.confirm == deployment.environment
    if request.needs_confirmation and deployment.protected and not confirmed:
        raise ApprovalMissing(
            f"{deployment.environment} is a protected environment",
            hint=f"name it to continue: --confirm {deployment.environment}",
        )


def _check_approval_file(
    services: Services, deployment: Deployment, request: RunRequest, approval: Approval
) -> None:
    approved_scope = f"{approval.command} {approval.blueprint}/{approval.environment}"
    requested_scope = f"{request.verb} {deployment.blueprint}/{deployment.environment}"
    if (approval.project, approved_scope) != (deployment.project, requested_scope):
        raise Refused(
            "approval_of_another",
            f"the approval is of {approved_scope} in project {approval.project}, not of "
            f"{requested_scope} in {deployment.project}",
            hint="plan this with --out, and have that approved",
        )
    if not approval.is_signed(services.key):
        raise Refused(
            "approval_not_ours",
            "the approval was changed since it was made, or made with the key of another project",
            hint="its key is that of the operation store, or ORCHESTRATOR_KEY: both the same for "
            "plan and apply",
        )
    age = (services.clock.now() - approval.created_at).total_seconds()
    limit = request.options.max_age
    if limit is not None and age > limit:
        raise ApprovalMissing(
            f"the approval was made {age:.0f} s ago, which is more than {limit:.0f} s",
            hint="plan it again, and have that approved",
        )
