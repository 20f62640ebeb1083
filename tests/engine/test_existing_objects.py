"""
Before a create, look: where a step declares how its objects are found, one that exists is never
taken for one to be made, and one that did not exist is ours afterwards.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.engine.readback_project import HEAVY, Place
from tests.engine.watched_engine import watched

pytestmark = pytest.mark.engine

THIS = "fakecloud_bucket.this[0]"


@pytest.mark.parametrize(
    ("kind", "name", "inputs"),
    [
        ("fakecloud_bucket", "acme", "with: [this], buckets: [other]"),
        ("fakecloud_bucket", "taken", "buckets: [taken, other]"),
        ("fakecloud_bucket", "acme-inner", "with: [inner], buckets: [other]"),
        ("fakecloud_server", "web", "servers: [web, more], buckets: [other]"),
    ],
)
def test_what_exists_is_refused_before_anything_is_made(
    place: Place, kind: str, name: str, inputs: str
) -> None:
    """
    By its identity or by a search: exit 4 with the id and the ways out, nothing of the step is
    made, and there is no record of it.
    """
    place.wants(inputs)
    place.cloud.create_out_of_band(kind, name, tags={"owner": "acme"})
    before = place.cloud.objects()

    refused = place.apply()

    assert refused.code == 4
    (step,) = refused.events[-1]["steps"]
    assert step["error"]["code"] == "exists_already"
    assert "is not ours" in step["error"]["summary"]
    assert before[0].id in step["error"]["summary"]
    assert place.cloud.objects() == before
    assert not place.cloud.calls("create")
    assert place.project.entries("things") == []


def test_recover_does_not_send_into_the_same_refusal(place: Place) -> None:
    """
    The same apply would be refused for ever: none is recommended, and the ways out are told, also
    after a command that did not come far enough to meet the object.
    """
    place.wants("with: [this]")
    place.cloud.create_out_of_band("fakecloud_bucket", "acme")
    assert place.apply().code == 4
    mistaken = place.apply("--target", "nope.x")
    assert mistaken.code == 3

    row = place.project.run("recover", "asked", "--json").row
    shown = place.project.ok("recover", "asked").out

    assert row["recommended"] is None
    assert "import it; else choose another name" in row["hint"]
    assert "acme exists already" in shown and "import it" in shown
    assert not any("nope.x" in item["command"] for item in mistaken.events[-1]["next"])


def test_what_exists_can_be_imported_and_is_not_taken_for_ours(place: Place) -> None:
    """
    The offered import takes it over; a destroy of it then needs a reason of its own.
    """
    place.wants("with: [this]")
    place.cloud.create_out_of_band("fakecloud_bucket", "acme")
    refused = place.project.run("apply", "asked", "--yes")
    offered = refused.said.split("`orchestrator import ")[1].split("`")[0]

    assert place.project.run("import", *shlex.split(offered), "--yes").code == 0
    assert place.apply().code == 0
    assert place.destroy().code == 4
    assert len(place.cloud.objects()) == 1


def test_what_was_absent_before_is_ours_afterwards(place: Place) -> None:
    """
    Its create lost the answer: the provider has it now and did not have it then. So it is adopted
    as offered, and destroyed as any other.
    """
    place.wants("with: [this], servers: [web]")
    for name in ("acme", "web"):
        place.cloud.arm("create", name, "lost_answer")
    assert place.apply().code == 11

    told = place.reconcile()

    owned = {address: found["ownership"] for address, found in place.readbacks.items()}
    assert owned == {THIS: "ours", 'fakecloud_server.found["web"]': "ours"}
    assert place.adopt(told).code == 0
    assert place.destroy().code == 0
    assert not place.cloud.objects()


def test_what_was_made_meanwhile_in_its_place_is_not_ours(place: Place) -> None:
    """
    The provider said that it existed when it was to be created: somebody was faster, or the create
    was sent twice. Nobody can tell, so it is not recommended.
    """
    place.wants("with: [this]")
    place.cloud.arm("create", "acme", "already_exists")
    assert place.apply().code == 11
    place.cloud.create_out_of_band("fakecloud_bucket", "acme")

    place.reconcile()

    found = place.readbacks[THIS]
    assert (found["verdict"], found["ownership"]) == ("exists", "found")


def test_what_another_step_has_is_named(place: Place) -> None:
    """
    A name that another blueprint uses already is told with the target that has it, and its object
    is not offered to be taken over.
    """
    place.wants("with: [this]")
    text = (place.project.root / "blueprints/asked.yaml").read_text()
    other = text.replace("name: asked", "name: other")
    place.project.write("blueprints/other.yaml", other)
    place.project.ok("apply", "other", "--yes")

    refused = place.project.run("apply", "asked", "--yes")

    assert refused.code == 4
    assert f"it is {THIS} of other/default/things" in " ".join(refused.said.split())
    assert "orchestrator import" not in refused.said


def test_it_costs_one_plan_where_something_is_created(place: Place, tmp_path: Path) -> None:
    """
    However many objects are asked for; and none where nothing is created.
    """
    place.wants("with: [this], buckets: [one, two], servers: [web]")
    engine = watched(place.project, tmp_path / "watched")

    place.project.prepare("apply", "asked", "--yes")
    first = [verb for verb in engine.verbs if verb in HEAVY]
    place.project.prepare("apply", "asked", "--yes")

    assert first == ["plan", "plan", "apply"]
    assert [verb for verb in engine.verbs if verb in HEAVY][3:] == ["plan"]


def test_a_provider_that_cannot_be_asked_keeps_nothing_from_being_made(place: Place) -> None:
    """
    It is said, and nothing is proven by it.
    """
    place.wants("with: [this]")
    place.cloud.arm("import", "acme", "read_error")

    ended = place.project.run("apply", "asked", "--yes")

    assert ended.code == 0, ended.said
    assert "could not tell whether it exists already" in ended.said


def test_what_the_same_plan_deletes_is_no_obstacle(place: Place) -> None:
    """
    A bucket that changes its address in the module is created where it was there before, by
    ourselves; whether the delete comes first is up to the engine.
    """
    place.wants("with: [this]")
    assert place.apply().code == 0
    place.wants("buckets: [acme]")

    place.apply()

    assert len(place.cloud.calls("create")) == 2
