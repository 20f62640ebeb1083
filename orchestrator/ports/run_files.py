"""
The evidence directories of runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.record.run_record import ProcessIdentity, RunRecord


class RunFiles(Protocol):
    """
    The evidence directories of runs: 0700, files 0600, written atomically.
    """

    def directory(self, run_id: str) -> Path: ...

    def attempt(self, run_id: str, step: str, number: int) -> Path:
        """
        Create the directory of a step's attempt and return it.
        """

    def write(self, path: Path, text: str) -> None:
        """
        Write a file durably by rename.
        """

    def write_input(self, path: Path, text: str) -> None:
        """
        Write a file that an engine call reads by rename; it need not outlast the machine.
        """

    def write_run(self, run: RunRecord) -> None: ...

    def read_run(self, run_id: str) -> RunRecord | None: ...

    def runs(self) -> list[str]:
        """
        Return the ids of the runs on this machine, newest first.
        """

    def inside(self, attempt: Path, name: str) -> Path:
        """
        Create a directory inside an attempt's, for calls that mutate nothing, and return it.
        """

    def sweep(self, run_id: str, *, settled: str | None = None) -> None:
        """
        Remove a run's unmasked files, private directories included, except the output of mutating
        calls: that is evidence until they are settled. For the step ``settled`` it is removed, too.
        """

    def private(self, attempt: Path) -> AbstractContextManager[Path]:
        """
        Return a directory inside an attempt's for files with secrets. It is removed at the end, or
        by `sweep` if the process died.
        """

    def attempts(self, run_id: str, step: str) -> list[tuple[int, Path]]:
        """
        Return the attempts of a step that left files on this machine, by number.
        """

    def masked(self, run_id: str, step: str) -> dict[str, bytes]:
        """
        Return the files of a step that hold no secret, by their path below the step's directory:
        masked logs, answers, identities, inventories and inputs.
        """

    def scratch(self) -> AbstractContextManager[Path]:
        """
        Return a private directory for the evidence of a reading command, removed at the end.
        """

    def crash_log(self, evidence: Path) -> Path | None:
        """
        Return a lasting file for the output of a crashed engine if ``evidence`` is temporary, else
        None.
        """

    def engine_identities(self, run_id: str, step: str) -> list[ProcessIdentity]:
        """
        Return the processes of all engine calls that a step of a run left on this machine.
        """

    def late(self) -> list[Path]:
        """
        Return the files of outcomes that came too late to be recorded, oldest run first.
        """

    def engine_identity(self, run_id: str, step: str, number: int) -> ProcessIdentity | None:
        """
        Return the process of an attempt's mutating engine call, without changing any file; None if
        its files are not on this machine or it never began.
        """
