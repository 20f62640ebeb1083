"""
The tool's own directory is private: what was open is closed and said, what leads elsewhere refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.project import Project

COMMANDS = [("status", "b"), ("runs",), ("plan", "b"), ("apply", "b", "--yes"), ("store", "check")]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.write("m/main.tf", 'output "y" { value = 1 }\n')
    made.write("blueprints/b.yaml", "version: 1\nname: b\nsteps:\n  a: {module: ../m}\n")
    made.ok("store", "check")
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("command", "opened"),
    [(COMMANDS[0], 0o777), (COMMANDS[1], 0o755), (COMMANDS[2], 0o710), (COMMANDS[3], 0o777)],
    ids=str,
)
def test_what_is_open_is_closed_and_said(
    project: Project, command: tuple[str, ...], opened: int
) -> None:
    """
    By every command; the next one has nothing to say.
    """
    database = project.own / "operations.db"
    project.own.chmod(opened)
    database.chmod(0o666)

    first, second = project.run(*command), project.run("runs")

    assert (mode(project.own), mode(database)) == (0o700, 0o600)
    told = " ".join(first.err.split())
    assert f"{project.own} ({opened:04o})" in told
    assert f"{database} (0666)" in told
    assert "warning: other users could change" in told
    assert "other users" not in second.err


def test_a_store_elsewhere_is_closed_as_well(project: Project) -> None:
    project.write("orchestrator.yaml", "operations: {url: 'sqlite:ops.db'}\n")
    project.ok("store", "check")
    (project.root / "ops.db").chmod(0o644)

    ended = project.run("status", "b")

    assert mode(project.root / "ops.db") == 0o600
    assert "other users could read" in ended.err


def test_what_is_no_store_keeps_its_mode(project: Project) -> None:
    """
    A URL may name anything, `/` or `/dev/null` too: a directory, or a file of somebody else, is not
    touched.
    """
    shared = project.root / "shared"
    shared.mkdir(mode=0o755)
    notes = project.write("notes.txt", "not a database")
    notes.chmod(0o644)

    for name in ("shared", "notes.txt"):
        project.write("orchestrator.yaml", f"operations: {{url: 'sqlite:{name}'}}\n")
        for command in COMMANDS:
            project.run(*command)

    assert (mode(shared), mode(notes)) == (0o755, 0o644)


@pytest.mark.parametrize(
    ("command", "name"),
    list(zip(COMMANDS, [".", "operations.db", "runs", "state", "seen"], strict=True)),
    ids=str,
)
def test_a_symbolic_link_in_its_place_is_refused(
    project: Project, name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    """
    Nothing is read from where it leads to, and nothing written there.
    """
    place, elsewhere = project.own / name, tmp_path / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    before = sorted(path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*")))

    ended = project.run(*command)

    assert (ended.code, "is a symbolic link" in ended.said) == (3, True), ended.said
    assert sorted(p.stat().st_mtime_ns for p in (elsewhere, *elsewhere.rglob("*"))) == before


def test_a_file_in_its_place_is_refused(project: Project) -> None:
    project.own.rename(project.root / "aside")
    project.own.write_text("")

    ended = project.run("status", "b")

    assert (ended.code, "is not a directory" in ended.said) == (3, True), ended.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_refused(project: Project) -> None:
    """
    Of one who is neither we nor the owner of the project.
    """
    os.chown(project.own, 12345, -1)
    refused = project.run("status", "b")
    os.chown(project.root, 12345, -1)
    allowed = project.run("status", "b")

    assert (refused.code, "uid 12345" in refused.said) == (3, True), refused.said
    assert allowed.code == 0
