"""
`retry`, `redeploy` and `rollback` on real Terraform: what is done again is what was meant then,
whatever has become of the files, and on another machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine

STEPS = ("network", "server", "dns")
MODULE = """
    variable "value" { type = string }
    variable "hindrance" {
      type    = string
      default = ""
    }
    variable "secret" {
      type      = string
      default   = ""
      sensitive = true
    }
    resource "terraform_data" "object" { input = "VERSION ${var.value}" }
    resource "terraform_data" "hindered" {
      input = terraform_data.object.output
      provisioner "local-exec" { command = "test ! -e '${var.hindrance}'" }
    }
    output "value" { value = terraform_data.object.output }
"""
CHECKS = """
    verify:
      - command: {argv: [test, -n, "${outputs.value}"]}
"""
BLUEPRINT = """
    version: 1
    name: web
    inputs:
      name: {type: string, default: NAME}
      password: {type: string, sensitive: true}
    steps:
      network: {module: ../modules/thing, inputs: {value: "${inputs.name}"}}
      server:
        module: ../modules/thing
        inputs:
          value: "${steps.network.outputs.value}"
          hindrance: HINDRANCE
          secret: "${inputs.password}"
      dns: {module: ../modules/thing, inputs: {value: "${steps.server.outputs.value}"}}
"""


class Files:
    """
    The project's files in versions that can be told apart by the outputs.
    """

    def __init__(self, project: Project, hindrance: Path) -> None:
        self._project = project
        self._hindrance = hindrance

    def write(self, version: str) -> None:
        project = self._project
        project.write("modules/thing/main.tf", MODULE.replace("VERSION", version))
        project.write("modules/thing/module.yaml", CHECKS)
        text = BLUEPRINT.replace("HINDRANCE", str(self._hindrance))
        project.write("blueprints/web.yaml", text.replace("NAME", f"name-{version}"))

    def remove(self) -> None:
        for name in ("modules", "blueprints"):
            shutil.rmtree(self._project.root / name)


def value(version: str, depth: int) -> str:
    """
    The output of a step: its own version before that of each step above it.
    """
    return " ".join([version] * depth + [f"name-{version}"])


class Story:
    """
    An apply that fails in the middle; its files change; it is retried, here and from another
    machine; the new files are applied; everything is deleted; the retried run is rolled back to.
    """

    def __init__(self, root: Path, engine: str) -> None:
        hindrance = root / "hindrance"
        self.project = project = Project(root / "project", engine=engine)
        project.environ["ORCHESTRATOR_INPUT_password"] = "of-that-day"
        files = Files(project, hindrance)
        files.write("v1")
        hindrance.touch()
        self.failed = self._run("apply")
        self.failed_records = {step: project.entries(step) for step in STEPS}
        files.write("v2")
        hindrance.unlink()
        self.elsewhere = self._elsewhere(root / "elsewhere", engine)
        self.changed = self._run("retry", password="of-today")
        self.misnamed = self._run(
            "retry", "--accept-changed-secret", "pasword", password="of-today"
        )
        self.retried = self._run("retry", "--reason", "the disk is there now")
        self.retried_records = {step: project.history(step) for step in STEPS}
        self.shown = {
            "status": project.ok("status", "web").out,
            "runs": project.ok("runs").out,
            "run": project.ok("runs", "show", self.run_id(self.retried)).out,
            "history": project.ok("history", "web/default/dns").out,
        }
        self.nothing_left = self._run("retry")
        self.redeployed = self._run("redeploy", "--from-run", self.run_id(self.failed))
        self.outputs_redeployed = self._outputs()
        files.remove()
        retried = ("--to", self.run_id(self.retried), "--reason", "v2 is slow")
        self.to_failed = self._run(
            "rollback", "--to", self.run_id(self.failed), "--reason", "to the failed one"
        )
        self.without_reason = self._run("rollback", "--to", self.run_id(self.retried))
        self.rolled_back = self._run("rollback", *retried)
        self.outputs_rolled_back = self._outputs()
        self.rolled_back_records = {step: project.record(step) for step in STEPS}

    def _run(self, verb: str, *options: str, password: str = "of-that-day") -> Ended:
        environ = {"ORCHESTRATOR_INPUT_password": password}
        return self.project.run(verb, "web", "--yes", "--json", *options, environ=environ)

    def _elsewhere(self, root: Path, engine: str) -> tuple[Ended, Ended, dict[str, Any]]:
        """
        The retry on a machine that has the operation store and the provider state, nothing else.
        """
        project = Project(root, engine=engine)
        for name in ("operations.db", "state"):
            source, place = self.project.own / name, project.own / name
            place.parent.mkdir(exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
        project.environ["ORCHESTRATOR_INPUT_password"] = "of-that-day"
        other = {"ORCHESTRATOR_KEY": "ab" * 32}
        refused = project.run("retry", "web", "--yes", "--json", environ=other)
        ended = project.run("retry", "web", "--yes", "--json")
        return refused, ended, {step: project.record(step) for step in STEPS}

    def _outputs(self) -> list[str]:
        return [self.project.record(step)["outputs"]["value"] for step in STEPS]

    @staticmethod
    def run_id(ended: Ended) -> str:
        found: str = ended.events[-1]["run_id"]
        return found


@pytest.fixture(scope="module")
def story(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("rerun"), engine)


def statuses(ended: Ended) -> list[str]:
    return [row["status"] for row in ended.events[-1]["steps"]]


def test_a_retry_uses_what_the_failed_run_had(story: Story) -> None:
    """
    Module and inputs of the failed run, although both files have changed since; a step that never
    ran in it is done from its frozen snapshot too.
    """
    newest = {step: entries[-1] for step, entries in story.retried_records.items()}

    assert statuses(story.failed) == ["ok", "error", "pending"]
    assert story.retried.code == 0, story.retried.said
    assert [newest[s]["outputs"]["value"] for s in STEPS] == [value("v1", n) for n in (1, 2, 3)]
    assert len({record["module_digest"] for record in newest.values()}) == 1


def test_a_retry_leaves_alone_what_is_still_ok(story: Story) -> None:
    """
    What the failed run had brought to its end is not touched: its record stays as it was, byte by
    byte.
    """
    assert statuses(story.retried) == ["skipped", "ok", "ok"]
    assert [json.loads(text) for text in story.failed_records["network"]] == (
        story.retried_records["network"]
    )


def test_a_retry_is_a_new_run_that_names_its_origin(story: Story) -> None:
    """
    Law: runs are never edited.
    Lineage and reason are in the run's record, in every entry that it wrote, and on screen.
    """
    lineage = {
        "kind": "retry",
        "from_run": story.run_id(story.failed),
        "reason": "the disk is there now",
    }
    directory = Path(story.retried.events[-1]["directory"])
    entries = [entry["lineage"] for entry in story.retried_records["server"]]

    assert json.loads((directory / "run.json").read_text())["lineage"] == lineage
    assert entries == [None, None, lineage, lineage]
    said = f"retry of run {lineage['from_run']} ({lineage['reason']})"
    for name, text in story.shown.items():
        assert said in " ".join(text.split()), name


def test_a_changed_secret_must_be_accepted(story: Story) -> None:
    """
    Secrets are those of today; where one differs the retry is refused by name, and
    nothing is mutated.
    """
    (error,) = [e for e in story.changed.events if e["type"] == "run_finished"]

    assert story.changed.code == 4
    assert "password" in error["error"]
    assert "--accept-changed-secret password" in error["hint"]
    assert statuses(story.changed) == ["pending"] * 3
    assert story.misnamed.code == 3
    assert "had no such secret" in story.misnamed.said, story.misnamed.said[-1500:]
    offered = [item["command"].split()[1] for item in story.misnamed.events[-1]["next"]]
    assert "retry" not in offered  # it would be refused again


def test_another_machine_can_retry(story: Story) -> None:
    """
    With the operation store and the provider state, and neither blueprint nor modules nor the run's
    files, the retry does the same: the project key lies in the store. Digests of another key prove
    nothing of a secret.
    """
    refused, ended, records = story.elsewhere

    assert refused.code == 4
    assert "ORCHESTRATOR_KEY" in refused.events[-1]["error"]
    assert ended.code == 0, ended.said
    assert statuses(ended) == ["skipped", "ok", "ok"]
    assert records["dns"]["outputs"]["value"] == value("v1", 3)


def test_where_nothing_failed_nothing_is_retried(story: Story) -> None:
    """
    No run is guessed: after a retry that ended well there is none to be named.
    """
    assert story.nothing_left.code == 4
    assert story.nothing_left.events[-1]["reason"] == "unknown_run"


def test_a_redeploy_uses_what_is_there_now(story: Story) -> None:
    """
    Blueprint, module and inputs of today, as a new attempt that names the run it comes after.
    """
    assert story.redeployed.code == 0, story.redeployed.said
    assert story.outputs_redeployed == [value("v2", n) for n in (1, 2, 3)]
    assert story.redeployed.events[0]["lineage"] == {
        "kind": "redeploy",
        "from_run": story.run_id(story.failed),
        "reason": None,
    }


def test_a_rollback_needs_no_source(story: Story) -> None:
    """
    Modules and blueprint are deleted: a rollback to a verified run applies what that run had, and
    checks it again. A step that the run had left alone, because it was done by the run that it
    repeats, goes back as well.
    """
    records = story.rolled_back_records

    assert story.rolled_back.code == 0, story.rolled_back.said
    assert statuses(story.rolled_back) == ["ok"] * 3
    assert story.outputs_rolled_back == [value("v1", n) for n in (1, 2, 3)]
    assert {r["verification"]["verdict"] for r in records.values()} == {"verified"}
    assert {r["lineage"]["kind"] for r in records.values()} == {"rollback"}


def test_a_rollback_goes_to_what_ended_well_and_says_why(story: Story) -> None:
    """
    A run in which a step failed is no place to go back to; without a reason nobody goes anywhere.
    """
    to_failed = story.to_failed.events[-1]

    assert story.to_failed.code == 4
    assert "server is `error`" in to_failed["error"]
    assert "dns is `pending`" in to_failed["error"]
    assert story.without_reason.code == 4
    assert story.without_reason.events[-1]["reason"] == "reason_missing"
