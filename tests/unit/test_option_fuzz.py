"""
Whatever stands in an option or an argument: an exit code of ours, never a traceback.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import COMMANDS, command_named, main

#: Seconds in all; the number of calls follows from it.
SECONDS = 8.0
#: As documented; a bug would be a traceback, which is raised here.
CODES = {0, 2, 3, 4, 5, 6, 10, 11, 12, 13, 20, 21, 22, 23, 64}

#: No NUL: no system passes one on.
GARBAGE = (
    "", " ", "-", "--", "=", "a=", "=b", "a=b", "x" * 70_000, "1" * 5_000, "-1", "0", "1e400",
    "NaN", "nan", "inf", "9" * 25, "\udcff\udce9", "x=\udcff", "\u202e", "\x1b[31m", "é" * 400,
    "*", "+", "*+", "+*", "[", "]", "a[", 'a["', 'a["k"]', "${inputs.x}", "$(id)", "`id`",
    "../../etc", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/", ".", "..", "~", "b", "b//a",
    "b/default/a", "b/default/a/x", "[" * 3_000, "{" * 3_000, "a=" + "[" * 3_000, "x=&a [*a]",
    "1h", "-5s", "1e9h", "99999999999d", "sqlite:", "s3://", "postgres://\u2100", "memory:",
    "http://[::::]/", "a\nb", "\n", "2027-13-45", "terraform", "tofu", "embedded", "default", "a",
    "%00", "%s%n", "aws_x.y", "module.",
)  # fmt: skip

BLUEPRINT = """
version: 1
name: b
inputs: {x: {type: any, default: 1}}
steps:
  a: {module: ../m, inputs: {x: "${inputs.x}"}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    A project on a machine without an engine: nothing that is called can do more than be refused.
    """
    for name, text in {
        "blueprints/b.yaml": BLUEPRINT,
        "m/main.tf": 'variable "x" {}\noutput "y" { value = var.x }\n',
        "bin/terraform": "#!/bin/sh\nexit 1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "bin/terraform").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in [*os.environ]:
        if name.startswith(("ORCHESTRATOR_", "TF_")):
            monkeypatch.delenv(name)
    return tmp_path


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """
    Every command with the words that call it.
    """
    for name in COMMANDS:
        command = command_named(name)
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, sub), item) for sub, item in command.commands.items())


def words(chance: random.Random, name: tuple[str, ...], command: click.Command) -> list[str]:
    """
    A call of a command: its arguments, and some of its options, each right or garbage.
    """
    found = [*name]
    for parameter in command.params:
        value = chance.choice(("b", "b/default/a", "a", chance.choice(GARBAGE)))
        if isinstance(parameter, click.Argument):
            found += [value]
        elif isinstance(parameter, click.Option) and chance.random() < 0.3:
            found.append(chance.choice(parameter.opts))
            if not parameter.is_flag:
                found.append(chance.choice(GARBAGE))
    if chance.random() < 0.1:
        found.insert(chance.randrange(len(found) + 1), chance.choice(GARBAGE))
    return found


def test_no_option_ends_in_a_traceback(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Generated calls of every command, and garbage in every variable that stands for an option.
    """
    seed = int(os.environ.get("ORCHESTRATOR_TEST_SEED", random.SystemRandom().randrange(2**32)))
    chance, known = random.Random(seed), list(commands())
    end, calls = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        call = words(chance, *known[calls % len(known)])
        if call[0] == "demo":  # it runs what it brings
            call = ["demo", "--help"]
        variable = f"ORCHESTRATOR_{chance.choice(('ENVIRONMENT', 'JOBS', 'INPUT_x', 'TRUST'))}"
        with monkeypatch.context() as patched:
            garbage = chance.choice(GARBAGE)
            if chance.random() < 0.2:
                patched.setenv(variable, garbage)
            try:
                code = main(call)
            except BaseException as exc:
                exc.add_note(f"ORCHESTRATOR_TEST_SEED={seed}: {call!r}")
                raise
        assert code in CODES, (seed, call, capsys.readouterr())
        calls += 1
        capsys.readouterr()
    print(f"ORCHESTRATOR_TEST_SEED={seed}: {calls} calls")
    assert calls > len(known)
