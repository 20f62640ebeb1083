"""
The evidence directories of runs on this machine, and the outcomes that could not be recorded yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from pydantic import ValidationError

from orchestrator.domain.record.record import OperationRecord, UnreadableRecord, parse_record
from orchestrator.domain.record.run_record import ProcessIdentity, RunRecord
from orchestrator.errors import Invalid, Problem, StoreUnavailable
from orchestrator.local_files import (
    make_private,
    read_regular,
    replace_file,
    sync_directory,
    write_durably,
)

_SCHEMA = re.compile(r"orchestrator\.run/1(\.[0-9]+)*")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RECORD = "run.json"
_PRIVATE = ".private-"  # no step or attempt is called so
_SCRATCH = ".scratch-"  # nor any run
_LARGEST = 1 << 32  # bytes of a record or a log
#: Endings of the files in an attempt's directory that never hold a secret.
_MASKED = (".log", ".answer.json", ".identity.json", "inventory.json", "resolved.inputs.yml")
_IDENTITY = "apply.identity.json"  # what the engine's wrapper leaves of a mutating call
_WAITING = "apply.waiting"  # there while that call only plans


class RunTrace(Struct, frozen=True):
    """
    The trace of a run in an operation store: the newest entry that it wrote of a target, or, if it
    was killed in a mutating call, only that it wrote one.
    """

    run_id: str
    target: str
    sequence: int | None


class RunFiles:
    """
    ``<root>/<run_id>/run.json`` and ``<root>/<run_id>/steps/<step>/<attempt>/``: directories 0700,
    files 0600, written atomically.

    Every method raises StoreUnavailable if the file system fails, and Invalid if a text is no run
    id; nothing outside ``root`` is written or read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def directory(self, run_id: str) -> Path:
        """
        Return the directory of a run, which need not exist.
        """
        if _RUN_ID.fullmatch(run_id) is None:
            hint = "`orchestrator runs` lists them"
            raise Invalid([Problem(f"{run_id!r} is not the id of a run", hint=hint)])
        return self._root / run_id

    def attempt(self, run_id: str, step: str, number: int) -> Path:
        """
        Create the directory of a step's attempt and return it.
        """
        path = self._step(run_id, step) / str(number)
        with _readable_errors(path):
            make_private(path, durable=True)
        return path

    def _step(self, run_id: str, step: str) -> Path:
        return self.directory(run_id) / "steps" / file_name(step)

    def write(self, path: Path, text: str) -> None:
        """
        Write a file below the root durably by rename. Raises ValueError for any other path.
        """
        self._check_below(path)
        with _readable_errors(path):
            write_durably(path, text.encode())

    def write_input(self, path: Path, text: str) -> None:
        """
        Write a file that an engine call reads by rename; it need not outlast the machine.
        """
        self._check_below(path)
        with _readable_errors(path):
            replace_file(path, text.encode())

    def _check_below(self, path: Path) -> None:
        if not path.resolve().is_relative_to(self._root.resolve()):
            raise ValueError(f"{path} is not below {self._root}")

    def write_run(self, run: RunRecord) -> None:
        self.write(self.directory(run.run_id) / _RECORD, run.to_json() + "\n")

    def read_run(self, run_id: str) -> RunRecord | None:
        """
        Return the run's record, None if there is none. Raises StoreUnavailable if it cannot be
        read.
        """
        path = self.directory(run_id) / _RECORD
        with _readable_errors(path):
            try:
                text = read_regular(path, limit=_LARGEST)
            except FileNotFoundError:
                return None
        try:
            data = json.loads(text)
            schema = str(data.get("schema")) if isinstance(data, dict) else "none"
            if _SCHEMA.fullmatch(schema) is None:
                raise ValueError(f"schema {schema!r}; this version reads orchestrator.run/1")
            return RunRecord.model_validate(data)
        except ValueError as exc:
            why: object = exc
            if isinstance(exc, ValidationError):
                fields = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors())
                why = f"damaged fields: {fields}"
            raise StoreUnavailable(
                f"{path}: a run record that cannot be read: {why}",
                hint="a newer version may have written it; the operation records are not affected",
            ) from exc

    def runs(self) -> list[str]:
        """
        Return the ids of the runs on this machine, newest first.
        """
        if not self._root.exists():
            return []
        with _readable_errors(self._root):
            places = [path for path in self._root.iterdir() if path.is_dir()]
        return sorted(filter(_RUN_ID.fullmatch, (path.name for path in places)), reverse=True)

    def traces(self, store: str, after: str) -> Iterator[RunTrace]:
        """
        Yield what the runs after ``after`` say about the store at a URL, oldest run first.
        Unreadable runs are skipped.
        """
        for run_id in reversed(self.runs()):
            if run_id <= after:
                continue
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                text = read_regular(self._root / run_id / _RECORD, limit=_LARGEST)
                document = json.loads(text)
                for row in document["steps"] if document["store"] == store else ():
                    sequence = row.get("sequence")
                    mutating = self._step(run_id, row["step"]).glob(f"*/{_IDENTITY}")
                    if sequence is not None or not all(map(_only_plans, mutating)):
                        yield RunTrace(run_id, str(row["target"]), sequence and int(sequence))

    def inside(self, attempt: Path, name: str) -> Path:
        """
        Create a directory inside an attempt's and return it. It need not outlast the machine: no
        call that mutates leaves its evidence there.
        """
        path = attempt / file_name(name)
        with _readable_errors(path):
            path.mkdir(mode=0o700, exist_ok=True)
        return path

    def sweep(self, run_id: str, *, settled: str | None = None) -> None:
        """
        Remove a run's unmasked files, private directories included, except the output of mutating
        calls: that is evidence until they are settled. For the step ``settled`` it is removed, too.
        """
        run = self.directory(run_id)
        done = run / "steps" / file_name(settled) if settled else None
        secret = [
            path
            for path in run.rglob("raw/*")
            if not path.name.startswith("apply.")
            or _only_plans(path.parent)
            or (done and path.is_relative_to(done))
        ]
        for path in (*secret, *run.rglob("*.tfplan"), *run.rglob("*.tfvars.json")):
            with _readable_errors(path):
                path.unlink(missing_ok=True)
        for directory in list(run.rglob(f"{_PRIVATE}*")):
            with _readable_errors(directory):
                shutil.rmtree(directory)

    @contextmanager
    def private(self, attempt: Path) -> Iterator[Path]:
        """
        Yield a directory inside an attempt's for files with secrets. It is removed at the end, or
        by `sweep` if the process died.
        """
        with _readable_errors(attempt):
            directory = tempfile.TemporaryDirectory(prefix=_PRIVATE, dir=attempt)
        with directory as name:
            yield Path(name)

    def attempts(self, run_id: str, step: str) -> list[tuple[int, Path]]:
        """
        Return the attempts of a step that left files on this machine, by number.
        """
        directory = self._step(run_id, step)
        with _readable_errors(directory):
            places = directory.iterdir() if directory.exists() else ()
            return sorted((int(path.name), path) for path in places if path.name.isdigit())

    def masked(self, run_id: str, step: str) -> dict[str, bytes]:
        """
        Return the files of a step that hold no secret, by their path below the step's directory:
        masked logs, answers, identities, inventories and inputs.
        """
        directory = self._step(run_id, step)
        files = {}
        for path in directory.rglob("*"):
            relative = path.relative_to(directory)
            secret = any(part == "raw" or part.startswith(_PRIVATE) for part in relative.parts)
            if path.name.endswith(_MASKED) and not secret and path.is_file():
                with suppress(FileNotFoundError):  # a call that is going on may replace it
                    files[relative.as_posix()] = read_regular(path, limit=_LARGEST)
        return files

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """
        Yield a private directory for the evidence of a reading command, removed at the end, or by
        the next command if the process was killed.
        """
        with _readable_errors(self._root):
            make_private(self._root, durable=True)
            self._remove_stale_scratch()
            directory = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self._root)
            descriptor = os.open(directory.name, os.O_RDONLY)
        try:
            # The lock is released when the process ends: by it the next command tells what is
            # in use.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with directory as name:
                yield Path(name)
        finally:
            os.close(descriptor)

    def crash_log(self, evidence: Path) -> Path | None:
        """
        Return a lasting file for the output of a crashed engine if ``evidence`` is temporary, else
        None.
        """
        lasts = not any(part.startswith((_SCRATCH, _PRIVATE)) for part in evidence.parts)
        return None if lasts else self._root.parent / "crash.log"

    def _remove_stale_scratch(self) -> None:
        for path in self._root.glob(f"{_SCRATCH}*"):
            with suppress(OSError):  # in use, or removed by another command
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(descriptor)

    def engine_identities(self, run_id: str, step: str) -> list[ProcessIdentity]:
        """
        Return the processes of all engine calls that a step of a run left on this machine.
        """
        directory = self._step(run_id, step)
        identities = []
        for path in sorted(directory.glob("*/*.identity.json")):
            with suppress(OSError, ValueError):  # a call that was ruled out has no process
                identities.append(ProcessIdentity.model_validate_json(read_regular(path)))
        return identities

    def late(self) -> list[Path]:
        """
        Return the files of outcomes that came too late to be recorded, oldest run first.
        """
        files: list[Path] = []
        for run_id in self.runs():
            with _readable_errors(self._root):
                files += (self._root / run_id).iterdir()
        return sorted(file for file in files if file.name.startswith("late-") and file.is_file())

    def engine_identity(self, run_id: str, step: str, number: int) -> ProcessIdentity | None:
        """
        Return the process of an attempt's mutating engine call, without changing any file; None if
        its files are not on this machine or it never began.
        """
        directory = self._step(run_id, step) / str(number)
        try:
            return ProcessIdentity.model_validate_json(read_regular(directory / _IDENTITY))
        except (OSError, ValueError):
            return None


def _only_plans(attempt: Path) -> bool:
    """
    Return whether the mutating call of the file ``place`` was never approved.
    """
    return attempt.with_name(_WAITING).exists()


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    """
    Convert errors of the file system to StoreUnavailable, with a hint.
    """
    try:
        yield
    except OSError as exc:
        raise StoreUnavailable(
            f"{path}: {exc.strerror or exc}",
            hint="make room and check that this user may read and write there",
        ) from exc


# File names made from names of ours: reversible for the eye, never a path.


_LONGEST = 180  # bytes; file systems allow 255, and temporary files add to a name
_DIGEST = 16


def file_name(text: str) -> str:
    """
    Return a file name for a text: unique, ASCII, at most 180 bytes.

    >>> file_name('cell["a.b"]')
    'cell%5B%22a.b%22%5D'
    >>> file_name("../x")
    '%2E.%2Fx'
    """
    name = quote(text, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST - _DIGEST - 1]}~{digest}"
    return name or "%"


# Outcomes that the operation store did not take, as files on local disk.


_FILE = re.compile(r"(?P<number>[0-9]{8,})-(?P<entry>.+)\.json")


class Spool:
    """
    A file per outcome in ``directory``, numbered in the order of `put`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def put(self, record: OperationRecord) -> Path:
        """
        Write the record durably and return its file. The same entry again replaces its file.
        """
        entry = file_name(record.entry_id)
        with self._lock, _readable_errors(self._directory):
            files = self._files()
            # By number, not by time: clocks go back, and entries must replay in their order.
            number = max((item[0] for item in files), default=0) + 1
            name = f"{number:08d}-{entry}.json"
            path = next((item[2] for item in files if item[1] == entry), self._directory / name)
            write_durably(path, record.to_json().encode())
            return path

    def pending(self) -> list[OperationRecord]:
        """
        Return the spooled records, oldest first. Raises StoreUnavailable if one cannot be read.
        """
        records = []
        with _readable_errors(self._directory):
            for _, _, path in self._files():
                try:
                    records.append(parse_record(read_regular(path)))
                except (OSError, UnreadableRecord) as exc:
                    raise StoreUnavailable(
                        f"{path}: a spooled outcome that cannot be read: {exc}",
                        hint="it tells how a mutation ended: keep it, move it away, then run "
                        "`reconcile`",
                    ) from exc
        return records

    def drop(self, record: OperationRecord) -> None:
        """
        Remove the record durably; does nothing if it is not spooled.
        """
        entry = file_name(record.entry_id)
        with self._lock, _readable_errors(self._directory):
            for _, name, path in self._files():
                if name == entry:
                    path.unlink(missing_ok=True)
                    sync_directory(self._directory)

    def _files(self) -> list[tuple[int, str, Path]]:
        if not self._directory.exists():
            return []
        pairs = [(_FILE.fullmatch(path.name), path) for path in self._directory.iterdir()]
        return sorted((int(match["number"]), match["entry"], p) for match, p in pairs if match)
