"""
What a run says of the targets that left the blueprint, and what it must not take from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.inspection.orphans import alive_orphans
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of
from orchestrator.errors import Refused


def note_orphans(runner: StepRunner) -> None:
    """
    Name the targets that are alive and no longer in the blueprint, as far as this run does not
    touch them.
    """
    services, orphans = runner.services, _orphans(runner)
    hooks = [str(r.target.target) for r in orphans if hook_of(r.target.step)]
    alive = [str(r.target.target) for r in orphans if hook_of(r.target.step) is None]
    if hooks:
        services.note(
            f"made by actions of steps that are no longer in the blueprint: {', '.join(hooks)}",
            hint="to destroy one of them: "
            + command_line(
                runner.deployment, "destroy", "--orphaned", "--step", hooks[0].split("/", 2)[2]
            ),
            level="warning",
        )
    if runner.options.orphaned:
        if not runner.deployment.orphans:
            services.note("nothing is orphaned: every step that is alive is in the blueprint")
    elif alive:
        services.note(
            f"still recorded as alive, and no longer in the blueprint: {', '.join(alive)}",
            hint=f"to destroy them: {command_line(runner.deployment, 'destroy', '--orphaned')}",
            level="warning",
        )


def check_orphans(runner: StepRunner, going: Sequence[str]) -> None:
    """
    Refused where a destroy would take away what an orphan that stays needs, by its record.
    """
    destroyed = {step for step in going if runner.steps.status(step) not in (None, *NOTHING_THERE)}
    staying = [r for r in _orphans(runner) if r.target.step not in going]
    needed = {
        r.target.step: sorted(destroyed & set(r.needs)) for r in staying if destroyed & set(r.needs)
    }
    if needed:
        needs = "; ".join(f"{name} needs {', '.join(on)}" for name, on in sorted(needed.items()))
        raise Refused(
            "dependents",
            f"no longer in the blueprint, still alive: {needs}",
            hint=f"destroy them first: {command_line(runner.deployment, 'destroy', '--orphaned')}",
        )


def _orphans(runner: StepRunner) -> list[OperationRecord]:
    records = [record for record in runner.steps.records.values() if record is not None]
    return alive_orphans(runner.deployment, records)
