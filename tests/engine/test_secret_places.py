"""
Law: secrets travel with values.
A secret in every place that a value can come from: nothing that the tool leaves or prints holds it,
in the run that has it and in later ones that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.project import Ended, Project
from tests.secret_forms import leaks

pytestmark = pytest.mark.engine

#: Of several lines, with quotes, backslashes, and what HTML, URLs, JSON and Terraform escape.
SECRET = """s3c&<r"e\u0301t\\w/%41+?=é x
  second-l1ne: 'quoted' "twice"\\n ${x}
\tthird-l1ne %7B"""

#: A module that calls nothing sensitive, prints what it is given, keeps it and returns it.
CARELESS = r"""
variable "given" { type = string }
variable "fails" {
  type    = bool
  default = false
}
resource "terraform_data" "it" {
  input = {
    text   = var.given
    json   = jsonencode({ a = [var.given] })
    base64 = base64encode("u:${var.given}")
    docker = base64encode(jsonencode({ auth = base64encode("u:${var.given}"), raw = var.given }))
    dsn    = base64encode("postgres://u:${urlencode(var.given)}@h/db")
  }
  provisioner "local-exec" {
    command     = "echo \"$GIVEN\"; echo \"$JSON\" >&2"
    environment = { GIVEN = var.given, JSON = jsonencode([var.given, urlencode(var.given)]) }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "echo \"$GIVEN\"; test ! -e /proc/self/cwd/fails"
    environment = { GIVEN = self.input.text }
  }
}
check "given" {
  assert {
    condition     = !var.fails
    error_message = "the value ${var.given} is not good"
  }
}
output "docker" { value = terraform_data.it.input.docker }
output "dsn" { value = [terraform_data.it.input.dsn] }
output "text" { value = "-${var.given}-" }
output "nested" { value = { json = jsonencode({ deep = var.given }), list = [var.given, "plain"] } }
"""

FAILING = (
    CARELESS
    + r"""
resource "terraform_data" "fails" {
  depends_on = [terraform_data.it]
  lifecycle {
    precondition {
      condition     = !var.fails
      error_message = "not with ${var.given} (${jsonencode([var.given, base64encode(var.given)])})"
    }
  }
}
"""
)


@dataclass(frozen=True)
class Place:
    """
    How a secret reaches the tool: lines of the blueprint's inputs and steps, files, and what is at
    hand for the first run only. ``code`` is how the first run ends.
    """

    steps: str
    inputs: str = ""
    files: Callable[[str], Mapping[str, str]] = lambda secret: {}
    environ: Callable[[str], Mapping[str, str]] = lambda secret: {}
    options: Callable[[str], tuple[str, ...]] = lambda secret: ()
    code: int = 0


def _from_environment(secret: str) -> Mapping[str, str]:
    return {"ORCHESTRATOR_INPUT_secret": secret}


SENSITIVE = "secret: {type: string, sensitive: true}"
CHAIN = """
  a: {module: ../careless, inputs: {given: "${inputs.secret}"}}
  b: {module: ../careless, inputs: {given: "${steps.a.outputs.text}"}}
"""
ALONE = 'a: {module: ../careless, inputs: {given: "${inputs.secret}"}}'
FAILS = 'a: {module: ../failing, inputs: {given: "${inputs.secret}", fails: true}}'

MINT = """
variable "parts" { type = list(string) }
resource "terraform_data" "it" { input = "made" }
output "minted" {
  value     = join("", var.parts)
  sensitive = true
}
"""
EPHEMERAL = """
variable "given" {
  type      = string
  ephemeral = true
}
resource "terraform_data" "it" { input = "made" }
"""
DECODES = """
variable "document" {
  type      = string
  sensitive = true
}
resource "terraform_data" "it" { input = nonsensitive(jsondecode(var.document).deep[0]) }
output "leaf" { value = nonsensitive(jsondecode(var.document).deep[0]) }
output "document" { value = nonsensitive(var.document) }
"""

PLACES = {
    "environment": Place(CHAIN, SENSITIVE, environ=_from_environment),
    "from.env": Place(
        CHAIN, "secret: {type: string, from: {env: TOKEN}}", environ=lambda s: {"TOKEN": s}
    ),
    "${env.X}": Place(
        'a: {module: ../careless, inputs: {given: "x${env.TOKEN}y"}}',
        environ=lambda s: {"TOKEN": s},
    ),
    "from.file": Place(
        ALONE,
        "secret: {type: string, sensitive: true, from: {file: ../secret.txt}}",
        files=lambda s: {"secret.txt": s},
    ),
    "from.command": Place(
        ALONE,
        "secret: {type: string, sensitive: true, from: {command: [cat, secret.txt]}}",
        files=lambda s: {"secret.txt": s},
    ),
    "tfvars": Place(
        ALONE,
        SENSITIVE,
        files=lambda s: {"secret.tfvars.json": json.dumps({"secret": s})},
        options=lambda s: ("--input-file", "secret.tfvars.json"),
    ),
    "command line": Place(ALONE, SENSITIVE, options=lambda s: ("-i", f"secret={s}")),
    "within a plain input": Place(
        'a: {module: ../careless, inputs: {given: "${inputs.plain}"}}',
        SENSITIVE + "\nplain: {type: any}",
        environ=_from_environment,
        options=lambda s: ("-i", "plain=" + json.dumps(f"dsn://u:{s}@h")),
    ),
    "sensitive output": Place(
        """
        mint: {module: ../mint, inputs: {parts: "${inputs.parts}"}}
        b: {module: ../careless, inputs: {given: "${steps.mint.outputs.minted}"}}
        c: {module: ../careless, inputs: {given: "${steps.b.outputs.nested.json}"}}
        """,
        "parts: {type: list(string)}",
        # Too short to be a secret by themselves: only the module puts them together.
        options=lambda s: (
            "-i",
            "parts=" + json.dumps([s[i : i + 3] for i in range(0, len(s), 3)]),
        ),
    ),
    "ephemeral variable": Place(
        'a: {module: ../ephemeral, inputs: {given: "${inputs.once}"}}',
        "once: {type: string}",
        environ=lambda s: {"ORCHESTRATOR_INPUT_once": s},
    ),
    "JSON in a text": Place(
        """
        a: {module: ../decodes, inputs: {document: "${inputs.document}"}}
        b: {module: ../careless, inputs: {given: "${steps.a.outputs.leaf}"}}
        """,
        "document: {type: string, sensitive: true}",
        environ=lambda s: {"ORCHESTRATOR_INPUT_document": json.dumps({"deep": [s]})},
    ),
    "a structure": Place(
        'a: {module: ../careless, inputs: {given: "${inputs.all.deep[0].key}"}}',
        "all: {type: any, sensitive: true}",
        environ=lambda s: {"ORCHESTRATOR_INPUT_all": json.dumps({"deep": [{"key": s}]})},
    ),
    "check": Place(
        """
        a:
          module: ../careless
          inputs: {given: plain}
          verify:
            - command:
                argv: [sh, -c, 'echo "$0 $TOKEN"; echo "$TOKEN" >&2; exit 3', "${env.TOKEN}"]
                environment: {TOKEN: "${env.TOKEN}"}
            - http: {url: "http://127.0.0.1:9/", contains: "${env.TOKEN}"}
        """,
        environ=lambda s: {"TOKEN": s},
        code=12,
    ),
    "hook": Place(
        """
        a:
          module: ../careless
          inputs: {given: plain}
          before_destroy:
            command: [sh, -c, 'echo "$TOKEN"; echo "$0" >&2; exit 3', "${env.TOKEN}"]
            environment: {TOKEN: "${env.TOKEN}"}
        """,
        environ=lambda s: {"TOKEN": s},
    ),
    "error of the engine": Place(FAILS, SENSITIVE, environ=_from_environment, code=10),
    "reason": Place(
        ALONE, SENSITIVE, environ=_from_environment, options=lambda s: ("--reason", f"it is {s}")
    ),
}


#: Files that a plan is written to, where `leaks` looks; a gate takes all but the first.
REPORTS = tuple(
    word
    for option in ("out", "markdown", "junit", "sarif", "json-file")
    for word in (f"--{option}", f".orchestrator/report.{option}")
)


def _indented(text: str, depth: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines) if lines else 0
    return "\n".join(" " * depth + line[margin:] for line in lines)


@pytest.fixture
def project(project: Project) -> Project:
    for name, text in {
        "careless": CARELESS, "failing": FAILING, "mint": MINT, "ephemeral": EPHEMERAL,
        "decodes": DECODES,
    }.items():  # fmt: skip
        project.write(f"{name}/main.tf", text)
    return project


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_secret_is_nowhere(project: Project, place: Place) -> None:
    """
    Applied with the secret; then read, looked at and destroyed without it, and destroyed with it.
    """
    secret = SECRET
    inputs = f"inputs:\n{_indented(place.inputs, 2)}\n" if place.inputs else ""
    text = f"version: 1\nname: places\n{inputs}steps:\n{_indented(place.steps, 2)}\n"
    project.write("blueprints/places.yaml", text)
    for name, content in place.files(secret).items():
        (project.root / name).write_text(content)
    environ, options = place.environ(secret), place.options(secret)

    def given(*arguments: str) -> Ended:
        return project.run(*arguments, *options, environ=environ)

    first = given("--log-level", "debug", "apply", "places", "--yes", "-v")
    assert first.code == place.code, first.said
    again = given("apply", "places", "--yes", "--json")
    # Not as applied, so that values are shown; into every kind of file.
    planned = given("plan", "places", "--json", "--replace", "terraform_data.it", *REPORTS)
    gated = given("gate", "places", "-v", "--drift", *REPORTS[2:])
    for name in place.files(secret):
        (project.root / name).unlink()
    later = [
        project.run("--log-level", "debug", *arguments)
        for arguments in (
            ("plan", "places", "--json"),
            ("status", "places", "--json"),
            ("history", "places/default/a", "--json"),
            ("runs", "show", project.last_run()["run_id"], "--json"),
            ("runs", "logs", project.last_run()["run_id"], "a"),
            ("outputs", "places"),
            ("recover", "places", "-v"),
            ("drift", "places"),
            ("store", "export"),
            ("exec", "places/default/a", "--", "show"),
            ("destroy", "places", "--yes", "-v"),
        )
    ]
    gone = given("--log-level", "debug", "destroy", "places", "--yes", "-v")

    every = {"secret": secret}
    assert leaks(project, every, first, again, planned, gated, *later, gone) == {}
    assert 1 not in {item.code for item in (first, again, planned, gated, *later, gone)}
