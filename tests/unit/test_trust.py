"""
What an operator's trust file forbids to a project: told by validate, and never done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import Ended, Project

MODULE = 'variable "x" { default = "" }\noutput "y" { value = var.x }\n'
PLAIN = """
version: 1
name: b
steps:
  a: {module: ../m}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.write("m/main.tf", MODULE)
    made.write("blueprints/b.yaml", PLAIN)
    (tmp_path / "elsewhere").mkdir()
    return made


def trusting(project: Project, text: str) -> Path:
    file = project.root.parent / "trust.yaml"
    file.write_text(f"trust: {text}\n")
    project.environ["ORCHESTRATOR_TRUST"] = str(file)
    return file


def validated(project: Project) -> Ended:
    return project.run("validate", "b")


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ("inputs: {x: {from: {command: [touch, ran]}}}\n", "3:30"),
        ("inputs: {x: {type: any, default: {from: {command: [touch, ran]}}}}\n", "3:"),
        (
            "inputs: {x: {default: 1}}\n"
            "environments: {e: {inputs: {x: {from: {command: [touch, ran]}}}}}\n",
            "4:",
        ),
        ("STEP verify: [{command: {argv: [touch, ran]}}]", "4:"),
        ("STEP compensate: {command: [touch, ran]}", "4:"),
        ("STEP before_destroy: {command: [touch, ran]}", "4:"),
        ("environments: {e: {steps: {a: {verify: [{command: {argv: [touch, ran]}}]}}}}\n", "3:"),
    ],
)
def test_programs_that_a_blueprint_names_are_forbidden_with_their_place(
    project: Project, lines: str, place: str
) -> None:
    """
    In every environment, also where the value would not be used; without the file they are valid.
    """
    text = PLAIN.replace("\nsteps:", f"\n{lines}steps:")
    if lines.startswith("STEP "):
        text = PLAIN.replace("../m}", f"../m, {lines.removeprefix('STEP ')}}}")
    project.write("blueprints/b.yaml", text)
    environment = ("-e", "e") if "environments" in lines else ()
    allowed = project.run("validate", "b", *environment)
    trusting(project, "{commands: false}")

    ended = project.run("validate", "b", *environment)

    assert allowed.code == 0, allowed.said
    assert ended.code == 3
    assert "is forbidden by the trust file" in " ".join(ended.said.split())
    assert f"blueprints/b.yaml:{place}" in ended.said
    assert not (project.root / "ran").exists()


def test_a_module_cannot_bring_a_check_that_runs_a_program(project: Project) -> None:
    """
    The defaults of ``module.yaml`` are of the merge request as well.
    """
    project.write("m/module.yaml", "verify: [{command: {argv: [touch, ran]}}]\n")
    trusting(project, "{commands: false}")

    ended = validated(project)

    assert (ended.code, "m/module.yaml:1:" in ended.said) == (3, True), ended.said


def test_an_input_file_cannot_bring_a_program(project: Project) -> None:
    """
    Whoever names the file: what is in it may be of the merge request.
    """
    text = PLAIN.replace("\nsteps:", "\ninputs: {x: {type: string}}\nsteps:")
    project.write("blueprints/b.yaml", text.replace("../m}", '../m, inputs: {x: "${inputs.x}"}}'))
    project.write("in.yaml", "x: {from: {command: [touch, ran]}}\n")
    trusting(project, "{commands: false}")

    ended = project.run("plan", "b", "--input-file", "in.yaml")

    assert (ended.code, "is forbidden by the trust file" in " ".join(ended.said.split())) == (
        3,
        True,
    ), ended.said
    assert not (project.root / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "trust", "place"),
    [
        ("operations: {url: 's3://evil/x'}", "{stores: ['s3://acme/ops']}", "1:19"),
        ("operations: {url: 's3://acme/ops-2'}", "{stores: ['s3://acme/ops']}", "1:19"),
        ("operations: {url: 's3://acme/ops/../../x'}", "{stores: ['s3://acme/ops']}", "1:19"),
        ("operations: {url: 'sqlite:../elsewhere/x.db'}", "{stores: []}", "1:19"),
        ("module_roots: [../elsewhere]", "{module_roots: [/nowhere]}", "1:16"),
        ("module_roots: [/]", "{module_roots: []}", "1:16"),
        ("engine: ./m/evil", "{commands: false}", "1:9"),
    ],
)
def test_settings_of_a_project_are_held_to_it(
    project: Project, settings: str, trust: str, place: str
) -> None:
    project.write("orchestrator.yaml", settings + "\n")
    trusting(project, trust)

    ended = validated(project)

    assert ended.code == 3
    assert "is forbidden by the trust file" in " ".join(ended.said.split())
    assert f"orchestrator.yaml:{place}" in ended.said


def test_the_store_of_a_blueprint_is_held_to_it(project: Project) -> None:
    """
    With the place where it is named; a store that follows from the backend is refused as well.
    """
    trusting(project, "{stores: []}")
    project.write("blueprints/b.yaml", PLAIN + 'operations: {url: "s3://evil/x"}\n')
    named = project.run("status", "b")
    backend = "backend: {type: s3, config: {bucket: evil, key: '${step.name}', region: r}}\n"
    project.write("blueprints/b.yaml", PLAIN + backend)

    beside = project.run("status", "b")

    assert (named.code, "blueprints/b.yaml:5:19" in named.said) == (3, True), named.said
    assert (beside.code, "s3://evil/orchestrator" in beside.said) == (4, True), beside.said


@pytest.mark.parametrize(
    ("settings", "trust"),
    [
        ("operations: {url: 'sqlite:ops.db'}", "{stores: []}"),
        ("operations: {url: 'memory:'}", "{stores: ['memory:']}"),
        ("module_roots: [../elsewhere]", "{module_roots: [elsewhere]}"),
        ("module_roots: [m]", "{module_roots: []}"),
        ("engine: terraform", "{commands: false}"),
    ],
)
def test_what_lies_in_the_project_or_is_listed_is_allowed(
    project: Project, settings: str, trust: str
) -> None:
    """
    Paths of the trust file start at its own directory.
    """
    project.write("orchestrator.yaml", settings + "\n")
    trusting(project, trust)

    assert validated(project).code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trust: {command: false}", "unknown key 'command'"),
        ("commands: false", "unknown key 'commands'"),
        ("", "says nothing under `trust`"),
        ("trust: {commands: 1}", "must be true or false"),
        ("trust: {stores: s3://x}", "must be a list"),
        ("trust: [", "not valid YAML"),
    ],
)
def test_a_trust_file_that_is_wrong_allows_nothing(project: Project, text: str, said: str) -> None:
    trusting(project, "{}").write_text(text)

    ended = validated(project)

    assert (ended.code, said in ended.said) == (3, True), ended.said


@pytest.mark.parametrize("name", ["", "nowhere.yaml", "/proc/self/mem", "."])
def test_a_trust_file_that_is_not_there_allows_nothing(project: Project, name: str) -> None:
    project.environ["ORCHESTRATOR_TRUST"] = name

    assert validated(project).code == 3


def test_a_project_cannot_bring_its_own_trust(project: Project) -> None:
    """
    A file within the project could be changed with it.
    """
    project.write("trust.yaml", "trust: {commands: true}\n")
    project.environ["ORCHESTRATOR_TRUST"] = "trust.yaml"

    ended = validated(project)

    assert (ended.code, "is in the project" in ended.said) == (3, True), ended.said


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (("validate", "b"), False),
        (("graph", "b"), False),
        (("status", "b"), False),
        (("recover", "b"), False),
        (("history", "b/default/a"), False),
        (("runs",), False),
        (("verify", "b"), True),
        (("destroy", "b", "--yes"), True),
    ],
)
def test_what_the_documentation_says_of_programs_is_so(
    project: Project, words: tuple[str, ...], runs: bool
) -> None:
    """
    The first row of its table: who only reads records runs nothing.
    """
    text = PLAIN.replace("\nsteps:", "\ninputs: {x: {from: {command: [touch, ran]}}}\nsteps:")
    project.write("blueprints/b.yaml", text.replace("../m}", '../m, inputs: {x: "${inputs.x}"}}'))

    project.run(*words)

    assert (project.root / "ran").exists() == runs
