"""
``destroy --orphaned``: what left the blueprint is destroyed from what it was applied from.
"""

from __future__ import annotations

import shlex
import shutil

import pytest

from fixtures.fakecloud import Cloud
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

#: ``extra`` needs ``base``; its provider and one of its inputs hold secrets, one is not of today.
HEAD = """
    version: 1
    name: shrunk
    inputs:
      token: {type: string, sensitive: true}
      password: {type: string, sensitive: true}
      size: {type: string, default: small}
    steps:
      base:
        module: ../modules/server
        inputs: {name: base, size: "${inputs.size}"}
        providers: {fakecloud: {token: "${inputs.token}"}}
"""
EXTRA = """
      extra:
        module: ../modules/server
        needs: [base]
        inputs: {name: extra, size: "${inputs.size}", password: "${inputs.password}"}
        providers: {fakecloud: {token: "${inputs.token}"}}
      last:
        module: ../modules/server
        needs: [extra]
        inputs: {name: "${steps.extra.outputs.name}-last"}
        providers: {fakecloud: {token: "${env.CLOUD_TOKEN}"}}
"""
SECRETS = {"ORCHESTRATOR_INPUT_token": "t0ken-value", "CLOUD_TOKEN": "t0ken-value"}


@pytest.fixture
def shrunk(project: Project, cloud: Cloud) -> Cloud:
    """
    Three steps applied, two of them taken out of the blueprint, with the modules they came from.
    """
    project.environ |= SECRETS | {"ORCHESTRATOR_INPUT_password": "pass-word-1"}
    project.write("blueprints/shrunk.yaml", HEAD + EXTRA)
    cloud.require_token("t0ken-value")
    project.prepare("apply", "shrunk", "--yes")
    project.write("blueprints/shrunk.yaml", HEAD.replace("default: small", "default: large"))
    return cloud


def test_orphans_are_destroyed_from_what_they_were_applied_from(
    project: Project, shrunk: Cloud
) -> None:
    """
    Dependents first by their records, from the stored snapshots, inputs and provider configuration
    with the secrets of today, though the module is gone; the blueprint's own steps stay.
    """
    status = project.ok("status", "shrunk")
    refused = project.run("destroy", "shrunk", "--yes")
    plan = project.ok("plan", "shrunk", "--destroy", "--orphaned", "--json").document
    other = project.ok("plan", "shrunk", "--json").document
    shutil.rmtree(project.root / "modules/server")

    ended = project.run("destroy", "shrunk", "--orphaned", "--yes", "--json")

    assert "orchestrator destroy shrunk --orphaned" in status.out
    assert refused.code == 4, refused.said
    assert "still alive: extra needs base" in refused.said
    assert other["orphaned"] == ["shrunk/default/extra", "shrunk/default/last"]
    assert [row["step"] for row in plan["steps"]] == ["last", "extra"]
    assert ended.code == 0, ended.said
    assert {step: row["status"] for step, row in ended.rows.items()} == {
        "extra": "destroyed", "last": "destroyed",
    }  # fmt: skip
    assert [server.name for server in shrunk.servers()] == ["base"]
    assert project.record("last")["updated_at"] < project.record("extra")["updated_at"]
    assert project.record("base")["status"] == "ok"
    assert project.status("shrunk")["orphaned"] == []
    left = [path.read_bytes() for path in (project.own / "runs").rglob("*") if path.is_file()]
    kept = [*left, *project.blobs(""), (ended.said + refused.said).encode()]
    secrets = (b"t0ken-value", b"pass-word-1")
    assert [text for text in kept for secret in secrets if secret in text] == []


def test_a_blueprint_that_is_gone_altogether_is_known_by_its_records(
    project: Project, shrunk: Cloud
) -> None:
    """
    File and modules deleted: everything that was applied is orphaned, and goes dependents first.
    A blueprint of which nothing is recorded, an environment without records, are clear errors.
    """
    (project.root / "blueprints/shrunk.yaml").unlink()
    shutil.rmtree(project.root / "modules")

    unknown = project.run("destroy", "stranger", "--orphaned", "--yes")
    elsewhere = project.run("destroy", "shrunk", "-e", "prod", "--orphaned", "--yes")
    ended = project.run("destroy", "shrunk", "--orphaned", "--yes", "--json")
    again = project.run("destroy", "shrunk", "--orphaned", "--yes")

    assert (unknown.code, elsewhere.code) == (3, 3)
    assert "there is no blueprint 'stranger'" in unknown.said
    assert "recorded are: default" in elsewhere.said
    assert ended.code == 0, ended.said
    assert shrunk.objects() == ()
    assert set(ended.rows) == {"base", "extra", "last"}
    assert again.code == 0, again.said


def test_a_secret_that_is_gone_is_named(project: Project, shrunk: Cloud) -> None:
    """
    The secret of an orphan that cannot be had is an error of that step, found before any step is
    destroyed, and no other secret is asked for.
    """
    del project.environ["ORCHESTRATOR_INPUT_password"]
    before = project.entries("extra")

    ended = project.run("destroy", "shrunk", "--orphaned", "--yes", "--json")

    assert ended.code == 3, ended.said
    assert "password" in ended.said
    assert project.entries("extra") == before
    assert {step: row["status"] for step, row in ended.rows.items()} == {
        "extra": "error", "last": "pending",
    }  # fmt: skip
    assert [server.name for server in shrunk.servers()] == ["base", "extra", "extra-last"]


def test_a_secret_that_is_gone_for_good_can_be_done_without(
    project: Project, shrunk: Cloud
) -> None:
    """
    `--unavailable-secret` holds for orphans as well.
    """
    del project.environ["ORCHESTRATOR_INPUT_password"]

    ended = project.run(
        "destroy", "shrunk", "--orphaned", "--yes", "--unavailable-secret", "inputs.password"
    )

    assert ended.code == 0, ended.said
    assert [server.name for server in shrunk.servers()] == ["base"]


def test_the_children_of_an_orphan_go_with_it(project: Project, cloud: Cloud) -> None:
    """
    Also where only the parent is named: the child's record tells whose it is.
    """
    project.copy("fixtures/fakecloud/modules/disk")
    project.write(
        "blueprints/nested.yaml",
        """
        version: 1
        name: nested
        steps:
          server: {module: ../modules/server, inputs: {name: web}}
          disk:
            module: ../fixtures/fakecloud/modules/disk
            owned_by: server
            inputs: {server_id: "${steps.server.outputs.id}"}
        """,
    )
    project.ok("apply", "nested", "--yes")
    (project.root / "blueprints/nested.yaml").unlink()

    ended = project.run("destroy", "nested", "--orphaned", "--step", "server", "--yes", "--json")

    methods = {step: row["absence"]["method"] for step, row in ended.rows.items()}
    assert ended.code == 0, ended.said
    assert methods == {"server": "provider", "disk": "parent"}
    assert cloud.objects() == ()


def test_orphans_of_another_file_are_never_touched(project: Project, shrunk: Cloud) -> None:
    """
    A blueprint file of the same name at another place, and one that is still there under another
    path, are refused: their targets are not this one's orphans.
    """
    (project.root / "blueprints/shrunk.yaml").rename(project.root / "blueprints/moved.yaml")
    before = {step: project.entries(step) for step in ("base", "extra", "last")}

    moved = project.run("destroy", "shrunk", "--orphaned", "--yes")
    project.write("elsewhere/shrunk.yaml", HEAD)
    (project.root / "blueprints/moved.yaml").unlink()
    by_path = project.run("destroy", "elsewhere/shrunk.yaml", "--orphaned", "--yes")

    assert (moved.code, by_path.code) == (4, 4), moved.said + by_path.said
    assert "is recorded for the blueprint file blueprints/shrunk.yaml" in moved.said
    assert {step: project.entries(step) for step in before} == before
    assert len(shrunk.servers()) == 3


def test_a_retained_orphan_stays_until_it_is_released(project: Project, shrunk: Cloud) -> None:
    """
    Retained before it left the blueprint, it keeps what it needs; released, it goes.
    """
    project.write("blueprints/shrunk.yaml", HEAD + EXTRA)
    reviewed = ("--reason", "audit", "--owner", "ops", "--review-by", "2999-01-01")
    project.ok("retain", "shrunk", "-s", "last", *reviewed)
    project.write("blueprints/shrunk.yaml", HEAD)

    kept = project.ok("destroy", "shrunk", "--orphaned", "--yes", "--json")
    project.ok("release", "shrunk", "--orphaned", "-s", "last", "--reason", "audited")
    gone = project.ok("destroy", "shrunk", "--orphaned", "--yes", "--json")

    assert {step: row["status"] for step, row in kept.rows.items()} == {
        "extra": "skipped", "last": "skipped",
    }  # fmt: skip
    assert {row["status"] for row in gone.rows.values()} == {"destroyed"}
    assert [server.name for server in shrunk.servers()] == ["base"]


#: A bucket has its name as its id.
BUCKET = """
terraform {
  required_providers {
    fakecloud = {
      source = "test/fakecloud"
    }
  }
}

variable "name" {
  type = string
}

resource "fakecloud_bucket" "this" {
  name = var.name
}
"""
LEFT = """
    version: 1
    name: left
    steps:
      one: {module: ../modules/bucket, inputs: {name: one}}
"""
LOST = """
      two:
        module: ../modules/bucket
        needs: [one]
        inputs: {name: two}
        identity: {fakecloud_bucket.this: "${inputs.name}"}
"""


def offered(ended: Ended, wanted: str) -> list[str]:
    """
    The words of the first command with a word in it that a run offers.
    """
    lines = [shlex.split(item["command"]) for item in ended.events[-1]["next"]]
    words = next(line for line in lines if wanted in line)
    return ["it was found" if word == "WHY" else word for word in words[1:]]


def test_what_is_in_doubt_of_an_orphan_can_be_settled(project: Project, cloud: Cloud) -> None:
    """
    Its create lost the answer, then it left the blueprint: the provider is asked by the identity
    that it had, it is adopted as offered, and then it and what it needs can be destroyed.
    """
    project.write("modules/bucket/main.tf", BUCKET)
    project.write("blueprints/left.yaml", LEFT + LOST)
    cloud.arm("create", "two", "lost_answer")
    assert project.run("apply", "left", "--yes").code == 11
    project.write("blueprints/left.yaml", LEFT)
    for command in ("status", "recover"):
        assert "orchestrator reconcile left --orphaned\n" in project.ok(command, "left").out
    doubtful = project.run("destroy", "left", "--orphaned", "--yes", "--json")
    assert doubtful.code == 11

    found = project.run(*offered(doubtful, "reconcile"), "--json")
    adopted = project.run(*offered(found, "--adopt"), "--yes", "--json")

    assert (found.code, adopted.code) == (11, 0)
    project.ok("destroy", "left", "--orphaned", "--yes", "--accept-adopted", "it is ours")
    project.ok("destroy", "left", "--yes")
    assert cloud.objects() == ()


def test_what_a_refusal_names_for_an_orphan_reaches_it(project: Project, shrunk: Cloud) -> None:
    """
    Another object has taken the address of an orphan's: the commands in the refusal and in what is
    offered are about the step that left the blueprint, and bring the recorded object back.
    """
    stranger = shrunk.create_out_of_band("fakecloud_server", "stranger").id
    (ref,) = project.record("last")["resources"]["inventory"]
    (file,) = (project.root / ".orchestrator/state").rglob("last.tfstate")
    file.write_text(file.read_text().replace(ref["id"], stranger))

    refused = project.run("destroy", "shrunk", "--orphaned", "--step", "last", "--yes", "--json")
    seen = project.run("reconcile", "shrunk", "--orphaned", "--step", "last", "--json")
    out = project.run(*offered(seen, "rm"))
    approved = project.run(
        *("exec", "shrunk/default/last", "--orphaned", "--yes", "--", "state", "rm", ref["address"])
    )
    rebuilt = project.run(
        *("reconcile", "shrunk", "--orphaned", "--step", "last", "--rebuild-state", "--yes")
    )
    listed = project.ok("exec", "shrunk/default/last", "--orphaned", "--", "state", "list")

    rebuild = "orchestrator reconcile shrunk --orphaned --step last --rebuild-state"
    assert (refused.code, rebuild in refused.row["hint"]) == (11, True), refused.said
    assert out.code == 5, "it asks for approval"
    assert approved.code == 0, approved.said
    assert rebuilt.code == 0, rebuilt.said
    assert ref["address"] in listed.out
    assert project.record("last")["resources"]["inventory"] == [ref]


def test_an_orphan_that_would_not_go_is_told_like_any_step(project: Project, shrunk: Cloud) -> None:
    """
    Its destroy failed: the run, `status`, `recover` and the expectation call it an error, with
    status, cause and the way on; no verdict is ok.
    """
    shrunk.arm("delete", "extra-last", "delete_fails")

    failed = project.run("destroy", "shrunk", "--orphaned", "--yes", "--json")
    status = project.status("shrunk")
    shown = project.ok("status", "shrunk").out
    recovered = project.ok("recover", "shrunk", "--json").document
    expected = project.run("status", "shrunk", "--expect", "ok")

    assert (failed.code, failed.events[-1]["verdict"]) == (10, "error"), failed.said
    row = {row["step"]: row for row in status["steps"]}["last"]
    assert (row["status"], row["failed_command"]) == ("error", "destroy")
    assert row["objects"] == ["fakecloud_server.this"]
    assert "DependencyViolation" in row["last_error"] and "DependencyViolation" in shown
    assert (status["verdict"], recovered["verdict"]) == ("error", "error")
    actions = {row["step"]: row for row in recovered["steps"]}["last"]["actions"]
    (destroy,) = (item for item in actions if item["action"] == "destroy")
    assert destroy["available"] and "--orphaned --step last" in destroy["command"]
    assert expected.code == 4 and "last is error" in expected.said, expected.said
    only = project.ok("recover", "shrunk", "--step", "last", "--json").document
    assert [row["step"] for row in only["steps"]] == ["last"]
    project.ok(*shlex.split(destroy["command"])[1:], "--yes")


def test_a_program_that_only_records_know_is_forbidden_as_well(project: Project) -> None:
    """
    The trust file of today holds for the actions and checks of what was applied before it.
    """
    project.copy("fixtures/shared")
    steps = """
        version: 1
        name: forbidden
        steps:
          stays: {module: ../fixtures/shared/object, inputs: {name: stays}}
    """
    goes = """
          goes:
            module: ../fixtures/shared/object
            inputs: {name: goes}
            before_destroy: {command: [touch, ran]}
    """
    project.write("blueprints/forbidden.yaml", steps + goes)
    project.ok("apply", "forbidden", "--yes")
    project.write("blueprints/forbidden.yaml", steps)
    trust = project.root.parent / "trust.yaml"
    trust.write_text("trust: {commands: false}\n")
    project.environ["ORCHESTRATOR_TRUST"] = str(trust)

    refused = project.run("destroy", "forbidden", "--orphaned", "--yes")

    assert (refused.code, "before_destroy.command of step 'goes'" in refused.said) == (4, True)
    assert not (project.root / "ran").exists()
