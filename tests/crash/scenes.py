"""
A project of two steps whose real objects can be counted, and runs of the tool to meddle with.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.project import REPOSITORY, Project

#: Calls of the ports that leave everything as it is: to die before one is to die before the next.
READS = frozenset(
    f"{port}.{method}"
    for port, methods in {
        "store": ("newest", "history", "records", "claim", "lease", "blob", "blobs", "close"),
        "files": ("directory", "read_run", "runs", "attempts", "engine_identity"),
        "spool": ("pending",),
        "engine": ("state", "state_before"),
        "workdirs": ("snapshot", "unpack", "lock_file", "errored_state"),
    }.items()
    for method in methods
)

KEEPER = """
variable "name" {
  type = string
}

variable "place" {
  type = string
}

variable "seconds" {
  type    = number
  default = 0
}

resource "terraform_data" "object" {
  input = { place = var.place, name = var.name, seconds = var.seconds }

  provisioner "local-exec" {
    command = "echo create $NAME >> log; sleep $SECONDS_LONG; mkdir $NAME.$ID"

    working_dir = self.input.place
    environment = { NAME = self.input.name, ID = self.id, SECONDS_LONG = self.input.seconds }
  }

  provisioner "local-exec" {
    when    = destroy
    command = "echo delete $NAME >> log; sleep $SECONDS_LONG; rmdir $NAME.$ID"

    working_dir = self.input.place
    environment = { NAME = self.input.name, ID = self.id, SECONDS_LONG = self.input.seconds }
  }
}

output "id" {
  value = terraform_data.object.id
}
"""

PAIR = """
version: 1
name: pair
inputs:
  seconds: {type: number, default: 0}
  place: {type: string, default: "PLACE"}
environments:
  default: {}
  other: {inputs: {place: "PLACE/other"}}
steps:
  one:
    module: ../modules/keeper
    inputs: {name: one, place: "${inputs.place}", seconds: "${inputs.seconds}"}
    verify: [{command: {argv: ["true"]}}]
  two:
    module: ../modules/keeper
    needs: [one]
    inputs: {name: two, place: "${inputs.place}"}
"""


class Driver:
    """
    The process of `tests.crash.driver`, one request at a time.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: Mapping[str, Any]) -> int:
        """
        The exit code of the run; negative where a signal ended it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer["code"]


@contextmanager
def driver() -> Iterator[Driver]:
    """
    A driver for the tests of one module.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.driver"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Driver(process)
        assert process.stdin is not None
        process.stdin.close()


def standin(directory: Path) -> str:
    """
    The path of a program that starts the stand-in engine.
    """
    program = directory / "terraform"
    script = Path(__file__).with_name("standin.py")
    command = shlex.join([sys.executable, "-I", "-S", str(script)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return str(program)


class Pair(Project):
    """
    The blueprint ``pair``: step ``two`` needs step ``one``, which has a check.

    A real object is a directory in ``place`` named STEP.ID; ``place/log`` has a line for each
    mutation that began. ``engine`` is what ``--engine`` takes.
    """

    def __init__(self, root: Path, engine: str, driver: Driver | None = None) -> None:
        super().__init__(root, engine=engine)
        self.place = root / "objects"
        (self.place / "other").mkdir(parents=True)
        self.write("orchestrator.yaml", "project: crash\n")
        self.write("modules/keeper/main.tf", KEEPER)
        self.write("blueprints/pair.yaml", PAIR.replace("PLACE", str(self.place)))
        self._driver = driver
        self.output = root / "output"
        self._calls = root / "calls"

    # Runs through the driver

    def call(self, *arguments: str) -> int:
        """
        Run the tool as it is; what it says is in ``output``.
        """
        return self._ask({"arguments": arguments})

    def meddled(
        self,
        verb: str,
        *,
        kill: tuple[str, int, str] | None = None,
        fail: Mapping[str, int] | None = None,
    ) -> int:
        """
        Run a verb with its ports meddled with.
        """
        self._calls.unlink(missing_ok=True)
        meddle = {"calls": str(self._calls), "kill": kill, "fail": fail or {}}
        return self._ask({"arguments": (verb, "pair"), "meddle": meddle})

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._driver is not None, "made without a driver"
        place = {
            "directory": str(self.root),
            "environ": self.environ,
            "output": str(self.output),
        }
        return self._driver.ask(request | place)

    @property
    def calls(self) -> list[str]:
        """
        The calls that the last meddled run made.
        """
        return self._calls.read_text().split()

    # What there is

    def told(self) -> dict[str, Any]:
        """
        ``status --json``, run through the driver.
        """
        assert self.call("status", "pair", "--json") == 0, self.output.read_text()
        found: dict[str, Any] = json.loads(self.output.read_text())
        return found

    @property
    def said(self) -> str:
        """
        The output of the last run through the driver.
        """
        return self.output.read_text()

    def runs(self) -> set[str]:
        """
        The ids of the runs.
        """
        return {path.name for path in (self.own / "runs").glob("*")}

    def history(self, step: str) -> list[dict[str, Any]]:
        """
        The entries of a step, oldest first.
        """
        return [json.loads(text) for text in self.entries(step)]

    def objects(self, step: str) -> list[str]:
        """
        The ids of the real objects of a step.
        """
        return [path.suffix.removeprefix(".") for path in self.place.glob(f"{step}.*")]

    def log(self) -> list[str]:
        """
        The mutations that began, in order: "create one".
        """
        file = self.place / "log"
        return file.read_text().splitlines() if file.exists() else []

    def alive_by_log(self, step: str) -> int:
        """
        How many objects of a step were made and not deleted since.
        """
        log = self.log()
        return log.count(f"create {step}") - log.count(f"delete {step}")


Point = tuple[str, int, str]


def points(calls: Sequence[str], *names: str) -> list[Point]:
    """
    Where to die in a run that makes these calls: before the first and after the last call of each
    name that changes anything, and before and after each append, claim and engine call. With
    ``names`` only of calls that begin with one of them.

    Heartbeats count once: how many there are depends on the time.
    """
    counts = Counter(calls)
    found: list[Point] = []
    for call in dict.fromkeys(calls):
        if call in READS or not call.startswith(names or ""):
            continue
        last = 1 if call == "store.put_lease" else counts[call]
        if call == "store.append" or call.startswith("engine."):
            found += [(call, n, when) for n in range(1, last + 1) for when in ("before", "after")]
        else:
            found += [(call, 1, "before"), (call, last, "after")]
    return found
