"""
Over generated blueprints and edits, the plan of all steps as one says what each step's own plan
says, and what an apply then does.

A few examples in CI; ORCHESTRATOR_TEST_EXAMPLES=200 tries more.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.project import Project

pytestmark = pytest.mark.engine

EXAMPLES = int(os.environ.get("ORCHESTRATOR_TEST_EXAMPLES", "1"))
#: What a module is made of; each part is left out or put back by an edit. ``VALUE`` comes from an
#: input of the blueprint or from another step.
PARTS = {
    "plain": """
        resource "terraform_data" "plain" { input = var.value }
    """,
    "counted": """
        resource "terraform_data" "counted" {
          count = 2
          input = [var.value, count.index]
        }
    """,
    "keyed": """
        resource "terraform_data" "keyed" {
          for_each = toset(["x", "y.z"])
          input    = { (each.key) = var.value }
        }
    """,
    "replaced": """
        resource "terraform_data" "replaced" { triggers_replace = [var.value, var.n] }
    """,
    "nested": """
        module "inner" {
          source = "./inner"
          value  = var.value
        }
    """,
    "looked_up": """
        resource "terraform_data" "looked_up" {
          input      = var.n
          depends_on = [terraform_data.base]
        }
    """,
    "secret": """
        resource "terraform_data" "secret" { input = sensitive("s-${var.n}") }
    """,
    "check": """
        check "small" {
          assert {
            condition     = var.n < 2
            error_message = "large"
          }
        }
    """,
}
BASE = """
variable "value" { type = any }
variable "n" { type = number }
resource "terraform_data" "base" { input = var.n }
output "value" { value = terraform_data.base.output }
output "id" { value = terraform_data.base.id }
output "whole" { value = { n = [var.n, "${var.n}"], none = null } }
output "hidden" {
  value     = "h-${var.n}"
  sensitive = true
}
"""
INNER = 'variable "value" {}\nresource "terraform_data" "inner" { input = var.value }\n'
OUTPUTS = ("value", "id", "whole", "hidden")


@dataclass
class Step:
    """
    A step: the parts of its module, its number, and what its value is: an output of a step before
    it, or a text.
    """

    parts: frozenset[str]
    n: int
    value: tuple[int, str] | str
    needs: tuple[int, ...] = ()


@dataclass
class Story:
    """
    A blueprint, and the same after an edit.
    """

    before: list[Step]
    after: list[Step]


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    found: list[Step] = []
    for number in range(draw(st.integers(2, 4))):
        value: Any = draw(st.sampled_from(["one", "${odd}", "", 'a "b"']))
        if number and draw(st.booleans()):
            value = (draw(st.integers(0, number - 1)), draw(st.sampled_from(OUTPUTS)))
        needs = draw(st.sets(st.integers(0, number - 1), max_size=1)) if number else set()
        parts = draw(st.frozensets(st.sampled_from(sorted(PARTS)), max_size=4))
        found.append(Step(parts, draw(st.integers(0, 2)), value, tuple(needs)))
    return found


@st.composite
def stories(draw: st.DrawFn) -> Story:
    before = draw(steps())
    after = []
    for step in before:
        edit = draw(st.sampled_from(["same", "same", "number", "parts"]))
        n = draw(st.integers(0, 2)) if edit == "number" else step.n
        parts = step.parts
        if edit == "parts":
            parts = draw(st.frozensets(st.sampled_from(sorted(PARTS)), max_size=4))
        after.append(Step(parts, n, step.value, step.needs))
    return Story(before, after)


def write(project: Project, found: list[Step]) -> None:
    blueprint: dict[str, Any] = {"version": 1, "name": "any", "steps": {}}
    for number, step in enumerate(found):
        module = project.root / f"modules/m{number}"
        shutil.rmtree(module, ignore_errors=True)
        text = "\n".join([BASE, *(PARTS[part] for part in sorted(step.parts))])
        project.write(f"modules/m{number}/main.tf", text)
        project.write(f"modules/m{number}/inner/main.tf", INNER)
        value = step.value
        if isinstance(value, tuple):
            value = f"${{steps.s{value[0]}.outputs.{value[1]}}}"
        else:
            value = value.replace("${", "$${")
        blueprint["steps"][f"s{number}"] = {
            "module": f"../modules/m{number}",
            "inputs": {"value": value, "n": step.n},
            "needs": [f"s{other}" for other in step.needs],
        }
    project.write("blueprints/any.yaml", json.dumps(blueprint, indent=1))


def upstreams(found: list[Step], number: int) -> set[int]:
    value = found[number].value
    direct = {*found[number].needs} | ({value[0]} if isinstance(value, tuple) else set())
    return direct.union(*(upstreams(found, up) for up in direct)) if direct else set()


def told(row: dict[str, Any]) -> dict[str, Any]:
    """
    What a row says of the plan, whichever way it was made.
    """
    names = ("status", "counts", "outputs_changed")
    lists = ("actions", "resources", "drift")  # in the order in which the engine got to them
    return {
        **{name: row[name] for name in names},
        **{name: sorted(row[name], key=json.dumps) for name in lists},
        # A step's own plan without news is not read: nobody looks for what holds.
        "checks": [item for item in row["checks"] if item["status"] != "pass"],
    }


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 1,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=stories())
def test_one_plan_says_what_each_plan_says(engine: str, story: Story) -> None:
    """
    Where no upstream changes both ways say the same of a step. What the one plan calls unchanged an
    apply leaves alone, and what it calls planned it changes; then there is nothing left.
    """
    with tempfile.TemporaryDirectory() as place:
        project = Project(Path(place), engine=engine)
        write(project, story.before)
        project.ok("apply", "any", "--yes")
        write(project, story.after)
        together = project.ok("plan", "any", "--json").rows
        apart = project.ok("plan", "any", "--json", "--separate").rows
        changing = {name for name, row in together.items() if row["status"] != "unchanged"}
        for number in range(len(story.after)):
            name = f"s{number}"
            if not {f"s{up}" for up in upstreams(story.after, number)} & changing:
                assert told(together[name]) == told(apart[name]), name

        applied = project.ok("apply", "any", "--yes", "--json")
        finished = {
            line["step"]: line["changed"]
            for line in applied.events
            if line["type"] == "step_finished"
        }
        for name, row in together.items():
            if row["status"] != "deferred":
                assert finished[name] == (row["status"] == "planned"), (name, row)

        repeated = project.ok("apply", "any", "--yes", "--json")
        assert not any(line.get("changed") for line in repeated.events)
        after = project.ok("plan", "any", "--json").document
        assert after["verdict"] == "no_changes", after
