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
    project.prepare("apply", "derived", "--yes")
    project.ok("apply", "derived", "--yes", "--step", "e")

    (state,) = project.own.glob("state/**/e*.tfstate")

    assert json.loads(state.read_text())["outputs"]["url"]["value"] == f"url-url-{MINTED}"


def test_a_destroy_of_what_was_given_a_derived_secret_finds_it_again(project: Project) -> None:
    """
    The recorded inputs name where the value came from, so that a destroy fetches it there.
    """
    project.prepare("apply", "derived", "--yes")

    ended = project.run("destroy", "derived", "--yes", "-v")

    assert ended.code == 0
    assert leaks(project, ended) == []


#: Keeps what it is given in texts, in JSON and under names that nobody calls sensitive.
KEEPS = """
variable "pw" { type = string }
variable "env" { type = string }
variable "asked" { type = string }
variable "minted" { type = string }
variable "document" {
  type      = string
  sensitive = true
}
resource "terraform_data" "it" {
  input = {
    dsn   = "pg://u:${var.pw}@db"
    json  = jsonencode({ deep = [var.env] })
    lines = "a\\n${var.asked}\\nb"
  }
}
output "url" { value = "url-${var.minted}" }
output "document" {
  value     = var.document
  sensitive = true
}
"""
LOOKED_AT = """
version: 1
name: looked
inputs:
  password: {type: string, sensitive: true}
  document: {type: string, sensitive: true}
  asked: {type: string, from: {command: [cat, asked.txt]}, sensitive: true}
steps:
  mint: {module: ../mint}
  it:
    module: ../keeps
    inputs:
      pw: "${inputs.password}"
      env: "${env.TOKEN_FROM_ENV}"
      asked: "${inputs.asked}"
      minted: "${steps.mint.outputs.token}"
      document: "${inputs.document}"
"""
LOOKS = (
    ("output",),
    ("output", "-json"),
    ("output", "url"),
    ("show",),
    ("show", "-json"),
    ("state", "show", "terraform_data.it"),
    ("state", "pull"),
)
FROM_ENV, ASKED, IN_JSON = "fr0m-the-env", "asked-f0r", "in-s0me-json"


@pytest.fixture
def looked_at(project: Project) -> Project:
    """
    A target that was applied with secrets from everywhere; none of them is at hand any more.
    """
    project.write("keeps/main.tf", KEEPS)
    project.write("asked.txt", ASKED)
    project.write("blueprints/looked.yaml", LOOKED_AT)
    secrets = {
        "TOKEN_FROM_ENV": FROM_ENV,
        "ORCHESTRATOR_INPUT_document": json.dumps({"user": "u", "key": {"deep": IN_JSON}}),
    }
    project.environ |= secrets
    project.prepare("apply", "looked", "--yes")
    for name in (*secrets, "ORCHESTRATOR_INPUT_password"):
        del project.environ[name]
    (project.root / "asked.txt").unlink()
    return project


@every_engine
def test_what_the_engine_shows_is_masked_without_the_secrets_at_hand(looked_at: Project) -> None:
    """
    Secrets are known by their keyed digests, also within longer texts and in JSON within a text.
    """
    for words in LOOKS:
        ended = looked_at.run("exec", "looked/default/it", "--", *words)

        assert ended.code == 0, ended.said
        assert "(sensitive)" in ended.out or "<sensitive>" in ended.out
        shown = [s for s in (SECRET, MINTED, FROM_ENV, ASKED, IN_JSON) if s in ended.said]
        assert shown == [], words


def test_what_cannot_be_masked_is_withheld_with_the_reason(project: Project) -> None:
    """
    The provider state holds the secret deep within a text that is too long to try every part of:
    nothing of it is shown until the secret is given. What prints no values needs none.
    """
    within = "x" * 3000
    project.write("m/main.tf", MODULE.replace('"url-${var.pw}"', f'"{within}${{var.pw}}{within}"'))
    project.prepare("apply", "derived", "--yes", "--step", "b")
    secret = project.environ.pop("ORCHESTRATOR_INPUT_password")
    target = "derived/default/b"

    refused = project.run("exec", target, "--", "show")
    listed = project.ok("exec", target, "--", "state", "list")
    given = project.run(
        "exec", target, "--", "output", environ={"ORCHESTRATOR_INPUT_password": secret}
    )

    assert (refused.code, "inputs.password" in refused.said) == (4, True)
    assert listed.out.strip() == "terraform_data.it"
    assert "(sensitive)" in given.out


def test_a_secret_from_before_a_failed_rotation_is_masked_as_well(project: Project) -> None:
    """
    The apply with the new one failed half-way: the provider state still holds the old one.
    """
    project.write(
        "m/main.tf",
        """
        variable "pw" { type = string }
        output "url" { value = "none" }
        resource "terraform_data" "gate" {
          triggers_replace = var.pw
          provisioner "local-exec" { command = "test ! -e stop" }
        }
        resource "terraform_data" "it" {
          input      = var.pw
          depends_on = [terraform_data.gate]
        }
        """.replace("test ! -e stop", f"test ! -e {project.root}/stop"),
    )
    project.prepare("apply", "derived", "--yes", "--step", "b")
    project.write("stop", "")
    rotated = {"ORCHESTRATOR_INPUT_password": "an0ther-one"}
    failed = project.run("apply", "derived", "--yes", "--step", "b", environ=rotated)

    shown = project.run("exec", "derived/default/b", "--", "show", environ=rotated)

    assert failed.code == 10
    assert (shown.code, SECRET in shown.said, "(sensitive)" in shown.out) == (0, False, True)


EPHEMERAL = """
variable "pw" {
  type      = string
  ephemeral = true
}
variable "dsn" { type = string }
resource "terraform_data" "it" { input = "made" }
output "url" { value = var.dsn }
"""


def test_an_input_that_holds_the_secret_of_another_is_one_itself(project: Project) -> None:
    """
    A plain input with a secret within it, from the command line, and what an ephemeral variable is
    given by a plain one: in no file, no screen and no later run; a retry asks for them again.
    """
    project.write("m/main.tf", EPHEMERAL)
    project.write(
        "blueprints/held.yaml",
        """
        version: 1
        name: held
        inputs:
          password: {type: string, sensitive: true}
          dsn: {type: string}
          once: {type: string}
        steps:
          it: {module: ../m, inputs: {pw: "${inputs.once}", dsn: "${inputs.dsn}"}}
          fails:
            module: ../m
            needs: [it]
            inputs: {pw: "${inputs.password}", dsn: plain}
            verify: [{command: {argv: [test, -e, ROOT/done]}}]
        """.replace("ROOT", str(project.root)),
    )
    given = ("-i", f"dsn=pg://u:{SECRET}@db/x", "-i", f"once={MINTED}")

    applied = project.run("apply", "held", "--yes", "-v", *given)
    project.write("done", "")
    refused = project.run("retry", "held", "--yes")
    again = {
        "ORCHESTRATOR_INPUT_dsn": f"pg://u:{SECRET}@db/x", "ORCHESTRATOR_INPUT_once": MINTED
    }  # fmt: skip
    retried = project.run("retry", "held", "--yes", "-v", environ=again)

    assert (applied.code, refused.code, retried.code) == (12, 3, 0), applied.said + retried.said
    assert leaks(project, applied, refused, retried) == []


def test_the_secret_of_before_is_masked_while_another_takes_its_place(project: Project) -> None:
    """
    What the provider state holds of the former one is printed by the apply that replaces it, and by
    a destroy that is given the other one.
    """
    project.write(
        "m/main.tf",
        """
        variable "pw" { type = string }
        output "url" { value = "none" }
        resource "terraform_data" "it" {
          triggers_replace = "dsn:${var.pw}@host"
          provisioner "local-exec" {
            when    = destroy
            command = "echo ${self.triggers_replace}"
          }
        }
        """,
    )
    project.prepare("apply", "derived", "--yes", "--step", "b")
    rotated = {"ORCHESTRATOR_INPUT_password": "an0ther-one"}

    planned = project.run("plan", "derived", "--step", "b", "--json", environ=rotated)
    applied = project.run("apply", "derived", "--yes", "--step", "b", "-v", environ=rotated)
    destroyed = project.run("destroy", "derived", "--yes", "--step", "b", "-v")

    assert [item.code for item in (planned, applied, destroyed)] == [0, 0, 0]
    assert "dsn:(sensitive)@host" in applied.out
    assert leaks(project, planned, applied, destroyed) == []
    assert "an0ther-one" not in destroyed.said


def test_a_plan_of_several_steps_masks_the_secret_of_before(project: Project) -> None:
    """
    Planned together, before any of them is applied, and after the first of them was: what the
    others still hold was made from the former one.
    """
    project.write("m/main.tf", MODULE.replace('"made"', '"made-${var.pw}"'))
    project.prepare("apply", "derived", "--yes")
    project.environ["ORCHESTRATOR_INPUT_password"] = "an0ther-one"

    told = [project.run("plan", "derived", "-v"), project.run("plan", "derived", "--json")]
    project.ok("apply", "derived", "--yes", "--step", "b")
    told += [project.run("plan", "derived", "-v"), project.run("plan", "derived", "--json")]

    assert [item.code for item in told] == [0] * 4
    assert [told[n].rows[step]["status"] for n, step in ((1, "b"), (3, "c"))] == ["planned"] * 2
    assert leaks(project, *told) == []


def test_a_secret_in_an_address_is_warned_of(project: Project) -> None:
    """
    An address names an object, masked it would name none: plan and apply say that it shows, once
    for a step, and not of keys that are no secret.
    """
    keyed = 'resource "terraform_data" "keyed" { for_each = toset([var.pw, "plain"]) }'
    step = "{module: ../m, inputs: {pw: '${inputs.password}'}}"
    head = "version: 1\nname: keyed\ninputs: {password: {type: string, sensitive: true}}\n"
    project.write("blueprints/keyed.yaml", f"{head}steps: {{b: {step}}}\n")
    project.write("m/keyed.tf", keyed.replace("var.pw, ", ""))
    plain = project.ok("plan", "keyed").said
    project.write("m/keyed.tf", keyed)
    said = [project.ok("plan", "keyed").said, project.ok("apply", "keyed", "--yes").said]

    for text in said:
        assert " ".join(text.split()).count("of terraform_data is, or holds, a secret") == 1
    assert "or holds, a secret" not in plain
