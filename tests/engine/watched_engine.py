"""
Real Terraform behind a shell script that notes its calls, waits where it is told to, and can be
taken away after a call; and what kills a run together with its engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.project import Project, Running, eventually, finish

_SCRIPT = """\
#!/bin/sh
echo "$1 $PWD" >> {log}
rounds=0
while [ -e {hold}."$1" ] && [ $rounds -lt {limit} ]; do
  : > {held}."$1"
  rounds=$((rounds + 1))
  sleep 0.05
done
{program} "$@"
code=$?
if [ -e {vanish}."$1" ]; then
    chmod 0600 "$0"
    # Without the engine's note on its backend nobody reads a local state in its place.
    pwd >{vanish}-place
    mv .terraform/terraform.tfstate {vanish}-note
fi
exit $code
"""


#: Rounds after which a call waits no more: a test that failed does not release it.
_LIMIT = 2400


@dataclass(frozen=True, slots=True)
class Watched:
    """
    The program and the directory with its notes.
    """

    program: Path

    def hold(self, verb: str) -> None:
        """
        Let calls of the verb wait before they begin.
        """
        self._file("hold", verb).touch()

    def release(self, verb: str) -> None:
        """
        Let them go on.
        """
        self._file("hold", verb).unlink()
        self._file("held", verb).unlink(missing_ok=True)

    def wait_until_held(self, verb: str, tool: Running) -> None:
        """
        Wait until a call of the verb waits.
        """
        eventually(self._file("held", verb).exists, f"{verb} waits", tool)

    def vanish_after(self, verb: str) -> None:
        """
        Let the program be no program any more after the next call of the verb.
        """
        self._file("vanish", verb).touch()

    def bring_back(self) -> None:
        """
        Let it be one again.
        """
        for mark in self.program.parent.glob("vanish.*"):
            mark.unlink()
        place = Path(self.program.with_name("vanish-place").read_text().strip())
        shutil.move(self.program.with_name("vanish-note"), place / ".terraform/terraform.tfstate")
        self.program.chmod(0o700)

    def calls(self, verb: str) -> list[str]:
        """
        The names of the working directories in which the verb was called.
        """
        log = self.program.parent / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        called = (line.split(" ", 1) for line in lines)
        return [Path(place).name for found, place in called if found == verb]

    @property
    def verbs(self) -> list[str]:
        """
        The verbs of all calls, in order.
        """
        log = self.program.parent / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split(" ", 1)[0] for line in lines]

    def _file(self, what: str, verb: str) -> Path:
        return self.program.parent / f"{what}.{verb}"


def watched(project: Project, directory: Path) -> Watched:
    """
    Have the project use its engine behind such a script.
    """
    real = shutil.which(project.environ["ORCHESTRATOR_ENGINE"])
    assert real is not None, "a missing engine is a named skip"
    directory.mkdir()
    found = Watched(directory / "watched-engine")
    names = {name: shlex.quote(str(directory / name)) for name in ("log", "hold", "held", "vanish")}
    found.program.write_text(_SCRIPT.format(program=shlex.quote(real), limit=_LIMIT, **names))
    found.program.chmod(0o700)
    project.environ["ORCHESTRATOR_ENGINE"] = str(found.program)
    return found


def kill(tool: Running) -> None:
    """
    Kill the tool; nothing else is hurt.
    """
    tool.kill()
    finish(tool)


def kill_with_engine(project: Project, tool: Running, call: str) -> None:
    """
    Kill the tool and its running engine call of this name, as a lost machine does.
    """

    def begun() -> list[str]:
        return [
            path.read_text()
            for path in project.own.glob(f"runs/*/steps/*/*/{call}.identity.json")
            if not path.with_name(f"{call}.answer.json").exists()
        ]

    # Of a call that only reads it is written once the engine has been started.
    eventually(lambda: any(begun()), "the engine is known", tool)
    (identity,) = begun()
    found = json.loads(identity)
    kill(tool)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(found["wrapper"]["pid"], signal.SIGKILL)


def wait_for_answers(project: Project, count: int = 1) -> None:
    """
    Wait until so many mutating engine calls have left their answer.
    """
    eventually(
        lambda: len(list(project.own.rglob("apply.answer.json"))) >= count, "the engine ends"
    )
