"""
``destroy``: take the selected steps down, dependents first, until they are confirmed gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from orchestrator.app.commands.retain import retain_declared, tell_overdue
from orchestrator.app.destroy.before_destroy import last_work, roots_before, tell_last_work
from orchestrator.app.destroy.hook_resources import remove
from orchestrator.app.destroy.missing_secrets import check_unavailable
from orchestrator.app.destroy.owned_steps import Following
from orchestrator.app.destroy.protected_objects import check_protected
from orchestrator.app.run.hooks import exit_codes
from orchestrator.app.run.orphans import check_orphans, tell_orphans
from orchestrator.app.run.prepared_steps import as_it_is, as_recorded, bare
from orchestrator.app.run.request import Order, selection
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_dependents
from orchestrator.app.steps.pipeline import Done, Pipeline
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.destroy.applied_graph import applied_graph
from orchestrator.domain.destroy.order import Teardown, teardown
from orchestrator.domain.record.redaction import sealed_retention
from orchestrator.domain.record.retention import retention
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status, StepStatus
from orchestrator.domain.target import action_of, step_of
from orchestrator.errors import Fenced, OrchestratorError, Refused, StoreUnavailable


def destroy(services: Services, deployment: Deployment, order: Order) -> int:
    """
    Destroy the selected steps. Returns the exit code.
    """
    if deployment.protected and order.confirm != deployment.environment:
        steps = selection(deployment, order)
        check_protected(services, deployment, steps, confirmed=order.confirm)
    return run(services, deployment, order, _work)


def _work(crew: StepRunner, selected: Sequence[str]) -> None:
    deployment, bench = crew.deployment, crew.steps
    crew.read_records()
    if any(action_of(name) for name in selected):
        remove(crew, selected)
        return
    skipped = crew.order.skip_before_destroy is not None
    plan = teardown(deployment, bench.records, selected, skip_before_destroy=skipped)
    kept = plan.kept
    statuses = {name: known.status for name, known in bench.records.items() if known}
    going = [step for step in selected if step not in kept]
    check_dependents(applied_graph(deployment.graph, bench.records), going, statuses)
    check_protected(crew.services, deployment, going, confirmed=crew.order.confirm)
    check_orphans(crew, going)
    check_unavailable(
        bench,
        plan.todo,
        crew.order.unavailable_secrets,
        before_destroy=not skipped,
    )
    unsettled = [step for step in kept if bench.status(step) is Status.RUNNING]
    failures = _prepare(crew, plan, (*plan.todo, *unsettled)) | crew.settle_all()
    if not failures:
        roots = roots_before(crew, _by_engine(plan))
        failures = {step_of(root): e for root, e in bench.prepare_all(roots, as_it_is).items()}
    fresh = [] if failures else [s for s in going if bench.status(s) is None]
    unfit = {} if failures else _unfit(crew, kept)
    _report_skipped(crew, selected, kept, (*plan.todo, *fresh, *failures, *unfit))
    if failures:
        crew.end_before_work([*plan.todo, *(s for s in failures if s in unsettled)], failures)
        return
    for step, exc in unfit.items():
        crew.end_with_error(step, crew.services.clock.monotonic(), exc, 0)
    _tell_kept(crew, kept)
    retain_declared(crew, kept)
    left = [step for step in plan.todo if not _settled_away(crew, step)]
    plan = teardown(deployment, bench.records, left, skip_before_destroy=skipped)
    inputs, lacking = _recorded_inputs(crew, _by_engine(plan))
    if lacking:
        crew.end_before_work(plan.todo, lacking)
        return
    _tell_followers(crew, plan)
    tell_last_work(crew, _by_engine(plan))
    unstarted = run_steps(
        plan.order,
        partial(_take_down, crew, plan, inputs),
        jobs=crew.order.jobs,
        stop=crew.services.stop,
        on_failure=crew.order.on_failure,
    )
    crew.report_unstarted(unstarted)
    for step in fresh:
        _confirm_absent(crew, step)
    tell_orphans(crew)


def _by_engine(plan: Teardown) -> list[str]:
    """
    The steps that are taken down by themselves: the others go with their parent.
    """
    return [step for step in plan.todo if step not in plan.follows]


def _prepare(
    crew: StepRunner, plan: Teardown, steps: Sequence[str]
) -> dict[str, OrchestratorError]:
    """
    Make the steps ready; what went wrong, by step.

    What goes with its parent needs its provider state only, unless its own run was interrupted.
    """
    light = [step for step in plan.follows if crew.steps.status(step) is not Status.RUNNING]
    heavy = [step for step in steps if step not in light]
    return crew.steps.prepare_all(heavy, as_recorded) | crew.steps.prepare_all(light, bare)


def _recorded_inputs(
    crew: StepRunner, steps: Sequence[str]
) -> tuple[dict[str, StepInputs], dict[str, OrchestratorError]]:
    """
    What each step was applied with, and what of it cannot be had any more: found before the first
    of them is destroyed.
    """
    inputs: dict[str, StepInputs] = {}
    lacking: dict[str, OrchestratorError] = {}
    for name in steps:
        try:
            inputs[name] = crew.steps.recorded_inputs(crew.steps.prepared[name])
        except OrchestratorError as exc:
            lacking[name] = exc
    return inputs, lacking


def _tell_followers(crew: StepRunner, plan: Teardown) -> None:
    """
    Say, before anything is destroyed, what goes with its parent.
    """
    for step, parent in plan.follows.items():
        waiting = () if crew.steps.status(parent) in NOTHING_THERE else (parent,)
        when = f"once {parent} is confirmed gone" if waiting else f"because {parent} is gone"
        crew.row(step, blocked_by=waiting)
        crew.services.note(
            f"goes with {parent}, which owns it: its provider state is saved and emptied {when}",
            step=step,
        )


def _unfit(crew: StepRunner, kept: Collection[str]) -> dict[str, OrchestratorError]:
    """
    What is declared to be retained and is not ok: neither destroyed nor retained.
    """
    found: dict[str, OrchestratorError] = {}
    for name in kept:
        status = crew.steps.status(name)
        if crew.deployment.steps[name].retain is not None and status not in READY:
            found[name] = Refused(
                "not_ok",
                f"{name} is to be retained, but it is {status}: only what is ok can be",
                hint="apply it first, or take `retain` out of the blueprint to destroy it",
            )
    return found


def _tell_kept(crew: StepRunner, kept: Mapping[str, str]) -> None:
    """
    Say, before anything is destroyed, what stays for something that is retained, and which reviews
    are overdue.
    """
    for step, why in kept.items():
        if retention(crew.deployment.steps[step].retain, crew.steps.records.get(step)) is None:
            crew.services.note(
                f"stays: {why}",
                hint="it counts as alive; `orchestrator retain` says for how long it may",
                level="warning",
                step=step,
            )
    tell_overdue(crew, kept)


def _confirm_absent(crew: StepRunner, name: str) -> None:
    """
    Look whether a step that was never applied is really not there: the records may be those of
    another store. Then the blueprint can be called destroyed as a whole. Where that cannot be told
    it stays pending.
    """
    started = crew.services.clock.monotonic()
    if crew.services.stop.stopping:
        crew.end_skipped(name, "never applied")
        return
    try:
        crew.steps.prepare(name, bare)
        done = Pipeline(
            crew.session,
            crew.steps.prepared[name],
            StepInputs(),
            crew.order.wishes,
            verb="destroy",
            attempt=1,
        ).confirm_absent()
    except (Refused, StoreUnavailable, Fenced) as exc:
        crew.end_with_error(name, started, exc, 0)
    except OrchestratorError as exc:
        why = crew.services.masker.mask(exc.message.splitlines()[0])
        crew.end_skipped(name, f"never applied; whether it is there could not be told: {why}")
    else:
        crew.steps.know(name, done.record)
        crew.end(
            name,
            started,
            StepStatus.ABSENT,
            sequence=done.record.sequence,
            absence=done.record.absence,
            reason="never applied",
        )


def _report_skipped(
    crew: StepRunner, selected: Sequence[str], kept: Mapping[str, str], todo: Sequence[str]
) -> None:
    for step in selected:
        if step in todo:
            continue
        status = crew.steps.status(step)
        reason = kept.get(step) or (f"already {status}" if status else "never applied")
        known = crew.steps.records.get(step)
        held = retention(crew.deployment.steps[step].retain, known) if step in kept else None
        crew.end_skipped(
            step,
            reason,
            retained=held and sealed_retention(held, crew.services.masker),
            absence=known.absence if known else None,
        )


def _settled_away(crew: StepRunner, step: str) -> bool:
    """
    Whether settling found that an interrupted destroy had reached its end.
    """
    status = crew.steps.status(step)
    if status not in NOTHING_THERE:
        return False
    crew.end_settled(step)
    return True


def _take_down(
    crew: StepRunner, plan: Teardown, inputs: Mapping[str, StepInputs], name: str
) -> Outcome:
    started = crew.services.clock.monotonic()
    try:
        crew.check_saved(name)  # it may know objects that nothing else does
        if name in plan.follows:
            crew.row(name, blocked_by=())
            done = Following(crew, name, asked=plan.follows[name] in plan.todo).run()
        else:
            done = _destroyed(crew, name, inputs[name])
        crew.steps.know(name, done.record, done.state)
    except OrchestratorError as exc:
        return crew.end_with_error(name, started, exc, 1)
    if done.record.failed_command == "before_destroy":
        for code in exit_codes(done, "before_destroy", crew.services.stop.exit_code):
            crew.session.fail(code)
    return crew.end_with_record(name, started, done, 1)


def _destroyed(crew: StepRunner, name: str, inputs: StepInputs) -> Done:
    return Pipeline(
        crew.session,
        crew.steps.prepared[name],
        inputs,
        crew.order.wishes,
        verb="destroy",
        attempt=1,
    ).run(first=partial(last_work, crew, name))
