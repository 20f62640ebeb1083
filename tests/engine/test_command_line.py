"""
The command line around a real engine: approval, a reader that goes away, what stdout holds, and
that reading changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.project import Project, every_engine
from tests.terminal import CTRL_C, CTRL_D, Terminal

pytestmark = pytest.mark.engine

BLUEPRINT = """
version: 1
name: pair
inputs: {value: {type: string, default: one}}
environments: {default: {}, prod: {protected: true}}
steps:
  first:
    module: ../fixtures/shared/object
    inputs: {name: first, value: "${inputs.value}"}
  second:
    module: ../fixtures/shared/object
    inputs: {name: second}
    needs: [first]
"""
PROTECTED = "prod is protected. Type its name to apply"
PROMPT = "Continue? [yes/no/all] "


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    project.write("blueprints/pair.yaml", BLUEPRINT)
    return project


def statuses(project: Project, *arguments: str) -> list[str]:
    return [row["status"] for row in project.status("pair", *arguments)["steps"]]


# Approval


def test_a_run_is_asked_for_once(project: Project) -> None:
    """
    All that it would change is shown, and one answer holds for all of it. No ends with 5 and leaves
    no record; that is not an error screen, and only asking again is offered.
    """
    terminal = Terminal(project, "apply", "pair")
    terminal.wait_for(PROMPT)
    asked = terminal.shown
    terminal.type("no\n")

    assert terminal.finish() == 5
    assert statuses(project) == ["pending", "pending"]
    assert "plan of apply pair/default: " in asked and asked.count("1 to create") == 2
    assert "apply pair/default: 2 to create in 2 steps. " in asked
    ended = terminal.shown.partition("exit 5, not approved")[2]
    assert "nothing was changed" in ended
    assert "What went wrong" not in ended and "Objects" not in ended
    assert "orchestrator apply pair" in ended and "destroy" not in ended

    terminal = Terminal(project, "apply", "pair")
    terminal.wait_for(PROMPT)
    terminal.type("yes\n")
    assert terminal.finish() == 0
    assert terminal.shown.count(PROMPT) == 1
    assert statuses(project) == ["ok", "ok"]
    nothing = Terminal(project, "apply", "pair")
    assert nothing.finish() == 0
    assert PROMPT not in nothing.shown, "nothing to change: nothing to ask"


def test_what_was_not_shown_is_asked_for_again(project: Project) -> None:
    """
    The object was tainted while the question stood: what was shown as an update has become a
    replacement, which is said and asked for. The other step is done without another question.
    """
    project.prepare("apply", "pair", "--yes")
    terminal = Terminal(project, "apply", "pair", "-i", "value=2")
    terminal.wait_for(PROMPT)
    state = project.own / "state/pair/default/first.tfstate"
    document = json.loads(state.read_text())
    document["serial"] += 1
    (document["resources"][0]["instances"][0])["status"] = "tainted"
    state.write_text(json.dumps(document))
    terminal.type("yes\n")
    terminal.wait_for(PROMPT, times=2)

    terminal.type("no\n")

    assert terminal.finish() == 5
    again = terminal.shown.split(PROMPT)[1]
    assert "replace was not approved" in " ".join(again.split())
    assert again.endswith("first: 1 to replace. ")


def test_a_destroy_is_asked_for_once(project: Project) -> None:
    project.prepare("apply", "pair", "--yes")
    terminal = Terminal(project, "destroy", "pair")
    terminal.wait_for(PROMPT)

    terminal.type("yes\n")

    assert terminal.finish() == 0
    assert terminal.shown.count(PROMPT) == 1
    assert "destroy pair/default: 2 to delete in 2 steps. " in terminal.shown


@pytest.mark.parametrize(("key", "code"), [(CTRL_C, 130), (CTRL_D, 5)])
def test_no_answer_at_the_prompt_changes_nothing(project: Project, key: str, code: int) -> None:
    """
    No record, nothing more is asked, and what is said next begins a line.
    """
    terminal = Terminal(project, "apply", "pair")
    terminal.wait_for(PROMPT)

    terminal.type(key)

    assert terminal.finish() == code
    _, answer = terminal.shown.split(PROMPT)
    assert answer.removeprefix("^C").startswith("\n")
    assert project.entries("first") == project.entries("second") == []
    assert [row["status"] for row in project.last_run()["steps"]] == ["pending", "pending"]


def test_the_name_of_a_protected_environment_is_asked_for(project: Project) -> None:
    """
    At the terminal the name is typed; then the plan is asked for as anywhere.
    """
    terminal = Terminal(project, "apply", "pair", "-e", "prod")
    terminal.wait_for(PROTECTED)

    terminal.type("prod\n")

    terminal.wait_for(PROMPT)
    terminal.type("no\n")
    assert terminal.finish() == 5


def test_another_name_is_no_approval(project: Project) -> None:
    """
    Whoever types something else is not asked further: exit 5, no run.
    """
    terminal = Terminal(project, "apply", "pair", "-e", "prod")
    terminal.wait_for(PROTECTED)

    terminal.type("default\n")

    assert terminal.finish() == 5
    assert PROMPT not in terminal.shown
    assert not (project.own / "runs").exists()


def test_ctrl_c_instead_of_the_name_ends_it(project: Project) -> None:
    """
    Exit 130 before a run exists.
    """
    terminal = Terminal(project, "apply", "pair", "-e", "prod")
    terminal.wait_for(PROTECTED)

    code = terminal.press_until_it_ends(CTRL_C)

    assert code == 130
    assert not (project.own / "runs").exists()


def test_a_protected_environment_wants_its_name_besides_the_approval(project: Project) -> None:
    """
    --yes alone does not do, nor does another environment's name; --confirm NAME does.
    """
    ended = [
        project.run("apply", "pair", "-e", "prod", "--yes", "--step", "first", *confirm)
        for confirm in ((), ("--confirm", "default"), ("--confirm", "prod"))
    ]

    assert [each.code for each in ended] == [5, 5, 0]
    assert "--confirm prod" in ended[0].err


@pytest.mark.parametrize("verb", ["apply", "destroy"])
@pytest.mark.parametrize("name", ["", "CI", "TF_IN_AUTOMATION"])
def test_nobody_is_asked_without_a_person(project: Project, verb: str, name: str) -> None:
    """
    Without a terminal, or in automation, exit 5 at once, no prompt, no run.
    """
    if name:
        project.environ[name] = "1"
        terminal = Terminal(project, verb, "pair")
        code, said = terminal.finish(), terminal.shown
    else:
        ended = project.run(verb, "pair")
        code, said = ended.code, ended.said

    assert code == 5
    assert PROMPT not in said
    assert "--yes" in said
    assert not (project.own / "runs").exists()


# Streams


def test_a_reader_that_goes_away_does_not_break_a_mutation(project: Project) -> None:
    """
    ``apply | head -1``: the run goes on to its end and is recorded; its exit code is its own.
    """
    read, write = os.pipe()
    tool = project.launch("apply", "pair", "--yes", stdout=write)
    os.close(write)
    os.read(read, 10)
    os.close(read)

    _, said = tool.communicate()

    assert tool.returncode == 0, said
    assert statuses(project) == ["ok", "ok"]


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_run_whose_report_cannot_be_written_keeps_its_exit_code(
    project: Project, form: tuple[str, ...]
) -> None:
    """
    ``apply > /dev/full``: what was done is recorded, so it is no failure; where to read it is said.
    """
    with Path("/dev/full").open("w") as full:
        tool = project.launch("apply", "pair", "--yes", *form, stdout=full)
        _, said = tool.communicate()

    assert tool.returncode == 0, said
    assert "could not be written to stdout: No space left on device; `orchestrator runs`" in said
    assert statuses(project) == ["ok", "ok"]


def test_stdout_holds_the_result_only(project: Project) -> None:
    """
    Warnings and logs go to stderr; stdout is one document, or lines that end with the
    run's end.
    """
    project.environ["TF_VAR_value"] = "not passed on"

    plan = project.run("--log-level", "debug", "plan", "pair", "--json")
    apply = project.run("--log-level", "debug", "apply", "pair", "--yes", "--json")

    assert plan.document["schema"] == "orchestrator.plan/2"
    assert "TF_VAR_value" in plan.err
    assert apply.events[-1]["type"] == "run_finished"
    assert apply.events[-1]["exit_code"] == apply.code == 0


# Reading changes nothing


def test_reading_commands_change_nothing(project: Project) -> None:
    """
    Law: reading changes nothing.
    After an apply, no reading command changes a byte of records, runs or provider state;
    a plan touches its working directories and caches only.
    """
    project.prepare("apply", "pair", "--yes")
    before = hashes(project)
    run = project.last_run()["run_id"]

    codes = [
        project.run(*arguments).code
        for arguments in (
            ("status", "pair", "--json"),
            ("status", "--all"),
            ("history", "pair/default/first"),
            ("runs",),
            ("runs", "show", run, "--json"),
            ("graph", "pair"),
            ("validate",),
            ("engine", "info", "pair"),
            ("plan", "pair", "--detailed-exitcode", "-i", "value=two"),
            ("plan", "pair", "--destroy"),
        )
    ]

    assert codes == [0, 0, 0, 0, 0, 0, 0, 0, 2, 0]
    assert hashes(project) == before


def hashes(project: Project) -> dict[str, str]:
    """
    Every file of the project by its content, but working directories, caches, and the database's
    bookkeeping of its readers.
    """
    found = {}
    for path in sorted(project.root.rglob("*")):
        inside = path.relative_to(project.root)
        if path.is_file() and inside.parts[:2] not in (
            (".orchestrator", "work"),
            (".orchestrator", "cache"),
            (".orchestrator", "operations.db-shm"),
        ):
            found[str(inside)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


#: What a terminal or a CI runner would obey, as a program prints it.
STEERING = (
    r"::error file=x::bad\n  ::stop-commands::t0ken\n##[error]no\nx ##vso[task.complete]y\n"
    r"##teamcity[message]\ra::b\r::notice::c\n\033[2J\033]0;title\007\302\2331;31m\342\200\256evil\n"
)
RUNNER_COMMAND = re.compile(r"(?m)(?:^|\r)\s*::\S|##[a-z]*\[")
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@every_engine
def test_what_a_provider_says_steers_neither_terminal_nor_pipeline(project: Project) -> None:
    """
    Workflow commands, escape sequences and characters that turn text round, in what provisioners
    print, in errors, outputs and provider state: on no screen, in no log, in no JSON.
    """
    project.write(
        "m/main.tf",
        r"""
        variable "said" { type = string }
        resource "terraform_data" "a" {
          input = var.said
          provisioner "local-exec" {
            command     = "printf \"$SAID\"; printf \"$SAID\" >&2"
            environment = { SAID = var.said }
          }
        }
        resource "terraform_data" "b" {
          depends_on = [terraform_data.a]
          lifecycle {
            precondition {
              condition     = terraform_data.a.id == ""
              error_message = "no: ${terraform_data.a.output}"
            }
          }
        }
        output "said" { value = var.said }
        """,
    )
    project.write(
        "blueprints/steers.yaml",
        """
        version: 1
        name: steers
        inputs: {said: {type: string}}
        steps:
          a: {module: ../m, inputs: {said: "${inputs.said}"}}
        """,
    )
    printed = subprocess.run(["printf", STEERING], capture_output=True, check=True).stdout.decode()
    project.write("in.json", json.dumps({"said": STEERING + printed}))
    project.environ |= {"GITHUB_ACTIONS": "true", "NO_COLOR": "1"}
    given = ("--input-file", "in.json")

    ended = [project.run("apply", "steers", "--yes", "-v", *given)]
    run_id = project.last_run()["run_id"]
    ended += [
        project.run(*words)
        for words in (
            ("apply", "steers", "--yes", "--json", *given),
            ("status", "steers"),
            ("status", "steers", "--json"),
            ("outputs", "steers"),
            ("recover", "steers"),
            ("runs", "show", run_id),
            ("runs", "logs", run_id, "a"),
            ("exec", "steers/default/a", "--", "state", "show", "terraform_data.a"),
            ("exec", "steers/default/a", "--", "state", "pull"),
        )
    ]

    assert ended[0].code == 10
    for item in ended:
        assert not OBEYED.search(item.said), item.said
        if not item.out.startswith("{"):
            ours = item.said.replace("::group::step by step\n", "").replace("::endgroup::\n", "")
            assert not RUNNER_COMMAND.search(ours), item.said
    logs = {path: path.read_text() for path in project.own.glob("runs/**/*.log")}
    assert any("stop-commands" in text for text in logs.values())
    assert [path for path, text in logs.items() if OBEYED.search(text)] == []
