"""
``apply``: bring every selected step to what its module says, upstreams first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from orchestrator.app.commands.retain import follow_declared
from orchestrator.app.commands.review import review
from orchestrator.app.inspection.earlier_runs import refusal
from orchestrator.app.run.attempts import with_retries
from orchestrator.app.run.composed_plan import unchanged_plans
from orchestrator.app.run.orphans import note_orphans
from orchestrator.app.run.prepared_steps import SourceOf, current_module, recorded_module
from orchestrator.app.run.request import ApplyRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.run.stored_deployment import carried_over, store_deployment, store_snapshots
from orchestrator.app.schedule import Outcome
from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_children
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.app.steps.planned_step import EnginePlan
from orchestrator.app.steps.verification import check_settings
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import READY
from orchestrator.domain.recovery.rerun_rules import Blocker, Skip
from orchestrator.errors import InDoubt, Invalid, OrchestratorError, Refused

#: Says of a step why it is left alone, or what forbids to work on it; None: it is worked on.
SkipRule = Callable[[str, OperationRecord | None], Skip | Blocker | None]


class ApplyPolicy(Struct, frozen=True):
    """
    How an applying command treats its steps: the source that each is laid out from, and the steps
    that it skips.
    """

    source: SourceOf
    rule: SkipRule


def apply(services: Services, deployment: Deployment, request: ApplyRequest) -> int:
    """
    Apply the selected steps from their modules as they are. Returns the exit code.
    """
    rule = skip_finished if request.unfinished else skip_none
    return run(
        services, deployment, request, partial(work, policy=ApplyPolicy(current_module, rule))
    )


def skip_none(_step: str, _record: OperationRecord | None) -> None:
    """
    No step is left alone.
    """


def skip_finished(_step: str, record: OperationRecord | None) -> Skip | None:
    """
    What is ok already is left alone, unless it was compensated since, or that was tried.
    """
    if record is None or record.status not in READY or record.compensation is not None:
        return None
    return Skip("already ok")


def work(runner: StepRunner, selected: Sequence[str], *, policy: ApplyPolicy) -> None:
    """
    Apply the steps of a run that are not left alone, upstreams first.
    """
    graph, steps = runner.deployment.graph, runner.steps
    runner.read_records()
    store_deployment(runner)
    follow_declared(runner, selected)
    todo = _select_steps(runner, selected, policy)
    check_children(runner.deployment, steps.records, todo)
    upstreams = {upstream for step in todo for upstream in graph.needs(step)} - set(todo)
    support = [step for step in upstreams if steps.status(step) in READY]
    failures = steps.prepare_all(
        [step for step in support if not steps.values.needs_outputs_first(step)], recorded_module
    )
    failures |= steps.prepare_all(
        [step for step in todo if not steps.values.needs_outputs_first(step)], policy.source
    )
    failures |= store_snapshots(
        runner, [step for step in todo if step not in failures], policy.source
    )
    failures |= _check_all_settings(runner, todo)
    doubts = runner.settle_all() | _check_all_certain(runner, todo)
    if doubts or (failures and runner.options.skip_preflight is None):
        runner.end_before_work(todo, failures | doubts)
        return
    missing = upstreams - set(support)
    unchanged: Mapping[str, EnginePlan] = {}
    if not failures and not missing:
        reviewed = review(runner, todo, "apply", source=policy.source)
        if not reviewed.goes_on:
            return
        unchanged = unchanged_plans(
            steps, todo, runner.options.plan, runner.session.directory, composed=reviewed.composed
        )
    unstarted = runner.work_on(
        graph.subset({*todo, *upstreams}),
        partial(_apply_step, runner, policy, unchanged),
        done=support,
        missing=missing,
    )
    note_orphans(runner)
    blocked = {up for row in unstarted for up in row.blocked_by if up in missing}
    if blocked:
        waiting = [row.step for row in unstarted if missing.intersection(row.blocked_by)]
        options = tuple(word for step in waiting for word in ("--step", f"+{step}"))
        raise Refused(
            "upstream",
            f"not ready and not selected: {', '.join(sorted(blocked))}",
            hint=f"take them along: {' '.join(options)}",
            accepted_by=options,
        )


def _select_steps(runner: StepRunner, selected: Sequence[str], policy: ApplyPolicy) -> list[str]:
    """
    The steps to work on; the others are reported. Refused where one is forbidden, with all of them.
    """
    todo: list[str] = []
    forbidden: list[Blocker] = []
    for step in selected:
        match policy.rule(step, runner.steps.records.get(step)):
            case None:
                todo.append(step)
            case Skip(why):
                runner.end_skipped(step, why, **carried_over(runner, step))
            case Blocker() as blocker:
                forbidden.append(blocker)
    if forbidden:
        raise refusal(forbidden)
    return todo


def _check_all_settings(runner: StepRunner, steps: Sequence[str]) -> dict[str, OrchestratorError]:
    """
    The steps with a check that cannot be carried out, as far as that is known by now.
    """
    failures: dict[str, OrchestratorError] = {}
    for name in steps:
        step = runner.deployment.steps[name]
        with suppress(OrchestratorError):  # what comes from other steps is not known yet
            inputs = runner.steps.values.inputs(step)
            try:
                check_settings(runner.services, runner.deployment, step, inputs)
            except Invalid as exc:
                failures[name] = exc
    return failures


def _check_all_certain(runner: StepRunner, steps: Sequence[str]) -> dict[str, OrchestratorError]:
    """
    The steps of which a doubt or an unsaved provider state must be settled first.
    """
    failures: dict[str, OrchestratorError] = {}
    for step in steps:
        try:
            runner.check_certain(step)
        except InDoubt as exc:
            failures[step] = exc
    return failures


def _apply_step(
    runner: StepRunner, policy: ApplyPolicy, unchanged: Mapping[str, EnginePlan], name: str
) -> Outcome:
    """
    Apply one step, again as its ``retry`` allows. ``unchanged`` holds the plans that are known to
    be empty.
    """
    if name not in runner.steps.prepared:
        runner.steps.prepare(name, policy.source)
        runner.settle(name)
        runner.check_certain(name)
    inputs = runner.steps.values.inputs(runner.deployment.steps[name])

    def attempt(number: int) -> StepResult:
        return StepPipeline(
            runner.session,
            runner.steps.prepared[name],
            inputs,
            runner.options.plan,
            verb="apply",
            attempt=number,
            engine_plan=unchanged.get(name) if number == 1 else None,
        ).run()

    result, attempts = with_retries(runner, name, attempt)
    return runner.end_with_record(name, result, attempts=attempts)
