"""
Working directories as commands use them: laid out once, one process at a time, and nothing secret
left beside them when a call is settled.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import provide
from tests.engine.modules import REGIONS
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Project, finish

pytestmark = pytest.mark.engine

PAIR = """
    version: 1
    name: pair
    inputs: {value: {type: string, default: one}}
    steps:
      first:
        module: ../fixtures/shared/object
        inputs: {name: first, value: "${inputs.value}"}
      second:
        module: ../fixtures/shared/object
        inputs: {name: second}
        needs: [first]
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    project.write("blueprints/pair.yaml", PAIR)
    return project


def left_over(project: Project) -> list[str]:
    """
    Raw output, plans and variable files, which hold secrets.
    """
    return [
        str(path.relative_to(project.own))
        for path in project.own.rglob("*")
        if path.parent.name == "raw" or path.name.endswith((".tfvars.json", ".tfplan"))
    ]


# What is gone when a call is settled

#: One provider version that there is, and one that there is not.
INIT_FAILS = """
    terraform {
      required_providers {
        fakecloud = {
          source  = "test/fakecloud"
          version = "9.9.9"
        }
      }
    }
"""
UNINITIALISED = """
    version: 1
    name: uninitialised
    steps:
      sound: {module: ../fixtures/shared/object, inputs: {name: sound}}
      unsound: {module: ../modules/unsound}
"""


@pytest.fixture
def uninitialised(project: Project, tmp_path: Path) -> Project:
    """
    A blueprint of which one step cannot be initialised.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    provide(project, cloud, tmp_path)
    project.write("modules/unsound/main.tf", INIT_FAILS)
    project.write("blueprints/uninitialised.yaml", UNINITIALISED)
    return project


def test_nothing_secret_outlives_its_call(project: Project) -> None:
    """
    After each command there is no raw output, plan or variable file any more (law: secrets travel
    with values).
    """
    left = {}
    for verb in ("apply", "plan", "verify", "reconcile", "destroy"):
        yes = ("--yes",) if verb in ("apply", "destroy") else ()
        project.ok(verb, "pair", *yes)
        left[verb] = left_over(project)

    assert not any(left.values()), left


def test_nothing_secret_outlives_a_failed_init(uninitialised: Project) -> None:
    """
    Neither after an init that failed: exit 10 and nothing applied.
    """
    ended = uninitialised.run("apply", "uninitialised", "--yes")

    assert ended.code == 10, ended.said
    assert left_over(uninitialised) == []
    assert uninitialised.entries("sound") == []


def test_a_skipped_preflight_fails_with_the_step(uninitialised: Project) -> None:
    """
    With a reason the rest is applied; the step that cannot be initialised fails by itself, exit 10,
    and the reason is in the run record.
    """
    reason = ("--skip-preflight", "the registry is down")

    ended = uninitialised.run("apply", "uninitialised", "--yes", "--on-failure=continue", *reason)

    rows = {row["step"]: row for row in uninitialised.last_run()["steps"]}
    assert ended.code == 10, ended.said
    assert uninitialised.record("sound")["status"] == "ok"
    assert rows["unsound"]["error"]["phase"] == "init"
    assert uninitialised.last_run()["skipped_preflight"] == reason[1]


def test_the_next_run_sweeps_after_one_killed_before_its_marker(
    project: Project, tmp_path: Path
) -> None:
    """
    Killed with its engine during a plan, a run leaves what it was using; there is no record to
    settle, and still the next run of the blueprint removes it.
    """
    engine = watched(project, tmp_path / "engine")
    engine.hold("plan")
    tool = project.start("apply", "pair", "--yes")
    engine.wait_until_held("plan", tool)
    kill_with_engine(project, tool, "plan-1")
    before = left_over(project)
    engine.release("plan")

    project.ok("apply", "pair", "--yes")

    assert [name for name in before if "/raw/" in name]
    assert [name for name in before if name.endswith(".tfvars.json")]
    assert left_over(project) == []


# Laid out once


def test_a_fresh_directory_is_initialised_once(
    project: Project, tmp_path: Path, cloud: Cloud
) -> None:
    """
    On a machine without working directories, with providers that refer to outputs: each command
    lays each step out once, and one `init` each is enough. The absence of what a destroy deleted is
    asked of the provider from a private root, which is initialised once too.
    """
    engine = watched(project, tmp_path / "engine")
    project.write("blueprints/regions.yaml", REGIONS)
    project.ok("apply", "regions", "--yes")
    inits, laid_out = {}, {}
    for verb in ("plan", "verify", "reconcile", "destroy"):
        shutil.rmtree(project.own / "work")
        before = len(engine.calls("init"))
        yes = ("--yes",) if verb == "destroy" else ()
        ended = project.ok(verb, "regions", "--json", *yes)
        inits[verb] = sorted(engine.calls("init")[before:])
        if verb != "plan":  # it prints one document
            laid_out[verb] = sorted(e["step"] for e in ended.events if e.get("phase") == "prepare")

    alone = {"destroy": ["root"]}  # of the server: what lives in state alone needs no provider
    assert inits == {verb: sorted(["region", "server", *alone.get(verb, [])]) for verb in inits}
    assert laid_out == {verb: ["region", "server"] for verb in laid_out}
    assert cloud.servers() == ()


ALIKE = """
    version: 1
    name: alike
    steps:
      web: {module: ../modules/server, inputs: {name: web}}
      app: {module: ../modules/server, inputs: {name: app}}
      far: {module: ../modules/server, inputs: {name: far}, providers: {fakecloud: {region: north}}}
      object: {module: ../fixtures/shared/object, inputs: {name: object}}
      other: {module: ../fixtures/shared/object, inputs: {name: other}}
"""


def test_steps_that_differ_in_nothing_but_their_state_are_initialised_once(
    project: Project, tmp_path: Path, cloud: Cloud
) -> None:
    """
    Steps with the same module, providers and lock file share one `init`; each has a provider state
    of its own all the same. Another provider configuration or module is initialised by itself,
    and where a directory was initialised already nothing is.
    """
    engine = watched(project, tmp_path / "engine")
    del project.environ["TF_REATTACH_PROVIDERS"]  # a lock file names what is installed
    project.write("blueprints/alike.yaml", ALIKE)

    project.ok("apply", "alike", "--yes")

    first = sorted(engine.calls("init"))
    assert len(first) == 3
    assert len({*first} & {"web", "app"}) == len({*first} & {"object", "other"}) == 1
    states = {
        name: json.loads((project.own / f"state/alike/default/{name}.tfstate").read_text())
        for name in ("web", "app", "far", "object", "other")
    }
    assert len({state["lineage"] for state in states.values()}) == 5
    assert [len(state["resources"]) for state in states.values()] == [1] * 5
    assert len(cloud.servers()) == 3
    locks = {
        (project.own / f"work/alike/default/{name}/.terraform.lock.hcl").read_bytes()
        for name in ("web", "app")
    }
    assert len(locks) == 1
    before = len(engine.calls("init"))
    project.ok("destroy", "alike", "--yes", "--step", "app")
    assert "app" not in engine.calls("init")[before:]
    shutil.rmtree(project.own / "work/alike/default/web")
    project.ok("destroy", "alike", "--yes")
    assert cloud.servers() == ()


# One process at a time


def test_a_plan_is_refused_while_an_apply_uses_the_directories(
    project: Project, tmp_path: Path
) -> None:
    """
    A plan would lay out other files under a running engine: exit 20, although nothing is marked
    yet, and the apply is undisturbed.
    """
    engine = watched(project, tmp_path / "engine")
    engine.hold("plan")
    tool = project.start("apply", "pair", "--yes")
    engine.wait_until_held("plan", tool)

    plan = project.run("plan", "pair", "-i", "value=other")

    engine.release("plan")
    applied = finish(tool)
    assert (plan.code, applied.code) == (20, 0), plan.said + applied.said
    assert project.record("first")["outputs"]["value"] == "one"


def test_an_apply_is_refused_while_a_plan_uses_the_directories(
    project: Project, tmp_path: Path
) -> None:
    """
    The other way round: exit 20, no record, and the plan ends as if nothing had been.
    """
    engine = watched(project, tmp_path / "engine")
    engine.hold("plan")
    tool = project.start("plan", "pair", "--json", "--detailed-exitcode")
    engine.wait_until_held("plan", tool)

    applied = project.run("apply", "pair", "--yes", "-i", "value=other")

    engine.release("plan")
    planned = finish(tool)
    assert (applied.code, planned.code) == (20, 2), applied.said + planned.said
    assert project.entries("first") == []
    assert [row["status"] for row in planned.document["steps"]] == ["planned", "planned"]


# What people are told of them


def neighbours(project: Project) -> None:
    """
    A module that reaches for its neighbour, and a mistake in that.
    """
    project.write("blueprints/pair.yaml", NEIGHBOURS)
    project.write("modules/near/main.tf", 'module "far" {\n  source = "../far"\n}\n')
    project.write("modules/far/main.tf", 'resource "terraform_data" "it" {}\n')


NEIGHBOURS = """
    version: 1
    name: pair
    steps: {first: {module: ../modules/near}}
"""


def test_the_directory_that_is_shown_is_where_the_engine_finds_its_state(project: Project) -> None:
    """
    Also of a module that has its neighbours beside it; with the command that brings the inputs.
    """
    neighbours(project)
    project.ok("apply", "pair", "--yes")

    row = project.steps("pair")["first"]
    shown = project.ok("status", "pair", "-v").out

    assert Path(row["directory"], ".terraform").is_dir(), row
    assert "".join(row["directory"].split()) in "".join(shown.split())
    assert "orchestrator exec pair/default/first -- plan" in shown


def test_an_error_names_the_file_in_the_project(project: Project) -> None:
    """
    Not the file in a working directory: of the module, or of a neighbour that it calls; on every
    screen, and in documents.
    """
    neighbours(project)
    project.write("modules/far/main.tf", 'output "it" {\n  value = var.nobody\n}\n')

    ended = project.run("apply", "pair", "--yes", "--json")
    shown = project.run("plan", "pair").out

    found = ended.events[-1]["steps"][0]["error"]["diagnostics"]
    assert [item["at"] for item in found] == ["modules/far/main.tf:2"]
    assert "modules/far/main.tf:2" in shown


def test_no_pattern_of_a_module_meets_what_is_generated(project: Project) -> None:
    """
    A module that reads its own files by patterns finds them and no JSON of ours, and nothing that
    changes from run to run, with the environment or with the machine: the repeated apply has
    nothing to do. One that leaves its backend to init finds no file of ours at all.
    """
    project.write(
        "modules/patterns/main.tf",
        """
        locals {
          ours = [for f in fileset(path.module, "**") : f if !startswith(f, ".terraform")]
        }
        resource "terraform_data" "files" {
          input = { for f in local.ours : f => filesha256("${path.module}/${f}") }
        }
        output "json" { value = fileset(path.module, "**/*.json") }
        output "all" { value = local.ours }
        output "sums" { value = terraform_data.files.output }
        """,
    )
    project.write("modules/patterns/own.json", "{}")
    shutil.copytree(project.root / "modules/patterns", project.root / "modules/partial.d")
    project.write("modules/partial.d/backend.tf", 'terraform {\n  backend "local" {}\n}\n')
    project.write(
        "blueprints/patterns.yaml",
        """
        version: 1
        name: patterns
        steps:
          it: {module: ../modules/patterns}
          that: {module: ../modules/patterns}
          partial: {module: ../modules/partial.d}
        """,
    )

    project.ok("apply", "patterns", "--yes")
    again = project.ok("apply", "patterns", "--yes", "--json")
    planned = project.ok("plan", "patterns", "--detailed-exitcode")
    project.ok("destroy", "patterns", "--step", "partial", "--yes")

    outputs = project.record("it")["outputs"]
    assert [f for f in outputs["json"] if not f.startswith(".terraform")] == ["own.json"]
    assert set(outputs["all"]) == {"main.tf", "own.json", "zzzz_orchestrator_override.tf"}
    assert outputs["sums"] == project.record("that")["outputs"]["sums"]
    assert all(row["updated"] == [] for row in again.rows.values())
    assert "no changes" in planned.out
    (partial,) = [e for e in project.history("partial") if e["sequence"] == 2]
    assert set(partial["outputs"]["all"]) == {"main.tf", "own.json", "backend.tf"}
