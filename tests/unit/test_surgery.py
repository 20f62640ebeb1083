"""
What surgery leaves of a record, and which engine commands are surgery.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.app.surgery.requested_operations import check_settled, proven_objects
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.engine_commands import INSTEAD, READS, EngineCommand
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryStamp, changes_in_run
from orchestrator.domain.record.objects import Doubt, PlannedAction, Readback, Resources
from orchestrator.domain.record.record import Command, Fault, OperationRecord, ProviderState
from orchestrator.domain.record.states import Status
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.doubts import StateObservation, settle_doubts
from orchestrator.domain.transitions.surgery import managing_address, same_content, surgery_ended
from orchestrator.domain.transitions.transitions import mark
from orchestrator.errors import Refused, Usage
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry, facts
from tests.fakes.journals import journal, refs, state

LATER = START + timedelta(minutes=5)
STAMP = EntryStamp(at=LATER, entry_id="new", actor=ACTOR)
BOUND = ProviderState(backend="s3", location="s3://b/x", lineage="lin-1", serial=2)
FAULT = Fault(code="engine_failed", phase="apply", summary="s.lost: reset")
LOST = Doubt(address="s.lost", action="create", why="its create ended in an error")
IMPORT = (PlannedAction(address="s.lost", action="import"),)


def failed(**more: Json) -> OperationRecord:
    """
    A target whose last apply lost the answer to a create.
    """
    fields: dict[str, Json] = {
        "status": Status.ERROR,
        "sequence": 4,
        "failed_command": "apply",
        "error": FAULT,
        "last_error": FAULT.summary,
        "outputs": {"url": "x"},
        "provider_state": BOUND,
        "resources": Resources(inventory=refs("s.a 1"), in_doubt=(LOST,)),
    }
    return entry(**(fields | more))


def operate(
    before: OperationRecord | None,
    after: PulledState | None,
    *,
    command: Command = "import",
    planned: tuple[PlannedAction, ...] = IMPORT,
    exit_code: int | None = 0,
    said: str = "",
) -> OperationRecord:
    """
    The entry after surgery over ``before`` that left the provider state ``after``.
    """
    first = before is None or before.status in (Status.ABSENT, Status.DESTROYED)
    marker = mark(
        before,
        facts(provider_state=BOUND) if first else changes_in_run("run-2"),
        state(["s.a 1"], serial=2),
        STAMP,
        command=command,
        planned=planned,
        doubts=before.resources.in_doubt if before else (),
    )
    evidence = MutationEvidence(exit_code=exit_code, journal=journal(), state=after, stderr=said)
    return surgery_ended(marker, before, evidence, STAMP)


def test_surgery_restores_status_error_and_what_was_applied() -> None:
    """
    Law: only success makes ok.
    Never `ok`; what failed stays what failed, with outputs and the run it was of. Inventory
    and serial are those of the state, and what was done stands beside them.
    """
    before = failed()

    found = operate(before, state(["s.a 1", "s.lost 2"]))

    assert (found.status, found.error, found.failed_command) == (Status.ERROR, FAULT, "apply")
    assert (found.active_command, found.outputs, found.run_id) == (
        None,
        before.outputs,
        before.run_id,
    )
    assert (found.sequence, found.previous_status) == (6, Status.RUNNING)
    assert [ref.id for ref in found.resources.inventory] == ["1", "2"]
    assert found.provider_state == BOUND.model_copy(update={"serial": 3})
    attempt = found.last_attempt
    assert attempt is not None
    assert (attempt.command, attempt.run_id, attempt.at) == ("import", "run-2", LATER)
    assert (attempt.mutated, attempt.error) == (True, None)


@pytest.mark.parametrize(
    ("status", "command"),
    [(Status.OK, "exec"), (Status.RETAINED, "untaint"), (Status.ERROR, "unlock")],
)
def test_every_status_of_objects_is_restored(status: Status, command: Command) -> None:
    """
    Law: only success makes ok.
    Over `ok` and `retained` too.
    """
    before = failed(status=status, resources=Resources(inventory=refs("s.a 1")))

    assert operate(before, state(["s.a 1"]), command=command, planned=()).status is status


def found(ownership: str) -> Doubt:
    """
    The lost object, as a readback found it.
    """
    readback = Readback.model_validate(
        {
            "verdict": "exists",
            "method": "search",
            "ids": ("2",),
            "why": "x",
            "at": START,
            "ownership": ownership,
            "evidence": "its tag",
        }
    )
    return LOST.model_copy(update={"readback": readback})


@pytest.mark.parametrize(
    "doubt", [LOST.model_copy(update={"id": "2"}), found("ours")], ids=["its create's id", "tag"]
)
def test_what_is_proven_ours_is_adopted_by_an_import(doubt: Doubt) -> None:
    """
    The doubt is settled as adopted; an object that came by a pushed state is in the state.
    """
    before = failed(resources=Resources(inventory=refs("s.a 1"), in_doubt=(doubt,)))
    after = state(["s.a 1", "s.lost 2"])

    adopted = operate(before, after)
    pushed = operate(before, after, command="push", planned=())

    assert (adopted.resources.in_doubt, pushed.resources.in_doubt) == ((), ())
    assert [(item.doubt, item.how, item.run_id) for item in adopted.settled] == [
        (doubt, "adopted", "run-2")
    ]
    assert [item.how for item in pushed.settled] == ["in_state"]
    assert adopted.adopted == ()


@pytest.mark.parametrize(
    ("doubt", "ownership", "why"),
    [
        (LOST, "found", "a person imported it"),
        (found("found"), "found", "its tag"),
        (found("foreign"), "foreign", "its tag"),
    ],
    ids=["nobody asked", "found", "foreign"],
)
def test_beside_an_adoption_that_proves_nothing_the_doubt_stays(
    doubt: Doubt, ownership: str, why: str
) -> None:
    """
    Law: not ours until proven.
    Also when reconcile looks at the state again; the record says whose the object is, and the doubt
    that the provider state holds another one.
    """
    before = failed(resources=Resources(inventory=refs("s.a 1"), in_doubt=(doubt,)))
    after = state(["s.a 1", "s.lost 2"])

    done = operate(before, after)
    look = StateObservation(at=LATER, run_id="r", settling_time=0.0, ids=after.ids, refreshed=True)

    why_still = f"{doubt.why}; 2, imported there, is not proven to be it"
    assert done.resources.in_doubt == (doubt.model_copy(update={"why": why_still}),)
    assert done.settled == ()
    assert settle_doubts(done, look)[1] == ()
    (adopted,) = done.adopted
    assert (adopted.address, adopted.id, adopted.ownership) == ("s.lost", "2", ownership)
    assert why in adopted.why


def test_what_the_record_knows_as_its_own_is_imported_back() -> None:
    """
    The inventory from before proves that it was made here: an import is no adoption.
    """
    known = refs("s.a 1", "s.lost 2")
    done = operate(failed(resources=Resources(inventory=known)), state(["s.a 1", "s.lost 2"]))
    assert done.adopted == ()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("import", "a person imported it; nothing proves"),
        ("exec", "an engine command of a person took it in; nothing proves"),
        ("apply", "an import block of the module took it in; nothing proves"),
    ],
)
def test_what_took_an_object_in_is_told(command: Command, why: str) -> None:
    """
    Nobody asked the provider about it: the command is all that is known.
    """
    planned = () if command == "exec" else IMPORT

    done = operate(failed(), state(["s.a 1", "s.lost 2"]), command=command, planned=planned)

    (adopted,) = done.adopted
    assert adopted.why.startswith(why)


@pytest.mark.parametrize(
    ("doubt_id", "after", "code"),
    [
        ("7", ["s.a 1", "s.lost 2"], "other_object"),
        (None, ["s.a 1", "s.lost 1"], "managed_twice"),
    ],
)
def test_another_object_than_the_one_in_doubt_is_not_adopted(
    doubt_id: str | None, after: list[str], code: str
) -> None:
    """
    The doubt stays open, so that nothing reads `ok`, and the attempt says what is there instead.
    """
    doubt = LOST.model_copy(update={"id": doubt_id})
    before = failed(resources=Resources(inventory=refs("s.a 1"), in_doubt=(doubt,)))

    found = operate(before, state(after))

    assert [(d.address, d.id) for d in found.resources.in_doubt] == [(doubt.address, doubt_id)]
    assert found.settled == ()
    assert found.last_attempt is not None
    assert found.last_attempt.error is not None
    assert (found.last_attempt.error.code, found.last_attempt.mutated) == (code, True)


@pytest.mark.parametrize(("serial", "mutated"), [(2, False), (3, True)])
def test_surgery_that_fails_restores_the_record(serial: int, mutated: bool) -> None:
    """
    The engine's own words stand in the attempt, with the phase surgery; it mutated only if the
    provider state is another one.
    """
    found = operate(
        failed(), state(["s.a 1"], serial=serial), exit_code=1, said="Failed to\nwrite it\n"
    )

    assert (found.status, found.error) == (Status.ERROR, FAULT)
    assert found.resources.in_doubt == (LOST,)
    attempt = found.last_attempt
    assert attempt is not None
    assert attempt.error is not None
    assert (attempt.mutated, attempt.error.phase) == (mutated, "surgery")
    assert attempt.error.summary == "Failed to write it"


@pytest.mark.parametrize("before", [failed(), failed(status=Status.OK), None])
def test_a_state_that_cannot_be_read_afterwards_is_an_error_of_the_surgery(
    before: OperationRecord | None,
) -> None:
    """
    Nobody knows what is there: `error` whatever it was, with the surgery as what failed, and the
    doubts and objects that were known.
    """
    found = operate(before, None)

    assert (found.status, found.failed_command) == (Status.ERROR, "import")
    assert found.error is not None
    assert (found.error.code, found.error.phase) == ("state_unreadable", "surgery")
    assert [ref.address for ref in found.resources.inventory] == ["s.a"]
    if before is not None:
        assert found.resources.in_doubt == (LOST,)


@pytest.mark.parametrize("status", [None, Status.ABSENT, Status.DESTROYED])
def test_objects_where_none_were_are_unapplied(status: Status | None) -> None:
    """
    Law: only success makes ok.
    `error` until an apply or reconcile finds them as described, also where the import that
    brought them failed in the end.
    """
    before = entry(status=status, sequence=2) if status else None

    for exit_code in (0, 1):
        found = operate(before, state(["s.lost 2", "s.b 3 tainted"]), exit_code=exit_code)

        assert (found.status, found.failed_command) == (Status.ERROR, "import")
        assert found.error is not None
        assert (found.error.code, found.error.phase) == ("unapplied", "surgery")
        assert found.error.resources == ("s.lost", "s.b")
        assert found.resources.tainted == ("s.b",)


@pytest.mark.parametrize(
    ("before", "status"),
    [(None, Status.ABSENT), (entry(status=Status.DESTROYED, sequence=2), Status.DESTROYED)],
)
def test_an_import_that_brought_nothing_leaves_nothing(
    before: OperationRecord | None, status: Status
) -> None:
    """
    Nothing was there and nothing is: as before, `absent` where there was no record (ADR 6).
    """
    found = operate(before, state(serial=0, lineage=None), exit_code=1)

    assert found.status is status
    assert found.last_attempt is not None
    assert found.last_attempt.error is not None


def test_what_surgery_took_out_of_the_state_is_still_known() -> None:
    """
    ADR 9: it lives on. It stays in the inventory, so that an apply asks before it makes it again;
    what only moved to another address is there once.
    """
    before = failed(
        status=Status.OK, resources=Resources(inventory=refs("s.a 1", "s.b 2", "s.old 3"))
    )

    found = operate(before, state(["s.a 1", "s.new 3"]), command="exec", planned=())

    assert found.status is Status.OK
    assert sorted(ref.address for ref in found.resources.inventory) == ["s.a", "s.b", "s.new"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [("s.b", "s.a"), ("s.a", None), ("t.b", None), ('s.b["s.a"]', "s.a")],
)
def test_an_id_is_foreign_only_at_another_address_of_its_type(
    address: str, expected: str | None
) -> None:
    """
    The same id of another type is another object.
    """
    assert managing_address(state(["s.a 1"]), address, "1") == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("aws_vpc.this", "aws_vpc"),
        ("module.a.module.b[0].aws_vpc.this[3]", "aws_vpc"),
        ('module.a["x.y"].aws_vpc.this["a\\"].b.c"]', "aws_vpc"),
        ("nonsense", "nonsense"),
    ],
)
def test_the_type_of_an_address(address: str, expected: str) -> None:
    """
    Modules and keys, dots and quotes in them, do not count.
    """
    assert parse_address(address).type == expected


def test_the_same_state_is_known_by_its_content() -> None:
    """
    Serial, lineage and version of the engine may differ; an attribute, or nothing to read, may not.
    """
    text = '{"lineage": "%s", "serial": %d, "terraform_version": "%s", "resources": [%d]}'

    def read(serial: int, version: str, resource: int, lineage: str = "l") -> PulledState:
        raw = (text % (lineage, serial, version, resource)).encode()
        return PulledState(lineage=lineage, serial=serial, objects=(), outputs={}, raw=raw)

    assert same_content(read(1, "1.6", 7), read(2, "1.7", 7, lineage="m"))
    assert not same_content(read(1, "1.6", 7), read(1, "1.6", 8))
    assert not same_content(state(), state())


# Commands of the engine


@pytest.mark.parametrize("name", sorted(READS))
def test_a_reading_command_does_not_mutate(name: str) -> None:
    """
    Whatever options it has.
    """
    assert not EngineCommand.parse([*name.split(), "-json"]).mutates


@pytest.mark.parametrize(
    "name",
    [
        "import", "taint", "untaint", "refresh", "force-unlock", "state mv", "state rm",
        "state push", "state replace-provider", "providers lock", "fmt", "some-new-thing", "state",
    ],
)  # fmt: skip
def test_what_may_change_state_or_is_not_known_mutates(name: str) -> None:
    """
    Law: intent first.
    It is marked before it is done.
    """
    assert EngineCommand.parse(name.split()).mutates


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_what_keeps_a_journal_or_moves_the_state_is_refused(name: str) -> None:
    """
    With what to do instead.
    """
    with pytest.raises(Refused) as caught:
        EngineCommand.parse([*name.split(), "x"])

    assert (caught.value.reason, caught.value.hint) == ("not_by_exec", INSTEAD[name])


@pytest.mark.parametrize(
    "words",
    [
        "-chdir=/x state list", "plan -out=p", "plan --out p", "state rm -state=x a.b",
        "plan -var=a=b", "import -var-file=x a.b i", "state push -force x",
        "plan -generate-config-out=x",
    ],
)  # fmt: skip
def test_an_option_that_works_on_something_else_is_refused(words: str) -> None:
    """
    Another directory, another state, other inputs, a state of another lineage.
    """
    with pytest.raises(Refused):
        EngineCommand.parse(words.split())


def test_a_lock_may_be_released_by_force() -> None:
    """
    ``-force`` means another thing there: do not ask. No words at all are a usage error.
    """
    assert EngineCommand.parse(["force-unlock", "-force", "id"]).mutates
    with pytest.raises(Usage):
        EngineCommand.parse([])


def test_our_options_come_after_the_verb() -> None:
    """
    A verb may be two words; what follows keeps its place.
    """
    command = EngineCommand.parse(["state", "show", "-x", "a.b"])

    assert command.words("-no-color") == ("state", "show", "-no-color", "-x", "a.b")


@pytest.mark.parametrize(
    ("doubt", "age", "left"),
    [
        (LOST.model_copy(update={"at": START}), 20, 40),
        (LOST.model_copy(update={"at": START}), 60, None),
        (LOST.model_copy(update={"at": START, "action": "delete"}), 1, 59),
        (LOST.model_copy(update={"at": START, "action": "forget"}), 1, None),
    ],
)
def test_nobody_forgets_what_may_still_be_under_way(
    doubt: Doubt, age: int, left: int | None
) -> None:
    """
    Law: evidence before a person's word.
    Refused with the seconds left; what has left the provider state has no request under way.
    """
    record = failed(resources=Resources(in_doubt=(doubt,)))
    now = START + timedelta(seconds=age)
    check_settled([record], (), at=now, settle=60)
    if left is None:
        check_settled([record], ["s.lost"], at=now, settle=60)
        return
    with pytest.raises(Refused) as caught:
        check_settled([record], ["s.lost"], at=now, settle=60)
    assert (caught.value.reason, caught.value.hint) == ("settling", f"ask again in {left} s")


def test_what_is_proven_ours_is_taken_over_in_one_go() -> None:
    """
    Law: not ours until proven.
    By the id that its create returned, or as the provider showed it; not what the provider was
    asked for and does not have, what was only found, or what is in doubt otherwise.
    """
    returned = LOST.model_copy(update={"address": "s.returned", "id": "7"})
    absent = returned.model_copy(
        update={
            "address": "s.absent",
            "readback": Readback(verdict="unknown", method="id", why="none", at=START),
        }
    )
    tagged = found("ours").model_copy(update={"address": "s.tagged"})
    named = found("found").model_copy(update={"address": "s.named"})
    left = LOST.model_copy(update={"address": "s.left", "action": "forget", "id": "8"})
    doubts = (returned, absent, tagged, named, left, LOST)
    record = failed(resources=Resources(in_doubt=doubts))
    assert proven_objects(record) == {"s.returned": "7", "s.tagged": "2"}


def test_what_prevent_destroy_protects_is_protected_where_it_is_moved_to() -> None:
    """
    An engine command of a person gives the object another address; the module knows only the first.
    """
    held = Resources(inventory=refs("s.a 1", "s.b 2"))
    before = entry(resources=held, protected=("s.a",))

    moved = operate(before, state(['s.c["x"] 1', "s.b 2"]), command="exec", planned=())

    assert moved.protected == ("s.a", "s.c")
