"""
What may be done about a step: the table of cases, each with its reason.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from typing import get_args

import pytest

from orchestrator.domain.record.objects import Doubt, Readback, Resources, SavedState
from orchestrator.domain.record.record import (
    Attempt,
    Diagnostic,
    Fault,
    HookResult,
    OperationRecord,
    Phase,
    Retention,
)
from orchestrator.domain.record.states import Condition
from orchestrator.domain.recovery.advice import CASES, NOT_CALLED_FOR, PRECONDITIONS, Advice, advise
from orchestrator.domain.recovery.command_line import RecordedBlueprint
from orchestrator.domain.recovery.commands import command_of, offers
from orchestrator.domain.recovery.context import (
    RecoveryContext,
    Remedy,
    Situation,
    StepFacts,
)
from orchestrator.domain.recovery.messages import (
    DESCRIPTIONS,
    PHASE_HINTS,
    REFUSALS,
    SITUATION_DESCRIPTIONS,
    hint_of,
)
from orchestrator.domain.text import Json
from orchestrator.errors import Refused
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import refs

WEB = RecordedBlueprint("web", "prod")


LOST = Doubt(
    address='aws_instance.this["a b"]',
    action="create",
    started_at=START,
    at=START + timedelta(seconds=20),
    why="its create ended in an error",
)
LEFT = Doubt(address="aws_eip.this", action="forget", id="eip-1", why="it left the state")
STUCK = LEFT.model_copy(
    update={"readback": Readback(verdict="unknown", method="id", why="no import id", at=START)}
)
KEPT = LEFT.model_copy(update={"saved": SavedState(run_id="R1", host="workshop")})
FOUND = LOST.model_copy(
    update={
        "readback": Readback(
            verdict="exists",
            method="search",
            ids=("i-1",),
            why="it has the tag",
            at=START,
            ownership="ours",
        )
    }
)
DISPLACED = KEPT.model_copy(
    update={"readback": FOUND.readback.model_copy(update={"ids": ("eip-1",), "adoptable": False})}
    if FOUND.readback
    else {}
)
FOREIGN, UNPROVEN = (
    FOUND.model_copy(
        update={"readback": FOUND.readback.model_copy(update={"ownership": ownership})}
    )
    for ownership in ("foreign", "found")
    if FOUND.readback is not None
)
FULL = StepFacts(failed_run="R1", earlier_run="R0", compensates=True)
MISSING = Refused("snapshot_missing", "it is not in the store", hint="redeploy")
CUT = HookResult(verdict="unknown", by="undo", run_id="R1", at=START)
UNVERIFIED = Refused("unverified", "R0 was not verified", hint="--unverified")
DOUBTFUL = Resources(in_doubt=(LOST,), inventory=refs("aws_vpc.this vpc-1"))


def failed(phase: str = "apply", command: str = "apply", **fields: Json) -> OperationRecord:
    """
    A record in ``error`` with something alive.
    """
    filled: dict[str, Json] = {
        "status": "error",
        "sequence": 6,
        "run_id": "R1",
        "failed_command": command,
        "error": Fault(code="engine_failed", phase=phase, summary="capacity"),
        "resources": Resources(inventory=refs("aws_vpc.this vpc-1")),
    }
    return entry(**(filled | fields))


def running(**fields: Json) -> OperationRecord:
    return entry(status="running", active_command="apply", sequence=5, run_id="R1", **fields)


@dataclass(frozen=True, slots=True)
class Row:
    """
    A case: what is known, and what must follow. ``codes`` are reasons of actions that are not
    available; ``offers`` all actions that are.
    """

    why: str
    record: OperationRecord | None
    situation: Situation
    recommended: str | None
    offers: str
    facts: StepFacts = FULL
    position: dict[str, Json] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    is_orphan: bool = False


S = Situation
ROWS = (
    Row(
        "while somebody is at work there is nothing to do but wait",
        running(),
        S.LIVE,
        "wait",
        "wait",
        StepFacts(condition=Condition.LIVE),
        codes={"reconcile": "live", "destroy": "live", "retry": "live"},
    ),
    Row(
        "a run on another step holds the claim: everything that mutates would be refused",
        failed(),
        S.CLAIMED,
        "wait",
        "wait",
        StepFacts(claimed_by="apply of run R2 is in progress"),
        codes={"retry": "claimed", "reconcile": "claimed"},
    ),
    Row(
        "who is silent may be alive: only a person who looked may take over",
        running(),
        S.SILENT,
        "manual",
        "reconcile manual",
        StepFacts(condition=Condition.SILENT, unproven_process="run R1"),
        codes={"wait": "not_running", "destroy": "silent", "redeploy": "silent"},
    ),
    Row(
        "a dead run is settled from what it left before anything else",
        running(),
        S.INTERRUPTED,
        "reconcile",
        "reconcile destroy",
        StepFacts(
            condition=Condition.INTERRUPTED, compensates=True, failed_run="R1", earlier_run="R0"
        ),
        codes={"retry": "interrupted", "rollback": "interrupted", "compensate": "interrupted"},
    ),
    Row(
        "an outcome on disk is recorded first: what is shown is not in the store",
        entry(sequence=2),
        S.SPOOLED,
        "reconcile",
        "reconcile",
        StepFacts(spooled=True),
        codes={"destroy": "spooled", "verify": "spooled"},
    ),
    Row(
        "a provider state that was not saved knows more than the backend",
        failed(resources=DOUBTFUL),
        S.UNSAVED,
        "reconcile",
        "reconcile manual",
        StepFacts(errored_state="/work/errored.tfstate"),
        codes={"destroy": "errored_state", "retry": "errored_state"},
    ),
    Row(
        "one that is encrypted cannot be compared with anything: it is pushed with its key",
        failed(resources=DOUBTFUL),
        S.SEALED,
        "reconcile",
        "reconcile",
        StepFacts(errored_state="/work/errored.tfstate", errored_readable=False),
        codes={"destroy": "errored_state", "retry": "errored_state"},
    ),
    Row(
        "that an interrupted run could not save its state comes first: no destroy goes before it",
        running(),
        S.UNSAVED,
        "reconcile",
        "reconcile manual",
        StepFacts(condition=Condition.INTERRUPTED, errored_state="/work/errored.tfstate"),
        codes={"destroy": "errored_state"},
    ),
    Row(
        "what is in doubt could be made twice: evidence first",
        failed(resources=DOUBTFUL),
        S.IN_DOUBT,
        "reconcile",
        "reconcile destroy manual",
        codes={
            "verify": "in_doubt",
            "retry": "in_doubt",
            "redeploy": "in_doubt",
            "rollback": "in_doubt",
            "compensate": "in_doubt",
        },
    ),
    Row(
        "what the provider has is adopted before anything makes it twice",
        failed(resources=Resources(in_doubt=(FOUND, LEFT))),
        S.FOUND,
        "reconcile",
        "reconcile destroy manual",
        codes={"retry": "in_doubt", "redeploy": "in_doubt"},
    ),
    Row(
        "what the provider has is imported by an id that a person knows, if by its own it is not",
        failed(
            resources=Resources(in_doubt=(FOUND,)),
            last_attempt=Attempt(
                command="import",
                run_id="R2",
                at=START,
                error=Fault(code="engine_failed", phase="surgery", summary="bad import id"),
            ),
        ),
        S.NOT_IMPORTED,
        "manual",
        "reconcile destroy manual",
        codes={"retry": "in_doubt"},
    ),
    Row(
        "only a person can say whose it is that was found, also while a request may be under way",
        failed(resources=Resources(in_doubt=(UNPROVEN,))),
        S.UNPROVEN,
        "manual",
        "reconcile destroy manual",
        StepFacts(settling=30),
        codes={"retry": "in_doubt"},
    ),
    Row(
        "what an apply was to delete is there, and its successor has its address",
        failed(resources=Resources(in_doubt=(DISPLACED,), inventory=refs("aws_eip.this eip-2"))),
        S.DISPLACED,
        "reconcile",
        "reconcile destroy manual",
    ),
    Row(
        "what is not of this step is neither adopted nor called missing at once",
        failed(resources=Resources(in_doubt=(FOREIGN,))),
        S.FOREIGN,
        "reconcile",
        "reconcile destroy",
        StepFacts(settling=30),
        codes={"manual": "settling"},
    ),
    Row(
        "what the provider was asked for in vain can only be told by a person",
        failed(resources=DOUBTFUL),
        S.UNANSWERABLE,
        "manual",
        "reconcile destroy manual",
        StepFacts(unanswerable=frozenset({LOST.address})),
    ),
    Row(
        "what left the provider state is imported by its recorded id",
        entry(resources=Resources(in_doubt=(LEFT,))),
        S.LOST,
        "reconcile",
        "reconcile destroy manual",
        codes={"retry": "in_doubt", "redeploy": "in_doubt"},
    ),
    Row(
        "what left the provider state and no import brings back can only be told by a person",
        entry(resources=Resources(in_doubt=(STUCK,))),
        S.LEFT,
        "manual",
        "reconcile destroy manual",
    ),
    Row(
        "what a destroy removed and the provider has not confirmed is asked for again",
        failed(failed_command="destroy", resources=Resources(in_doubt=(KEPT,))),
        S.IN_DOUBT,
        "reconcile",
        "reconcile destroy manual",
    ),
    Row(
        "what has no record beside others that have is applied",
        None,
        S.NEVER,
        "redeploy",
        "redeploy",
        StepFacts(),
        codes={"destroy": "no_record", "retry": "not_failed", "manual": "nothing_missing"},
    ),
    Row(
        "no record of the whole blueprint is not `never run`: nobody knows what is there",
        None,
        S.UNRECORDED,
        None,
        "redeploy",
        StepFacts(unrecorded=True),
        codes={"destroy": "no_record", "retry": "no_record"},
    ),
    Row(
        "objects without a record are adopted before anything else",
        None,
        S.UNADOPTED,
        None,
        "",
        StepFacts(unadopted=True),
        codes={"redeploy": "unrecorded_state"},
    ),
    Row(
        "what a failed run did not get to can be done as that run meant it",
        None,
        S.NEVER,
        "redeploy",
        "retry redeploy",
    ),
    Row(
        "an upstream that is not ready comes first",
        None,
        S.NEVER,
        None,
        "",
        position={"unready": {"network": "error"}},
        codes={"redeploy": "upstream"},
    ),
    Row(
        "what is gone needs nothing",
        entry(status="destroyed"),
        S.GONE,
        None,
        "redeploy rollback",
        codes={"destroy": "nothing_there", "verify": "nothing_there"},
    ),
    Row(
        "what is retained is not destroyed",
        entry(
            status="retained",
            retained=Retention(reason="zone", owner="net", review_by="2027-06-30"),
        ),
        S.RETAINED,
        None,
        "verify redeploy rollback compensate",
        StepFacts(earlier_run="R0", compensates=True),
        codes={"destroy": "retained", "retry": "not_failed"},
    ),
    Row(
        "what is ok needs nothing",
        entry(),
        S.OK,
        None,
        "verify redeploy rollback compensate destroy",
        StepFacts(earlier_run="R0", compensates=True),
        codes={"reconcile": "nothing_uncertain", "retry": "not_failed"},
    ),
    Row(
        "without an earlier run there is nothing to roll back to",
        entry(),
        S.OK,
        None,
        "verify redeploy destroy",
        StepFacts(),
        codes={"rollback": "unknown_run", "compensate": "none_declared"},
    ),
    Row(
        "what others need is not taken down alone",
        entry(),
        S.OK,
        None,
        "verify redeploy rollback compensate",
        StepFacts(earlier_run="R0", compensates=True),
        position={"dependents": {"server": "ok"}},
        codes={"destroy": "dependents"},
    ),
    Row(
        "where only the checks failed they are run again",
        failed("verify"),
        S.CHECKS,
        "verify",
        "reconcile verify retry redeploy rollback compensate destroy",
    ),
    Row(
        "a compensation goes on where it stopped",
        failed("apply", "compensate"),
        S.COMPENSATING,
        "compensate",
        "reconcile retry redeploy rollback compensate destroy",
    ),
    Row(
        "a compensation that was interrupted is a person's before it is carried out again",
        failed("apply", "compensate", compensation=CUT),
        S.CUT_SHORT,
        "manual",
        "reconcile retry redeploy rollback compensate destroy manual",
    ),
    Row(
        "so is the work before a destroy",
        failed("destroy", "before_destroy", before_destroy=CUT),
        S.CUT_SHORT,
        "manual",
        "reconcile retry redeploy rollback compensate destroy manual",
    ),
    Row(
        "a module in doubt is reconciled before its action goes on",
        failed("apply", "compensate"),
        S.COMPENSATING,
        "reconcile",
        "reconcile retry redeploy rollback destroy",
        StepFacts(
            failed_run="R1",
            earlier_run="R0",
            compensates=True,
            hook_doubts={"compensate": "aws_s3_object.this"},
        ),
        codes={"compensate": "module_in_doubt"},
    ),
    Row(
        "nor does a destroy go on over the work before it",
        failed("destroy", "before_destroy"),
        S.DESTROYING,
        "reconcile",
        "reconcile redeploy",
        StepFacts(hook_doubts={"before_destroy": "run R1 was interrupted in it"}),
        codes={"destroy": "module_in_doubt"},
    ),
    Row(
        "without completed work there is nothing to compensate",
        failed(resources=Resources()),
        S.FAILED,
        "retry",
        "reconcile retry redeploy rollback destroy",
        codes={"compensate": "nothing_done"},
    ),
    Row(
        "what was compensated is not compensated again",
        entry(compensation=CUT.model_copy(update={"verdict": "done"})),
        S.OK,
        None,
        "verify redeploy rollback destroy",
        StepFacts(earlier_run="R0", compensates=True),
        codes={"compensate": "compensated"},
    ),
    Row(
        "a destroy continues with what is left",
        failed("destroy", "destroy"),
        S.DESTROYING,
        "destroy",
        "reconcile redeploy rollback compensate destroy",
        codes={"retry": "not_failed", "verify": "not_applied"},
    ),
    Row(
        "a part was applied on purpose: the rest follows",
        failed(targets=("aws_vpc.this",)),
        S.TARGETED,
        "redeploy",
        "reconcile redeploy rollback compensate destroy",
        codes={"retry": "not_failed"},
    ),
    Row(
        "what was imported is applied next: the plan shows what it still misses",
        failed("surgery", "import"),
        S.SURGERY,
        "redeploy",
        "reconcile retry redeploy rollback compensate destroy",
    ),
    Row(
        "an apply that failed before it made anything is repeated",
        entry(
            status="absent",
            sequence=6,
            last_attempt=Attempt(
                command="apply",
                run_id="R1",
                at=START,
                error=Fault(code="engine_failed", phase="apply", summary="a precondition"),
            ),
        ),
        S.UNMADE,
        "retry",
        "retry redeploy rollback",
        codes={"destroy": "nothing_there"},
    ),
    Row(
        "what an import was to take over is not made a second time",
        entry(
            status="absent",
            sequence=6,
            last_attempt=Attempt(
                command="import",
                run_id="R1",
                at=START,
                error=Fault(code="engine_failed", phase="surgery", summary="403"),
            ),
        ),
        S.UNMADE,
        None,
        "retry redeploy rollback",
    ),
    Row(
        "a lock that a dead run left is released before anything else",
        failed(resources=DOUBTFUL),
        S.LOCKED,
        "reconcile",
        "reconcile",
        StepFacts(lock="id 7, who ann@ci", left_lock="7"),
        codes={"retry": "state_locked", "destroy": "state_locked"},
    ),
    Row(
        "objects that left the provider state are looked for before anything is made again",
        entry(sequence=6, resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        S.STATE_EMPTIED,
        "reconcile",
        "reconcile",
        StepFacts(state_emptied=True),
        codes={"redeploy": "state_emptied", "destroy": "state_emptied"},
    ),
    Row(
        "another object at the address of a recorded one makes way before that is imported",
        entry(sequence=6, resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        S.OCCUPIED,
        "manual",
        "reconcile manual",
        StepFacts(state_emptied=True, occupied=("aws_vpc.this",)),
        codes={"redeploy": "occupied", "destroy": "occupied"},
    ),
    Row(
        "where another provider state is in place of the recorded one that is restored first",
        entry(sequence=6, resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        S.STATE_REPLACED,
        "manual",
        "manual",
        StepFacts(state_replaced=True),
        codes={"reconcile": "state_replaced", "destroy": "state_replaced"},
    ),
    Row(
        "a provider state that has gone back is reconciled before anything is made",
        entry(sequence=6, resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        S.STATE_BACK,
        "reconcile",
        "reconcile",
        StepFacts(state_back=True),
        codes={"redeploy": "state_back", "destroy": "state_back"},
    ),
    Row(
        "where none of the recorded objects is found a person looks at region and account first",
        entry(sequence=6, resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        S.VANISHED,
        "manual",
        "verify redeploy destroy manual",
        StepFacts(vanished=True),
        codes={"reconcile": "vanished", "retry": "not_failed"},
    ),
    Row(
        "what left the blueprint can be settled and destroyed, and nothing else",
        failed("destroy", "destroy"),
        S.DESTROYING,
        "destroy",
        "reconcile destroy",
        is_orphan=True,
        codes={"redeploy": "orphaned", "compensate": "orphaned"},
    ),
    Row(
        "a failed apply with nothing in doubt is repeated as it was",
        failed(),
        S.FAILED,
        "retry",
        "reconcile retry redeploy rollback compensate destroy",
    ),
    Row(
        "what is not stored can neither be repeated nor gone back to",
        failed(),
        S.FAILED,
        "redeploy",
        "reconcile redeploy destroy",
        StepFacts(
            failed_run="R1",
            earlier_run="R0",
            blockers={Remedy.RETRY: MISSING, Remedy.ROLLBACK: MISSING},
        ),
        codes={
            "retry": "snapshot_missing",
            "rollback": "snapshot_missing",
            "compensate": "none_declared",
        },
    ),
    Row(
        "an attempt that changed nothing can be repeated although the step is ok",
        entry(),
        S.OK,
        None,
        "verify retry redeploy destroy",
        StepFacts(failed_run="R1", earlier_run="R0", blockers={Remedy.ROLLBACK: UNVERIFIED}),
        codes={"rollback": "unverified"},
    ),
    Row(
        "after a failure, too, an upstream comes first",
        failed(),
        S.FAILED,
        None,
        "reconcile compensate destroy",
        position={"unready": {"network": "error"}},
        codes={"retry": "upstream", "redeploy": "upstream", "rollback": "upstream"},
    ),
)


def context(row: Row) -> RecoveryContext:
    return RecoveryContext(
        WEB, "compute", row.record, row.facts, is_orphan=row.is_orphan, **row.position
    )


def advice(row: Row) -> Advice:
    return advise(context(row))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_every_case_has_its_reason(row: Row) -> None:
    """
    The table of cases: situation, what is offered, what is refused with which code, and the one
    recommendation.
    """
    found = advice(row)
    available = [str(remedy) for remedy in Remedy if remedy not in found.refusals]
    assert (found.situation, found.recommended) == (row.situation, row.recommended)
    assert " ".join(available) == row.offers
    codes = {str(remedy): code for remedy, code in found.refusals.items()}
    assert {name: codes[name] for name in row.codes} == row.codes


def test_every_situation_is_in_the_table_of_this_test() -> None:
    """
    Each row of the table in the code is held by a row here, and each situation has one row.
    """
    assert sorted(case.situation for case in CASES) == sorted(Situation)
    assert {row.situation for row in ROWS} == set(Situation)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_every_action_is_listed_with_a_sentence(row: Row) -> None:
    """
    All nine actions are there, each with a reason; a command is there exactly where the action is
    available.
    """
    found = offers(advice(row))
    assert [offer.action for offer in found] == list(Remedy)
    for offer in found:
        assert offer.reason.message and "{" not in offer.reason.message
        assert (offer.command is not None) == offer.available


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_every_command_is_about_one_step_on_one_entry(row: Row) -> None:
    """
    Law: offers are re-checked.
    A printed command carries the sequence it was offered on; only waiting carries none,
    for what it waits for moves on, and `exec`, which shows what it does and asks.
    """
    for offer in offers(advice(row)):
        if offer.command is None:
            continue
        words = shlex.split(offer.command)
        if words[1] == "exec":
            assert words[2] == "web/prod/compute"
            continue
        assert words[0] == "orchestrator" and words[2:5] == ["web", "-e", "prod"]
        assert words[words.index("--step") + 1] == "compute"
        sequence = str(row.record.sequence if row.record else 0)
        if offer.action is Remedy.WAIT:
            assert "--at" not in words
        else:
            assert words[words.index("--at") + 1] == sequence


def offered(remedy: str, record: OperationRecord | None, **facts: Json) -> tuple[str, str]:
    """
    Sentence and command of an action that must be available.
    """
    filled: dict[str, Json] = {"failed_run": "R1", "earlier_run": "R0", **facts}
    given = RecoveryContext(WEB, "compute", record, facts=StepFacts(**filled))
    found = next(item for item in offers(advise(given)) if item.action == remedy)
    assert found.command is not None
    return found.reason.message, found.command


TAINTED = Resources(tainted=("aws_instance.this",))


@pytest.mark.parametrize("remedy", ["retry", "redeploy", "rollback"])
def test_that_an_apply_replaces_what_is_tainted_is_said_wherever_one_is_offered(
    remedy: str,
) -> None:
    """
    A plain apply over a tainted object replaces it, and nobody must find out afterwards.
    """
    said, _ = offered(remedy, failed(resources=TAINTED))
    assert "aws_instance.this is half-made (tainted): the apply replaces it" in said


def test_by_hand_names_window_address_inputs_and_account() -> None:
    """
    Without other evidence a person is told where to look: when it happened, what, with which
    inputs, in which account and region; and the command is safe to paste.
    """
    record = failed(resources=DOUBTFUL, resolved_inputs_file="runs/R1/resolved.inputs.yml")
    said, command = offered("manual", record, scope="aws (region=eu-west-1)")
    assert 'aws_instance.this["a b"]' in said
    assert "between 2030-01-02 03:04:05 UTC and 2030-01-02 03:04:25 UTC" in said
    assert "runs/R1/resolved.inputs.yml" in said and "aws (region=eu-west-1)" in said
    words = shlex.split(command)
    assert words[words.index("--forget") + 1] == 'aws_instance.this["a b"]'
    assert "--reason" in words


def test_by_hand_nobody_is_sent_to_delete_what_the_address_holds() -> None:
    """
    What a person adopted may be the object in doubt: only what exists beside it is to go.
    """
    (other,) = refs("aws_instance.this i-7")
    held = other.model_copy(update={"address": LOST.address})
    record = failed(resources=Resources(in_doubt=(LOST,), inventory=(held,)))
    said, _ = offered("manual", record)
    assert "delete by hand what exists beside i-7" in said
    assert "adopt what exists" not in said

    free = LOST.model_copy(update={"address": "aws_instance.free"})
    both = failed(resources=Resources(in_doubt=(LOST, free), inventory=(held,)))
    said, _ = offered("manual", both)
    assert "adopt what exists of aws_instance.free (`--adopt ADDRESS=ID`), delete by hand" in said


def test_what_left_the_state_is_taken_back_by_its_id() -> None:
    """
    ADR 9: the record knows the id of what left; the command that imports it is whole.
    """
    said, _ = offered("manual", entry(resources=Resources(in_doubt=(LEFT,))))
    assert "`orchestrator import web/prod/compute aws_eip.this eip-1 --reason WHY`" in said


def test_settling_is_told_in_seconds() -> None:
    """
    While a request of a dead engine may be under way nothing is called absent.
    """
    said, _ = offered("reconcile", failed(resources=DOUBTFUL), settling=41.0)
    assert "for another 41 s" in said


def test_a_claim_that_nobody_can_prove_dead_takes_a_reason() -> None:
    """
    Whatever mutates must say why it takes over; what holds the claim is named.
    """
    said, command = offered(
        "redeploy", failed(), unproven_process="process 7 of run R9 on runner-7"
    )
    assert "process 7 of run R9 on runner-7" in said
    assert "--takeover" in shlex.split(command)


@pytest.mark.parametrize(
    ("remedy", "record", "facts", "words"),
    [
        (
            "reconcile",
            failed(),
            {"errored_state": "/w/errored.tfstate"},
            "--push-errored-state --reason",
        ),
        ("rollback", failed(), {}, "rollback --to R0 --reason"),
        ("redeploy", failed(), {"rerun_inputs": "runs/R1/in.yml"}, "--input-file runs/R1/in.yml"),
        ("redeploy", None, {}, "apply --at 0"),
        (
            "manual",
            failed("apply", "compensate", compensation=CUT),
            {"compensates": True},
            "compensate --repeat WHY",
        ),
        ("retry", None, {}, "retry --from-run R1 --at 0"),
        (
            "manual",
            failed("destroy", "before_destroy", before_destroy=CUT),
            {},
            "destroy --repeat-before-destroy WHY",
        ),
        (
            "destroy",
            failed("destroy", "before_destroy", before_destroy=CUT),
            {},
            "destroy --repeat-before-destroy WHY",
        ),
        (
            "reconcile",
            failed(resources=Resources(in_doubt=(FOUND,))),
            {},
            "--adopt --reason WHY",
        ),
        ("wait", running(), {"condition": Condition.LIVE}, "reconcile --wait"),
        (
            "reconcile",
            running(),
            {"condition": Condition.SILENT, "unproven_process": "R1"},
            "--takeover",
        ),
        ("destroy", failed(), {"vanished": True}, "destroy --accept-vanished"),
    ],
)
def test_a_command_says_all_that_it_needs(
    remedy: str, record: OperationRecord | None, facts: dict[str, Json], words: str
) -> None:
    """
    The command is exact: what the verb would ask for is in it.
    """
    _, command = offered(remedy, record, **facts)
    assert set(words.split()) <= set(shlex.split(command))


def test_what_was_found_is_adopted_by_the_command_shown() -> None:
    """
    The provider's answer is in the command, safe to paste.
    """
    _, command = offered("reconcile", failed(resources=Resources(in_doubt=(FOUND, LEFT))))
    words = shlex.split(command)
    assert words[words.index("--adopt") + 1] == 'aws_instance.this["a b"]=i-1'
    _, command = offered("manual", failed(resources=Resources(in_doubt=(FOUND, LEFT))))
    words = shlex.split(command)
    assert [word for word in words if word.startswith("aws_")] == [FOUND.address, LEFT.address]


def test_an_unverified_run_takes_a_reason_to_roll_back_to() -> None:
    """
    What nobody verified is not offered, and the command that insists is told.
    """
    facts = StepFacts(earlier_run="R0", blockers={Remedy.ROLLBACK: UNVERIFIED})
    given = RecoveryContext(WEB, "compute", failed(), facts=facts)
    found = next(item for item in offers(advise(given)) if item.action is Remedy.ROLLBACK)
    said = found.reason.message
    assert "`orchestrator rollback web -e prod --step compute --to R0 --at 6" in said
    assert "--unverified WHY`" in said


def test_every_code_has_a_sentence_and_every_sentence_is_used() -> None:
    """
    The catalogue of reasons is exactly that of the table.
    """
    blocks = {case.refused_as for case in CASES if case.refused_as}
    barred = {code for codes in PRECONDITIONS.values() for code in codes}
    assert blocks | barred | set(NOT_CALLED_FOR.values()) == set(REFUSALS)
    assert set(DESCRIPTIONS) == set(Remedy)
    possible = {(remedy, case.situation) for case in CASES for remedy in case.allowed}
    special = {(remedy, s) for remedy, texts in SITUATION_DESCRIPTIONS.items() for s in texts}
    assert special <= possible


def test_every_phase_has_a_hint_of_its_own() -> None:
    """
    Each phase of a fault says what to do first, and no two say the same.
    """
    assert set(PHASE_HINTS) == set(get_args(Phase))
    assert len(set(PHASE_HINTS.values())) == len(PHASE_HINTS)
    words = ("fix", "wait", "service", "reach", "roll back", "unlock", "adopt")
    assert all(any(word in hint for hint in PHASE_HINTS.values()) for word in words)


@pytest.mark.parametrize("code", ["lineage", "stopped"])
def test_no_hint_of_the_phase_where_the_reason_is_another(code: str) -> None:
    """
    The hint of a phase is not shown where a rule of the tool forbade the action, or a person
    stopped it.
    """
    assert hint_of(Fault(code=code, phase="plan", summary="another state")) is None
    plain = Fault(code="engine_failed", phase="apply", summary="x")
    assert hint_of(plain) == PHASE_HINTS["apply"]


def diagnosed(
    phase: str, said: str, *, at: str | None = None, code: str = "engine_failed"
) -> Fault:
    found = Diagnostic(summary=said, at=at)
    return Fault(code="engine_failed", phase=phase, summary=said, diagnostics=(found,))


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (Fault(code="state_locked", phase="lock", summary="locked: id 7"), "holds the state lock"),
        (Fault(code="killed", phase="apply", summary="the engine was killed"), "killed"),
        (diagnosed("apply", "creating S3 Bucket: BucketAlreadyOwnedByYou"), "another name"),
        (diagnosed("plan", "No valid credential sources found", at="main.tf:1"), "credentials"),
        (diagnosed("init", "Unsupported block type", at="main.tf:3"), "configuration"),
        (diagnosed("plan", "Reference to undeclared resource", at="main.tf:9"), "configuration"),
        (diagnosed("init", "was not found\nin any of the search locations"), "mirror"),
        (
            diagnosed(
                "init",
                "Failed to query available provider packages: could not connect to "
                "registry.terraform.io: dial tcp: lookup registry.terraform.io: no such host",
            ),
            "reach that registry",
        ),
        (diagnosed("init", "Failed to get existing workspaces: no such host"), "state backend"),
        (
            diagnosed("surgery", 'resource address "x.y" does not exist in the\nconfiguration.'),
            "an address that the module has",
        ),
    ],
)
def test_a_hint_is_about_the_cause(fault: Fault, word: str) -> None:
    """
    A lock, a kill, a collision, a wrong region and a mistake in the configuration are five things.
    """
    assert word in str(hint_of(fault, (LOST,)))


def test_a_destroy_accepts_as_vanished_only_what_the_provider_did_not_find() -> None:
    """
    Law: state moved without us.
    A provider state that lacks an object proves nothing of it: no reason to accept that is offered.
    """
    for doubt in (LEFT, KEPT):
        _, command = offered("destroy", failed(resources=Resources(in_doubt=(doubt,))))
        assert "--accept-vanished" not in command


@pytest.mark.parametrize(
    ("doubts", "lock", "words"),
    [
        ((UNPROVEN, LOST), None, ["--adopt", f"{LOST.address}=i-1", "--forget", LOST.address]),
        ((FOREIGN,), None, ["--forget", LOST.address]),
        ((FOUND,), "7", ["--unlock", "7", "--adopt", f"{LOST.address}=i-1"]),
        ((UNPROVEN,), "7", ["--unlock", "7"]),
    ],
)
def test_a_doubt_is_ended_by_what_evidence_allows(
    doubts: tuple[Doubt, ...], lock: str | None, words: list[str]
) -> None:
    """
    Law: not ours until proven. The lock of a dead run makes way first, and what is proven ours is
    taken over in the same command; what is not proven only by a person's word, what is another's
    never.
    """
    record = failed(resources=Resources(in_doubt=doubts))
    context = RecoveryContext(WEB, "db", record, facts=StepFacts(left_lock=lock))
    advice = advise(context)
    assert advice.recommended is not None
    command = shlex.split(command_of(advice, advice.recommended) or "")

    assert command[command.index("--at") + 2 : -2] == words


def test_what_takes_along_the_dependents_of_an_orphan_selects_orphans() -> None:
    """
    The command is accepted as it is printed.
    """
    found = RecoveryContext(
        WEB,
        "compute",
        entry(resources=Resources(inventory=refs("aws_vpc.this vpc-1"))),
        StepFacts(vanished=True, destroying=True),
        is_orphan=True,
        dependents={"server": "ok"},
    )
    assert command_of(advise(found), Remedy.MANUAL) == (
        "orchestrator destroy web -e prod --orphaned --step compute --step server "
        "--accept-vanished WHY"
    )


@pytest.mark.parametrize(
    ("doubt", "word"),
    [
        (FOUND, "adopt it"),
        (DISPLACED, "its address holds another object"),
        (UNPROVEN, "is this step's"),
        (FOREIGN, "another name"),
        (
            STUCK.model_copy(
                update={
                    "readback": Readback(
                        verdict="unknown", method="id", why="no such host", at=START
                    )
                }
            ),
            "credentials",
        ),
        (STUCK, "look by hand"),
    ],
)
def test_the_hint_about_a_doubt_follows_what_the_provider_answered(doubt: Doubt, word: str) -> None:
    """
    Whose the object is, or why nobody could say, decides what is done first.
    """
    fault = Fault(code="engine_failed", phase="apply", summary="it timed out")
    assert word in str(hint_of(fault, (doubt,)))
