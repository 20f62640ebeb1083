"""
`adopt`: provider state that plain Terraform made comes under records where it is as described.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine

MODULE = """
    variable "value" { type = string }
    resource "terraform_data" "object" { input = var.value }
    output "value" { value = terraform_data.object.output }
"""
BLUEPRINT = """
    version: 1
    name: found
    steps:
      same: {module: ../modules/object, inputs: {value: theirs}}
      other: {module: ../modules/object, inputs: {value: ours}}
      empty: {module: ../modules/object, inputs: {value: theirs}}
"""
#: Three roots that were made by hand, each with its state at a place of its own.
ROOTS = """
    version: 1
    name: roots
    steps:
      first:
        module: ../modules/object
        inputs: {value: theirs}
        backend: {type: local, config: {path: legacy/network.tfstate}}
      second:
        module: ../modules/object
        needs: [first]
        inputs: {value: ours}
        backend: {type: local, config: {path: legacy/deep/servers.tfstate}}
      third:
        module: ../modules/object
        inputs: {value: "${steps.second.outputs.value}"}
        backend: {type: local, config: {path: other/dns.tfstate}}
"""


def row(ended: Ended, step: str) -> dict[str, Any]:
    (found,) = (row for row in ended.events[-1]["steps"] if row["step"] == step)
    assert isinstance(found, dict)
    return found


def plain(project: Project, place: Path) -> Path:
    """
    The state of an object that plain Terraform made.
    """
    shutil.copytree(project.root / "modules/object", place)
    for words in (["init"], ["apply", "-auto-approve", "-var=value=theirs"]):
        subprocess.run(
            [project.environ["ORCHESTRATOR_ENGINE"], *words],
            cwd=place,
            env=project.environ,
            check=True,
            capture_output=True,
        )
    return place / "terraform.tfstate"


class Found:
    """
    A blueprint over states that plain Terraform made; its steps adopted and, one of them, taken
    through the rest of its life.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root / "project", engine=engine)
        project.write("modules/object/main.tf", MODULE)
        project.write("blueprints/found.yaml", BLUEPRINT)
        state = plain(project, root / "plain")
        for step in ("same", "other"):
            place = project.own / f"state/found/default/{step}.tfstate"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(state, place)
        self.refused = self._run("apply", "--yes", "--step", "same")
        self.before = project.entries("same")
        self.adopted = self._run("adopt")
        self.nothing = self._run("adopt", "--step", "empty")
        self.records = {step: project.history(step) for step in ("same", "other", "empty")}
        self.again = self._run("adopt", "--step", "same")
        self.applied = self._run("apply", "--yes", "--step", "same")
        self.after_apply = project.history("same")
        self.destroyed = self._run("destroy", "--yes", "--step", "same")

    def _run(self, verb: str, *more: str) -> Ended:
        return self.project.run(verb, "found", "--json", *more)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Found:
    return Found(tmp_path_factory.mktemp("adopt"), engine)


def test_state_without_a_record_is_not_applied(found: Found) -> None:
    """
    An apply over it is refused, records nothing, and names `adopt` (law: state moved without us).
    """
    assert found.refused.code == 4
    assert row(found.refused, "same")["error"]["code"] == "unrecorded_state"
    assert "orchestrator adopt" in row(found.refused, "same")["last_error"]
    assert found.before == []


def test_what_is_as_described_is_adopted(found: Found) -> None:
    """
    Where module and inputs describe it, the first entry is `ok`, with inventory and outputs; no
    mutation was marked.
    """
    (record,) = found.records["same"]

    assert row(found.adopted, "same")["status"] == "ok"
    assert record["status"] == "ok"
    assert [ref["address"] for ref in record["resources"]["inventory"]] == ["terraform_data.object"]
    assert record["outputs"] == {"value": "theirs"}


def test_what_is_not_as_described_is_refused(found: Found) -> None:
    """
    Other inputs: refused by that name, exit 4, no record.
    """
    assert found.adopted.code == 4
    assert row(found.adopted, "other")["error"]["code"] == "not_as_described"
    assert found.records["other"] == []


def test_where_nothing_is_nothing_is_adopted(found: Found) -> None:
    """
    Among many steps one whose state holds nothing is skipped; named by itself it is refused.
    """
    skipped = row(found.adopted, "empty")

    assert (skipped["status"], "holds nothing" in skipped["reason"]) == ("skipped", True)
    assert row(found.nothing, "empty")["error"]["code"] == "nothing_to_adopt"
    assert (found.nothing.code, found.records["empty"]) == (4, [])


def test_what_is_recorded_is_not_adopted_again(found: Found) -> None:
    """
    A step with a record is skipped, and its record is untouched.
    """
    assert found.again.code == 0
    assert row(found.again, "same")["status"] == "skipped"


def test_an_adopted_step_lives_on_like_any_other(found: Found) -> None:
    """
    An apply finds nothing to do and marks no mutation; a destroy ends `destroyed`.
    """
    assert (found.applied.code, found.destroyed.code) == (0, 0)
    assert [entry["status"] for entry in found.after_apply] == ["ok", "ok"]
    assert found.project.record("same")["status"] == "destroyed"


def test_roots_made_by_hand_come_under_one_blueprint(project: Project, tmp_path: Path) -> None:
    """
    Each step names where its state lies. What is as described is `ok`; what an apply would change
    is refused, and with a reason `error`, unapplied, exit 0, with the reason: its outputs are there
    for the steps that need them. The apply makes all `ok`, in place.
    """
    project.write("modules/object/main.tf", MODULE)
    project.write("blueprints/roots.yaml", ROOTS)
    places = ("legacy/network", "legacy/deep/servers", "other/dns")
    for place in places:  # each root was applied on its own: a copied state would be another's
        file = project.root / f"{place}.tfstate"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plain(project, tmp_path / "plain" / place), file)

    refused = project.run("adopt", "roots", "--json")
    accepted = project.run("adopt", "roots", "--json", "--accept-changes", "ticket 7")

    assert (refused.code, row(refused, "second")["error"]["code"]) == (4, "not_as_described")
    assert row(refused, "third")["blocked_by"] == ["second"]
    assert (accepted.code, row(accepted, "first")["status"]) == (0, "skipped")
    records = {step: project.record(step) for step in ("first", "second", "third")}
    assert [record["status"] for record in records.values()] == ["ok", "error", "ok"]
    assert [record["provider_state"]["location"] for record in records.values()] == [
        f"{place}.tfstate" for place in places
    ]
    fault = records["second"]["error"]
    assert (fault["code"], fault["phase"]) == ("unapplied", "surgery")
    assert "update terraform_data.object; accepted: ticket 7" in fault["summary"]

    project.ok("apply", "roots", "--yes")

    for step in ("second", "third"):
        last = project.record(step)
        assert (last["status"], last["outputs"]) == ("ok", {"value": "ours"})
        assert last["resources"]["updated"] == ["terraform_data.object"]
        assert last["resources"]["inventory"] == records[step]["resources"]["inventory"]


def test_no_record_is_not_never_run(project: Project) -> None:
    """
    The records are gone, the provider states are not: `status` and `recover` say "no record here"
    and name what looks and what adopts; `plan` names the exact `adopt`. What is recommended is not
    refused: it takes all that is there, and skips what is not.
    """
    project.write("modules/object/main.tf", MODULE)
    blueprint = """
        version: 1
        name: found
        backend: {type: local, config: {path: "states/${step.name}.tfstate"}}
        steps:
          one: {module: ../modules/object, inputs: {value: theirs}}
          two: {module: ../modules/object, inputs: {value: theirs}}
          new: {module: ../modules/object, inputs: {value: theirs}}
        """
    project.write("blueprints/found.yaml", blueprint)
    project.ok("apply", "found", "--step", "one", "--step", "two", "--yes")
    shutil.rmtree(project.own)

    status, advice = (
        project.ok(verb, "found", "--json").document for verb in ("status", "recover")
    )
    screens = [project.ok(verb, "found").out for verb in ("status", "recover")]
    planned = project.run("plan", "found")
    refused = project.run("apply", "found", "--yes")
    after = project.ok("recover", "found", "--json").document
    commands = [item["command"] for item in after["next"]]
    adopted = project.ok(*commands[0].split()[1:], "--yes", "--json")

    offered = ["orchestrator plan found", "orchestrator adopt found"]
    assert [item["command"] for item in status["next"]] == offered
    assert [item["command"] for item in advice["next"]] == offered
    assert [row["recommended"] for row in advice["steps"]] == [None, None, None]
    for screen in screens:
        assert screen.count("no record here") >= 3
        assert "none of it exists" not in screen
    assert "`orchestrator adopt found --step one`" in " ".join(planned.out.split())
    assert refused.code == 4
    assert commands == ["orchestrator adopt found --step one --step two"]
    assert adopted.statuses == {"one": "ok", "two": "ok"}


def test_what_another_target_has_is_named(project: Project) -> None:
    """
    The state is another one, and holds an object that is recorded already: a destroy of either
    takes it from the other.
    """
    project.write("modules/object/main.tf", MODULE)
    step = "{module: ../modules/object, inputs: {value: theirs}}"
    for name in ("mine", "copied"):
        text = f"version: 1\nname: {name}\nsteps: {{one: {step}}}\n"
        project.write(f"blueprints/{name}.yaml", text)
    project.ok("apply", "mine", "--yes")
    place = project.own / "state/copied/default/one.tfstate"
    place.parent.mkdir(parents=True)
    state = json.loads((project.own / "state/mine/default/one.tfstate").read_text())
    place.write_text(json.dumps({**state, "lineage": "11111111-2222-3333-4444-555555555555"}))

    said = " ".join(project.ok("adopt", "copied", "--yes").said.replace("one │", "").split())

    assert "is terraform_data.object of mine/default/one already" in said
