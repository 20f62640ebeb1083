"""
A project of two steps whose real objects can be counted, and runs of the tool to meddle with.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.engine.process.wrapper import session_members
from tests.project import PROGRAMS, Ended, Project, Running, eventually, require_engine

#: Calls of the ports that leave everything as it is: to die before one is to die before the next.
READS = frozenset(
    f"{port}.{method}"
    for port, methods in {
        "store": "newest newest_known history records claim lease blob blobs close probe",
        "files": "directory read_run runs attempts engine_identity",
        "spool": "pending",
        "engine": "state state_before state_in_plan refreshed_state_in_plan pulled_state info_in",
        "workdirs": "snapshot unpack lock_file errored_state not_composable",
    }.items()
    for method in methods.split()
)

#: An object is a directory in ``place``; it is made, and removed, once the file ``hold`` is gone.
KEEPER = """
variable "name" {
  type = string
}

variable "place" {
  type = string
}

resource "terraform_data" "object" {
  input = { place = var.place, name = var.name }

  provisioner "local-exec" {
    command     = "echo create $NAME >> log; WAIT; mkdir $NAME.$ID"
    working_dir = self.input.place
    environment = { NAME = self.input.name, ID = self.id }
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "echo delete $NAME >> log; WAIT; rmdir $NAME.$ID"
    working_dir = self.input.place
    environment = { NAME = self.input.name, ID = self.id }
  }
}

output "id" {
  value = terraform_data.object.id
}
""".replace("WAIT", "for _ in $(seq 1200); do test ! -e hold && break; sleep 0.05; done")

PAIR = """
version: 1
name: pair
inputs:
  place: {type: string, default: "PLACE"}
environments:
  default: {}
  other: {inputs: {place: "PLACE/other"}}
steps:
  one:
    module: ../modules/keeper
    inputs: {name: one, place: "${inputs.place}"}
    verify: [{command: {argv: ["true"]}}]
  two:
    module: ../modules/keeper
    needs: [one]
    inputs: {name: two, place: "${inputs.place}"}
"""

#: The same without any order between the steps.
LOOSE = PAIR.replace("name: pair", "name: loose").replace("    needs: [one]\n", "")

#: The same with the second step owned by the first.
OWNED = PAIR.replace("name: pair", "name: owned").replace("[one]\n", "[one]\n    owned_by: one\n")

#: As the last number of calls that fail: all that come.
EVER = 1_000_000


def any_engine() -> str:
    """
    A real engine, a program where there is one, as it is quicker; a named skip where there is none.
    """
    return require_engine(next(filter(shutil.which, PROGRAMS), "embedded"))


#: A program that stands for the engine.
STANDIN = Path(__file__).with_name("standin.sh")


class Pair(Project):
    """
    The blueprint ``pair``: step ``two`` needs step ``one``, which has a check.

    A real object is a directory in ``place`` named STEP.ID; ``place/log`` has a line for each
    mutation that began. Mutations do not end while `hold` holds them. ``engine`` is what
    ``--engine`` takes.
    """

    def __init__(self, root: Path, engine: str) -> None:
        super().__init__(root, engine=engine)
        self.place = root / "objects"
        (self.place / "other").mkdir(parents=True)
        self.write("orchestrator.yaml", "project: crash\n")
        self.write("modules/keeper/main.tf", KEEPER)
        self.write("blueprints/pair.yaml", PAIR.replace("PLACE", str(self.place)))
        self.write("blueprints/loose.yaml", LOOSE.replace("PLACE", str(self.place)))
        self.write("blueprints/owned.yaml", OWNED.replace("PLACE", str(self.place)))
        self.said = ""
        self._calls = root / "calls"

    # Runs of which the exit code is looked at, and what they said only where it is wrong

    def code(self, *arguments: str) -> int:
        """
        The exit code of a run of the tool; what it says is in ``said``.
        """
        return self._code(self.run(*arguments))

    def meddled(
        self,
        verb: str,
        *,
        kill: tuple[str, int, str] | None = None,
        fail: Mapping[str, tuple[int, int]] | None = None,
        lifetime: float | None = None,
        blueprint: str = "pair",
        wanted: Mapping[str, Sequence[str]] | None = None,
    ) -> int:
        """
        Run a verb with its ports meddled with, as `tests.crash.meddling.Meddling` says; ``wanted``
        are further fields of its order.
        """
        self._calls.unlink(missing_ok=True)
        meddle = {
            "calls": str(self._calls),
            "kill": kill,
            "fail": fail or {},
            "lifetime": lifetime,
        }
        arguments = (verb, blueprint, meddle, wanted or {})
        return self._code(self.call("tests.crash.meddling:run_meddled", arguments, self.environ))

    def _code(self, ended: Ended) -> int:
        self.said = ended.said
        return ended.code

    @property
    def calls(self) -> list[str]:
        """
        The calls that the last meddled run made.
        """
        return self._calls.read_text().split()

    # Mutations that take their time

    def hold(self) -> None:
        """
        From now on no mutation ends, for a minute at most.
        """
        (self.place / "hold").touch()

    def release(self) -> None:
        (self.place / "hold").unlink()

    def start_held(self, verb: str, *arguments: str) -> Running:
        """
        Start the verb and return once it is in the middle of its first mutation.
        """
        self.hold()
        before = len(self.log())
        process = self.start(verb, "pair", "--yes", *arguments)
        eventually(lambda: len(self.log()) > before, "the mutation begins")
        return process

    # What there is

    def runs(self) -> set[str]:
        """
        The ids of the runs.
        """
        return {path.name for path in (self.own / "runs").glob("*")}

    def engine(self, step: str, attempt: int = 1) -> int:
        """
        The pid of the last mutating engine call of a step.
        """
        found: int = self._identity(step, attempt)["pid"]
        return found

    def engine_session(self, step: str, attempt: int = 1) -> list[int]:
        """
        All living processes of that call: wrapper, engine, providers, provisioners.
        """
        return session_members(self._identity(step, attempt)["wrapper"]["pid"])

    def _identity(self, step: str, attempt: int) -> dict[str, Any]:
        files = self.own.glob(f"runs/*/steps/{step}/{attempt}/apply.identity.json")
        newest = max(files, key=lambda path: path.stat().st_mtime_ns)
        found: dict[str, Any] = json.loads(newest.read_text())
        return found

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
    name that changes anything, and before and after each append. With ``names`` only of calls that
    begin with one of them. Of two places with no change between them, one is enough.

    Heartbeats count once: how many there are depends on the time.
    """
    changing, counts = list[tuple[str, int]](), Counter[str]()
    for call in calls:
        if call not in READS and not (call == "store.put_lease" and counts[call]):
            counts[call] += 1
            changing.append((call, counts[call]))
    found: dict[int, Point] = {}
    for place, (call, number) in enumerate(changing):
        if call.startswith(names or ""):
            if call == "store.append" or number == 1:
                found.setdefault(place, (call, number, "before"))
            if call == "store.append" or number == counts[call]:
                found[place + 1] = (call, number, "after")
    return list(found.values())
