"""
Outcomes that the operation store did not take, as files on local disk.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

from orchestrator.domain.record.record import OperationRecord, UnreadableRecord, parse_record
from orchestrator.errors import StoreUnavailable
from orchestrator.regular_files import read_regular
from orchestrator.stores.file_names import file_name
from orchestrator.stores.private_files import sync_directory, write_durably

_FILE = re.compile(r"(?P<number>[0-9]{8,})-(?P<entry>.+)\.json")


class DirectorySpool:
    """
    One file per outcome in ``directory``, numbered in the order in which they were put.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def put(self, record: OperationRecord) -> Path:
        """
        Write the record durably; returns the file. The same entry again replaces its file.
        """
        entry = file_name(record.entry_id)
        try:
            with self._lock:
                files = self._files()
                # By number, not by time: clocks go back, and entries must replay in their order.
                number = max((item[0] for item in files), default=0) + 1
                name = f"{number:08d}-{entry}.json"
                path = next((item[2] for item in files if item[1] == entry), self._directory / name)
                write_durably(path, record.to_json().encode())
                return path
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def pending(self) -> list[OperationRecord]:
        """
        The waiting records, oldest first; StoreUnavailable where a file cannot be read.
        """
        try:
            return [self._read(path) for _, _, path in self._files()]
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def drop(self, record: OperationRecord) -> None:
        """
        Remove the entry durably; nothing happens where it does not wait.
        """
        entry = file_name(record.entry_id)
        try:
            with self._lock:
                for _, name, path in self._files():
                    if name == entry:
                        path.unlink(missing_ok=True)
                        sync_directory(self._directory)
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def _files(self) -> list[tuple[int, str, Path]]:
        if not self._directory.exists():
            return []
        pairs = [(_FILE.fullmatch(path.name), path) for path in self._directory.iterdir()]
        return sorted((int(match["number"]), match["entry"], p) for match, p in pairs if match)

    def _read(self, path: Path) -> OperationRecord:
        try:
            return parse_record(read_regular(path))
        except (OSError, UnreadableRecord) as exc:
            raise StoreUnavailable(
                f"{path}: a spooled outcome that cannot be read: {exc}",
                hint="it tells how a mutation ended: keep it, move it away, then run `reconcile`",
            ) from exc

    def _unavailable(self, exc: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"{exc.filename or self._directory}: {exc.strerror or exc}",
            hint="make room and check that this user may read and write there",
        )
