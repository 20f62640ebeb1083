"""
Behaviour that one call of the tool shows: refusals before anything runs, exit codes,
what other programs read, states that could not be saved.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.state_server import state_server
from tests.project import Ended, Project

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


def statuses(ended: Ended) -> dict[str, str]:
    """
    What became of each step, of a run or a plan.
    """
    found = ended.events[-1] if ended.out.startswith('{"') else ended.document
    return {row["step"]: row["status"] for row in found["steps"]}


def nothing_ran(project: Project) -> bool:
    """
    Whether there is neither a run nor a record nor a working directory.
    """
    return not any((project.own / name).exists() for name in ("runs", "work", "state"))


# Before anything runs (25, 29, 30)


def test_nobody_is_asked_without_a_terminal(project: Project) -> None:
    """
    Without a terminal and without --yes nothing is mutated and nobody is waited for: exit 5.
    """
    name = with_object(project)

    ended = project.run("apply", name)

    assert ended.code == 5
    assert "--yes" in ended.err
    assert nothing_ran(project)


def test_a_protected_environment_wants_to_be_named(project: Project) -> None:
    """
    --yes alone does not approve in a protected environment: exit 5, nothing runs.
    """
    name = with_object(project, more="environments: {prod: {protected: true}}")

    ended = project.run("apply", name, "-e", "prod", "--yes")

    assert ended.code == 5
    assert "--confirm prod" in ended.err
    assert nothing_ran(project)


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
    assert "keeps its provider state where" in ended.said and "same.tfstate" in ended.said
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
    assert "second keeps its provider state where first does" in ended.said
    assert project.entries("second") == []


# Whose record it is


def test_a_record_of_another_project_is_refused(project: Project) -> None:
    """
    A record of another project is never taken for ours: exit 4, and it stays as it is.
    """
    name = with_object(project)
    project.ok("apply", name, "--yes")
    entries = project.entries("only")
    project.write("orchestrator.yaml", "project: other")

    ended = project.run("destroy", name, "--yes", "--json")

    assert ended.code == 4
    assert "project 'default'" in ended.events[-1]["error"]
    assert project.entries("only") == entries


def test_a_record_of_another_blueprint_file_is_refused(project: Project) -> None:
    """
    Another file with the same name is another blueprint, until `moved_from` says that it was moved.
    """
    name = with_object(project)
    project.ok("apply", name, "--yes")
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


# Destroy of what is not there (16)


def test_destroying_what_was_never_applied_succeeds(project: Project) -> None:
    """
    There is nothing to destroy: exit 0. The provider state is looked at, without a
    provider, and the whole reads destroyed.
    """
    name = with_object(project)

    ended = project.run("destroy", name, "--yes", "--json")

    assert ended.code == 0
    assert statuses(ended) == {"only": "absent"}
    assert [entry["absence"]["method"] for entry in project.history("only")] == ["never_applied"]
    calls = {path.name for path in (project.own / "runs").rglob("*.answer.json")}
    assert calls == {"init-1-1.answer.json", "pull.answer.json"}
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
    project.ok("apply", name, "--yes")
    for path in project.own.glob("operations.db*"):
        path.unlink()

    ended = project.run("destroy", name, "--yes", "--json")

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

    assert statuses(failed) == {"before": "ok", "breaks": "error", "after": "pending"}
    assert ended.code == 0
    assert statuses(ended) == {"before": "destroyed", "breaks": "absent", "after": "absent"}
    assert project.run("status", blueprint, "--expect", "destroyed").code == 0


# Exit codes (22)


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


# What is large, and what other programs read (24, 28)


def test_megabytes_of_inputs_are_applied(project: Project) -> None:
    """
    Inputs that fit in no argument and no environment variable reach the module, and an unchanged
    apply finds nothing to do.
    """
    blueprint = project.fixture("huge-inputs")
    made = subprocess.run(
        [sys.executable, project.root / "fixtures/huge-inputs/entries.py", "2200000"],
        capture_output=True,
        check=True,
    )
    (project.root / "entries.json").write_bytes(made.stdout)
    given = ("--input-file", "entries.json", "--yes", "--step", "+breaks", "--json")

    ended = project.run("apply", blueprint, *given)
    again = project.run("apply", blueprint, *given)

    assert len(made.stdout) > 2_000_000
    assert (ended.code, again.code) == (0, 0)
    assert project.record("breaks")["outputs"]["count"] == 22000
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


# A state that could not be saved (8)


class Unsaved:
    """
    An apply whose state cannot be saved, the applies after it, and ways to settle it.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        blueprint = project.fixture("refuses-state")
        with state_server() as address:
            project.environ["ORCHESTRATOR_INPUT_state_address"] = address
            refuse = ("-i", f"refuse_url={address}/breaks?refuse=500")
            steps = ("--step", "+breaks")
            self.failed = project.run("apply", blueprint, "--yes", "--json", *steps, *refuse)
            self.record = project.record("breaks")
            self.file = Path(self.failed.events[-1]["steps"][1]["directory"], "errored.tfstate")
            self.kept = self.file.read_bytes()
            self.text = project.run("status", blueprint).out
            self.blocked = project.run("apply", blueprint, "--yes", "--json", *steps)
            self.spared = project.run("destroy", blueprint, "--yes", "--json", *steps)
            self.entries = project.entries("breaks")
            self.kept_since = self.file.read_bytes()
            accept = f"{address}/breaks?refuse=0"
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(accept).close()
            self.unasked = project.run("reconcile", blueprint, "--json", *steps)
            self.early = self._settle("--adopt", "terraform_data.object=x")
            self.entries_before = project.entries("breaks")
            self.pushed = self._settle("--push-errored-state")
            self.entries_after = project.history("breaks")
            self.aside = self._aside()
            self.nothing = self._settle("--push-errored-state")
            self.foreign = self._settle("--push-errored-state", lineage="other", outputs={})
            held = project.record("breaks")["provider_state"]["lineage"]
            older = {"lineage": held, "serial": -1, "outputs": {}}
            self.outdated = self._settle("--push-errored-state", **older)
            self.dismissed = self._settle("--dismiss-errored-state", "it is old, ticket 7")
            self.aside_last = self._aside()
            self.last = project.run("apply", blueprint, "--yes", "--json", *steps)
            self.objects = project.record("breaks")["resources"]["inventory"]

    def _settle(self, *options: str, **changed: Any) -> Ended:
        """
        Reconcile the step, its unsaved state being the one that there was but for what is changed.
        """
        if changed:
            self.file.write_text(json.dumps(json.loads(self.kept) | changed))
        steps = ("--step", "breaks", "--yes", "--json")
        blueprint = "fixtures/refuses-state/blueprint.yaml"
        return self.project.run("reconcile", blueprint, *steps, *options)

    def _aside(self) -> Path:
        """
        Where the file of the last run is kept.
        """
        run = self.project.last_run()["run_id"]
        (found,) = self.project.own.glob(f"runs/{run}/steps/breaks/1/errored.tfstate")
        return found


@pytest.fixture(scope="module")
def unsaved(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Unsaved:
    return Unsaved(tmp_path_factory.mktemp("unsaved"), engine)


def test_a_state_that_could_not_be_saved_is_the_headline(unsaved: Unsaved) -> None:
    """
    Of all the engine's errors the one that matters comes first: the state is in this file.
    """
    row: dict[str, Any] = unsaved.failed.events[-1]["steps"][1]

    assert row["error"]["code"] == "errored_state"
    assert str(unsaved.file) in row["last_error"]
    assert unsaved.record["status"] == "error"
    assert "errored.tfstate" in unsaved.text


def test_an_unsaved_state_blocks_the_next_apply(unsaved: Unsaved) -> None:
    """
    The next apply starts nothing in that step until the file is pushed or put aside; it is kept
    byte for byte, and the record stays.
    """
    assert unsaved.blocked.code == 11
    assert str(unsaved.file) in unsaved.blocked.events[-1]["steps"][1]["last_error"]
    assert unsaved.kept_since == unsaved.kept
    assert len(unsaved.entries) == unsaved.record["sequence"]


def test_an_unsaved_state_blocks_a_destroy(unsaved: Unsaved) -> None:
    """
    From the state that was saved it would delete what that knows and lose the rest: exit 11, the
    record stays, and what the step needs is not taken away either.
    """
    before, breaks = unsaved.spared.events[-1]["steps"]

    assert unsaved.spared.code == 11, unsaved.spared.said
    assert "--step breaks --push-errored-state" in breaks["last_error"]
    assert (before["status"], before["blocked_by"]) == ("pending", ["breaks"])
    assert len(unsaved.entries) == unsaved.record["sequence"]


def test_an_unsaved_state_names_the_command_that_saves_it(unsaved: Unsaved) -> None:
    """
    On the screen of the apply and of a reconcile that was not asked to; neither touches the file.
    """
    command = "--step breaks --push-errored-state"

    assert unsaved.unasked.code == 11
    assert command in unsaved.unasked.events[-1]["steps"][1]["last_error"]
    (note,) = (e for e in unsaved.failed.events if e["type"] == "note" and e["level"] == "error")
    assert str(unsaved.file) in note["message"]
    assert command in note["hint"]


def test_nothing_but_saving_it_is_offered(unsaved: Unsaved) -> None:
    """
    What that state holds may be the very object in doubt: neither adopting nor applying is offered.
    """
    offered = [item["command"].split()[1] for item in unsaved.failed.events[-1]["next"]]

    assert offered == ["reconcile", "recover"]
    assert "--push-errored-state" in unsaved.failed.events[-1]["next"][0]["command"]


def test_no_other_surgery_comes_before_the_unsaved_state(unsaved: Unsaved) -> None:
    """
    The provider state would move on, and the unsaved one would be older than it: refused as long as
    it waits.
    """
    assert unsaved.early.code == 11
    assert "errored.tfstate" in unsaved.early.events[-1]["steps"][0]["last_error"]
    assert unsaved.entries_before == unsaved.entries


def test_a_pushed_state_settles_the_doubts(unsaved: Unsaved) -> None:
    """
    Laws: intent first; only success makes ok.
    Pushed under the marker, the error stays and the object in doubt is in the state;
    then the reconcile makes it `ok`, and the next apply makes no second object. The file is kept
    with the run, for its owner only.
    """
    marker, restored, reconciled = unsaved.entries_after[-3:]

    assert unsaved.pushed.code == 0
    assert (marker["status"], marker["active_command"]) == ("running", "push")
    assert (restored["status"], restored["error"]["code"]) == ("error", "errored_state")
    assert [item["how"] for item in restored["settled"]] == ["in_state"]
    assert reconciled["status"] == "ok"
    assert unsaved.aside.read_bytes() == unsaved.kept
    assert unsaved.aside.stat().st_mode & 0o777 == 0o600
    assert unsaved.last.code == 0
    assert statuses(unsaved.last) == {"before": "ok", "breaks": "ok"}
    assert unsaved.last.events[-1]["steps"][1]["created"] == []
    assert [item["address"] for item in unsaved.objects] == ["terraform_data.object"]


@pytest.mark.parametrize(
    ("which", "code"),
    [("foreign", "lineage"), ("outdated", "serial_back"), ("nothing", "no_errored_state")],
)
def test_a_state_that_does_not_belong_is_not_pushed(
    unsaved: Unsaved, which: str, code: str
) -> None:
    """
    Another lineage, an older serial, or no such file: refused by that name before the engine runs.
    """
    ended: Ended = getattr(unsaved, which)

    assert ended.code == 4
    if which == "nothing":
        assert "errored.tfstate" in ended.events[-1]["error"]
    else:
        assert ended.events[-1]["steps"][0]["error"]["code"] == code


def test_a_dismissed_state_is_kept_with_its_reason(unsaved: Unsaved) -> None:
    """
    It blocks nothing any more and is never deleted; the run says why.
    """
    assert unsaved.dismissed.code == 0
    assert json.loads(unsaved.aside_last.read_text())["serial"] == -1
    arguments = [
        json.loads(path.read_text())["arguments"].get("dismiss_errored_state")
        for path in unsaved.project.own.glob("runs/*/run.json")
    ]
    assert [text for text in arguments if text] == ["it is old, ticket 7"]
