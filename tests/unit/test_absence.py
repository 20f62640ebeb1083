"""
What a provider says of destroyed objects, and what it adds up to.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.record.entry_changes import EntryStamp, changes_in_run
from orchestrator.domain.record.objects import (
    CheckedState,
    Doubt,
    Resources,
    SavedState,
    SettledDoubt,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import StepRun
from orchestrator.domain.record.states import Status, StepStatus
from orchestrator.domain.transitions.absence import (
    AbsenceFinding,
    MutationEvidence,
    absence,
    absence_method,
    has_remote_side,
    update_doubts,
)
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.reconciliation import (
    gone_without_mutation,
    reconciled,
    unconfirmed_reason,
)
from orchestrator.domain.transitions.transitions import mark
from orchestrator.views.summary import counts_text
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry
from tests.fakes.journals import journal, planned, refs, state

SAVED = SavedState(run_id="20300102T030405Z-000001", host="workshop")
STAMP = EntryStamp(at=START, entry_id="next", actor=ACTOR)


@pytest.mark.parametrize(
    ("provider", "remote"),
    [
        ("terraform.io/builtin/terraform", False),
        ("registry.opentofu.org/hashicorp/random", False),
        ("registry.terraform.io/hashicorp/local", True),
        ("registry.terraform.io/acme/random", True),
    ],
)
def test_what_exists_in_state_only_is_not_asked_for(provider: str, *, remote: bool) -> None:
    """
    Such a provider says that an object exists whatever it is asked.
    """
    assert has_remote_side(provider) is remote


def test_the_command_says_first_how_absence_is_confirmed() -> None:
    """
    Command, then blueprint, then what was declared when it was applied.
    """
    before = entry(verify_absence="state")
    assert absence_method("provider", "state", before) == "provider"
    assert absence_method(None, "provider", before) == "provider"
    assert absence_method(None, None, before) == "state"


def test_nobody_has_to_ask_for_the_provider_to_be_asked() -> None:
    """
    Law: destroyed means confirmed.
    Where nobody says how, the provider is asked: a delete may lie.
    """
    assert absence_method(None, None, None) == "provider"
    assert absence_method(None, None, entry()) == "provider"


def finding(
    address: str, found: CheckedState, *, why: str = "", kept: bool = True
) -> AbsenceFinding:
    (ref,) = refs(f"{address} id-{address[-1]}")
    return AbsenceFinding(ref, found, why, SAVED if kept else None)


def test_a_doubt_is_replaced_by_what_was_found() -> None:
    """
    One doubt per object, with today's words and the time of the first; gone settles it.
    """
    first, _ = update_doubts(
        Resources(),
        [finding("s.a", "requested"), finding("s.b", "requested")],
        run_id="r",
        at=START,
    )
    found = [finding("s.a", "remaining", why="still there"), finding("s.b", "gone")]
    doubts, settled = update_doubts(Resources(in_doubt=first), found, run_id="r", at=START)
    assert [(d.address, d.why, d.saved) for d in doubts] == [("s.a", "still there", SAVED)]
    assert [(s.doubt.address, s.how) for s in settled] == [("s.b", "gone")]


def test_a_doubt_about_another_object_at_the_address_stays() -> None:
    """
    What was found is about the object with that id only.
    """
    other = Doubt(address="s.a", action="forget", id="another", why="it left")
    found = [finding("s.a", "gone")]
    doubts, settled = update_doubts(Resources(in_doubt=(other,)), found, run_id="r", at=START)
    assert (doubts, settled) == ((other,), ())


@pytest.mark.parametrize(
    ("held", "adoptable"), [("s.a id-new", False), ("s.a id-a", True), ("s.b id-b", True)]
)
def test_what_was_not_deleted_is_not_adopted_where_its_successor_is(
    held: str, adoptable: bool
) -> None:
    """
    Nothing is imported to an address that holds another object.
    """
    found = [finding("s.a", "remaining")]
    (doubt,), _ = update_doubts(Resources(inventory=refs(held)), found, run_id="r", at=START)
    assert doubt.readback is not None and doubt.readback.adoptable is adoptable
    assert doubt.readback.adopts == ("id-a" if adoptable else None)


def test_what_the_provider_could_not_tell_is_noted_with_the_doubt() -> None:
    """
    So that `recover` does not recommend for ever to ask again.
    """
    later = START + timedelta(minutes=1)
    first, _ = update_doubts(
        Resources(),
        [finding("s.a", "requested"), finding("s.b", "requested")],
        run_id="r",
        at=START,
    )
    found = [finding("s.a", "unknown", why="no parent"), finding("s.b", "terminating")]
    told, silent = update_doubts(Resources(in_doubt=first), found, run_id="r", at=later)[0]
    assert told.readback is not None and silent.readback is None
    assert (told.at, told.readback.verdict, told.readback.at) == (START, "unknown", later)


def destroying(*, by: str = "provider") -> OperationRecord:
    return entry(
        status="running",
        active_command="destroy",
        verify_absence=by,
        resources=Resources(
            planned=planned("delete s.a", "delete s.b"), inventory=refs("s.a id-a", "s.b id-b")
        ),
    )


DELETED = ["began delete s.a", "done delete s.a", "began delete s.b", "done delete s.b"]


def ended(*found: AbsenceFinding, exit_code: int = 0, stopped: bool = False) -> MutationEvidence:
    return MutationEvidence(
        exit_code=exit_code,
        journal=journal(*DELETED),
        state=state(),
        stopped=stopped,
        absence_findings=found,
    )


def codes(record: OperationRecord) -> tuple[Status, str | None]:
    return record.status, record.error.code if record.error else None


BOTH_GONE = (finding("s.a", "gone"), finding("s.b", "gone"))


def test_confirmed_by_the_provider_it_is_destroyed() -> None:
    """
    Law: destroyed means confirmed.
    Every object that state held was asked for and is gone.
    """
    found = conclude(destroying(), entry(), ended(*BOTH_GONE), STAMP)
    assert found.absence is not None
    assert codes(found) == (Status.DESTROYED, None)
    assert (found.absence.verdict, found.absence.method) == ("confirmed", "provider")


@pytest.mark.parametrize(
    ("found", "stopped", "code"),
    [
        ("remaining", False, "remaining"),
        ("terminating", True, "stopped"),
        ("requested", True, "stopped"),
        ("unknown", False, "unconfirmed"),
    ],
)
def test_anything_else_is_an_error_that_keeps_the_object(
    found: CheckedState, code: str, *, stopped: bool
) -> None:
    """
    Law: destroyed means confirmed.
    `error` with its code; the record keeps the object and its id, in doubt, and the
    provider state that knows it.
    """
    told = ended(finding("s.a", found, why="said"), finding("s.b", "gone"), stopped=stopped)
    record = conclude(destroying(), entry(), told, STAMP)
    assert record.absence is not None
    assert codes(record) == (Status.ERROR, code)
    assert [(r.address, r.id) for r in record.resources.inventory] == [("s.a", "id-a")]
    assert [(d.address, d.saved) for d in record.resources.in_doubt] == [("s.a", SAVED)]
    assert (record.absence.verdict, record.failed_command) == ("unconfirmed", "destroy")


def test_a_failed_destroy_keeps_its_own_code() -> None:
    """
    What the engine said explains more than what is missing from the provider's answers.
    """
    told = ended(finding("s.a", "gone"), finding("s.b", "unknown"), exit_code=1)
    record = conclude(destroying(), entry(), told, STAMP)
    assert codes(record) == (Status.ERROR, "engine_failed")
    assert [d.address for d in record.resources.in_doubt] == ["s.b"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Saved plan is stale", "stale_plan"),
        ("the quota is used up", "engine_failed"),
    ],
)
def test_a_plan_whose_state_has_moved_is_told_from_a_failure(said: str, code: str) -> None:
    """
    Nothing is wrong with the module or its provider: the step is planned again.
    """
    told = MutationEvidence(
        exit_code=1, journal=journal(f"error - {said}"), state=state(["s.a id-a", "s.b id-b"])
    )
    attempt = conclude(destroying(), entry(), told, STAMP).last_attempt
    assert attempt is not None
    assert attempt.error is not None
    assert attempt.error.code == code


def unsure(found: CheckedState = "remaining") -> OperationRecord:
    told = ended(finding("s.a", found, why="said"), finding("s.b", "gone"))
    return conclude(destroying(), entry(), told, STAMP)


def test_the_next_destroy_confirms_with_all_that_was_ever_asked_for() -> None:
    """
    Without a mutation: `destroyed`, because a destroy of ours had deleted, and the record names
    every object that was found gone.
    """
    found = gone_without_mutation(unsure(), STAMP, [finding("s.a", "gone")], run_id="second")
    assert found.absence is not None
    assert codes(found) == (Status.DESTROYED, None)
    assert sorted(c.address for c in found.absence.checked) == ["s.a", "s.b"]
    assert [(s.how, s.run_id) for s in found.settled] == [("gone", "second")]


@pytest.mark.parametrize(("now", "code"), [("remaining", "remaining"), ("unknown", "unconfirmed")])
def test_reconcile_says_what_the_provider_says_now(now: CheckedState, code: str) -> None:
    """
    The error is that of the newest answer, and no object is lost sight of.
    """
    told = [finding("s.a", now, why="now")]
    found = reconciled(unsure("unknown"), state(), (), STAMP, verification=None, findings=told)
    assert codes(found) == (Status.ERROR, code)
    assert [d.why for d in found.resources.in_doubt] == ["now"]
    assert [r.id for r in found.resources.inventory] == ["id-a"]


def test_reconcile_confirms() -> None:
    """
    `destroyed`, not `absent`: the destroy was ours.
    """
    told = [finding("s.a", "gone")]
    found = reconciled(unsure(), state(), (), STAMP, verification=None, findings=told)
    assert codes(found) == (Status.DESTROYED, None)


def test_state_still_holding_an_object_is_told_with_the_answers() -> None:
    """
    What was never deleted remains, and the provider is not asked for it.
    """
    found = absence([finding("s.a", "gone")], refs("s.b id-b"), START)
    assert [(c.address, c.state) for c in found.checked] == [("s.a", "gone"), ("s.b", "remaining")]
    assert found.verdict == "unconfirmed"


def test_the_next_marker_does_not_lose_sight_of_what_is_not_confirmed() -> None:
    """
    Law: intent first.
    Over an unconfirmed destroy: the marker holds what state does and what it no longer does.
    """
    before = unsure()
    found = mark(
        before,
        changes_in_run("r"),
        state(["s.c id-c"]),
        STAMP,
        command="destroy",
        planned=planned("delete s.c"),
        doubts=before.resources.in_doubt,
    )
    assert [r.address for r in found.resources.inventory] == ["s.c", "s.a"]


def test_what_a_person_forgets_is_not_doubted_again_by_an_answer() -> None:
    """
    The provider still has it, and the person says that this does not matter.
    """
    (doubt,) = unsure().resources.in_doubt
    forgotten = SettledDoubt(
        doubt=doubt, how="forgotten", reason="ours no more", run_id="r", at=START
    )
    told = [finding("s.a", "remaining", why="there")]
    found = reconciled(unsure(), state(), (forgotten,), STAMP, verification=None, findings=told)
    assert (codes(found), found.resources.in_doubt) == ((Status.DESTROYED, None), ())


@pytest.mark.parametrize("again", [False, True])
def test_a_confirmed_absence_tells_what_rests_on_the_word_of_a_person(again: bool) -> None:
    """
    Law: evidence before a person's word.
    The destroyed record names that as its method, and tells what only a person calls gone, why and
    in which run; also where the step was destroyed once more in between.
    """
    before = unsure()
    (doubt,) = before.resources.in_doubt
    forgotten = SettledDoubt(
        doubt=doubt, how="forgotten", reason="ours no more", run_id="r", at=START
    )

    found = reconciled(before, state(), (forgotten,), STAMP, verification=None)
    if again:
        held = before.model_copy(
            update={"resources": Resources(inventory=refs("s.c id-c"), in_doubt=(doubt,))}
        )
        found = reconciled(held, state(["s.c id-c"]), (forgotten,), STAMP, verification=None)
        marker = mark(
            found,
            {**changes_in_run("r"), "verify_absence": "state"},
            state(["s.c id-c"]),
            STAMP,
            command="destroy",
            planned=planned("delete s.c"),
        )
        found = conclude(marker, found, ended(), STAMP)

    assert found.status is Status.DESTROYED
    assert found.absence is not None
    assert (found.absence.verdict, found.absence.method) == ("confirmed", "person")
    rest = [("s.c", "gone", None, None)] if again else []
    assert [(c.address, c.state, c.why, c.run_id) for c in found.absence.checked] == [
        ("s.b", "gone", None, None),
        ("s.a", "forgotten", "ours no more", "r"),
        *rest,
    ]


def test_each_object_is_told_once_and_with_its_own_reason() -> None:
    """
    What a destroy deleted and nobody could confirm is in doubt, and counted as nothing else; two
    objects with two reasons are told with both.
    """
    doubts = tuple(
        Doubt(address=address, action="forget", why=why)
        for address, why in (("a.x", "no answer"), ("a.y", "not asked"), ("a.z", "no answer"))
    )
    _, said = unconfirmed_reason(Resources(in_doubt=doubts))
    assert said == "not confirmed gone: a.x, a.z (no answer); a.y (not asked)"
    row = StepRun(
        step="s",
        target="b/e/s",
        status=StepStatus.ERROR,
        deleted=("a.w", "a.x", "a.y", "a.z"),
        in_doubt=doubts,
    )
    assert counts_text(row) == "1 deleted, 3 in doubt"
