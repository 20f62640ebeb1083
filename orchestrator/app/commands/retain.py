"""
``retain`` and ``release``: start and end the retention of steps. Only records change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from orchestrator.app.run.request import ReleaseRequest, RetainRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.destroy import retention
from orchestrator.domain.record.record import OperationRecord, Retention
from orchestrator.domain.record.states import READY, Status, StepStatus
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.transitions.transitions import released, retained
from orchestrator.errors import Invalid, Problem, Reason, Refused


def retain(services: Services, deployment: Deployment, request: RetainRequest) -> int:
    """
    Retain the selected steps: no destroy touches them until they are released. A retained step gets
    the new reason, owner and date of review.

    Raises Refused if one of them is neither ok nor retained; then none is changed.
    """
    return run(services, deployment, request, _retain)


def release(services: Services, deployment: Deployment, request: ReleaseRequest) -> int:
    """
    Stop retaining the selected steps: they are ok again, and the next destroy includes them.

    Raises Refused if one of them is not retained; then none is changed.
    """
    return run(services, deployment, request, _release)


def retain_declared(runner: StepRunner, steps: Collection[str]) -> None:
    """
    Record the steps that the blueprint declares as retained.
    """
    for name in steps:
        declared = retention(runner.deployment.steps[name].retain, None)
        record = runner.steps.records.get(name)
        if declared is not None and record is not None and record.status is Status.OK:
            _keep(runner, name, record, declared, declared=True)


def follow_declared(runner: StepRunner, steps: Iterable[str]) -> None:
    """
    Compare recorded retentions with the blueprint. A retention from the blueprint is updated, one
    from the command line only if the blueprint has a later review; any other difference is noted.
    Only `release` ends a retention.
    """
    for name in steps:
        record = runner.steps.records.get(name)
        current = record.retained if record and record.status is Status.RETAINED else None
        declared = retention(runner.deployment.steps[name].retain, None)
        if record is None or current is None or (declared and current.words == declared.words):
            continue
        if declared is not None and (
            record.retained_as_declared or declared.review_by > current.review_by
        ):
            _keep(runner, name, record, declared, declared=True)
            runner.services.note(
                f"retained as the blueprint says now: {_retention_text(declared)}", step=name
            )
        elif declared is not None:
            runner.services.note(
                f"retained: {_retention_text(current)}; "
                f"the blueprint says: {_retention_text(declared)}",
                hint=f"a person has said the first; to change it: {_again(runner, name)}",
                level="warning",
                step=name,
            )
        elif record.retained_as_declared:
            options = (*step_options(runner.deployment, name), "--reason", "WHY")
            release_it = command_line(runner.deployment, "release", *options)
            runner.services.note(
                "the blueprint no longer says `retain`; it stays retained",
                hint=f"to release it: {release_it}",
                level="warning",
                step=name,
            )


def _retention_text(item: Retention) -> str:
    return f"{item.reason} ({item.owner}, review by {item.review_by})"


def note_overdue_reviews(runner: StepRunner, steps: Collection[str]) -> None:
    """
    Warn about retained steps whose review date has passed.
    """
    today = runner.services.clock.now().date()
    for name in steps:
        current = retention(runner.deployment.steps[name].retain, runner.steps.records.get(name))
        if current is not None and current.is_overdue(today):
            runner.services.note(
                f"its review was due on {current.review_by} ({current.owner})",
                hint=f"keep it with a new date: {_again(runner, name)}",
                level="warning",
                step=name,
            )


def _again(runner: StepRunner, name: str) -> str:
    options = ("--step", name, "--reason", "WHY", "--owner", "WHO", "--review-by", "DATE")
    return command_line(runner.deployment, "retain", *options)


def _retain(runner: CommandRunner[RetainRequest], selected: Sequence[str]) -> None:
    request = runner.request
    assert request.options.reason, "the command line asks for it"
    wanted = Retention(
        reason=request.options.reason,
        owner=request.owner,
        review_by=request.review_by,
    )
    if wanted.is_overdue(runner.services.clock.now().date()):
        problem = Problem(f"the date of review has passed: {request.review_by}")
        raise Invalid([problem])
    _check(runner, selected, READY, "not_ok", "only what is ok can be retained")

    def retain_step(name: str) -> Outcome:
        entry = _keep(runner, name, runner.steps.recorded(name), wanted)
        runner.end(
            name,
            StepStatus.RETAINED,
            changed=True,
            sequence=entry.sequence,
            retained=entry.retained,
        )
        return Outcome(ready=True)

    runner.run(selected, retain_step, source=None, graph=Graph.unordered(selected))


def _keep(
    runner: StepRunner,
    name: str,
    record: OperationRecord,
    wanted: Retention,
    *,
    declared: bool = False,
) -> OperationRecord:
    stamp, run_id = runner.services.stamp(), runner.session.run_id
    return runner.record(name, retained(record, wanted, stamp, run_id=run_id, declared=declared))


def _release(runner: StepRunner, selected: Sequence[str]) -> None:
    _check(
        runner, selected, (Status.RETAINED,), "not_retained", "only what is retained is released"
    )

    def release_step(name: str) -> Outcome:
        record, stamp = runner.steps.recorded(name), runner.services.stamp()
        entry = runner.record(name, released(record, stamp, run_id=runner.session.run_id))
        runner.end(name, StepStatus.OK, changed=True, sequence=entry.sequence, reason="released")
        _note_declared(runner, name)
        return Outcome(ready=True)

    runner.run(selected, release_step, source=None, graph=Graph.unordered(selected))


def _note_declared(runner: StepRunner, name: str) -> None:
    """
    Note that the blueprint would retain a released step again.
    """
    step = runner.deployment.steps[name]
    if step.retain is not None:
        where = f"{step.at}: " if step.at else ""
        runner.services.note(
            f"{where}the blueprint still says `retain`: the next destroy keeps it again",
            hint="remove `retain` from the blueprint to have it destroyed",
            level="warning",
            step=name,
        )


def _check(
    runner: StepRunner,
    selected: Sequence[str],
    allowed: Collection[Status],
    reason: Reason,
    rule: str,
) -> None:
    refused = {s: runner.steps.status(s) for s in selected if runner.steps.status(s) not in allowed}
    if refused:
        states = ", ".join(
            f"{name} is {status or 'never applied'}" for name, status in refused.items()
        )
        raise Refused(
            reason,
            f"{states}: {rule}",
            hint="nothing was changed; leave it out, or settle it first",
        )
