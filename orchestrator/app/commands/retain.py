"""
``retain`` and ``release``: what is kept on purpose, by whom and until when, and the end of that.

Only records change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from orchestrator.app.run.request import ReleaseRequest, RetainRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.services import Services
from orchestrator.app.steps.recording import record_entry as write
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.record.record import OperationRecord, Retention
from orchestrator.domain.record.retention import is_overdue, retention
from orchestrator.domain.record.states import READY, Status, StepStatus
from orchestrator.domain.record.transitions import released, retained
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.errors import Invalid, OrchestratorError, Problem, Reason, Refused


def retain(services: Services, deployment: Deployment, request: RetainRequest) -> int:
    """
    Keep the selected steps: no destroy touches them until they are released. Retained again, a
    step has a new reason, owner and date of review.

    Refused where one of them is neither ok nor retained; then none is.
    """
    return run(services, deployment, request, partial(_retain, request))


def release(services: Services, deployment: Deployment, request: ReleaseRequest) -> int:
    """
    Let go of the selected steps: ok again, and the next destroy takes them down.

    Refused where one of them is not retained; then none is.
    """
    return run(services, deployment, request, _release)


def retain_declared(runner: StepRunner, steps: Collection[str]) -> None:
    """
    Record as retained what the blueprint says is to be, and a later review that it names.
    """
    for name in steps:
        declared = retention(runner.deployment.steps[name].retain, None)
        known = runner.steps.records.get(name)
        if declared is None or known is None:
            continue
        held = known.retained if known.status is Status.RETAINED else None
        later = held is not None and declared.review_by > held.review_by
        if known.status is Status.OK or later:
            _keep(runner, name, known, declared)


def note_overdue_reviews(runner: StepRunner, steps: Collection[str]) -> None:
    """
    Warn of the steps that are kept although the day of their review has passed.
    """
    today = runner.services.clock.now().date()
    for name in steps:
        held = retention(runner.deployment.steps[name].retain, runner.steps.records.get(name))
        if held is not None and is_overdue(held, today):
            runner.services.note(
                f"its review was due on {held.review_by} ({held.owner})",
                hint=f"keep it with a new date: {_again(runner, name)}",
                level="warning",
                step=name,
            )


def _again(runner: StepRunner, name: str) -> str:
    options = ("--step", name, "--reason", "WHY", "--owner", "WHO", "--review-by", "DATE")
    return command_line(runner.deployment, "retain", *options)


def _retain(request: RetainRequest, runner: StepRunner, selected: Sequence[str]) -> None:
    assert request.options.reason, "the command line asks for it"
    wanted = Retention(
        reason=request.options.reason, owner=request.owner, review_by=request.review_by
    )
    if is_overdue(wanted, runner.services.clock.now().date()):
        problem = Problem(f"the date of review has passed: {request.review_by}")
        raise Invalid([problem])
    runner.read_records()
    _check(runner, selected, READY, "not_ok", "only what is ok can be retained")
    for name in selected:
        started = runner.services.clock.monotonic()
        known = runner.steps.records[name]
        assert known is not None, "it has just been checked"
        try:
            entry = _keep(runner, name, known, wanted)
        except OrchestratorError as exc:
            runner.end_with_error(name, started, exc, 0)
            return
        runner.end(
            name,
            started,
            StepStatus.RETAINED,
            changed=True,
            sequence=entry.sequence,
            retained=entry.retained,
        )


def _keep(
    runner: StepRunner, name: str, known: OperationRecord, wanted: Retention
) -> OperationRecord:
    stamp = runner.services.stamp()
    entry = write(runner.services, retained(known, wanted, stamp, run_id=runner.session.run_id))
    runner.steps.update(name, entry)
    return entry


def _release(runner: StepRunner, selected: Sequence[str]) -> None:
    runner.read_records()
    _check(
        runner, selected, (Status.RETAINED,), "not_retained", "only what is retained is released"
    )
    for name in selected:
        started = runner.services.clock.monotonic()
        known = runner.steps.records[name]
        assert known is not None, "it has just been checked"
        entry = released(known, runner.services.stamp(), run_id=runner.session.run_id)
        try:
            entry = write(runner.services, entry)
        except OrchestratorError as exc:
            runner.end_with_error(name, started, exc, 0)
            return
        runner.steps.update(name, entry)
        runner.end(
            name,
            started,
            StepStatus.OK,
            changed=True,
            sequence=entry.sequence,
            reason="released",
        )
        _note_declared(runner, name)


def _note_declared(runner: StepRunner, name: str) -> None:
    """
    Say where the blueprint would retain a released step again.
    """
    step = runner.deployment.steps[name]
    if step.retain is not None:
        where = f"{step.at}: " if step.at else ""
        runner.services.note(
            f"{where}the blueprint still says `retain`: the next destroy keeps it again",
            hint="take `retain` out of the blueprint to have it destroyed",
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
    odd = {s: runner.steps.status(s) for s in selected if runner.steps.status(s) not in allowed}
    if odd:
        said = ", ".join(f"{name} is {status or 'never applied'}" for name, status in odd.items())
        raise Refused(
            reason, f"{said}: {rule}", hint="nothing was changed; leave it out, or settle it first"
        )
