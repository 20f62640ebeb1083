"""
The demo tells the truth and leaves nothing behind.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.demo import SHIPPED
from tests.project import PROGRAMS, REPOSITORY, Project, require_engine

pytestmark = pytest.mark.engine

_SAMPLE = re.compile(r"<!-- output of the demo -->\n```text\n(.*?)```", re.DOTALL)


class Stand:
    """
    A place to run the demo in: its temporary directories are made below ``root``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = Project(root / "cwd")
        (root / "tmp").mkdir()
        self.project.environ["TMPDIR"] = str(root / "tmp")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.project.launch("demo", *arguments, stderr=subprocess.STDOUT)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        said, _ = process.communicate()
        return process.returncode, said

    def servers(self) -> list[int]:
        """
        The servers of the demo that are alive.
        """
        found = []
        for process in psutil.process_iter(["cmdline"]):
            arguments = process.info["cmdline"] or []
            if "serve" in arguments and str(self.root) in " ".join(arguments):
                found.append(process.pid)
        return found

    def leavings(self) -> list[Path]:
        return list((self.root / "tmp").iterdir())


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def _plain(text: str) -> Iterator[str]:
    """
    The lines of an output without what differs from run to run: numbers, ids, times, places.
    """
    for line in text.splitlines():
        shown = re.sub(r"/\S*orchestrator-demo-\S+", "PLACE", line)
        shown = re.sub(r"\d{8}T\d{6,9}Z-[0-9a-f]+", "RUN", shown)
        shown = re.sub(r"(just now|\d+ s ago) \([^)]*\)", "WHEN", shown)
        yield re.sub(r"\(\d+(\.\d+)? s\)", "(TIME)", shown).rstrip()


@pytest.mark.parametrize("engine", PROGRAMS)
def test_the_demo_goes_as_told(engine: str, stand: Stand) -> None:
    """
    On real Terraform: exit code 0, the server seen alive after the failed apply and gone after the
    destroy, nothing left; and the samples in the README are lines of this output, in order.
    """
    code, said = stand.run("--engine", require_engine(engine))
    assert code == 0, said
    taken = "tofu" if engine == "tofu" else "terraform"
    assert re.search(rf"^apply web-service/default  run \S+  {taken} \d", said, re.MULTILINE), said
    assert len(said.splitlines()) <= 80, said
    facts = re.findall(r"^\[checked\] (.*)$", said, re.MULTILINE)
    alive = next(i for i, fact in enumerate(facts) if "is the server, and it lives" in fact)
    gone = next(i for i, fact in enumerate(facts) if fact.endswith("nobody answers"))
    assert said.index("exit 10, engine failed") < said.index(facts[alive]), said
    assert alive < gone, said
    assert (stand.servers(), stand.leavings()) == ([], [])
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    lines = _plain(said)
    wanted = [line for sample in _SAMPLE.findall(readme) for line in _plain(sample)]
    missing = [line for line in wanted if line != "..." and line not in lines]
    assert missing == [], said


def test_a_signal_ends_the_demo_with_everything_destroyed(stand: Stand) -> None:
    """
    A signal in the middle of the apply, when the server is alive: the apply is stopped, what exists
    is destroyed though a second signal comes, and the exit code is that of the first.
    """
    process = stand.start()
    shown = _read_until(process, "bootstrap │ applying")
    servers = stand.servers()
    process.send_signal(signal.SIGINT)
    shown += _read_until(process, "orchestrator destroy web-service --yes")
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate()
    assert len(servers) == 1, shown
    assert process.returncode == 130, shown + rest
    assert "absence confirmed" in rest
    assert (stand.servers(), stand.leavings()) == ([], [])


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    """
    What it says up to the line that holds ``text``, or to the end.
    """
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if text in line:
            break
    return shown


def test_a_story_that_does_not_go_as_told_is_a_failure(stand: Stand) -> None:
    """
    If the engine cannot do anything, the demo says what is not so, ends with 4, leaves nothing.
    """
    engine = stand.root / "engine"
    engine.write_text("#!/bin/sh\nexit 1\n")
    engine.chmod(0o700)
    code, said = stand.run("--engine", str(engine))
    assert code == 4, said
    assert "the demo failed; this does not hold:" in said
    assert stand.leavings() == []


def test_a_directory_with_something_in_it_is_left_alone(stand: Stand) -> None:
    """
    The demo makes its project only where nothing is.
    """
    code, said = stand.run("--directory", str(stand.root))
    assert (code, "is not empty" in " ".join(said.split())) == (64, True), said


def test_pause_needs_a_terminal(stand: Stand) -> None:
    """
    Without a terminal nobody is asked to press a key.
    """
    code, said = stand.run("--pause")
    assert (code, "there is no terminal" in said) == (64, True), said


@pytest.mark.parametrize("name", ["modules", "blueprints"])
def test_what_ships_is_what_stands_in_the_repository(name: str) -> None:
    """
    The package holds the modules and blueprints of the repository, not copies of them.
    """
    assert (SHIPPED / name).resolve() == REPOSITORY / name
