"""
Documents of reading commands as the queries return them, and the texts made from them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from orchestrator.domain.documents.documents import (
    CheckedBlueprint,
    EngineDocument,
    GraphDocument,
    GraphStep,
    ProblemDocument,
    ValidationDocument,
)
from orchestrator.domain.documents.run import (
    AttemptEvidence,
    EvidenceFile,
    HistoryDocument,
    HistoryEntry,
    RunDocument,
    RunLine,
    RunsDocument,
    StepOutcome,
    teardown_report,
)
from orchestrator.domain.documents.status import StatusDocument, StatusListDocument, StepState
from orchestrator.domain.record.objects import Doubt, ManualSearch, ObjectRef, Readback
from orchestrator.domain.record.record import (
    Actor,
    EngineRef,
    Lineage,
    OutputOrigin,
    Retention,
    Source,
    Verification,
)
from orchestrator.domain.record.run_record import (
    Completed,
    InFlight,
    NextCommand,
    RunRecord,
    StepRun,
)
from orchestrator.domain.record.states import Condition, Status, StepStatus, Verdict
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, Invalid, Location, OrchestratorError, Problem, Refused
from orchestrator.views.errors import error_document, error_text, validation_text
from orchestrator.views.listings import engine_text, graph_dot, graph_mermaid, graph_text
from orchestrator.views.page import Paper
from orchestrator.views.plan import plan_text
from orchestrator.views.plan_reports import findings, gitlab_report, junit, markdown, sarif
from orchestrator.views.recovery import recovery_text
from orchestrator.views.runs import history_text, run_text, runs_text
from orchestrator.views.status import status_list_text, status_text
from tests.golden import plans
from tests.golden.recovery_documents import recovery
from tests.golden.streams import CAPACITY, DIRECTORY, RUN, START, at, failed_apply

NOW = START + timedelta(minutes=3)
EARLIER = "20260714-090000-a1b2"
ACTOR = Actor(user="ci", host="runner-7", ci="github https://ci.example/acme/web/actions/runs/81")
PERSON = Actor(user="kim", host="laptop")
VERIFIED = Verification(verdict="verified", at=at(-64_000))
DOUBT = Doubt(
    address="aws_instance.this",
    action="create",
    started_at=at(15),
    why="its create errored and provider state does not hold it",
    readback=Readback(
        verdict="unknown",
        method="search",
        why="the search found nothing, but it has never been seen to find one",
        at=at(60),
        look=ManualSearch(
            since=at(15),
            until=at(32),
            inputs={"name": "web", "password": "(sensitive)"},
            provider={"region": "eu-west-1"},
        ),
    ),
)


def state(step: str, status: StepStatus, **fields: object) -> StepState:
    return StepState.model_validate(
        {"step": step, "target": f"web/prod/{step}", "status": status, **fields}
    )


NETWORK = state(
    "network",
    StepStatus.OK,
    sequence=4,
    run_id=RUN,
    last_run_status="ok",
    module_ref="../modules/network",
    outputs={"subnet_ids": ["subnet-0a1", "subnet-0b2"], "vpc_id": "vpc-0abc"},
    outputs_from={
        "subnet_ids": OutputOrigin(run_id=RUN, at=at(10)),
        "vpc_id": OutputOrigin(run_id=RUN, at=at(10)),
    },
    sensitive_outputs=("vpn_key",),
    verification=VERIFIED,
    updated_at=at(10),
    directory=".orchestrator/work/web/prod/network",
)
COMPUTE = state(
    "compute",
    StepStatus.ERROR,
    sequence=6,
    run_id=RUN,
    last_run_status="error",
    module_ref="../modules/compute",
    failed_command="apply",
    last_error=CAPACITY.summary,
    in_doubt=(DOUBT,),
    outputs={"url": "https://web.example/" + "long/" * 30},
    outputs_from={"url": OutputOrigin(run_id=EARLIER, at=at(-64_800))},
    tainted=("terraform_data.disk",),
    updated_at=at(32),
    directory=".orchestrator/work/web/prod/compute",
)
BOOTSTRAP = state(
    "bootstrap",
    StepStatus.PENDING,
    last_run_status="pending",
    blocked_by=("compute",),
    module_ref="../modules/bootstrap",
)
DNS = state(
    "dns",
    StepStatus.RETAINED,
    sequence=2,
    run_id=EARLIER,
    last_run_status="pending",
    retained=Retention(reason="shared zone", owner="net-team", review_by="2027-06-30", was="ok"),
    updated_at=at(-64_800),
)
NEXT = (
    NextCommand(
        command="orchestrator recover web -e prod",
        why="shows what may exist and which actions are safe",
    ),
)


def status(verdict: Verdict, *steps: StepState, **fields: object) -> StatusDocument:
    return StatusDocument.model_validate(
        {
            "project": "acme",
            "blueprint": "web",
            "environment": "prod",
            "verdict": verdict,
            "steps": steps,
            **fields,
        }
    )


ERROR = status(
    Verdict.ERROR, NETWORK, COMPUTE, BOOTSTRAP, DNS, orphaned=("web/prod/legacy",), next=NEXT
)
OK = status(Verdict.OK, NETWORK, DNS)
PENDING = status(
    Verdict.PENDING, state("network", StepStatus.PENDING), state("compute", StepStatus.PENDING)
)
RUNNING = status(
    Verdict.RUNNING,
    state(
        "network",
        StepStatus.RUNNING,
        condition=Condition.LIVE,
        sequence=5,
        run_id=RUN,
        active_command="apply",
        updated_at=at(150),
        in_flight=(
            InFlight(
                target="web/prod/network",
                address="aws_nat_gateway.main",
                action="create",
                started_at=at(155),
            ),
        ),
        completed=(
            Completed(
                target="web/prod/network",
                address="aws_vpc.main",
                action="create",
                started_at=at(151),
                id="vpc-0a1b2c3d",
            ),
        ),
        more_completed=12,
    ),
    state(
        "compute",
        StepStatus.RUNNING,
        condition=Condition.INTERRUPTED,
        sequence=5,
        run_id=EARLIER,
        active_command="destroy",
        updated_at=at(-64_800),
    ),
    state(
        "database",
        StepStatus.RUNNING,
        condition=Condition.SILENT,
        sequence=9,
        run_id=EARLIER,
        active_command="apply",
        updated_at=at(-200_000),
    ),
    state(
        "cache",
        StepStatus.OK,
        sequence=3,
        run_id=RUN,
        updated_at=at(100),
        spooled=True,
        last_run_status="ok",
    ),
)


def history() -> HistoryDocument:
    return HistoryDocument(
        project="acme",
        target="web/prod/compute",
        entries=(
            HistoryEntry(
                sequence=6,
                entry_id="e6",
                status=Status.ERROR,
                previous_status=Status.RUNNING,
                failed_command="apply",
                last_error=CAPACITY.summary,
                run_id=RUN,
                updated_at=at(32),
                actor=ACTOR,
                in_doubt=(DOUBT,),
            ),
            HistoryEntry(
                sequence=5,
                entry_id="e5",
                status=Status.RUNNING,
                previous_status=Status.OK,
                active_command="apply",
                run_id=RUN,
                updated_at=at(14),
                actor=ACTOR,
                lineage=Lineage(kind="retry", from_run=EARLIER, reason="capacity is back"),
            ),
            HistoryEntry(
                sequence=4,
                entry_id="e4",
                status=Status.OK,
                previous_status=Status.RUNNING,
                run_id=EARLIER,
                updated_at=at(-64_800),
                actor=PERSON,
            ),
        ),
    )


def runs() -> RunsDocument:
    outcomes = (
        StepOutcome(step="network", status=StepStatus.OK),
        StepOutcome(step="compute", status=StepStatus.ERROR),
        StepOutcome(step="bootstrap", status=StepStatus.PENDING),
    )
    return RunsDocument(
        project="acme",
        runs=(
            RunLine(
                run_id="20260715-031450-zzzz",
                blueprint="web",
                environment="staging",
                command="destroy",
                started_at=at(170),
                actor=PERSON,
            ),
            RunLine(
                run_id=RUN,
                blueprint="web",
                environment="prod",
                command="apply",
                started_at=START,
                ended_at=at(32),
                exit_code=11,
                actor=ACTOR,
                lineage=Lineage(kind="retry", from_run=EARLIER),
                reason="capacity is back",
                steps=outcomes,
            ),
            RunLine(
                run_id=EARLIER,
                blueprint="web",
                environment="prod",
                command="apply",
                started_at=at(-64_900),
                ended_at=at(-64_800),
                exit_code=0,
                actor=PERSON,
                steps=outcomes[:1],
            ),
        ),
    )


def run() -> RunDocument:
    finished = failed_apply()[-1]
    return RunDocument(
        run=RunRecord(
            run_id=RUN,
            project="acme",
            blueprint="web",
            environment="prod",
            command="apply",
            actor=ACTOR,
            reason="capacity is back",
            lineage=Lineage(kind="retry", from_run=EARLIER),
            source=Source(revision="9fceb02", dirty=True, blueprint_path="blueprints/web.yaml"),
            engine=EngineRef(kind="terraform", version="1.11.4"),
            started_at=START,
            ended_at=at(32),
            exit_code=11,
            steps=finished.steps,  # type: ignore[attr-defined]
        ),
        directory=DIRECTORY,
        attempts=(
            AttemptEvidence(
                step="compute",
                number=1,
                directory=f"{DIRECTORY}/compute/1",
                files=(
                    EvidenceFile(name="plan.jsonl", size=812),
                    EvidenceFile(name="raw/apply.out", size=48_200),
                ),
            ),
        ),
    )


def teardown() -> RunDocument:
    """
    A destroy that met all there is: gone in two ways, by an earlier run, by the word of a person,
    kept, left, in doubt.
    """
    ids = {"aws_ebs_volume": "vol-1", "aws_route53_zone": "Z1", "aws_vpc": None}
    disk, zone, net = (
        ObjectRef(address=f"{kind}.this", type=kind, provider="aws", id=known)
        for kind, known in ids.items()
    )

    def gone(step: str, method: str, status: str, *checked: str) -> dict[str, object]:
        objects = [{"address": name, "id": "i-0abc", "state": "gone"} for name in checked]
        absence = {"verdict": "confirmed", "method": method, "checked": objects, "at": at(30)}
        return {"step": step, "status": status, "absence": absence}

    forgotten = {
        "address": "aws_sqs_queue.this",
        "state": "forgotten",
        "why": "sold, ticket 7",
        "run_id": "20260714-161000-a1b2",
    }
    word = {"verdict": "confirmed", "method": "person", "checked": [forgotten], "at": at(30)}
    rows: list[dict[str, object]] = [
        gone("compute", "provider", "destroyed", "aws_instance.this", "aws_eip.this"),
        gone("bootstrap", "parent", "destroyed", "terraform_data.seed"),
        gone("cache", "state", "skipped"),
        {"step": "mail", "status": "destroyed", "absence": word},
        {"step": "dns", "status": "skipped", "sequence": 2, "remaining": [zone],
         "retained": {"reason": "shared zone", "owner": "net-team", "review_by": "2026-06-30"}},
        {"step": "network", "status": "skipped", "sequence": 4, "remaining": [net],
         "reason": "needed by dns, which is retained"},
        {"step": "data", "status": "error", "sequence": 6, "remaining": [disk],
         "last_error": "DependencyViolation", "in_doubt": [DOUBT]},
        {"step": "spare", "status": "skipped", "reason": "never applied"},
        {"step": "queue", "status": "pending", "blocked_by": ["data"]},
    ]  # fmt: skip
    record = RunRecord(
        run_id=RUN,
        project="acme",
        blueprint="web",
        environment="prod",
        command="destroy",
        actor=PERSON,
        source=Source(blueprint_path="blueprints/web.yaml"),
        started_at=START,
        ended_at=at(32),
        exit_code=10,
        steps=tuple(
            StepRun.model_validate({"target": f"web/prod/{row['step']}", **row}) for row in rows
        ),
        orphaned=("web/prod/legacy",),
    )
    return RunDocument(
        run=record, directory=DIRECTORY, teardown=teardown_report(record, NOW.date())
    )


def _teardown_json() -> str:
    report = teardown().teardown
    assert report is not None, "it is one of a destroy"
    return report.model_dump_json(indent=2) + "\n"


def graph() -> GraphDocument:
    return GraphDocument(
        blueprint="web",
        environment="prod",
        steps=(
            GraphStep(step="network", module_ref="../modules/network", wave=1),
            GraphStep(step="assets", module_ref="../modules/bucket", wave=1),
            GraphStep(
                step='site["a"]',
                module_ref="../modules/compute",
                wave=2,
                needs=("assets", "network"),
            ),
            GraphStep(
                step="bootstrap",
                module_ref="../modules/bootstrap",
                wave=3,
                needs=('site["a"]',),
                owned_by='site["a"]',
            ),
        ),
    )


PROBLEMS = (
    Problem(
        'unknown input "cidrr" of module ../modules/network',
        Location("blueprints/web.yaml", 14, 9),
        'did you mean "cidr"?',
    ),
    Problem("steps form a cycle: network -> compute -> network", Location("blueprints/web.yaml")),
    Problem("ORCHESTRATOR_JOBS is not a number: 'many'"),
)


def validation() -> ValidationDocument:
    return ValidationDocument(
        valid=False,
        problems=(
            ProblemDocument(
                message=PROBLEMS[0].message,
                file="blueprints/web.yaml",
                line=14,
                column=9,
                hint=PROBLEMS[0].hint,
            ),
            ProblemDocument(message="the file is empty", file="blueprints/empty.yaml"),
        ),
    )


def validated() -> ValidationDocument:
    return ValidationDocument(
        valid=True,
        blueprints=(
            CheckedBlueprint(
                blueprint="web",
                file="blueprints/web.yaml",
                environments=("staging", "prod"),
                steps=("network", "compute"),
            ),
        ),
    )


ENGINE = EngineDocument(
    kind="terraform",
    version="1.11.4",
    program=("/opt/tools/terraform",),
    source="record",
    why="the kind that last wrote web/prod/network",
)
ERRORS: dict[str, OrchestratorError] = {
    "invalid": Invalid(PROBLEMS),
    "refused": Refused(
        "dependents",
        "environment prod of web is protected",
        hint="orchestrator apply web -e prod --confirm prod",
    ),
    "engine": EngineFailed("init", "terraform init failed: no such host", hint="look at the proxy"),
}

#: The text of a document on a paper, by the name of the golden file.
TEXTS: dict[str, Callable[[Paper], str]] = {
    "status-error": lambda paper: status_text(ERROR, paper),
    "status-ok": lambda paper: status_text(OK, paper),
    "status-running": lambda paper: status_text(RUNNING, paper),
    "status-pending": lambda paper: status_text(PENDING, paper),
    "status-all": lambda paper: status_list_text(
        StatusListDocument(project="acme", blueprints=(ERROR, OK, PENDING, RUNNING)), paper
    ),
    "status-none": lambda paper: status_list_text(
        StatusListDocument(project="acme", blueprints=()), paper
    ),
    "recovery": lambda paper: recovery_text(recovery(), paper),
    "recovery-verbose": lambda paper: recovery_text(recovery(), replace(paper, verbose=True)),
    "history": lambda paper: history_text(history(), paper),
    "runs": lambda paper: runs_text(runs(), paper),
    "run": lambda paper: run_text(run(), paper),
    "teardown": lambda paper: run_text(teardown(), replace(paper, verbose=True)),
    "plan": lambda paper: plan_text(plans.plan(), paper),
    "plan-verbose": lambda paper: plan_text(plans.plan(), replace(paper, verbose=True)),
    "plan-summary": lambda paper: plan_text(plans.plan(), paper, extent="summary"),
    "plan-names": lambda paper: plan_text(plans.without_values(), paper),
    "graph": lambda paper: graph_text(graph(), paper),
    "validation": lambda paper: validation_text(validation(), paper),
    "validated": lambda paper: validation_text(validated(), paper),
    "engine": lambda paper: engine_text(ENGINE, paper),
    "error-invalid": lambda paper: error_text(ERRORS["invalid"], paper),
    "error-refused": lambda paper: error_text(ERRORS["refused"], paper),
    "error-engine": lambda paper: error_text(ERRORS["engine"], paper),
}

#: What has no width: machine formats.
PLAIN: dict[str, Callable[[], str]] = {
    "graph.dot": lambda: graph_dot(graph()),
    "graph.mermaid": lambda: graph_mermaid(graph()),
    "teardown.json": lambda: _teardown_json(),
    "status.json": lambda: ERROR.to_json() + "\n",
    "recovery.json": lambda: recovery().to_json() + "\n",
    "error.json": lambda: error_document(ERRORS["invalid"], Paper(now=START)).to_json() + "\n",
    "plan.json": lambda: plans.plan().to_json() + "\n",
    "plan.markdown": lambda: markdown(
        plans.plan(), paper=Paper(now=NOW), full_text_at="the job's log"
    ),
    "plan.junit": lambda: junit(plans.plan()),
    "plan.sarif": lambda: sarif(findings(plans.plan(), blueprint="web.yaml"), version="1") + "\n",
    "plan.gitlab": lambda: gitlab_report(plans.plan()) + "\n",
}
