"""
Only what a change touches is planned: by git revision or by file, with what needs it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.project import Project, git

pytestmark = pytest.mark.engine

MODULE = """
    variable "value" { type = string }
    resource "terraform_data" "this" { input = var.value }
"""
BLUEPRINT = """
    version: 1
    name: web
    inputs: {value: {type: string, default: one}}
    steps:
      net: {module: ../modules/net, inputs: {value: "${inputs.value}"}}
      app: {module: ../modules/app, inputs: {value: fixed}, needs: [net]}
      alone: {module: ../modules/alone, inputs: {value: fixed}}
"""


@pytest.fixture
def project(project: Project) -> Project:
    for name in ("net", "app", "alone"):
        project.write(f"modules/{name}/main.tf", MODULE)
    project.write("modules/shared/main.tf", "")
    project.write("modules/alone/lib.tf", 'module "shared" { source = "../shared" }')
    project.write("blueprints/web.yaml", BLUEPRINT)
    project.write(".gitignore", ".orchestrator/\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    return project


def touched(project: Project, *arguments: str) -> dict[str, list[str]]:
    document = project.ok("plan", "web", "--json", *arguments).document
    assert [row["step"] for row in document["steps"]] == [
        row["step"] for row in document["affected"]
    ]
    return {row["step"]: row["reasons"] for row in document["affected"]}


def test_what_did_not_change_is_not_planned(project: Project) -> None:
    """
    Nothing since the revision: no step at all, and none for who approves that. Uncommitted and new
    files count, those of modules that a module calls as well; what needs a touched step comes
    along, with the reason.
    """
    since = ("--changed-since", "HEAD")
    assert touched(project, *since) == {}
    assert "no step to plan" in project.ok("plan", "web", *since, "--out", "none.json").out
    assert project.ok("apply", "web", "--plan", "none.json", "--json").rows == {}

    project.write("modules/net/new.tf", "locals { x = 1 }")
    assert touched(project, *since) == {
        "net": ["modules/net/new.tf changed"],
        "app": ["needs net"],
    }
    git(project, "add", "-A")
    git(project, "commit", "-qm", "second")
    assert touched(project, *since) == {}
    assert set(touched(project, "--changed-since", "HEAD~1")) == {"net", "app"}
    assert "needs net" in project.ok("plan", "web", "--changed-since", "HEAD~1").out

    (project.root / "modules/shared/main.tf").write_text("locals { y = 1 }\n")
    assert touched(project, *since) == {"alone": ["modules/shared/main.tf changed"]}


def test_the_blueprint_counts_by_its_parts(project: Project) -> None:
    """
    A step's own part, or an input that it is given; a setting of all is a change of all.
    """
    since = ("--changed-since", "HEAD")
    project.write("blueprints/web.yaml", BLUEPRINT.replace("default: one", "default: two"))
    assert touched(project, *since) == {"net": ["input value changed"], "app": ["needs net"]}
    alone = BLUEPRINT.replace("alone, inputs: {value: fixed}", "alone, inputs: {value: other}")
    project.write("blueprints/web.yaml", alone)
    assert touched(project, *since) == {"alone": ["its part of the blueprint changed"]}
    project.write("blueprints/web.yaml", BLUEPRINT + "    policy: {max_destroys: 1}\n")
    assert set(touched(project, *since)) == {"net", "app", "alone"}


def test_a_module_may_lie_elsewhere(project: Project, tmp_path: Path) -> None:
    """
    Behind a link, or in a submodule, of which git tells only that it is another one.
    """
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.write("net/main.tf", MODULE)
    git(elsewhere, "init", "-q")
    git(elsewhere, "add", "-A")
    git(elsewhere, "commit", "-qm", "first")
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(elsewhere.root))
    (project.root / "modules/linked").symlink_to("app")
    linked = BLUEPRINT.replace("../modules/net", "../elsewhere/net")
    project.write("blueprints/web.yaml", linked.replace("../modules/app", "../modules/linked"))
    git(project, "add", "-A")
    git(project, "commit", "-qm", "moved")
    since = ("--changed-since", "HEAD")
    assert touched(project, *since) == {}

    (project.root / "modules/app/new.tf").write_text("locals { x = 1 }\n")
    assert touched(project, *since) == {"app": ["modules/linked/new.tf changed"]}
    (project.root / "modules/app/new.tf").unlink()
    project.write("elsewhere/net/main.tf", MODULE + "locals { x = 1 }\n")
    git(Project(project.root / "elsewhere"), "commit", "-qam", "second")
    assert touched(project, *since) == {"net": ["elsewhere changed"], "app": ["needs net"]}


def test_what_the_project_sets_touches_every_step(project: Project) -> None:
    """
    Such as another engine.
    """
    project.write("orchestrator.yaml", "project: acme\n")
    every = {step: why[0] for step, why in touched(project, "--changed-since", "HEAD").items()}
    assert every == dict.fromkeys(("net", "app", "alone"), "orchestrator.yaml changed")
    assert set(touched(project, "--affected-by", "orchestrator.yaml")) == set(every)


def test_without_history_nothing_is_guessed(project: Project, tmp_path: Path) -> None:
    """
    A shallow clone does not know the revision, and a copy of the files no revision at all: an error
    of usage, never "nothing changed". Without a branch it is as with one.
    """
    git(project, "commit", "-q", "--allow-empty", "-m", "second")
    git(project, "checkout", "-q", "--detach")
    project.write("modules/net/new.tf", "")
    assert set(touched(project, "--changed-since", "HEAD~1")) == {"net", "app"}
    shallow = tmp_path / "shallow"
    git(project, "clone", "-q", "--depth", "1", f"file://{project.root}", str(shallow))
    clone = Project(shallow, engine=project.environ["ORCHESTRATOR_ENGINE"])
    ended = clone.run("plan", "web", "--changed-since", "HEAD~1")
    assert ended.code == 64
    assert "in a shallow clone, fetch the revision first" in " ".join(ended.said.split())
    shutil.rmtree(shallow / ".git")
    ended = clone.run("plan", "web", "--changed-since", "HEAD")
    assert ended.code == 64
    assert "not a git repository" in " ".join(ended.said.split())


def test_files_can_be_named_instead(project: Project) -> None:
    """
    As a build system gives them, with no repository needed; both at once, or a revision that git
    does not know, is an error of usage.
    """
    assert touched(project, "--affected-by", "modules/app/main.tf") == {
        "app": ["modules/app/main.tf changed"]
    }
    assert touched(project, "--affected-by", "README.md") == {}
    both = project.run("plan", "web", "--affected-by", "x", "--changed-since", "HEAD")
    unknown = project.run("plan", "web", "--changed-since", "no-such-revision")
    option = project.run("plan", "web", "--changed-since", "--output=x")
    pattern = project.run("plan", "web", "--affected-by", "modules/*/main.tf")
    assert (both.code, unknown.code, option.code, pattern.code) == (64, 64, 64, 64)


def test_what_is_touched_as_a_matrix_of_jobs(project: Project) -> None:
    """
    One line of JSON for a runner's own fan-out: waves among the steps that are left. No engine is
    asked and nothing is applied for it.
    """
    project.write("modules/app/new.tf", "")
    project.write("modules/alone/new.tf", "")
    project.environ["ORCHESTRATOR_ENGINE"] = "/nowhere/engine"
    ended = project.ok("graph", "web", "--changed-since", "HEAD", "--format", "matrix")
    assert ended.out.count("\n") == 1
    found = {entry["step"]: entry for entry in ended.document["include"]}
    assert {step: (entry["wave"], entry["needs"]) for step, entry in found.items()} == {
        "app": (1, []),
        "alone": (1, []),
    }
    assert found["app"]["reasons"] == ["modules/app/new.tf changed"]
    project.write("modules/net/new.tf", "")
    every = project.ok("graph", "web", "--changed-since", "HEAD", "--format", "matrix")
    waves = {row["step"]: row["wave"] for row in every.document["include"]}
    assert waves == {"net": 1, "alone": 1, "app": 2}
    text = project.ok("graph", "web", "--changed-since", "HEAD").out
    assert "modules/net/new.tf changed" in " ".join(text.split())
    nothing = project.ok("graph", "web", "--affected-by", "README.md", "--format", "matrix")
    assert nothing.document == {"include": []}
    # A name that is no UTF-8, and a module that is gone.
    (project.root / os.fsdecode(b"modules/app/\xff")).touch()
    shutil.rmtree(project.root / "modules/alone")
    every = project.ok("graph", "web", "--changed-since", "HEAD", "--format", "matrix")
    reasons = {row["step"]: row["reasons"] for row in every.document["include"]}
    assert "modules/app/\\xff changed" in reasons["app"]
    assert "modules/alone/main.tf changed" in reasons["alone"]
