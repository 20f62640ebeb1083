"""
What is refused before anything runs, exit codes, and what stays readable around large or noisy
engines.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine

OBJECT = """
    version: 1
    name: {name}
    {more}
    steps:
      only: {{module: ../fixtures/shared/object, inputs: {{name: only}}}}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    return project


def with_object(project: Project, name: str = "one", more: str = "") -> str:
    """
    A blueprint of one step that always works.
    """
    project.write(f"blueprints/{name}.yaml", OBJECT.format(name=name, more=more))
    return name


def nothing_ran(project: Project) -> bool:
    """
    Whether there is neither a run nor a record nor a working directory.
    """
    return not any((project.own / name).exists() for name in ("runs", "work", "state"))


# Before anything runs


def test_a_cycle_is_named(project: Project) -> None:
    """
    Steps that need each other are an error before anything runs, with the circle named and the
    bystander left out.
    """
    ended = project.run("apply", project.fixture("cycle"), "--yes")

    assert ended.code == 3
    assert all(name in ended.err for name in ("first", "second", "third"))
    assert "bystander" not in ended.err
    assert nothing_ran(project)


def test_a_check_that_cannot_be_is_told_before_its_step_is_applied(project: Project) -> None:
    """
    Where a reference makes it so, too: before the first step for an input, before the step itself
    for an output of another.
    """
    step = "{{module: ../fixtures/shared/object, inputs: {{name: {}, value: {}}}{}}}"
    outside = ", verify: [{command: {argv: ['true'], cwd: '${inputs.value}'}}]"
    project.write(
        "blueprints/pair.yaml",
        "\n".join(
            [
                "version: 1",
                "name: pair",
                "inputs: {place: {type: string}}",
                "steps:",
                "  first: " + step.format("first", "'${inputs.place}'", ""),
                "  second: " + step.format("second", "'${steps.first.outputs.value}'", outside),
                "  third: " + step.format("third", "'${inputs.place}'", "THIRD"),
            ]
        ).replace("THIRD", outside),
    )
    early = project.run("apply", "pair", "--yes", "-i", "place=/etc")
    assert early.code == 3
    assert "third: check command: cwd must be a directory within the project" in early.said
    assert not project.entries("first")
    late = project.run("apply", "pair", "--yes", "-i", "place=../..", "--exclude", "third")

    assert late.code == 3
    assert "second: check command: cwd must be a directory" in late.said
    assert (len(project.entries("first")), len(project.entries("second"))) == (2, 0)


def test_an_engine_that_a_module_refuses_is_named_early(project: Project) -> None:
    """
    A module's `required_version` refuses the engine before the first step runs, naming engine,
    module and constraint.
    """
    ended = project.run("apply", project.fixture("requires-newer-engine"), "--yes")

    assert ended.code == 3
    assert all(word in ended.err for word in (">= 99.0", "breaks", "terraform 1."))
    assert nothing_ran(project)


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_two_steps_never_share_a_provider_state(project: Project, jobs: str) -> None:
    """
    A backend whose address does not tell the steps apart is an error before anything runs; each
    would take the objects of the other for its own.
    """
    step = "{module: ../fixtures/shared/object, inputs: {name: x}}"
    project.write(
        "blueprints/one.yaml",
        f"""
        version: 1
        name: one
        backend: {{type: local, config: {{path: same.tfstate}}}}
        steps:
          first: {step}
          second: {step}
        """,
    )

    ended = project.run("apply", "one", "--yes", "-j", jobs)

    assert ended.code == 3
    assert "would share one provider state" in ended.said
    assert project.entries("first") == project.entries("second") == []


def test_a_step_does_not_take_over_the_state_of_another(project: Project) -> None:
    """
    The same where the other step is applied already, and this one comes alone.
    """
    first = "first: {module: ../fixtures/shared/object, inputs: {name: x}}"
    head = """
        version: 1
        name: one
        backend: {{type: local, config: {{path: same.tfstate}}}}
        steps:
          {}
          {}
        """
    project.write("blueprints/one.yaml", head.format(first, ""))
    project.ok("apply", "one", "--yes")
    project.write("blueprints/one.yaml", head.format(first, first.replace("first", "second")))

    ended = project.run("apply", "one", "--yes", "--step", "second")

    assert ended.code == 3
    assert "would share one provider state" in ended.said
    assert project.entries("second") == []


# Whose record it is


def test_a_record_of_another_project_is_refused(project: Project) -> None:
    """
    A record of another project is never taken for ours: exit 4, and it stays as it is.
    """
    name = with_object(project)
    project.prepare("apply", name, "--yes")
    entries = project.entries("only")
    project.write("orchestrator.yaml", "project: other")

    ended = project.run("destroy", name, "--yes", "--json")

    assert ended.code == 4
    assert "project 'default'" in ended.said
    assert project.entries("only") == entries


def test_a_record_of_another_blueprint_file_is_refused(project: Project) -> None:
    """
    Another file with the same name is another blueprint, until `moved_from` says that it was moved.
    """
    name = with_object(project)
    project.prepare("apply", name, "--yes")
    entries = project.entries("only")
    moved = project.root / "elsewhere/one.yaml"
    moved.parent.mkdir()
    (project.root / "blueprints/one.yaml").rename(moved)

    refused = project.run("apply", "elsewhere/one.yaml", "--yes", "--json")
    untouched = project.entries("only") == entries
    moved.write_text(moved.read_text() + "moved_from: [blueprints/one.yaml]\n")
    accepted = project.run("apply", "elsewhere/one.yaml", "--yes", "--json")

    assert (refused.code, untouched) == (4, True)
    assert "moved_from: [blueprints/one.yaml]" in refused.events[-1]["hint"]
    assert accepted.code == 0
    assert project.record("only")["source"]["blueprint_path"] == "elsewhere/one.yaml"


# Destroy of what is not there


def test_destroying_what_was_never_applied_succeeds(project: Project) -> None:
    """
    There is nothing to destroy: exit 0. The provider state is looked at, without a
    provider, and the whole reads destroyed.
    """
    name = with_object(project)

    ended = project.run("destroy", name, "--yes", "--json")

    assert ended.code == 0
    assert ended.statuses == {"only": "absent"}
    assert [entry["absence"]["method"] for entry in project.history("only")] == ["never_applied"]
    calls = {path.name for path in (project.own / "runs").rglob("*.answer.json")}
    assert calls == {"init-1-1.answer.json"}
    assert project.run("status", name, "--expect", "destroyed").code == 0
    project.ok("apply", name, "--yes")
    assert project.record("only")["status"] == "ok"


def test_what_is_alive_and_not_recorded_is_not_called_destroyed(project: Project) -> None:
    """
    Law: state moved without us.
    The records are lost, or those of another store: a destroy does not end well over a
    provider state that holds objects.
    """
    name = with_object(project)
    project.prepare("apply", name, "--yes")
    for path in project.own.glob("operations.db*"):
        path.unlink()
    noticed = project.run("destroy", name, "--yes")
    for memory in ("seen", "runs"):  # as on a machine that has never seen the store
        shutil.rmtree(project.own / memory)

    planned = project.run("plan", name, "--destroy", "--json")
    ended = project.run("destroy", name, "--yes", "--json")

    assert noticed.code == 22 and "gone back" in noticed.said
    assert planned.code == 4 and "adopt one --step only" in planned.out, planned.said
    (row,) = ended.events[-1]["steps"]
    assert (ended.code, row["error"]["code"]) == (4, "unrecorded_state"), ended.said
    assert project.entries("only") == []


def test_a_failed_first_deploy_can_be_cleaned_up(project: Project) -> None:
    """
    After a first deploy that failed in its plan a destroy takes down what there is, confirms that
    the rest is not there, and the whole reads destroyed.
    """
    blueprint = project.fixture("invalid-plan")
    failed = project.run("apply", blueprint, "--yes", "--json")

    ended = project.run("destroy", blueprint, "--yes", "--json")

    assert failed.statuses == {"before": "ok", "breaks": "error", "after": "pending"}
    assert ended.code == 0
    assert ended.statuses == {"before": "destroyed", "breaks": "absent", "after": "absent"}
    assert project.run("status", blueprint, "--expect", "destroyed").code == 0


# Exit codes


class Planned:
    """
    The exit codes of plans over one blueprint whose second step can be made to fail.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = Project(root, engine=engine)
        self.blueprint = self.project.fixture("output-only-change")
        failing = self.project.fixture("invalid-plan")
        self.codes = {"changes, not asked for": self._plan(detailed=False)}
        self.codes["changes"] = self._plan()
        self.project.ok("apply", self.blueprint, "--yes")
        self.codes["no changes"] = self._plan()
        entries = self.project.entries("source")
        self.codes["an output changes"] = self._plan("-i", "label=two")
        self.codes["a failure beside changes"] = self.project.run(
            "plan", failing, "--detailed-exitcode"
        ).code
        self.untouched = self.project.entries("source") == entries

    def _plan(self, *more: str, detailed: bool = True) -> int:
        option = ("--detailed-exitcode",) if detailed else ()
        return self.project.run("plan", self.blueprint, *option, *more).code


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Planned:
    return Planned(tmp_path_factory.mktemp("planned"), engine)


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("changes, not asked for", 0),
        ("changes", 2),
        ("no changes", 0),
        ("an output changes", 2),
        ("a failure beside changes", 10),
    ],
)
def test_a_failure_beats_changes_beats_nothing(planned: Planned, case: str, code: int) -> None:
    """
    `plan --detailed-exitcode`: 10 beats 2 beats 0.
    """
    assert planned.codes[case] == code


def test_a_plan_changes_no_record(planned: Planned) -> None:
    """
    A plan leaves the records byte-identical (law: reading changes nothing).
    """
    assert planned.untouched


# What is large, and what other programs read


def test_inputs_that_fit_in_no_argument_are_applied(project: Project) -> None:
    """
    Inputs that fit in no argument and no environment variable reach the module, and an unchanged
    apply finds nothing to do.
    """
    blueprint = project.fixture("huge-inputs")
    made = subprocess.run(
        [sys.executable, project.root / "fixtures/huge-inputs/entries.py", "300000"],
        capture_output=True,
        check=True,
    )
    (project.root / "entries.json").write_bytes(made.stdout)
    given = ("--input-file", "entries.json", "--yes", "--step", "+breaks", "--json")

    ended = project.run("apply", blueprint, *given)
    again = project.run("apply", blueprint, *given)

    assert len(made.stdout) > 2 * 128 * 1024, "what one argument or variable holds on Linux"
    assert (ended.code, again.code) == (0, 0)
    assert project.record("breaks")["outputs"]["count"] == 3000
    assert again.events[-1]["steps"][1]["created"] == []


def noisy_engine(project: Project) -> str:
    """
    A terraform that warns before and after what it says, as a broken CLI configuration makes it.
    """
    real = shutil.which(project.environ["ORCHESTRATOR_ENGINE"])
    script = project.write(
        "noisy/terraform",
        f"""
        #!/bin/sh
        echo 'Warning: Version checkpoint failed' >&2
        {real} "$@"
        code=$?
        if [ "$2" = pull ]; then echo; echo 'Warning: {{ "not": the state'; fi
        echo 'Warning: Plugin cache unusable' >&2
        exit $code
        """,
    )
    script.chmod(0o700)
    return str(script)


def test_warnings_around_the_json_disturb_nobody(project: Project) -> None:
    """
    An engine that warns on both streams is understood, and our stdout stays JSON.
    """
    name = with_object(project)

    ended = project.run("apply", name, "--yes", "--json", "--engine", noisy_engine(project))

    assert ended.code == 0
    assert ended.events[-1]["type"] == "run_finished"
    assert project.record("only")["outputs"]["name"] == "only"


def test_stdout_is_one_document_whatever_is_wrong_around_it(project: Project) -> None:
    """
    Notes about the environment go to stderr; stdout of a reading command is its JSON document.
    """
    name = with_object(project)
    disturbed = {"TF_CLI_CONFIG_FILE": "missing.rc", "TF_VAR_name": "x", "TF_DATA_DIR": "y"}

    ended = project.run("plan", name, "--json", environ=disturbed)

    assert ended.code == 0
    assert ended.document["steps"][0]["status"] == "planned"
    assert "TF_VAR_name" in ended.err
    assert "TF_CLI_CONFIG_FILE" in ended.err
