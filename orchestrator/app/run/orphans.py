"""
Orphans in a run: they are reported, and what they need is not destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from orchestrator.app.inspection.read_context import alive_orphans
from orchestrator.app.run.prepared_steps import PreparedSteps, backend_only, steps_to_read
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.guards import check_state
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import hook_of
from orchestrator.errors import Busy, EngineFailed, InDoubt, Invalid, OrchestratorError, Refused


def note_orphans(runner: StepRunner) -> None:
    """
    Report the orphans that are alive and not touched by this run.
    """
    services = runner.services
    orphans = alive_orphans(runner.deployment, runner.steps.records.values())
    hooks = [str(r.target) for r in orphans if hook_of(r.target.step)]
    alive = [str(r.target) for r in orphans if hook_of(r.target.step) is None]
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


def check_orphans(runner: StepRunner, to_destroy: Sequence[str]) -> None:
    """
    Raise Refused if a destroy would remove what a remaining orphan needs, by its record.
    """
    destroyed = {
        step for step in to_destroy if runner.steps.status(step) not in (None, *NOTHING_THERE)
    }
    orphans = alive_orphans(runner.deployment, runner.steps.records.values())
    staying = [r for r in orphans if r.target.step not in to_destroy]
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


# Steps that are recorded as gone, held against their provider state before that is believed.
#
# Law: a record that has gone back is noticed. No provider is needed for it.


class GoneSteps(Struct, frozen=True):
    """
    The provider states of steps that are recorded as gone or not at all: those without objects
    (``empty``), refusals for those with objects (``alive``), and errors of those that could not be
    read (``unread``).
    """

    empty: Sequence[str]
    alive: dict[str, OrchestratorError]
    unread: dict[str, OrchestratorError]


def look_at_gone_steps(steps: PreparedSteps, gone: Sequence[str]) -> GoneSteps:
    """
    Pull the provider states of steps that are recorded as gone, or not at all.
    """
    unread = steps.prepare_all(gone, backend_only)
    alive: dict[str, OrchestratorError] = {}
    for name in gone:
        if name in unread:
            continue
        target = str(steps.deployment.target(name))
        try:
            root = steps.prepared[name].work_dir
            state = pull(steps.services, root, steps.evidence(name), "pull-gone")
            reconcile = steps.prepared[name].reconcile
            check_state(target, steps.records.get(name), state, reconcile)
        except Refused as exc:
            alive[name] = exc
        except (Busy, EngineFailed, InDoubt, Invalid) as exc:
            unread[name] = exc
    return GoneSteps([name for name in gone if name not in {*alive, *unread}], alive, unread)


def check_gone_steps(steps: PreparedSteps, names: Iterable[str]) -> dict[str, OrchestratorError]:
    """
    Return a refusal for each step that is recorded as gone and whose provider state holds objects.
    A state that cannot be read causes a note only; an empty one counts as reconciled, in case the
    record has gone back.
    """
    states = look_at_gone_steps(steps, [n for n in names if steps.status(n) in NOTHING_THERE])
    for name, error in states.unread.items():
        why = error.message.splitlines()[0]
        steps.services.note(
            f"recorded as {steps.status(name)}; its provider state could not be read: {why}",
            level="warning",
            step=name,
        )
    for name in states.empty:
        steps.services.note_reconciled(steps.deployment.target(name))
    return states.alive


def verify_gone(services: Services, deployment: Deployment, names: Iterable[str]) -> None:
    """
    Raise Refused if the provider state of a step that is recorded as gone holds objects or cannot
    be read.
    """
    with steps_to_read(services, deployment, jobs=4, allow_engine_change=True) as steps:
        states = look_at_gone_steps(steps, [n for n in names if steps.status(n) in NOTHING_THERE])
    errors = {**states.alive, **states.unread}
    if errors:
        where = f"{deployment.blueprint}/{deployment.environment}"
        reasons = "; ".join(exc.message.splitlines()[0] for exc in errors.values())
        hint = next(iter(errors.values())).hint
        raise Refused("expectation", f"{where} is not known to be destroyed: {reasons}", hint=hint)
