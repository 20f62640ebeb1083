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

from orchestrator.domain.values import replace
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
    "share": """
        resource "terraform_data" "share" { input = [var.n / 3, var.n / 10000000] }
    """,
    "secret": """
        resource "terraform_data" "secret" { input = sensitive("s-${var.n}") }
    """,
    "former": """
        resource "terraform_data" "former" { input = var.n }
    """,
    "moved": """
        resource "terraform_data" "renamed" { input = var.n }
        moved {
          from = terraform_data.former
          to   = terraform_data.renamed
        }
    """,
    "let_go": """
        resource "terraform_data" "let_go" { input = "kept" }
    """,
    "removed": """
        removed {
          from = terraform_data.let_go
          lifecycle { destroy = false }
        }
    """,
    "nested_elsewhere": """
        module "outer" {
          source = "./outer"
          value  = var.value
        }
        moved {
          from = module.inner
          to   = module.outer.module.inner
        }
    """,
    "imported": """
        resource "terraform_data" "taken" { input = var.n }
        import {
          to = terraform_data.taken
          id = "it-was-there"
        }
    """,
    "aliased": """
        resource "terraform_data" "aliased" {
          provider = terraform.second
          input    = var.value
        }
        module "aliased" {
          source    = "./inner"
          value     = var.n
          providers = { terraform = terraform.second }
        }
    """,
    "read": """
        data "terraform_remote_state" "read" {
          backend  = "local"
          config   = { path = "EMPTY" }
          defaults = { value = var.value }
        }
        resource "terraform_data" "read" { input = data.terraform_remote_state.read.outputs }
    """,
    "over": """
        resource "terraform_data" "over" {
          for_each = toset(try(compact([tostring(var.value)]), []))
          input    = each.key
        }
    """,
    "ephemeral": """
        variable "once" {
          type      = string
          default   = "x"
          ephemeral = true
        }
    """,
    "backend": """
        terraform {
          backend "local" {}
        }
    """,
    "check_reads": """
        check "reads" {
          data "terraform_remote_state" "nested" {
            backend = "local"
            config  = { path = "EMPTY" }
          }
          assert {
            condition     = length(data.terraform_remote_state.nested.outputs) == var.n
            error_message = "not as many"
          }
        }
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
#: Parts of which a module has one at most.
EITHER = ({"former", "moved"}, {"let_go", "removed"}, {"nested", "nested_elsewhere"})
BASE = """
variable "value" {
  type      = any
  sensitive = MARKED
}
variable "n" { type = number }
resource "terraform_data" "base" { input = var.n }
output "value" { value = terraform_data.base.output }
output "id" { value = terraform_data.base.id }
output "whole" { value = { n = [var.n, "${var.n}"], none = null } }
output "listed" { value = tolist([tomap({ a = "${var.n}" })]) }
output "keys" { value = toset(["${var.n}", "b"]) }
output "none" { value = tostring(null) }
output "hidden" {
  value     = "h-${var.n}"
  sensitive = true
}
"""
#: A module that configures its providers itself, one of them under an alias.
OWN = 'provider "terraform" {}\nprovider "terraform" { alias = "second" }\n'
OUTER = 'variable "value" {}\nmodule "inner" {\n source = "../inner"\n value = var.value\n}\n'
INNER = 'variable "value" {}\nresource "terraform_data" "inner" { input = var.value }\n'
OUTPUTS = ("value", "id", "whole", "hidden", "listed", "keys", "none")


@dataclass
class Step:
    """
    A step: the parts of its module, its number, and what its value is: an output of a step before
    it, or a text. ``own``: its module configures the provider; ``marked``: its value is a secret.
    """

    parts: frozenset[str]
    n: int
    value: tuple[int, str] | str
    needs: tuple[int, ...] = ()
    own: bool = False
    marked: bool = False


@dataclass
class Story:
    """
    A blueprint, and the same after an edit.
    """

    before: list[Step]
    after: list[Step]


@st.composite
def parts_of(draw: st.DrawFn, *, own: bool, marked: bool) -> frozenset[str]:
    found: set[str] = set(draw(st.frozensets(st.sampled_from(sorted(PARTS)), max_size=5)))
    for pair in EITHER:
        if pair <= found:
            found.discard(draw(st.sampled_from(sorted(pair))))
    if not own:
        found.discard("aliased")
    if marked:  # no engine makes keys of a secret
        found.discard("over")
    return frozenset(found)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    found: list[Step] = []
    for number in range(draw(st.integers(2, 4))):
        value: Any = draw(st.sampled_from(["one", "${odd}", "", 'a "b"']))
        if number and draw(st.booleans()):
            value = (draw(st.integers(0, number - 1)), draw(st.sampled_from(OUTPUTS)))
        needs = draw(st.sets(st.integers(0, number - 1), max_size=1)) if number else set()
        own, marked = draw(st.booleans()), draw(st.integers(0, 3)) == 0
        # A secret is masked wherever it stands: its value is that of no other step.
        marked = marked and isinstance(value, str)
        value = f"hush {number}" if marked else value
        parts = draw(parts_of(own=own, marked=marked))
        n = draw(st.integers(0, 2))
        found.append(Step(parts, n, value, tuple(needs), own=own, marked=marked))
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
            parts = draw(parts_of(own=step.own, marked=step.marked))
        after.append(replace(step, parts=parts, n=n))
    return Story(before, after)


def write(project: Project, found: list[Step]) -> None:
    blueprint: dict[str, Any] = {"version": 1, "name": "any", "steps": {}}
    project.write("empty.tfstate", json.dumps({"version": 4, "lineage": "empty", "serial": 1}))
    for number, step in enumerate(found):
        module = project.root / f"modules/m{number}"
        shutil.rmtree(module, ignore_errors=True)
        base = BASE.replace("MARKED", json.dumps(step.marked)) + OWN * step.own
        text = "\n".join([base, *(PARTS[part] for part in sorted(step.parts))])
        text = text.replace("EMPTY", str(project.root / "empty.tfstate"))
        project.write(f"modules/m{number}/main.tf", text)
        project.write(f"modules/m{number}/outer/main.tf", OUTER)
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
    lists = (
        "actions",
        "resources",
        "drift",
        "diagnostics",
    )  # in the order in which the engine got to them
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
        taken = ("--accept-adopted", "what an import block took may go again")
        together = project.ok("plan", "any", "--json", *taken).rows
        apart = project.ok("plan", "any", "--json", "--separate", *taken).rows
        changing = {name for name, row in together.items() if row["status"] != "unchanged"}
        for number in range(len(story.after)):
            name = f"s{number}"
            if not {f"s{up}" for up in upstreams(story.after, number)} & changing:
                assert told(together[name]) == told(apart[name]), name

        applied = project.ok("apply", "any", "--yes", "--json", *taken)
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
