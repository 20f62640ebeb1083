"""
What is offered next keeps what was asked for, and offers nothing that would be refused.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pytest

from orchestrator.domain.record.objects import AdoptedObject, Doubt, ManualSearch, Readback
from orchestrator.domain.record.record import Fault, HookResult
from orchestrator.domain.recovery.advice import Advice, advise
from orchestrator.domain.recovery.command_line import RecordedBlueprint
from orchestrator.domain.recovery.commands import command_of
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, StepFacts
from orchestrator.domain.recovery.next_commands import EndedCommand, after_run
from orchestrator.domain.text import Json
from tests.fakes.entries import entry
from tests.fakes.journals import refs

WEB = RecordedBlueprint("web", "prod", called_in="../infra")


def failed(facts: StepFacts | None = None, **changes: Json) -> Advice:
    fault = Fault(code="engine_failed", phase="apply", summary="capacity")
    fields: dict[str, Json] = {"status": "error", "failed_command": "apply", "error": fault}
    record = entry(**(fields | changes))
    context = RecoveryContext(WEB, "server", record, facts or StepFacts())
    return advise(context)


def ended(verb: str = "apply", **changes: Json) -> EndedCommand:
    fields: dict[str, Json] = {
        "blueprint": WEB,
        "verb": verb,
        "selection": ("--step", "server"),
        "engine": ("--engine", "tofu"),
        "inputs": ("--input-file", "in.yml"),
        "own": ("--on-failure", "continue"),
    }
    return EndedCommand(**(fields | changes))


def test_selection_and_options_are_kept() -> None:
    """
    Nothing is offered that would touch more than was asked for, or work from other inputs.
    """
    resources = entry().resources.model_copy(update={"inventory": refs("aws_vpc.this vpc-1")})
    item = failed(resources=resources)
    commands = {
        shlex.split(x.command)[3]: x.command for x in after_run(ended(), [item], alive=[item])
    }

    assert commands["apply"] == (
        "orchestrator -C ../infra apply web -e prod --step server --input-file in.yml "
        "--engine tofu --on-failure continue"
    )
    assert commands["destroy"] == (
        "orchestrator -C ../infra destroy web -e prod --step server --engine tofu"
    )
    assert commands["recover"] == "orchestrator -C ../infra recover web -e prod --step server"


def test_what_exists_can_be_taken_down_although_a_dependent_made_nothing() -> None:
    """
    The steps of the ended command go together.
    """
    resources = entry().resources.model_copy(update={"inventory": refs("aws_vpc.this vpc-1")})
    below = RecoveryContext(
        WEB, "network", entry(resources=resources), dependents={"server": "error"}
    )
    offered = after_run(ended(selection=()), [failed()], alive=[advise(below)])

    assert "orchestrator -C ../infra destroy web -e prod --engine tofu" in [
        item.command for item in offered
    ]


def test_a_refused_command_is_offered_only_with_what_accepts_it() -> None:
    """
    As it was it would be refused again.
    """
    refused = after_run(ended("retry", is_refused=True), [failed()])
    accepting = ("--accept-changed-secret", "password")
    accepted = after_run(
        ended("retry", is_refused=True, accepting=accepting), [failed(StepFacts(failed_run="R1"))]
    )

    assert not any(" retry " in item.command for item in refused)
    assert any("--accept-changed-secret password" in item.command for item in accepted)


def test_a_step_that_is_well_does_not_keep_a_retry_from_being_offered() -> None:
    """
    The retry skips it.
    """
    well = advise(RecoveryContext(WEB, "network", entry(), StepFacts()))
    steps = [failed(StepFacts(failed_run="R1")), well]
    assert any(" retry " in x.command for x in after_run(ended("retry"), steps))


def test_what_accepts_a_refusal_is_offered_once() -> None:
    """
    The refusal names the option, and so does the record, or the records of several steps.
    """
    (held,) = refs("aws_vpc.this vpc-1")
    adopted = AdoptedObject(
        address=held.address,
        type=held.type,
        id=held.id,
        ownership="found",
        why="a person imported it",
        run_id="R1",
        at=datetime(2030, 1, 2, tzinfo=UTC),
    )
    resources = entry().resources.model_copy(update={"inventory": (held,)})
    item = failed(resources=resources, adopted=(adopted,))
    accepting = ("--accept-adopted", "WHY")

    refused = ended("destroy", is_refused=True, accepting=accepting)
    for command, steps in ((refused, [item]), (ended("destroy"), [item, item])):
        (offered,) = (x.command for x in after_run(command, steps) if " destroy " in x.command)
        _, kept, reasons = offered.partition(" --on-failure continue ")
        assert kept
        assert reasons == "--accept-adopted WHY"


def test_another_selection_that_accepts_a_refusal_takes_the_place_of_the_first() -> None:
    """
    With all other options, and without naming a step twice.
    """
    wider = ended(is_refused=True, accepting=("--step", "+server"))
    (command,) = (x.command for x in after_run(wider, [failed()]) if " apply " in x.command)
    assert shlex.split(command)[3:] == shlex.split(
        "apply web -e prod --input-file in.yml --engine tofu --on-failure continue --step +server"
    )


def test_a_destroy_is_not_offered_after_a_refusal() -> None:
    """
    What was refused changed nothing: nothing is there that was not before.
    """
    resources = entry().resources.model_copy(update={"inventory": refs("aws_vpc.this vpc-1")})
    item = failed(resources=resources)
    found = after_run(ended(is_refused=True), [item], alive=[item])
    assert not any(" destroy " in x.command for x in found)


def test_a_destroy_is_not_offered_while_somebody_else_has_the_state_lock() -> None:
    """
    It would end as the apply did.
    """
    resources = entry().resources.model_copy(update={"inventory": refs("aws_vpc.this vpc-1")})
    item = failed(StepFacts(lock="id 7, who ann@ci"), resources=resources)
    found = after_run(ended(), [item], alive=[item])
    assert not any(" destroy " in x.command for x in found)


def test_a_failed_move_of_the_state_is_offered_again() -> None:
    """
    It is about one target.
    """
    item = failed(StepFacts(misplaced="backend_changed"), status="ok", error=None)
    found = after_run(ended("move", own=(), engine=()), [item])

    assert [offered.command for offered in found[1:]] == [
        "orchestrator -C ../infra backend move web/prod/server"
    ]
    moved = after_run(ended("move", own=(), engine=()), [failed()])
    assert not any(" move " in offered.command for offered in moved)


def test_a_failed_compensation_is_offered_again() -> None:
    """
    For its step, with a reason; it goes on where it failed.
    """
    fault = Fault(code="compensation_failed", phase="apply", summary="exit code 1")
    run = HookResult(verdict="failed", run_id="R1", at=datetime(2026, 1, 1, tzinfo=UTC), by="undo")
    item = failed(
        StepFacts(compensates=True),
        error=fault,
        failed_command="compensate",
        compensation=run,
        resources=entry().resources.model_copy(update={"inventory": refs("a.b 1")}),
    )

    found = after_run(ended("compensate", own=()), [item])

    words = [shlex.split(offered.command)[3] for offered in found]
    assert words == ["recover", "compensate"], found


def test_a_failed_check_is_offered_to_be_run_again_after_a_verify_too() -> None:
    """
    For the step in which it failed.
    """
    fault = Fault(code="check_failed", phase="verify", summary="http: 503")
    found = after_run(ended("verify", selection=(), own=()), [failed(error=fault)])

    assert [item.command for item in found[1:]] == [
        "orchestrator -C ../infra verify web -e prod --step server --engine tofu"
    ]


def test_while_another_run_is_going_on_the_same_command_waits() -> None:
    """
    A busy run offers to wait, and nothing that changes anything.
    """
    found = after_run(ended(), [failed(StepFacts(claimed_by="apply of run R2 is in progress"))])

    assert [shlex.split(item.command)[3] for item in found] == ["apply", "recover"]
    assert found[0].command.endswith("--wait")


@pytest.mark.parametrize(
    ("adoptable", "settling", "offered"),
    [
        (True, 0, ["--adopt s.a=1 --forget s.a", "--forget s.a"]),
        (True, 40, ["--adopt s.a=1 --forget s.a"]),
        (False, 0, ["--forget s.a"]),
        (False, 40, []),
    ],
)
def test_while_a_request_may_be_under_way_nothing_is_said_to_be_missing(
    adoptable: bool, settling: float, offered: list[str]
) -> None:
    """
    Law: evidence before a person's word.
    What is adopted exists, so its doubt is closed at once; what nobody can say yet is asked again.
    """
    readback = Readback(
        verdict="exists",
        method="identity",
        ids=("1",),
        adoptable=adoptable,
        why="its answer",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        ownership="found",
    )
    doubts = (Doubt(address="s.a", action="create", why="its answer was lost", readback=readback),)
    resources = entry().resources.model_copy(update={"in_doubt": doubts})
    item = failed(StepFacts(settling=settling), resources=resources)

    found = after_run(ended("reconcile", is_orphaned=True), [item])

    asked = "orchestrator -C ../infra reconcile web -e prod --step server"
    answers = [
        x.command.removeprefix(f"{asked} ").removesuffix(" --reason WHY")
        for x in found
        if " --reason WHY" in x.command
    ]
    assert answers == offered
    assert [x.why for x in found if "ask again in 40 s" in x.why] == (
        [] if offered else ["ask again in 40 s, when no request can be under way any more"]
    )


@pytest.mark.parametrize("settling", [0, 40])
def test_what_nobody_can_ask_for_is_offered_with_the_lines_to_add(settling: float) -> None:
    """
    No evidence comes from asking once more as before: the step says how first, or a person looks.
    No destroy is offered that could not end.
    """
    at = datetime(2026, 1, 1, tzinfo=UTC)
    look = ManualSearch(until=at, inputs={}, file="web.yaml", declare=("identity: {s.a: ID}",))
    readback = Readback(verdict="unknown", method="none", why="no way", at=at, look=look)
    doubts = (Doubt(address="s.a", action="create", why="its answer was lost", readback=readback),)
    resources = entry().resources.model_copy(
        update={"in_doubt": doubts, "inventory": refs("aws_vpc.this vpc-1")}
    )
    facts = StepFacts(settling=settling, unanswerable=frozenset(("s.a",)))
    item = failed(facts, resources=resources)

    found = after_run(ended(), [item], alive=[item])

    asked = "orchestrator -C ../infra reconcile web -e prod --step server"
    forget = [] if settling else [f"{asked} --forget s.a --reason WHY"]
    assert [x.command for x in found[1:]] == [
        f"{asked} --engine tofu",
        f"{asked} --adopt s.a=ID --reason WHY",
        *forget,
    ]
    assert "lines like those above" in found[1].why
    assert item.recommended == "manual"
    command = command_of(item, Remedy.MANUAL)
    said = "--adopt s.a=ID" if settling else "--forget s.a"
    assert command == f"{asked} --at {entry().sequence} {said} --reason WHY"


def test_nothing_is_said_of_a_doubt_before_its_lock_is_released() -> None:
    """
    While the provider state is locked a person's word is refused: the lock comes first.
    """
    at = datetime(2030, 1, 1, tzinfo=UTC)
    told = Readback(verdict="unknown", method="none", why="no search", at=at)
    doubt = Doubt(address="a.b", action="create", why="killed", at=at, readback=told)
    resources = entry().resources.model_copy(update={"in_doubt": (doubt,)})
    item = failed(StepFacts(left_lock="7"), resources=resources)

    commands = [x.command for x in after_run(ended("reconcile"), [item])]

    assert "--unlock 7" in commands[0]
    assert not any("--forget" in command or "--adopt" in command for command in commands)


@pytest.mark.parametrize(
    "facts",
    [
        StepFacts(vanished=True),
        StepFacts(state_replaced=True),
        StepFacts(state_back=True),
        StepFacts(state_emptied=True),
        StepFacts(state_emptied=True, occupied=("s.a",)),
    ],
)
def test_what_was_found_at_the_provider_state_is_followed_by_what_to_do(facts: StepFacts) -> None:
    """
    By a command and for what: each of these refusals ends a run with one.
    """
    item = failed(facts)
    assert all(offered.why for offered in after_run(ended(), [item], alive=[]))
    assert item.recommended is not None
