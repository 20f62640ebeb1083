"""
The laws of `RunFiles`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.domain.record.record import Source
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.run_files import RunFiles
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR

RUN = "20300102T030405Z-000001"

Write = Callable[[RunFiles, Path, str], None]


def run_record(run_id: str = RUN) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        project="acme",
        blueprint="web",
        environment="prod",
        command="apply",
        actor=ACTOR,
        source=Source(blueprint_path="blueprints/web.yaml"),
        started_at=START,
    )


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / ".orchestrator" / "runs")


def test_looking_makes_nothing(files: RunFiles, tmp_path: Path) -> None:
    """
    Asking for runs, a run or its directory leaves an empty project empty.
    """
    found = (files.runs(), files.read_run(RUN), files.directory(RUN).exists())

    assert found == ([], None, False)
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_has_a_directory_of_its_own(files: RunFiles) -> None:
    """
    ``<runs>/<run>/steps/<step>/<number>``, made at once and again without error.
    """
    path = files.attempt(RUN, "network", 2)

    assert path == files.directory(RUN) / "steps" / "network" / "2"
    assert path.is_dir()
    assert files.attempt(RUN, "network", 2) == path


@pytest.mark.parametrize("step", ['cell["a.b"]', 'cell["../../../x"]', "..", ".", "a/b", "é" * 300])
def test_a_step_name_never_escapes(files: RunFiles, step: str) -> None:
    """
    Whatever a step is called, its attempt is four levels below the runs, in a directory of its own.
    """
    path = files.attempt(RUN, step, 1)

    assert path.resolve().parent.parent == (files.directory(RUN) / "steps").resolve()
    assert path.is_dir()


def test_long_names_that_begin_alike_stay_apart(files: RunFiles) -> None:
    """
    A shortened name still tells two instances apart.
    """
    one, other = (files.attempt(RUN, f'cell["{"k" * 199}{end}"]', 1) for end in "ab")

    assert one != other


@pytest.mark.parametrize("run_id", ["", "..", ".", "../x", "/etc", "a/b", "a\n", "a" * 129, ".x"])
def test_a_run_id_never_escapes(files: RunFiles, run_id: str) -> None:
    """
    A text that is no run id is refused before any path is made of it.
    """
    with pytest.raises(Invalid, match="not the id of a run"):
        files.directory(run_id)


@pytest.mark.parametrize("write", [RunFiles.write, RunFiles.write_input])
def test_a_file_is_written_below_the_runs_only(
    write: Write, files: RunFiles, tmp_path: Path
) -> None:
    """
    Writing anywhere else is a bug of the caller, also by way of a link.
    """
    files.attempt(RUN, "network", 1)
    (files.directory(RUN) / "out").symlink_to(tmp_path)

    with pytest.raises(ValueError, match="not below"):
        write(files, files.directory(RUN) / "out" / "x", "text")

    assert not (tmp_path / "x").exists()


def test_evidence_is_private(files: RunFiles) -> None:
    """
    Directories 0700, files 0600, whatever the umask.
    """
    before = os.umask(0)
    try:
        path = files.inside(files.attempt(RUN, "network", 1), "query") / "raw" / "plan.txt"
        files.write(path, "text")
    finally:
        os.umask(before)

    directories = list(path.relative_to(files.directory(RUN).parent.parent).parents)[:-1]
    root = files.directory(RUN).parent.parent
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE((root / each).stat().st_mode) for each in directories} == {0o700}


@pytest.mark.parametrize("write", [RunFiles.write, RunFiles.write_input])
def test_a_file_is_replaced_whole(write: Write, files: RunFiles) -> None:
    """
    Writing goes by rename: a reader that has the old file open reads the old file to its end.
    """
    path = files.attempt(RUN, "network", 1) / "note.txt"
    write(files, path, "old")

    with path.open() as reader:
        write(files, path, "new")
        seen = reader.read()

    assert (seen, path.read_text()) == ("old", "new")
    assert [each.name for each in path.parent.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("write", [RunFiles.write, RunFiles.write_input])
def test_a_failed_write_leaves_the_file_before(write: Write, files: RunFiles) -> None:
    """
    Where the disk refuses, the earlier file is untouched, nothing is left over, and it is said.
    """
    directory = files.attempt(RUN, "network", 1) / "taken"
    directory.mkdir()
    (directory / "kept").write_text("kept")

    with pytest.raises(StoreUnavailable, match="taken"):
        write(files, directory, "text")

    assert [each.name for each in directory.parent.iterdir()] == ["taken"]


def test_a_run_record_reads_as_it_was_written(files: RunFiles) -> None:
    """
    ``run.json`` holds the last version, unknown fields included.
    """
    files.write_run(run_record())
    newer = run_record().model_copy(update={"exit_code": 0, "colour": "blue"})

    files.write_run(newer)

    read = files.read_run(RUN)
    assert read == newer
    assert read is not None
    assert read.model_extra == {"colour": "blue"}


_NEWER = '{"schema": "orchestrator.run/2"}'
_BARE = '{"schema": "orchestrator.run/1"}'


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "{}", _NEWER, _BARE])
def test_a_damaged_run_record_is_not_a_missing_one(files: RunFiles, text: str) -> None:
    """
    What cannot be read is an error that names the file.
    """
    files.write(files.directory(RUN) / "run.json", text)

    with pytest.raises(StoreUnavailable, match=r"run\.json"):
        files.read_run(RUN)


def test_runs_are_listed_newest_first(files: RunFiles) -> None:
    """
    Run ids sort by time; what is not the directory of a run is not listed.
    """
    for run_id in ("20300101T000000Z-b", "20300103T000000Z-a", "20300102T000000Z-c"):
        files.write_run(run_record(run_id))
    files.write(files.directory("x").parent / "notes", "text")
    (files.directory("x").parent / ".hidden").mkdir()

    assert files.runs() == ["20300103T000000Z-a", "20300102T000000Z-c", "20300101T000000Z-b"]


def test_a_private_directory_is_gone_at_the_end(files: RunFiles) -> None:
    """
    What holds secrets lies in a directory of its own, 0700, removed however its use ends; two of
    one attempt do not meet.
    """
    attempt = files.attempt(RUN, "network", 1)

    with pytest.raises(KeyError), files.private(attempt) as one, files.private(attempt) as other:
        (one / "private.tfstate").write_text("s3cret")
        mode, apart = stat.S_IMODE(one.stat().st_mode), one != other
        raise KeyError

    assert (mode, apart) == (0o700, True)
    assert list(attempt.iterdir()) == []


def test_a_sweep_removes_private_directories(files: RunFiles, tmp_path: Path) -> None:
    """
    What a killed run left in one goes with the sweep, but nothing that a link in it leads to.
    """
    attempt = files.attempt(RUN, "network", 1)
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "kept").write_text("kept")
    left = attempt / ".private-x1" / "root"
    left.mkdir(parents=True)
    (left / "private.tfstate").write_text("s3cret")
    (left / "providers").symlink_to(installed)

    files.sweep(RUN)

    assert list(attempt.iterdir()) == []
    assert (installed / "kept").exists()


def test_outcomes_that_came_too_late_are_found(files: RunFiles) -> None:
    """
    Those of all runs, and nothing else; looking for them makes nothing.
    """
    assert files.late() == []
    files.write_run(run_record())
    kept = files.directory(RUN) / "late-network-2.json"
    files.write(kept, "{}")

    assert files.late() == [kept]
