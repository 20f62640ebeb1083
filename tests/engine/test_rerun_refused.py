"""
Retries that meet a doubt, a conflict or a kill; provider versions and secrets of then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import kill, kill_with_engine, wait_for_answers, watched
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

SERVER = """
    version: 1
    name: web
    inputs:
      size: {type: string, default: SIZE}
    steps:
      server:
        module: ../modules/server
        inputs: {name: web, size: "${inputs.size}"}
        retry: {on: [RequestLimitExceeded], attempts: 3}
        verify: [{command: {argv: [test, -n, "${outputs.id}"]}}]
"""
CHAIN = """
    version: 1
    name: chain
    steps:
      first: {module: ../modules/thing, inputs: {value: v1, hindrance: HINDRANCE}}
      second: {module: ../modules/thing, inputs: {value: "${steps.first.outputs.value}"}}
"""
THING = """
    variable "value" { type = string }
    variable "hindrance" {
      type    = string
      default = ""
    }
    variable "token" {
      type      = string
      default   = ""
      sensitive = true
    }
    resource "terraform_data" "thing" {
      input = var.value
      provisioner "local-exec" { command = "test ! -e '${var.hindrance}'" }
    }
    output "value" { value = terraform_data.thing.output }
"""


def with_server(project: Project, *, size: str = "small") -> None:
    project.write("blueprints/web.yaml", SERVER.replace("SIZE", size))


def call(project: Project, verb: str, name: str, *options: str) -> Ended:
    return project.run(verb, name, "--yes", "--json", *options)


def last(ended: Ended) -> dict[str, Any]:
    """
    The last line: that of the run, or of the error that there was instead.
    """
    found: dict[str, Any] = ended.events[-1]
    return found


def created(cloud: Cloud) -> list[str | None]:
    return [found.name for found in cloud.calls("create")]


@pytest.mark.parametrize("verb", ["retry", "redeploy"])
def test_nothing_is_done_again_while_in_doubt(project: Project, cloud: Cloud, verb: str) -> None:
    """
    A create whose answer was lost may have made something; no new attempt is made before
    that is settled, and the way to settle it is named (law: no guessing).
    """
    with_server(project)
    cloud.arm("create", "web", "lost_answer")
    call(project, "apply", "web")
    before = project.entries("server")

    ended = call(project, verb, "web")

    assert ended.code == 11
    assert created(cloud) == ["web"]
    assert project.entries("server") == before
    assert "reconcile" in json.dumps(last(ended)["next"])


def test_a_conflict_is_not_repeated(project: Project, cloud: Cloud) -> None:
    """
    A step's `retry` is for errors that pass; a conflict is met once, neither by it nor by
    the verb again.
    """
    with_server(project)
    cloud.arm("create", "web", "already_exists", remaining=-1)

    applied = call(project, "apply", "web")
    retried = call(project, "retry", "web")

    assert (applied.code, retried.code) == (11, 11)
    assert created(cloud) == ["web"]


def test_a_rollback_uses_the_lock_file_of_then(project: Project, cloud: Cloud) -> None:
    """
    The provider versions of a run are those of its lock file, whatever was locked since for the
    same module.
    """
    del project.environ["TF_REATTACH_PROVIDERS"]  # no provider is locked that is attached to
    with_server(project)
    first = last(call(project, "apply", "web"))["run_id"]
    (lock,) = project.own.rglob("web/default/server/.terraform.lock.hcl")
    then = lock.read_bytes()
    module = project.root / "modules/server/main.tf"
    text = module.read_text()
    module.write_text(text + "# another version\n")
    lock.write_bytes(then + b"# another choice\n")
    call(project, "apply", "web")
    module.write_text(text)
    with_server(project, size="large")
    call(project, "apply", "web")
    since = lock.read_bytes()

    ended = call(project, "rollback", "web", "--to", first, "--reason", "too large")

    assert ended.code == 0, ended.said
    assert since != then
    assert lock.read_bytes() == then
    assert [server.attributes["size"] for server in cloud.servers()] == ["small"]


def chain(project: Project, hindrance: Path) -> None:
    project.write("modules/thing/main.tf", THING)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    project.write("blueprints/chain.yaml", CHAIN.replace("HINDRANCE", str(hindrance)))


def test_a_killed_retry_is_retried(project: Project, tmp_path: Path) -> None:
    """
    SIGKILL in the middle of a retry: the engine ends by itself, and the next retry settles what it
    did and goes on with the rest, from the same deployment. It comes from the killed one.
    """
    hindrance = tmp_path / "hindrance"
    engine = watched(project, tmp_path / "watched")
    chain(project, hindrance)
    hindrance.touch()
    call(project, "apply", "chain")
    hindrance.unlink()
    project.write("modules/thing/main.tf", THING.replace("input = var.value", 'input = "v2"'))
    engine.hold("apply")
    tool = project.start("retry", "chain", "--yes")
    engine.wait_until_held("apply", tool)
    kill(tool)
    killed = project.record("first")
    engine.release("apply")
    wait_for_answers(project, 2)

    ended = call(project, "retry", "chain")

    assert (killed["status"], killed["lineage"]["kind"]) == ("running", "retry")
    assert ended.code == 0, ended.said
    assert last(ended)["verdict"] == "ok"
    assert project.record("second")["lineage"]["from_run"] == killed["run_id"]
    assert [project.record(s)["outputs"]["value"] for s in ("first", "second")] == ["v1", "v1"]


def test_a_run_whose_machine_was_lost_is_retried_from_another(
    project: Project, tmp_path: Path
) -> None:
    """
    What a run meant is in the store before its first mutation: where the machine goes with all its
    files, another one settles what is in doubt and does the rest, without blueprint and modules.
    """
    engine = watched(project, tmp_path / "watched")
    chain(project, tmp_path / "hindrance")
    engine.hold("apply")
    tool = project.start("apply", "chain", "--yes")
    engine.wait_until_held("apply", tool)
    kill_with_engine(project, tool, "apply")
    engine.release("apply")
    lost = project.record("first")["run_id"]
    other = Project(tmp_path / "other", engine=project.environ["ORCHESTRATOR_ENGINE"])
    other.own.mkdir()
    for file in project.own.glob("operations.db*"):  # with what a killed process left in its log
        shutil.copy(file, other.own)

    silent = call(other, "retry", "chain")
    doubtful = call(other, "retry", "chain", "--takeover", "the machine is lost")
    forget = ("--step", "first", "--forget", "terraform_data.thing", "--reason", "none is there")
    chain(other, tmp_path / "hindrance")
    settled = other.run("reconcile", "chain", "--yes", *forget)
    for name in ("blueprints", "modules"):
        shutil.rmtree(other.root / name)
    ended = call(other, "retry", "chain", "--from-run", lost)

    assert (silent.code, doubtful.code) == (20, 11)
    assert settled.code == 0, settled.said
    assert ended.code == 0, ended.said
    assert other.record("second")["outputs"]["value"] == "v1"


def test_a_secret_in_the_blueprint_is_not_kept(project: Project, tmp_path: Path) -> None:
    """
    Law: secrets travel with values.
    What stands in a blueprint for a sensitive variable is not in the store. A retry takes
    it from the blueprint of today, and says so where it is gone.
    """
    hindrance = tmp_path / "hindrance"
    chain(project, hindrance)
    written = project.root / "blueprints/chain.yaml"
    text = written.read_text().replace("value: v1,", "value: v1, token: wr1tten-here,")
    written.write_text(text)
    hindrance.touch()
    call(project, "apply", "chain")
    hindrance.unlink()
    kept = b"".join(project.blobs(""))
    written.write_text(text.replace("token: wr1tten-here,", ""))
    without = call(project, "retry", "chain")
    written.write_text(text.replace("wr1tten", "ch4nged"))
    changed = call(project, "retry", "chain")
    written.write_text(text)

    ended = call(project, "retry", "chain")

    assert b"wr1tten" not in kept
    assert without.code == 3
    assert "'token' of step 'first' was written in the blueprint only" in without.said
    assert changed.code == 4
    assert "steps.first.inputs.token" in last(changed)["error"]
    assert ended.code == 0, ended.said
