"""
The laws of `Spool`.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from orchestrator.domain.target import Target
from orchestrator.errors import StoreUnavailable
from orchestrator.run_files import Spool
from tests.fakes.clock import START
from tests.fakes.entries import entry


def test_a_new_spool_is_empty_and_makes_nothing(tmp_path: Path) -> None:
    """
    Looking into a spool that never held anything leaves no directory behind.
    """
    assert Spool(tmp_path / "spool").pending() == []
    assert list(tmp_path.iterdir()) == []


def test_outcomes_wait_in_the_order_in_which_they_were_put(tmp_path: Path) -> None:
    """
    Order is that of putting, whatever the clock says; another spool on the directory sees it.
    """
    later, earlier = START.replace(year=2031), START
    records = [
        entry(Target("web", "prod", step), sequence, updated_at=at)
        for step, sequence, at in (("z", 5, later), ("z", 6, earlier), ("a", 2, earlier))
    ]
    for record in records:
        Spool(tmp_path / "spool").put(record)

    assert Spool(tmp_path / "spool").pending() == records


def test_putting_an_outcome_again_keeps_its_place(tmp_path: Path) -> None:
    """
    The same entry id is one outcome: its file is replaced.
    """
    spool = Spool(tmp_path)
    first = spool.put(entry(sequence=1))
    spool.put(entry(sequence=2))

    again = spool.put(entry(sequence=1, last_error="said again"))

    assert again == first
    assert [r.last_error for r in spool.pending()] == ["said again", None]


def test_a_dropped_outcome_no_longer_waits(tmp_path: Path) -> None:
    """
    Only the outcome that was recorded is dropped; dropping it twice is no error.
    """
    spool = Spool(tmp_path)
    spool.put(entry(sequence=1))
    spool.put(entry(sequence=2))

    spool.drop(entry(sequence=1))
    spool.drop(entry(sequence=1))

    assert [record.sequence for record in spool.pending()] == [2]


def test_the_spool_is_private(tmp_path: Path) -> None:
    """
    Directory 0700, files 0600.
    """
    path = Spool(tmp_path / "a" / "spool").put(entry())

    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_an_entry_id_never_leaves_the_spool(tmp_path: Path) -> None:
    """
    An id read from elsewhere is escaped: its file lies in the spool, and can be dropped.
    """
    spool = Spool(tmp_path / "spool")
    odd = entry(entry_id="../../etc/x" + "y" * 300)

    path = spool.put(odd)

    assert path.parent == tmp_path / "spool"
    assert spool.pending() == [odd]
    spool.drop(odd)
    assert spool.pending() == []


def test_what_cannot_be_read_is_never_skipped(tmp_path: Path) -> None:
    """
    A damaged outcome stops the command and is named.
    """
    spool = Spool(tmp_path)
    path = spool.put(entry())
    path.write_text('{"schema": "orchestrator.operation/1", "status"')

    with pytest.raises(StoreUnavailable, match=path.name):
        spool.pending()


def test_files_half_written_are_not_outcomes(tmp_path: Path) -> None:
    """
    What a killed process left under a temporary name is not read.
    """
    spool = Spool(tmp_path)
    spool.put(entry())
    (tmp_path / ".abc.tmp").write_text("{")

    assert spool.pending() == [entry()]


def test_a_spool_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """
    An error of the disk is StoreUnavailable and names the path.
    """
    (tmp_path / "spool").write_text("a file, not a directory")

    with pytest.raises(StoreUnavailable, match="spool"):
        Spool(tmp_path / "spool").put(entry())
