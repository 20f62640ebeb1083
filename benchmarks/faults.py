"""
What becomes of remote objects when a provider fails and somebody goes on the usual way.

    python -m benchmarks.faults [--engine NAME] [--only TEXT] [--jobs N] [--markdown]

For every fault that the fixture provider knows: one command meets it, then "apply again", then
"destroy". This tool stands beside plain engine calls with ``-auto-approve``, and beside Terragrunt
where it is on PATH. A call that hangs is cancelled the way CI does it: SIGINT, then SIGKILL.

An object is *doubled* if the cloud ever held more of a name than were asked for. It is *left and
not named* if it is alive at the end and neither the provider state nor, with this tool, the record
names it: by its id, or by an address that is recorded as in doubt.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.bench import TOOL, clean_environment, engine_program, run, table
from fixtures.fakecloud import KINDS, Cloud, Kind, Op, environment, install

#: Seconds before a command counts as hanging, and from its SIGINT to SIGKILL.
PATIENCE, GRACE = 60.0, 3.0

_NAMES = ("web", "other")
_MODULE = """\
terraform {
  required_providers {
    fakecloud = { source = "test/fakecloud" }
  }
}
variable "size" { type = string }
resource "fakecloud_server" "web" {
  name = "web"
  size = var.size
}
resource "fakecloud_server" "other" {
  name = "other"
  size = var.size
}
output "id" { value = fakecloud_server.web.id }
"""
_BLUEPRINT = """\
version: 1
name: shop
inputs: {size: {type: string}}
steps:
  only: {module: ../module, inputs: {size: "${inputs.size}"}}
"""

#: Arguments of kinds that need some; the others are armed by their name.
_ARGUMENTS = {
    Kind.SLOW: ("slow:1",),
    Kind.LATE: ("late:1",),
    Kind.DELETE_SLOW: ("delete_slow:reads=2",),
    Kind.LOST_ANSWER: ("lost_answer:reset", "lost_answer:deadline"),
    Kind.ERROR_BEFORE: ("error_before:QuotaExceeded",),
}
#: What an operation is met in: the sizes to apply first, then the command that meets the fault.
_SCENES: Mapping[Op, tuple[tuple[str, ...], tuple[str, str]]] = {
    Op.CREATE: ((), ("apply", "small")),
    Op.UPDATE: (("small",), ("apply", "large")),
    Op.READ: (("small",), ("apply", "large")),
    Op.DELETE: (("small",), ("destroy", "small")),
}


@dataclass(frozen=True, slots=True)
class Case:
    """
    A fault, and the operation that meets it.
    """

    op: Op
    fault: str

    def __str__(self) -> str:
        return f"{self.op} {self.fault}"


def cases() -> Iterator[Case]:
    """
    Every fault of the operations on objects.
    """
    for op in _SCENES:
        for kind in sorted(KINDS[op]):
            for fault in _ARGUMENTS.get(kind, (str(kind),)):
                yield Case(op, fault)


@dataclass(slots=True)
class Outcome:
    """
    How one case ended: exit codes of the commands from the fault on, names of which there were too
    many, and what is alive in the end, by whether anything names it.
    """

    codes: list[str] = field(default_factory=list)
    doubled: set[str] = field(default_factory=set)
    named: int = 0
    unnamed: int = 0


class Way(Protocol):
    """
    A way of working with a module.
    """

    environ: dict[str, str]
    root: Path

    def argv(self, verb: str, size: str) -> Sequence[str]:
        """
        The command for ``apply`` or ``destroy``, approved.
        """

    def names(self) -> tuple[set[str], set[str]]:
        """
        What is known in the end: ids of objects, and addresses in doubt.
        """


class ThisTool:
    """
    A blueprint with one step.
    """

    def __init__(self, root: Path, environ: dict[str, str], engine: str | None) -> None:
        self.root, self.environ = root, environ
        self._engine = ("--engine", engine) if engine else ()
        (root / "module").mkdir(parents=True)
        (root / "blueprints").mkdir()
        (root / "module/main.tf").write_text(_MODULE)
        (root / "blueprints/shop.yaml").write_text(_BLUEPRINT)

    def argv(self, verb: str, size: str) -> Sequence[str]:
        return (*TOOL, verb, "shop", "--yes", "-i", f"size={size}", *self._engine)

    def names(self) -> tuple[set[str], set[str]]:
        store = sqlite3.connect(self.root / ".orchestrator/operations.db")
        newest = "SELECT record FROM entries ORDER BY sequence DESC LIMIT 1"
        records = [json.loads(text) for (text,) in store.execute(newest)]
        store.close()
        resources = records[0]["resources"] if records else {}
        held = [*resources.get("inventory", ()), *resources.get("released", ())]
        doubts = resources.get("in_doubt", ())
        ids = {item["id"] for item in (*held, *doubts) if item.get("id")}
        found = {id_ for item in doubts for id_ in (item.get("readback") or {}).get("ids", ())}
        state = self.root / ".orchestrator/state/shop/default/only.tfstate"
        return ids | found | _ids_in(state), {item["address"] for item in doubts}


class PlainEngine:
    """
    A root module, and the engine called by hand.
    """

    def __init__(self, root: Path, environ: dict[str, str], program: Sequence[str]) -> None:
        self.root, self.environ, self._program = root, environ, program
        root.mkdir(parents=True)
        (root / "main.tf").write_text(_MODULE)
        run((*program, "init", "-input=false"), root, environ)

    def argv(self, verb: str, size: str) -> Sequence[str]:
        return (*self._program, verb, "-auto-approve", "-input=false", f"-var=size={size}")

    def names(self) -> tuple[set[str], set[str]]:
        return _ids_in(self.root / "terraform.tfstate"), set()


class Terragrunt(PlainEngine):
    """
    The same root as a unit of Terragrunt.
    """

    def __init__(self, root: Path, environ: dict[str, str], program: Sequence[str]) -> None:
        environ = environ | {"TG_TF_PATH": program[0], "TG_NON_INTERACTIVE": "true"}
        super().__init__(root, environ, program)
        (root / "terragrunt.hcl").write_text("")

    def argv(self, verb: str, size: str) -> Sequence[str]:
        return ("terragrunt", verb, "-auto-approve", "-input=false", f"-var=size={size}")


def _ids_in(state: Path) -> set[str]:
    text = state.read_text() if state.exists() else ""
    resources = json.loads(text)["resources"] if text else []
    return {
        instance["attributes"]["id"]
        for resource in resources
        for instance in resource["instances"]
        if instance["attributes"].get("id")
    }


def play(case: Case, way: Way, cloud: Cloud) -> Outcome:
    """
    Meet the fault, apply again, destroy.
    """
    outcome = Outcome()
    before, (verb, size) = _SCENES[case.op]
    for earlier in before:
        run(way.argv("apply", earlier), way.root, way.environ)
    cloud.arm(case.op, "web", case.fault)
    again = [] if verb == "destroy" else [("apply", size)]
    for number, (step, wanted) in enumerate([(verb, size), *again, ("destroy", size)]):
        outcome.codes.append(call(way.argv(step, wanted), way.root, way.environ))
        if number == 0:
            cloud.disarm()
        counted = Counter(server.name for server in cloud.servers())
        outcome.doubled |= {name for name, count in counted.items() if count > 1}
    ids, doubted = way.names()
    for server in cloud.servers():
        if server.id in ids or f"fakecloud_server.{server.name}" in doubted:
            outcome.named += 1
        else:
            outcome.unnamed += 1
    return outcome


def call(argv: Sequence[str], root: Path, environ: Mapping[str, str]) -> str:
    """
    The exit code of a command; one that hangs is cancelled, and its engine dies with it.
    """
    process = subprocess.Popen(
        argv,
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return str(process.wait(PATIENCE))
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(signal.SIGINT)
    try:
        return f"{process.wait(GRACE)} (stopped)"
    except subprocess.TimeoutExpired:
        parent = psutil.Process(process.pid)
        for child in (*parent.children(recursive=True), parent):
            child.kill()
        process.wait()
        return "killed"


def ways(
    place: Path, case: Case, engine: str | None, program: Sequence[str], cli_config: Path
) -> Iterator[tuple[str, Way, Cloud]]:
    """
    Each way of working, on a project and a cloud of its own.
    """
    makers: dict[str, Callable[[Path, dict[str, str]], Way]] = {
        "this tool": lambda root, environ: ThisTool(root, environ, engine),
        Path(program[0]).name: lambda root, environ: PlainEngine(root, environ, program),
    }
    if shutil.which("terragrunt") is not None:
        makers["terragrunt"] = lambda root, environ: Terragrunt(root, environ, program)
    folder = place / str(case).replace(" ", "-").replace(":", "-")
    for name, make in makers.items():
        root = folder / name.replace(" ", "-")
        root.mkdir(parents=True)
        cloud = Cloud(root / "cloud.db")
        environ = clean_environment(environment(cli_config, cloud, {}))
        yield name, make(root / "project", environ), cloud


def main() -> int:
    """
    Print the table; 0 if this tool doubled nothing and named everything that it left.
    """
    parser = argparse.ArgumentParser(description="Faults of a provider, and what is left of them.")
    parser.add_argument("--engine", help="terraform, tofu, embedded or a path")
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--markdown", action="store_true", help="totals as a table for README.md")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="orchestrator-faults-"))
    chosen = [case for case in cases() if options.only in str(case)]
    try:
        program = engine_program(options.engine, clean_environment(), place)
        cli_config = install(place / "mirror")

        def one(case: Case) -> dict[str, Outcome]:
            found = ways(place, case, options.engine, program, cli_config)
            return {name: play(case, way, cloud) for name, way, cloud in found}

        with ThreadPoolExecutor(options.jobs) as pool:
            results = dict(zip(chosen, pool.map(one, chosen), strict=True))
    finally:
        shutil.rmtree(place)
    show(results, markdown=options.markdown)
    ours = [found["this tool"] for found in results.values()]
    return 1 if any(item.doubled or item.unnamed for item in ours) else 0


def show(results: Mapping[Case, Mapping[str, Outcome]], *, markdown: bool) -> None:
    """
    Print a row for each case and way, and the totals.
    """
    head = ("fault", "way", "exit codes", "doubled", "left, named", "left, not named")
    rows = [
        (
            str(case) if number == 0 else "",
            name,
            ", ".join(found.codes),
            str(len(found.doubled)),
            str(found.named),
            str(found.unnamed),
        )
        for case, ways_ in results.items()
        for number, (name, found) in enumerate(ways_.items())
    ]
    if not markdown:
        table(head, rows)
    totals = [
        (
            name,
            str(sum(bool(found[name].doubled) for found in results.values())),
            str(sum(found[name].named for found in results.values())),
            str(sum(found[name].unnamed for found in results.values())),
        )
        for name in next(iter(results.values()))
    ]
    title = (f"{len(results)} faults", "faults with objects doubled", *head[-2:])
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in (title, *totals)]
        print("\n".join([lines[0], "|---" * len(title) + "|", *lines[1:]]))
    else:
        table(title, totals)


if __name__ == "__main__":
    sys.exit(main())
