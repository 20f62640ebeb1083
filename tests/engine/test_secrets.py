"""
Law: secrets travel with values.
No secret in a record, report, log or terminal, at any level of verbosity, however printed.

Every file of the tool is searched for every form of every secret, but those that the law names.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import stat
import tarfile
from pathlib import Path

import pytest

from tests import secret_forms
from tests.project import Ended, Project, eventually, every_engine, finish
from tests.secret_forms import found_in

pytestmark = pytest.mark.engine

PLAIN = 's3c&<ret"\\with/every+thing=%'
MULTI = "first-l1ne & <more>\nsecond-l1ne: 'quoted' \"twice\"\n\tthird-l1ne"
NESTED = "n3sted-value/+?"
NUMBER = 918273645
FROM_ENV = "fr0m-the-env1ronment"
TOKEN = f"tok-{hashlib.sha256(PLAIN.encode()).hexdigest()}"

SECRETS = {
    "plain": PLAIN, "multi": MULTI, "nested": NESTED, "env": FROM_ENV, "token": TOKEN,
    "number": str(NUMBER),
}  # fmt: skip

MODULE = r"""
variable "plain" {
  type      = string
  sensitive = true
}
variable "nested" {
  type      = any
  sensitive = true
}
variable "from_env" { type = string }
variable "hold" { type = string }
variable "fails" {
  type    = bool
  default = false
}
locals {
  plain  = nonsensitive(var.plain)
  nested = nonsensitive(var.nested)
  all    = [local.plain, local.nested.list[0], local.nested.list[1], var.from_env]
}
resource "terraform_data" "talks" {
  input = { fails = var.fails, url = "https://x/?p=${urlencode(local.plain)}", id = local.plain }
  provisioner "local-exec" {
    command     = <<-EOT
      echo "$RAW"; echo "$URL"; echo "$BASE64"; echo "$JSON"; echo "$RAW" >&2
      while [ -e "$HOLD" ]; do sleep 0.05; done
      test $FAILS = false
    EOT
    environment = {
      HOLD   = var.hold
      FAILS  = var.fails
      RAW    = join("\n", local.all)
      URL    = join("\n", [for s in local.all : urlencode(s)])
      BASE64 = join("\n", [for s in local.all : base64encode(s)])
      JSON   = jsonencode({ all = local.all, number = local.nested.number })
    }
  }
}
output "token" {
  value     = "tok-${sha256(var.plain)}"
  sensitive = true
}
output "quoted" {
  value = { raw = local.all, json = jsonencode(local.all), n = local.nested.number }
}
"""

BLUEPRINT = """
version: 1
name: secrets
inputs:
  plain: {type: string, sensitive: true}
  multi: {type: string, sensitive: true}
  structure: {type: any, sensitive: true}
  fails: {type: bool, default: false}
  hold: {type: string, default: none}
steps:
  talker:
    module: ../talker
    inputs:
      plain: "${inputs.plain}"
      nested:
        list: ["${inputs.multi}", "${inputs.structure.deep}"]
        number: "${inputs.structure.n}"
      from_env: "${env.SECRET_FROM_ENV}"
      fails: "${inputs.fails}"
      hold: "${inputs.hold}"
  careless:
    module: ../fixtures/shared/object
    inputs: {name: careless, value: "${steps.talker.outputs.token}"}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    project.write("talker/main.tf", MODULE)
    project.write("talker/mine.auto.tfvars", f'from_env = "{FROM_ENV}"\n')
    project.write("talker/.env", f"X={FROM_ENV}\n")
    project.write("blueprints/secrets.yaml", BLUEPRINT)
    project.environ |= {
        "ORCHESTRATOR_INPUT_plain": PLAIN,
        "ORCHESTRATOR_INPUT_multi": MULTI,
        "ORCHESTRATOR_INPUT_structure": json.dumps({"deep": NESTED, "n": NUMBER}),
        "SECRET_FROM_ENV": FROM_ENV,
    }
    return project


def files(project: Project) -> list[Path]:
    return [path for path in project.own.rglob("*") if path.is_file()]


def provider_state(project: Project) -> str:
    """
    What may hold secrets: that they are found there proves that the search finds them.
    """
    return "".join(path.read_text() for path in project.own.glob("state/**/*.tfstate"))


def found(text: str) -> set[tuple[str, str]]:
    return found_in(text, SECRETS)


def leaks(project: Project, *ended: Ended) -> dict[str, set[tuple[str, str]]]:
    return secret_forms.leaks(project, SECRETS, *ended)


def readable_by_others(project: Project) -> list[str]:
    """
    Files and directories of the tool that somebody else may read.
    """
    return [
        f"{path.relative_to(project.root)} {stat.filemode(path.lstat().st_mode)}"
        for path in (project.own, *project.own.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


def left_over(project: Project) -> list[str]:
    """
    Plans, variable files and raw output that outlived their call.
    """
    return [
        str(path.relative_to(project.own))
        for path in files(project)
        if path.name.endswith((".tfvars.json", ".tfvars", ".tfplan")) or "raw" in path.parts
    ]


@every_engine
def test_an_apply_shows_no_secret_at_debug_level(project: Project) -> None:
    """
    Inputs, outputs used downstream and what provisioners print, in all forms: nowhere.
    """
    ended = project.run("--log-level", "debug", "apply", "secrets", "--yes", "-v")

    assert ended.code == 0
    assert "(sensitive)" in ended.out
    assert leaks(project, ended) == {}
    assert {name for name, _ in found(provider_state(project))} == set(SECRETS)
    assert readable_by_others(project) == []
    assert left_over(project) == []


def test_reading_commands_show_no_secret(project: Project) -> None:
    """
    What is recorded of outputs that quote a secret, also where nothing changed any more, and what
    a plan quotes, is masked as well.
    """
    for _ in range(2):
        project.prepare("apply", "secrets", "--yes")

    read = [
        project.run("--log-level", "debug", *arguments)
        for arguments in (
            ("plan", "secrets", "--json", "-i", "fails=true"),
            ("status", "secrets", "--json"),
            ("history", "secrets/default/talker", "--json"),
            ("runs", "show", project.last_run()["run_id"], "--json"),
        )
    ]

    assert [ended.code for ended in read] == [0] * 4
    assert leaks(project, *read) == {}
    assert project.record("talker")["sensitive_outputs"] == ["quoted", "token"]


def test_a_failure_that_quotes_secrets_shows_none(project: Project) -> None:
    """
    The engine's error holds the whole output of the failed command; as JSON lines at debug level.
    """
    ended = project.run(
        "--log-level", "debug", "apply", "secrets", "--yes", "--json", "-i", "fails=true"
    )

    assert ended.code == 10
    assert ended.events[-1]["type"] == "run_finished"
    assert leaks(project, ended) == {}
    assert left_over(project) == []


def test_a_refused_value_shows_no_secret(project: Project) -> None:
    """
    What planning refuses is told by its rule, without the value, and the record stays as it was.
    """
    blueprint = project.fixture("rejects-secret")
    project.environ |= {
        "ORCHESTRATOR_INPUT_secret": PLAIN,
        "ORCHESTRATOR_INPUT_other_secret": MULTI,
    }

    ended = project.run("--log-level", "debug", "apply", blueprint, "--yes", "-v")

    assert ended.code == 10
    assert "does not begin with good-" in ended.out
    assert leaks(project, ended) == {}
    assert project.entries("object") == []


def test_a_secret_of_the_wrong_type_is_not_quoted(project: Project) -> None:
    """
    Even the error that says what is wrong with an input does not show it.
    """
    project.write("typed.yaml", BLUEPRINT.replace("plain: {type: string", "plain: {type: number"))

    ended = project.run("--log-level", "debug", "apply", "typed.yaml", "--yes", "--json")

    assert ended.code == 3
    assert "must be a number" in ended.err
    assert leaks(project, ended) == {}


def test_after_a_kill_and_its_settling_nothing_is_left(project: Project) -> None:
    """
    The tool is killed in the middle: the wrapper removes plan and inputs when the engine ends, and
    the next run, settling from the raw output, shows none of it.
    """
    hold = project.write("hold", "")
    tool = project.start("apply", "secrets", "--yes", "-i", f"hold={hold}")
    eventually(lambda: _is_talking(project), "the provisioner talks", tool)
    os.kill(tool.pid, signal.SIGKILL)
    killed = finish(tool)
    hold.unlink()
    eventually(lambda: _is_answered(project), "the engine ends")
    after_the_call = [name for name in left_over(project) if "/raw/" not in name]

    ended = project.run("--log-level", "debug", "apply", "secrets", "--yes", "-v")

    assert after_the_call == []
    assert ended.code == 0
    assert "was interrupted" in ended.out
    assert leaks(project, killed, ended) == {}
    assert readable_by_others(project) == []
    assert left_over(project) == []


def test_snapshots_leave_out_what_holds_secrets(project: Project) -> None:
    """
    What is stored of a module is its configuration: no variable files, no environment files.
    """
    project.prepare("apply", "secrets", "--yes")

    members = [name for blob in project.blobs("snapshots/") for name in _names(blob)]

    assert any(name.endswith("main.tf") for name in members)
    assert [name for name in members if name.endswith((".tfvars", ".env"))] == []


def test_a_confirmed_destroy_leaves_no_secret_in_any_file(project: Project) -> None:
    """
    Also not in the copy that the engine keeps of a local provider state; one that failed keeps it.
    """
    project.prepare("apply", "secrets", "--yes")
    project.write("talker/hold.tf", """
        resource "terraform_data" "stays" {
          depends_on = [terraform_data.talks]
          provisioner "local-exec" {
            when    = destroy
            command = "test -e /proc/self/cwd/go"
          }
        }
        """)  # fmt: skip
    project.prepare("apply", "secrets", "--yes")
    failed = project.run("destroy", "secrets", "--yes")
    kept = {name for name, _ in found(provider_state(project))}
    (directory,) = project.own.glob("work/secrets/default/talker*/")
    (directory / "go").touch()

    ended = project.run("destroy", "secrets", "--yes", "-v")

    assert (failed.code, ended.code) == (10, 0), failed.said + ended.said
    assert "plain" in kept
    held = "".join(path.read_bytes().decode(errors="replace") for path in files(project))
    assert found(held) == set()


def _names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return opened.getnames()


def _is_talking(project: Project) -> bool:
    wanted = base64.b64encode(PLAIN.encode())
    return any(wanted in path.read_bytes() for path in project.own.rglob("raw/apply.stdout"))


def _is_answered(project: Project) -> bool:
    return any(project.own.rglob("apply.answer.json"))
