"""
A target's directory on disk: the files of the snapshot, the generated files, and our notes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.domain.provider_query.query import QUERY_FILE
from orchestrator.domain.target import Target, is_name
from orchestrator.domain.text import Json
from orchestrator.engine.workdir import snapshot as snapshots
from orchestrator.engine.workdir.generated import (
    BACKEND_FILE,
    FORMER_BACKEND_FILES,
    PROVIDER_FILE,
)
from orchestrator.engine.workdir.snapshot import LOCK_FILE, Entry, is_loaded
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.local_files import make_private, read_regular, replace_file, write_private
from orchestrator.ports.workdir import Snapshot

_NOTES = ".orchestrator"  # no name of a step, so it cannot meet a target's directory
_GENERATED = (BACKEND_FILE, PROVIDER_FILE)
#: What a killed process may have left of files that were there for one call (`with_files`).
_PASSING = (QUERY_FILE,)
#: What the engine leaves beside a module that goes with it when the module's place changes.
_KEPT = (LOCK_FILE, "errored.tfstate", "terraform.tfstate.d")


def work_path(target: Target) -> Path:
    """
    Return a target's directory, relative to the work directory.

    >>> work_path(Target("web", "prod", "network")).as_posix()
    'web/prod/network'
    """
    step = target.step
    if not is_name(step):
        # The key may hold anything and be long; "@" keeps it apart from the names of steps.
        name, _, key = step.partition("[")
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", key.strip('"]')).strip("-")[:40]
        step = f"{name}@{slug}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return Path(target.blueprint, target.environment, step)


class Layout:
    """
    A target's directory on disk, and our notes on its content.
    """

    def __init__(self, top: Path, module_path: str) -> None:
        self._top = top
        # Beside the module's files: a pattern of the module that matches everything meets no notes.
        self._notes = top.parent / _NOTES / top.name
        self._read: dict[str, Json] = {}
        self.directory = top / module_path

    def lay_out(
        self, snapshot: Snapshot, generated: Mapping[str, str], lock_file: bytes | None
    ) -> None:
        """
        Make the directory tree equal to the snapshot, with the ``generated`` files by name;
        unchanged files are not touched.
        """
        make_private(self._notes)
        make_private(self.directory)
        noted_backend = self.directory / ".terraform/terraform.tfstate"
        try:
            json.loads(read_regular(noted_backend))
        except FileNotFoundError:
            pass
        except ValueError:  # init itself would fail with it
            noted_backend.unlink()
        # The workspace is that of the settings, whatever somebody selected in the directory.
        (self.directory / ".terraform/environment").unlink(missing_ok=True)
        former_notes = self._top / _NOTES  # of an earlier version of this tool
        if former_notes.is_dir():
            for path in former_notes.iterdir():
                path.replace(self._notes / path.name)
            former_notes.rmdir()
        notes = self._read_layout()
        fresh = (
            notes.get("snapshot") == snapshot.digest
            and all(self._mark(path) == mark for path, mark in notes.get("files", {}).items())
            and (notes.get("lock") is None or (self.directory / LOCK_FILE).is_file())
        )
        if not fresh:
            notes = self._replace(snapshot, notes)
        if lock_file is not None:
            self._write_if_other(LOCK_FILE, lock_file)
        self._place_generated(generated, notes.get("files", {}))

    def _replace(self, snapshot: Snapshot, notes: Mapping[str, Json]) -> Mapping[str, Json]:
        """
        Replace the files of the snapshot that was there before, and return what to note of the new
        one.
        """
        marks: Mapping[str, Json] = notes.get("files", {})
        entries = {entry.path: entry for entry in snapshots.entries_of(snapshot)}
        lock = entries.pop(f"{snapshot.module_path}/{LOCK_FILE}".removeprefix("./"), None)
        # Noted before anything is written: what a killed process leaves is still ours.
        started = {**notes, "snapshot": None, "files": dict.fromkeys([*marks, *entries])}
        self.write_note("layout", started)
        for path in marks:
            if path not in entries:
                self._remove(path)
        for path, entry in entries.items():
            mark, mode = self._mark(path), 0o700 if entry.executable else 0o600
            untouched = mark is not None and mark == marks.get(path) and mark[2] == mode
            if not (untouched and (self._top / path).read_bytes() == entry.data):
                self._write(path, entry.data, mode)
        # What must not be lost comes along from the module's earlier place in the tree.
        for name in _KEPT:
            old = self._top / notes.get("module_path", snapshot.module_path) / name
            new = self.directory / name
            if old != new and old.exists() and not new.exists():
                old.rename(new)
        done = {
            "snapshot": snapshot.digest,
            "module_path": snapshot.module_path,
            "files": {path: self._mark(path) for path in entries},
            "lock": self._place_lock(lock, notes.get("lock")),
        }
        self.write_note("layout", done)
        return done

    def _place_lock(self, lock: Entry | None, old_digest: str | None) -> str | None:
        """
        Write the module's own lock file if there is none yet, or if it has changed since.
        """
        path = self.directory / LOCK_FILE
        if lock is None:
            # What the module brought and took away again must not live on here; what init has
            # written since is its own choice.
            own = old_digest is not None and path.is_file()
            if own and hashlib.sha256(read_regular(path)).hexdigest() == old_digest:
                path.unlink()
            return None
        digest = hashlib.sha256(lock.data).hexdigest()
        if digest != old_digest or not path.is_file():
            self._write_if_other(LOCK_FILE, lock.data)
        return digest

    def _place_generated(self, files: Mapping[str, str], marks: Mapping[str, Json]) -> None:
        """
        Write the generated files. Raises Invalid if the engine would load a file that is not part
        of the module: it would change what is applied.
        """
        unwanted = {*FORMER_BACKEND_FILES, *_PASSING, *_GENERATED} - files.keys()
        strangers = []
        for path in sorted(self.directory.iterdir()):
            if path.name in unwanted:
                path.unlink()
            elif (
                is_loaded(path.name)
                and path.name not in _GENERATED
                and path.relative_to(self._top).as_posix() not in marks
            ):
                strangers.append(path)
        for name, text in files.items():
            self._write_if_other(name, text.encode())
        if strangers:
            message = "is not of the module, but the engine would load it; move it away"
            raise Invalid([Problem(message, Location(str(path))) for path in strangers])

    def is_initialised(self) -> bool:
        """
        Return whether the last successful init used the current configuration and is still in
        place.
        """
        done, installed = self.read_note("initialised"), self.directory / ".terraform"
        return (
            done is not None
            and done == self.init_digest(self.read_note("wanted"))
            and (installed / "terraform.tfstate").is_file()
            and providers_are_there(installed)
        )

    def forget_init(self) -> None:
        """
        Note that no init is known to be valid: one that fails or is killed leaves its backend
        behind.
        """
        self._read.pop("initialised", None)
        with suppress(OSError):  # what cannot be removed cannot be read either
            (self._notes / "initialised.json").unlink()

    def init_digest(self, basis: Json) -> str:
        """
        Return a digest that identifies an init: its configuration, and the current lock file.
        """
        try:
            lock = read_regular(self.directory / LOCK_FILE)
        except FileNotFoundError:
            lock = b""
        text = json.dumps(basis, sort_keys=True).encode()
        return hashlib.sha256(hashlib.sha256(lock).digest() + text).hexdigest()

    def copy_init(self, other: Layout, backend: Mapping[str, Json]) -> None:
        """
        Copy the result of init from another directory, with other backend settings. Raises OSError
        or ValueError if it does not look like the result of an init.
        """
        place, source = self.directory / ".terraform", other.directory / ".terraform"
        saved = json.loads(read_regular(source / "terraform.tfstate"))
        if not isinstance(saved, dict) or not saved.get("backend", {}).get("config"):
            raise ValueError(f"{source} holds no backend")
        saved["backend"]["config"] |= backend
        make_private(place)
        for name, copy in (("providers", _link), ("modules", shutil.copy2)):
            if (place / name).exists():
                shutil.rmtree(place / name)
            if (source / name).is_dir():
                shutil.copytree(source / name, place / name, symlinks=True, copy_function=copy)
        write_private(place / "terraform.tfstate", json.dumps(saved).encode())
        if (other.directory / LOCK_FILE).is_file():
            self._write_if_other(LOCK_FILE, read_regular(other.directory / LOCK_FILE))

    def copy_place(self, directory: Path) -> Path:
        """
        Return where `copy_to` puts the module's directory.
        """
        return directory / self.directory.relative_to(self._top)

    def copy_to(self, place: Path, *, generated: bool = True) -> Path:
        """
        Link the module's files, copy the ``generated`` ones or leave them out, link what init
        installed, and return the module's directory in the copy. ``place`` is private.
        """
        directory = self.copy_place(place)
        notes = self._read_layout()
        files = {self._top / path: place / path for path in notes.get("files", {})}
        for parent in {directory, *(path.parent for path in files.values())}:
            parent.mkdir(parents=True, exist_ok=True)
        for source, path in files.items():
            with suppress(FileNotFoundError):
                _link(source, path)
        for name in (*_GENERATED, LOCK_FILE) if generated else ():
            with suppress(FileNotFoundError):
                write_private(directory / name, read_regular(self.directory / name), 0o600)
        for name in ("providers", "modules"):
            installed = self.directory / ".terraform" / name
            if installed.is_dir():
                (directory / ".terraform").mkdir(exist_ok=True)
                (directory / ".terraform" / name).symlink_to(installed)
        return directory

    def write_backend(self, settings: str) -> Path:
        """
        Write the backend settings for ``init``, beside the module's files, and return their path
        from the module's directory, which holds no "=" whatever the project is called: engines take
        an argument with one for a setting.
        """
        path = self._notes / "backend.tfbackend"
        write_private(path, settings.encode())
        return Path(os.path.relpath(path, self.directory))

    def write_note(self, name: str, content: Json) -> None:
        """
        Write a note atomically.
        """
        if self.read_note(name) == content:
            return
        data = json.dumps(content, sort_keys=True).encode()
        replace_file(self._notes / f"{name}.json", data)
        self._read[name] = content

    def read_note(self, name: str) -> Json:
        """
        Return a note, which is read once; None if it is missing or damaged.
        """
        if name not in self._read:
            try:
                self._read[name] = json.loads(read_regular(self._notes / f"{name}.json"))
            except (OSError, ValueError):
                return None  # never written, or damaged: lay out and init again
        return self._read[name]

    def _read_layout(self) -> Mapping[str, Json]:
        """
        Return the note of what was laid out; empty if it is missing or damaged.
        """
        notes = self.read_note("layout")
        is_whole = isinstance(notes, dict) and isinstance(notes.get("files", {}), dict)
        return notes if is_whole else {}

    def _mark(self, path: str) -> list[int] | None:
        """
        Return what detects a changed file: its size, mtime in ns and mode.
        """
        try:
            info = os.lstat(self._top / path)
        except OSError:
            return None
        return [info.st_size, info.st_mtime_ns, stat.S_IMODE(info.st_mode)]

    def _write_if_other(self, name: str, data: bytes) -> None:
        path = self.directory / name
        with suppress(OSError):  # what is not there, or no file, is put there
            if not path.is_symlink() and read_regular(path) == data:
                return
        write_private(path, data)

    def _write(self, path: str, data: bytes, mode: int) -> None:
        parent = self._top
        for part in Path(path).parts[:-1]:
            parent /= part
            # A link left by a provisioner must not lead our writing elsewhere.
            if parent.is_symlink() or parent.is_file():
                parent.unlink()
            parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._top / path, data, mode)

    def _remove(self, path: str) -> None:
        full = self._top / path
        if full.is_dir() and not full.is_symlink():
            return  # something else took the place of our file
        with suppress(FileNotFoundError, NotADirectoryError):
            full.unlink()
        with suppress(OSError):  # not empty: what is in it is not ours
            for parent in Path(path).parents[:-1]:
                (self._top / parent).rmdir()


def providers_are_there(installed: Path) -> bool:
    """
    Return whether the providers that init installed still exist: they may be links into a plugin
    cache.
    """
    return all(path.exists() for path in (installed / "providers").glob("*/*/*/*/*"))


def _link(source: str | Path, target: str | Path) -> None:
    """
    Hard-link a file that is only read, of a provider or a module; copy it if that fails.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
