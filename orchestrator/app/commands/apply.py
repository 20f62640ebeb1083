"""
``apply``: bring every selected step to what its module says, upstreams first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator.app.inspection.run_lookup import refusal
from orchestrator.app.run.orphans import tell_orphans
from orchestrator.app.run.prepared_steps import PinOf, as_it_is, as_recorded
from orchestrator.app.run.request import Order
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import keep_deployment, keep_steps, vouched
from orchestrator.app.schedule import Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_children
from orchestrator.app.steps.pipeline import Done, Pipeline
from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.events.events import StepRetried
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import READY
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.recovery.rerun_rules import LeftAlone, Obstacle
from orchestrator.errors import Fenced, InDoubt, OrchestratorError, Refused, Spooled

#: Says of a step why it is left alone, or what forbids to work on it; None: it is worked on.
Judge = Callable[[str, OperationRecord | None], LeftAlone | Obstacle | None]


@dataclass(frozen=True, slots=True)
class Course:
    """
    How an applying command goes about its steps: what each is laid out from, and which it leaves.
    """

    pin: PinOf
    judge: Judge


def apply(services: Services, deployment: Deployment, order: Order) -> int:
    """
    Apply the selected steps from their modules as they are. Returns the exit code.
    """
    judge = unfinished if order.unfinished else every
    return run(services, deployment, order, partial(work, course=Course(as_it_is, judge)))


def every(_step: str, _record: OperationRecord | None) -> None:
    """
    No step is left alone.
    """


def unfinished(_step: str, record: OperationRecord | None) -> LeftAlone | None:
    """
    What is ok already is left alone, unless it was compensated since, or that was tried.
    """
    if record is None or record.status not in READY or record.compensation is not None:
        return None
    return LeftAlone("already ok")


def work(crew: StepRunner, selected: Sequence[str], *, course: Course) -> None:
    """
    Apply the steps of a run that are not left alone, upstreams first.
    """
    graph, bench = crew.deployment.graph, crew.steps
    crew.read_records()
    keep_deployment(crew)
    todo = _divided(crew, selected, course)
    check_children(crew.deployment, bench.records, todo)
    upstreams = {upstream for step in todo for upstream in graph.needs(step)} - set(todo)
    support = [step for step in upstreams if bench.status(step) in READY]
    failures = bench.prepare_all(
        [step for step in support if not bench.needs_outputs_first(step)], as_recorded
    )
    failures |= bench.prepare_all(
        [step for step in todo if not bench.needs_outputs_first(step)], course.pin
    )
    failures |= keep_steps(crew, [step for step in todo if step not in failures], course.pin)
    doubts = crew.settle_all() | _uncertain(crew, todo)
    if doubts or (failures and crew.order.skip_preflight is None):
        crew.end_before_work(todo, failures | doubts)
        return
    missing = upstreams - set(support)
    unstarted = run_steps(
        graph.subset({*todo, *upstreams}),
        partial(_apply_step, crew, course),
        jobs=crew.order.jobs,
        stop=crew.services.stop,
        on_failure=crew.order.on_failure,
        done=support,
        missing=missing,
    )
    crew.report_unstarted(unstarted)
    tell_orphans(crew)
    blocked = {up for row in unstarted for up in row.blocked_by if up in missing}
    if blocked:
        raise Refused(
            "upstream",
            f"not ready and not selected: {', '.join(sorted(blocked))}",
            hint=command_line(
                crew.deployment, "apply", *(f"--step={up}+" for up in sorted(blocked))
            ),
        )


def _divided(crew: StepRunner, selected: Sequence[str], course: Course) -> list[str]:
    """
    The steps to work on; the others are reported. Refused where one is forbidden, with all of them.
    """
    todo: list[str] = []
    forbidden: list[Obstacle] = []
    for step in selected:
        match course.judge(step, crew.steps.records.get(step)):
            case None:
                todo.append(step)
            case LeftAlone(why):
                crew.end_skipped(step, why, **vouched(crew, step))
            case Obstacle() as obstacle:
                forbidden.append(obstacle)
    if forbidden:
        raise refusal(forbidden)
    return todo


def _uncertain(crew: StepRunner, steps: Sequence[str]) -> dict[str, OrchestratorError]:
    """
    The steps of which a doubt or an unsaved provider state must be settled first.
    """
    found: dict[str, OrchestratorError] = {}
    for step in steps:
        try:
            crew.check_certain(step)
        except InDoubt as exc:
            found[step] = exc
    return found


def _apply_step(crew: StepRunner, course: Course, name: str) -> Outcome:
    """
    One step to its end, tried again as its ``retry`` allows.

    What an attempt did is told even if a later one could not begin.
    """
    services = crew.services
    started, attempt = services.clock.monotonic(), 1
    step = crew.deployment.steps[name]
    done: Done | None = None
    try:
        if name not in crew.steps.prepared:
            crew.steps.prepare(name, course.pin)
            crew.settle(name)
            crew.check_certain(name)
        inputs = crew.steps.inputs(step)
        while True:
            done = Pipeline(
                crew.session,
                crew.steps.prepared[name],
                inputs,
                crew.order.wishes,
                verb="apply",
                attempt=attempt,
            ).run()
            crew.steps.know(name, done.record, done.state)
            if not _again(step, done, attempt) or not _paused(crew, name, done, attempt):
                break
            attempt += 1
    except OrchestratorError as exc:
        if done is None or isinstance(exc, Spooled | Fenced):
            return crew.end_with_error(name, started, exc, attempt)
        services.note(f"attempt {attempt}: {exc.message}", level="warning", step=name)
        crew.session.fail(exc.exit_code)
    return crew.end_with_record(name, started, done, attempt)


def _paused(crew: StepRunner, name: str, done: Done, attempt: int) -> bool:
    """
    Whether to go on with the next attempt after a pause; not if somebody asked us to stop.
    """
    services = crew.services
    services.sink.emit(
        StepRetried(
            at=services.clock.now(),
            step=name,
            phase="apply",
            attempt=attempt + 1,
            reason=done.fault.summary if done.fault else "",
        )
    )
    services.pause(float(2**attempt))
    return not services.stop.stopping


def _again(step: Step, done: Done, attempt: int) -> bool:
    """
    Whether the step's ``retry`` covers this failure: every error matches, and nothing is in doubt.
    """
    rule, fault = step.retry, done.fault
    if rule is None or attempt >= rule.attempts or done.record.resources.in_doubt:
        return False
    if fault is None or fault.code != "engine_failed":
        return False
    texts = [f"{found.summary}\n{found.detail}" for found in fault.diagnostics]
    return bool(texts) and all(any(re.search(p, text) for p in rule.on) for text in texts)
