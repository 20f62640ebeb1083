"""
What must hold of advice whatever is recorded and seen.
"""

from __future__ import annotations

import shlex
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.record.objects import Action, Doubt, Readback, Resources
from orchestrator.domain.record.record import Command, Fault, Phase
from orchestrator.domain.record.states import NOTHING_THERE, Condition, Status
from orchestrator.domain.recovery.advice import advise
from orchestrator.domain.recovery.command_line import RecordedBlueprint
from orchestrator.domain.recovery.commands import offers
from orchestrator.domain.recovery.context import (
    RecoveryContext,
    Remedy,
    Situation,
    StepFacts,
)
from orchestrator.errors import Refused
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import refs

#: What needs nothing, so that nothing is recommended.
QUIET = (Situation.OK, Situation.RETAINED, Situation.GONE)
#: What may be taken while something is in doubt or nobody knows who is alive.
CAREFUL = {Remedy.WAIT, Remedy.RECONCILE, Remedy.DESTROY, Remedy.MANUAL}


WEB = RecordedBlueprint("web", "default", "elsewhere/web file.yaml")


texts = st.sampled_from(["a", 'aws_instance.this["a b"]', "x'y", "module.m.z"])
maybe = st.none() | texts
seldom = st.sampled_from([*[None] * 9, "x'y"])  # what hides all other cases where it holds
doubts = st.builds(
    Doubt,
    address=texts,
    action=st.sampled_from(get_args(Action)),
    why=st.just("unknown"),
    readback=st.none()
    | st.builds(
        Readback,
        verdict=st.sampled_from(["exists", "absent", "unknown"]),
        method=st.just("search"),
        ids=st.lists(texts, max_size=1).map(tuple),
        why=st.just("asked"),
        at=st.just(START),
    ),
)
faults = st.none() | st.builds(
    Fault,
    code=st.sampled_from(["engine_failed", "targeted", "check_failed", "killed", "unapplied"]),
    phase=st.sampled_from(get_args(Phase)),
    summary=st.just("what went wrong"),
)
resources = st.builds(
    Resources,
    tainted=st.lists(texts, max_size=2).map(tuple),
    in_doubt=st.lists(doubts, max_size=2).map(tuple),
    inventory=st.sampled_from([(), refs("aws_vpc.this vpc-1")]),
)
commands = st.none() | st.sampled_from(get_args(Command))
records = st.builds(
    lambda **fields: entry(**fields),
    status=st.sampled_from(list(Status)),
    active_command=commands,
    failed_command=commands,
    error=faults,
    resources=resources,
    sequence=st.integers(1, 99),
    targets=st.lists(texts, max_size=1).map(tuple),
)
neighbours = st.sampled_from([{}, {}, {"net": "error"}, {"net": "ok", "dns": "running"}])
children = st.lists(texts, max_size=1).map(tuple)


blockers = st.builds(
    Refused,
    st.sampled_from(["unverified", "snapshot_missing"]),
    st.just("no"),
    hint=st.just("hint"),
)


@st.composite
def contexts(draw: st.DrawFn) -> RecoveryContext:
    """
    A step of which anything may be known; a condition is that of a running record.
    """
    record = draw(st.sampled_from(range(10)).flatmap(lambda n: records if n else st.none()))
    running = record is not None and record.status is Status.RUNNING
    facts = StepFacts(
        condition=draw(st.sampled_from(Condition)) if running else None,
        claimed_by=draw(seldom),
        unproven_process=draw(maybe),
        spooled=record is not None and not running and draw(seldom) is not None,
        settling=draw(st.sampled_from([0.0, 30.0])),
        errored_state=draw(seldom),
        errored_readable=draw(st.booleans()),
        lock=draw(maybe),
        unanswerable=draw(st.frozensets(texts)),
        failed_run=draw(maybe),
        earlier_run=draw(maybe),
        blockers=draw(st.dictionaries(st.sampled_from([Remedy.RETRY, Remedy.ROLLBACK]), blockers)),
        rerun_inputs=draw(maybe),
        hook_doubts=draw(st.sampled_from([{}, {"compensate": "x"}, {"before_destroy": "x"}])),
        retained_because=draw(seldom),
        compensates=draw(st.booleans()),
    )
    return RecoveryContext(
        WEB,
        "compute",
        record,
        facts,
        unready=draw(neighbours),
        dependents=draw(neighbours),
        children=draw(children),
    )


@given(contexts())
def test_exactly_one_action_is_recommended_and_it_can_be_taken(context: RecoveryContext) -> None:
    """
    For any record there is one recommendation, available, unless the step needs nothing or a step
    that it needs comes first.
    """
    found = advise(context)
    available = set(Remedy) - set(found.refusals)
    if found.recommended is not None:
        assert found.recommended in available
    else:
        assert found.situation in QUIET or context.unready


@given(contexts())
def test_nothing_careless_is_offered_while_something_is_uncertain(context: RecoveryContext) -> None:
    """
    Law: no guessing.
    While something is in doubt, interrupted, silent or unsaved, no action that could make
    an object twice is available.
    """
    record = context.record
    uncertain = record is not None and (
        record.resources.in_doubt
        or record.status is Status.RUNNING
        or context.facts.errored_state
        or context.facts.spooled
    )
    if uncertain:
        found = advise(context)
        assert set(Remedy) - set(found.refusals) <= CAREFUL


@given(contexts())
def test_while_somebody_is_at_work_there_is_only_waiting(context: RecoveryContext) -> None:
    """
    Nothing but wait is available while the step's run or another on the blueprint is alive.
    """
    if context.facts.condition is Condition.LIVE or context.facts.claimed_by:
        found = advise(context)
        assert set(Remedy) - set(found.refusals) == {Remedy.WAIT}
        assert found.recommended is Remedy.WAIT


@given(contexts())
def test_only_what_may_be_there_is_destroyed_and_nothing_under_its_dependents(
    context: RecoveryContext,
) -> None:
    """
    Law: destroy skips only what is gone or retained.
    Destroy is for what may be alive and is not retained; not while others need it.
    """
    if Remedy.DESTROY not in advise(context).refusals:
        assert context.status not in (None, Status.RETAINED, *NOTHING_THERE)
        assert not context.dependents
        assert context.facts.retained_because is None


@given(contexts())
def test_every_sentence_is_whole_and_every_command_survives_a_shell(
    context: RecoveryContext,
) -> None:
    """
    No placeholder is left in a sentence; a command splits into the words that it was made of.
    """
    for offer in offers(advise(context)):
        assert offer.reason.message
        if offer.command is not None:
            words = shlex.split(offer.command)
            assert shlex.join(words) == offer.command
            assert words[2] == "elsewhere/web file.yaml"
