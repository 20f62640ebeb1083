"""
A request with a token is carried out once; jobs of one pipeline, which share it, work side by side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.modules import COMMAND_MODULE
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Project, eventually, finish

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: fan
    inputs:
      value: {{type: string, default: one}}
    backend: {{type: local, config: {{path: "{shared}/${{step.name}}.tfstate"}}}}
    operations: {{url: "sqlite:{shared}/operations.db"}}
    steps:
      a: {{module: ../modules/m, inputs: {{value: "${{inputs.value}}"}}}}
      b: {{module: ../modules/m, inputs: {{value: "${{inputs.value}}"}}}}
      last: {{module: ../modules/m, inputs: {{value: last}}, needs: [a]}}
"""
TOKEN = ("--request-token", "pipeline-17")


def machine(tmp_path: Path, name: str, engine: str) -> Project:
    """
    A checkout on a machine of its own; states and records lie in one place.
    """
    project = Project(tmp_path / name, engine=engine)
    project.write("modules/m/main.tf", COMMAND_MODULE)
    shared = tmp_path / "shared"
    shared.mkdir(exist_ok=True, mode=0o700)
    project.write("blueprints/fan.yaml", BLUEPRINT.format(shared=shared))
    project.write("orchestrator.yaml", "project: acme\n")
    return project


def runs(project: Project) -> list[str]:
    return [row["run_id"] for row in project.ok("runs", "--json").document["runs"]]


def test_a_repeated_request_returns_the_run_it_made(tmp_path: Path, engine: str) -> None:
    """
    On another machine, too, with the same exit code and the same document; without the token, or
    with another, it is a request of its own. The token of one request is none of another's.
    """
    first, second = (machine(tmp_path, name, engine) for name in ("first", "second"))
    made = first.run("apply", "fan", "--yes", "--json", *TOKEN)
    again = second.run("apply", "fan", "--yes", "--json", *TOKEN)
    assert (made.code, again.code) == (0, 0), again.said
    ended = again.events[-1]
    assert ended["run_id"] == made.events[-1]["run_id"]
    assert again.statuses == made.statuses
    assert not list(second.own.glob("runs/*"))
    shown = second.ok("apply", "fan", "--yes", *TOKEN).said
    assert "nothing is done again" in " ".join(shown.split())
    assert "apply fan/default: exit 0" in shown

    by_environment = {"ORCHESTRATOR_REQUEST_TOKEN": "pipeline-18"}
    other = second.run("apply", "fan", "--yes", "--json", environ=by_environment)
    assert other.events[-1]["run_id"] != ended["run_id"]
    wrong = second.run("apply", "fan", "--yes", "-i", "value=two", *TOKEN)
    assert wrong.code == 4
    assert "was given to another request" in " ".join(wrong.said.split())
    assert first.ok("destroy", "fan", "--yes", *TOKEN).code == 0


def test_requests_made_at_once_are_carried_out_once(tmp_path: Path, engine: str) -> None:
    """
    The one that does not get the claim does not take the request from the other.
    """
    project = machine(tmp_path, "first", engine)
    argv = ("apply", "fan", "--yes", "--json", *TOKEN)
    project.ok("validate", "fan")
    both = [finish(tool) for tool in [project.start(*argv) for _ in range(2)]]
    assert {result.code for result in both} <= {0, 20}
    for last in (result.events[-1] for result in both if result.code == 20):
        if "next" not in last:  # claimed before its run began: nothing is offered but to wait
            assert last["code"] == "busy"
            continue
        commands = [item["command"] for item in last["next"]]
        assert " ".join(TOKEN) in commands[0]
        assert not any(" destroy " in command for command in commands), commands
    made = next(result for result in both if result.code == 0).events[-1]["run_id"]
    assert project.ok(*argv).events[-1]["run_id"] == made


def test_what_failed_is_returned_only_if_it_did_something(tmp_path: Path, engine: str) -> None:
    """
    A failed apply is the answer to its request; one that was not even planned is made again.
    """
    project = machine(tmp_path, "first", engine)
    refused = project.run("apply", "fan", "--yes", "--json", "--step", "last", *TOKEN)
    assert refused.code == 4, refused.said
    project.ok("apply", "fan", "--yes", "--step", "a")
    done = project.run("apply", "fan", "--yes", "--json", "--step", "last", *TOKEN)
    assert (done.code, done.statuses) == (0, {"last": "ok"})

    arguments = ("apply", "fan", "--yes", "--json", "--step", "b", *TOKEN)
    project.write("modules/m/main.tf", COMMAND_MODULE.replace("var.command", '"false"'))
    failed = project.run(*arguments)
    project.write("modules/m/main.tf", COMMAND_MODULE)
    again = project.run(*arguments)
    assert (failed.code, again.code) == (10, 10)
    assert again.events[-1]["run_id"] == failed.events[-1]["run_id"]
    assert again.events[-1]["next"], "the way on is said again"
    assert project.ok("apply", "fan", "--yes").code == 0


def test_jobs_of_one_pipeline_work_side_by_side(tmp_path: Path, engine: str) -> None:
    """
    With one token and no step in common. Anybody else is turned away, the same steps too, and what
    depends on them; the claim is held until the last of them has ended.
    """
    first, second = (machine(tmp_path, name, engine) for name in ("first", "second"))
    slow = watched(first, tmp_path / "slow")
    slow.hold("apply")
    tool = first.start("apply", "fan", "--yes", "--step", "a", *TOKEN)
    slow.wait_until_held("apply", tool)

    beside = second.run("apply", "fan", "--yes", "--json", "--step", "b", *TOKEN)
    strangers = [
        second.run("apply", "fan", "--yes", "--step", "b").code,
        second.run("apply", "fan", "--yes", "--step", "b", "--request-token", "other").code,
        second.run("apply", "fan", "--yes", "--step", "a", *TOKEN).code,
        second.run("apply", "fan", "--yes", "--step", "last", *TOKEN).code,
        second.run("destroy", "fan", "--yes", "--step", "b", *TOKEN).code,
    ]
    going_on = tool.poll() is None
    slow.release("apply")
    ended = finish(tool)

    assert (beside.code, beside.statuses) == (0, {"b": "ok"}), beside.said
    assert strangers == [20, 20, 20, 20, 20]
    assert (going_on, ended.code) == (True, 0), ended.said
    waited = second.run("apply", "fan", "--yes", "--json", "--step", "last", *TOKEN)
    assert (waited.code, waited.statuses) == (0, {"last": "ok"})
    assert second.ok("apply", "fan", "--yes").code == 0


def test_jobs_in_one_checkout_take_turns(tmp_path: Path, engine: str) -> None:
    """
    Working directories are one process's: another job of the pipeline is turned away, and with
    --wait goes on once they are free.
    """
    project = machine(tmp_path, "first", engine)
    slow = watched(project, tmp_path / "slow")
    slow.hold("apply")
    tool = project.start("apply", "fan", "--yes", "--step", "a", *TOKEN)
    slow.wait_until_held("apply", tool)

    beside = ("apply", "fan", "--yes", "--step", "b", *TOKEN)
    turned_away = project.run(*beside)
    waiting = project.start(*beside, "--wait")
    eventually(lambda: len(list(project.own.glob("runs/*/run.json"))) == 3, "a third run", waiting)
    slow.release("apply")

    assert (turned_away.code, finish(tool).code, finish(waiting).code) == (20, 0, 0)
    assert "a checkout of its own" in " ".join(turned_away.said.split())
    assert project.ok("status", "fan", "--json").statuses["b"] == "ok"


def test_a_job_that_was_killed_is_made_again(tmp_path: Path, engine: str) -> None:
    """
    With the same token, while a job beside it goes on: it settles what the killed one left.
    """
    first, second = (machine(tmp_path, name, engine) for name in ("first", "second"))
    slow, dying = watched(first, tmp_path / "slow"), watched(second, tmp_path / "dying")
    for engine_of_it in (slow, dying):
        engine_of_it.hold("apply")
    tool = first.start("apply", "fan", "--yes", "--step", "a", *TOKEN)
    slow.wait_until_held("apply", tool)
    killed = second.start("apply", "fan", "--yes", "--step", "b", *TOKEN)
    dying.wait_until_held("apply", killed)
    kill_with_engine(second, killed, "apply")
    dying.release("apply")

    again = second.run("apply", "fan", "--yes", "--json", "--step", "b", *TOKEN)
    going_on = tool.poll() is None
    slow.release("apply")

    assert (going_on, finish(tool).code) == (True, 0)
    assert (again.code, again.statuses) in [(0, {"b": "ok"}), (11, {"b": "error"})], again.said
