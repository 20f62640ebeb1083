"""
One plan of all steps beside a plan of each, `plan` and `plan --separate`, two at once.

    python -m benchmarks.plans [--steps N...] [--aws N...] [--rounds N]

``--steps`` are blueprints of so many steps of built-in resources, ``--aws`` of so many of AWS on
moto with one provider configuration; for these ORCHESTRATOR_TEST_PROVIDERS names a mirror.
Memory is that of the largest process, the engine or the tool.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.bench import TOOL, Taken, clean_environment, medians, run, table
from benchmarks.steps import aws_subject

_DATA = """\
variable "value" { type = string }
resource "terraform_data" "this" { input = var.value }
output "value" { value = terraform_data.this.output }
"""
_LAYER = 10  # steps of a layer, each of which needs one of the layer before


def write_project(place: Path, module: str, count: int, providers: Mapping[str, object]) -> None:
    """
    A blueprint of so many steps of one module.
    """
    (place / "modules/m").mkdir(parents=True)
    (place / "blueprints").mkdir()
    (place / "modules/m/main.tf").write_text(module)
    steps = {
        f"s{number}": {
            "module": "../modules/m",
            "inputs": {
                "value": f"${{steps.s{number - _LAYER}.outputs.value}}"
                if number >= _LAYER
                else "fixed"
            },
        }
        for number in range(count)
    }
    blueprint = {"version": 1, "name": "b", "providers": providers, "steps": steps}
    (place / "blueprints/b.yaml").write_text(json.dumps(blueprint))


def compare(name: str, place: Path, environ: Mapping[str, str], rounds: int) -> list[list[str]]:
    """
    The rows of a blueprint: before it was ever applied, and unchanged.
    """
    rows = []
    for state in ("never applied", "unchanged"):
        ways = {"one plan": [], "a plan each": ["--separate"]}
        found = medians(
            {way: _call([*options, "-j", "2"], place, environ) for way, options in ways.items()},
            rounds,
        )
        one, each = found["one plan"], found["a plan each"]
        rows.append([name, state, *(_said(item) for item in (one, each)), _ratio(one, each)])
        if state == "never applied":
            run([*TOOL, "apply", "b", "--yes", "-j", "4"], place, environ)
    rows[0][0] += f", {_memory(place, environ):.0f} MB"
    return rows


def _call(options: list[str], place: Path, environ: Mapping[str, str]) -> Callable[[], object]:
    return lambda: run([*TOOL, "plan", "b", "--summary", *options], place, environ)


def _memory(place: Path, environ: Mapping[str, str]) -> float:
    """
    The largest resident size of a process, in MB.
    """
    process = subprocess.Popen(
        [*TOOL, "plan", "b", "--summary"], cwd=place, env=environ, stdout=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss / 1024


def _said(item: Taken) -> str:
    return f"{item.clock:.1f} s, {item.processor:.1f} s CPU"


def _ratio(one: Taken, each: Taken) -> str:
    return f"{each.clock / one.clock:.1f} x, {each.processor / one.processor:.1f} x CPU"


def main() -> None:
    """
    Measure what was asked for.
    """
    parser = argparse.ArgumentParser(description="One plan of all steps beside a plan of each.")
    parser.add_argument("--steps", type=int, nargs="*", default=[20, 200])
    parser.add_argument("--aws", type=int, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for count in options.steps:
        with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as place:
            write_project(Path(place), _DATA, count, {})
            environ = clean_environment()
            rows += compare(f"{count} built-in", Path(place), environ, options.rounds)
    for count in options.aws:
        with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as at:
            project = Path(at) / "project"
            with aws_subject(Path(at) / "cloud") as aws:
                write_project(project, aws.module, count, aws.providers)
                rows += compare(f"{count} AWS", project, aws.environ, options.rounds)
    table(["steps", "state", "one plan", "a plan each", "ratio"], rows)


if __name__ == "__main__":
    main()
