"""
Start-up: ``--version``, and ``status`` and ``recover`` of 1 and 40 recorded steps, beside
``python -c pass``.

    python -m benchmarks.startup [--rounds N]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.bench import REPOSITORY, TOOL, clean_environment, medians, run, table

_ONE = "version: 1\nname: one\nsteps:\n  only: {module: ../shared/object, inputs: {name: only}}\n"


def lay_out(project: Path) -> None:
    """
    A project with the blueprints ``one`` and ``wide`` (forty steps), both applied.
    """
    shutil.copytree(REPOSITORY / "fixtures/shared", project / "shared")
    (project / "blueprints").mkdir()
    (project / "blueprints/one.yaml").write_text(_ONE)
    wide = (REPOSITORY / "fixtures/wide/blueprint.yaml").read_text()
    (project / "blueprints/wide.yaml").write_text(wide)
    for name in ("one", "wide"):
        run([*TOOL, "apply", name, "--yes", "--json"], project, clean_environment())


def main() -> None:
    """
    Measure them all.
    """
    parser = argparse.ArgumentParser(description="Start-up beside `python -c pass`.")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    project = Path(tempfile.mkdtemp(prefix="orchestrator-bench-"))
    try:
        lay_out(project)
        environ = clean_environment()
        times = medians(
            {
                "python -c pass": lambda: run([sys.executable, "-c", "pass"], project, environ),
                "--version": lambda: run([*TOOL, "--version"], project, environ),
                "status, 1 step": lambda: run([*TOOL, "status", "one"], project, environ),
                "status, 40 steps": lambda: run([*TOOL, "status", "wide"], project, environ),
                "recover, 1 step": lambda: run([*TOOL, "recover", "one"], project, environ),
                "recover, 40 steps": lambda: run([*TOOL, "recover", "wide"], project, environ),
            },
            options.rounds,
        )
        base = times["python -c pass"]
        rows = [
            (
                name,
                f"{time.clock * 1000:.0f} ms",
                f"+{(time.clock - base.clock) * 1000:.0f} ms",
                f"{time.processor * 1000:.0f} ms",
                f"+{(time.processor - base.processor) * 1000:.0f} ms",
                f"{time.processor / base.processor:.1f}",
            )
            for name, time in times.items()
        ]
        table(("start-up", "clock", "over python", "CPU", "over python", "pythons"), rows)
    finally:
        shutil.rmtree(project)


if __name__ == "__main__":
    main()
