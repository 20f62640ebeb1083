"""
``before_destroy``: what a step declares to be done before it is destroyed. If that goes wrong,
nothing of the step is destroyed.

Each destroy does it again for as long as all that it is done for is there; once a destroy has
deleted some of it, the work cannot be repeated, and the next destroy goes on without.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.app.run.hooks import Performance, check_known
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.pipeline import Done
from orchestrator.domain.blueprint.blueprint import ModuleAction
from orchestrator.domain.record.hook_entries import described, is_under_way, skipped
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.recovery.command_line import command_line


def roots_before(crew: StepRunner, steps: Iterable[str]) -> list[str]:
    """
    The roots of the modules that these steps will need before they are destroyed, as far as they
    can be made ready now.
    """
    found = []
    for name in steps:
        action, record = crew.deployment.steps[name].before_destroy, crew.steps.records[name]
        if isinstance(action, ModuleAction) and record is not None and _is_due(crew, record):
            found.append(action.root.name)
    return [root for root in found if not crew.steps.needs_outputs_first(root)]


def tell_last_work(crew: StepRunner, steps: Iterable[str]) -> None:
    """
    Say, before anything is approved, what will be done before which step is destroyed.
    """
    for name in steps:
        action, record = crew.deployment.steps[name].before_destroy, crew.steps.records[name]
        if action is None or record is None:
            continue
        done = is_under_way(record)
        if crew.order.skip_before_destroy is not None:
            crew.services.note(
                f"before_destroy is left out ({crew.order.skip_before_destroy}): "
                f"{described(action)}",
                level="warning",
                step=name,
            )
        elif done is not None:
            crew.services.note(
                f"before_destroy is not repeated: it was {done.verdict} in run {done.run_id}, and "
                "some of what it was for has been deleted since",
                step=name,
            )
        else:
            crew.services.note(f"before it is destroyed: {described(action)}", step=name)


def last_work(crew: StepRunner, name: str) -> Done | None:
    """
    Do it, for a step whose destroy is approved; None where there is nothing to be done.
    """
    action, known = crew.deployment.steps[name].before_destroy, crew.steps.records[name]
    if action is None or known is None:
        return None
    reason = crew.order.skip_before_destroy
    if reason is not None:
        left_out = skipped(
            known, described(action), crew.session.run_id, crew.services.stamp(), reason
        )
        entry = known.model_copy(update={"before_destroy": left_out})
        return Done(record=entry, state=None, mutated=False, fault=None)
    if not _is_due(crew, known):
        return None
    if crew.order.repeat is None:
        options = ("--step", name, "--repeat-before-destroy", "WHY")
        check_known(known.before_destroy, name, command_line(crew.deployment, "destroy", *options))
    return Performance(crew, name, "before_destroy", action, reason=crew.order.repeat).run()


def _is_due(crew: StepRunner, record: OperationRecord) -> bool:
    return crew.order.skip_before_destroy is None and is_under_way(record) is None
