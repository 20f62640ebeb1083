"""
What is recorded as gone is asked for again: ``reconcile --verify provider``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import Place
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

SERVER = 'fakecloud_server.found["web"]'


@pytest.fixture
def place(tmp_path: Path, engine: str) -> Iterator[Place]:
    """
    A place with a provider that is there already, and objects of several types and modules.
    """
    found = Place(tmp_path, engine)
    found.wants("with: [this, inner], servers: [web, other]")
    with found.cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        assert found.apply().code == 0
        yield found


def look(place: Place) -> Ended:
    return place.reconcile("--verify", "provider")


def test_a_delete_that_lied_is_found_out(place: Place) -> None:
    """
    By state all is gone. The provider has one of them, which is ours by its id: exit 11, and from
    there the usual way leads to an empty cloud.
    """
    place.cloud.arm("delete", "web", "delete_lies")
    assert place.project.run("destroy", "asked", "--verify", "state", "--yes").code == 0
    assert place.reconcile().code == 0

    told = look(place)

    assert told.code == 11
    assert place.record["status"] == "error"
    assert place.readbacks[SERVER]["ownership"] == "ours"
    assert place.project.run("status", "asked", "--expect", "destroyed").code == 4
    assert place.adopt(told).code == 0
    assert place.destroy().code == 0
    assert not place.cloud.objects()


def test_what_is_gone_stays_so(place: Place) -> None:
    """
    Nothing is recorded where the provider has none of it.
    """
    assert place.destroy().code == 0
    before = place.project.entries("things")

    told = look(place)

    assert told.code == 0
    assert place.project.entries("things") == before


def test_a_name_that_somebody_took_since_is_not_ours(place: Place) -> None:
    """
    The provider had confirmed that it was gone: what has its name now was made by somebody else.
    """
    assert place.destroy().code == 0
    place.cloud.create_out_of_band("fakecloud_bucket", "acme")

    assert look(place).code == 11
    assert place.readbacks["fakecloud_bucket.this[0]"]["ownership"] == "found"


def test_what_an_earlier_delete_removed_is_not_called_alive(place: Place) -> None:
    """
    A delete lost its answer, and the provider state still holds the object: once a reconcile has
    found it gone, no screen counts it as alive, and the next destroy ends the work.
    """
    place.cloud.arm("delete", "web", "lost_answer")
    assert place.destroy().code == 10

    told = place.reconcile()
    recovered = place.project.ok("recover", "asked", "--json").document["steps"][0]

    assert told.code == 0
    assert told.events[-1]["alive"] == []
    assert recovered["evidence"]["objects"] == 0
    assert place.settled == {SERVER: "gone"}
    assert place.destroy().code == 0
    assert place.record["status"] == "destroyed"


def test_what_the_provider_says_of_a_destroyed_step_is_recorded_once(place: Place) -> None:
    """
    A destroy that believed the provider state: asked in another scope nobody confirms it; asked
    where it was applied the provider does, from then on in every view.
    """
    assert place.project.run("destroy", "asked", "--verify", "state", "--yes").code == 0
    assert place.record["absence"]["method"] == "state"

    elsewhere = place.project.run(
        "reconcile", "asked", "--verify", "provider", environ={"FAKECLOUD_REGION": "there-2"}
    )
    assert "FAKECLOUD_REGION differ" in elsewhere.said
    assert place.record["absence"]["method"] == "state"

    assert look(place).code == 0
    confirmed = place.record
    assert (confirmed["status"], confirmed["absence"]["method"]) == ("destroyed", "provider")
    assert {item["state"] for item in confirmed["absence"]["checked"]} == {"gone"}
    assert look(place).code == 0
    assert place.record == confirmed


def test_what_had_vanished_is_asked_for_as_well(place: Place) -> None:
    """
    The provider answered "not found" for one that was there: it was made again. The destroy tells
    of the first by its id, and asked for once more the provider has it: it is ours.
    """
    first = next(item.id for item in place.cloud.objects() if item.name == "web")
    place.cloud.arm("read", "web", "read_lies", -1)
    assert place.apply().code == 0
    place.cloud.disarm()

    destroyed = place.destroy()
    told = look(place)

    assert destroyed.code == 0
    assert [item["id"] for item in destroyed.row["released"]] == [first]
    assert told.code == 11
    assert (place.readbacks[SERVER]["ids"], place.readbacks[SERVER]["ownership"]) == (
        [first],
        "ours",
    )
    assert place.adopt(told).code == 0
    assert place.destroy().code == 0
    assert not place.cloud.objects()


def test_what_is_imported_by_another_id_than_its_own_is_adopted_by_that(
    project: Project, cloud: Cloud
) -> None:
    """
    A disk whose delete lied is imported by SERVER/DISK: the adoption by its own id fails once, then
    a person is asked for the other one, and the object that comes in is the one in doubt.
    """
    steps = """
        server: {module: ../modules/server, inputs: {name: host}}
        disk:
          module: ../fixtures/fakecloud/modules/disk
          inputs: {name: data, server_id: "${steps.server.outputs.id}"}
          absence_timeout: 1s
    """
    project.write("blueprints/asked.yaml", f"version: 1\nname: asked\nsteps:\n{steps}")
    project.copy("fixtures/fakecloud/modules")
    project.ok("apply", "asked", "--yes")
    (disk,) = cloud.disks()
    cloud.arm("delete", "data", "delete_lies")
    assert project.run("destroy", "asked", "--step", "disk", "--yes").code == 11

    def recommended() -> tuple[str, list[str]]:
        row = project.ok("recover", "asked", "--json").rows["disk"]
        commands = {item["action"]: item["command"] for item in row["actions"]}
        return row["recommended"], shlex.split(commands[row["recommended"]])[1:]

    by_own_id = recommended()
    refused = project.run(*by_own_id[1], "--yes")
    action, command = recommended()
    server = cloud.servers()[0].id
    words = [word.replace("=ID", f"={server}/{disk.id}") for word in command]
    adopted = project.run(*words, "--yes")

    assert (by_own_id[0], refused.code) == ("reconcile", 11), refused.said
    assert (action, adopted.code) == ("manual", 0), adopted.said
    record = project.record("disk")
    assert (record["status"], record["resources"]["in_doubt"]) == ("ok", [])
    assert [item["id"] for item in record["resources"]["inventory"]] == [disk.id]
