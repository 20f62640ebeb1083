"""
Law: state moved without us.
Provider state that changed without us, told on one target whose state and objects are
moved behind the tool's back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud, Root, environment, find_program, install
from tests.engine.clouds import attached
from tests.project import Ended, Project, every_engine

pytestmark = pytest.mark.engine

STEP = "servers"
BLUEPRINT = "blueprints/web.yaml"
TEXT = """
    version: 1
    name: {name}
    backend:
      type: local
      config: {{path: "${{inputs.place}}/${{blueprint.name}}.tfstate"}}
    providers:
      fakecloud: {{region: "${{inputs.region}}"}}
    inputs:
      region: {{type: string, default: here}}
      place: {{type: string, default: states}}
    steps:
      servers:
        module: ../modules/servers
"""
#: Without outputs: the plan of a destroy that finds nothing has nothing at all to do.
MODULE = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }

    resource "fakecloud_server" "this" {
      for_each = toset(["first", "second"])
      name     = each.key
    }
"""
ACCEPTED = ("--accept-vanished", "the account was cleaned up")


@dataclass(frozen=True, slots=True)
class Act:
    """
    A call of the tool: how it ended, what it had the cloud do, and the entries around it.
    """

    ended: Ended
    before: list[str]
    after: list[str]
    deeds: list[tuple[str, str | None]]
    state_touched: bool

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.after[-1])
        return found

    @property
    def notes(self) -> list[str]:
        return [event["message"] for event in self.ended.events if event["type"] == "note"]

    @property
    def refusal(self) -> str:
        """
        The reason code for which the step was refused, with nothing touched; "" otherwise.
        """
        row = self.ended.events[-1]["steps"][0]
        untouched = self.after == self.before and not self.deeds and not self.state_touched
        return row["error"]["code"] if self.ended.code == 4 and untouched else ""


class Story:
    """
    One target, and everything that others do to it.
    """

    def __init__(self, root: Path, cloud: Cloud, engine: str) -> None:
        self.cloud = cloud
        self.project = Project(root, engine=engine)
        self.state = root / "states/web.tfstate"
        self.project.write("modules/servers/main.tf", MODULE)
        self.project.write(BLUEPRINT, TEXT.format(name="web"))

    def tell(self) -> None:
        """
        Act after act; each begins where the one before ended.
        """
        self.applied = self._apply()
        self._edit(serial=lambda serial: serial + 5)
        self.moved = self._apply()
        good = self.state.read_bytes()
        self._edit(serial=lambda serial: serial - 1)
        self.gone_back = self._apply()
        self.advised_back = self._advised()
        self.reconciled = self._act("reconcile", BLUEPRINT, "--json")
        self._edit(lineage=lambda lineage: f"not-{lineage}")
        self.other_lineage = self._apply()
        self.advised_lineage = self._advised()
        self.state.unlink()
        self.no_state = self._apply()
        self.state.write_bytes(good)
        self.other_place = self._apply("-i", "place=elsewhere")
        self.wrong_region = self._apply("-i", "region=there")
        self.destroy_in_wrong_region = self._destroy("-i", "region=there")
        self.plan_in_wrong_region = self.project.run(
            "plan", BLUEPRINT, "--destroy", "--json", "-i", "region=there"
        )
        self.cloud.delete_out_of_band("second")
        self.one_vanished = self._apply()
        self._delete_all()
        self.vanished = self._apply()
        self.accepted = self._apply(*ACCEPTED)
        self._delete_all()
        self.destroy_of_vanished = self._destroy()
        self.accepted_destroy = self._destroy(*ACCEPTED)
        self.new_start = self._apply()
        self.project.write("blueprints/taken.yaml", TEXT.format(name="taken"))
        shutil.copy(self.state, self.state.with_name("taken.tfstate"))
        self.unrecorded = self._act("apply", "blueprints/taken.yaml", "--yes", "--json")
        self.cloud.delete_out_of_band("second")
        self.destroy_beside_vanished = self._destroy()

    def _advised(self) -> tuple[str, str]:
        row = self.project.ok("recover", BLUEPRINT, "--json").document["steps"][0]
        return row["situation"], row["recommended"]

    def _apply(self, *more: str) -> Act:
        return self._act("apply", BLUEPRINT, "--yes", "--json", *more)

    def _destroy(self, *more: str) -> Act:
        return self._act("destroy", BLUEPRINT, "--yes", "--json", *more)

    def _act(self, *arguments: str) -> Act:
        before, deeds = self.project.entries(STEP), len(self.cloud.calls())
        state = self.state.read_bytes() if self.state.exists() else None
        ended = self.project.run(*arguments)
        return Act(
            ended,
            before,
            self.project.entries(STEP),
            [
                (call.op, call.name)
                for call in self.cloud.calls()[deeds:]
                if call.op in ("create", "update", "delete")
            ],
            state != (self.state.read_bytes() if self.state.exists() else None),
        )

    def _edit(self, **changes: Any) -> None:
        data = json.loads(self.state.read_text())
        for name, change in changes.items():
            data[name] = change(data[name])
        self.state.write_text(json.dumps(data))

    def _delete_all(self) -> None:
        for server in self.cloud.servers():
            self.cloud.delete_out_of_band(server.id)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Story]:
    """
    The whole story, told once.
    """
    root = tmp_path_factory.mktemp("moved")
    cloud = Cloud(root / "cloud.db")
    story = Story(root / "project", cloud, engine)
    with attached(story.project, cloud, root):
        story.tell()
        yield story


def test_a_moved_serial_is_told_and_recorded(story: Story) -> None:
    """
    Provider state that others have moved on is noted, and the record is bound to the new serial.
    """
    bound = story.applied.record["provider_state"]

    assert story.moved.ended.code == 0
    assert any("without this tool" in note for note in story.moved.notes)
    assert story.moved.record["provider_state"]["serial"] == bound["serial"] + 5


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("gone_back", "serial_back"),
        ("other_lineage", "lineage"),
        ("other_place", "backend_changed"),
        ("unrecorded", "state_of_another"),
    ],
)
def test_another_state_than_the_recorded_one_is_refused(story: Story, act: str, code: str) -> None:
    """
    A serial that went back, another lineage, another place, a state that another target is bound
    to: refused by that name, with neither objects, state nor record touched.
    """
    assert getattr(story, act).refusal == code


def test_recover_agrees_that_it_is_another_state(story: Story) -> None:
    """
    What is refused is not offered, although the step reads ok: the state comes first.
    """
    assert story.advised_back == ("state_back", "reconcile")
    assert story.advised_lineage == ("state_replaced", "manual")


def test_a_state_that_is_missing_is_a_doubt(story: Story) -> None:
    """
    An apply over no state at all ends 11 with neither objects nor record touched.
    """
    act = story.no_state

    assert act.ended.code == 11
    assert (act.deeds, act.after) == ([], act.before)


def test_reconcile_takes_an_older_state_down(story: Story) -> None:
    """
    A restored older state is accepted by `reconcile`, which records its serial.
    """
    bound = story.moved.record["provider_state"]

    assert story.reconciled.ended.code == 0
    assert story.reconciled.record["provider_state"]["serial"] == bound["serial"] - 1


@pytest.mark.parametrize(
    "act", ["wrong_region", "destroy_in_wrong_region", "vanished", "destroy_of_vanished"]
)
def test_nothing_is_mutated_while_everything_has_vanished(story: Story, act: str) -> None:
    """
    Where the refresh finds none of the recorded objects, apply and destroy are refused: it may be
    the wrong region, and they may be alive.
    """
    assert getattr(story, act).refusal == "vanished"


def test_a_plan_says_that_everything_has_vanished(story: Story) -> None:
    """
    The plan of a destroy in the wrong region does not say that nothing is left to do.
    """
    ended = story.plan_in_wrong_region
    (row,) = ended.document["steps"]

    assert ended.code == 4
    assert (row["status"], row["error"]["code"]) == ("failed", "vanished")


def test_one_vanished_object_is_made_again(story: Story) -> None:
    """
    While others of the target are seen, what has vanished is really gone: the apply goes on.
    """
    assert story.one_vanished.ended.code == 0
    assert story.one_vanished.deeds == [("create", "second")]


def test_an_accepted_loss_is_applied_again(story: Story) -> None:
    """
    With --accept-vanished the apply makes everything again; the run record keeps the reason.
    """
    act = story.accepted
    run = json.loads((Path(act.ended.events[-1]["directory"]) / "run.json").read_text())

    assert act.ended.code == 0
    assert set(act.deeds) == {("create", "first"), ("create", "second")}
    assert run["arguments"]["accept_vanished"] == ACCEPTED[1]


def test_an_accepted_loss_is_absent_after_a_destroy(story: Story) -> None:
    """
    What we did not destroy ourselves is `absent`, and its provider state is emptied, so that a new
    start is possible.
    """
    act = story.accepted_destroy

    assert (act.ended.code, act.record["status"], act.deeds) == (0, "absent", [])
    assert story.new_start.ended.code == 0
    assert story.new_start.record["status"] == "ok"


def test_what_vanished_beside_others_counts_as_gone(story: Story) -> None:
    """
    An object that vanished before the destroy is gone where the same provider configuration still
    saw others of the target: the rest is destroyed, and all of it is `destroyed`.
    """
    act = story.destroy_beside_vanished

    assert (act.ended.code, act.record["status"]) == (0, "destroyed")
    assert act.deeds == [("delete", "first")]
    assert {item["address"] for item in act.record["absence"]["checked"]} == {
        'fakecloud_server.this["first"]',
        'fakecloud_server.this["second"]',
    }


@every_engine
def test_the_plan_of_a_destroy_tells_of_no_drift(tmp_path: Path, engine: str) -> None:
    """
    What `check_vanished` rests on: an apply's plan reports what vanished as drift, a destroy's plan
    leaves it out of what it would delete, and applying that empties the state.
    """
    program = find_program(engine)
    assert program is not None
    cloud = Cloud(tmp_path / "cloud.db")
    root = Root(tmp_path / "root", program, environment(install(tmp_path / "mirror"), cloud))
    with cloud.attached() as reattach:
        root.env["TF_REATTACH_PROVIDERS"] = reattach
        root.write(
            """
            terraform {
              required_providers {
                fakecloud = { source = "test/fakecloud" }
              }
            }
            resource "fakecloud_server" "this" { name = "only" }
            """
        )
        root.init()
        assert root.apply().code == 0
        cloud.delete_out_of_band("only")

        normal, destroy = root.plan(), root.plan("-destroy", "-out=plan")

        assert [e["change"]["action"] for e in normal.of("resource_drift")] == ["delete"]
        assert not destroy.of("resource_drift") and not destroy.of("planned_change")
        assert root.run("apply", "-json", "plan").code == 0
        assert root.resources() == {}


@pytest.mark.parametrize("act", ["apply", "reconcile", "destroy"])
def test_what_stands_in_the_state_of_a_destroyed_target_is_told_until_it_is_adopted(
    project: Project, act: str
) -> None:
    """
    Law: nothing drops out of sight.
    Restored, or made by others: whichever command was refused for it, status and recover tell of
    it, nothing passes for destroyed, and what is offered is not refused for it again.
    """
    project.write("modules/object/main.tf", 'resource "terraform_data" "object" {}\n')
    steps = "{thing: {module: ../modules/object}}"
    project.write("blueprints/back.yaml", f"version: 1\nname: back\nsteps: {steps}\n")
    project.prepare("apply", "back", "--yes")
    state = project.own / "state/back/default/thing.tfstate"
    held = json.loads(state.read_text())
    project.prepare("destroy", "back", "--yes")
    state.write_text(json.dumps(held | {"serial": json.loads(state.read_text())["serial"] + 1}))

    refused = project.run(act, "back", "--yes")
    expected = project.run("status", "back", "--expect", "destroyed")
    document = project.ok("recover", "back", "--json").document
    adopted = project.run("adopt", "back", "--step", "thing", "--yes")

    assert refused.code == 4, refused.said
    assert expected.code == 4 and f"{act} failed" in expected.said, expected.said
    assert [item["command"].split()[1] for item in document["next"]] == ["adopt"]
    assert document["steps"][0]["recommended"] is None
    assert (adopted.code, project.record("thing")["status"]) == (0, "ok"), adopted.said
