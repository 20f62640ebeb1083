"""
Children that a parent owns: they go with it and are recorded so, never before it is confirmed gone
(law: children follow parents).
"""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import attached
from tests.project import Project

pytestmark = pytest.mark.engine

#: ``disk`` lives in ``server``, and its provider is configured from it; ``label``, as far as the
#: tool is told, lives in the disk.
BLUEPRINT = """
    version: 1
    name: nested
    steps:
      server:
        module: ../modules/server
        inputs: {name: web}
      disk:
        module: ../modules/disk
        owned_by: server
        inputs: {server_id: "${steps.server.outputs.id}"}
        providers:
          fakecloud: {token: "${steps.server.outputs.address}"}
      label:
        module: ../fixtures/shared/object
        owned_by: disk
        needs: [disk]
        inputs: {name: label}
      report:
        module: ../fixtures/shared/object
        needs: [disk]
        inputs: {name: report}
"""


@pytest.fixture
def nested(project: Project, tmp_path: Path) -> Iterator[Cloud]:
    """
    The blueprint applied, and the cloud it lives in.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    project.copy("fixtures/fakecloud/modules", "fixtures/shared")
    shutil.move(project.root / "fixtures/fakecloud/modules", project.root / "modules")
    project.write("blueprints/nested.yaml", BLUEPRINT)
    with attached(project, cloud, tmp_path):
        project.prepare("apply", "nested", "--yes")
        yield cloud


def provider_state(project: Project, step: str) -> dict[str, Any]:
    path = project.own / f"state/nested/default/{step}.tfstate"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_child_goes_with_its_parent(project: Project, nested: Cloud) -> None:
    """
    The eighth contract case: the child is unreachable once its parent is gone, so its engine is
    never asked; its provider state is saved, emptied, and its record says how it is known gone.
    """
    before = provider_state(project, "disk")
    disk = nested.disks()[0].id

    ended = project.run("destroy", "nested", "--yes", "--json")

    assert ended.code == 0, ended.said
    assert nested.objects() == ()
    gone_at = nested.calls("delete", "web")[-1].time
    assert [c.op for c in nested.calls(name="data") if c.time > gone_at] == []
    absence = {step: row["absence"] for step, row in ended.rows.items()}
    assert {step: found["method"] for step, found in absence.items()} == {
        "server": "provider", "disk": "parent", "label": "parent", "report": "provider",
    }  # fmt: skip
    (checked,) = absence["disk"]["checked"]
    assert (checked["address"], checked["id"]) == ("fakecloud_disk.this", disk)
    assert (checked["state"], checked["why"]) == ("gone", None)
    marker, outcome = project.history("disk")[-2:]
    assert (marker["status"], marker["active_command"]) == ("running", "destroy")
    (forgotten,) = marker["resources"]["planned"]
    assert (forgotten["address"], forgotten["action"]) == ("fakecloud_disk.this", "forget")
    assert (outcome["status"], outcome["outputs"]) == ("destroyed", {})
    assert marker["updated_at"] >= project.record("server")["updated_at"]
    after = provider_state(project, "disk")
    assert (after["lineage"], after["resources"]) == (before["lineage"], [])
    assert after["serial"] > before["serial"]
    saved = Path(ended.events[-1]["directory"]) / "steps/disk/1/saved.tfstate"
    assert json.loads(saved.read_text())["resources"] == before["resources"]
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_what_went_with_its_parent_can_be_made_again(project: Project, nested: Cloud) -> None:
    """
    After the destroy an apply makes everything anew, once.
    """
    project.ok("destroy", "nested", "--yes")

    project.prepare("apply", "nested", "--yes")

    assert sorted(o.name for o in nested.objects()) == ["data", "web"]
    assert {row["status"] for row in project.steps("nested").values()} == {"ok"}


def test_a_parent_that_stays_keeps_its_children(project: Project, nested: Cloud) -> None:
    """
    Where the parent's destroy fails its children's records are byte-identical and they are
    `pending`, blocked by it; the next destroy takes all down.
    """
    nested.arm("delete", "web", "delete_fails")
    before = project.entries("disk"), project.entries("label")

    failed = project.run("destroy", "nested", "--yes", "--json")
    after = project.entries("disk"), project.entries("label")
    project.ok("destroy", "nested", "--yes")

    found = failed.rows
    assert failed.code == 10, failed.said
    assert after == before
    assert {s: (r["status"], r["blocked_by"]) for s, r in found.items() if s != "report"} == {
        "server": ("error", []),
        "disk": ("pending", ["server"]),
        "label": ("pending", ["server", "disk"]),
    }
    assert nested.objects() == ()
    assert project.status("nested")["verdict"] == "destroyed"


def test_a_child_can_be_destroyed_alone(project: Project, nested: Cloud) -> None:
    """
    While its parent lives and is not selected a child is destroyed by its engine, and what it owns
    goes with it.
    """
    ended = project.run("destroy", "nested", "--yes", "--json", "-s", "disk", "-s", "report")

    found = ended.rows
    assert ended.code == 0, ended.said
    assert [o.name for o in nested.objects()] == ["web"]
    assert {step: row["absence"]["method"] for step, row in found.items()} == {
        "disk": "provider", "label": "parent", "report": "provider",
    }  # fmt: skip
    assert project.record("server")["status"] == "ok"


def test_a_selected_parent_takes_its_children_along(project: Project, nested: Cloud) -> None:
    """
    The children are part of the run and of its plan though only the parent was named; one that is
    excluded, and any other dependent, would be left without its upstream: refused.
    """
    excluded = project.run("destroy", "nested", "--yes", "-s", "server", "--exclude", "disk")
    dependent = project.run("destroy", "nested", "--yes", "-s", "server")
    plan = project.ok("plan", "nested", "--destroy", "--json", "-s", "server", "-s", "report")
    destroyed = project.run("destroy", "nested", "--yes", "-s", "server", "-s", "report")

    planned = {row["step"]: row for row in plan.document["steps"]}
    assert (excluded.code, dependent.code, destroyed.code) == (4, 4, 0)
    assert "disk needs server" in excluded.said
    assert "report needs" in dependent.said
    assert list(planned) == ["report", "server", "disk", "label"]
    (forgotten,) = planned["disk"]["actions"]
    assert (forgotten["address"], forgotten["action"]) == ("fakecloud_disk.this", "forget")
    assert "goes with server" in planned["disk"]["reason"]
    assert "goes with server, which owns it" in destroyed.said
    assert project.status("nested")["verdict"] == "destroyed"


def test_only_what_was_made_inside_a_parent_goes_with_it(project: Project, nested: Cloud) -> None:
    """
    A step that is declared to be owned, and was not applied so, is destroyed by itself and before
    the parent: its objects may outlive it.
    """
    loose = BLUEPRINT.replace("        owned_by: disk\n", "")
    owned = loose.replace(
        "needs: [disk]\n        inputs: {name: rep",
        "owned_by: disk\n" + ("        needs: [disk]\n        inputs: {name: rep"),
    )
    project.write("blueprints/nested.yaml", owned)

    ended = project.run("destroy", "nested", "--yes", "--json")

    found = {step: row["absence"]["method"] for step, row in ended.rows.items()}
    assert ended.code == 0, ended.said
    assert found == {
        "server": "provider",
        "disk": "parent",
        "label": "provider",
        "report": "provider",
    }


def test_a_parent_that_only_says_it_is_gone_keeps_its_children(
    project: Project, nested: Cloud
) -> None:
    """
    Law: children follow parents.
    With the provider asked: the engine and the provider state say that the parent is gone,
    the provider still has it, so the child's record stays as it is; it goes once the parent is
    confirmed gone.
    """
    nested.arm("delete", "web", "delete_lies")
    before = project.entries("disk")
    destroy = ("destroy", "nested", "--yes", "--json", "--verify", "provider")
    patient = BLUEPRINT.replace("    steps:\n", "    absence_timeout: 1s\n    steps:\n")
    project.write("blueprints/nested.yaml", patient)

    lied = project.run(*destroy)
    after = project.entries("disk")
    nested.delete_out_of_band("web")
    gone = project.run(*destroy)

    assert (lied.code, gone.code) == (11, 0), lied.said + gone.said
    assert lied.rows["server"]["error"]["code"] == "remaining"
    assert (lied.rows["disk"]["status"], after) == ("pending", before)
    assert gone.rows["disk"]["absence"]["method"] == "parent"
    assert nested.objects() == ()
