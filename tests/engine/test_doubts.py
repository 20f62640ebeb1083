"""
Doubt: creates of which nobody can tell whether they made something, and those that surely did not.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import provide
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

STEP = "servers"
TEXT = """
    version: 1
    name: {name}
    steps:
      servers:
        module: ../modules/server
        inputs: {{name: {name}, names: {names}}}
        {more}
"""
FORGET = ("--reason", "the console shows none")


def address(name: str) -> str:
    """
    Of one of the further servers.
    """
    return f'fakecloud_server.more["{name}"]'


class Place:
    """
    A project with blueprints of servers in a cloud.
    """

    def __init__(self, root: Path, mirror: Path, engine: str) -> None:
        self.cloud = Cloud(root / "cloud.db")
        self.project = Project(root / "project", engine=engine)
        self.project.copy("fixtures/fakecloud/modules/server")
        shutil.move(self.project.root / "fixtures/fakecloud/modules", self.project.root / "modules")
        provide(self.project, self.cloud, mirror)
        self.project.write("orchestrator.yaml", "settle_seconds: 0\n")

    def blueprint(self, name: str, names: str = "[]", more: str = "") -> str:
        """
        Write the blueprint; its first server is called like it.
        """
        self.project.write(
            f"blueprints/{name}.yaml", TEXT.format(name=name, names=names, more=more)
        )
        return name

    def call(self, verb: str, blueprint: str, *more: str) -> Ended:
        """
        Run a command as a pipeline does.
        """
        yes = ("--yes",) if verb in ("apply", "destroy") else ()
        return self.project.run(verb, blueprint, "--json", *yes, *more)

    def created(self) -> list[str | None]:
        """
        The names of all servers whose create was asked for, in order.
        """
        return [call.name for call in self.cloud.calls("create")]


def in_doubt(record: dict[str, Any]) -> set[str]:
    """
    The addresses in doubt of a record, a run's row, or a row of the status.
    """
    return {doubt["address"] for doubt in record.get("resources", record)["in_doubt"]}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror")


@pytest.fixture
def alone(tmp_path: Path, mirror: Path, engine: str) -> Place:
    """
    A place where the engine starts its own providers, which may crash.
    """
    return Place(tmp_path, mirror, engine)


@pytest.fixture
def place(alone: Place) -> Iterator[Place]:
    """
    A place with a provider that is there already: quicker, but nothing in it crashes.
    """
    with alone.cloud.attached() as reattach:
        alone.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        yield alone


class Doubted:
    """
    A failed apply with two creates in doubt, and the way out.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        names = place.blueprint("doubts", "[lost, silent, partial]")
        place.cloud.arm("create", "lost", "lost_answer")
        place.cloud.arm("create", "silent", "error_after")
        place.cloud.arm("create", "partial", "error_after_partial")
        self.apply = place.call("apply", names)
        self.record = place.project.record(STEP)
        self.created = place.created()
        self.second_apply = place.call("apply", names)
        self.created_by_second = place.created()[len(self.created) :]
        self.reconcile = place.call("reconcile", names)
        self.reconciled = place.project.record(STEP)
        self.no_reason = place.call("reconcile", names, "--forget", address("lost"))
        self.unknown = place.call("reconcile", names, "--forget", "a.b", *FORGET)
        both = [word for name in ("lost", "silent") for word in ("--forget", address(name))]
        self.unapproved = place.call("reconcile", names, *both, *FORGET)
        self.forget = place.call("reconcile", names, *both, *FORGET, "--yes")
        self.history = place.project.ok("history", f"doubts/default/{STEP}").out
        self.forgotten = place.project.record(STEP)
        self.last_apply = place.call("apply", names)
        self.last = place.project.record(STEP)


@pytest.fixture(scope="module")
def doubted(tmp_path_factory: pytest.TempPathFactory, mirror: Path, engine: str) -> Doubted:
    place = Place(tmp_path_factory.mktemp("doubted"), mirror, engine)
    with place.cloud.attached() as reattach:
        place.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        return Doubted(place)


def test_a_create_without_an_answer_is_in_doubt(doubted: Doubted) -> None:
    """
    A create whose answer was lost, or that failed without returning a state, is in doubt with its
    action, its beginning and why: exit 11. One that returned its state is tainted, and not in
    doubt.
    """
    record = doubted.record
    expected = {address("lost"), address("silent")}

    assert doubted.apply.code == 11
    assert record["status"] == "error"
    assert in_doubt(record) == in_doubt(doubted.apply.row) == expected
    assert all(d["action"] == "create" and d["started_at"] for d in record["resources"]["in_doubt"])
    assert any("connection reset" in d["why"] for d in record["resources"]["in_doubt"])
    assert record["resources"]["tainted"] == [address("partial")]


def test_an_apply_is_refused_while_something_is_in_doubt(doubted: Doubted) -> None:
    """
    The next apply ends with 11 before it creates anything, names the objects, and offers
    `reconcile` (laws: an outlived run is settled from evidence; no guessing).
    """
    refused = doubted.second_apply

    assert refused.code == 11
    assert doubted.created_by_second == []
    assert in_doubt(refused.row) == in_doubt(doubted.record)
    assert "orchestrator reconcile" in refused.events[-1]["next"][0]["command"]


def test_reconcile_keeps_what_no_evidence_settles(doubted: Doubted) -> None:
    """
    Without evidence a doubt stays one: exit 11, the record stays `error`.
    """
    assert doubted.reconcile.code == 11
    assert doubted.reconciled["status"] == "error"
    assert in_doubt(doubted.reconciled) == in_doubt(doubted.record)


def test_what_evidence_cannot_settle_is_offered_to_a_person(doubted: Doubted) -> None:
    """
    After a reconcile the next command is not the same one again; a person is offered to say what
    became of each object.
    """
    offered = [item["command"] for item in doubted.reconcile.events[-1]["next"]]
    (words,) = (shlex.split(command) for command in offered if "--forget" in command)
    named = {word for flag, word in pairwise(words) if flag == "--forget"}
    assert named == in_doubt(doubted.reconciled)
    assert not any(command.endswith("reconcile doubts") for command in offered)


def test_a_doubt_is_not_forgotten_without_a_reason(doubted: Doubted) -> None:
    """
    --forget without --reason is refused.
    """
    assert doubted.no_reason.code == 4
    assert "--reason" in doubted.no_reason.events[-1]["hint"]


def test_a_doubt_is_not_forgotten_without_approval(doubted: Doubted) -> None:
    """
    A person's word is asked for like a change of the provider state: --yes says it where nobody can
    be asked.
    """
    assert doubted.unapproved.code == 5
    assert "forget" in doubted.unapproved.said


def test_only_what_is_in_doubt_can_be_forgotten(doubted: Doubted) -> None:
    """
    An address that is not in doubt is an error that names it.
    """
    assert doubted.unknown.code == 3
    assert "a.b is not in doubt" in doubted.unknown.events[-1]["error"]


def test_a_forgotten_doubt_is_kept_with_its_reason(doubted: Doubted) -> None:
    """
    What a person settled is no doubt any more; who settled it in which run, and why, is recorded.
    """
    settled = doubted.forgotten["settled"]

    assert doubted.forget.code == 0
    assert in_doubt(doubted.forgotten) == set()
    assert {item["doubt"]["address"] for item in settled} == {address("lost"), address("silent")}
    assert {(item["how"], item["reason"]) for item in settled} == {("forgotten", FORGET[1])}
    assert {item["run_id"] for item in settled} == {doubted.forget.events[-1]["run_id"]}


def test_who_forgot_and_why_is_shown_and_the_way_on_is_offered(doubted: Doubted) -> None:
    """
    Law: evidence before a person's word.
    The history names the run and the reason; the end of the run offers what `recover` recommends.
    """
    told = " ".join(doubted.history.split())
    run = doubted.forget.events[-1]["run_id"]
    offered = [item["command"] for item in doubted.forget.events[-1]["next"]]

    for name in ("lost", "silent"):
        assert f"forgotten: {address(name)} by run {run}: {FORGET[1]}" in told
    assert any(command.startswith("orchestrator retry doubts") for command in offered), offered


def test_an_apply_goes_on_after_the_doubts_are_settled(doubted: Doubted) -> None:
    """
    With nothing in doubt the apply makes what is missing and ends `ok`.
    """
    assert doubted.last_apply.code == 0
    assert doubted.last["status"] == "ok"
    assert doubted.last_apply.row["replaced"] == [address("partial")]
    assert sorted(doubted.last_apply.row["created"]) == [address("lost"), address("silent")]


def test_a_refused_create_is_not_in_doubt(place: Place) -> None:
    """
    An error by which the provider says that it made nothing (validation, permission, quota) is a
    plain failure: exit 10, nothing in doubt.
    """
    names = place.blueprint("refusals", "[invalid, denied, quota]")
    for name, code in {
        "invalid": "InvalidParameterValue",
        "denied": "AccessDenied",
        "quota": "QuotaExceeded",
    }.items():
        place.cloud.arm("create", name, f"error_before:{code}")

    ended = place.call("apply", names)

    record = place.project.record(STEP)
    assert ended.code == 10
    assert in_doubt(record) == set()
    assert sorted(record["resources"]["failed"]) == sorted(
        map(address, ("denied", "invalid", "quota"))
    )


def test_an_object_of_a_crashed_provider_is_in_doubt(alone: Place) -> None:
    """
    A provider that dies after the create leaves no error with an address, and a doubt.
    """
    names = alone.blueprint("crashing")
    alone.cloud.arm("create", "crashing", "crash_after")

    ended = alone.call("apply", names)

    assert ended.code == 11
    assert in_doubt(alone.project.record(STEP)) == {"fakecloud_server.this"}
    assert [server.name for server in alone.cloud.servers()] == ["crashing"]


def test_nothing_in_doubt_is_called_destroyed(place: Place) -> None:
    """
    A destroy goes on while something is in doubt, but ends `error` with exit 11, however often it
    is repeated; settled, it is `destroyed` (laws: an outlived run is settled from evidence;
    destroyed means confirmed).
    """
    names = place.blueprint("kept", "[sound]")
    place.cloud.arm("create", "kept", "lost_answer")
    place.call("apply", names)

    first = place.call("destroy", names)
    second = place.call("destroy", names)
    doubtful = place.project.record(STEP)
    word = ("--forget", "fakecloud_server.this", *FORGET, "--yes")
    settled = place.call("reconcile", names, *word)

    assert (first.code, second.code) == (11, 11)
    assert first.row["deleted"] == [address("sound")]
    assert (doubtful["status"], in_doubt(doubtful)) == ("error", {"fakecloud_server.this"})
    assert "fakecloud_server.this" in doubtful["last_error"]
    assert (settled.code, place.project.record(STEP)["status"]) == (0, "destroyed")


def test_a_throttled_create_is_tried_again(place: Place) -> None:
    """
    What the step's `retry` names, and nothing is in doubt about, is tried again, each attempt with
    evidence of its own.
    """
    names = place.blueprint(
        "patient",
        more="retry: {on: [RequestLimitExceeded], interval: 100ms, jitter: 100ms}",
    )
    place.cloud.arm("create", "patient", "throttled")

    ended = place.call("apply", names)

    attempts = Path(ended.events[-1]["directory"], "steps", STEP)
    assert ended.code == 0
    assert ended.row["attempts"] == 2
    assert [event["attempt"] for event in ended.events if event["type"] == "step_retried"] == [2]
    assert [
        json.loads((attempts / number / "apply.answer.json").read_text())["exit_code"]
        for number in ("1", "2")
    ] == [1, 0]


def test_nothing_is_tried_again_while_in_doubt(place: Place) -> None:
    """
    A create that may have made something is not repeated, whatever the step's `retry` says.
    """
    names = place.blueprint("hasty", more='retry: {on: ["."], attempts: 3}')
    place.cloud.arm("create", "hasty", "lost_answer")

    ended = place.call("apply", names)

    assert ended.code == 11
    assert ended.row["attempts"] == 1
    assert place.created() == ["hasty"]


def test_a_throttled_delete_is_tried_again(place: Place) -> None:
    """
    A step's `retry` holds for its destroy as well.
    """
    names = place.blueprint("leaving", more="retry: {on: [RequestLimitExceeded], interval: 100ms}")
    assert place.call("apply", names).code == 0
    place.cloud.arm("delete", "leaving", "throttled")

    ended = place.call("destroy", names)

    assert (ended.code, ended.row["attempts"]) == (0, 2), ended.said
    assert place.project.record(STEP)["status"] == "destroyed"
    assert [event["phase"] for event in ended.events if event["type"] == "step_retried"] == [
        "destroy"
    ]
