"""
A mutating command from request to exit code: approval, session, claim, spool, work, close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from orchestrator.app.run.repeated_request import earlier_run, take_request
from orchestrator.app.run.request import RunRequest, match_steps, select_steps
from orchestrator.app.run.run_summary import finish_run, report_repeated_run
from orchestrator.app.run.step_runner import CommandRunner
from orchestrator.app.services import Services, await_others
from orchestrator.app.session import Session, pending_row
from orchestrator.app.steps.guards import check_not_moved
from orchestrator.app.steps.mutation import replay_spool
from orchestrator.app.steps.settling import check_not_live
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.events.events import RunStarted
from orchestrator.domain.plan.approval import Approval
from orchestrator.domain.record.record import EngineRef
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.record.states import Status
from orchestrator.domain.text import count
from orchestrator.errors import (
    ApprovalMissing,
    Busy,
    OrchestratorError,
    Refused,
    StoreUnavailable,
    Usage,
    worst,
)
from orchestrator.ports.store import NEIGHBOURS

R = TypeVar("R", bound=RunRequest)


def run(
    services: Services,
    deployment: Deployment,
    request: R,
    work: Callable[[CommandRunner[R], Sequence[str]], None],
) -> int:
    """
    Carry out a request on the selected steps and return the exit code.

    Raises Usage, ApprovalMissing and StoreUnavailable before a run exists. Everything after that
    ends in the run record and in the ``run_finished`` event.
    """
    options = request.options
    selected = select_steps(deployment, options, request.verb)
    if selected or not options.orphaned:
        _check_approval(services, deployment, request, selected)
    started = services.clock.monotonic()
    newest = next(iter(services.files.runs()), "")
    run_id = services.ids.run_id(services.clock.now(), newest)
    earlier: RunRecord | None = None
    if options.request_token is not None:
        earlier = earlier_run(services, deployment, request, selected, run_id)
    if earlier is not None:
        session = Session(services, deployment, earlier)
        _report_start(session, request, selected)
        return report_repeated_run(session, request, started=started)
    record = _run_record(services, deployment, request, selected, run_id)
    session = Session(services, deployment, record)
    session.write_run()
    _report_start(session, request, selected)
    error: OrchestratorError | None = None
    try:
        if options.inputs_given:
            # Beside the run record, for the commands that are offered next.
            session.rerun_file = session.directory / session.rerun_inputs("rerun-inputs.yml")
        services.store.probe()
        if options.takeover is not None and not options.wait:
            _check_takeover(services, deployment, options.takeover)
        session.take_claim(wait=options.wait, takeover=options.takeover)
        with session.alive(), _working_directories(session, wait=options.wait):
            if options.request_token is not None:
                take_request(services, deployment, request, selected, run_id)
            _bring_up_to_date(session, request)
            runner: CommandRunner[R] = CommandRunner(session, request)
            with _handing_back(session):
                runner.steps.read_records(
                    wait=options.wait,
                    takeover=options.takeover,
                    beside=session.runs_beside(),
                    selected=selected,
                )
                if options.at is not None:
                    (name,) = match_steps(deployment, options, request.verb)
                    check_not_moved(deployment, name, runner.steps.records.get(name), options.at)
                work(runner, selected)
            for killed in session.takes_over_from:
                _sweep(services, deployment, killed)
    except OrchestratorError as exc:
        error = exc
    return finish_run(session, request, error, started=started)


def _check_approval(
    services: Services, deployment: Deployment, request: RunRequest, selected: Sequence[str]
) -> None:
    """
    Raise ApprovalMissing if the mutation is not approved and nobody can be asked, if an approval is
    too old, or if a protected environment was not named. Raises Refused if an approval does not
    fit. A command that changes only records needs no approval; one that widens or narrows a later
    destroy needs the environment's name nevertheless.
    """
    options = request.options
    if options.plan.approval is not None:
        _check_approval_file(services, deployment, request, options.plan.approval)
    confirm = options.confirm
    if confirm is not None and confirm != deployment.environment and not deployment.protected:
        raise Usage(
            f"--confirm {confirm} does not name the environment, which is {deployment.environment}"
        )
    if request.mutates and not (options.plan.approved or options.interactive):
        where = f"{deployment.blueprint}/{deployment.environment}"
        raise ApprovalMissing(
            f"{request.verb} of {count(len(selected), 'step')} of {where} is not approved, and "
            "there is no terminal to ask at",
            hint="add --yes",
        )
    confirmed = confirm == deployment.environment
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


def _run_record(
    services: Services,
    deployment: Deployment,
    request: RunRequest,
    selected: Sequence[str],
    run_id: str,
) -> RunRecord:
    options, info = request.options, services.engine.info
    return RunRecord(
        run_id=run_id,
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        command=request.verb,
        arguments=request.arguments(),
        actor=services.actor,
        reason=options.reason or None,
        request_token=options.request_token,
        lineage=request.lineage,
        source=services.source(),
        engine=EngineRef(kind=info.kind, version=info.version),
        skipped_preflight=options.skip_preflight,
        store=services.store.url,
        started_at=services.clock.now(),
        steps=tuple(pending_row(deployment, step) for step in selected),
    )


def _bring_up_to_date(session: Session, request: RunRequest) -> None:
    """
    Record what earlier runs left in the spool, and note what else has changed since. Raises
    StoreUnavailable if the store has gone back, unless the request only updates records.
    """
    services, deployment = session.services, session.deployment
    if services.refusal() is None:
        replay_spool(services, deployment)
    elif request.needs_approval:  # what waits is of entries that the store has lost
        raise StoreUnavailable(
            "the operation store has gone back: until it is accepted, records are only brought up "
            "to date",
            hint=f"first `{request.verb}` without these options",
        )
    if services.is_shared:
        # After an environment has left the blueprint, no file says where its store is.
        for environment, url in services.neighbours().items():
            name = f"{NEIGHBOURS}{deployment.blueprint}/{environment}"
            services.store.put_blob(name, url.encode())
    for name, item in deployment.inputs.items():
        if item.digest is not None and item.digest != digest(item.value, services.key):
            services.note(
                f"the secret {name} is not the one of the run that this repeats", level="warning"
            )


def _sweep(services: Services, deployment: Deployment, run_id: str) -> None:
    """
    Remove the unmasked files of a killed run whose claim was taken over; for a step whose entry of
    that run is no longer `running`, also the output of its mutating calls.
    """
    services.files.sweep(run_id)
    for record in services.store.records(deployment.blueprint, deployment.environment):
        if record.status is not Status.RUNNING or record.run_id != run_id:
            services.files.sweep(run_id, settled=record.target.step)


def _report_start(session: Session, request: RunRequest, selected: Sequence[str]) -> None:
    services, deployment = session.services, session.deployment
    info = services.engine.info
    services.sink.emit(
        RunStarted(
            at=services.clock.now(),
            run_id=session.run_id,
            command=request.verb,
            blueprint=deployment.blueprint,
            environment=deployment.environment,
            engine=f"{info.kind} {info.version}",
            engine_why=info.why,
            steps=selected,
            store=services.store.url,
            directory=str(session.directory),
            lineage=request.lineage,
        )
    )


@contextmanager
def _working_directories(session: Session, *, wait: bool) -> Iterator[None]:
    """
    Hold the lock on the working directories while the body runs. Another job in the same checkout,
    or a reading command, is waited for.
    """
    services, deployment = session.services, session.deployment
    with ExitStack() as stack:
        while True:
            try:
                lock = services.workdirs.lock(deployment.blueprint, deployment.environment)
                stack.enter_context(lock)
                break
            except Busy as exc:
                await_others(services, exc, wait=wait)
        yield


@contextmanager
def _handing_back(session: Session) -> Iterator[None]:
    """
    Yield the claim to the run it was taken from if the body ends with Busy before anything was
    recorded: that run is alive.
    """

    def entries() -> set[str]:
        blueprint = (session.deployment.blueprint, session.deployment.environment)
        return {record.entry_id for record in session.services.store.records(*blueprint)}

    if session.replaced is None:
        yield
        return
    before, is_busy = entries(), False
    try:
        yield
    except Busy:
        is_busy = True
        raise
    finally:
        if (is_busy or worst(session.codes) == Busy.exit_code) and entries() == before:
            session.hand_back_claim()


def _check_takeover(services: Services, deployment: Deployment, takeover: str) -> None:
    """
    Raise Busy if a takeover would be refused after taking the claim: that would break the claim of
    a live run for nothing.
    """
    with services.workdirs.lock(deployment.blueprint, deployment.environment):
        pass
    for record in services.store.records(deployment.blueprint, deployment.environment):
        check_not_live(services, deployment, record, wait=False, takeover=takeover)
