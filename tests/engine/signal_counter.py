"""
An engine that counts the signals it gets, and can be made to hang before it begins.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import EngineRequirement
from orchestrator.engine.choose import EngineFinder
from tests.project import Project, Running, eventually

#: Variables: the verb that hangs; that no signal reaches the engine; a verb and a command that
#: prints a line, holds the state's lock from then on while the verb runs, and ends with its input.
HOLD, DEAF, LOCK = "COUNTED_HOLD", "COUNTED_DEAF", "COUNTED_LOCK"

_SCRIPT = """\
#!{python} -S
import os, signal, subprocess, sys, time

verb, child, seen = sys.argv[1], None, []

def note(number, frame):
    seen.append(number)
    with open({log!r}, "a") as log:
        log.write(f"{{verb}} {{os.getpid()}} {{number}}\\n")
    if child is not None and {deaf!r} not in os.environ:
        child.send_signal(number)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, note)
if verb == os.environ.get({hold!r}):
    open({held!r}, "w").close()
    while not seen:
        time.sleep(0.02)
    sys.exit(1)
locker = None
if verb == os.environ.get({lock!r}, "").partition(" ")[0]:
    command = os.environ[{lock!r}].split(" ")[1:]
    locker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    locker.stdout.readline()
child = subprocess.Popen([*{program!r}, *sys.argv[1:]])
code = child.wait()
if locker is not None:
    locker.communicate()
sys.exit(code if code >= 0 else 1)
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """
    The program's path, and what it saw: (verb, signal) per signal and process.
    """

    path: Path
    log: Path
    held: Path

    @property
    def signals(self) -> list[tuple[str, signal.Signals]]:
        """
        The signals that engine processes got, in order.
        """
        return [(verb, number) for verb, _, number in self._lines()]

    @property
    def processes(self) -> int:
        """
        How many engine processes got a signal.
        """
        return len({pid for _, pid, _ in self._lines()})

    def wait_until_held(self, tool: Running) -> None:
        """
        Wait until the verb of HOLD hangs.
        """
        eventually(self.held.exists, "the engine hangs", tool)

    def _lines(self) -> list[tuple[str, str, signal.Signals]]:
        if not self.log.exists():
            return []
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [(verb, pid, signal.Signals(int(number))) for verb, pid, number in rows]


def counted(project: Project, directory: Path) -> Counted:
    """
    Have the project use its engine wrapped so that its signals are counted.
    """
    finder = EngineFinder(project.environ, directory / "cache")
    info = finder.choose(project.environ["ORCHESTRATOR_ENGINE"], EngineRequirement(), None)
    found = Counted(directory / "counted-engine", directory / "signals", directory / "held")
    found.path.write_text(
        _SCRIPT.format(
            python=sys.executable,
            log=str(found.log),
            held=str(found.held),
            program=info.program,
            hold=HOLD,
            deaf=DEAF,
            lock=LOCK,
        )
    )
    found.path.chmod(0o700)
    project.environ["ORCHESTRATOR_ENGINE"] = str(found.path)
    return found
