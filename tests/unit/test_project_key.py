"""
The key of digests belongs to the project: it lies in the store, the same for every machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.stores.project_store import project_key
from orchestrator.stores.sqlite import MemoryStore

GIVEN = "0f" * 32


def key_file(directory: Path, text: str) -> Path:
    file = directory / ".orchestrator" / "key"
    file.parent.mkdir()
    file.write_text(text)
    return file


def test_every_machine_has_the_key_of_the_store(tmp_path: Path) -> None:
    """
    The first command that records makes it; no file holds it.
    """
    store = MemoryStore()
    machines = [tmp_path / "one", tmp_path / "two"]

    keys = {project_key(store, machine, {}, create=True) for machine in machines}

    assert [len(key) for key in keys] == [32]
    assert list(tmp_path.iterdir()) == []


def test_reading_makes_no_key(tmp_path: Path) -> None:
    """
    Where there is none yet, a reading command has one of its own, and leaves nothing.
    """
    store = MemoryStore()

    assert len(project_key(store, tmp_path, {}, create=False)) == 32
    assert store.blobs("") == []


def test_the_key_of_an_earlier_version_moves_into_the_store(tmp_path: Path) -> None:
    """
    Secrets still read unchanged; a machine with another file takes the key of the store, and keeps
    the file.
    """
    store = MemoryStore()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = key_file(tmp_path / "one", GIVEN)
    second = key_file(tmp_path / "two", "ee" * 32)

    read = project_key(store, tmp_path / "one", {}, create=False)
    keys = [project_key(store, tmp_path / name, {}, create=True) for name in ("one", "two")]

    assert {read, *keys} == {bytes.fromhex(GIVEN)}
    assert (first.exists(), second.exists()) == (False, True)


def test_the_variable_goes_before_the_store(tmp_path: Path) -> None:
    """
    ``ORCHESTRATOR_KEY`` is for those who keep the key elsewhere: the store gets none.
    """
    store = MemoryStore()

    assert project_key(store, tmp_path, {"ORCHESTRATOR_KEY": GIVEN}, create=True).hex() == GIVEN
    assert store.blobs("") == []


@pytest.mark.parametrize("content", ["", "abcd", "zz" * 32])
def test_what_is_no_key_is_an_error_and_stays(tmp_path: Path, content: str) -> None:
    """
    A key that is not 32 bytes is never replaced: earlier digests would no longer compare.
    """
    store = MemoryStore()
    file = key_file(tmp_path, content)
    with pytest.raises(Invalid, match="damaged"):
        project_key(store, tmp_path, {}, create=True)
    with pytest.raises(Invalid, match="ORCHESTRATOR_KEY"):
        project_key(store, tmp_path, {"ORCHESTRATOR_KEY": content}, create=True)
    store.put_blob("project-key", content.encode())
    with pytest.raises(StoreUnavailable, match="damaged"):
        project_key(store, tmp_path, {}, create=True)

    assert (file.read_text(), store.blob("project-key")) == (content, content.encode())
