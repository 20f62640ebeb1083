"""
The entries of a step whose action is carried out: never `ok` by themselves, nothing known is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.domain.blueprint.graph import (
    CycleFound,
    Graph,
    compensation_order,
    derived_backend,
)
from orchestrator.domain.masking import MARK, Masker
from orchestrator.domain.record.entry_changes import EntryStamp, changes_in_run
from orchestrator.domain.record.objects import Doubt, ObjectRef, Resources
from orchestrator.domain.record.record import Fault, HookResult, OperationRecord, Verification
from orchestrator.domain.record.states import IllegalMove, Status
from orchestrator.domain.record.verdicts import completed_before_destroy, has_completed_work
from orchestrator.domain.redaction import redacted
from orchestrator.domain.target import HookKind, Target, hook_of, hook_step_name
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.hooks import (
    HookOutcome,
    command_outcome,
    conclude_command,
    hook_begun,
    hook_ended,
    hook_fault,
    hook_skipped,
)
from orchestrator.domain.transitions.transitions import mark, unchanged
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry
from tests.fakes.journals import journal, state

KINDS: tuple[HookKind, ...] = ("compensate", "before_destroy")
RUN = "20300102T040506Z-000009"
DONE = HookOutcome("done", exit_code=0)
FAULT = Fault(code="engine_failed", phase="apply", summary="no capacity")


def stamp(minutes: int) -> EntryStamp:
    return EntryStamp(at=START + timedelta(minutes=minutes), entry_id=f"at-{minutes}", actor=ACTOR)


def refs(*names: str) -> tuple[ObjectRef, ...]:
    return tuple(ObjectRef(address=name, type="s", provider="p") for name in names)


def applied(**fields: Any) -> OperationRecord:
    known = {"outputs": {"id": "i-1"}, "resources": Resources(inventory=refs("s.a", "s.b"))}
    return entry(attempt=3, **{**known, **fields})


def marked(before: OperationRecord, kind: HookKind, minutes: int = 1) -> OperationRecord:
    return hook_begun(before, kind, stamp(minutes), by="bin/x", run_id=RUN, reason="why")


def carried_out(
    before: OperationRecord, kind: HookKind, how: HookOutcome, minutes: int = 1
) -> OperationRecord:
    return hook_ended(marked(before, kind, minutes), before, how, stamp(minutes + 1))


def failed(kind: HookKind) -> HookOutcome:
    return command_outcome(kind, "bin/x", 3, stderr="cannot")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [Status.OK, Status.ERROR, Status.RETAINED])
def test_the_marker_says_what_is_about_to_be_done_and_forgets_nothing(
    kind: HookKind, status: Status
) -> None:
    """
    Law: intent first.
    `running` with the action, run and reason; objects, outputs and inputs are those known.
    """
    before = applied(status=status)
    marker = marked(before, kind)
    assert (marker.status, marker.active_command, marker.run_id) == (Status.RUNNING, kind, RUN)
    assert (marker.sequence, marker.attempt) == (2, 1)
    assert (marker.outputs, marker.resources) == (before.outputs, before.resources)
    run = marker.compensation if kind == "compensate" else marker.before_destroy
    assert run is not None
    assert (run.verdict, run.by, run.reason, run.on) == ("running", "bin/x", "why", ("s.a", "s.b"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_well_restores_how_the_step_stood(kind: HookKind) -> None:
    """
    Law: only success makes ok.
    An action never makes `ok`; status, error and run are those from before.
    """
    for before in (
        applied(),
        applied(status="retained"),
        applied(status="error", failed_command="apply", error=FAULT, last_error="no capacity"),
    ):
        after = carried_out(before, kind, DONE)
        assert after.status is before.status
        assert (after.error, after.last_error) == (before.error, before.last_error)
        assert (after.failed_command, after.active_command) == (before.failed_command, None)
        assert (after.run_id, after.attempt) == (before.run_id, 3)
        assert after.previous_status is Status.RUNNING
        assert after.sequence == before.sequence + 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_is_error_with_all_that_was_known(kind: HookKind) -> None:
    """
    Law: failure keeps what is known.
    Outputs, objects and binding stay; the run that failed is named.
    """
    before = applied()
    after = carried_out(before, kind, failed(kind))
    assert (after.status, after.failed_command, after.run_id) == (Status.ERROR, kind, RUN)
    assert after.last_error == "`bin/x` ended with exit code 3: cannot"
    assert (after.outputs, after.resources) == (before.outputs, before.resources)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("why", "code"), [("there is no bin/x", "not_started"), (None, "stopped")])
def test_what_never_began_leaves_the_step_as_it_was(
    kind: HookKind, why: str | None, code: str
) -> None:
    """
    Nothing is unknown about it: the run tells why, and the action may simply be done again.
    """
    before = applied()
    evidence = MutationEvidence(None, journal(), None, not_started=why)

    after = conclude_command(marked(before, kind), before, evidence, stamp(2))

    assert (after.status, after.resources) == (before.status, before.resources)
    assert (after.compensation, after.before_destroy) == (None, None)
    assert after.last_attempt is not None
    assert after.last_attempt.error is not None
    assert after.last_attempt.error.code == code


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_action_restores_what_was_before_the_first(kind: HookKind) -> None:
    """
    However often it fails, the step goes back to how it stood before it was tried at all.
    """
    before = applied()
    once = carried_out(before, kind, failed(kind), 1)
    twice = carried_out(once, kind, failed(kind), 3)
    after = carried_out(twice, kind, DONE, 5)
    assert (after.status, after.error, after.run_id) == (Status.OK, None, before.run_id)
    assert after.sequence == 7


def test_an_error_of_something_else_in_between_is_not_lost() -> None:
    """
    A compensation that failed, then a check that failed: the next one goes back to the check's.
    """
    once = carried_out(applied(), "compensate", failed("compensate"))
    fault = Fault(code="check_failed", phase="verify", summary="answered 500")
    checked = once.model_copy(update={"failed_command": "verify", "error": fault})
    after = carried_out(checked, "compensate", DONE, 4)
    assert (after.status, after.error) == (Status.ERROR, fault)


def test_an_action_begins_over_no_other_mutation() -> None:
    """
    A `running` record is settled first.
    """
    with pytest.raises(IllegalMove):
        marked(marked(applied(), "compensate"), "before_destroy")


def test_an_apply_makes_actions_a_matter_of_the_past_and_a_destroy_does_not() -> None:
    """
    There is new work after an apply, with changes or without; a destroy goes on with the old.
    """
    before = carried_out(carried_out(applied(), "compensate", DONE), "before_destroy", DONE, 3)
    run = changes_in_run(RUN)
    applying = mark(before, run, state(), stamp(9), command="apply", planned=())
    destroying = mark(before, run, state(), stamp(9), command="destroy", planned=())
    none = Verification(verdict="unverified", at=START)
    same = unchanged(before, run, state(), stamp(9), verification=none)
    assert (applying.compensation, applying.before_destroy) == (None, None)
    assert (same.compensation, same.before_destroy) == (None, None)
    assert destroying.compensation == before.compensation
    assert destroying.before_destroy == before.before_destroy


@pytest.mark.parametrize(
    ("exit_code", "ending", "verdict", "code"),
    [
        (0, {}, "done", None),
        (0, {"stopped": True}, "unknown", "stopped"),
        (0, {"timed_out": True}, "unknown", "deadline"),
        (1, {"timed_out": True}, "failed", "deadline"),
        (1, {}, "failed", "compensation_failed"),
        (1, {"stopped": True}, "failed", "compensation_failed"),
        (None, {}, "unknown", "compensation_unknown"),
        (None, {"stopped": True}, "unknown", "stopped"),
        (None, {"timed_out": True}, "unknown", "deadline"),
    ],
)
def test_an_exit_code_tells_how_a_command_ended(
    exit_code: int | None, ending: Mapping[str, Any], verdict: str, code: str | None
) -> None:
    """
    Without one, because something cut it short, nobody can tell what it did; nor where a script
    went on after that and calls it done.
    """
    found = command_outcome("compensate", "bin/x", exit_code, **ending)
    assert found.verdict == verdict
    assert (found.fault.code if found.fault else None) == code


def test_no_secret_is_in_what_is_told_of_an_action() -> None:
    """
    Law: secrets travel with values.
    Command, reason and the error from before are masked like everything else.
    """
    masker = Masker()
    masker.add("hunter2secret")
    fault = FAULT.model_copy(update={"summary": "bad hunter2secret"})
    before = applied(
        status="error", failed_command="apply", error=fault, last_error="hunter2secret"
    )
    marker = hook_begun(
        before, "compensate", stamp(1), by="x hunter2secret", run_id=RUN, reason="hunter2secret"
    )
    text = redacted(marker, masker).to_json()
    assert "hunter2secret" not in text
    assert text.count(MARK) >= 4


@pytest.mark.parametrize(
    ("run", "left", "doubtful", "goes_on"),
    [
        ("done", ("s.a", "s.b"), False, False),
        ("done", ("s.a",), False, True),
        ("done", (), False, True),
        ("done", ("s.a", "s.b"), True, True),
        ("skipped", ("s.a",), False, True),
        ("failed", ("s.a",), False, False),
        ("unknown", ("s.a",), False, False),
        (None, ("s.a",), False, False),
    ],
)
def test_work_before_a_destroy_is_repeated_until_something_is_gone(
    run: Any, left: Sequence[str], doubtful: bool, goes_on: bool
) -> None:
    """
    It is gone on without only once some of what it was done for is, or may be, deleted.
    """
    told = run and HookResult(verdict=run, by="x", run_id=RUN, at=START, on=("s.a", "s.b"))
    doubt = Doubt(address="s.a", action="delete", why="its delete began and never ended")
    held = Resources(inventory=refs(*left), in_doubt=(doubt,) if doubtful else ())
    assert bool(completed_before_destroy(applied(before_destroy=told, resources=held))) is goes_on


def test_what_was_left_out_is_recorded_with_its_reason() -> None:
    """
    A skip tells of whom, when and why, and of the objects that it was left out for.
    """
    told = hook_skipped(applied(), "bin/x", RUN, stamp(2), "by hand")
    assert (told.verdict, told.reason, told.on) == ("skipped", "by hand", ("s.a", "s.b"))


@pytest.mark.parametrize(
    ("fields", "done"),
    [
        ({}, True),
        ({"status": "retained"}, True),
        ({"status": "error"}, True),
        ({"status": "error", "resources": Resources()}, True),
        ({"status": "error", "resources": Resources(), "outputs": {}}, False),
    ],
)
def test_only_completed_work_is_compensated(fields: Mapping[str, Any], done: bool) -> None:
    """
    A step whose first apply made nothing has nothing to undo.
    """
    assert has_completed_work(applied(**fields)) is done


GRAPH = Graph({"net": [], "db": ["net"], "app": ["db"], "web": ["app"], "log": []})


@pytest.mark.parametrize(
    ("after", "order"),
    [
        ({"net": None, "db": None, "app": None}, ["app", "db", "net"]),
        ({"net": None, "web": None, "log": None}, ["log", "web", "net"]),
        ({"net": None, "db": ("net",)}, ["net", "db"]),
        ({"net": None, "db": ("log",), "log": None}, ["log", "db", "net"]),
        ({"net": (), "db": None}, ["db", "net"]),
    ],
)
def test_compensations_come_dependents_first_unless_said_otherwise(
    after: Mapping[str, Sequence[str] | None], order: Sequence[str]
) -> None:
    """
    Each waits for its dependents' or for those that it names; a dependent that names it is awaited
    by nobody.
    """
    assert list(compensation_order(GRAPH, after).order) == order


def test_a_step_that_names_none_waits_for_none() -> None:
    """
    An empty `after` is an order of its own too.
    """
    assert compensation_order(GRAPH, {"net": (), "db": None}).needs("net") == frozenset()


def test_compensations_that_wait_for_each_other_are_named() -> None:
    """
    The circle is told, not looped in.
    """
    with pytest.raises(CycleFound, match="wait for each other: app -> net -> db -> app"):
        compensation_order(GRAPH, {"net": None, "db": None, "app": ("net",)})


@pytest.mark.parametrize(
    ("backend", "config", "expected"),
    [
        (
            "local",
            {"path": "s/${step.name}.tfstate"},
            {"path": "s/${step.name}.compensate.tfstate"},
        ),
        ("s3", {"key": "a.b/net", "bucket": "x"}, {"key": "a.b/net.compensate", "bucket": "x"}),
        ("s3", {"key": "${inputs.key}"}, {"key": "${inputs.key}.compensate"}),
        ("azurerm", {"key": "v1.2.tfstate"}, {"key": "v1.2.compensate.tfstate"}),
        ("gcs", {}, {"prefix": "compensate"}),
        ("gcs", {"prefix": "a/b/"}, {"prefix": "a/b/compensate"}),
        ("pg", {}, {"schema_name": "terraform_remote_state_compensate"}),
        ("kubernetes", {"secret_suffix": "x"}, {"secret_suffix": "x-compensate"}),
        ("http", {"address": "https://x.example"}, None),
        ("s3", {"bucket": "x"}, None),
    ],
)
def test_the_state_of_an_action_is_another_than_that_of_its_step(
    backend: str, config: Mapping[str, Any], expected: Mapping[str, Any] | None
) -> None:
    """
    The name goes in before the ending; where states cannot be told apart there is none.
    """
    assert derived_backend(backend, config, "compensate") == expected


@pytest.mark.parametrize("step", ["db", 'db["eu west"]'])
@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_an_actions_root_is_that_of_a_target(step: str, kind: HookKind) -> None:
    """
    It can be told from every step's, and read back.
    """
    name = hook_step_name(step, kind)
    assert hook_of(name) == (step, kind)
    assert Target.parse(f"web/prod/{name}").step == name
    assert hook_of(step) is None


def test_a_fault_names_the_phase_of_its_command() -> None:
    """
    What comes before a destroy is part of it; a compensation is work like an apply.
    """
    assert hook_fault("before_destroy", "x").phase == "destroy"
    assert hook_fault("compensate", "x").phase == "apply"
