"""
The command line without an engine: help, mistakes, garbage, and what may not be loaded or made.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import COMMANDS as NAMES
from orchestrator.cli.main import VARIABLES, cli, main
from orchestrator.domain.target import Target
from orchestrator.stores.sqlite import SqliteStore
from tests.fakes.entries import entry
from tests.project import REPOSITORY, Project

HEAVY = ("pydantic", "rich", "structlog", "yaml", "psutil", "pygohcl")

BLUEPRINT = """\
version: 1
name: good
inputs:
  size: {type: number, default: 1}
environments: {default: {}, prod: {protected: true}}
steps:
  a: {module: ../module, inputs: {size: "${inputs.size}"}}
"""


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            found = group.get_command(ctx, name)
            assert found is not None
            yield (*path, name), found
            if isinstance(found, click.Group):
                yield from commands(found, (*path, name))


COMMANDS = dict(commands())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """
    A project in the current directory, its one blueprint ``good`` never applied.
    """
    found = Project(tmp_path / "project")
    found.write("blueprints/good.yaml", BLUEPRINT)
    found.write("module/main.tf", 'variable "size" { type = number }\n')
    monkeypatch.chdir(found.root)
    for name in [name for name in os.environ if name.startswith(("ORCHESTRATOR_", "TF_"))]:
        monkeypatch.delenv(name)
    return found


def loaded(*arguments: str, of: Sequence[str] = HEAVY, directory: Path = REPOSITORY) -> list[str]:
    """
    Which of these modules, of the heavy libraries unless said, a command loads.
    """
    script = (
        "import sys\nfrom orchestrator.cli.main import main\nmain(sys.argv[1:])\n"
        f"print(*[m for m in {tuple(of)} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    return done.stderr.split()


# Help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """
    ``--help`` of every command ends well and shows a call of that very command.
    """
    code = main([*path, "--help"])

    said = capsys.readouterr().out
    assert code == 0
    example = said.partition("Example:\n")[2]
    assert all(name in example for name in ("orchestrator", *path))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    """
    No option without a word on what it does.
    """
    options = [item for item in COMMANDS[path].params if isinstance(item, click.Option)]

    assert [item.name for item in options if not item.help] == []


def test_whatever_takes_a_claim_takes_the_entry_it_was_offered_on() -> None:
    """
    Law: offers are re-checked.
    Each command that may mutate, so that it knows `--takeover`, knows `--at` too.
    """
    names = {path: {item.name for item in found.params} for path, found in COMMANDS.items()}

    mutating = {path for path, known in names.items() if "takeover" in known}
    assert {path for path, known in names.items() if "at" in known} == mutating
    assert ("apply",) in mutating


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("apply", "--help")])
def test_help_and_version_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    """
    What only prints a text starts at once.
    """
    assert loaded(*arguments) == []


@pytest.mark.parametrize("command", ["status", "plan"])
def test_no_start_reads_the_metadata_of_packages(command: str, project: Project) -> None:
    """
    pydantic would look for plugins there, and the library's reader of mail comes with it.
    """
    metadata = ("importlib.metadata", "email.message")

    assert loaded(command, "good", of=metadata, directory=project.root) == []


def test_garbage_is_collected_again_once_a_command_has_ended(project: Project) -> None:
    """
    Only start-up goes without.
    """
    main(["status", "good"])

    assert gc.isenabled()


@pytest.mark.parametrize("command", ["status", "recover"])
def test_who_only_reads_records_loads_nothing_that_runs_engines(
    project: Project, command: str
) -> None:
    """
    What on-call staff read first starts fast: no logging, no process handling, none of the parts
    that make entries, events or plans.
    """
    idle = ("structlog", "psutil", "subprocess", "logging", "socket", "zipfile", "difflib", "html")
    ours = (
        "app.services",
        "domain.blueprint.inputs",
        "domain.events.events",
        "domain.events.journal",
        "domain.masking",
        "domain.transitions.conclusion",
        "engine.terraform",
        # The documents of the other one.
        f"domain.documents.{'recovery' if command == 'status' else 'status'}",
    )
    assert all(importlib.util.find_spec(f"orchestrator.{name}") for name in ours)
    wanted = (*idle, *(f"orchestrator.{name}" for name in ours))

    assert loaded(command, "good", of=wanted, directory=project.root) == []


def test_a_status_of_what_is_well_loads_no_advice(project: Project) -> None:
    """
    What to do next is worked out where something is to be done.
    """
    advice = "orchestrator.domain.recovery.advice"
    assert importlib.util.find_spec(advice)
    assert loaded("status", "good", of=[advice], directory=project.root) == [advice]

    project.write("orchestrator.yaml", "project: acme\n")
    (project.root / ".orchestrator").mkdir(mode=0o700)
    store = SqliteStore(project.root / ".orchestrator/operations.db")
    source = {"blueprint_path": "blueprints/good.yaml"}
    store.append(entry(Target("good", "default", "a"), source=source))
    store.close()

    assert loaded("status", "good", of=[advice], directory=project.root) == []


# Mistakes at the command line


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["aply", "good"], "did you mean 'apply'?"),
        (["apply", "good", "--exlude", "a"], "--exclude"),
        (["apply"], "BLUEPRINT"),
        (["apply", "good", "-j", "0"], "1<=x<=64"),
        (["apply", "good", "--refresh=perhaps"], "boolean"),
        (["runs", "frob"], "frob"),
        (["history", "good"], "<blueprint>/<environment>/<step>"),
        (["import", "good/default/a", "aws_vpc.a", "", "--yes"], "ADDRESS and ID cannot be empty"),
        (["schema", "statsu"], "did you mean 'status'?"),
        ([], "Usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_a_usage_error(
    project: Project, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    """
    Exit 64 with what was meant, on stderr, and nothing done.
    """
    code = main(arguments)

    said = capsys.readouterr()
    assert (code, said.out) == (64, "")
    assert hint in said.err
    assert not project.own.exists()


@pytest.mark.parametrize(
    ("urls", "local", "place"),
    [
        ([], False, ".orchestrator/operations.db"),
        (["sqlite:a.db"], False, "a.db"),
        (["sqlite:a.db", "sqlite:a.db"], False, "a.db"),
        (["sqlite:.orchestrator/operations.db"], True, ".orchestrator/operations.db"),
        (["sqlite:a.db"], True, None),
        (["sqlite:a.db", "sqlite:b.db"], False, None),
    ],
)
def test_a_store_command_works_on_the_one_store_there_is(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    urls: list[str],
    local: bool,
    place: str | None,
) -> None:
    """
    Where nothing is named: the store that the blueprints lead to. An export of a file that nobody
    uses would be an empty backup; of several one must be named.
    """
    for number, url in enumerate(urls):
        text = BLUEPRINT.replace("name: good", f'name: b{number}\noperations: {{url: "{url}"}}')
        project.write(f"blueprints/b{number}.yaml", text)
    if urls:
        (project.root / "blueprints/good.yaml").unlink()
    if local:
        project.write(".orchestrator/operations.db", "")

    code = main(["store", "export"])

    said = capsys.readouterr().err
    if place is None:
        assert code == 64
        assert all(name in said for name in (urls[0], "several operation stores", "--blueprint"))
    else:
        assert f"sqlite://{project.root / place}" in said or f"{project.root / place}:" in said


@pytest.mark.parametrize(
    "url", ["sqlite:bad.db", "postgres://ada:tr0ub4dor@127.0.0.1:1/x?password=tr0ub4dor"]
)
def test_the_status_of_all_tells_what_can_be_read(
    project: Project, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """
    A store that cannot be read hides none of the others: whose it is and why is said, without what
    may be secret in its URL, and it is not taken for empty, exit 22.
    """
    text = BLUEPRINT.replace("name: good", f'name: bad\noperations: {{url: "{url}"}}')
    project.write("blueprints/bad.yaml", text)
    project.write("bad.db", "no database")

    code = main(["status"])
    said = capsys.readouterr()
    as_json = main(["status", "--json"])
    printed = capsys.readouterr().out
    document = json.loads(printed)

    assert (code, as_json) == (22, 22)
    assert "tr0ub4dor" not in said.out + said.err + printed
    assert "good/default  pending" in said.out
    assert "bad/default not known: " in said.out
    assert "bad/prod not known: " in said.out
    names = {item["blueprint"] for item in document["unread_stores"]}
    assert names == {"bad/default", "bad/prod"}
    assert {item["blueprint"] for item in document["blueprints"]} == {"good"}


@pytest.mark.parametrize("url", ["sqlite:bad.db", "postgresql://127.0.0.1:1/none"])
def test_the_list_of_runs_tells_what_can_be_read(
    project: Project, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """
    A store that cannot be read does not hide the others: it is named, exit 22.
    """
    text = BLUEPRINT.replace("name: good", f'name: bad\noperations: {{url: "{url}"}}')
    project.write("blueprints/bad.yaml", text)
    project.write("bad.db", "no database")

    code = main(["runs"])
    said = capsys.readouterr()
    as_json = main(["runs", "--json"])
    document = json.loads(capsys.readouterr().out)
    alone = main(["runs", "--blueprint", "bad"])

    assert (code, as_json, alone) == (22, 22, 22), said
    assert "project default: no runs in what could be read" in said.out
    assert "not read:" in said.out and url.rpartition(":")[2] in said.out
    (unread,) = document["unread_stores"]
    assert unread["url"].endswith(url.rpartition(":")[2]) and unread["message"]


@pytest.mark.parametrize("command", ["retry --from-run", "redeploy --from-run", "rollback --to"])
def test_an_empty_run_is_no_run(
    project: Project, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """
    A variable of a pipeline that is not set does not stand for the run that the records name:
    nothing guesses which one was meant.
    """
    verb, option = command.split()
    code = main([verb, "good", option, "", "--yes"])
    assert (code, "'' is not the id of a run" in capsys.readouterr().err) == (3, True)


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (path, "" if isinstance(option, click.Argument) else option.opts[0])
        for path, command in COMMANDS.items()
        for option in command.params
        if option.metavar in ("REASON", "LOCK_ID") or {"--reason", "--owner"} & set(option.opts)
    ],
)
def test_a_reason_says_something(
    project: Project, path: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What a person must give a reason for is not done for none, nor for an id that is left empty:
    exit 64, and no traceback.
    """
    code = main([*path, *filter(None, [option]), " "])

    assert code == 64
    name = option or "REASON"
    assert f"Invalid value for '{name}': it must not be empty" in capsys.readouterr().err


def test_a_wrong_call_under_json_is_one_document(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A program that asked for JSON gets JSON, whatever went wrong.
    """
    code = main(["apply", "good", "--yess", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert (code, document["exit_code"], document["code"]) == (64, 64, "usage")
    assert document["schema"] == "orchestrator.error/1"


# Garbage


@pytest.mark.parametrize("verb", ["apply", "validate", "status", "recover", "plan", "graph"])
@pytest.mark.parametrize(
    ("file", "content", "place"),
    [
        ("missing.yaml", None, "missing.yaml"),
        ("binary.yaml", bytes(range(256)), "binary.yaml"),
        ("broken.yaml", b"version: 1\nsteps: {a: [\n", "broken.yaml:3:1"),
        ("tabs.yaml", b"version: 1\nsteps:\n\ta: 1\n", "tabs.yaml:3:1"),
        ("list.yaml", b"[1, 2]\n", "list.yaml:1:1"),
        ("empty.yaml", b"", "empty.yaml:1:1"),
        ("key.yaml", BLUEPRINT.encode() + b"stepz: {}\n", "key.yaml:8:1"),
        ("blueprints", None, "blueprints"),
    ],
)
def test_a_blueprint_that_is_none_is_invalid_with_its_place(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    file: str,
    content: bytes | None,
    place: str,
) -> None:
    """
    Exit 3, file and where possible line and column, never a traceback, nothing made.
    """
    if content is not None:
        (project.root / file).write_bytes(content)

    code = main([verb, file])

    said = capsys.readouterr()
    assert code == 3
    assert place in said.out + said.err
    assert not project.own.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "place"),
    [
        (["apply", "good", "-i", "sise=2"], 3, "did you mean 'size'?"),
        (["apply", "good", "-i", "size"], 3, "NAME=VALUE"),
        (["apply", "good", "-i", "size=big"], 3, "must be a number"),
        (["apply", "good", "-i", "size=\udcff"], 3, "is not UTF-8 text"),
        (["apply", "good", "--input-file", "none.yaml"], 3, "none.yaml"),
        (["apply", "good", "-e", "prd"], 3, "did you mean 'prod'?"),
        (["apply", "good", "--step", "b"], 64, "known: a"),
        (["apply", "\udcff"], 3, "is not UTF-8 text"),
        (["runs", "show", "../../etc"], 3, "is not the id of a run"),
        (["-C", "nowhere", "status"], 3, "nowhere is not a directory"),
        (["-C", "blueprints/good.yaml", "status"], 64, "-C"),
    ],
    ids=lambda value: " ".join(map(ascii, value)) if isinstance(value, list) else "",
)
def test_a_wrong_argument_is_told_with_its_place(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    place: str,
) -> None:
    """
    What, where and what next; never a traceback, and no run begins.
    """
    assert main([*arguments, "--yes"] if arguments[0] == "apply" else arguments) == code

    said = " ".join(capsys.readouterr().err.split())
    assert place in said
    assert not (project.own / "runs").exists()


def test_errors_under_json_are_one_document_with_all_problems(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Every problem at once, each with file, line and column of its own.
    """
    project.write("bad.yaml", BLUEPRINT.replace("../module", "nowhere") + "stepz: {}\n")

    code = main(["apply", "bad.yaml", "--yes", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert (code, document["exit_code"], document["code"]) == (3, 3, "invalid")
    places = {(item["file"], item["line"]) for item in document["problems"]}
    assert places >= {("bad.yaml", 8)}
    assert all(item["message"] for item in document["problems"])


def test_settings_that_are_wrong_are_told_all_at_once(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    ``orchestrator.yaml`` is checked like a blueprint.
    """
    project.write("orchestrator.yaml", "jobs: many\nenigne: tofu\n")

    code = main(["status"])

    said = capsys.readouterr().err
    assert code == 3
    assert "orchestrator.yaml:1:7" in said
    assert "did you mean 'engine'?" in said


def test_init_does_not_overwrite_and_says_what_is_in_its_way(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A file where a directory is needed is an error with its place.
    """
    project.write("modules", "a file")

    code = main(["init"])

    assert code == 3
    assert "modules/greeting/main.tf" in capsys.readouterr().err
    assert (project.root / "modules").read_text() == "a file"


def test_init_of_a_project_that_is_there_asks_for_no_apply(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Nothing was made: what is there is looked at.
    """
    main(["init"])
    first = capsys.readouterr().out
    main(["init"])
    again = capsys.readouterr().out

    assert "next: orchestrator apply hello" in first
    assert "next: orchestrator status --all" in again and "apply" not in again


# Approval and options from the environment


@pytest.mark.parametrize(
    "name",
    [
        "ORCHESTRATOR_YES",
        "ORCHESTRATOR_APPROVED",
        "ORCHESTRATOR_AUTO_APPROVE",
        "ORCHESTRATOR_APPLY_YES",
        "ORCHESTRATOR_APPLY_APPROVED",
        "ORCHESTRATOR_APPLY_AUTO_APPROVE",
    ],
)
def test_the_environment_never_approves(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """
    Approval is said with the command or not at all: exit 5, no run, no prompt.
    """
    monkeypatch.setenv(name, "1")

    code = main(["apply", "good"])

    assert code == 5
    assert "--yes" in capsys.readouterr().err
    assert not (project.own / "runs").exists()


@pytest.mark.parametrize("name", ["ORCHESTRATOR_CONFIRM", "ORCHESTRATOR_APPLY_CONFIRM"])
def test_the_environment_never_confirms(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """
    A protected environment is named with the command, besides the approval.
    """
    monkeypatch.setenv(name, "prod")

    code = main(["apply", "good", "-e", "prod", "--yes"])

    assert code == 5
    assert not (project.own / "runs").exists()


def test_only_harmless_options_come_from_the_environment() -> None:
    """
    What approves, names reasons or forgets is never taken from there, in no command.
    """
    personal = {
        "approved", "confirm", "accept_vanished", "skip_preflight", "takeover", "forget",
        "allow_engine_change",
    }  # fmt: skip
    for path, command in COMMANDS.items():
        for item in command.params:
            if item.name in personal:
                assert isinstance(item, click.Option)
                assert not item.allow_from_autoenv and item.envvar is None, (path, item.name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ORCHESTRATOR_ENVIRONMENT", "nope", "has no environment 'nope'"),
        ("ORCHESTRATOR_JOBS", "0", "1<=x<=64"),
        ("ORCHESTRATOR_ENGINE", "no-such-engine", "no-such-engine"),
    ],
)
def test_options_come_from_the_environment(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    said: str,
) -> None:
    """
    A pipeline sets environment, engine and jobs once for all its calls.
    """
    monkeypatch.setenv(name, value)

    main(["apply", "good", "--yes"])

    assert said in capsys.readouterr().err


# Reading leaves no trace


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "good", "--json"],
        ["recover", "good"],
        ["recover", "good", "--json"],
        ["status", "--all", "--json"],
        ["validate"],
        ["graph", "good"],
        ["runs"],
        ["history", "good/default/a"],
    ],
    ids=" ".join,
)
def test_reading_a_fresh_project_makes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """
    Law: reading changes nothing.
    No database, no directory, no key.
    """
    before = sorted(project.root.rglob("*"))

    main(arguments)

    assert sorted(project.root.rglob("*")) == before


def test_a_reader_that_has_gone_is_no_bug(project: Project) -> None:
    """
    A broken pipe on both streams changes no exit code but that of the lost document itself.
    """
    read, write = os.pipe()
    os.close(read)
    tool = project.launch("apply", "nowhere", "--json", stdout=write, stderr=write)
    os.close(write)

    assert tool.wait() == 3


def test_a_variable_that_is_nearly_that_of_an_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A misspelt one would choose nothing, and nobody would notice; the names of inputs and of other
    tools are none of ours.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("ENV", "JOB", "ENVIRONMENT", "INPUT_env", "PLAN_JOBS", "OTHER"):
        monkeypatch.setenv(f"ORCHESTRATOR_{name}", "1")
    main(["status"])
    told = re.findall(r"variable (\w+) is not read: did you mean '(\w+)'", capsys.readouterr().err)
    assert told == [
        ("ORCHESTRATOR_ENV", "ORCHESTRATOR_ENVIRONMENT"),
        ("ORCHESTRATOR_JOB", "ORCHESTRATOR_JOBS"),
    ]


def test_every_variable_of_an_option_is_known_by_its_name() -> None:
    """
    What is not in the list would be taken for a misspelt one.
    """
    read = {
        str(parameter.envvar)
        for name in NAMES
        for command in [cli.get_command(click.Context(cli), name)]
        for parameter in (command.params if command else ())
        if parameter.envvar
    }
    assert read | {"ORCHESTRATOR_KEY", "ORCHESTRATOR_TRUST"} == set(VARIABLES)
