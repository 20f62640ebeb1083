"""
Time and engine processes of one step, beside plain Terraform making the same calls.

    python -m benchmarks.steps [--engine NAME] [--rounds N]

Plain is: init, plan -out, apply of that plan, state pull for a first apply; plan and state pull for
a repeat without changes; plan, apply and state pull for one with changes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import TOOL, clean_environment, engine_program, medians, run, table

_DATA = """\
variable "value" { type = string }
resource "terraform_data" "this" { input = var.value }
output "value" { value = terraform_data.this.output }
"""
_CLOUD = """\
terraform {
  required_providers {
    fakecloud = { source = "test/fakecloud" }
  }
}
variable "value" { type = string }
resource "fakecloud_server" "this" {
  name = "web"
  size = var.value
}
output "value" { value = fakecloud_server.this.size }
"""
_MANY = 20
_BLUEPRINT = """\
version: 1
name: bench
inputs: {value: {type: string}}
steps:
  only: {module: ../module, inputs: {value: "${inputs.value}"}}
"""


_AWS = """\
variable "value" { type = string }
resource "aws_vpc" "this" {
  cidr_block = "10.0.0.0/16"
  tags       = { of = var.value }
}
output "value" { value = aws_vpc.this.tags.of }
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """
    A module to measure with, the environment its provider needs, and configurations of providers.
    """

    name: str
    module: str
    environ: Mapping[str, str]
    providers: Mapping[str, object] = field(default_factory=dict)


@contextmanager
def subjects(place: Path) -> Iterator[list[Subject]]:
    """
    A module of ``terraform_data``, and one of a provider process where fakecloud can be installed.
    """
    found = [Subject("terraform_data", _DATA, clean_environment())]
    if importlib.util.find_spec("grpc") is None:
        print("grpcio is not installed: no figures with a provider process")
    else:
        from fixtures.fakecloud import Cloud, environment, install

        config = install(place / "mirror")
        cloud = Cloud(place / "cloud.db")
        found.append(Subject("fakecloud", _CLOUD, clean_environment(environment(config, cloud))))
    yield found


@contextmanager
def aws_subject(place: Path) -> Iterator[Subject]:
    """
    A VPC of the AWS provider on a local cloud; ORCHESTRATOR_TEST_PROVIDERS names a mirror.
    """
    from tests.aws.cloud import Shop, aws_cloud, configuration

    with aws_cloud() as cloud:
        yield Subject("aws", _AWS, Shop(place, cloud).environ, {"aws": configuration()})


class Tool:
    """
    A step run by the tool, in a new project for each first apply.
    """

    def __init__(self, place: Path, subject: Subject, engine: str | None) -> None:
        self._place, self._subject = place, subject
        self._engine = ("--engine", engine) if engine else ()
        self._count = 0
        self._project = place

    def first(self) -> None:
        self._count += 1
        self._project = self._place / f"tool-{self._count}"
        (self._project / "blueprints").mkdir(parents=True)
        (self._project / "module").mkdir()
        (self._project / "module/main.tf").write_text(self._subject.module)
        (self._project / "blueprints/bench.yaml").write_text(_BLUEPRINT)
        self.repeat()

    def repeat(self) -> None:
        value = _size(self._count)
        command = (*TOOL, "apply", "bench", "--yes", "--json", "-i", f"value={value}")
        run([*command, *self._engine], self._project, self._subject.environ)

    def change(self) -> None:
        self._count += 1
        self.repeat()

    def calls(self) -> list[str]:
        """
        The engine processes of the newest run, from the evidence they left, in order.
        """
        newest = max((self._project / ".orchestrator/runs").iterdir())
        found = sorted(newest.rglob("*.identity.json"), key=lambda path: path.stat().st_mtime_ns)
        return [path.name.partition(".")[0].partition("-")[0] for path in found]


class Plain:
    """
    The same calls, made by a person with a shell.
    """

    def __init__(self, place: Path, subject: Subject, program: list[str]) -> None:
        self._place, self._subject, self._program = place, subject, program
        self._count = 0
        self._root = place

    def first(self) -> None:
        self._count += 1
        self._root = self._place / f"plain-{self._count}"
        self._root.mkdir()
        (self._root / "main.tf").write_text(self._subject.module)
        self._call("init", "-input=false", "-no-color")
        self._apply()

    def repeat(self) -> None:
        self._plan()
        self._call("state", "pull")

    def change(self) -> None:
        self._count += 1
        self._apply()

    def _apply(self) -> None:
        self._plan()
        self._call("apply", "-input=false", "-json", "p")
        self._call("state", "pull")

    def _plan(self) -> None:
        (self._root / "v.json").write_text(json.dumps({"value": _size(self._count)}))
        self._call("plan", "-input=false", "-json", "-var-file=v.json", "-out=p")

    def _call(self, *arguments: str) -> None:
        run([*self._program, *arguments], self._root, self._subject.environ)


def _size(count: int) -> str:
    return ("small", "large")[count % 2]


def measure(place: Path, subject: Subject, engine: str | None, rounds: int) -> None:
    """
    Print the figures of one subject.
    """
    program = engine_program(engine, subject.environ, place)
    tool, plain = Tool(place, subject, engine), Plain(place, subject, program)
    rows = []
    for case, ours, theirs in (
        ("first apply", tool.first, plain.first),
        ("repeat without changes", tool.repeat, plain.repeat),
        ("repeat with changes", tool.change, plain.change),
    ):
        times = medians({"tool": ours, "plain": theirs}, rounds)
        mine, other = times["tool"], times["plain"]
        calls = tool.calls()
        rows.append(
            (
                case,
                f"{mine.clock:.2f} s",
                f"{other.clock:.2f} s",
                f"{mine.clock / other.clock:.1f}",
                f"{mine.processor:.2f} s",
                f"{other.processor:.2f} s",
                f"{len(calls)}: {', '.join(calls)}",
            )
        )
    head = ("tool", "plain", "ratio", "tool, CPU", "plain, CPU", "engine processes of the tool")
    table((subject.name, *head), rows)


def measure_further(place: Path, engine: str | None, rounds: int) -> None:
    """
    Print what each further step of a long blueprint costs, without changes, one at a time: what an
    invocation costs by itself is left out.
    """
    environ = clean_environment()
    program = engine_program(engine, environ, place)
    (place / "module").mkdir()
    (place / "module/main.tf").write_text(_DATA)
    names = [f"s{number:02}" for number in range(1, _MANY + 1)]
    lines = [f"  {name}: {{module: ../module, inputs: {{value: {name}}}}}" for name in names]
    (place / "blueprints").mkdir()
    head = "version: 1\nname: long\nsteps:\n"
    (place / "blueprints/long.yaml").write_text(head + "\n".join(lines) + "\n")
    option = ("--engine", engine) if engine else ()
    command = (*TOOL, "apply", "long", "--yes", "--json", *option)
    run(command, place, environ)
    plain = Plain(place, Subject("terraform_data", _DATA, environ), program)
    plain.first()
    times = medians(
        {
            "one": lambda: run([*command, "--step", names[0]], place, environ),
            "all": lambda: run([*command, "--jobs", "1"], place, environ),
            "plain": plain.repeat,
        },
        rounds,
    )
    others = _MANY - 1
    clock = (times["all"].clock - times["one"].clock) / others
    processor = (times["all"].processor - times["one"].processor) / others
    theirs = times["plain"]
    row = (
        "repeat without changes",
        f"{clock:.2f} s",
        f"{theirs.clock:.2f} s",
        f"{clock / theirs.clock:.1f}",
        f"{processor:.2f} s",
        f"{theirs.processor:.2f} s",
    )
    table(("each further step", "tool", "plain", "ratio", "tool, CPU", "plain, CPU"), [row])


def main() -> None:
    """
    Measure every subject.
    """
    parser = argparse.ArgumentParser(description="Time per step beside plain Terraform.")
    parser.add_argument("--engine", help="terraform, tofu, embedded or a path")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="orchestrator-bench-"))
    try:
        with subjects(place) as found:
            for subject in found:
                inner = place / subject.name
                inner.mkdir()
                measure(inner, subject, options.engine, options.rounds)
        further = place / "further"
        further.mkdir()
        measure_further(further, options.engine, options.rounds)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
