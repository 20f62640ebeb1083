"""
What the reading commands tell of records.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrator.app.commands.history import history_of
from orchestrator.app.commands.status import check_expectation, outputs_of, status_of
from orchestrator.domain.record.objects import ObjectRef, ReleasedObject, Resources
from orchestrator.domain.record.record import Attempt, Fault, Source
from orchestrator.domain.record.states import StepStatus, Verdict
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Refused
from orchestrator.system import RandomIds
from orchestrator.views.listings import outputs_text
from orchestrator.views.page import Paper
from orchestrator.views.status import status_text
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.read_context import NEEDS, Desk, outline


def test_no_record_reads_pending_and_says_what_it_waits_for(desk: Desk) -> None:
    """
    Law: pending, not failed.
    Steps that never ran are pending, with blocked_by; never failed, never absent.
    """
    desk.has("network", status="error")
    rows = {row.step: row for row in status_of(desk.reader, outline()).steps}
    assert rows["dns"].status is StepStatus.PENDING
    assert rows["dns"].blocked_by == ("network", "server")


def test_a_spooled_outcome_is_shown_over_the_record(desk: Desk) -> None:
    """
    Law: spooled outcome.
    Reading commands show the spool as an overlay and change nothing.
    """
    marker = desk.has("network", status="running", active_command="apply")
    desk.spool.put(entry(marker.target, 2, status="ok"))
    (row, *_) = status_of(desk.reader, outline()).steps
    assert (row.status, row.spooled, row.sequence) == (StepStatus.OK, True, 2)
    assert desk.store.newest(marker.target) == marker


def test_a_spooled_outcome_that_is_overtaken_is_not_shown(desk: Desk) -> None:
    """
    A late outcome never stands for what another run has done since.
    """
    desk.has("network", status="ok")
    desk.has("network", status="ok")
    desk.spool.put(entry(Target("web", "prod", "network"), 2, status="error"))
    (row, *_) = status_of(desk.reader, outline()).steps
    assert (row.status, row.spooled) == (StepStatus.OK, False)


def test_the_verdict_is_over_the_steps_that_are_listed(desk: Desk) -> None:
    """
    ``--step``: exactly these.
    """
    desk.has("network", status="ok")
    desk.has("server", status="error")
    assert status_of(desk.reader, outline(), ["network"]).verdict is Verdict.OK
    assert status_of(desk.reader, outline()).verdict is Verdict.ERROR


def test_a_step_that_left_the_blueprint_is_orphaned_until_it_is_gone(desk: Desk) -> None:
    """
    What left the repo stays listed while it may be alive.
    """
    desk.has("cache", status="ok")
    desk.has("queue", status="destroyed")
    assert status_of(desk.reader, outline()).orphaned == ("web/prod/cache",)


@pytest.mark.parametrize(("status", "word"), [("error", "alive"), ("running", "recorded")])
def test_while_an_orphan_is_destroyed_nobody_calls_its_objects_alive(
    desk: Desk, status: str, word: str
) -> None:
    """
    Of a destroy that is under way, or was interrupted, the record tells what was there before.
    """
    held = ObjectRef(address="v.a", type="v", provider="p", id="v-1")
    command = {"running": "active_command", "error": "failed_command"}[status]
    resources = Resources(inventory=(held,))
    desk.has("cache", status=status, resources=resources, **{command: "destroy"})

    shown = status_text(status_of(desk.reader, outline()), Paper(now=START)).split()

    assert shown[shown.index("v.a") - 1] == word


def test_what_a_destroyed_orphan_has_forgotten_is_still_told(desk: Desk) -> None:
    """
    Law: nothing drops out of sight.
    """
    lives_on = ReleasedObject(
        address="v.a", type="v", provider="p", id="v-1", how="forgotten", run_id="R1", at=START
    )
    desk.has("cache", status="destroyed", resources=Resources(released=(lives_on,)))
    desk.has("queue", status="destroyed")

    document = status_of(desk.reader, outline())

    assert "cache" in {row.step for row in document.steps}
    assert "queue" not in {row.step for row in document.steps}
    assert "v.a (v-1) lives on" in " ".join(status_text(document, Paper(now=START)).split())


@pytest.mark.parametrize("deployment", ["sha256:1", None])
def test_an_orphan_whose_deployment_was_not_kept_is_offered_nothing(
    desk: Desk, deployment: str | None
) -> None:
    """
    A version of the tool that kept no deployments applied it: `destroy --orphaned` is refused, so
    nobody is sent there; listed it is all the same.
    """
    desk.has("cache", status="ok", deployment=deployment)
    found = status_of(desk.reader, outline())
    offered = [item.command for item in found.next]
    assert found.orphaned == ("web/prod/cache",)
    assert offered == (["orchestrator destroy web -e prod --orphaned"] if deployment else [])


@pytest.mark.parametrize(
    "fields",
    [{"project": "other"}, {"source": Source(blueprint_path="elsewhere/web.yaml")}],
    ids=["project", "file"],
)
def test_a_record_of_somebody_else_is_refused(desk: Desk, fields: dict[str, Json]) -> None:
    """
    A record of another project or blueprint file is never taken for ours.
    """
    desk.has("network", **fields)
    with pytest.raises(Refused) as caught:
        status_of(desk.reader, outline())
    assert caught.value.reason == "foreign_record"


def test_a_moved_blueprint_file_keeps_its_records(desk: Desk) -> None:
    """
    ``moved_from`` names the path that the records were written for.
    """
    desk.has("network", source=Source(blueprint_path="old/web.yaml"))
    found = status_of(desk.reader, outline(moved_from=("old/web.yaml",)))
    assert found.steps[0].status is StepStatus.OK


def test_history_is_newest_first(desk: Desk) -> None:
    """
    Every entry, from the newest to the first.
    """
    desk.has("network", status="error")
    desk.has("network", status="ok")
    found = history_of(desk.reader, Target("web", "prod", "network"))
    assert [(item.sequence, str(item.status)) for item in found.entries] == [
        (2, "ok"),
        (1, "error"),
    ]


def test_history_of_nothing_names_what_there_is(desk: Desk) -> None:
    """
    A target without a record is an error that lists those with one.
    """
    desk.has("network")
    with pytest.raises(Invalid) as caught:
        history_of(desk.reader, Target("web", "prod", "netwrk"))
    assert "web/prod/network" in caught.value.problems[0].hint


def test_an_expectation_that_does_not_hold_names_the_steps(desk: Desk) -> None:
    """
    ``status --expect ok`` says which step is not.
    """
    desk.has("network", status="ok")
    with pytest.raises(Refused, match="server is pending"):
        check_expectation(status_of(desk.reader, outline()), "ok")


@pytest.mark.parametrize("before", ["absent", "destroyed"])
def test_an_apply_that_failed_before_it_made_anything_is_an_error(desk: Desk, before: str) -> None:
    """
    Nothing is there, and yet it is not what a destroy leaves: verdict, cause, the way on, and no
    expectation holds.
    """
    fault = Fault(code="engine_failed", phase="apply", summary="a precondition does not hold")
    tried = Attempt(command="apply", run_id="R1", at=START, error=fault)
    desk.has("network", status=before, last_attempt=tried)
    document = status_of(desk.reader, outline(), ["network"])

    assert document.verdict is Verdict.ERROR
    assert "a precondition does not hold" in status_text(document, Paper(now=START))
    assert [item.command for item in document.next] == [
        "orchestrator recover web -e prod --step network"
    ]
    with pytest.raises(Refused, match="newest apply of network failed"):
        check_expectation(document, "destroyed")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("in_doubt", "found objects in doubt"),
        ("vanished", "found none of its objects"),
        ("lineage", "found another provider state"),
        ("serial_back", "found an older provider state"),
        ("engine_failed", None),
    ],
)
def test_what_the_newest_attempt_found_is_not_expected(
    desk: Desk, code: str, reason: str | None
) -> None:
    """
    The record reads ok: what contradicts it does not hold, a plan that failed says nothing of it.
    """
    fault = Fault(code=code, phase="plan", summary="said so")
    tried = Attempt(command="apply", run_id="R1", at=START, error=fault)
    for step in NEEDS:
        desk.has(step, status="ok")
    desk.has("network", status="ok", last_attempt=tried)
    document = status_of(desk.reader, outline())

    if reason is None:
        assert document.verdict is Verdict.OK
        check_expectation(document, "ok")
        return
    assert document.verdict is Verdict.ERROR
    with pytest.raises(Refused, match=f"is error, not ok: the newest apply of network {reason}"):
        check_expectation(document, "ok")


@pytest.mark.parametrize(
    ("newest", "begins"),
    [
        ("20300102T030405006Z-ffffff", "20300102T030405007Z-"),
        ("20300102T030404999Z-ffffff", "20300102T030405006Z-"),
        ("copied-by-hand", "20300102T030405006Z-"),
        ("99991231T235959999Z-ffffff", "20300102T030405006Z-"),
    ],
)
def test_the_newest_run_is_the_last_wherever_the_clock_was_set(newest: str, begins: str) -> None:
    """
    What the newest attempt found is told by the order of the ids.
    """
    now = datetime(2030, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    assert RandomIds().run_id(now, newest).startswith(begins)


def test_nothing_is_destroyed_as_a_whole_while_an_orphan_is_alive(desk: Desk) -> None:
    """
    A step that left the blueprint counts in the verdict.
    """
    for step in NEEDS:
        desk.has(step, status="destroyed")
    desk.has("former", status="ok")
    assert status_of(desk.reader, outline()).verdict is Verdict.PARTIAL


def test_an_expectation_that_holds_is_silent(desk: Desk) -> None:
    """
    All absent or destroyed is destroyed.
    """
    for step, status in zip(NEEDS, ("destroyed", "absent", "destroyed"), strict=True):
        desk.has(step, status=status)
    check_expectation(status_of(desk.reader, outline()), "destroyed")


def test_a_child_waits_for_the_parent_that_is_being_destroyed(desk: Desk) -> None:
    """
    Its record is untouched until the parent is gone, so `status` says what it waits for; once the
    parent is gone the command that does the rest is named.
    """
    desk.has("server", status="running", active_command="destroy")
    desk.has("dns", parent="web/prod/server")
    during = status_of(desk.reader, outline())
    desk.has("server", status="destroyed")
    after = status_of(desk.reader, outline())

    (row,) = [row for row in during.steps if row.step == "dns"]
    assert (row.status, row.blocked_by) == (StepStatus.OK, ("server",))
    assert "orchestrator destroy web -e prod --step dns" in [item.command for item in after.next]


@pytest.mark.parametrize(
    ("review_by", "allow_retained", "refused"),
    [
        ("2999-01-01", False, "dns is retained"),
        ("2999-01-01", True, None),
        (START.date().isoformat(), True, None),
        ("2001-01-01", True, "dns is retained, and its review was due on 2001-01-01"),
    ],
)
def test_what_is_retained_counts_as_destroyed_only_while_it_is_reviewed(
    desk: Desk, review_by: str, allow_retained: bool, refused: str | None
) -> None:
    """
    And only where that is allowed; on the day of the review it is not overdue yet.
    """
    for step in ("network", "server"):
        desk.has(step, status="destroyed")
    retained = {"reason": "shared", "owner": "net-team", "review_by": review_by}
    desk.has("dns", status="retained", retained=retained)
    document = status_of(desk.reader, outline())

    if refused is None:
        check_expectation(document, "destroyed", allow_retained=allow_retained)
        return
    with pytest.raises(Refused, match=refused):
        check_expectation(document, "destroyed", allow_retained=allow_retained)


def test_what_a_retained_step_needs_is_not_expected_gone(desk: Desk) -> None:
    """
    A destroy keeps it with the retained step; what nothing retained needs is expected gone.
    """
    kept = {"reason": "zone", "owner": "net", "review_by": "2099-01-01"}
    desk.has("network", status="ok")
    desk.has("server", status="retained", retained=kept)
    desk.has("dns", status="destroyed")
    seen = outline()
    document = status_of(desk.reader, seen)

    check_expectation(document, "destroyed", allow_retained=True, graph=seen.graph)
    with pytest.raises(Refused, match="server is retained"):
        check_expectation(document, "destroyed", graph=seen.graph)
    desk.has("dns", status="ok")
    with pytest.raises(Refused, match="dns is ok"):
        check_expectation(
            status_of(desk.reader, seen), "destroyed", allow_retained=True, graph=seen.graph
        )


def test_outputs_are_those_of_the_records_upstreams_first(desk: Desk) -> None:
    """
    Values as they are, sensitive ones by name only, and what is not `ok` marked as known last.
    """
    desk.has("network", status="ok", outputs={"id": "n-1", "none": None}, sensitive_outputs=("pw",))
    desk.has("server", status="error", outputs={"ports": [80]})
    document = outputs_of(desk.reader, outline())
    text = outputs_text(document, Paper(now=START, width=80, color=False))

    assert [row.step for row in document.steps] == ["network", "server", "dns"]
    assert document.steps[0].outputs == {"id": "n-1", "none": None}
    assert text.splitlines() == [
        'network.id = "n-1"',
        "network.none = null",
        "network.pw = (sensitive)",
        "server.ports = [80]  (was known)",
    ]
