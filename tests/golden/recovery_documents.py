"""
A recovery document with every kind of evidence, its actions as the table gives them.
"""

from __future__ import annotations

from orchestrator.domain.documents.recovery import (
    LateOutcome,
    ManualGap,
    ObjectInDoubt,
    ProcessLiveness,
    RecoveryDocument,
    RecoveryStep,
    StepEvidence,
)
from orchestrator.domain.record.objects import Doubt, ManualSearch, Readback, Resources
from orchestrator.domain.record.record import Attempt, Fault, OperationRecord, Retention
from orchestrator.domain.record.run_record import InFlight, NextCommand
from orchestrator.domain.record.states import Condition, Liveness, Status, StepStatus, Verdict
from orchestrator.domain.recovery.advice import advise
from orchestrator.domain.recovery.command_line import RecordedBlueprint
from orchestrator.domain.recovery.commands import offers
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, StepFacts
from orchestrator.domain.recovery.messages import hint_of
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import Refused
from tests.fakes.entries import entry
from tests.fakes.journals import refs
from tests.golden.streams import CAPACITY, RUN, at

EARLIER = "20260714-090000-a1b2"


WEB = RecordedBlueprint("web", "prod")


def record(step: str, sequence: int, **fields: Json) -> OperationRecord:
    filled: dict[str, Json] = {"updated_at": at(32), **fields}
    return entry(Target("web", "prod", step), sequence, **filled)


def row(context: RecoveryContext, **evidence: Json) -> RecoveryStep:
    """
    The step with the actions that the table gives it.
    """
    known, advice = context.record, advise(context)
    fault = known.error if known else None
    return RecoveryStep(
        step=context.step,
        target=f"web/prod/{context.step}",
        status=StepStatus(str(known.status)) if known else StepStatus.PENDING,
        condition=context.facts.condition,
        sequence=known.sequence if known else None,
        run_id=known.run_id if known else None,
        updated_at=known.updated_at if known else None,
        situation=advice.situation,
        last_error=known.last_error if known else None,
        hint=hint_of(fault, context.doubts) if fault else None,
        blocked_by=() if known else tuple(context.unready),
        evidence=StepEvidence.model_validate(evidence),
        actions=offers(advice),
        recommended=advice.recommended,
    )


def doubt(answered: Readback | None = None) -> Doubt:
    return Doubt(
        address="aws_instance.this",
        action="create",
        started_at=at(15),
        at=at(32),
        why="its create ended in an error and the provider state does not hold it",
        readback=answered,
    )


def uncertain(item: Doubt) -> ObjectInDoubt:
    return ObjectInDoubt(
        address=item.address,
        action=item.action,
        after=item.started_at,
        before=at(32),
        why=item.why,
        readback=item.readback,
    )


def step(
    name: str, known: OperationRecord | None, facts: StepFacts, **position: Json
) -> RecoveryContext:
    return RecoveryContext(WEB, name, known, facts, **position)


LOST = doubt(
    Readback(
        verdict="unknown",
        method="none",
        why="the step has neither `identity` nor `search` for aws_instance.this",
        at=at(100),
        look=ManualSearch(
            since=at(15),
            until=at(32),
            inputs={"subnet_id": "subnet-0a1", "password": "(sensitive)"},
            provider={"region": "eu-west-1"},
        ),
    )
)
REACHED = doubt(
    Readback(
        verdict="exists",
        method="search",
        ids=("i-0a1b2c",),
        why="it has the tag",
        at=at(100),
        ownership="ours",
        evidence="it carries the tag of this target",
    )
)
APPLY = Fault(code="engine_failed", phase="apply", summary=CAPACITY.summary)
CHECK = Fault(code="check_failed", phase="verify", summary="http https://web.example: status 503")
LOCK = Fault(
    code="state_locked", phase="lock", summary="the provider state is locked: id 4e1f, who ann@ci"
)
FAILED: dict[str, Json] = {
    "status": Status.ERROR,
    "run_id": RUN,
    "failed_command": "apply",
    "error": APPLY,
    "last_error": APPLY.summary,
}
SCOPE = "aws (region=eu-west-1)"
UNVERIFIED = Refused(
    "unverified",
    f"compute was not verified in run {EARLIER}: it has no checks",
    hint="go back to it all the same with --unverified REASON",
)


def recovery() -> RecoveryDocument:
    """
    A night in which much went wrong at once.
    """
    flight = InFlight(
        target="web/prod/queue", address="aws_sqs_queue.this", action="create", started_at=at(20)
    )
    tainted = Resources(tainted=("aws_db_instance.this",), inventory=refs("aws_db_instance.this d"))
    return RecoveryDocument(
        project="acme",
        blueprint="web",
        environment="prod",
        verdict=Verdict.INTERRUPTED,
        steps=(
            row(
                step("network", record("network", 4, run_id=EARLIER), StepFacts()),
            ),
            row(
                step(
                    "compute",
                    record("compute", 6, resources=Resources(in_doubt=(LOST,)), **FAILED),
                    StepFacts(unanswerable=frozenset({LOST.address}), scope=SCOPE),
                    dependents={"bootstrap": "ok"},
                ),
                command="apply",
                error=APPLY,
                in_doubt=(uncertain(LOST),),
                journal="partial",
                not_attempted=("aws_eip.this",),
            ),
            row(
                step(
                    "worker",
                    record("worker", 3, resources=Resources(in_doubt=(REACHED,)), **FAILED),
                    StepFacts(),
                ),
                command="apply",
                error=APPLY,
                in_doubt=(uncertain(REACHED),),
                journal="complete",
            ),
            row(
                step(
                    "database",
                    record("database", 9, resources=tainted, **FAILED),
                    StepFacts(
                        failed_run=RUN,
                        earlier_run=EARLIER,
                        blockers={Remedy.ROLLBACK: UNVERIFIED},
                    ),
                ),
                command="apply",
                error=APPLY,
                journal="complete",
                tainted=("aws_db_instance.this",),
                objects=1,
            ),
            row(
                step(
                    "queue",
                    record("queue", 2, status="running", active_command="apply", run_id=RUN),
                    StepFacts(
                        condition=Condition.SILENT,
                        unproven_process=f"run {RUN} (run process 4711 on runner-7)",
                    ),
                ),
                command="apply",
                in_flight=(flight,),
                processes=(
                    ProcessLiveness(role="run", host="runner-7", pid=4711, state=Liveness.UNKNOWN),
                ),
                heartbeat_age=190.0,
            ),
            row(
                step(
                    "site",
                    record(
                        "site",
                        5,
                        **(FAILED | {"error": CHECK, "last_error": CHECK.summary}),
                    ),
                    StepFacts(failed_run=RUN, earlier_run=EARLIER),
                ),
                command="apply",
                error=CHECK,
                objects=2,
                last_attempt=Attempt(command="apply", run_id=RUN, at=at(60), error=LOCK),
                lock=LOCK.summary,
                late=(
                    LateOutcome(
                        run_id=EARLIER,
                        status=Status.ERROR,
                        sequence=4,
                        file=".orchestrator/runs/x/late-site-4.json",
                    ),
                ),
            ),
            row(
                step(
                    "dns",
                    record(
                        "dns",
                        2,
                        status="retained",
                        retained=Retention(
                            reason="shared zone", owner="net-team", review_by="2027-06-30"
                        ),
                    ),
                    StepFacts(),
                ),
            ),
            row(step("bootstrap", None, StepFacts(), unready={"compute": "error"})),
        ),
        manual_gap=ManualGap(
            code="unverified",
            message=f"no run of web/prod is known to be verified: in {EARLIER}, the newest that "
            "ended ok, no check vouches for network; a person must know that it was good",
            steps=("network",),
        ),
        orphaned=("web/prod/legacy",),
        next=(
            NextCommand(
                command="orchestrator apply web -e prod --unfinished",
                why="go on with the rest, once the steps above are recovered",
            ),
        ),
    )
