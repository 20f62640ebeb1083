"""
What we no longer manage stays in the record: forgotten by a plan, or not found by its refresh.

Law: nothing drops out of sight.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.commands.status import status_of
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.objects import ReleasedObject, Resources
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import StepRun
from orchestrator.domain.record.states import Status, StepStatus
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.conclusion import conclude
from orchestrator.domain.transitions.transitions import observed
from orchestrator.engine.messages import parse_line
from orchestrator.engine.state import parse_state
from orchestrator.views.page import Paper
from orchestrator.views.status import status_text
from orchestrator.views.summary import counts_text
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry
from tests.fakes.journals import journal, planned, refs, state
from tests.fakes.read_context import Desk, outline

RECORDINGS = Path(__file__).parents[1] / "recordings/opentofu"
BEGAN, DONE = "began create s.a", "done create s.a"
STAMP = EntryStamp(at=START, entry_id="new", actor=ACTOR)
KEEP, GO = "fakecloud_server.keep", "fakecloud_server.go"


def marker(command: str, *plan: str, held: tuple[str, ...]) -> OperationRecord:
    resources = Resources(planned=planned(*plan), inventory=refs(*held))
    return entry(status="running", active_command=command, resources=resources)


def ended(
    written: OperationRecord, after: PulledState, *lines: str, exit_code: int = 0
) -> OperationRecord:
    evidence = MutationEvidence(exit_code, journal(*lines, whole=True), after)
    return conclude(written, None, evidence, STAMP)


def let_go(record: OperationRecord) -> list[tuple[str, str | None, str]]:
    return [(item.address, item.id, item.how) for item in record.resources.released]


def test_what_an_apply_forgets_is_kept_as_released() -> None:
    """
    A `removed` block takes it out of the state: it lives on, and its id stays known.
    """
    written = marker("apply", "forget s.a", held=("s.a id-1", "s.b id-2"))

    record = ended(written, state(["s.b id-2"]))

    assert record.status is Status.OK
    assert let_go(record) == [("s.a", "id-1", "forgotten")]


def test_a_destroy_that_only_forgets_is_destroyed_and_not_absent() -> None:
    """
    Nothing was deleted, and nothing confirms that anything is gone.
    """
    written = marker("destroy", "forget s.a", held=("s.a id-1",))

    record = ended(written, state())

    assert record.status is Status.DESTROYED
    assert let_go(record) == [("s.a", "id-1", "forgotten")]
    assert record.absence is not None and record.absence.checked == ()


def test_an_object_that_is_replaced_by_forgetting_is_created_and_released() -> None:
    """
    One address, two objects: the new one is managed, the old one lives on.
    """
    written = marker("apply", "forget s.a", "create s.a", held=("s.a id-1",))

    record = ended(written, state(["s.a id-2"]), "began create s.a", "done create s.a")

    assert record.resources.created == ("s.a",)
    assert let_go(record) == [("s.a", "id-1", "forgotten")]


@pytest.mark.parametrize(
    ("command", "plan", "after", "lines"),
    [
        (
            "apply",
            ("create s.a",),
            ["s.a id-9", "s.b id-2"],
            ("began create s.a", "done create s.a"),
        ),
        ("apply", (), ["s.b id-2"], ()),
        ("destroy", ("delete s.b",), [], ("began delete s.b", "done delete s.b")),
    ],
)
def test_what_the_refresh_did_not_find_is_kept_as_vanished(
    command: str, plan: tuple[str, ...], after: list[str], lines: tuple[str, ...]
) -> None:
    """
    Made again, dropped by an empty plan, or left out by a destroy: its id stays known.
    """
    written = marker(command, *plan, held=("s.a id-1", "s.b id-2"))

    record = ended(written, state(after), *lines)

    assert let_go(record) == [("s.a", "id-1", "vanished")]


def test_what_was_deleted_or_is_in_doubt_is_not_released() -> None:
    """
    Each object has one fate.
    """
    written = marker("destroy", "delete s.a", "delete s.b", held=("s.a id-1", "s.b id-2"))

    record = ended(
        written,
        state(["s.b id-2"]),
        "began delete s.a",
        "done delete s.a",
        "began delete s.b",
        "failed delete s.b",
        exit_code=1,
    )

    assert let_go(record) == []


def test_no_later_entry_loses_what_was_released() -> None:
    """
    Whatever comes after it, the record names it.
    """
    record = ended(marker("apply", "forget s.a", held=("s.a id-1",)), state())
    later = observed(record, {"resources": Resources()}, STAMP)

    assert let_go(later) == let_go(record) == [("s.a", "id-1", "forgotten")]


@pytest.mark.parametrize("case", ["destroy-false", "destroy-false-suppressed"])
def test_a_recorded_destroy_that_forgets_ends_well(case: str) -> None:
    """
    OpenTofu 1.12.6 deletes the one, forgets the other and ends with exit 1, or 0 where the error is
    suppressed: either way it did what it was to do.
    """
    calls: list[dict[str, Any]] = json.loads((RECORDINGS / f"{case}.json").read_text())["calls"]
    applied, last = calls[1], calls[-1]
    before, after = (parse_state(json.dumps(c["state_after"]).encode()) for c in (applied, last))
    said = [m for line in last["stdout"].splitlines() for m in parse_line(line).messages]
    told = Journal.of(said, whole=True)
    held = tuple(f"{item.address} {item.id}" for item in before.objects)
    written = marker("destroy", f"forget {KEEP}", f"delete {GO}", held=held)
    code = 0 if told.only_forgot else last["exit"]

    record = conclude(written, None, MutationEvidence(code, told, after), STAMP)

    assert (record.status, record.resources.deleted) == (Status.DESTROYED, (GO,))
    assert [(address, how) for address, _, how in let_go(record)] == [(KEEP, "forgotten")]


def test_the_end_of_a_run_names_what_lives_on() -> None:
    """
    "1 deleted, 1 forgotten", with address and id.
    """
    released = ReleasedObject(
        address=KEEP, type="fakecloud_server", provider="p", id="srv-1", how="forgotten",
        run_id="r", at=START,
    )  # fmt: skip
    row = StepRun(
        step="s", target="t", status=StepStatus.DESTROYED, deleted=(GO,), released=(released,)
    )

    assert counts_text(row) == f"1 deleted, 1 forgotten: {KEEP} (srv-1) lives on"


def test_what_was_let_go_is_shown_until_it_is_taken_back(desk: Desk) -> None:
    """
    Law: nothing drops out of sight.
    Also where nothing else is left: the status names what lives on.
    """
    forgot = ended(marker("apply", f"forget {KEEP}", held=(f"{KEEP} id-1",)), state([]))
    gone = forgot.resources.model_dump(mode="json")
    desk.has("network", status="absent", resources=gone)
    document = status_of(desk.reader, outline())
    desk.has(
        "network", resources=gone | {"inventory": [r.model_dump() for r in refs(f"{KEEP} id-1")]}
    )
    taken_back = status_of(desk.reader, outline())

    (row, *_), (held, *_) = document.steps, taken_back.steps
    assert [(item.id, item.how) for item in row.released] == [("id-1", "forgotten")]
    assert f"released 1 forgotten: {KEEP} (id-1) lives on" in " ".join(
        status_text(document, Paper(now=START)).split()
    )
    assert held.released == ()
