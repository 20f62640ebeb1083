"""
Forty units in four layers, four at once: this tool beside a script of the calls that peers make.

    python -m benchmarks.peers [--engine NAME] [--rounds N] [--units N] [--aws N]

The script makes `init`, `apply -auto-approve` and `output -json` for each unit of a layer, four at
once, and gives each unit an output of the layer before; for the plan `init` and `plan`. Terragrunt
runs the same units where it is on PATH. With ``--aws`` so many units of the AWS provider on a local
cloud are measured instead. Rounds take turns, and ratios of medians are printed: by
the clock, and of processor time, which says more where the machine does other things too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.bench import TOOL, clean_environment, engine_program, medians, run, table
from benchmarks.steps import Subject, aws_subject, subjects

_LAYERS, _JOBS = 4, 4
_BACKEND = 'terraform {\n  backend "local" {}\n}\n'
_TERRAGRUNT = """\
terraform {{ source = "{module}" }}
{dependency}
inputs = {{ value = {value} }}
"""
_DEPENDENCY = """\
dependency "up" {{
  config_path  = "../{up}"
  mock_outputs = {{ value = "small" }}
}}
"""


class Units(ABC):
    """
    The units of one way of running them, in a new directory for each first apply. ``size`` is the
    value that the first layer is given; each later unit takes it from one of the layer before.
    """

    def __init__(self, place: Path, subject: Subject, count: int) -> None:
        self.place, self.subject, self.environ = place, subject, subject.environ
        self.names = [f"u{number:03}" for number in range(count)]
        self.layer = max(1, count // _LAYERS)
        self.count = 0
        self.root = place

    def upstream(self, name: str) -> str | None:
        """
        The unit of the layer before that this one takes its value from.
        """
        number = self.names.index(name)
        return self.names[number - self.layer] if number >= self.layer else None

    def write_providers(self, directory: Path) -> None:
        """
        Configure the providers in a root module, as this tool does from the blueprint.
        """
        if self.subject.providers:
            content = json.dumps({"provider": self.subject.providers})
            (directory / "providers.tf.json").write_text(content)

    @property
    def size(self) -> str:
        return f"size-{self.count}"

    def first(self) -> None:
        """
        Lay all out anew and apply.
        """
        self.count += 1
        self.root = self.place / f"{type(self).__name__.lower()}-{self.count}"
        self.root.mkdir(parents=True)
        (self.root / "module").mkdir()
        (self.root / "module/main.tf").write_text(self.subject.module)
        self.lay_out()
        self.apply()

    def repeat(self) -> None:
        """
        Apply again with nothing to do.
        """
        self.apply()

    def change(self) -> None:
        """
        Apply a change of every unit.
        """
        self.count += 1
        self.apply()

    @abstractmethod
    def lay_out(self) -> None: ...

    @abstractmethod
    def apply(self) -> None: ...

    @abstractmethod
    def plan(self) -> None:
        """
        Plan everything, with nothing to do.
        """


class Orchestrator(Units):
    """
    This tool.
    """

    engine: tuple[str, ...] = ()

    def lay_out(self) -> None:
        steps = {}
        for name in self.names:
            up = self.upstream(name)
            value = f"${{steps.{up}.outputs.value}}" if up else "${inputs.value}"
            steps[name] = {"module": "../module", "inputs": {"value": value}}
        inputs = {"value": {"type": "string"}}
        blueprint = {"version": 1, "name": "bench", "inputs": inputs}
        blueprint["providers"] = self.subject.providers
        (self.root / "blueprints").mkdir()
        text = json.dumps(blueprint | {"steps": steps}, indent=1)
        (self.root / "blueprints/bench.yaml").write_text(text)

    def apply(self) -> None:
        self._run("apply", "--yes", "-j", str(_JOBS))

    def plan(self) -> None:
        self._run("plan", "-j", str(_JOBS))

    def _run(self, verb: str, *options: str) -> None:
        value = ("-i", f"value={self.size}")
        run([*TOOL, verb, "bench", *options, *value, *self.engine], self.root, self.environ)


class Script(Units):
    """
    What peers call, by hand.
    """

    program: tuple[str, ...] = ()

    def lay_out(self) -> None:
        for name in self.names:
            unit = self.root / name
            unit.mkdir()
            shutil.copy(self.root / "module/main.tf", unit / "main.tf")
            (unit / "backend.tf").write_text(_BACKEND)
            self.write_providers(unit)

    def apply(self) -> None:
        values: dict[str, str] = {}

        def one(name: str) -> None:
            up = self.upstream(name)
            self._call(name, "init", "-input=false", "-no-color")
            variable = f"-var=value={values[up] if up else self.size}"
            self._call(name, "apply", "-auto-approve", "-input=false", "-no-color", variable)
            values[name] = json.loads(self._call(name, "output", "-json"))["value"]["value"]

        self._by_layer(one)

    def plan(self) -> None:
        def one(name: str) -> None:
            self._call(name, "init", "-input=false", "-no-color")
            self._call(name, "plan", "-input=false", "-no-color", f"-var=value={self.size}")

        self._by_layer(one)

    def _by_layer(self, one: Callable[[str], None]) -> None:
        with ThreadPoolExecutor(_JOBS) as pool:
            for start in range(0, len(self.names), self.layer):
                list(pool.map(one, self.names[start : start + self.layer]))

    def _call(self, name: str, *arguments: str) -> str:
        return run([*self.program, *arguments], self.root / name, self.environ)


class Terragrunt(Units):
    """
    Terragrunt, where it is on PATH.
    """

    program: tuple[str, ...] = ()

    def lay_out(self) -> None:
        for name in self.names:
            up = self.upstream(name)
            (self.root / name).mkdir()
            text = _TERRAGRUNT.format(
                module=self.root / "module",
                dependency=_DEPENDENCY.format(up=up) if up else "",
                value="dependency.up.outputs.value" if up else 'get_env("BENCH_VALUE")',
            )
            (self.root / name / "terragrunt.hcl").write_text(text)
        self.write_providers(self.root / "module")

    def apply(self) -> None:
        self._all("apply", "-auto-approve")

    def plan(self) -> None:
        self._all("plan")

    def _all(self, *arguments: str) -> None:
        more = {"BENCH_VALUE": self.size, "TG_TF_PATH": " ".join(self.program)}
        command = ["terragrunt", "run", "--all", "--non-interactive", "--parallelism", str(_JOBS)]
        run([*command, "--", *arguments], self.root, {**self.environ, **more})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--units", type=int, default=40)
    parser.add_argument("--aws", type=int, help="units of the AWS provider, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        program = engine_program(options.engine, clean_environment(), place)
        Orchestrator.engine = ("--engine", options.engine) if options.engine else ()
        Script.program = Terragrunt.program = tuple(program)
        ways: list[Callable[..., Units]] = [
            Orchestrator,
            Script,
            *([Terragrunt] if shutil.which("terragrunt") else []),
        ]
        if Terragrunt not in ways:
            print("terragrunt is not on PATH: no figures of it")
        with ExitStack() as servers:
            if options.aws:
                found = [servers.enter_context(aws_subject(place / "cloud"))]
            else:
                found = servers.enter_context(subjects(place))
            for subject in found:
                count = options.aws or options.units
                units = [way(place / subject.name, subject, count) for way in ways]
                _measure(subject.name, units, options.rounds)


def _measure(name: str, units: list[Units], rounds: int) -> None:
    rows = []
    for phase in ("first", "repeat", "change", "plan"):
        calls = {type(way).__name__: partial(getattr(way, phase)) for way in units}
        times = medians(calls, rounds)
        ours = times.pop(Orchestrator.__name__)
        for other, theirs in times.items():
            rows.append(
                (
                    phase,
                    other,
                    f"{ours.clock:.1f}",
                    f"{theirs.clock:.1f}",
                    f"{ours.clock / theirs.clock:.2f}",
                    f"{ours.processor:.1f}",
                    f"{theirs.processor:.1f}",
                    f"{ours.processor / theirs.processor:.2f}",
                )
            )
    print(f"{len(units[0].names)} units of {name}, {_LAYERS} layers, {_JOBS} at once")
    head = ("ours s", "theirs s", "ratio", "ours, CPU", "theirs, CPU", "ratio, CPU")
    table(("", "beside", *head), rows)


if __name__ == "__main__":
    main()
