"""
Every fault of the fixture cloud, in a create, an update and a delete: what is recorded, what is in
doubt, what a readback says of it, and that in the end nothing is left over and nothing made twice.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.engine.readback_project import Place
from tests.engine.watched_engine import kill_with_engine
from tests.project import ENGINES, PROGRAMS, eventually, require_engine

pytestmark = pytest.mark.engine

#: Fault of a create -> what becomes of the object: its fate in the record, then its readback.
CREATES = {
    "error_before": "failed",
    "error_before:AccessDenied": "failed",
    "error_before:InternalError": "in doubt: absent",
    "throttled": "in doubt: absent",  # it says 503, which proves nothing
    "lost_request": "in doubt: absent",
    "lost_request:deadline": "in doubt: absent",
    "lost_request:unavailable": "in doubt: absent",
    "lost_answer": "in doubt: exists",
    "lost_answer:deadline": "in doubt: exists",
    "lost_answer:unavailable": "in doubt: exists",
    "lost_answer,late:1": "in doubt: exists",
    "error_after": "in doubt: exists",
    "error_after_partial": "tainted",
    "null_after": "in doubt: exists",
    "other_values_after": "tainted",
    "already_exists": "in doubt: absent",
    "late:0.1": "created",
    "slow:0.1": "created",
}
#: Fault of an update -> its fate, and whether the object was changed.
UPDATES = {
    "error_before": ("failed", "small"),
    "error_before:InternalError": ("failed", "small"),
    "throttled": ("failed", "small"),
    "lost_request": ("failed", "small"),
    "lost_answer": ("failed", "large"),
    "error_after": ("failed", "large"),
    "error_after_partial": ("failed", "large"),
    "null_after": ("failed", "large"),
    "other_values_after": ("failed", "large"),
    "lost_update": ("updated", "small"),
    "slow:0.1": ("updated", "large"),
}
#: Fault of a delete -> its fate, and whether the object is alive after it.
DELETES = {
    "error_before": ("failed", True),
    "error_before:InternalError": ("failed", True),
    "throttled": ("failed", True),
    "lost_request": ("failed", True),
    "lost_answer": ("failed", False),
    "error_after": ("failed", False),
    "delete_fails": ("failed", True),
    "delete_slow:0.1": ("deleted", False),
    "slow:0.1": ("deleted", False),
}
#: What tells most, for the other engine.
TELLING = ("throttled", "lost_request", "lost_answer", "error_after_partial", "null_after")


def bucket(fault: str) -> str:
    """
    The name of the bucket that meets a fault.
    """
    return fault.translate(str.maketrans(":,._", "----"))


def address(fault: str) -> str:
    return f'fakecloud_bucket.many["{bucket(fault)}"]'


def fate(resources: dict[str, list[str]], fault: str) -> str:
    """
    The lists of the record that name its bucket, the telling one.
    """
    names = ("tainted", "failed", "created", "updated", "deleted", "not_attempted")
    return next(name for name in names if address(fault) in resources[name])


def faults_on(engine: str, faults: Mapping[str, object]) -> tuple[str, ...]:
    """
    All of them on the programs, what tells most on the embedded engine.
    """
    return tuple(f for f in faults if engine in PROGRAMS or f in TELLING)


def rows(faults: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(engine, fault) for engine in ENGINES for fault in faults_on(engine, faults)]


@contextmanager
def opened(root: Path, engine: str) -> Iterator[Place]:
    place = Place(root, require_engine(engine))
    with place.cloud.attached() as reattach:
        place.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        yield place


class Created:
    """
    One apply whose creates each meet a fault; read back, adopted, and applied again.
    """

    def __init__(self, place: Place, faults: tuple[str, ...]) -> None:
        names = [bucket(fault) for fault in faults]
        place.wants(f"buckets: [sound, {', '.join(names)}]")
        for fault in faults:
            place.cloud.arm("create", bucket(fault), fault)
        self.apply = place.apply()
        self.resources = place.record["resources"]
        self.doubts = {doubt["address"] for doubt in self.resources["in_doubt"]}
        late = [bucket(fault) for fault in faults if "late" in fault]
        eventually(
            lambda: set(late) <= {item.name for item in place.cloud.buckets()}, "late ones appear"
        )
        self.reconcile = place.reconcile()
        self.readbacks = place.readbacks
        self.settled = place.settled
        place.adopt(self.reconcile)
        self.adopted = place.record
        self.again = place.apply()
        self.cloud = Counter(item.name for item in place.cloud.buckets())
        self.expected = Counter(["sound", *names])


@pytest.fixture(scope="module")
def created_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Created]:
    """
    The scene on an engine, played once.
    """

    @cache
    def play(engine: str) -> Created:
        with opened(tmp_path_factory.mktemp("created"), engine) as place:
            return Created(place, faults_on(engine, CREATES))

    return play


@pytest.mark.parametrize(("engine", "fault"), rows(CREATES))
def test_a_create(created_on: Callable[[str], Created], engine: str, fault: str) -> None:
    """
    A refusal made nothing, a returned state is in the provider state; everything else is in doubt,
    and a readback tells whether the object is there.
    """
    created = created_on(engine)
    expected, _, verdict = CREATES[fault].partition(": ")
    assert (address(fault) in created.doubts) == (expected == "in doubt")
    if expected != "in doubt":
        assert fate(created.resources, fault) == expected
    elif verdict == "absent":
        assert created.settled[address(fault)] == "absent"
    else:
        found = created.readbacks[address(fault)]
        assert (found["verdict"], found["ids"]) == (verdict, [bucket(fault)])


@pytest.mark.parametrize("engine", ENGINES)
def test_after_an_adoption_nothing_is_left_over_and_nothing_made_twice(
    created_on: Callable[[str], Created], engine: str
) -> None:
    """
    What was found is adopted by the command that is offered; the next apply makes what is missing,
    and every object is there once.
    """
    created = created_on(engine)
    assert (created.apply.code, created.reconcile.code) == (11, 11)
    assert created.adopted["resources"]["in_doubt"] == []
    assert created.adopted["status"] == "error"
    assert created.again.code == 0, created.again.said
    assert created.cloud == created.expected


class Changed:
    """
    One apply whose updates each meet a fault, applied again; then a destroy whose deletes do,
    repeated.
    """

    def __init__(self, place: Place, engine: str) -> None:
        cloud = place.cloud
        updates, deletes = faults_on(engine, UPDATES), faults_on(engine, DELETES)
        names = [bucket(fault) for fault in dict.fromkeys((*updates, *deletes))]
        wanted = f"buckets: [sound, {', '.join(names)}]"
        place.wants(wanted)
        assert place.apply().code == 0
        for fault in updates:
            cloud.arm("update", bucket(fault), fault)
        place.wants(f"size: large, {wanted}")
        self.update = place.apply()
        self.updated = place.record["resources"]
        self.sizes = {item.name: item.attributes["size"] for item in cloud.buckets()}
        self.again = place.apply()
        self.sizes_in_the_end = {item.attributes["size"] for item in cloud.buckets()}
        self.created = Counter(call.name for call in cloud.calls("create"))
        for fault in deletes:
            cloud.arm("delete", bucket(fault), fault)
        cloud.arm("delete", "sound", "delete_fails")
        self.destroy = place.destroy()
        self.deleted = place.record["resources"]
        self.alive = {item.name for item in cloud.buckets()}
        self.destroy_again = place.destroy()
        self.alive_in_the_end = cloud.objects()
        self.record = place.record


@pytest.fixture(scope="module")
def changed_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Changed]:
    """
    The scene on an engine, played once.
    """

    @cache
    def play(engine: str) -> Changed:
        with opened(tmp_path_factory.mktemp("changed"), engine) as place:
            return Changed(place, engine)

    return play


@pytest.mark.parametrize(("engine", "fault"), rows(UPDATES))
def test_an_update(changed_on: Callable[[str], Changed], engine: str, fault: str) -> None:
    """
    Whether it was carried out or not, an update that ended is never in doubt: the provider state
    holds the object, and the next refresh tells.
    """
    changed = changed_on(engine)
    expected, size = UPDATES[fault]
    assert fate(changed.updated, fault) == expected
    assert changed.sizes[bucket(fault)] == size
    assert changed.updated["in_doubt"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_apply_makes_up_for_every_update(
    changed_on: Callable[[str], Changed], engine: str
) -> None:
    """
    It changes what is not as it should be, and makes nothing anew.
    """
    changed = changed_on(engine)
    assert (changed.update.code, changed.again.code) == (10, 0), changed.again.said
    assert changed.sizes_in_the_end == {"large"}
    assert set(changed.created.values()) == {1}


@pytest.mark.parametrize(("engine", "fault"), rows(DELETES))
def test_a_delete(changed_on: Callable[[str], Changed], engine: str, fault: str) -> None:
    """
    What a delete that failed has left stays in the inventory, and is not in doubt.
    """
    changed = changed_on(engine)
    expected, alive = DELETES[fault]
    assert fate(changed.deleted, fault) == expected
    assert (bucket(fault) in changed.alive) == alive
    held = {item["address"] for item in changed.deleted["inventory"]}
    assert (address(fault) in held) == (expected == "failed")
    assert changed.deleted["in_doubt"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_destroy_leaves_nothing(changed_on: Callable[[str], Changed], engine: str) -> None:
    """
    It goes on with what remains, and ends `destroyed`.
    """
    changed = changed_on(engine)
    assert (changed.destroy.code, changed.destroy_again.code) == (10, 0), changed.destroy_again.said
    assert changed.alive_in_the_end == ()
    assert changed.record["status"] == "destroyed"


def test_a_provider_that_crashes_in_a_create(tmp_path: Path, engine: str) -> None:
    """
    Its error names no address, so nothing is refused: what it may have made is in doubt, with all
    that was under way, and a readback tells one from the other.
    """
    place = Place(tmp_path, engine)
    place.wants("buckets: [sound]")
    assert place.apply().code == 0
    place.cloud.arm("create", "made", "crash_after")
    place.wants("buckets: [sound, made]")

    ended = place.apply()
    place.reconcile()

    assert ended.code == 11
    assert place.readbacks[address("made")]["ids"] == ["made"]


@pytest.mark.parametrize(("op", "size"), [("update", "large"), ("delete", "small")])
def test_a_provider_that_crashes_in_a_change(
    tmp_path: Path, engine: str, op: str, size: str
) -> None:
    """
    The provider state holds the object, so nothing is made twice: the next run of the same kind
    makes up for it.
    """
    place = Place(tmp_path, engine)
    place.wants("buckets: [sound, hurt]")
    assert place.apply().code == 0
    place.cloud.arm(op, "hurt", "crash_after")
    place.wants(f"size: {size}, buckets: [sound{', hurt' if op == 'update' else ''}]")

    crashed = place.apply()
    again = place.apply()

    assert (crashed.code, again.code) == (10, 0), again.said
    assert {item.name for item in place.cloud.buckets()} == (
        {"sound", "hurt"} if op == "update" else {"sound"}
    )
    assert len(place.cloud.calls("create")) == 2


@pytest.mark.parametrize(("journal", "gone"), [("partial", ()), ("missing", ("runs", "work"))])
def test_a_create_that_hangs_until_everything_is_killed(
    tmp_path: Path, engine: str, journal: str, gone: tuple[str, ...]
) -> None:
    """
    The journal tells that the create began and never ended; or the machine is gone with all its
    files, and only the marker tells of it, once somebody says that nothing of it is alive. It was
    made, and is found.
    """
    place = Place(tmp_path, engine)
    place.cloud.arm("create", "stuck", "hang_after")
    place.wants("buckets: [stuck]")
    tool = place.project.start("apply", "asked", "--json", "--yes")
    place.cloud.wait_for_call("create", "stuck")
    kill_with_engine(place.project, tool, "apply")
    for name in gone:
        shutil.rmtree(place.project.own / name)

    place.reconcile(*(("--takeover", "the machine is lost") if gone else ()))

    assert place.record["resources"]["journal"] == journal
    assert place.readbacks[address("stuck")]["verdict"] == "exists"
