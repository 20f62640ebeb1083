"""
Standard streams that are closed, full or gone, and bytes that are not text.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.invocation import watched_streams

TOOL = f"{sys.executable} -m orchestrator"
BLUEPRINT = """\
version: 1
name: web
inputs: {x: {type: string, default: "1"}}
steps: {a: {module: ../modules/m, inputs: {x: "${inputs.x}"}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """
    A project with one valid blueprint.
    """
    (tmp_path / "blueprints").mkdir()
    (tmp_path / "modules/m").mkdir(parents=True)
    (tmp_path / "modules/m/main.tf").write_text('variable "x" {}\n')
    (tmp_path / "blueprints/web.yaml").write_text(BLUEPRINT)
    return tmp_path


def shell(
    line: str, directory: Path, environ: dict[bytes, bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """
    Run a line of bash, whose exit code is that of the tool.
    """
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("TOOL", TOOL)],
        cwd=directory,
        env={**os.environb, **(environ or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("TOOL validate >&-", 0),
        ("TOOL validate 2>&-", 0),
        ("TOOL validate <&- >&- 2>&-", 0),
        ("TOOL status web 2>&-", 0),
        ("TOOL graph web | true", 0),
        ("TOOL status web | head -c1", 0),
        ("TOOL status web --expect ok | true", 4),
        ("TOOL status web --expect ok >/dev/full", 4),
        ("PYTHONIOENCODING=ascii TOOL status web | true", 0),
        ("PYTHONIOENCODING=ascii TOOL status web >/dev/full", 64),
        ("TOOL schema plan >/dev/full", 64),
        ("TOOL validate missing 2>&-", 3),
        ("TOOL validate missing 2>/dev/full", 3),
        ("TOOL graph web >/dev/full", 64),
        ("TOOL status web --json >/dev/full", 64),
        ("TOOL --help >/dev/full", 64),
        ("TOOL nothing >/dev/full 2>&1", 64),
    ],
)
def test_a_stream_that_is_closed_full_or_gone_decides_nothing(
    project: Path, line: str, code: int
) -> None:
    """
    The exit code is that of the command, which runs to its end; a result that could not be
    written, and is nowhere else, is a wrong use of the command line.
    """
    ended = shell(line, project)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_encoding_of_a_stream_will_do(project: Path, encoding: str) -> None:
    """
    What a stream cannot write stands there escaped; JSON is UTF-8.
    """
    text = BLUEPRINT.replace("steps:", "# \u4e2d\nsteps:").replace("name: web", "name: \u4e2d")
    (project / "blueprints/web.yaml").write_text(text, encoding="utf-8")
    ended = shell(f"PYTHONIOENCODING={encoding} TOOL status web", project)
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False)
    assert "\\u4e2d" in ended.stderr
    ended = shell(f"PYTHONIOENCODING={encoding} TOOL status web --json", project)
    assert "\u4e2d" in json.loads(ended.stdout)["message"]


def test_a_closed_stream_is_no_file_of_ours(project: Path) -> None:
    """
    What would go to a closed stream is not written into the next file that is opened.
    """
    shell("TOOL status web 2>&- >&-", project)
    shell("TOOL status web 2>&-", project)
    ended = shell("TOOL status web --json", project)
    assert '"schema"' in ended.stdout


def test_a_working_directory_that_is_gone_is_said(project: Path) -> None:
    """
    An error with a way on, not a traceback.
    """
    ended = shell("mkdir gone && cd gone && rmdir ../gone && TOOL status web", project)
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False)
    assert "-C" in ended.stderr


@pytest.mark.parametrize(
    "line",
    [
        "TOOL validate web -i x=$'caf\\xe9'",
        "TOOL retain web --step a --owner me --review-by 2099-01-01 --reason $'\\xff'",
        "TOOL history $'web/default/\\xfe'",
        "TOOL exec web/default/a -- $'\\xff'",
        "ORCHESTRATOR_INPUT_x=$'\\xff' TOOL validate web",
    ],
)
def test_bytes_that_are_no_text_are_refused(project: Path, line: str) -> None:
    """
    Wherever they come from, they are named, and nothing begins.
    """
    ended = shell(line, project)
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False), ended.stderr
    assert "is not UTF-8 text" in ended.stderr


def test_a_variable_that_is_no_text_is_a_problem_of_its_reference(project: Path) -> None:
    """
    Said with the place that refers to it.
    """
    text = BLUEPRINT.replace("${inputs.x}", "${env.LATIN}")
    (project / "blueprints/web.yaml").write_text(text)
    ended = shell("TOOL validate web", project, {b"LATIN": b"caf\xe9"})
    assert ended.returncode == 3
    assert "web.yaml:4" in ended.stdout
    assert "LATIN is not UTF-8 text" in ended.stdout


def test_a_project_in_a_directory_that_is_no_text_is_refused(project: Path) -> None:
    """
    Its path would stand in every record.
    """
    ended = shell(
        "d=$'caf\\xe9'; mkdir $d && cp -r blueprints modules $d && TOOL -C $d graph web", project
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False), ended.stderr
    ended = shell("cd $'caf\\xe9' && TOOL graph web", project)
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False), ended.stderr


def test_who_runs_it_may_be_called_anything() -> None:
    """
    User and CI job come from outside: what is no text in them is replaced.
    """
    code = "import os; from orchestrator.system import actor; print(actor(os.environ).user)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environb,
            b"LOGNAME": b"andr\xe9",
            b"CI": b"1",
            b"JENKINS_URL": b"x",
            b"BUILD_URL": b"\xff",
        },
        capture_output=True,
        check=True,
    )
    assert "andr\N{REPLACEMENT CHARACTER}" in ended.stdout.decode()


PROVIDER_SAID = """\
::error file=x::y
  ::stop-commands::z
see ##[error]a ##vso[task.complete]b
1::2 a::b"""


@pytest.mark.parametrize("runner", ["GITHUB_ACTIONS", "TF_BUILD", "nobody"])
def test_what_a_provider_says_is_no_command_for_a_runner(
    monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    """
    Under a CI runner the commands in a text are broken, and nothing else; elsewhere it is as it is.
    """
    for name in ("GITHUB_ACTIONS", "TF_BUILD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(runner, "true")
    monkeypatch.setattr(sys, "stdout", said := io.StringIO())
    with watched_streams(json=False):
        print(PROVIDER_SAID)
    with watched_streams(json=True):
        print(as_json := '{"message": "##[error]"}')
    text, _, last = said.getvalue().removesuffix("\n").rpartition("\n")

    assert last == as_json
    if runner == "nobody":
        assert text == PROVIDER_SAID
    else:
        assert not re.search(r"(?m)^\s*::|##\[|##vso\[", text)
        assert text.endswith("1::2 a::b")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("status web --step '*' --exclude '*'", "no step is selected"),
        ("apply web --yes --step a --exclude a", "no step is selected"),
        ("apply web --yes --confirm prod", "does not name the environment"),
        ("apply web --yes --engine ''", "must not be empty"),
        ("apply web --yes --lock-timeout abc", "no duration"),
        ("apply two --yes --replace x.y", "--replace is about one step"),
        ("plan two --target x.y", "--target is about one step"),
    ],
)
def test_an_option_that_says_nothing_is_refused(project: Path, arguments: str, said: str) -> None:
    """
    What selects nothing, names nothing or is no value is a usage error, before anything runs.
    """
    two = BLUEPRINT.replace("name: web", "name: two").replace(
        "steps: {", "steps: {b: {module: ../modules/m, inputs: {x: b}}, "
    )
    (project / "blueprints/two.yaml").write_text(two)
    ended = shell(f"TOOL {arguments}", project)
    assert ended.returncode == 64, ended.stderr
    assert said in ended.stderr
    assert not (project / ".orchestrator/runs").exists()
