"""
Declared actions as the core reports them: a compensation that fails, and work before a destroy.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.domain.documents.status import StatusDocument
from orchestrator.domain.events.events import (
    EngineLine,
    Event,
    LiveObjects,
    Note,
    ObjectEvent,
    PlanReady,
    RunFinished,
)
from orchestrator.domain.json_model import HookTarget
from orchestrator.domain.record.objects import Absence, CheckedObject, Doubt
from orchestrator.domain.record.record import Fault, HookResult
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import Status, StepStatus, Verdict
from tests.golden.samples import DNS, EARLIER, NETWORK, state, status
from tests.golden.streams import DIRECTORY, RUN, actions, at, finished, phases, started, step

ARCHIVE = 'compute["@before_destroy"]'
IMAGE = "aws_ami_from_instance.last"
_DRAIN = "bin/drain --pool ${outputs.pool_id} --within 10m"


def compensated() -> list[Event]:
    """
    The second of three compensations fails: the third is not begun.
    """
    fault = Fault(
        code="compensation_failed",
        phase="apply",
        summary=f"`{_DRAIN}` ended with exit code 3: 2 sessions are still open",
    )
    dns = step("dns", StepStatus.OK, sequence=4, reason="compensated by bin/unpublish")
    compute = step("compute", StepStatus.ERROR, sequence=6, error=fault, last_error=fault.summary)
    network = step("network", StepStatus.PENDING, blocked_by=("compute",))
    return [
        started("compensate", ("network", "compute", "dns")),
        *phases("dns", 1, "compensate"),
        EngineLine(at=at(2), step="dns", line="unpublished www.example"),
        finished(dns, 3, seconds=2, changed=True),
        *phases("compute", 3, "compensate"),
        EngineLine(at=at(5), step="compute", line="closing 14 sessions"),
        EngineLine(at=at(9), step="compute", line="2 sessions are still open"),
        finished(compute, 9, seconds=6, changed=True),
        finished(network, 9),
        RunFinished(
            at=at(9),
            run_id=RUN,
            command="compensate",
            exit_code=10,
            verdict="error",
            steps=(network, compute, dns),
            alive=(LiveObjects(step="compute", objects=("aws_instance.this",)),),
            next=(
                NextCommand(
                    command="orchestrator compensate web -e prod --reason WHY",
                    why="continue from here, once the cause is fixed",
                ),
            ),
            seconds=9,
            directory=DIRECTORY,
        ),
    ]


def archived() -> list[Event]:
    """
    What comes before a destroy is done by a module in a root of its own.
    """
    gone = CheckedObject(address="aws_instance.this", id="i-0a1", state="gone")
    compute = step(
        "compute",
        StepStatus.DESTROYED,
        sequence=9,
        deleted=("aws_instance.this",),
        absence=Absence(verdict="confirmed", method="state", checked=(gone,), at=at(20)),
    )
    return [
        started("destroy", ("compute",)),
        Note(at=at(1), step="compute", message="before it is destroyed: module ../modules/image"),
        *phases("compute", 1, "plan"),
        PlanReady(at=at(3), step="compute", actions=actions(("delete", "aws_instance.this"))),
        *phases(ARCHIVE, 4, "init", "plan"),
        PlanReady(at=at(6), step=ARCHIVE, actions=actions(("create", IMAGE))),
        *phases("compute", 6, "before_destroy"),
        *phases(ARCHIVE, 6, "apply"),
        ObjectEvent(
            at=at(7),
            step=ARCHIVE,
            state="done",
            address=IMAGE,
            action="create",
            id="ami-0c3",
            elapsed=6,
        ),
        *phases("compute", 14, "destroy"),
        ObjectEvent(
            at=at(19),
            step="compute",
            state="done",
            address="aws_instance.this",
            action="delete",
            elapsed=5,
        ),
        finished(compute, 20, seconds=19, changed=True),
        RunFinished(
            at=at(20),
            run_id=RUN,
            command="destroy",
            exit_code=0,
            verdict="destroyed",
            steps=(compute,),
            alive=(LiveObjects(step=ARCHIVE, objects=(IMAGE,)),),
            seconds=20,
            directory=DIRECTORY,
        ),
    ]


def undone() -> StatusDocument:
    """
    Steps that were compensated, or were cut short in it, and what their modules have left.
    """
    withdrawn = "release 41 is withdrawn"
    return status(
        Verdict.ERROR,
        NETWORK.model_copy(
            update={
                "compensation": HookResult(
                    verdict="done",
                    by="bin/detach ${outputs.vpc_id}",
                    run_id=RUN,
                    at=at(20),
                    ended_at=at(24),
                    exit_code=0,
                    reason=withdrawn,
                )
            }
        ),
        state(
            "compute",
            StepStatus.ERROR,
            sequence=6,
            run_id=RUN,
            failed_command="compensate",
            last_error=f"`{_DRAIN}` was killed; what it had done by then is not known",
            updated_at=at(32),
            compensation=HookResult(
                verdict="unknown",
                by=_DRAIN,
                run_id=RUN,
                at=at(20),
                ended_at=at(32),
                reason=withdrawn,
            ),
            before_destroy=HookResult(
                verdict="skipped",
                by="module ../modules/image",
                run_id=EARLIER,
                at=at(-64_800),
                reason="taken by hand",
            ),
            action_roots=(
                HookTarget(
                    target=f"web/prod/{ARCHIVE}",
                    status=Status.ERROR,
                    run_id=EARLIER,
                    objects=("aws_ebs_snapshot.last",),
                    in_doubt=(
                        Doubt(
                            address=IMAGE,
                            action="create",
                            started_at=at(-64_900),
                            why="its create began and never ended",
                        ),
                    ),
                ),
            ),
        ),
        DNS,
    )


STREAMS: dict[str, Callable[[], list[Event]]] = {
    "compensated": compensated,
    "archived": archived,
}
