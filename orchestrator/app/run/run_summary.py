"""
The end of a run: its verdict, what is alive, and the commands that make sense now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from orchestrator.app.inspection.liveness import LivenessProbe
from orchestrator.app.run.orphans import alive_orphans
from orchestrator.app.session import Session
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.events import LiveObjects, RunFinished
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.record import (
    Doubt,
    Fault,
    NextCommand,
    OperationRecord,
    Phase,
    StepRun,
)
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus, Verdict, verdict
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.recovery.rerun_rules import APPLYING
from orchestrator.errors import (
    Busy,
    CheckFailed,
    DeadlinePassed,
    EngineFailed,
    Fenced,
    InDoubt,
    Invalid,
    OrchestratorError,
    Refused,
    Spooled,
    StoreUnavailable,
    worst,
)

#: Codes of faults whose exit code is not that of a failed engine.
EXIT_BY_CODE = {
    "state_locked": Busy.exit_code,
    "check_failed": CheckFailed.exit_code,
    "deadline": DeadlinePassed.exit_code,
    "targeted": Refused.exit_code,
    "unapplied": 0,
}


def exit_codes_of(fault: Fault | None, doubts: Sequence[Doubt], stopped: int) -> list[int]:
    """
    The exit codes that a step's outcome stands for; ``stopped`` is the run's own of a signal.
    """
    codes = [InDoubt.exit_code] if doubts else []
    if fault is not None:
        code = stopped if fault.code == "stopped" else 0
        codes.append(code or EXIT_BY_CODE.get(fault.code, EngineFailed.exit_code))
    return codes


def fault_of(exc: OrchestratorError, masker: Masker) -> Fault:
    """
    An error that left no entry, as the run record keeps it.
    """
    phase: Phase = "plan"
    lines = masker.mask(exc.message).splitlines()
    diagnostics: tuple[object, ...] = ()
    match exc:
        case EngineFailed():
            phase, diagnostics = cast(Phase, exc.phase), exc.diagnostics
        case Refused():
            phase = cast(Phase, exc.phase)
        case Busy():
            phase = "lock"
        case StoreUnavailable() | Spooled() | Fenced():
            phase = "record"
        case InDoubt():
            phase = "readback"
        case Invalid():
            phase = "blueprint"
        case _:
            pass
    return Fault.model_validate(
        {
            "code": exc.reason if isinstance(exc, Refused) else exc.code,
            "phase": phase,
            "summary": "; ".join(lines) if isinstance(exc, Invalid) else lines[0],
            "diagnostics": diagnostics,
        }
    )


def finish_run(session: Session, error: OrchestratorError | None, *, started: float) -> int:
    """
    Finish the run record and tell the whole story; returns the exit code.
    """
    services = session.services
    if error is not None:
        session.fail(error.exit_code)
    if services.stop.stopping:
        session.fail(services.stop.exit_code)
    exit_code = worst(session.codes)
    fault = fault_of(error, services.masker) if error else None
    found = _recorded_outcome(session)
    if found and session.run.command == "destroy":
        left = {r.target.step: r for r in found.records if r.status not in NOTHING_THERE}
        session.set_remaining(left, found.orphaned)
    session.finish(exit_code, fault)
    alive = _alive(found.records if found else ())
    services.sink.emit(
        RunFinished(
            at=services.clock.now(),
            run_id=session.run_id,
            command=session.run.command,
            exit_code=exit_code,
            verdict=str(found.verdict) if found else "unknown",
            steps=session.run.steps,
            alive=alive,
            next=_next(session, alive, found.verdict if found else None),
            error=services.masker.mask(error.message) if error else None,
            hint=error.hint if error else "",
            seconds=services.clock.monotonic() - started,
            directory=str(session.directory),
        )
    )
    return exit_code


@dataclass(frozen=True, slots=True)
class _RecordedOutcome:
    """
    What is recorded at the end of a run: of the blueprint's steps, their verdict, and the targets
    that are alive and not in the blueprint.
    """

    records: Sequence[OperationRecord]
    verdict: Verdict
    orphaned: Sequence[str]


def _recorded_outcome(session: Session) -> _RecordedOutcome | None:
    services, deployment = session.services, session.deployment
    watch = LivenessProbe(
        services.store, services.files, services.processes, services.limits.silence
    )
    try:
        records = {
            record.target.step: record
            for record in services.store.records(deployment.blueprint, deployment.environment)
        }
        rows = []
        own = [step for step in deployment.steps if step not in deployment.orphans]
        for step in own or deployment.steps:
            record = records.get(step)
            rows.append((record.status, watch.condition(record)) if record else (None, None))
    except StoreUnavailable:
        return None
    return _RecordedOutcome(
        records=[records[root] for root in deployment.steps_and_hooks() if root in records],
        verdict=verdict(rows),
        orphaned=[
            str(record.target.target) for record in alive_orphans(deployment, records.values())
        ],
    )


def _alive(records: Iterable[OperationRecord]) -> tuple[LiveObjects, ...]:
    return tuple(
        LiveObjects(
            step=record.target.step,
            objects=tuple(ref.address for ref in record.resources.inventory),
            tainted=record.resources.tainted,
            in_doubt=record.resources.in_doubt,
        )
        for record in records
        if record.resources.inventory or record.resources.in_doubt
    )


def _next(
    session: Session, alive: Sequence[LiveObjects], now: Verdict | None
) -> tuple[NextCommand, ...]:
    """
    The exact commands that help, most useful first; none where all went well.
    """
    deployment, verb, rows = session.deployment, session.run.command, session.run.steps
    again: tuple[str, ...] = ()
    if session.rerun_file and verb in ("apply", "redeploy"):
        again = ("--input-file", str(session.rerun_file))
    lineage = session.run.lineage
    if lineage is not None and lineage.kind == "promotion":
        again += ("--from-run", lineage.from_run)
    if lineage is not None and verb == "rollback":
        again += ("--to", lineage.from_run, "--reason", lineage.reason or "")
    if deployment.orphans:
        if all(row.status not in (StepStatus.ERROR, StepStatus.PENDING) for row in rows):
            return ()
        return _next_of_orphans(deployment, verb, rows)
    open_ends = (StepStatus.ERROR, StepStatus.PENDING, StepStatus.RUNNING)
    unfinished = [row for row in rows if row.status in open_ends]
    if not unfinished and now is not Verdict.INTERRUPTED:
        return ()
    look = NextCommand(
        command=command_line(deployment, "recover"),
        why="what is known of every step, and what is safe to do now",
    )
    unsaved = [row.step for row in rows if _is_unsaved(row)]
    if unsaved:  # all else is refused until then, and may be answered by that state
        return (*(_push(deployment, step) for step in unsaved), look)
    found = []
    doubtful = any(row.in_doubt for row in rows)
    if doubtful and verb != "reconcile":
        found.append(
            NextCommand(
                command=command_line(deployment, "reconcile"),
                why="settle what is in doubt; an apply is refused until then",
            )
        )
    found.append(look)
    if doubtful:
        found += _answering(deployment, rows)
    if any(row.error and row.error.code == "unapplied" for row in rows):
        found += [
            NextCommand(
                command=command_line(deployment, "apply"),
                why="it shows what it would change first; then the step is ok",
            ),
            NextCommand(
                command=command_line(deployment, "reconcile"),
                why="the step is ok where nothing would change",
            ),
        ]
    if any(row.error and row.error.phase == "verify" for row in rows):
        found.append(
            NextCommand(
                command=command_line(deployment, "verify"),
                why="run the checks again; everything was applied",
            )
        )
    if verb in (*APPLYING, "destroy"):
        doing = "go on with what is left" if verb == "destroy" else "go on from here"
        found.append(
            NextCommand(
                command=command_line(deployment, verb, *again),
                why=f"{doing}, once the cause is fixed",
            )
        )
    if verb in APPLYING and alive:
        found.append(
            NextCommand(
                command=command_line(deployment, "destroy"),
                why="take down all that exists",
            )
        )
    return tuple(found)


def _next_of_orphans(
    deployment: Deployment, verb: str, rows: Sequence[StepRun]
) -> tuple[NextCommand, ...]:
    """
    The same of steps that left the blueprint: they can be settled and destroyed, nothing else.
    """
    found = [_push(deployment, row.step) for row in rows if _is_unsaved(row)]
    if any(row.in_doubt for row in rows):
        if verb != "reconcile":
            settling = command_line(deployment, "reconcile", "--orphaned")
            found.append(NextCommand(command=settling, why="settle what is in doubt"))
        found += _answering(deployment, rows)
    destroy = command_line(deployment, "destroy", "--orphaned")
    doing = "go on with" if verb == "destroy" else "take down"
    return (*found, NextCommand(command=destroy, why=f"{doing} what is left"))


def _is_unsaved(row: StepRun) -> bool:
    return row.error is not None and row.error.code == "errored_state"


def _push(deployment: Deployment, step: str) -> NextCommand:
    return NextCommand(
        command=command_line(
            deployment, "reconcile", *step_options(deployment, step), "--push-errored-state"
        ),
        why="save the provider state that the engine could not save",
    )


def _answering(deployment: Deployment, rows: Iterable[StepRun]) -> list[NextCommand]:
    """
    How a person settles what evidence cannot: by commands that name each object of a step.
    """
    from orchestrator.domain.provider_query.readback import (
        doubt_options,  # only where something is in doubt
    )

    found = []
    for row in rows:
        for options, why in doubt_options(row.in_doubt):
            words = (*step_options(deployment, row.step), *options, "--reason", "WHY")
            command = command_line(deployment, "reconcile", *words)
            found.append(NextCommand(command=command, why=why))
    return found
