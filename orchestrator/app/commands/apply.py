"""
``apply``: apply the modules of the selected steps, upstreams first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from orchestrator.app.commands.retain import follow_declared
from orchestrator.app.commands.review import review
from orchestrator.app.inspection.earlier_runs import refusal
from orchestrator.app.run.composed_plan import unchanged_plans
from orchestrator.app.run.orphans import note_orphans
from orchestrator.app.run.prepared_steps import (
    SourceOf,
    current_module,
    recorded_module,
)
from orchestrator.app.run.request import ApplyRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import Outcome, failures_of
from orchestrator.app.services import Services
from orchestrator.app.steps.approved_plan import check_sources
from orchestrator.app.steps.engine_plan import EnginePlan
from orchestrator.app.steps.guards import check_children
from orchestrator.app.steps.preparation import (
    read_lock_file,
    store_deployment,
    store_lock_content,
    store_once,
)
from orchestrator.app.steps.verification import check_settings
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import StepRunChanges
from orchestrator.domain.record.states import READY
from orchestrator.domain.recovery.rerun_rules import snapshot_blob
from orchestrator.errors import (
    InDoubt,
    Invalid,
    OrchestratorError,
    PlanChanged,
    Refused,
    StoreUnavailable,
)

# What an applying run keeps in the operation store before it mutates: all that a later run needs
# to do the same again, of the steps that it may not get to as well.


def store_snapshots(
    runner: StepRunner, steps: Sequence[str], source: SourceOf
) -> dict[str, OrchestratorError]:
    """
    Store the snapshot of each step, and the run record with their digests. Returns the errors of
    modules that could not be packed, by step.
    """
    failures: dict[str, OrchestratorError] = {}
    rows: dict[str, StepRunChanges] = {}
    for name in steps:
        prepared = runner.steps.prepared.get(name)
        try:
            if prepared is not None:
                snapshot = prepared.snapshot
            else:
                step, record = runner.deployment.steps[name], runner.steps.records.get(name)
                snapshot = source(runner.steps, step, record).snapshot
        except StoreUnavailable:
            raise
        except OrchestratorError as exc:
            failures[name] = exc
            continue
        store_once(runner.services, snapshot_blob(snapshot.digest), snapshot.archive)
        lock = None
        if prepared is not None:
            lock = store_lock_content(
                runner.services, runner.services.workdirs.lock_file(prepared.work_dir)
            )
        rows[name] = {"module_digest": snapshot.digest, "lock_digest": lock}
    runner.session.update_rows(rows)
    runner.session.publish()
    return failures


def carried_over(runner: StepRunner, name: str) -> StepRunChanges:
    """
    Return the digests for the row of a step that the run skips as ok, so that a rerun of this run
    includes it. Empty if the step was applied from another deployment.
    """
    record, services = runner.steps.records.get(name), runner.services
    if record is None or record.deployment != runner.session.run.deployment:
        return {}
    lock = read_lock_file(services, str(record.target), str(record.module_digest))
    return {
        "module_digest": record.module_digest,
        "lock_digest": store_lock_content(services, lock),
        "verification": record.verification,
    }


#: Says of a step why it is left alone, or what forbids to work on it; None: it is worked on.
SkipRule = Callable[[str, OperationRecord | None], str | Refused | None]


def apply(services: Services, deployment: Deployment, request: ApplyRequest) -> int:
    """
    Apply the selected steps from their current modules and return the exit code.
    """
    rule = skip_finished if request.unfinished else None
    return run(services, deployment, request, partial(work, source=current_module, rule=rule))


def skip_finished(_step: str, record: OperationRecord | None) -> str | None:
    """
    Skip a step that is ok, unless it was compensated since, or that was tried.
    """
    if record is None or record.status not in READY or record.compensation is not None:
        return None
    return "already ok"


def work(
    runner: StepRunner, selected: Sequence[str], *, source: SourceOf, rule: SkipRule | None
) -> None:
    """
    Apply the steps that ``rule`` does not skip, upstreams first, each laid out from ``source``.
    """
    graph, steps = runner.deployment.graph, runner.steps
    store_deployment(runner.session)
    follow_declared(runner, selected)
    to_apply = _select_steps(runner, selected, rule)
    check_children(runner.deployment, steps.records, to_apply)
    upstreams = {upstream for step in to_apply for upstream in graph.needs(step)} - set(to_apply)
    support = [step for step in upstreams if steps.status(step) in READY]
    failures = steps.prepare_all(
        [step for step in support if not steps.values.needs_outputs_first(step)], recorded_module
    )
    failures |= steps.prepare_all(
        [step for step in to_apply if not steps.values.needs_outputs_first(step)], source
    )
    failures |= store_snapshots(runner, [step for step in to_apply if step not in failures], source)
    failures |= _check_all_known(runner, to_apply)
    doubts = runner.settle_all() | failures_of(to_apply, runner.check_certain, (InDoubt,))
    if doubts or (failures and runner.options.skip_preflight is None):
        runner.end_before_work(to_apply, failures | doubts)
        return
    missing = upstreams - set(support)
    unchanged: Mapping[str, EnginePlan] = {}
    if not failures and not missing:
        reviewed = review(runner, to_apply, source=source)
        if not reviewed.goes_on:
            return
        unchanged = unchanged_plans(
            steps,
            to_apply,
            runner.options.plan,
            runner.session.directory,
            composed=reviewed.composed,
        )
    unstarted = runner.work_on(
        graph.subset({*to_apply, *upstreams}),
        partial(_apply_step, runner, source, unchanged),
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


def _select_steps(runner: StepRunner, selected: Sequence[str], rule: SkipRule | None) -> list[str]:
    """
    Return the steps to apply; the others are reported. Raises Refused, with all reasons, if one is
    forbidden.
    """
    to_apply: list[str] = []
    forbidden: list[Refused] = []
    for step in selected:
        match rule(step, runner.steps.records.get(step)) if rule else None:
            case None:
                to_apply.append(step)
            case str(why):
                runner.end_skipped(step, why, **carried_over(runner, step))
            case refused:
                forbidden.append(refused)
    if forbidden:
        raise refusal(forbidden)
    return to_apply


def _check_all_known(runner: StepRunner, steps: Sequence[str]) -> dict[str, OrchestratorError]:
    """
    Return the errors that show before anything is planned by step: invalid check settings, and
    other sources than were approved, as far as their references are known by now.
    """
    services, deployment = runner.services, runner.deployment
    approval = runner.options.plan.approval

    def check(name: str) -> None:
        step, prepared = deployment.steps[name], runner.steps.prepared.get(name)
        inputs = None
        with suppress(OrchestratorError):  # what comes from other steps is not known yet
            inputs = runner.steps.values.inputs(step)
        if approval is not None and prepared is not None:
            check_sources(services, deployment, approval, prepared, inputs)
        if inputs is not None:
            check_settings(services, deployment, step, inputs)

    return failures_of(steps, check, (Invalid, PlanChanged))


def _apply_step(
    runner: StepRunner, source: SourceOf, unchanged: Mapping[str, EnginePlan], name: str
) -> Outcome:
    """
    Apply one step, with retries. ``unchanged`` are plans that are known to be empty.
    """
    if name not in runner.steps.prepared:
        runner.steps.prepare(name, source)
        runner.settle(name)
        runner.check_certain(name)
    inputs = runner.steps.values.inputs(runner.deployment.steps[name])
    ready = unchanged.get(name)
    result, attempts = runner.attempt(name, inputs, verb="apply", engine_plan=ready)
    return runner.end_with_record(name, result, attempts=attempts)
