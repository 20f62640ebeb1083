"""
What must hold of advice whatever is recorded and seen.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.record.record import (
    Action,
    Command,
    Doubt,
    Fault,
    Phase,
    Readback,
    Resources,
)
from orchestrator.domain.record.states import NOTHING_THERE, Condition, Status
from orchestrator.domain.recovery.advice import advise
from orchestrator.domain.recovery.context import Facts, Position, Remedy, Situation, Subject
from orchestrator.domain.recovery.offers import offers
from orchestrator.domain.recovery.rerun_rules import Blocker
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import refs

#: What needs nothing, so that nothing is recommended.
QUIET = (Situation.OK, Situation.RETAINED, Situation.GONE)
#: What may be taken while something is in doubt or nobody knows who is alive.
CAREFUL = {Remedy.WAIT, Remedy.RECONCILE, Remedy.DESTROY, Remedy.MANUAL}


@dataclass(frozen=True, slots=True)
class Web:
    """
    The blueprint ``web`` in its only environment.
    """

    blueprint: str = "web"
    path: str = "elsewhere/web file.yaml"
    environment: str = "default"


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
positions = st.builds(
    Position,
    unready=neighbours,
    dependents=neighbours,
    children=st.lists(texts, max_size=1).map(tuple),
)


obstacles = st.builds(
    Blocker, st.sampled_from(["unverified", "snapshot_missing"]), st.just("no"), st.just("hint")
)


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    """
    A step of which anything may be known; a condition is that of a running record.
    """
    record = draw(st.sampled_from(range(10)).flatmap(lambda n: records if n else st.none()))
    running = record is not None and record.status is Status.RUNNING
    facts = Facts(
        condition=draw(st.sampled_from(Condition)) if running else None,
        claimed_by=draw(seldom),
        unproven=draw(maybe),
        spooled=record is not None and not running and draw(seldom) is not None,
        settling=draw(st.sampled_from([0.0, 30.0])),
        unsaved=draw(seldom),
        lock=draw(maybe),
        unanswered=draw(st.frozensets(texts)),
        failed_run=draw(maybe),
        earlier_run=draw(maybe),
        obstacles=draw(
            st.dictionaries(st.sampled_from([Remedy.RETRY, Remedy.ROLLBACK]), obstacles)
        ),
        given_inputs=draw(maybe),
        action_doubts=draw(st.sampled_from([{}, {"compensate": "x"}, {"before_destroy": "x"}])),
        kept=draw(seldom),
        compensates=draw(st.booleans()),
    )
    return Subject(Web(), "compute", record, draw(positions), facts)


@given(subjects())
def test_exactly_one_action_is_recommended_and_it_can_be_taken(subject: Subject) -> None:
    """
    For any record there is one recommendation, available, unless the step needs nothing or a step
    that it needs comes first.
    """
    found = advise(subject)
    available = {choice.remedy for choice in found.choices if choice.available}
    if found.recommended is not None:
        assert found.recommended in available
    else:
        assert found.situation in QUIET or subject.position.unready
    assert [choice.remedy for choice in found.choices] == list(Remedy)


@given(subjects())
def test_nothing_careless_is_offered_while_something_is_uncertain(subject: Subject) -> None:
    """
    Law: no guessing.
    While something is in doubt, interrupted, silent or unsaved, no action that could make
    an object twice is available.
    """
    record = subject.record
    uncertain = record is not None and (
        record.resources.in_doubt
        or record.status is Status.RUNNING
        or subject.facts.unsaved
        or subject.facts.spooled
    )
    if uncertain:
        found = advise(subject)
        assert {choice.remedy for choice in found.choices if choice.available} <= CAREFUL


@given(subjects())
def test_while_somebody_is_at_work_there_is_only_waiting(subject: Subject) -> None:
    """
    Nothing but wait is available while the step's run or another on the blueprint is alive.
    """
    if subject.facts.condition is Condition.LIVE or subject.facts.claimed_by:
        found = advise(subject)
        assert [c.remedy for c in found.choices if c.available] == [Remedy.WAIT]
        assert found.recommended is Remedy.WAIT


@given(subjects())
def test_only_what_may_be_there_is_destroyed_and_nothing_under_its_dependents(
    subject: Subject,
) -> None:
    """
    Law: destroy skips only what is gone or retained.
    Destroy is for what may be alive and is not retained; not while others need it.
    """
    destroy = next(c for c in advise(subject).choices if c.remedy is Remedy.DESTROY)
    if destroy.available:
        assert subject.status not in (None, Status.RETAINED, *NOTHING_THERE)
        assert not subject.position.dependents
        assert subject.facts.kept is None


@given(subjects())
def test_every_sentence_is_whole_and_every_command_survives_a_shell(subject: Subject) -> None:
    """
    No placeholder is left in a sentence; a command splits into the words that it was made of.
    """
    for offer in offers(subject, advise(subject)):
        assert offer.reason.message
        if offer.command is not None:
            words = shlex.split(offer.command)
            assert shlex.join(words) == offer.command
            assert words[2] == "elsewhere/web file.yaml"
