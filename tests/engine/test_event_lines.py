"""
What running commands print with ``--json`` is what the published schema says: line by line, of
every command, and no field that it does not know.
"""

from __future__ import annotations

import json
from typing import Any, cast

import click
import jsonschema
import pytest

from orchestrator.cli.main import cli
from tests.project import REPOSITORY, Project

pytestmark = pytest.mark.engine

MODULE = """
    variable "value" { type = string }
    variable "password" {
      type      = string
      sensitive = true
    }
    resource "terraform_data" "this" { input = [var.value, var.password] }
    check "size" {
      assert {
        condition     = length(var.value) < 4
        error_message = "too long"
      }
    }
    output "value" { value = terraform_data.this.output }
"""
BLUEPRINT = """
    version: 1
    name: shop
    inputs:
      value: {type: string, default: one}
      password: {type: string, sensitive: true}
    backend: {type: local, config: {path: "states/${step.name}.tfstate"}}
    steps:
      a:
        module: ../modules/m
        inputs: {value: "${inputs.value}", password: "${inputs.password}"}
        compensate: {command: ["true"]}
        verify: [{command: {argv: [test, "${inputs.value}", "!=", two]}}]
      b: {module: ../modules/m, inputs: {value: fixed, password: x}, needs: [a]}
"""
EVENTS, ERROR = (
    json.loads((REPOSITORY / f"docs/schemas/{name}.json").read_text())
    for name in ("events", "error")
)
#: Made once: that takes longer than most lines to check.
IS_EVENT, IS_ERROR = map(jsonschema.Draft202012Validator, (EVENTS, ERROR))


def commands(group: click.Group, *path: str) -> dict[str, click.Command]:
    """
    Every command by its words.
    """
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, *path, name)
        else:
            found[" ".join((*path, name))] = command
    return found


def prints_lines(command: click.Command) -> bool:
    return any(
        isinstance(item, click.Option) and item.help == "JSON lines instead of text."
        for item in command.params
    )


def check_line(line: dict[str, Any]) -> None:
    """
    A line is an event, or the error that ended a command before it was a run.
    """
    if "schema" in line:
        IS_ERROR.validate(line)
        return
    IS_EVENT.validate(line)
    name = EVENTS["discriminator"]["mapping"][line["type"]].rpartition("/")[2]
    assert line.keys() <= EVENTS["$defs"][name]["properties"].keys(), line


def test_every_line_of_every_command(project: Project) -> None:
    """
    Runs that go well, fail, are refused, change nothing; what ends a stream is its result.
    """
    project.write("modules/m/main.tf", MODULE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    project.environ["ORCHESTRATOR_INPUT_password"] = "hush-7c1a"
    called: dict[str, str] = {}

    def call(*arguments: str) -> list[dict[str, Any]]:
        ended = project.run(*arguments, "--json")
        lines = ended.events
        for line in lines:
            check_line(line)
        assert lines[-1].get("type") == "run_finished" or "schema" in lines[-1], ended.said
        assert "hush-7c1a" not in ended.said
        names = [name for name in found if " ".join(arguments).startswith(name + " ")]
        called.update({name: lines[-1].get("type", "error") for name in names})
        return lines

    found = {
        name for name, command in commands(cast(click.Group, cli)).items() if prints_lines(command)
    }
    why = ("--reason", "a test")
    call("adopt", "shop")
    good = call("apply", "shop", "--yes")[-1]["run_id"]
    failed = call("apply", "shop", "--yes", "-i", "value=two")
    assert failed[-1]["exit_code"] == 12
    call("verify", "shop")
    call("retry", "shop", "--yes")
    call("rollback", "shop", "--to", good, "--yes", *why)
    call("redeploy", "shop", "--yes", *why)
    call("reconcile", "shop")
    call("retain", "shop", "--step", "b", "--owner", "me", "--review-by", "2099-01-01", *why)
    call("release", "shop", "--step", "b", *why)
    call("import", "shop/default/b", "terraform_data.other", "x", "--yes")
    call("compensate", "shop", "--step", "a", "--yes", *why)
    moved = (project.root / "blueprints/shop.yaml").read_text().replace("states/$", "elsewhere/$")
    (project.root / "blueprints/shop.yaml").write_text(moved)
    call("backend", "move", "shop/default/b", "--yes", *why)
    call("destroy", "shop", "--yes", "--step", "b")
    call("apply", "shop", "--step", "a")  # nobody approved it: no run

    assert found and called.keys() == found
    assert "error" in called.values()
