"""
Interrupted runs, settled later: with the inputs of then, without secrets that are lost, by whatever
command comes next; and what only a refresh or an untargeted plan can settle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.modules import REGIONS
from tests.engine.watched_engine import kill, kill_with_engine, wait_for_answers, watched
from tests.project import Project, eventually

pytestmark = pytest.mark.engine

SECRET = "Zq-secret&<7/pass+word=%"
#: Says the secret, waits while the file ``hold`` is there, and fails with all it said.
TALKER = r"""
    variable "secret" {
      type      = string
      sensitive = true
    }
    variable "hold" { type = string }
    resource "terraform_data" "before" {}
    resource "terraform_data" "talks" {
      depends_on = [terraform_data.before]
      provisioner "local-exec" {
        command     = <<-EOT
          echo "refused: $SECRET" >&2
          while [ -e "$HOLD" ]; do sleep 0.05; done
          exit 7
        EOT
        environment = { SECRET = nonsensitive(var.secret), HOLD = var.hold }
      }
    }
"""
TALKING = """
    version: 1
    name: talking
    inputs:
      hold: {type: string}
      secret: {type: string, sensitive: true}
    steps:
      talker:
        module: ../modules/talker
        inputs: {secret: "${inputs.secret}", hold: "${inputs.hold}"}
"""
VARIABLE = "ORCHESTRATOR_INPUT_secret"


def doubts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(doubt["address"], doubt["action"]) for doubt in record["resources"]["in_doubt"]]


# Secrets of then


def interrupted_talker(project: Project) -> None:
    """
    A run killed while its provisioner talks; the engine then fails by itself.
    """
    hold = project.write("hold", "")
    project.write("modules/talker/main.tf", TALKER)
    project.write("blueprints/talking.yaml", TALKING)
    project.environ |= {VARIABLE: SECRET, "ORCHESTRATOR_INPUT_hold": str(hold)}
    tool = project.start("apply", "talking", "--yes")
    said = SECRET.encode().split(b"&")[0]
    eventually(
        lambda: any(said in f.read_bytes() for f in project.own.rglob("raw/apply.stdout")),
        "the provisioner talks",
        tool,
    )
    kill(tool)
    hold.unlink()
    wait_for_answers(project)


def leaks(project: Project, shown: str) -> list[str]:
    """
    Where a distinctive part of the secret, the same in every encoding but base64, can be read.
    """
    part = SECRET.split("&")[0]
    files = [path for path in project.own.rglob("*") if path.is_file()]
    kept = [path for path in files if path.relative_to(project.own).parts[0] != "state"]
    places = [str(path) for path in kept if part.encode() in path.read_bytes()]
    return [*places, "screen"] if part in shown else places


@pytest.mark.parametrize("today", [None, "rotated-since"], ids=["removed", "rotated"])
def test_what_an_engine_said_about_lost_secrets_is_not_repeated(
    project: Project, today: str | None
) -> None:
    """
    The error of the killed run quotes a secret that is not known any more: it is nowhere, and the
    addresses and codes are kept.
    """
    interrupted_talker(project)
    del project.environ[VARIABLE]
    project.environ |= {VARIABLE: today} if today else {}

    ended = project.run("--log-level", "debug", "reconcile", "talking", "-v")

    record = project.record("talker")
    settled = project.history("talker")[1]
    assert leaks(project, ended.said) == []
    assert (record["status"], settled["error"]["code"]) == ("error", "engine_failed")
    assert settled["resources"]["tainted"] == ["terraform_data.talks"]
    assert {d["address"] for d in settled["error"]["diagnostics"]} == {"terraform_data.talks"}
    assert "exit status" not in json.dumps(settled["error"])


def test_what_an_engine_said_is_kept_while_its_secrets_are_known(project: Project) -> None:
    """
    With the secret as it was, the details of the error are kept, masked.
    """
    interrupted_talker(project)

    ended = project.run("--log-level", "debug", "reconcile", "talking", "-v")

    settled = project.history("talker")[1]
    assert leaks(project, ended.said) == []
    assert settled["status"] == "error"
    assert "exit status 7" in json.dumps(settled["error"]["diagnostics"])


# Inputs of then

CHECKED = """
    version: 1
    name: checked
    inputs:
      proof: {type: string}
    steps:
      object:
        module: ../modules/held
        inputs: {hold: "${env.HOLD}", proof: "${inputs.proof}"}
        verify:
          - command: {argv: [test, -e, "${inputs.proof}"]}
"""
HELD = r"""
    variable "hold" { type = string }
    variable "proof" { type = string }
    resource "terraform_data" "object" {
      input = var.proof
      provisioner "local-exec" {
        command     = "touch \"$HOLD.began\"; while [ -e \"$HOLD\" ]; do sleep 0.05; done"
        environment = { HOLD = nonsensitive(var.hold) }
      }
    }
"""


def test_an_interrupted_apply_is_checked_with_the_inputs_it_had(project: Project) -> None:
    """
    The input that the check uses has changed since: what was applied is checked as it was applied.
    """
    hold, there = project.write("hold", ""), project.write("there", "")
    project.environ["HOLD"] = str(hold)
    project.write("modules/held/main.tf", HELD)
    project.write("blueprints/checked.yaml", CHECKED)
    tool = project.start("apply", "checked", "--yes", "-i", f"proof={there}")
    eventually(hold.with_name("hold.began").exists, "the create began", tool)
    kill(tool)
    hold.unlink()
    wait_for_answers(project)

    ended = project.run("reconcile", "checked", "-i", "proof=not-there")

    settled = project.history("object")[1]
    assert ended.code == 0, ended.said
    assert (settled["status"], settled["verification"]["verdict"]) == ("ok", "verified")


# Working directories that wait for outputs


def test_a_step_whose_providers_wait_for_outputs_is_settled(project: Project, cloud: Cloud) -> None:
    """
    Its working directory cannot be laid out before its upstream is read: the next apply does that,
    settles it, and goes on without making anything twice.
    """
    project.copy("fixtures/shared")
    project.write("blueprints/regions.yaml", REGIONS)
    cloud.arm("create", "web", "slow")
    tool = project.start("apply", "regions", "--yes")
    cloud.wait_for_call("create", "web")
    kill(tool)
    cloud.disarm()
    wait_for_answers(project, 2)

    ended = project.run("apply", "regions", "--yes")

    assert ended.code == 0, ended.said
    assert [entry["status"] for entry in project.history("server")] == ["running", "ok", "ok"]
    assert [(server.name, server.region) for server in cloud.servers()] == [("web", "here")]


# Targeted

TARGETED = r"""
    variable "hold" { type = string }
    resource "terraform_data" "one" {
      provisioner "local-exec" {
        command     = "touch \"$HOLD.began\"; while [ -e \"$HOLD\" ]; do sleep 0.05; done"
        environment = { HOLD = var.hold }
      }
    }
    resource "terraform_data" "two" {}
"""
TARGETING = """
    version: 1
    name: targeting
    inputs: {hold: {type: string, default: none}}
    steps:
      pair: {module: ../modules/targeted, inputs: {hold: "${inputs.hold}"}}
"""
TARGET = ("--target", "terraform_data.one")


@pytest.fixture
def targeted(project: Project) -> Project:
    project.write("modules/targeted/main.tf", TARGETED)
    project.write("blueprints/targeting.yaml", TARGETING)
    return project


def test_a_targeted_apply_is_not_ok_while_something_is_left(targeted: Project) -> None:
    """
    It did what it was asked for: exit 0, and the record is `error` with code `targeted`, as often
    as it is said. No view calls it ok, none a failure. After the apply that is offered it is `ok`.
    """
    first = targeted.run("apply", "targeting", "--yes", *TARGET)
    expected = targeted.run("status", "targeting", "--expect", "ok")
    record = targeted.record("pair")
    second = targeted.run("apply", "targeting", "--yes", *TARGET)
    whole = targeted.run("apply", "targeting", "--yes")

    assert (first.code, second.code, whole.code) == (0, 0, 0), whole.said
    assert "verdict: partial" in first.out and "What went wrong" not in first.out
    assert "left undone terraform_data.two" in " ".join(first.out.replace("pair │", " ").split())
    assert "orchestrator apply targeting\n" in first.out, first.out
    assert expected.code == 4
    assert (record["status"], record["error"]["code"]) == ("error", "targeted")
    assert "terraform_data.two" in record["last_error"]
    assert targeted.record("pair")["status"] == "ok"


def test_an_interrupted_targeted_apply_is_not_ok_either(targeted: Project) -> None:
    """
    Killed and settled from a clean answer it is `error` with code `targeted`; `ok` only after an
    untargeted apply.
    """
    hold = targeted.write("hold", "")
    tool = targeted.start("apply", "targeting", "--yes", *TARGET, "-i", f"hold={hold}")
    eventually(hold.with_name("hold.began").exists, "the create began", tool)
    kill(tool)
    hold.unlink()
    wait_for_answers(targeted)

    targeted.run("reconcile", "targeting")
    settled, reconciled = targeted.history("pair")[1:]
    whole = targeted.run("apply", "targeting", "--yes")

    assert (settled["status"], settled["error"]["code"]) == ("error", "targeted")
    assert reconciled["status"] == "error"
    assert (whole.code, targeted.record("pair")["status"]) == (0, "ok"), whole.said


# Updates in doubt

GROWING = """
    version: 1
    name: growing
    inputs: {size: {type: string, default: small}}
    steps:
      server:
        module: ../modules/server
        inputs: {name: web, size: "${inputs.size}", names: NAMES}
"""
SERVER = "fakecloud_server.this"


def test_only_a_refresh_settles_an_update_in_doubt(project: Project, cloud: Cloud) -> None:
    """
    The machine was lost during an update. Without a refresh an apply ends with 11; with one, and
    once nothing can be under way any more, it is settled as refreshed, also by an apply that
    changes another object.
    """
    project.write("blueprints/growing.yaml", GROWING.replace("NAMES", "[]"))
    project.ok("apply", "growing", "--yes")
    cloud.arm("update", "web", "slow")
    tool = project.start("apply", "growing", "--yes", "-i", "size=large")
    cloud.wait_for_call("update", "web")
    kill_with_engine(project, tool, "apply")

    early = project.run("apply", "growing", "--yes", "-i", "size=large")
    doubtful = project.record("server")
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    blind = project.run("apply", "growing", "--yes", "-i", "size=large", "--refresh=false")
    project.write("blueprints/growing.yaml", GROWING.replace("NAMES", "[more]"))
    settling = project.run("apply", "growing", "--yes", "-i", "size=large")

    record = project.record("server")
    assert (early.code, blind.code, settling.code) == (11, 11, 0), settling.said
    assert doubts(doubtful) == [(SERVER, "update")]
    assert (record["status"], doubts(record)) == ("ok", [])
    assert [(s["doubt"]["address"], s["how"]) for s in record["settled"]] == [(SERVER, "refreshed")]
    assert record["resources"]["created"] == ['fakecloud_server.more["more"]']


# Addresses in doubt

TWINS = """
    version: 1
    name: twins
    steps:
      one: {module: ../modules/server, inputs: {name: one}}
      two: {module: ../modules/server, inputs: {name: two}}
"""


def test_an_address_in_doubt_in_two_steps_is_forgotten_in_one(
    project: Project, cloud: Cloud
) -> None:
    """
    Without --step nobody can tell which is meant: exit 3, both named, nothing forgotten. With it
    the other one stays in doubt.
    """
    project.write("blueprints/twins.yaml", TWINS)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    for name in ("one", "two"):
        cloud.arm("create", name, "lost_answer")
    project.run("apply", "twins", "--yes", "--on-failure", "continue")
    forget = ("reconcile", "twins", "--yes", "--forget", SERVER, "--reason", "looked: none")

    vague = project.run(*forget)
    after_vague = [doubts(project.record(step)) for step in ("one", "two")]
    exact = project.run(*forget, "--step", "one")

    assert (vague.code, exact.code) == (3, 0), exact.said
    assert "is in doubt in one, two" in vague.said
    assert after_vague == [[(SERVER, "create")]] * 2
    assert [doubts(project.record(step)) for step in ("one", "two")] == [[], [(SERVER, "create")]]


# Engines that do not start


def test_an_engine_that_cannot_start_restores_the_record(project: Project, tmp_path: Path) -> None:
    """
    The program is gone between plan and apply: the marker was written, nothing was mutated, so the
    status from before is back, and the attempt is kept beside it (law: failure keeps what is
    known).
    """
    engine = watched(project, tmp_path / "engine")
    project.copy("fixtures/shared")
    text = """
        version: 1
        name: one
        inputs: {value: {type: string, default: first}}
        steps:
          object:
            module: ../fixtures/shared/object
            inputs: {name: one, value: "${inputs.value}"}
    """
    project.write("blueprints/one.yaml", text)
    project.ok("apply", "one", "--yes")
    before = project.record("object")
    engine.vanish_after("plan")

    ended = project.run("apply", "one", "--yes", "-i", "value=second")

    record = project.record("object")
    assert ended.code == 10, ended.said
    assert [entry["status"] for entry in project.history("object")][-2:] == ["running", "ok"]
    assert record["outputs"] == before["outputs"]
    assert record["last_attempt"]["mutated"] is False
    assert record["active_command"] is None
