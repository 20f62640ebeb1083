"""
A gate: one verdict and one exit code over the blueprint, its records, the plan and the policy;
every reason with what can be done about it; nothing changed, no lock taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

import pytest

from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Project, finish

pytestmark = pytest.mark.engine

MODULE = """
    variable "value" { type = string }
    variable "command" {
      type    = string
      default = ":"
    }
    resource "terraform_data" "this" {
      input = var.value
      provisioner "local-exec" { command = var.command }
    }
"""
BLUEPRINT = """
    version: 1
    name: shop
    inputs:
      value: {type: string, default: one}
      command: {type: string, default: ":"}
    policy: {no_destroy: [terraform_data.kept]}
    steps:
      first:
        module: ../modules/m
        inputs: {value: "${inputs.value}", command: "${inputs.command}"}
      second: {module: ../modules/m, inputs: {value: fixed}, needs: [first]}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/m/main.tf", MODULE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    return project


def digests(project: Project) -> dict[str, str]:
    """
    What is recorded and what the provider state holds.
    """
    files = [*project.own.glob("operations.db*"), *project.own.rglob("*.tfstate")]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def reasons(document: dict[str, object]) -> list[tuple[str, str, str]]:
    found = document["reasons"]
    assert isinstance(found, list)
    return [(item["code"], item["severity"], item["step"]) for item in found]


def test_nothing_to_say_is_a_pass_and_changes_nothing(project: Project) -> None:
    """
    Reading changes nothing, with a lock of somebody else on the provider state as well.
    """
    project.ok("apply", "shop", "--yes")
    before = digests(project)
    with (project.own / "state/shop/default/first.tfstate").open("r+") as state:
        fcntl.lockf(state, fcntl.LOCK_EX)
        ended = project.run("gate", "shop", "--json", "--drift", "--detailed-exitcode")
        alone = project.run("gate", "shop", "--step", "first")
        locked = project.run("plan", "shop", "--step", "first")
    assert (ended.code, ended.document["verdict"]) == (0, "pass")
    assert ended.document["reasons"] == []
    assert alone.code == 0, alone.said
    assert locked.code == 20, "a plan on its own takes the lock"
    assert digests(project) == before
    changed = project.run("gate", "shop", "--detailed-exitcode", "-i", "value=two", "--json")
    assert (changed.code, changed.document["verdict"]) == (2, "warn")
    assert reasons(changed.document) == [("deferred", "warn", "second")]


def test_a_repair_passes(project: Project) -> None:
    """
    What failed only warns, with the command that says more: the change may be what repairs it.
    """
    assert project.run("apply", "shop", "--yes", "-i", "command=false").code == 10
    ended = project.run("gate", "shop", "--json", "--plan-out", "approval.json")
    assert (ended.code, ended.document["verdict"]) == (0, "warn")
    first = ended.document["reasons"][0]
    assert (first["code"], first["severity"], first["step"]) == ("error", "warn", "first")
    assert first["remedy"] == "orchestrator recover shop --step first"
    project.ok("apply", "shop", "--plan", "approval.json")
    assert project.steps("shop")["first"]["status"] == "ok"


def test_what_the_policy_forbids_and_what_cannot_be_planned_fails(project: Project) -> None:
    """
    All reasons at once, exit 4, and no approval is written.
    """
    kept = MODULE + '\n    resource "terraform_data" "kept" { triggers_replace = var.value }\n'
    project.write("modules/m/main.tf", kept)
    project.ok("apply", "shop", "--yes")
    ended = project.run(
        "gate", "shop", "-i", "value=two", "--json", "--plan-out", "a.json", "--junit", "j.xml"
    )
    assert (ended.code, ended.document["verdict"]) == (4, "fail")
    assert ("policy", "fail", "first") in reasons(ended.document)
    assert ended.document["policy"][0]["address"] == "terraform_data.kept"
    assert not (project.root / "a.json").exists()
    assert (project.root / "j.xml").exists()
    project.write("blueprints/shop.yaml", BLUEPRINT.replace("needs: [first]", "neds: [first]"))
    files = {name: project.root / f"broken.{name}" for name in ("md", "xml", "sarif", "json")}
    broken = project.run(
        *("gate", "shop", "--json", "--markdown", "broken.md", "--junit", "broken.xml"),
        *("--sarif", "broken.sarif", "--json-file", "broken.json"),
    )
    texts = {name: file.read_text() for name, file in files.items()}
    assert texts["md"].startswith("## gate: fail") and "unknown key 'neds'" in texts["md"]
    assert 'failures="1"' in texts["xml"]
    (result,) = json.loads(texts["sarif"])["runs"][0]["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "blueprints/shop.yaml"
    assert place["physicalLocation"]["region"]["startLine"] > 1
    assert json.loads(texts["json"]) == broken.document
    assert broken.code == 4
    (reason,) = broken.document["reasons"]
    assert (reason["code"], reason["severity"]) == ("invalid", "fail")
    assert "blueprints/shop.yaml:" in reason["message"]
    assert "needs" in reason["remedy"]


def test_what_was_cut_short_is_refused_unless_it_is_allowed(
    project: Project, tmp_path: Path
) -> None:
    """
    A run that was killed with its engine: by name, step by step.
    """
    engine = watched(project, tmp_path / "watched")
    engine.hold("apply")
    tool = project.start("apply", "shop", "--yes")
    engine.wait_until_held("apply", tool)
    running = project.run("gate", "shop", "--json")
    assert (running.code, running.document["verdict"]) == (0, "warn")
    assert ("running", "warn", "first") in reasons(running.document)
    waiting = project.start("gate", "shop", "--wait", "--json")
    kill_with_engine(project, tool, "apply")
    engine.release("apply")

    waited = finish(waiting)
    refused = project.run("gate", "shop", "--json")
    assert (waited.code, reasons(waited.document)) == (4, reasons(refused.document))
    assert refused.code == 4
    assert ("interrupted", "fail", "first") in reasons(refused.document)
    remedies = {item["code"]: item["remedy"] for item in refused.document["reasons"]}
    assert remedies["interrupted"] == "orchestrator reconcile shop --step first"
    allowed = project.run("gate", "shop", "--json", "--allow", "first=interrupted")
    assert allowed.code == 0
    assert ("interrupted", "warn", "first") in reasons(allowed.document)
    for wrong in ("second=interrupted", "first=silent"):
        assert project.run("gate", "shop", "--allow", wrong).code == 4
    for wrong in ("first", "first=broken", "frist=in_doubt"):
        assert project.run("gate", "shop", "--allow", wrong).code == 64
