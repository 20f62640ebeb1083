"""
What `recover` sees: records, processes, runs and files, and what follows from them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import force_setattr

from orchestrator.app.commands.history import newest_runs, run_details, step_logs
from orchestrator.app.commands.recover import recover
from orchestrator.app.commands.status import check_expectation, status_of
from orchestrator.app.inspection.earlier_runs import READ, RUNS
from orchestrator.app.inspection.read_context import select_targets
from orchestrator.domain.blueprint.blueprint import BlueprintSummary, Retain, StepSummary
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.documents.recovery import RecoveryDocument, RecoveryStep
from orchestrator.domain.record.objects import (
    Doubt,
    Readback,
    ReadbackMethod,
    Resources,
    SavedState,
)
from orchestrator.domain.record.record import Attempt, Fault, Retention, Verification
from orchestrator.domain.record.run_record import (
    InFlight,
    Lease,
    ProcessIdentity,
    RunRecord,
    StepRun,
    evidence_blob,
    pack_evidence,
)
from orchestrator.domain.record.states import Condition, Liveness, Status, StepStatus, Verdict
from orchestrator.domain.recovery.commands import RemedyDocument
from orchestrator.domain.recovery.messages import PHASE_HINTS
from orchestrator.domain.recovery.rerun_rules import deployment_blob, snapshot_blob
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.errors import Refused, StoreUnavailable
from orchestrator.stores.sqlite import MemoryStore
from orchestrator.views.page import Paper
from orchestrator.views.runs import runs_text
from orchestrator.views.status import status_text
from tests.fakes.clock import START
from tests.fakes.entries import OWNER, claim, entry, run_record
from tests.fakes.journals import refs
from tests.fakes.read_context import NEEDS, Desk, outline

NOW = START + timedelta(minutes=3)
FIRST, SECOND, THIRD = (f"2030010{n}T000000000Z-aaaaaa" for n in (1, 2, 3))
FAILED = Fault(code="engine_failed", phase="apply", summary="no capacity")
LOST = Doubt(address="aws_instance.this", action="create", at=START, why="its create errored")


def look(
    desk: Desk, found: BlueprintSummary | None = None, now: datetime = NOW
) -> RecoveryDocument:
    return recover(desk.reader, found or outline(), now=now, settle=60.0)


def row(desk: Desk, step: str = "network", now: datetime = NOW) -> RecoveryStep:
    return next(item for item in look(desk, now=now).steps if item.step == step)


def action(found: RecoveryStep, name: str) -> RemedyDocument:
    return next(item for item in found.actions if item.action == name)


def ran(desk: Desk, run_id: str, *rows: StepRun, stored: bool = True, **fields: Json) -> RunRecord:
    """
    A run with its record in the store, and what it meant to do unless it is not ``stored``.
    """
    run = run_record(run_id, *rows, **{"exit_code": 0, **fields})
    desk.store.put_blob(f"runs/{run_id}/run.json", run.to_json().encode())
    if stored:
        desk.store.put_blob(deployment_blob("sha256:d"), b"{}")
        desk.store.put_blob(snapshot_blob("sha256:m"), b"tar")
    return run


def ended(step: str = "network", status: str = "ok", verdict: str = "verified") -> StepRun:
    return StepRun(
        step=step,
        target=f"web/prod/{step}",
        status=StepStatus(status),
        module_digest="sha256:m",
        verification=Verification.model_validate({"verdict": verdict, "at": START}),
        error=FAILED if status == "error" else None,
    )


def error(desk: Desk, step: str = "network", **fields: Json) -> None:
    filled: dict[str, Json] = {
        "status": "error",
        "failed_command": "apply",
        "error": FAILED,
        "last_error": FAILED.summary,
        "run_id": THIRD,
    }
    desk.has(step, **(filled | fields))


def test_a_failed_step_is_retried_and_its_dependents_wait(desk: Desk) -> None:
    """
    The failed run is in the store: retry is recommended; steps that need it wait for it, and never
    read as failed.
    """
    ran(desk, THIRD, ended(status="error"), ended("server", "pending"), exit_code=10)
    error(desk)
    document = look(desk)
    found = {item.step: item for item in document.steps}
    assert document.verdict is Verdict.ERROR
    assert found["network"].recommended == "retry"
    assert found["network"].evidence.error == FAILED
    assert found["network"].hint is not None
    server = found["server"]
    assert (server.status, server.recommended, server.blocked_by) == (
        StepStatus.PENDING,
        None,
        ("network",),
    )
    assert action(server, "redeploy").reason.code == "upstream"


def test_a_run_that_failed_long_ago_is_retried_like_any_other(desk: Desk) -> None:
    """
    However many runs have ended since, which is more than recover looks through.
    """
    ran(desk, FIRST, ended(status="error"), exit_code=10)
    for number in range(RUNS):
        ran(desk, f"20300106T000000{number:03}Z-000000", ended("server"))
    error(desk, run_id=FIRST)
    assert row(desk).recommended == "retry"


@pytest.mark.parametrize(
    ("patterns", "exclude", "selected"),
    [
        ([], [], None),
        (["net*", "dns"], [], {"network", "dns"}),
        ([], ["server"], {"network", "dns"}),
        (["gone"], [], {"gone"}),
        (["gone", "dns"], [], {"gone", "dns"}),
    ],
)
def test_steps_are_selected_by_pattern_and_orphans_by_name(
    desk: Desk, patterns: list[str], exclude: list[str], selected: set[str] | None
) -> None:
    """
    Alone the name of an orphan selects no step.
    """
    desk.has("gone")
    assert select_targets(desk.reader, outline(), patterns, exclude) == selected


def test_a_failed_run_is_offered_as_a_whole_too(desk: Desk) -> None:
    """
    A retry of the run does the steps that never ran from the files of then; the way from the files
    of today is told apart from it.
    """
    ran(desk, THIRD, ended(status="error"), ended("server", "pending"), exit_code=10)
    error(desk)
    commands = [item.command for item in look(desk).next]
    assert commands == [
        "orchestrator retry web -e prod",
        "orchestrator apply web -e prod --unfinished",
    ]


def test_failures_of_two_runs_are_not_offered_as_a_whole(desk: Desk) -> None:
    """
    Law: no guessing.
    Which of them would be retried is not guessed.
    """
    ran(desk, SECOND, ended("server", "error"), exit_code=10)
    ran(desk, THIRD, ended(status="error"), exit_code=10)
    error(desk)
    error(desk, "server", run_id=SECOND)
    commands = [item.command for item in look(desk).next]
    assert commands == ["orchestrator apply web -e prod --unfinished"]


def test_a_failed_run_that_is_not_in_the_store_is_deployed_anew(desk: Desk) -> None:
    """
    Retry is never guessed: without what the run meant to do it is not available, with the code that
    the verb itself would refuse with.
    """
    ran(desk, THIRD, ended(status="error"), stored=False, exit_code=10)
    error(desk)
    found = row(desk)
    assert action(found, "retry").reason.code == "snapshot_missing"
    assert found.recommended == "redeploy"


def test_a_failure_before_any_entry_is_told_from_the_run(desk: Desk) -> None:
    """
    Law: before the marker nothing changes.
    A failed plan leaves no entry; the newest run tells of it, and the hint is for its phase.
    """
    fault = FAILED.model_copy(update={"phase": "plan", "summary": "bad value"})
    failed = ended(status="error").model_copy(update={"error": fault})
    ran(desk, THIRD, failed, exit_code=10)
    desk.has("network", run_id=SECOND)
    found = row(desk)
    assert found.evidence.last_run is not None and found.evidence.last_run.error == fault
    assert found.hint is not None and found.hint.startswith("fix the input")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("engine_failed", "unadopted"),
        ("not_as_described", "unadopted"),
        ("nothing_to_adopt", "never"),
    ],
)
def test_after_a_failed_adoption_no_apply_is_offered(desk: Desk, code: str, found: str) -> None:
    """
    An apply is refused while its provider state holds objects without a record.
    """
    fault = FAILED.model_copy(update={"phase": "plan", "code": code})
    failed = ended(status="error").model_copy(update={"error": fault})
    ran(desk, THIRD, failed, command="adopt", exit_code=10)
    desk.has("server", run_id=SECOND)

    assert str(row(desk).situation) == found
    adopt = "orchestrator adopt web -e prod --step network"
    assert (adopt in [item.command for item in look(desk).next]) == (found == "unadopted")


def test_status_tells_of_a_first_apply_that_failed_before_any_entry(desk: Desk) -> None:
    """
    That no record is here is no reason to say nothing: the attempt, and where to go on.
    """
    fault = FAILED.model_copy(update={"phase": "plan", "summary": "bad value"})
    failed = ended(status="error").model_copy(update={"error": fault})
    desk.reader.files.write_run(ran(desk, THIRD, failed, exit_code=10))
    found = status_of(desk.reader, outline())

    assert "apply failed and changed nothing: bad value" in status_text(found, Paper(now=NOW))
    assert [item.command for item in found.next] == ["orchestrator recover web -e prod"]


@pytest.mark.parametrize(("recorded", "shown"), [(FAILED, 0), (None, 1)])
def test_what_is_told_as_the_cause_is_not_told_again_as_the_newest_attempt(
    desk: Desk, recorded: Fault | None, shown: int
) -> None:
    """
    A doubt that a later run found is recorded without a mutation: the record names the run of its
    last one.
    """
    desk.has("network", status="error" if recorded else "ok", error=recorded, run_id=SECOND)
    desk.reader.files.write_run(ran(desk, THIRD, ended(status="error"), exit_code=11))
    text = status_text(status_of(desk.reader, outline()), Paper(now=NOW))

    assert text.count("last try") == shown


def test_the_newest_verified_run_is_where_to_roll_back_to(desk: Desk) -> None:
    """
    Rollback names the newest earlier run in which the step was verified; never a later one, and
    never one without checks while there is a verified one.
    """
    ran(desk, "20300101T000000000Z-000000", ended())
    ran(desk, FIRST, ended())
    ran(desk, SECOND, ended(verdict="unverified"))
    ran(desk, THIRD, ended(status="error"), exit_code=10)
    ran(desk, "20300109T000000000Z-999999", ended())
    error(desk)
    command = action(row(desk), "rollback").command
    assert command is not None and f"--to {FIRST} " in command


def test_an_unverified_run_is_named_but_not_offered(desk: Desk) -> None:
    """
    What no check vouches for takes a reason.
    """
    ran(desk, SECOND, ended(verdict="unverified"))
    ran(desk, THIRD, ended(status="error"), exit_code=10)
    error(desk)
    found = action(row(desk), "rollback")
    assert (found.available, found.reason.code) == (False, "unverified")
    assert f"--to {SECOND}" in found.reason.message


@pytest.mark.parametrize(
    ("runs", "verified", "gap"),
    [
        ([], None, "no_run"),
        ([(FIRST, 10, "error", "failed")], None, "no_run"),
        ([(FIRST, 130, "ok", "verified")], None, "no_run"),
        ([(FIRST, 0, "ok", "unverified")], None, "unverified"),
        ([(FIRST, 0, "ok", "verified"), (SECOND, 0, "ok", "unverified")], FIRST, None),
        ([(FIRST, 0, "ok", "verified"), (SECOND, 0, "ok", "verified")], SECOND, None),
        ([(FIRST, 0, "ok", "verified"), (SECOND, 12, "error", "failed")], FIRST, None),
    ],
)
def test_either_a_verified_run_or_an_explicit_gap(
    desk: Desk, runs: list[tuple[str, int, str, str]], verified: str | None, gap: str | None
) -> None:
    """
    ``last_verified_run`` is the newest run in which everything ended ok and verified; where there
    is none that is said, and why.
    """
    for run_id, code, status, verdict in runs:
        ran(desk, run_id, ended(status=status, verdict=verdict), exit_code=code)
    found = look(desk)
    assert found.last_verified_run == verified
    assert (found.manual_gap.code if found.manual_gap else None) == gap


def test_runs_of_others_are_not_ours(desk: Desk) -> None:
    """
    Neither another environment nor another blueprint vouches for this one.
    """
    ran(desk, FIRST, ended(), environment="staging")
    ran(desk, SECOND, ended(), blueprint="shop")
    assert look(desk).last_verified_run is None


@pytest.mark.parametrize(("others", "found"), [(READ - 1, FIRST), (READ, None)])
def test_the_past_is_looked_at_only_so_far(desk: Desk, others: int, found: str | None) -> None:
    """
    However many runs other blueprints have had since, `recover` reads a bounded number of them.
    """
    ran(desk, FIRST, ended())
    for number in range(others):
        ran(desk, f"20300105T000000000Z-{number:06d}", stored=False, blueprint="shop")
    assert look(desk).last_verified_run == found


class Seen(SystemProcesses):
    """
    Every process is as the test says.
    """

    def __init__(self, state: Liveness) -> None:
        self.state = state

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        return self.state


def marked(desk: Desk, state: Liveness, *, age: float) -> None:
    """
    A running record whose run holds the claim and has an old or fresh heartbeat.
    """
    flying = InFlight(
        target="web/prod/network", address="aws_vpc.this", action="create", started_at=START
    )
    lease = Lease(run_id=THIRD, owner=OWNER, in_flight=(flying,))
    desk.store.put_lease(lease)
    desk.seconds += age
    assert desk.store.take_claim(claim(THIRD)) is None
    desk.has("network", status="running", active_command="apply", run_id=THIRD)
    desk.reader.files.attempt(THIRD, "network", 1)
    force_setattr(desk.reader, "processes", Seen(state))


@pytest.mark.parametrize(
    ("state", "age", "condition", "recommended"),
    [
        (Liveness.ALIVE, 90, Condition.LIVE, "wait"),
        (Liveness.UNKNOWN, 5, Condition.LIVE, "wait"),
        (Liveness.UNKNOWN, 90, Condition.SILENT, "manual"),
        (Liveness.GONE, 90, Condition.INTERRUPTED, "reconcile"),
    ],
)
def test_who_is_alive_decides(
    desk: Desk, state: Liveness, age: float, condition: Condition, recommended: str
) -> None:
    """
    Live waits, interrupted is reconciled, silent needs a person; what was in flight at
    the last heartbeat and the process are evidence.
    """
    marked(desk, state, age=age)
    found = row(desk)
    assert (found.condition, found.recommended) == (condition, recommended)
    assert [item.address for item in found.evidence.in_flight] == ["aws_vpc.this"]
    assert [item.pid for item in found.evidence.processes] == [OWNER.pid]


@pytest.mark.parametrize(
    ("state", "age", "situation", "takeover"),
    [
        (Liveness.ALIVE, 0, "claimed", False),
        (Liveness.UNKNOWN, 5, "claimed", False),
        (Liveness.UNKNOWN, 90, "failed", True),
        (Liveness.GONE, 90, "failed", False),
    ],
)
def test_a_claim_holds_for_all_steps(
    desk: Desk, state: Liveness, age: float, situation: str, takeover: bool
) -> None:
    """
    While a live run holds the claim every mutating command would be refused; one that nobody can
    prove dead takes a reason; a dead one does not matter.
    """
    marked(desk, state, age=age)
    error(desk, "server")
    desk.has("network")
    found = row(desk, "server")
    command = action(found, "destroy").command
    assert found.situation == situation
    assert (command is not None and "--takeover" in command) == takeover


def test_a_spooled_outcome_is_recorded_first(desk: Desk) -> None:
    """
    Law: spooled outcome.
    The outcome on disk is shown, and nothing is offered but to record it.
    """
    marker = desk.has("network", status="running", active_command="apply", run_id=THIRD)
    desk.spool.put(entry(marker.target, 2, status="ok", run_id=THIRD))
    found = row(desk)
    assert (found.status, found.situation) == (StepStatus.OK, "spooled")
    assert [item.action for item in found.actions if item.available] == ["reconcile"]


def test_an_outcome_that_came_too_late_is_evidence(desk: Desk) -> None:
    """
    It is shown with its file, and changes nothing of what is offered.
    """
    desk.has("network")
    late = entry(desk.has("network").target, 2, status="error", run_id=FIRST)
    place = desk.reader.files.directory(FIRST)
    place.mkdir(parents=True)
    (place / "late-network-2.json").write_text(late.to_json())
    (place / "late-server-9.json").write_text("damaged")
    found = row(desk)
    assert [(item.run_id, str(item.status)) for item in found.evidence.late] == [(FIRST, "error")]
    assert found.situation == "ok"


def test_a_state_that_could_not_be_saved_is_found_where_the_module_lies(desk: Desk) -> None:
    """
    ``errored.tfstate`` is found wherever in the working directory it lies, and blocks the
    rest.
    """
    error(desk)
    place = desk.reader.work / "web/prod/network/modules/inner"
    place.mkdir(parents=True)
    (place / "errored.tfstate").write_text("{}")
    found = row(desk)
    assert found.evidence.errored_state == str(place / "errored.tfstate")
    assert found.situation == "unsaved"


def test_an_unsaved_state_that_is_encrypted_is_not_offered_to_be_put_aside(desk: Desk) -> None:
    """
    Nobody can compare what cannot be read: it is pushed with its key.
    """
    error(desk)
    place = desk.reader.work / "web/prod/network"
    place.mkdir(parents=True)
    (place / "errored.tfstate").write_text('{"serial": 1, "encrypted_data": "x"}')
    found = row(desk)
    offered = {str(item.action): item.command for item in found.actions if item.available}
    assert found.situation == "sealed"
    assert list(offered) == ["reconcile"]
    assert "--push-errored-state" in str(offered["reconcile"])


@pytest.mark.parametrize(
    ("seconds", "left", "asked", "situation"),
    [
        (10, 50.0, None, "in_doubt"),
        (90, 0.0, None, "in_doubt"),
        (90, 0.0, 10, "in_doubt"),
        (90, 0.0, 70, "unanswerable"),
        (20, 40.0, 10, "no way"),
    ],
)
def test_the_provider_is_asked_again_until_nothing_can_be_under_way(
    desk: Desk, seconds: int, left: float, asked: int | None, situation: str
) -> None:
    """
    What was asked for in the settling time may still appear; what was asked for after it
    in vain, or cannot be asked for, is a person's.
    """
    readback = None
    if asked is not None:
        at = START + timedelta(seconds=asked)
        method: ReadbackMethod = "none" if situation == "no way" else "search"
        readback = Readback(verdict="unknown", method=method, why="none found", at=at)
    doubt = LOST.model_copy(update={"readback": readback})
    error(desk, resources=Resources(in_doubt=(doubt,)))
    found = row(desk, now=START + timedelta(seconds=seconds))
    assert found.evidence.settling == left
    assert found.situation == situation.replace("no way", "unanswerable")


def test_a_deleted_object_of_which_the_provider_cannot_tell_is_a_persons(desk: Desk) -> None:
    """
    Such as one whose parent is gone, too: asking again tells no more. It was deleted by this tool.
    """
    saved = SavedState(run_id=SECOND, attempt=1, host="h")
    at = START + timedelta(seconds=70)
    told = Readback(verdict="unknown", method="id", why="no parent", at=at)
    changes = {"action": "forget", "saved": saved, "at": START, "readback": told}
    doubt = LOST.model_copy(update=changes)
    error(desk, failed_command="destroy", resources=Resources(in_doubt=(doubt,)))
    found = row(desk, now=at)
    assert (found.situation, found.recommended) == ("unanswerable", "manual")


def test_a_lock_is_told_as_it_was_met(desk: Desk) -> None:
    """
    An attempt that changed nothing because the state was locked says whose lock it was,
    and what releases it if its holder is dead.
    """
    held = Fault(code="state_locked", phase="lock", summary="locked: id 7f-1, who ann@ci")
    tried = Attempt(command="apply", run_id=THIRD, at=START, error=held)
    desk.has("network", last_attempt=tried, run_id=SECOND)
    found = row(desk)
    assert found.evidence.lock == "locked: id 7f-1, who ann@ci"
    assert found.hint is not None
    assert "reconcile web -e prod --step network --at 1 --unlock 7f-1 --reason WHY" in found.hint


@pytest.mark.parametrize(("seconds", "is_ours"), [(100, True), (170, False)])
def test_a_lock_is_of_a_killed_run_until_its_last_sign_of_life(
    desk: Desk, seconds: float, is_ours: bool
) -> None:
    """
    What was locked later was locked by somebody else, although the run has recorded no end.
    """
    ran(desk, SECOND, exit_code=None)
    desk.store.put_lease(Lease(run_id=SECOND, owner=OWNER))
    desk.seconds += 90
    at = START + timedelta(seconds=seconds)
    summary = (
        f"locked: id 7f-1, who ada@workshop, operation x, created {at:%Y-%m-%d %H:%M:%S} +0000 UTC"
    )
    held = Fault(code="state_locked", phase="lock", summary=summary)
    tried = Attempt(command="apply", run_id=THIRD, at=START, error=held)
    desk.has("network", last_attempt=tried, run_id=FIRST)

    assert (row(desk).situation == "locked") is is_ours


def test_what_has_vanished_is_accepted_by_the_offered_command(desk: Desk) -> None:
    """
    Law: state moved without us.
    After a delete that was interrupted the provider has nothing left, and whoever goes on is
    refused. What is offered then says that it is gone; reconcile would be refused.
    """
    doubt = LOST.model_copy(update={"action": "delete", "why": "its delete never ended"})
    error(desk, failed_command="destroy", resources=Resources(in_doubt=(doubt,)), run_id=SECOND)
    before = row(desk)
    gone = Fault(code="vanished", phase="readback", summary="every recorded object has vanished")
    refused = ended(status="pending").model_copy(update={"error": gone})
    ran(desk, THIRD, refused, command="destroy", exit_code=4)
    found = row(desk)

    assert "--accept-vanished" not in str(action(before, "destroy").command)
    assert action(found, "destroy").command == (
        "orchestrator destroy web -e prod --step network --at 1 --accept-vanished WHY"
    )
    assert "are gone" in action(found, "destroy").reason.message
    assert (action(found, "reconcile").command, found.recommended) == (None, "manual")


@pytest.mark.parametrize("command", ["destroy", "apply"])
def test_what_has_vanished_is_accepted_by_the_command_that_met_it(desk: Desk, command: str) -> None:
    """
    Law: state moved without us.
    A refused destroy leaves a record that reads ok: what goes on destroys, and makes nothing again.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    gone = Fault(code="vanished", phase="readback", summary="every recorded object has vanished")
    refused = ended(status="pending").model_copy(update={"error": gone})
    ran(desk, SECOND, refused, command=command, exit_code=4)

    found = action(row(desk), "destroy" if command == "destroy" else "redeploy")

    assert "--accept-vanished" in str(found.command)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("code", "said"),
    [("backend_changed", "backend move"), ("state_of_another", "make them differ")],
)
def test_a_state_in_another_place_is_told_until_somebody_comes_further(
    desk: Desk, code: str, said: str, later: bool
) -> None:
    """
    The record reads ok, and whoever changes the step is refused: what to change is told, also after
    a run that ended before it could meet the refusal again.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    wrong = Fault(code=code, phase="init", summary="it is elsewhere")
    ran(desk, SECOND, ended(status="error").model_copy(update={"error": wrong}), exit_code=4)
    if later:
        typed = Fault(code="invalid", phase="blueprint", summary="there is no object nope.x")
        ran(desk, THIRD, ended(status="error").model_copy(update={"error": typed}), exit_code=3)

    found = row(desk)

    assert said in str(found.hint)
    assert found.recommended is None


def test_after_a_failed_move_of_the_state_nothing_is_offered_that_the_blueprint_refuses(
    desk: Desk,
) -> None:
    """
    The blueprint says the other place already: the way on is to move it, or to set that back.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    fault = Fault(code="engine_failed", phase="init", summary="no such bucket")
    moved = ended(status="error").model_copy(update={"error": fault})
    ran(desk, SECOND, moved, command="move", exit_code=10)

    found = row(desk)

    assert "backend move" in str(found.hint)
    refused = ("reconcile", "verify", "redeploy", "destroy")
    assert {action(found, name).available for name in refused} == {False}
    assert action(found, "destroy").reason.code == "misplaced"


def test_after_a_move_of_the_state_the_failed_apply_is_made_with_the_current_files(
    desk: Desk,
) -> None:
    """
    The move leaves the error of the record, and is none itself. The failed run names the place that
    the provider state has left.
    """
    failed = ran(desk, FIRST, ended(status="error"), exit_code=10)
    error(desk, run_id=failed.run_id, deployment="sha256:moved")
    ran(desk, SECOND, ended(status="error"), command="move")

    found = row(desk)

    assert found.recommended == "redeploy"
    assert action(found, "retry").reason.code == "moved"
    assert action(found, "destroy").available
    assert "backend move" not in str(found.hint)


def test_a_repeated_run_that_names_another_place_for_the_state_says_nothing_of_the_blueprint(
    desk: Desk,
) -> None:
    """
    After a `backend move` a rollback to a run from before it is refused; all else is as it was.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    fault = Fault(code="backend_changed", phase="init", summary="bound to another place")
    refused = ended(status="error").model_copy(update={"error": fault})
    ran(desk, SECOND, refused, command="rollback", exit_code=4)

    found = row(desk)

    assert action(found, "destroy").available
    assert "backend move" not in str(found.hint)


def test_a_move_of_the_state_that_was_cut_short_is_gone_on_with(desk: Desk) -> None:
    """
    The blueprint names the new place already: a reconcile would be refused as it stands.
    """
    held = Resources(inventory=refs("v.a v-1"))
    desk.has("network", status="running", active_command="push", run_id=FIRST, resources=held)
    ran(desk, FIRST, ended(status="running"), command="move", exit_code=None)

    found = row(desk)

    assert found.recommended in ("reconcile", "manual")
    command = str(action(found, found.recommended).command)
    assert command.startswith("orchestrator backend move "), command
    assert not action(found, "destroy").available


def test_where_nothing_is_there_a_refused_move_keeps_nothing_from_being_applied(desk: Desk) -> None:
    """
    The next apply writes its provider state where the blueprint says.
    """
    desk.has("network", status="destroyed", run_id=FIRST)
    fault = Fault(code="nothing_there", phase="surgery", summary="no provider state to move")
    moved = ended(status="error").model_copy(update={"error": fault})
    ran(desk, SECOND, moved, command="move", exit_code=4)

    found = row(desk)

    assert action(found, "redeploy").available
    assert "backend move" not in str(found.hint)


@pytest.mark.parametrize("code", ["vanished", "in_doubt"])
def test_objects_that_left_the_provider_state_are_looked_for(desk: Desk, code: str) -> None:
    """
    Law: state moved without us.
    An apply over an emptied state is refused; the step reads ok, and what helps is to reconcile.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    fault = Fault(code=code, phase="surgery", summary="every recorded object has left the state")
    ran(desk, SECOND, ended().model_copy(update={"error": fault}), exit_code=4)
    found = row(desk)

    assert (found.situation, found.recommended) == ("state_emptied", "reconcile")
    assert action(found, "redeploy").reason.code == "state_emptied"


def test_what_is_in_doubt_elsewhere_has_not_left_the_provider_state(desk: Desk) -> None:
    """
    A destroy that the doubts of its hook refuse found nothing missing: no import is offered.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    fault = Fault(code="in_doubt", phase="readback", summary="in doubt: the archive")
    ran(desk, SECOND, ended().model_copy(update={"error": fault}), command="destroy", exit_code=11)
    found = row(desk)

    assert found.situation == "ok"
    assert not any("--rebuild-state" in (item.command or "") for item in found.actions)


@pytest.mark.parametrize(
    ("code", "situation", "recommended", "command"),
    [
        ("lineage", "state_replaced", "manual", "--at 1 --rebuild-state"),
        ("serial_back", "state_back", "reconcile", "--at 1"),
    ],
)
def test_another_provider_state_than_the_recorded_one_comes_first(
    desk: Desk, code: str, situation: str, recommended: str, command: str
) -> None:
    """
    Law: state moved without us.
    The step reads ok; but every mutating command is refused, and so nothing else is offered.
    """
    desk.has("network", status="ok", run_id=FIRST, resources=Resources(inventory=refs("v.a v-1")))
    fault = Fault(code=code, phase="plan", summary="it is another state")
    ran(desk, SECOND, ended().model_copy(update={"error": fault}), exit_code=4)
    found = row(desk)

    assert (found.situation, found.recommended) == (situation, recommended)
    assert str(action(found, recommended).command).endswith(command)
    assert {item.reason.code for item in found.actions if item.available} == {situation}


def test_an_apply_that_failed_before_its_marker_is_told_of_what_was_destroyed(desk: Desk) -> None:
    """
    Its record says nothing of it, the run does: told as any other that made nothing; until a later
    run has the step and does not fail.
    """
    desk.has("network", status="destroyed", run_id=FIRST)
    fault = Fault(code="engine_failed", phase="plan", summary="not so")
    run = ran(desk, SECOND, ended().model_copy(update={"error": fault}), exit_code=10)
    desk.reader.files.write_run(run)
    document = status_of(desk.reader, outline(), ["network"])
    advised = row(desk)

    assert document.verdict is Verdict.ERROR
    assert "not so" in status_text(document, Paper(now=START))
    with pytest.raises(Refused, match="newest apply of network failed"):
        check_expectation(document, "destroyed")
    assert (advised.situation, advised.recommended) == ("unmade", "retry")
    assert f"--from-run {SECOND}" in str(action(advised, "retry").command)


def test_a_lock_without_an_id_has_nothing_to_release(desk: Desk) -> None:
    """
    A lock that ends with its session is waited for: no command is made up.
    """
    said = "the state is locked: PostgreSQL advisory lock: it ends with the session that holds it"
    tried = Attempt(
        command="apply",
        run_id=THIRD,
        at=START,
        error=Fault(code="state_locked", phase="lock", summary=said),
    )
    desk.has("network", last_attempt=tried, run_id=SECOND)
    assert row(desk).hint == PHASE_HINTS["lock"]


def test_what_the_module_of_an_action_left_is_settled_first(desk: Desk) -> None:
    """
    A compensation that is a module has a root of its own: its doubts are shown with the step, it is
    no orphan, and the compensation does not go on over them.
    """
    error(desk, failed_command="compensate", resources=Resources(inventory=refs("a.b id-1")))
    desk.has('network["@compensate"]', status="error", resources=Resources(in_doubt=(LOST,)))
    steps = {
        name: StepSummary(name=name, module_ref="m", needs=frozenset(needs), compensate=True)
        for name, needs in NEEDS.items()
    }
    document = look(desk, outline(steps=steps))
    found = document.steps[0]
    assert [root.in_doubt for root in found.evidence.action_roots] == [(LOST,)]
    assert (found.situation, found.recommended) == ("compensating", "reconcile")
    assert action(found, "compensate").reason.code == "module_in_doubt"
    assert document.orphaned == ()


def test_children_go_with_their_parent_and_do_not_hold_it(desk: Desk) -> None:
    """
    Law: children follow parents.
    An owned child is no dependent that keeps its parent from being destroyed.
    """
    steps = {
        name: StepSummary(
            name=name,
            module_ref="m",
            needs=frozenset(needs),
            owned_by="network" if name == "server" else None,
        )
        for name, needs in NEEDS.items()
    }
    desk.has("network")
    desk.has("server")
    parent = look(desk, outline(steps=steps)).steps[0]
    assert action(parent, "destroy").reason.code == "dependents"  # it was not made inside it
    desk.has("server", parent="web/prod/network")
    parent = look(desk, outline(steps=steps)).steps[0]
    assert parent.evidence.children == ("server",)
    assert "server goes with it" in action(parent, "destroy").reason.message
    desk.has("dns")
    parent = look(desk, outline(steps=steps)).steps[0]
    assert action(parent, "destroy").reason.code == "dependents"


def test_a_gone_parent_is_not_made_again_over_its_children(desk: Desk) -> None:
    """
    An apply would be refused: it is not offered, and the command that finishes the destroy is. A
    child that left the blueprint is destroyed with the orphans, not by a name that is none.
    """
    owned = {"server": "network"}
    steps = {
        name: StepSummary(
            name=name, module_ref="m", needs=frozenset(needs), owned_by=owned.get(name)
        )
        for name, needs in NEEDS.items()
    }
    desk.has("network", status="destroyed")
    desk.has("server", parent="web/prod/network", deployment="known")

    found = look(desk, outline(steps=steps))
    alone = look(desk, outline(steps={"network": steps["network"]}, graph=Graph({"network": []})))

    finish = "orchestrator destroy web -e prod --step server"
    offered = action(found.steps[0], "redeploy")
    assert (offered.available, offered.reason.code) == (False, "child_left")
    assert f"`{finish}`" in offered.reason.message
    assert finish in [item.command for item in found.next]
    assert [item.command for item in alone.next] == ["orchestrator destroy web -e prod --orphaned"]


def test_what_the_blueprint_says_is_to_be_kept_is_not_destroyed(desk: Desk) -> None:
    """
    A destroy would only record it as retained: so none is offered, and why.
    """
    kept = Retain(reason="shared zone", owner="net", review_by="2031-01-01")
    steps = {
        name: StepSummary(name=name, module_ref="m", needs=frozenset(needs), retain=kept)
        for name, needs in NEEDS.items()
    }
    desk.has("network")
    found = action(look(desk, outline(steps=steps)).steps[0], "destroy")
    assert (found.available, found.reason.code) == (False, "retained")
    assert "shared zone" in found.reason.message


def test_the_provider_configuration_is_shown_as_it_is_written(desk: Desk) -> None:
    """
    Where to look by hand: account and region as the blueprint gives them, references unresolved,
    and nothing that may be a credential.
    """
    provider = Template({"region": "eu-west-1", "profile": "${inputs.p}", "token": "s3cret"})
    steps = {
        name: StepSummary(
            name=name, module_ref="m", needs=frozenset(needs), providers={"aws": provider}
        )
        for name, needs in NEEDS.items()
    }
    left = LOST.model_copy(update={"action": "forget"})
    error(desk, resources=Resources(in_doubt=(left,)))
    found = look(desk, outline(steps=steps)).steps[0]
    assert "region of aws (region=eu-west-1, profile=${inputs.p}) whether" in (
        action(found, "manual").reason.message
    )
    assert "s3cret" not in found.model_dump_json()


def test_a_retained_orphan_is_not_offered_to_be_destroyed(desk: Desk) -> None:
    """
    A destroy would leave it and change nothing, each time; what lets go of it is offered instead.
    """
    held = Retention(reason="an audit", owner="ops", review_by="2999-01-01", was=Status.OK)
    desk.has("cache", deployment="sha256:1", status="retained", retained=held)
    found = look(desk)
    assert [item.command for item in found.next if "--orphaned" in item.command] == [
        "orchestrator release web -e prod --orphaned --step cache --reason WHY"
    ]
    assert "an audit (ops, review by 2999-01-01)" in found.next[-1].why
    desk.has("legacy", deployment="sha256:1")
    commands = [item.command for item in look(desk).next]
    assert "orchestrator destroy web -e prod --orphaned" in commands


def test_orphans_are_listed_with_the_command_that_takes_them_down(desk: Desk) -> None:
    """
    What left the blueprint and may be alive stays in sight.
    """
    desk.has("cache", deployment="sha256:1")
    found = look(desk)
    assert found.orphaned == ("web/prod/cache",)
    assert found.next[-1].command == "orchestrator destroy web -e prod --orphaned"


def test_only_the_named_steps_are_listed_and_others_still_count(desk: Desk) -> None:
    """
    ``--step``: exactly these; whether an upstream is ready is seen all the same.
    """
    desk.has("network")
    found = recover(desk.reader, outline(), ["server"], now=NOW, settle=60.0)
    assert [item.step for item in found.steps] == ["server"]
    assert found.steps[0].recommended == "redeploy"


def test_it_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    """
    Law: reading changes nothing.
    `recover` reads; neither records nor files are touched or made.
    """
    ran(desk, THIRD, ended(status="error"), exit_code=10)
    error(desk)
    before = (desk.store.records(), desk.store.blobs(""), sorted(tmp_path.rglob("*")))
    look(desk)
    assert (desk.store.records(), desk.store.blobs(""), sorted(tmp_path.rglob("*"))) == before


def test_a_run_whose_record_is_damaged_hides_nothing(desk: Desk) -> None:
    """
    The operation records stand for themselves.
    """
    desk.store.put_blob(f"runs/{THIRD}/run.json", b"damaged")
    error(desk)
    assert row(desk).status is StepStatus.ERROR


class Silent(MemoryStore):
    """
    A store that does not answer.
    """

    def blob(self, name: str) -> bytes | None:
        raise StoreUnavailable("it does not answer")

    def blobs(self, prefix: str) -> list[str]:
        raise StoreUnavailable("it does not answer")


def test_runs_are_listed_beside_a_store_that_does_not_answer(desk: Desk) -> None:
    """
    It is named. Where no store answers nothing is said to be the list.
    """
    ran(desk, FIRST, ended())
    silent = replace(desk.reader, store=Silent())

    listed = newest_runs([silent, desk.reader], None, None, 9)

    assert [item.run_id for item in listed.runs] == [FIRST]
    assert [item.message for item in listed.unread_stores] == ["it does not answer"]
    with pytest.raises(StoreUnavailable):
        newest_runs([silent], None, None, 9)


def test_a_run_whose_record_is_damaged_is_named_in_the_list(desk: Desk) -> None:
    """
    The others are listed; with the damaged ones there are no more than were asked for.
    """
    ran(desk, FIRST, ended())
    ran(desk, SECOND, ended())
    desk.store.put_blob(f"runs/{THIRD}/run.json", b"damaged")

    listed = newest_runs([desk.reader], None, None, 2)

    assert [item.run_id for item in listed.unread_runs] == [THIRD]
    assert [item.run_id for item in listed.runs] == [SECOND]
    assert not listed.is_whole
    said = f"not readable: memory:: the record of run {THIRD} cannot be read"
    assert said in runs_text(listed, Paper(START, width=200))


def test_a_run_is_shown_from_the_store_that_has_it(desk: Desk) -> None:
    """
    One that does not answer hides no run of another; and a run that no store has that answers is
    not said to be none.
    """
    ran(desk, FIRST, ended())
    log = pack_evidence({"1/apply.log": b"created"})
    desk.store.put_blob(evidence_blob(FIRST, "server"), log)
    readers = [replace(desk.reader, store=Silent()), desk.reader]

    assert run_details(readers, FIRST).run.run_id == FIRST
    assert step_logs(readers, FIRST, "server") == {"1/apply": "created"}
    with pytest.raises(StoreUnavailable):
        run_details(readers, SECOND)


LOG = pack_evidence({"1/apply.log": b"created" * 99})


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        pack_evidence({"../apply.log": b"created"}),
        LOG.replace(b"1/apply.log", b"1/other.log", 1),
        bytes([*LOG[:41], 255, *LOG[42:]]),  # what is compressed begins there
        LOG.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"),
        LOG.replace(b"\x08\x00\x00\x00!\x00", b"\x0c\x00\x00\x00!\x00"),  # bzip2, it says
    ],
)
def test_damaged_evidence_in_a_store_is_an_error_of_the_store(desk: Desk, data: bytes) -> None:
    """
    Whatever is wrong with the archive: the records are read all the same.
    """
    assert data != LOG
    ran(desk, FIRST, ended())
    desk.store.put_blob(evidence_blob(FIRST, "server"), data)

    with pytest.raises(StoreUnavailable, match="cannot be read"):
        step_logs([desk.reader], FIRST, "server")


def test_evidence_that_would_fill_the_memory_is_not_unpacked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An archive says how large its files are before they are read.
    """
    monkeypatch.setattr("orchestrator.domain.record.run_record.LIMIT", 99)
    ran(desk, FIRST, ended())
    desk.store.put_blob(evidence_blob(FIRST, "server"), LOG)

    with pytest.raises(StoreUnavailable, match="it holds too much"):
        step_logs([desk.reader], FIRST, "server")


def test_runs_are_listed_of_what_is_asked_for_newest_first(desk: Desk) -> None:
    """
    Of a blueprint, an environment, or all; no more than asked for.
    """
    for run_id, environment in ((FIRST, "prod"), (SECOND, "dev"), (THIRD, "prod")):
        desk.reader.files.write_run(ran(desk, run_id, ended(), environment=environment))

    def listed(blueprint: str | None, environment: str | None, limit: int = 9) -> list[str]:
        found = newest_runs([desk.reader], blueprint, environment, limit).runs
        return [item.run_id for item in found]

    assert listed(None, None) == [THIRD, SECOND, FIRST]
    assert listed("web", "prod") == [THIRD, FIRST]
    assert listed("web", "dev") == [SECOND]
    assert listed("web", None, limit=2) == [THIRD, SECOND]
    assert listed("other", None) == []
