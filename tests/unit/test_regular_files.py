"""
What lies in the place of a file is opened only if it is a file, and never read without end.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

from orchestrator.engine.workdir.snapshot import ignore_rules
from orchestrator.errors import Invalid
from orchestrator.loading.configuration import read_configuration
from orchestrator.local_files import read_regular, write_file
from orchestrator.project import read_settings
from tests.fakes.project import ProjectOnDisk


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def directory(path: Path) -> None:
    path.mkdir()


KINDS = [fifo, device, circle, directory]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", KINDS)
class TestNoFile:
    """
    Each is an error at once, wherever it lies; a read of it would never end.
    """

    def test_by_itself(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / "x")  # type: ignore[operator]
        with pytest.raises(OSError, match=r"regular|symbolic"):
            read_regular(tmp_path / "x")

    def test_as_a_configuration_file(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / "main.tf")  # type: ignore[operator]
        with pytest.raises(Invalid, match="cannot be read"):
            read_configuration(tmp_path, "m")

    def test_as_settings(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / "orchestrator.yaml")  # type: ignore[operator]
        with pytest.raises(Invalid, match="cannot be read"):
            read_settings(tmp_path)

    def test_as_an_ignore_file(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / ".terraformignore")  # type: ignore[operator]
        with pytest.raises(Invalid, match="cannot be read"):
            ignore_rules(tmp_path)

    def test_as_an_input_file(self, tmp_path: Path, make: object) -> None:
        project = ProjectOnDisk(tmp_path)
        project.blueprint("inputs: {a: {default: 1}}\nsteps: {s: {module: ../modules/plain}}")
        make(tmp_path / "in.yaml")  # type: ignore[operator]
        assert "cannot be read" in project.problems(input_files=[Path("in.yaml")])[0]

    def test_as_another_blueprint(self, tmp_path: Path, make: object) -> None:
        project = ProjectOnDisk(tmp_path)
        project.blueprint("steps: {s: {module: ../modules/plain}}")
        make(tmp_path / "blueprints/other.yaml")  # type: ignore[operator]
        assert project.problems() == []

    def test_as_the_source_of_an_input(self, tmp_path: Path, make: object) -> None:
        project = ProjectOnDisk(tmp_path)
        project.blueprint(
            "inputs: {a: {from: {file: ../secret}}}\nsteps: {s: {module: ../modules/plain}}"
        )
        make(tmp_path / "secret")  # type: ignore[operator]
        assert "from.file '../secret'" in project.problems()[0]


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    """
    What is larger than the limit is an error.
    """
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", limit=5) == b"12345"
    with pytest.raises(OSError, match="is larger"):
        read_regular(tmp_path / "x", limit=4)


@pytest.mark.parametrize("content", [b"!\n", b"\xff\xfe"])
def test_a_damaged_ignore_file_is_named(tmp_path: Path, content: bytes) -> None:
    """
    A pattern that is none, and bytes that are no text.
    """
    (tmp_path / ".terraformignore").write_bytes(content)
    with pytest.raises(Invalid, match=r"\.terraformignore"):
        ignore_rules(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("main.tf", "a = " + "[" * 1_000_000),
        ("main.tf", "a = " + '"${' * 500_000),
        ("main.tf", "b {\n" * 800 + "}\n" * 800),
        ("main.tf", "a = " + "[" * 900 + "]" * 900),
        ("main.tf.json", '{"locals": ' + "[" * 1_000_000),
        ("main.tf.json", '{"locals": {"a": ' + "[" * 900 + "]" * 900 + "}}"),
        ("main.tf.json", '{"locals": {"a": ' + "9" * 5000 + "}}"),
    ],
)
def test_no_nesting_ends_the_process(tmp_path: Path, name: str, text: str) -> None:
    """
    Deep nesting and huge numbers are told or read, never a traceback or an abort of the parser.
    """
    (tmp_path / name).write_text(text)
    try:
        read_configuration(tmp_path, "m")
    except Invalid as exc:
        assert "m/main.tf" in str(exc)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.json", '{"a": [' + "1," * 1_500_000 + "1]}"),
        ("in.yaml", "a: [" + "1," * 1_500_000 + "1]"),
        ("in.yaml", "a:\n" + "- 1\n" * 1_500_000),
        ("in.tfvars", "a = [" + "1," * 1_500_000 + "1]"),
    ],
)
def test_a_huge_list_is_refused_at_once(tmp_path: Path, name: str, text: str) -> None:
    """
    Millions of items are told as too many, before anything is built of them.
    """
    project = ProjectOnDisk(tmp_path)
    project.blueprint("inputs: {a: {default: 1}}\nsteps: {s: {module: ../modules/plain}}")
    (tmp_path / name).write_text(text)
    assert "too large" in project.problems(input_files=[Path(name)])[0]


def test_what_a_person_names_is_written_and_never_waited_for(tmp_path: Path) -> None:
    """
    A report goes to a FIFO that somebody reads, whole; to one that nobody reads it does not.
    """
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        write_file(tmp_path / "pipe", "text")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    text = "report " * 100_000
    with os.fdopen(reader, "rb") as pipe:
        writer = threading.Thread(target=write_file, args=(tmp_path / "pipe", text))
        writer.start()
        select.select([pipe], [], [], 30)  # until something is written a read would end at once
        read = pipe.read()
        writer.join()
    write_file(tmp_path / "log", "one\n")
    write_file(tmp_path / "log", "two\udcff\n", append=True)

    assert read == text.encode()
    assert (tmp_path / "log").read_text() == "one\ntwo\\udcff\n"
