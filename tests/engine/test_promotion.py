"""
`apply --from-run`: the very modules of another environment's run, with this environment's inputs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: web
    inputs:
      name: {type: string, default: nobody}
    environments:
      staging: {inputs: {name: staging}}
      prod: {inputs: {name: prod}, protected: true}
    steps:
      first: {module: ../modules/thing, inputs: {name: "${inputs.name}"}}
      second: {module: ../modules/thing, inputs: {name: "${steps.first.outputs.value}"}}
"""
MODULE = """
    variable "name" { type = string }
    resource "terraform_data" "thing" {
      input = "VERSION ${var.name}"
    }
    output "value" { value = terraform_data.thing.output }
"""
CHECKS = """
    verify: [{command: {argv: [test, -n, "${outputs.value}"]}}]
"""


class Story:
    """
    Two versions in staging, the first one in prod although the files have gone on and are deleted;
    then runs that cannot be promoted.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        project.write("blueprints/web.yaml", BLUEPRINT)
        project.write("modules/thing/module.yaml", CHECKS)
        self._version("v1")
        self.staged = self._run("staging")
        self._version("v2")
        self.partly = self._run("staging", "--step", "first")
        shutil.rmtree(project.root / "modules")
        self.promoted = self._run("prod", "--from-run", self.run_id(self.staged))
        self.records = {step: self._records(step) for step in ("first", "second")}
        self.missing = self._run("prod", "--from-run", self.run_id(self.partly))
        self.unknown = self._run("prod", "--from-run", "20200101T000000000Z-abcdef")

    def _version(self, version: str) -> None:
        self.project.write("modules/thing/main.tf", MODULE.replace("VERSION", version))

    def _run(self, environment: str, *options: str) -> Ended:
        words = ("-e", environment, "--confirm", environment, "--yes", "--json")
        return self.project.run("apply", "web", *words, *options)

    def _records(self, step: str) -> dict[str, dict[str, Any]]:
        """
        The newest entry of the step in each environment.
        """
        entries = self.project.history(step)
        return {entry["target"]["environment"]: entry for entry in entries}

    @staticmethod
    def run_id(ended: Ended) -> str:
        found: str = ended.events[-1]["run_id"]
        return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Story:
    return Story(tmp_path_factory.mktemp("promotion"), engine)


def test_the_very_modules_are_promoted_with_the_inputs_of_here(story: Story) -> None:
    """
    What prod gets is what staging had in that run, by digest, although the module has changed since
    and is deleted; only the inputs are prod's own.
    """
    rows = {row["step"]: row for row in story.staged.events[-1]["steps"]}
    prod = {step: found["prod"] for step, found in story.records.items()}

    assert story.promoted.code == 0, story.promoted.said
    assert {s: r["module_digest"] for s, r in prod.items()} == {
        step: row["module_digest"] for step, row in rows.items()
    }
    assert prod["first"]["outputs"]["value"] == "v1 prod"
    assert prod["second"]["outputs"]["value"] == "v1 v1 prod"


def test_a_promotion_names_its_origin(story: Story) -> None:
    """
    Law: runs are never edited.
    The records of prod name the run of staging.
    """
    expected = {"kind": "promotion", "from_run": story.run_id(story.staged), "reason": None}

    assert story.records["second"]["prod"]["lineage"] == expected


def test_the_checks_of_the_module_come_with_it(story: Story) -> None:
    """
    A module's own checks are those of its `module.yaml` in the snapshot.
    """
    assert story.records["first"]["prod"]["verification"]["verdict"] == "verified"


def test_what_the_run_did_not_have_is_listed(story: Story) -> None:
    """
    A step that was not part of the run is refused by name, before anything is looked at here.
    """
    run = story.run_id(story.partly)

    assert story.missing.code == 4
    assert story.missing.document["reason"] == "not_in_run"
    assert story.missing.document["message"] == f"second was not part of run {run}"


def test_an_unknown_run_is_refused(story: Story) -> None:
    """
    There is no such run: nothing is guessed instead.
    """
    assert (story.unknown.code, story.unknown.document["reason"]) == (4, "unknown_run")
