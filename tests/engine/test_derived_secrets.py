"""
Law: secrets travel with values.
What is made from a secret is one: for the steps it goes to, in what is stored, and in later runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project import Ended, Project, every_engine

pytestmark = pytest.mark.engine

SECRET = "hunter2-w0rd"

#: Nothing here is declared sensitive, as in many a module.
MODULE = """
variable "pw" { type = string }
resource "terraform_data" "it" { input = "made" }
output "url" { value = "url-${var.pw}" }
output "plain" { value = "nothing-of-it" }
"""

#: An output that the module calls sensitive, with a value that no input holds.
MINT = """
resource "terraform_data" "it" { input = "made" }
output "token" {
  value     = join("-", ["minted", "t0ken"])
  sensitive = true
}
"""

BLUEPRINT = """
version: 1
name: derived
inputs:
  password: {type: string, sensitive: true}
steps:
  mint: {module: ../mint}
  b: {module: ../m, inputs: {pw: "${inputs.password}"}}
  c: {module: ../m, inputs: {pw: "${steps.b.outputs.url}"}}
  d: {module: ../m, inputs: {pw: "${steps.mint.outputs.token}"}}
  e: {module: ../m, inputs: {pw: "${steps.d.outputs.url}"}}
"""
MINTED = "minted-t0ken"


@pytest.fixture
def project(project: Project) -> Project:
    project.write("m/main.tf", MODULE)
    project.write("mint/main.tf", MINT)
    project.write("blueprints/derived.yaml", BLUEPRINT)
    project.environ["ORCHESTRATOR_INPUT_password"] = SECRET
    return project


def may_hold_secrets(path: Path, own: Path) -> bool:
    return path.relative_to(own).parts[0] == "state"


def leaks(project: Project, *ended: Ended) -> list[str]:
    """
    The places where a secret stands that must not hold one.
    """
    places = {f"terminal {n}": item.said for n, item in enumerate(ended)}
    for path in project.own.rglob("*"):
        if path.is_file() and not may_hold_secrets(path, project.own):
            places[str(path.relative_to(project.own))] = path.read_bytes().decode(errors="replace")
    return [place for place, text in places.items() if SECRET in text or MINTED in text]


@every_engine
def test_what_is_made_from_a_secret_is_withheld_downstream_and_in_later_runs(
    project: Project,
) -> None:
    """
    A step whose module calls nothing sensitive is given a secret and returns it within an output;
    the next step gets that output. Nothing that is stored or printed holds it, also in a run of the
    last steps alone, which does not see where the secret came from.
    """
    first = project.run("apply", "derived", "--yes", "-v")
    later = [
        project.run(*arguments)
        for arguments in (
            ("apply", "derived", "--yes", "--step", "c", "--step", "e", "-v"),
            ("apply", "derived", "--yes", "--step", "e", "--json"),
            ("plan", "derived", "--json", "--step", "c", "--step", "e"),
            ("status", "derived", "--json"),
            ("history", "derived/default/e", "--json"),
        )
    ]

    assert [item.code for item in (first, *later)] == [0] * 6
    assert leaks(project, first, *later) == []
    assert project.record("e")["sensitive_outputs"] == ["url"]
    assert project.record("e")["outputs"] == {"plain": "nothing-of-it"}


def test_the_value_itself_still_reaches_the_module(project: Project) -> None:
    """
    What is withheld from people is not withheld from modules: the state holds it whole.
    """
    project.ok("apply", "derived", "--yes")
    project.ok("apply", "derived", "--yes", "--step", "e")

    (state,) = project.own.glob("state/**/e*.tfstate")

    assert json.loads(state.read_text())["outputs"]["url"]["value"] == f"url-url-{MINTED}"


def test_a_destroy_of_what_was_given_a_derived_secret_finds_it_again(project: Project) -> None:
    """
    The recorded inputs name where the value came from, so that a destroy fetches it there.
    """
    project.ok("apply", "derived", "--yes")

    ended = project.run("destroy", "derived", "--yes", "-v")

    assert ended.code == 0
    assert leaks(project, ended) == []
