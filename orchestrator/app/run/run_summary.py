"""
The end of a run: its verdict, live objects, and the next commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from msgspec import Struct

from orchestrator.app.inspection.inspection import Inspection
from orchestrator.app.inspection.read_context import ReadContext, orphaned_targets
from orchestrator.app.run.request import RunRequest
from orchestrator.app.session import Session
from orchestrator.domain.events.events import KnownOutputs, LiveObjects, RunFinished
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import MISPLACED, Fault, OperationRecord
from orchestrator.domain.record.run_record import NextCommand, StepRun
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus, Verdict
from orchestrator.domain.record.verdicts import is_partly_applied, verdict_of
from orchestrator.domain.recovery.advice import advise
from orchestrator.domain.recovery.next_commands import (
    EndedCommand,
    about_store,
    accept_restored,
    after_run,
    look_closer,
)
from orchestrator.domain.recovery.rerun_rules import APPLYING
from orchestrator.domain.target import step_of
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.errors import (
    ApprovalMissing,
    Busy,
    CheckFailed,
    DeadlinePassed,
    EngineFailed,
    InDoubt,
    Invalid,
    OrchestratorError,
    PlanChanged,
    Reason,
    Refused,
    Stopped,
    StoreUnavailable,
    worst,
)

#: Codes of faults whose exit code is not that of a failed engine.
EXIT_BY_CODE = {
    "state_locked": Busy.exit_code,
    "check_failed": CheckFailed.exit_code,
    "deadline": DeadlinePassed.exit_code,
    "targeted": 0,
    "unapplied": 0,
    "stale_plan": PlanChanged.exit_code,
}


def exit_codes_of(fault: Fault | None, doubts: Sequence[Doubt], stopped: int) -> list[int]:
    """
    Return the exit codes of a step's outcome; ``stopped`` is the exit code of the run's signal.
    """
    codes = [InDoubt.exit_code] if doubts else []
    if fault is not None:
        code = stopped if fault.code == "stopped" else 0
        codes.append(code or EXIT_BY_CODE.get(fault.code, EngineFailed.exit_code))
    return codes


def fault_of(exc: OrchestratorError, masker: Masker) -> Fault:
    """
    Return an error that left no entry as a fault for the run record.
    """
    lines = masker.mask(exc.message).splitlines()
    return Fault.model_validate(
        {
            "code": exc.reason if isinstance(exc, Refused) else exc.code,
            "phase": exc.phase,
            "summary": "; ".join(lines) if isinstance(exc, Invalid) else lines[0],
            "resources": exc.occupied if isinstance(exc, InDoubt) else (),
            "diagnostics": exc.diagnostics if isinstance(exc, EngineFailed) else (),
        }
    )


def finish_run(
    session: Session, request: RunRequest, error: OrchestratorError | None, *, started: float
) -> int:
    """
    Finish the run record, report the end and return the exit code.
    """
    services = session.services
    if error is not None:
        session.codes.append(error.exit_code)
    if services.stop.stopping:
        session.codes.append(services.stop.exit_code)
    exit_code = worst(session.codes)
    fault = fault_of(error, services.masker) if error else None
    end = _RunEnd.of(session, request, error)
    if end.verdict is not None and session.run.command == "destroy":
        left = {r.target.step: r for r in end.records if r.status not in NOTHING_THERE}
        rows = []
        for row in session.run.steps:
            record = left.get(row.step)
            if record is not None:
                remaining = {"remaining": record.resources.inventory, "sequence": record.sequence}
                row = row.model_copy(update=remaining)
            rows.append(row)
        session.update_run(steps=tuple(rows), orphaned=tuple(end.orphaned))
    session.finish(exit_code, fault)
    end.report(exit_code, started)
    return exit_code


def report_repeated_run(session: Session, request: RunRequest, *, started: float) -> int:
    """
    Report the run that carried out this request before, and return its exit code.
    """
    exit_code = session.run.exit_code
    assert exit_code is not None, "it came to its end"
    session.codes.append(exit_code)
    session.services.note(
        f"run {session.run_id} has carried out the request {session.run.request_token} already; "
        "nothing is done again"
    )
    _RunEnd.of(session, request, None).report(exit_code, started)
    return exit_code


class _RunEnd(Struct, frozen=True):
    """
    The end of a run: the records of the blueprint's steps, the verdict over them and over failures
    without an entry, and the orphans that are alive; no verdict if the store cannot be read.
    """

    session: Session
    request: RunRequest
    error: OrchestratorError | None
    records: Sequence[OperationRecord] = ()
    verdict: Verdict | None = None
    orphaned: Sequence[str] = ()

    @classmethod
    def of(cls, session: Session, request: RunRequest, error: OrchestratorError | None) -> _RunEnd:
        """
        Return the end of a run, with what is recorded now.
        """
        if isinstance(error, StoreUnavailable):  # nor does what is older than it should be say more
            return cls(session, request, error)
        services, deployment = session.services, session.deployment
        reader = ReadContext.of(services, deployment.project)
        try:
            records = {
                record.target.step: record
                for record in services.store.records(deployment.blueprint, deployment.environment)
            }
            rows = {
                step: (record, reader.condition(record) if record else None)
                for step in dict.fromkeys((*deployment.steps, *records))
                for record in [records.get(step)]
            }
        except StoreUnavailable:
            return cls(session, request, error)
        orphaned = orphaned_targets(deployment, records.values())
        recorded = verdict_of(rows, set(deployment.steps) - deployment.orphans, orphaned)
        under_way = recorded in (Verdict.RUNNING, Verdict.INTERRUPTED)
        failed = any(
            row.status is StepStatus.ERROR and not is_partly_applied(records.get(row.step))
            for row in session.run.steps
        )
        return cls(
            session,
            request,
            error,
            records=[records[root] for root in deployment.steps_and_hooks() if root in records],
            verdict=Verdict.ERROR if failed and not under_way else recorded,
            orphaned=orphaned,
        )

    def report(self, exit_code: int, started: float) -> None:
        """
        Emit the last event of a run.
        """
        session, services, error = self.session, self.session.services, self.error
        ready = (StepStatus.OK, StepStatus.RETAINED)
        well = {row.step for row in session.run.steps if row.status in ready}
        outputs = [
            KnownOutputs(step=r.target.step, outputs=r.outputs, sensitive=r.sensitive_outputs)
            for r in self.records
            if r.target.step in well and (r.outputs or r.sensitive_outputs)
        ]
        services.sink.emit(
            RunFinished(
                at=services.clock.now(),
                run_id=session.run_id,
                command=session.run.command,
                exit_code=exit_code,
                verdict=str(self.verdict or "unknown"),
                steps=session.run.steps,
                recorded={record.target.step: StepStatus(record.status) for record in self.records},
                alive=_alive(self.records, session.run.steps),
                outputs=tuple(outputs) if session.run.command in APPLYING else (),
                next=self._next_commands(),
                error=services.masker.mask(error.message) if error else None,
                hint=error.hint if error else "",
                seconds=services.clock.monotonic() - started,
                directory=str(session.directory),
            )
        )

    def _next_commands(self) -> tuple[NextCommand, ...]:
        """
        Return the next commands, most useful first; none after success.
        """
        session, error = self.session, self.error
        rows = session.run.steps
        if session.services.refusal() and not isinstance(error, StoreUnavailable):
            return (accept_restored(session.deployment),)
        open_ends = (StepStatus.ERROR, StepStatus.PENDING, StepStatus.RUNNING)
        unfinished = [row.step for row in rows if row.status in open_ends or row.in_doubt]
        if not unfinished:
            interrupted = self.verdict is Verdict.INTERRUPTED
            return (look_closer(session.deployment),) if interrupted else ()
        ended = self._ended_command()
        if isinstance(error, StoreUnavailable):  # no other command can look or do anything either
            again = _repeated(ended, "continue from here, once the store can be used")
            return (*about_store(session.deployment, error), *again)
        if isinstance(error, Busy) and self.verdict not in (Verdict.RUNNING, Verdict.INTERRUPTED):
            # It got no turn, and nothing is known to be wrong.
            return (
                *_repeated(ended, "do this once no other run is in progress"),
                look_closer(session.deployment),
            )
        if ApprovalMissing.exit_code in session.codes and all(row.error is None for row in rows):
            return _repeated(ended, "be asked again")
        if PlanChanged.exit_code in session.codes and all(row.error is None for row in rows):
            why = "see what would change now, and have that approved"
            return (NextCommand(command=ended.plan(), why=why),)
        codes = {row.error.code for row in rows if row.error}
        if codes and codes <= MISPLACED:  # every command is refused until the blueprint is changed
            return (look_closer(session.deployment),)
        try:
            services = session.services
            inspection = Inspection(
                ReadContext.of(services, session.deployment.project),
                session.deployment,
                now=services.clock.now(),
                settle=services.limits.settle,
                own_run=session.run_id,
            )
            advised = {}
            for row in rows:
                orphan = step_of(row.step) in session.deployment.orphans
                context = replace(inspection.context(row.step), is_orphan=orphan)
                advised[row.step] = advise(context)
        except StoreUnavailable:
            return after_run(ended, ())
        alive = {item.step for item in _alive(self.records, rows) if item.objects}
        return after_run(
            ended,
            [advised[step] for step in unfinished],
            alive=[item for step, item in advised.items() if step in alive],
        )

    def _ended_command(self) -> EndedCommand:
        """
        Return the command that ended, with the options that offered commands keep.
        """
        session, request, error = self.session, self.request, self.error
        options, lineage = request.options, session.run.lineage
        inputs = ("--input-file", str(session.rerun_file)) if session.rerun_file else ()
        own = tuple(_option_words(request.arguments(), _REPEATED))
        if lineage is not None and lineage.kind == "promotion":
            own += ("--from-run", lineage.from_run)
        if lineage is not None and request.verb == "rollback":
            own += ("--to", lineage.from_run, "--reason", lineage.reason or "WHY")
        arguments = request.arguments() | {
            "confirm": options.confirm,
            "reason": None if request.verb == "rollback" else options.reason,
            "skip_preflight": options.skip_preflight,
            "request_token": options.request_token if isinstance(error, Busy | Stopped) else None,
        }
        named_objects = bool(options.plan.targets or options.plan.replace)
        codes = {row.error.code for row in session.run.steps if row.error}
        refused = bool(codes & ({*get_args(Reason)} - {"vanished", "targeted"}))
        refused = refused or (named_objects and Invalid.code in codes)
        # An error in a file has a place there: one without is in the command line.
        in_options = isinstance(error, Invalid) and any(it.at is None for it in error.problems)
        mixed = {r.step for r in session.run.steps if r.error and r.error.code == "engine_change"}
        writers = {r.engine.kind for r in self.records if r.target.step in mixed and r.engine}
        engine = options.engine
        if len(writers) == 1:
            # Without the option it is that of the record, unless the blueprint asks for another.
            by_default = session.deployment.engine.kind in (None, *writers)
            engine = None if engine and by_default else writers.pop()
            refused = False
        selected = () if set(options.steps) == set(session.deployment.steps) else options.steps
        return EndedCommand(
            blueprint=session.deployment,
            verb=request.verb,
            selection=(
                *(("--orphaned",) if options.orphaned else ()),
                *(word for name in selected for word in ("--step", name)),
                *(word for name in options.exclude for word in ("--exclude", name)),
            ),
            engine=("--engine", engine) if engine else (),
            inputs=inputs if request.verb in ("apply", "redeploy") else (),
            own=own,
            given=tuple(_option_words(arguments, {**_GIVEN, **_GIVEN_TO.get(request.verb, {})})),
            accepting=error.accepted_by if isinstance(error, Refused) else (),
            is_refused=isinstance(error, Refused) or refused or in_options,
            is_orphaned=options.orphaned,
        )


def _alive(records: Iterable[OperationRecord], rows: Sequence[StepRun]) -> tuple[LiveObjects, ...]:
    """
    Return the existing objects by step, without those in doubt, deleted but still in provider
    state, or not found by this run.
    """
    vanished = set()  # at the provider, or from provider state
    for row in rows:
        fault = row.error
        lost = fault is not None and fault.code == "in_doubt" and fault.phase == "surgery"
        if lost or (fault is not None and fault.code == "vanished"):
            vanished.add(row.step)
    live = []
    for record in records:
        doubts = record.resources.in_doubt
        uncertain = {doubt.address for doubt in doubts} | {d.key for d in doubts}
        certain = tuple(
            ref.name
            for ref in record.live_objects
            if ref.key not in uncertain and (ref.deposed or ref.address not in uncertain)
        )
        is_vanished = record.target.step in vanished
        if certain or doubts:
            live.append(
                LiveObjects(
                    step=record.target.step,
                    objects=() if is_vanished else certain,
                    tainted=record.resources.tainted,
                    in_doubt=doubts,
                    missing=certain if is_vanished else (),
                )
            )
    return tuple(live)


#: The commands that a blueprint, selected steps and options say whole.
_REPEATABLE = (*APPLYING, "adopt", "compensate", "destroy", "reconcile", "verify")


def _repeated(ended: EndedCommand, why: str) -> tuple[NextCommand, ...]:
    if ended.verb not in _REPEATABLE:
        return ()
    return (NextCommand(command=ended.again(*ended.given), why=why),)


#: The options of a command that its repetition keeps, by the name of what the request has; None:
#: they are named like it.
_REPEATED: Mapping[str, str | None] = {
    **dict.fromkeys((
        "unfinished", "on_failure", "allow_engine_change", "refresh", "targets", "verify_absence",
        "accept_changed_secret", "unavailable_secrets", "lock_timeout", "parallelism",
    )),
    "targets": "--target",
    "verify_absence": "--verify",
    "unavailable_secrets": "--unavailable-secret",
}  # fmt: skip

#: The options that it keeps only where nothing has been done yet.
_GIVEN: Mapping[str, str | None] = dict.fromkeys((
    "forget", "adopt", "adopt_proven", "rebuild_state", "untaint", "unlock", "push_errored_state",
    "dismiss_errored_state", "replace", "skip_before_destroy", "accept_changes", "accept_vanished",
    "accept_adopted", "accept_replaced", "override_policy", "unverified", "skip_preflight",
    "request_token", "takeover", "at", "confirm", "reason",
))  # fmt: skip
_GIVEN_TO = {
    "compensate": {"repeat": "--repeat"},
    "destroy": {"repeat": "--repeat-before-destroy"},
    "retry": {"from_run": "--from-run"},
    "reconcile": {"verify_destroyed": "--verify=provider"},
}


def _option_words(
    arguments: Mapping[str, Json], options: Mapping[str, str | None]
) -> Iterator[str]:
    for name, option in options.items():
        option = option or f"--{name.replace('_', '-')}"
        match arguments.get(name):
            case None:
                continue
            case True:
                yield option
            case False:
                yield f"{option}=false"
            case [*values]:
                yield from (word for value in values for word in (option, str(value)))
            case value:
                yield from (option, str(value))
