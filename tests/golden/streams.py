"""
Event streams as the core reports them, one function per story.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestrator.domain.events.events import (
    CheckEvent,
    EngineDiagnostic,
    EngineLine,
    Event,
    LiveObjects,
    Note,
    ObjectEvent,
    PhaseStarted,
    PlanReady,
    RunFinished,
    RunStarted,
    SignalSeen,
    StepDeferred,
    StepFinished,
    StepRetried,
)
from orchestrator.domain.record.objects import (
    Absence,
    Action,
    CheckedObject,
    Doubt,
    PlannedAction,
    Readback,
)
from orchestrator.domain.record.record import Check, Diagnostic, Fault, Verification
from orchestrator.domain.record.run_record import NextCommand, StepRun
from orchestrator.domain.record.states import StepStatus

START = datetime(2026, 7, 15, 3, 12, 0, tzinfo=UTC)
RUN = "20260715-031200-k3f9"
DIRECTORY = f".orchestrator/runs/{RUN}"
STEPS = ("network", "compute", "bootstrap", "dns")


def at(seconds: float) -> datetime:
    """
    So many seconds into the run.
    """
    return START + timedelta(seconds=seconds)


def started(command: str, steps: tuple[str, ...] = STEPS) -> RunStarted:
    return RunStarted(
        at=START,
        run_id=RUN,
        command=command,
        blueprint="web",
        environment="prod",
        engine="terraform 1.11.4",
        engine_why="the kind that last wrote these targets",
        steps=steps,
        store="sqlite:.orchestrator/operations.db",
        directory=DIRECTORY,
    )


def phases(step: str, second: float, *names: str) -> list[Event]:
    return [PhaseStarted(at=at(second + n), step=step, phase=name) for n, name in enumerate(names)]


def actions(*items: tuple[Action, str]) -> tuple[PlannedAction, ...]:
    return tuple(PlannedAction(action=action, address=address) for action, address in items)


def finished(
    run: StepRun, second: float, *, seconds: float = 0, changed: bool = False
) -> StepFinished:
    return StepFinished(
        at=at(second),
        step=run.step,
        status=run.status,
        result=run,
        changed=changed,
        seconds=seconds,
        error=run.error,
    )


def step(name: str, status: StepStatus, **fields: object) -> StepRun:
    return StepRun.model_validate(
        {"step": name, "target": f"web/prod/{name}", "status": status, **fields}
    )


UNVERIFIED = Verification(verdict="unverified", at=at(9))
VERIFIED = Verification(
    verdict="verified", checks=(Check(name="http /healthz", passed=True),), at=at(50)
)
NETWORK_OBJECTS = ("aws_vpc.main", 'aws_subnet.this["eu-west-1a"]', 'aws_subnet.this["eu-west-1b"]')
CAPACITY = Diagnostic(
    summary="creating EC2 Instance: operation error EC2: RunInstances, https response error "
    "StatusCode: 500, InsufficientInstanceCapacity",
    detail="We currently do not have sufficient m7i.4xlarge capacity in the Availability Zone you "
    "requested (eu-west-1a).\nOur system will be working on provisioning additional capacity.",
    address="aws_instance.this",
    at="main.tf:12",
)


def network_applied() -> list[Event]:
    """
    The first step, created whole.
    """
    run = step(
        "network",
        StepStatus.OK,
        attempts=1,
        sequence=2,
        created=NETWORK_OBJECTS,
        verification=UNVERIFIED,
    )
    events: list[Event] = phases("network", 1, "prepare", "init", "plan")
    events.append(
        PlanReady(
            at=at(4),
            step="network",
            actions=actions(*(("create", address) for address in NETWORK_OBJECTS)),
            outputs=("subnet_ids", "vpc_id"),
            inputs={"cidr": "10.8.0.0/16"},
        )
    )
    events += phases("network", 5, "apply")
    for n, address in enumerate(NETWORK_OBJECTS):
        events.append(
            ObjectEvent(
                at=at(6 + n), step="network", state="began", address=address, action="create"
            )
        )
    for n, address in enumerate(NETWORK_OBJECTS):
        events.append(
            ObjectEvent(
                at=at(7 + n),
                step="network",
                state="done",
                address=address,
                action="create",
                id=f"id-0a1b2c3d4e5f{n}",
                elapsed=1,
            )
        )
    return [*events, finished(run, 10, seconds=9.2, changed=True)]


def all_ok() -> list[Event]:
    """
    An apply that ends well: two steps change, one is unchanged, one retained; one phase retried.
    """
    compute = step(
        "compute",
        StepStatus.OK,
        attempts=2,
        sequence=7,
        updated=("aws_instance.this",),
        replaced=("aws_launch_template.this",),
        verification=VERIFIED,
    )
    bootstrap = step("bootstrap", StepStatus.OK, attempts=1, verification=UNVERIFIED)
    dns = step("dns", StepStatus.RETAINED, reason="shared zone (net-team, review by 2027-06-30)")
    return [
        started("apply"),
        Note(
            at=at(0),
            level="warning",
            message="TF_VAR_region is not passed on",
            hint="give it as an input of the blueprint",
        ),
        *network_applied(),
        *phases("compute", 11, "prepare", "init", "plan"),
        StepRetried(
            at=at(14), step="compute", phase="plan", attempt=2, reason="RequestLimitExceeded"
        ),
        PlanReady(
            at=at(18),
            step="compute",
            actions=actions(
                ("update", "aws_instance.this"), ("replace", "aws_launch_template.this")
            ),
            drifted=actions(("update", "aws_instance.this")),
        ),
        *phases("compute", 19, "apply"),
        ObjectEvent(
            at=at(20),
            step="compute",
            state="began",
            address="aws_instance.this",
            action="update",
            id="i-0ff1ce",
        ),
        *(
            ObjectEvent(
                at=at(20 + n),
                step="compute",
                state="going",
                address="aws_instance.this",
                action="update",
                id="i-0ff1ce",
                elapsed=n,
            )
            for n in range(5, 95, 5)
        ),
        ObjectEvent(
            at=at(118),
            step="compute",
            state="done",
            address="aws_instance.this",
            action="update",
            id="i-0ff1ce",
            elapsed=98,
        ),
        EngineLine(
            at=at(119), step="compute", address="terraform_data.seed", line="seeding: 100 %"
        ),
        *phases("compute", 120, "verify"),
        CheckEvent(
            at=at(121), step="compute", name="http https://web.example/healthz", passed=True
        ),
        finished(compute, 122, seconds=111, changed=True),
        *phases("bootstrap", 123, "prepare", "plan"),
        PlanReady(at=at(125), step="bootstrap", actions=()),
        finished(bootstrap, 126, seconds=2.6),
        finished(dns, 126),
        RunFinished(
            at=at(127),
            run_id=RUN,
            command="apply",
            exit_code=0,
            verdict="ok",
            steps=(
                network_applied()[-1].result,  # type: ignore[attr-defined]
                compute,
                bootstrap,
                dns,
            ),
            alive=(
                LiveObjects(step="network", objects=NETWORK_OBJECTS),
                LiveObjects(
                    step="compute", objects=("aws_instance.this", "aws_launch_template.this")
                ),
                LiveObjects(step="bootstrap", objects=("terraform_data.seed",)),
            ),
            seconds=127,
            directory=DIRECTORY,
        ),
    ]


def failed_apply() -> list[Event]:
    """
    The second step fails half-way: one object made, one tainted, one in doubt, one not attempted.
    """
    doubt = Doubt(
        address="aws_instance.this",
        action="create",
        started_at=at(15),
        why="its create errored and provider state does not hold it",
    )
    fault = Fault(
        code="engine_failed",
        phase="apply",
        summary=CAPACITY.summary,
        resources=("aws_instance.this",),
        diagnostics=(CAPACITY,),
    )
    compute = step(
        "compute",
        StepStatus.ERROR,
        attempts=1,
        sequence=2,
        error=fault,
        last_error=fault.summary,
        created=("aws_security_group.web",),
        not_attempted=("aws_eip.this",),
        in_doubt=(doubt,),
        directory=".orchestrator/work/web/prod/compute",
    )
    bootstrap = step("bootstrap", StepStatus.PENDING, blocked_by=("compute",))
    dns = step("dns", StepStatus.PENDING, blocked_by=("compute",))
    return [
        started("apply"),
        *network_applied(),
        *phases("compute", 11, "prepare", "init", "plan"),
        PlanReady(
            at=at(13),
            step="compute",
            actions=actions(
                ("create", "aws_security_group.web"),
                ("create", "aws_instance.this"),
                ("create", "terraform_data.disk"),
                ("create", "aws_eip.this"),
            ),
        ),
        *phases("compute", 14, "apply"),
        ObjectEvent(
            at=at(15),
            step="compute",
            state="began",
            address="aws_security_group.web",
            action="create",
        ),
        ObjectEvent(
            at=at(15), step="compute", state="began", address="aws_instance.this", action="create"
        ),
        ObjectEvent(
            at=at(17),
            step="compute",
            state="done",
            address="aws_security_group.web",
            action="create",
            id="sg-0c0ffee",
            elapsed=2,
        ),
        ObjectEvent(
            at=at(25),
            step="compute",
            state="going",
            address="aws_instance.this",
            action="create",
            elapsed=10,
        ),
        ObjectEvent(
            at=at(31),
            step="compute",
            state="failed",
            address="aws_instance.this",
            action="create",
            elapsed=16,
        ),
        EngineDiagnostic(at=at(31), step="compute", diagnostic=CAPACITY),
        Note(
            at=at(31),
            step="compute",
            level="error",
            message="errored.tfstate holds provider state that could not be saved: "
            ".orchestrator/work/web/prod/compute/errored.tfstate",
            hint="orchestrator reconcile web -e prod --step compute --push-errored-state",
        ),
        finished(compute, 32, seconds=21, changed=True),
        finished(bootstrap, 32),
        finished(dns, 32),
        RunFinished(
            at=at(32),
            run_id=RUN,
            command="apply",
            exit_code=11,
            verdict="error",
            steps=(
                network_applied()[-1].result,  # type: ignore[attr-defined]
                compute,
                bootstrap,
                dns,
            ),
            alive=(
                LiveObjects(step="network", objects=NETWORK_OBJECTS),
                LiveObjects(
                    step="compute",
                    objects=("aws_security_group.web", "terraform_data.disk"),
                    tainted=("terraform_data.disk",),
                    in_doubt=(doubt,),
                ),
            ),
            next=(
                NextCommand(
                    command="orchestrator recover web -e prod",
                    why="shows what may exist and which actions are safe",
                ),
                NextCommand(
                    command="orchestrator reconcile web -e prod --step compute --at 2",
                    why="asks the provider whether aws_instance.this exists; changes only the "
                    "record",
                ),
            ),
            error=fault.summary,
            seconds=32.4,
            directory=DIRECTORY,
        ),
    ]


def stopped() -> list[Event]:
    """
    Ctrl-C while an object is being made: the engine saves what it has, the rest is pending.
    """
    fault = Fault(
        code="stopped",
        phase="apply",
        summary="stopped by SIGINT; the engine ended in order and saved its state",
        resources=("aws_instance.this",),
    )
    compute = step(
        "compute",
        StepStatus.ERROR,
        attempts=1,
        sequence=2,
        error=fault,
        last_error=fault.summary,
        not_attempted=("aws_eip.this",),
    )
    rest = tuple(
        step(name, StepStatus.PENDING, blocked_by=("compute",), reason="stopped by SIGINT")
        for name in ("bootstrap", "dns")
    )
    return [
        started("apply"),
        *phases("compute", 14, "apply"),
        ObjectEvent(
            at=at(15), step="compute", state="began", address="aws_instance.this", action="create"
        ),
        SignalSeen(
            at=at(22),
            signal="SIGINT",
            message="starting nothing more; the engine was told to stop and is being waited for",
        ),
        EngineLine(at=at(22), step="compute", line="Interrupt received, gracefully shutting down"),
        SignalSeen(at=at(24), signal="SIGTERM", message="noted; already stopping"),
        ObjectEvent(
            at=at(31),
            step="compute",
            state="failed",
            address="aws_instance.this",
            action="create",
            elapsed=16,
        ),
        finished(compute, 33, seconds=19),
        *(finished(run, 33) for run in rest),
        RunFinished(
            at=at(33),
            run_id=RUN,
            command="apply",
            exit_code=130,
            verdict="error",
            steps=(
                step("network", StepStatus.OK, verification=UNVERIFIED),
                compute,
                *rest,
            ),
            alive=(
                LiveObjects(step="network", objects=NETWORK_OBJECTS),
                LiveObjects(
                    step="compute", objects=("aws_instance.this",), tainted=("aws_instance.this",)
                ),
            ),
            next=(
                NextCommand(
                    command=f"orchestrator retry web -e prod --run {RUN}",
                    why="goes on where it stopped; replaces the tainted aws_instance.this",
                ),
                NextCommand(
                    command="orchestrator destroy web -e prod", why="removes what is alive"
                ),
            ),
            error="stopped by SIGINT",
            seconds=33,
            directory=DIRECTORY,
        ),
    ]


def in_doubt() -> list[Event]:
    """
    An apply meets a step whose last run was killed: it is settled first, and stays in doubt.
    """
    doubts = (
        Doubt(
            address="aws_db_instance.main",
            action="create",
            started_at=at(-3600),
            why="planned, the journal ends before its outcome, and provider state does not hold it",
            readback=Readback(
                verdict="exists",
                method="identity",
                ids=("web-prod-main",),
                why="the provider has an object with the id web-prod-main",
                at=at(-600),
            ),
        ),
        Doubt(
            address='aws_route53_record.name["www"]',
            action="delete",
            id="Z0123456789ABC_www.example.com_A",
            why="its delete began and never ended",
        ),
    )
    fault = Fault(
        code="interrupted",
        phase="apply",
        summary="the machine of run 20260715-021100-aaaa went away during apply",
    )
    database = step(
        "database",
        StepStatus.ERROR,
        sequence=4,
        error=fault,
        last_error=fault.summary,
        in_doubt=doubts,
    )
    web = step("web", StepStatus.PENDING, blocked_by=("database",))
    return [
        started("apply", ("database", "web")),
        Note(
            at=at(0),
            step="database",
            message="settled from the evidence of run 20260715-021100-aaaa: error, 2 in doubt",
        ),
        finished(database, 1),
        finished(web, 1),
        RunFinished(
            at=at(1),
            run_id=RUN,
            command="apply",
            exit_code=11,
            verdict="error",
            steps=(database, web),
            alive=(LiveObjects(step="database", objects=("aws_db_subnet_group.main",)),),
            next=(
                NextCommand(
                    command="orchestrator reconcile web -e prod --step database --at 4",
                    why="asks the provider; only then apply goes on",
                ),
            ),
            error="nothing was started: objects of database are in doubt",
            hint="reconcile first",
            seconds=0.8,
            directory=DIRECTORY,
        ),
    ]


def destroyed() -> list[Event]:
    """
    A destroy in reverse order, absence confirmed by the provider; one step is retained.
    """
    absence = Absence(
        verdict="confirmed",
        method="provider",
        checked=(CheckedObject(address="aws_instance.this", state="gone"),),
        at=at(40),
    )
    compute = step(
        "compute",
        StepStatus.DESTROYED,
        attempts=1,
        sequence=5,
        deleted=("aws_instance.this",),
        absence=absence,
    )
    network = step(
        "network", StepStatus.ABSENT, absence=absence.model_copy(update={"method": "never_applied"})
    )
    dns = step("dns", StepStatus.RETAINED, reason="shared zone (net-team, review by 2027-06-30)")
    return [
        started("destroy", ("dns", "compute", "network")),
        finished(dns, 1),
        *phases("compute", 1, "init", "plan"),
        PlanReady(at=at(4), step="compute", actions=actions(("delete", "aws_instance.this"))),
        *phases("compute", 5, "destroy"),
        ObjectEvent(
            at=at(6),
            step="compute",
            state="began",
            address="aws_instance.this",
            action="delete",
            id="i-0ff1ce",
        ),
        ObjectEvent(
            at=at(38),
            step="compute",
            state="done",
            address="aws_instance.this",
            action="delete",
            id="i-0ff1ce",
            elapsed=32,
        ),
        *phases("compute", 39, "readback"),
        finished(compute, 41, seconds=40, changed=True),
        finished(network, 41),
        RunFinished(
            at=at(41),
            run_id=RUN,
            command="destroy",
            exit_code=0,
            verdict="destroyed_with_retained",
            steps=(dns, compute, network),
            alive=(LiveObjects(step="dns", objects=("aws_route53_zone.main",)),),
            seconds=41,
            directory=DIRECTORY,
        ),
    ]


def nothing_to_do() -> list[Event]:
    """
    An apply that changes nothing.
    """
    runs = tuple(
        step(name, StepStatus.OK, verification=UNVERIFIED) for name in ("network", "compute")
    )
    events: list[Event] = [started("apply", ("network", "compute"))]
    for n, run in enumerate(runs):
        events += [
            *phases(run.step, 2 * n, "prepare", "plan"),
            PlanReady(at=at(2 * n + 1), step=run.step, actions=()),
            finished(run, 2 * n + 2, seconds=1.4),
        ]
    events.append(
        RunFinished(
            at=at(4),
            run_id=RUN,
            command="apply",
            exit_code=0,
            verdict="ok",
            steps=runs,
            alive=(
                LiveObjects(step="network", objects=NETWORK_OBJECTS),
                LiveObjects(step="compute", objects=("aws_instance.this",)),
            ),
            seconds=3.1,
            directory=DIRECTORY,
        )
    )
    return events


def plan_deferred() -> list[Event]:
    """
    A plan of what was never applied: the second step waits, the third cannot be planned.
    """
    broken = Diagnostic(
        summary="Invalid index",
        detail="The given key does not identify an element in this collection value.",
        at="main.tf:7",
    )
    fault = Fault(
        code="engine_failed", phase="plan", summary="Invalid index", diagnostics=(broken,)
    )
    network = step("network", StepStatus.SKIPPED, reason="planned only")
    compute = step("compute", StepStatus.PENDING, blocked_by=("network",))
    dns = step("dns", StepStatus.ERROR, error=fault, last_error=fault.summary)
    return [
        started("plan", ("network", "compute", "dns")),
        *phases("network", 1, "init", "plan"),
        PlanReady(
            at=at(3),
            step="network",
            actions=actions(
                ("create", "aws_vpc.main"),
                ("update", "aws_route_table.main"),
                ("replace", "aws_nat_gateway.main"),
                ("delete", "aws_eip.old"),
                ("forget", "aws_iam_role.moved"),
                ("import", "aws_s3_bucket.logs"),
            ),
            drifted=actions(("delete", "aws_flow_log.main")),
            outputs=("vpc_id",),
        ),
        StepDeferred(
            at=at(4),
            step="compute",
            reason="needs outputs of network, which has never been applied",
            waits_for=("network",),
        ),
        EngineDiagnostic(at=at(6), step="dns", diagnostic=broken),
        finished(network, 6),
        finished(compute, 6),
        finished(dns, 6),
        RunFinished(
            at=at(6),
            run_id=RUN,
            command="plan",
            exit_code=10,
            verdict="pending",
            steps=(network, compute, dns),
            error="Invalid index",
            seconds=6,
            directory=DIRECTORY,
        ),
    ]


STREAMS: dict[str, Callable[[], list[Event]]] = {
    "all-ok": all_ok,
    "failed-apply": failed_apply,
    "stopped": stopped,
    "in-doubt": in_doubt,
    "destroyed": destroyed,
    "nothing-to-do": nothing_to_do,
    "plan-deferred": plan_deferred,
}
