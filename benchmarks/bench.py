"""
What the benchmarks share: a project of their own, a clean environment, medians of interleaved runs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).parents[1]
TOOL = (sys.executable, "-m", "orchestrator")


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    The caller's environment without what would change the engine or the tool. Python may keep its
    bytecode, as it does for whoever installed the tool.
    """
    dropped = ("TF_", "ORCHESTRATOR_", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    plain = {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    return kept | plain | {"PYTHONPATH": str(REPOSITORY)} | dict(more or {})


def run(argv: Sequence[str], directory: Path, environ: Mapping[str, str]) -> str:
    """
    stdout of a program; SystemExit with all it said where it fails.
    """
    done = subprocess.run(
        argv,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}: {done.stdout}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Taken:
    """
    Seconds by the clock, and of processor time of the processes that were started.
    """

    clock: float
    processor: float


def taken(call: Callable[[], object]) -> Taken:
    """
    What a call takes.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    call()
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(clock, used)


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Taken]:
    """
    Medians of each call; they take turns, so that what else the machine does hits all alike.
    """
    found: dict[str, list[Taken]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(taken(call))
    return {
        name: Taken(median(x.clock for x in values), median(x.processor for x in values))
        for name, values in found.items()
    }


def engine_program(engine: str | None, environ: Mapping[str, str], directory: Path) -> list[str]:
    """
    The argument vector that the tool would start the engine with.
    """
    option = ("--engine", engine) if engine else ()
    said = run([*TOOL, "engine", "info", *option, "--json"], directory, environ)
    found: dict[str, Any] = json.loads(said)
    print(f"engine: {found['kind']} {found['version']}, {found['why']}")
    return list(found["program"])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """
    Print rows in columns.
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print()
