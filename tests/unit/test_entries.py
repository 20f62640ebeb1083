"""
How an entry follows from the one before it and from evidence.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.objects import (
    AdoptedObject,
    Doubt,
    ManualSearch,
    Readback,
    Resources,
    SettledDoubt,
)
from orchestrator.domain.record.record import (
    Attempt,
    Check,
    Command,
    Fault,
    OperationRecord,
    OutputOrigin,
    ProviderState,
    Verification,
)
from orchestrator.domain.record.run_record import StateLock
from orchestrator.domain.record.states import IllegalMove, Status
from orchestrator.domain.transitions.absence import MutationEvidence, targeted_fault
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.reconciliation import gone_without_mutation, reconciled
from orchestrator.domain.transitions.surgery import surgery_ended
from orchestrator.domain.transitions.transitions import checked, mark, never_applied, unchanged
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry, facts
from tests.fakes.journals import journal, planned, refs, state

LATER = START + timedelta(minutes=5)
STAMP = EntryStamp(at=LATER, entry_id="new", actor=ACTOR)
BOUND = ProviderState(backend="local", location="x.tfstate", lineage="lin-1", serial=2)
UNVERIFIED = Verification(verdict="unverified", at=LATER)
FAILED_CHECK = Verification(
    verdict="failed", checks=(Check(name="http", passed=False, detail="answered 500"),), at=LATER
)
DOUBT = Doubt(address="s.lost", action="create", why="its create ended in an error")


def marker(
    before: OperationRecord | None,
    *actions: str,
    command: Command = "apply",
    held: PulledState | None = None,
) -> OperationRecord:
    """
    The marker of a run that planned ``actions`` on a state.
    """
    return mark(
        before,
        facts(provider_state=BOUND),
        held or state(),
        STAMP,
        command=command,
        planned=planned(*actions),
        doubts=before.resources.in_doubt if before else (),
    )


def ended(
    lines: list[str], after: PulledState | None, *, exit_code: int | None = 0, whole: bool = True
) -> MutationEvidence:
    return MutationEvidence(exit_code=exit_code, journal=journal(*lines, whole=whole), state=after)


CREATED = ["began create s.a", "done create s.a id-1"]
REFUSED = ["began create s.a", "failed create s.a", "error s.a AccessDenied"]


def test_a_marker_keeps_what_is_known_and_says_what_is_about_to_happen() -> None:
    """
    Law: intent first.
    The marker holds the planned actions, the inventory, and the outputs already known.
    """
    before = entry(status="error", outputs={"url": "x"}, last_error="old", failed_command="apply")
    found = marker(before, "create s.a", held=state(["s.b id-2"]))
    assert (found.status, found.active_command, found.sequence) == (Status.RUNNING, "apply", 2)
    assert found.outputs == {"url": "x"}
    assert [item.address for item in found.resources.planned] == ["s.a"]
    assert [item.address for item in found.resources.inventory] == ["s.b"]
    assert (found.last_error, found.failed_command, found.previous_status) == (
        None,
        None,
        Status.ERROR,
    )


def test_a_first_marker_starts_the_sequence() -> None:
    """
    A target without a record gets entry 1.
    """
    assert (marker(None, "create s.a").sequence, marker(None).previous_status) == (1, None)


def test_no_marker_over_a_marker() -> None:
    """
    A running target is settled first; a marker over it is an illegal move.
    """
    with pytest.raises(IllegalMove):
        marker(entry(status="running", active_command="apply"))


def test_success_clears_what_went_wrong() -> None:
    """
    Law: only success makes ok.
    Running becomes ok; active_command, failed_command and last_error are cleared.
    """
    first = marker(None, "create s.a")
    evidence = ended(
        CREATED, state(["s.a id-1"], outputs={"url": "u", "key": "k"}, secrets=["key"])
    )
    found = conclude(first, None, evidence, STAMP, verification=UNVERIFIED)
    assert (found.status, found.active_command, found.error) == (Status.OK, None, None)
    assert (found.outputs, found.sensitive_outputs) == ({"url": "u"}, ("key",))
    assert found.provider_state is not None
    assert (found.provider_state.lineage, found.provider_state.serial) == ("lin-1", 3)


def test_failure_keeps_earlier_outputs_and_takes_new_ones() -> None:
    """
    Law: failure keeps what is known.
    Earlier outputs are kept, those that the failed run did return are merged in.
    """
    before = entry(
        outputs={"old": 1, "both": 1}, outputs_from={"old": OutputOrigin(run_id="run-1", at=START)}
    )
    failing = ended(REFUSED, state(outputs={"both": 2}), exit_code=1)
    found = conclude(marker(before, "create s.a"), before, failing, STAMP)
    assert (found.status, found.failed_command) == (Status.ERROR, "apply")
    assert found.outputs == {"old": 1, "both": 2}
    assert found.outputs_from["old"].run_id == "run-1"
    assert found.outputs_from["both"].run_id == "run-2"


def test_the_last_error_is_one_line_with_the_address() -> None:
    """
    ``last_error`` is concise and names the object.
    """
    found = conclude(marker(None, "create s.a"), None, ended(REFUSED, state(), exit_code=1), STAMP)
    assert found.last_error == "s.a: AccessDenied"


def test_what_touched_nothing_restores_the_record_from_before() -> None:
    """
    Law: failure keeps what is known.
    A complete journal without a begun change restores status and error; the attempt is kept.
    """
    before = entry(status="error", sequence=4, last_error="old", outputs={"a": 1})
    locked = MutationEvidence(
        exit_code=1, journal=journal(), state=None, lock=StateLock(id="1", who="ada")
    )
    found = conclude(marker(before, "create s.a"), before, locked, STAMP)
    assert (found.status, found.last_error, found.sequence) == (Status.ERROR, "old", 6)
    assert isinstance(found.last_attempt, Attempt)
    assert found.last_attempt.mutated is False
    assert found.last_attempt.error is not None
    assert found.last_attempt.error.code == "state_locked"


def test_a_first_attempt_that_touched_nothing_is_absent() -> None:
    """
    Its provider state was empty before the marker and nothing began: nothing is there.
    """
    found = conclude(
        marker(None, "create s.a"), None, ended([], state(lineage=None), exit_code=1), STAMP
    )
    assert found.status is Status.ABSENT
    assert found.absence is not None
    assert found.absence.method == "never_applied"


def test_an_incomplete_journal_never_proves_that_nothing_began() -> None:
    """
    Without the answer or the whole event file the attempt counts as a mutation.
    """
    cut = ended([], state(), exit_code=None, whole=False)
    found = conclude(marker(None, "create s.a"), None, cut, STAMP)
    assert (found.status, [d.address for d in found.resources.in_doubt]) == (Status.ERROR, ["s.a"])


@pytest.mark.parametrize(("code", "doubts"), [(0, []), (None, ["s.a"])])
def test_an_engine_that_ended_well_has_ended_what_it_began(
    code: int | None, doubts: list[str]
) -> None:
    """
    An event that is lost leaves a doubt only where no exit code stands for the whole.
    """
    lines = ["plan update s.a", "plan update s.b", "began update s.a"]
    cut = ended(lines, state(["s.a id-1", "s.b id-2"]), exit_code=code, whole=False)
    before = marker(entry(), "update s.a", "update s.b")
    found = conclude(before, entry(), cut, STAMP, verification=UNVERIFIED)
    assert [doubt.address for doubt in found.resources.in_doubt] == doubts


def test_of_earlier_doubts_those_stay_that_nothing_has_settled() -> None:
    """
    An update in doubt stays so while its object is there and no update of it has ended.
    """
    doubts = tuple(
        Doubt(address=address, action="update", why="it began and never ended")
        for address in ("s.a", "s.b", "s.gone")
    )
    before = entry(status="error", resources=Resources(in_doubt=doubts))
    done = ["plan update s.a", "began update s.a", "done update s.a id-1"]
    found = conclude(
        marker(before, "update s.a"), before, ended(done, state(["s.a id-1", "s.b id-2"])), STAMP,
        verification=UNVERIFIED,
    )  # fmt: skip
    assert [doubt.address for doubt in found.resources.in_doubt] == ["s.b"]


def test_an_engine_that_its_timeout_stopped_says_so() -> None:
    """
    The code tells it from a stop by a person.
    """
    slow = MutationEvidence(
        exit_code=1, journal=journal("began create s.a"), state=state(), timed_out=True
    )
    found = conclude(marker(None, "create s.a"), None, slow, STAMP)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "deadline")


def test_a_clean_answer_without_a_provider_state_is_no_success() -> None:
    """
    Laws: destroyed means confirmed; only success makes ok.
    What cannot be read back is not ok.
    """
    blind = MutationEvidence(
        exit_code=0, journal=journal(*CREATED), state=None, state_error="timeout"
    )
    found = conclude(marker(None, "create s.a"), None, blind, STAMP)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "state_unreadable")


def test_a_failed_check_after_an_apply_is_an_error_of_verify() -> None:
    """
    Law: failed checks.
    The objects exist, the phase is verify.
    """
    evidence = ended(CREATED, state(["s.a id-1"]))
    found = conclude(marker(None, "create s.a"), None, evidence, STAMP, verification=FAILED_CHECK)
    assert found.error is not None
    assert (found.status, found.error.phase) == (Status.ERROR, "verify")
    assert (found.last_error, found.resources.created) == ("http: answered 500", ("s.a",))


def test_stopped_by_a_signal_says_so() -> None:
    """
    Law: signals.
    ``error.code`` is stopped.
    """
    evidence = MutationEvidence(
        exit_code=1, journal=journal("began create s.a"), state=state(), stopped=True
    )
    found = conclude(marker(None, "create s.a"), None, evidence, STAMP)
    assert found.error is not None
    assert found.error.code == "stopped"


def test_what_finished_although_it_was_told_to_stop_is_ok() -> None:
    """
    Law: signals.
    Ok if it finished.
    """
    evidence = MutationEvidence(
        exit_code=0, journal=journal(*CREATED), state=state(["s.a id-1"]), stopped=True
    )
    found = conclude(marker(None, "create s.a"), None, evidence, STAMP, verification=UNVERIFIED)
    assert found.status is Status.OK


DELETED = ["began delete s.a", "done delete s.a"]
OUTPUTS = {"url": "u"}


def test_a_confirmed_destroy_is_destroyed_and_forgets_the_outputs() -> None:
    """
    Law: destroyed means confirmed.
    With ``--verify state``: a completed delete for every object, and an empty state.
    """
    before = entry(outputs=OUTPUTS)
    first = marker(before, "delete s.a", command="destroy", held=state(["s.a id-1"]))
    found = conclude(first, before, ended(DELETED, state()), STAMP)
    assert (found.status, found.outputs) == (Status.DESTROYED, {})
    assert found.absence is not None
    assert [(c.address, c.id, c.state) for c in found.absence.checked] == [("s.a", "id-1", "gone")]


def test_a_destroy_that_leaves_an_object_is_an_error() -> None:
    """
    Law: destroyed means confirmed.
    Exit code 0 is not absence.
    """
    before = entry(outputs=OUTPUTS)
    first = marker(before, "delete s.a", command="destroy", held=state(["s.a id-1", "s.b id-2"]))
    found = conclude(first, before, ended(DELETED, state(["s.b id-2"])), STAMP)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "remaining")
    assert found.outputs == OUTPUTS


def test_a_failed_destroy_keeps_outputs_although_the_state_has_lost_them() -> None:
    """
    Law: failure keeps what is known.
    After a failed destroy the outputs from before are kept.
    """
    before = entry(outputs=OUTPUTS)
    first = marker(before, "delete s.a", command="destroy", held=state(["s.a id-1"]))
    failing = ["began delete s.a", "failed delete s.a", "error s.a in use"]
    found = conclude(first, before, ended(failing, state(["s.a id-1"]), exit_code=1), STAMP)
    assert (found.status, found.failed_command, found.outputs) == (
        Status.ERROR,
        "destroy",
        OUTPUTS,
    )


def test_a_destroy_with_an_open_doubt_is_not_destroyed() -> None:
    """
    Law: an outlived run is settled from evidence.
    Destroy goes on, but ends error while a doubt remains.
    """
    before = entry(status="error", resources=Resources(in_doubt=(DOUBT,)))
    first = marker(before, "delete s.a", command="destroy", held=state(["s.a id-1"]))
    found = conclude(first, before, ended(DELETED, state()), STAMP)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "unconfirmed")
    assert found.resources.in_doubt == (DOUBT,)


def test_vanished_before_the_destroy_is_absent_not_destroyed() -> None:
    """
    ``absent``: nothing there, and we did not destroy it.
    """
    before = entry()
    first = marker(before, command="destroy", held=state(["s.a id-1"]))
    assert conclude(first, before, ended([], state()), STAMP).status is Status.ABSENT


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            entry(
                status="error",
                failed_command="destroy",
                resources=Resources(deleted=("s.a",)),
            ),
            Status.DESTROYED,
        ),
        (entry(status="error", failed_command="destroy"), Status.ABSENT),
        (entry(status="error", failed_command="apply"), Status.ABSENT),
        (entry(status="ok"), Status.ABSENT),
    ],
)
def test_an_empty_state_without_a_mutation(before: OperationRecord, expected: Status) -> None:
    """
    Only what our own destroy began to delete can read destroyed.
    """
    assert gone_without_mutation(before, STAMP).status is expected


def test_an_empty_state_with_a_doubt_stays_an_error() -> None:
    """
    An object in doubt is not in the state: its emptiness says nothing of it.
    """
    before = entry(status="error", resources=Resources(in_doubt=(DOUBT,)))
    found = gone_without_mutation(before, STAMP)
    assert (found.status, found.failed_command) == (Status.ERROR, "destroy")


def test_a_plan_without_changes_is_ok_over_error_and_keeps_origins() -> None:
    """
    Law: before the marker nothing changes.
    Ok directly, also over error; an output that did not change keeps its origin.
    """
    origin = OutputOrigin(run_id="run-1", at=START)
    before = entry(status="error", outputs={"a": 1}, outputs_from={"a": origin}, last_error="x")
    found = unchanged(
        before,
        facts(provider_state=BOUND),
        state(outputs={"a": 1, "b": 2}),
        STAMP,
        verification=UNVERIFIED,
    )
    assert (found.status, found.last_error) == (Status.OK, None)
    assert (found.outputs_from["a"].run_id, found.outputs_from["b"].run_id) == ("run-1", "run-2")


def test_a_plan_without_changes_and_a_failing_check_is_an_error() -> None:
    """
    Law: failed checks.
    Without a mutation.
    """
    found = unchanged(
        entry(), facts(provider_state=BOUND), state(), STAMP, verification=FAILED_CHECK
    )
    assert (found.status, found.failed_command) == (Status.ERROR, "verify")


def test_checks_alone_restore_ok() -> None:
    """
    The verb ``verify`` settles an error that was only a failed check.
    """
    fault = Fault(code="check_failed", phase="verify", summary="x")
    before = entry(status="error", error=fault, failed_command="apply", last_error="x")
    found = checked(before, UNVERIFIED, STAMP)
    assert (found.status, found.error, found.failed_command) == (Status.OK, None, None)


def test_what_is_retained_stays_retained_whatever_a_check_says() -> None:
    """
    A failing check does not take a retained target out of retention.
    """
    assert checked(entry(status="retained"), FAILED_CHECK, STAMP).status is Status.RETAINED


def test_reconcile_without_proof_leaves_the_error() -> None:
    """
    Surgery and evidence never make ok by themselves.
    """
    before = entry(status="error", last_error="x", resources=Resources(in_doubt=(DOUBT,)))
    found = reconciled(before, state(["s.a id-1"]), (), STAMP, verification=None)
    assert (found.status, found.last_error) == (Status.ERROR, "x")
    assert found.resources.in_doubt == (DOUBT,)


def test_reconcile_keeps_the_error_that_an_open_doubt_comes_from() -> None:
    """
    A create in doubt and an empty provider state: nothing new is known, so the record still says
    that the apply failed and how.
    """
    fault = Fault(code="engine_failed", phase="apply", summary="the answer was lost")
    before = entry(
        status="error",
        failed_command="apply",
        error=fault,
        last_error="the answer was lost",
        resources=Resources(in_doubt=(DOUBT,)),
    )
    found = reconciled(before, state(), (), STAMP, verification=None)
    assert (found.failed_command, found.error) == ("apply", fault)
    assert (found.status, found.resources.in_doubt) == (Status.ERROR, (DOUBT,))


def test_reconcile_is_ok_only_with_an_empty_plan_and_no_doubt() -> None:
    """
    A verification with a doubt left does not make ok.
    """
    before = entry(status="error", resources=Resources(in_doubt=(DOUBT,)))
    with_doubt = reconciled(before, state(["s.a id-1"]), (), STAMP, verification=UNVERIFIED)
    forgotten = SettledDoubt(doubt=DOUBT, how="forgotten", reason="none", run_id="run-3", at=LATER)
    without = reconciled(before, state(["s.a id-1"]), [forgotten], STAMP, verification=UNVERIFIED)
    assert (with_doubt.status, without.status) == (Status.ERROR, Status.OK)
    assert without.settled == (forgotten,)


def test_unknown_fields_survive_a_move() -> None:
    """
    Law: unreadable is not empty.
    Unknown fields of a newer minor version are preserved.
    """
    before = OperationRecord.model_validate({**entry().model_dump(), "novelty": {"a": 1}})
    assert '"novelty":{"a":1}' in marker(before, "create s.a").to_json()


def test_a_deposed_object_stays_in_the_inventory() -> None:
    """
    A create before destroy whose delete failed leaves two objects: both are known.
    """
    first = marker(entry(), "replace s.a", held=state(["s.a id-1"]))
    evidence = ended(
        ["began create s.a", "done create s.a id-2", "began delete s.a"],
        state(["s.a id-2", "s.a id-1 deposed=d1"]),
        exit_code=1,
    )
    found = conclude(first, entry(), evidence, STAMP)
    assert found.resources.inventory == refs("s.a id-2", "s.a id-1 deposed=d1")


def test_an_apply_over_a_retained_target_leaves_it_retained() -> None:
    """
    Law: destroy skips only what is gone or retained.
    Only ``release`` takes a target out of retention.
    """
    before = entry(status="retained")
    evidence = ended(CREATED, state(["s.a id-1"]))
    found = conclude(marker(before, "create s.a"), before, evidence, STAMP, verification=UNVERIFIED)
    assert found.status is Status.RETAINED


@pytest.mark.parametrize("checks", [UNVERIFIED, FAILED_CHECK])
def test_a_targeted_apply_that_leaves_something_is_not_ok(checks: Verification) -> None:
    """
    It is ok only after an untargeted plan is empty, whatever the checks say.
    """
    first = marker(None, "create s.a")
    evidence = ended(CREATED, state(["s.a id-1"]))
    left = planned("create s.b")
    found = conclude(first, None, evidence, STAMP, verification=checks, undone=left)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "targeted")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ([], "left undone changed outputs"),
        (["create s.b", "delete s.c", "create s.d"], "left undone s.b, s.c, s.d"),
        (["create s.b", "delete s.c", "create s.d", "create s.e"], "s.b, s.c, s.d and 1 more"),
    ],
)
def test_a_targeted_apply_names_what_it_left(left: list[str], said: str) -> None:
    """
    The first three, and how many more.
    """
    assert targeted_fault(planned(*left)).summary.endswith(said)


def test_reconcile_never_loses_sight_of_what_left_the_state() -> None:
    """
    An object that left the provider state without us is not gone by that.
    """
    before = entry(
        status="error", failed_command="destroy", resources=Resources(inventory=refs("s.a id-1"))
    )
    found = reconciled(before, state(), (), STAMP, verification=None)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "vanished")
    assert [doubt.id for doubt in found.resources.in_doubt] == ["id-1"]


def test_an_end_that_the_journal_does_not_tell_is_no_doubt_after_a_clean_exit() -> None:
    """
    Of a deposed and a new object at one address the engine may report only one end.
    """
    before = entry()
    first = marker(before, "replace s.a", held=state(["s.a id-1"]))
    lines = ["began create s.a", "done create s.a id-2", "began delete s.a"]
    found = conclude(
        first, before, ended(lines, state(["s.a id-2"])), STAMP, verification=UNVERIFIED
    )
    assert (found.status, found.resources.in_doubt) == (Status.OK, ())


def test_what_was_never_applied_is_absent_by_its_empty_state() -> None:
    """
    Absent is confirmed; no record alone is never read as that.
    """
    found = never_applied(facts(provider_state=BOUND), STAMP)
    assert found.absence is not None
    assert (found.status, found.sequence, found.absence.method) == (
        Status.ABSENT,
        1,
        "never_applied",
    )


def test_a_failing_check_of_a_retained_target_does_not_take_it_out_of_retention() -> None:
    """
    A plan without changes over a retained target: the verdict is kept, the status stays.
    """
    found = unchanged(
        entry(status="retained"),
        facts(provider_state=BOUND),
        state(),
        STAMP,
        verification=FAILED_CHECK,
    )
    assert (found.status, found.verification) == (Status.RETAINED, FAILED_CHECK)


def test_reconcile_does_not_leave_a_doubt_under_ok() -> None:
    """
    A target of which something is in doubt does not read ok.
    """
    before = entry(resources=Resources(inventory=refs("s.a id-1", "s.b id-2")))
    found = reconciled(before, state(["s.b id-2"]), (), STAMP, verification=None)
    assert found.error is not None
    assert (found.status, found.error.code) == (Status.ERROR, "vanished")


def test_surgery_leaves_what_it_does_not_answer_in_doubt() -> None:
    """
    Law: only success makes ok.
    An import answers the doubt at its address only; another, of which a readback could not
    tell, stays with all that was found out.
    """
    found_out = Readback(
        verdict="unknown",
        method="identity",
        why="it was never proven",
        at=START,
        look=ManualSearch(since=START, until=LATER, inputs={"name": "x"}),
    )
    other = DOUBT.model_copy(update={"address": "s.other", "readback": found_out})
    lost = DOUBT.model_copy(update={"id": "id-1"})
    before = entry(status="error", resources=Resources(in_doubt=(lost, other)))
    first = marker(before, "import s.lost", command="import", held=state())
    found = surgery_ended(first, before, ended([], state(["s.lost id-1"])), STAMP)
    assert (found.status, found.resources.in_doubt) == (Status.ERROR, (other,))
    assert [(item.doubt.address, item.how) for item in found.settled] == [("s.lost", "adopted")]


@pytest.mark.parametrize(
    ("plan", "lines", "after", "left"),
    [
        ("noop t.b previous_address=s.a", (), "t.b id-1", [("t.b", "t")]),
        ("replace t.b previous_address=s.a", ("done create t.b id-1",), "t.b id-1", []),
    ],
)
def test_what_was_adopted_goes_along_with_a_move(
    plan: str, lines: tuple[str, ...], after: str, left: list[tuple[str, str]]
) -> None:
    """
    Law: not ours until proven.
    It is as unproven where it was moved to, also as another type; what has replaced it there is
    ours.
    """
    adopted = AdoptedObject(
        address="s.a", type="s", id="id-1", ownership="found", why="w", run_id="r", at=START
    )
    before = entry(adopted=(adopted,), resources=Resources(inventory=refs("s.a id-1")))
    found = conclude(
        marker(before, plan, held=state(["t.b id-1"])),
        before,
        ended([*lines], state([after])),
        STAMP,
    )
    assert [(item.address, item.type) for item in found.adopted] == left
