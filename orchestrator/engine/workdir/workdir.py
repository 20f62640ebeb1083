"""
Working directories: one per target, made from a snapshot and what is generated around it.

A target's directory holds the snapshot's tree; the engine runs in the module's place in it, so
that relative paths, addresses and state are those of plain Terraform. What the engine or a
provisioner left there stays; only files of an earlier snapshot go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.backend_location import location, render
from orchestrator.domain.blueprint.blueprint import Module
from orchestrator.domain.provider_query.query import QUERY_FILE
from orchestrator.domain.record.record import Json, ProviderState
from orchestrator.domain.target import Target, is_name
from orchestrator.engine.state import parse_state
from orchestrator.engine.workdir import snapshot as snapshots
from orchestrator.engine.workdir.composed_root import merged_lock_files, not_composable
from orchestrator.engine.workdir.generated import (
    BACKEND_FILE,
    FORMER_BACKEND_FILES,
    PROVIDER_FILE,
    Generated,
    backend_text,
    generate,
)
from orchestrator.engine.workdir.ignore_file import LOCK_FILE, is_loaded
from orchestrator.engine.workdir.snapshot import Entry
from orchestrator.errors import Busy, EngineFailed, Invalid, Location, Problem
from orchestrator.ports.workdir import Snapshot, WorkDir, WorkDirConfig
from orchestrator.regular_files import read_regular

_NOTES = ".orchestrator"  # no name of a step, so it cannot meet a target's directory
_GENERATED = (BACKEND_FILE, PROVIDER_FILE)
#: What a killed process may have left of files that were there for one call (`with_files`).
_PASSING = (QUERY_FILE,)
#: The kernel's struct flock: only to ask who holds the lock that engines take on a state file.
_FLOCK = "hhqqi4x"
#: What the engine leaves beside a module that goes with it when the module's place changes.
_KEPT = (LOCK_FILE, "errored.tfstate", "terraform.tfstate.d")


def work_path(target: Target) -> Path:
    """
    Where a target's directory lies below the work directory.

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


#: Where the engine leaves a provider state that it could not save.
ERRORED = "errored.tfstate"


class DirectoryWorkDirs:
    """
    Working directories below ``work``; relative backend paths start at ``project_root``.

    Preparing different targets at once is safe; whoever prepares a target holds its claim.
    """

    def __init__(self, work: Path, project_root: Path) -> None:
        self._work = work.absolute()
        self._project = project_root.absolute()

    @contextlib.contextmanager
    def lock(self, blueprint: str, environment: str) -> Iterator[None]:
        place = self._work / blueprint / environment
        try:
            _make_private(place)
            descriptor = os.open(place / ".held", os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError as exc:
            message = f"{exc.filename or place}: {exc.strerror}"
            raise EngineFailed("init", message) from exc
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise Busy(
                    f"another command uses the working directories of {blueprint}/{environment}",
                    hint="wait for it; `orchestrator status` tells of a run",
                ) from exc
            yield
        finally:
            os.close(descriptor)

    def snapshot(self, module: Module) -> Snapshot:
        return snapshots.pack(module)

    def unpack(self, archive: bytes) -> Snapshot:
        return snapshots.unpack(archive)

    def empty_snapshot(self) -> Snapshot:
        return snapshots.empty_snapshot()

    def prepare(
        self, target: Target, snapshot: Snapshot, setup: WorkDirConfig, engine: str
    ) -> WorkDir:
        backend = render(setup.backend_type, setup.backend_config, self._project)
        where = location(setup.backend_type, setup.backend_config, self._project)
        generated = generate(snapshot, setup, backend=backend, shown=str(target))
        try:
            layout = _Layout(self._work, self._work / work_path(target), snapshot.module_path)
            layout.lay_out(snapshot, generated, setup.lock_file)
            if setup.backend_type == "local":
                _make_private(Path(backend["path"]).parent)
            layout.write_note("terraform", dict(generated.terraform))
            layout.write_note("wanted", _wish(snapshot, generated, engine, setup.early_digest))
        except OSError as exc:
            place = exc.filename or self._work
            message = f"cannot prepare the working directory of {target}: {place}: {exc.strerror}"
            raise EngineFailed("init", message) from exc
        return WorkDir(
            directory=layout.directory,
            location=where,
            backend_type=setup.backend_type,
            variables=generated.variables,
            init_needed=not layout.is_initialised(),
            early_values=setup.early_values,
            required_providers=generated.terraform.get("required_providers", {}),
            provider_blocks=generated.provider_blocks,
        )

    def mark_initialised(self, root: WorkDir) -> None:
        # Before the note: a directory whose backend is another one must not pass for initialised.
        self._check_backend(root)
        try:
            self._layout(root).remember_init()
        except OSError as exc:
            raise EngineFailed("init", f"{exc.filename}: {exc.strerror}") from exc

    def lock_file(self, root: WorkDir) -> bytes | None:
        try:
            return read_regular(root.directory / LOCK_FILE)
        except FileNotFoundError:
            return None

    def make_state_private(self, root: WorkDir) -> None:
        states = [root.directory / ERRORED]
        if root.backend_type == "local":
            state = self._project / root.location
            states += [state, state.with_name(f"{state.name}.backup")]
        for path in states:
            with contextlib.suppress(OSError):  # not there, or somebody else's
                path.chmod(0o600)

    def drop_state_backup(self, state: ProviderState) -> None:
        if state.backend != "local":
            return
        place = self._project / state.location
        backup = place.with_name(f"{place.name}.backup")
        # The location is what a record says: only what is a copy of that very state is removed.
        with contextlib.suppress(OSError, ValueError):
            if parse_state(read_regular(backup)).lineage == state.lineage:
                backup.unlink()

    def errored_state(self, root: WorkDir) -> Path | None:
        path = root.directory / ERRORED
        # A full disk leaves a file without content: that is no state.
        return path if path.is_file() and path.stat().st_size else None

    def state_file(self, root: WorkDir) -> Path | None:
        return self._project / root.location if root.backend_type == "local" else None

    def damaged_state(self, root: WorkDir) -> Path | None:
        path = self.state_file(root)
        if path is None or not path.is_file():
            return None
        try:
            document = json.loads(read_regular(path))
        except ValueError:
            return path
        known = (
            document.keys() & {"version", "encrypted_data"} if isinstance(document, dict) else ()
        )
        return None if known else path

    def set_aside(self, file: Path, place: Path) -> Path:
        kept = place / file.name
        number = 1
        while kept.exists():  # of an earlier attempt: both are evidence
            number += 1
            kept = place / f"{number}-{file.name}"
        try:
            file.chmod(0o600)
            shutil.move(file, kept)
        except OSError as exc:
            raise EngineFailed("surgery", f"{file}: {exc.strerror}") from exc
        return kept

    @contextlib.contextmanager
    def with_files(self, root: WorkDir, files: Mapping[str, str]) -> Iterator[None]:
        paths = [root.directory / name for name in files]
        try:
            for path, text in zip(paths, files.values(), strict=True):
                _write_private(path, text.encode(), 0o600)
            yield
        except OSError as exc:
            raise EngineFailed("plan", f"{exc.filename}: {exc.strerror}") from exc
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def scratch_copy(self, root: WorkDir, place: Path, *, extra: Mapping[str, str]) -> WorkDir:
        """
        The configuration of ``root`` in the directory ``place``, on a local provider state that is
        not there yet.

        Installed providers and modules are shared with ``root``, so that its ``init`` fetches
        nothing.
        """
        try:
            directory = self._layout(root).copy_to(place)
            state_file = place / "private.tfstate"
            settings = self._layout(root).read_note("terraform")
            settings["backend"] = {"local": {"path": str(state_file)}}
            files = {BACKEND_FILE: backend_text(settings), **extra}
            for name, text in files.items():
                _write_private(directory / name, text.encode(), 0o600)
        except OSError as exc:
            message = f"{exc.filename or place}: {exc.strerror}"
            raise EngineFailed("readback", message) from exc
        return replace(
            root,
            directory=directory,
            location=str(state_file),
            backend_type="local",
            init_needed=True,
        )

    def state_locked(self, root: WorkDir) -> bool:
        if root.backend_type != "local" or sys.platform != "linux":
            return False
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            with (self._project / root.location).open("rb") as file:
                found = fcntl.fcntl(file, fcntl.F_GETLK, asked)
        except OSError:
            return False
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)

    def not_composable(self, roots: Mapping[str, tuple[Snapshot, WorkDir]]) -> Mapping[str, str]:
        reasons = {step: not_composable(snapshot) for step, (snapshot, _) in roots.items()}
        locks = {step: self.lock_file(root) for step, (_, root) in roots.items()}
        _, others = merged_lock_files({step: lock for step, lock in locks.items() if lock})
        reasons |= dict.fromkeys(others, "other steps lock other versions of its providers")
        early = {step for step, (_, root) in roots.items() if root.early_values}
        reasons |= dict.fromkeys(early, "what it loads depends on variables")
        return {step: reason for step, reason in reasons.items() if reason}

    def module_source(self, name: str, root: WorkDir) -> str:
        inside = self._layout(root).copy_place(Path(name)).as_posix()
        return f"./{inside}"

    def composed_root(
        self, place: Path, content: Json, *, state: bytes, modules: Mapping[str, WorkDir]
    ) -> WorkDir:
        locks = {name: self.lock_file(root) for name, root in modules.items()}
        lock_file, _ = merged_lock_files({name: lock for name, lock in locks.items() if lock})
        files = {
            "main.tf.json": json.dumps(content, indent=1).encode(),
            "terraform.tfstate": state,
            LOCK_FILE: lock_file,
        }
        try:
            for name, data in files.items():
                _write_private(place / name, data, 0o600)
            for name, root in modules.items():
                directory = self._layout(root).copy_to(place / name, generated=False)
                if root.required_providers:
                    text = backend_text({"required_providers": root.required_providers})
                    _write_private(directory / BACKEND_FILE, text.encode(), 0o600)
        except OSError as exc:
            message = f"{exc.filename or place}: {exc.strerror}"
            raise EngineFailed("plan", message) from exc
        return WorkDir(
            directory=place,
            location=str(place / "terraform.tfstate"),
            backend_type="local",
            variables={},
            init_needed=True,
        )

    def _check_backend(self, root: WorkDir) -> None:
        """
        Invalid where ``init`` has set up another backend than the blueprint's, or another place.
        """
        wanted = self._layout(root).read_note("terraform")["backend"]
        kind, config = _backend_in_force(root.directory, wanted.get(root.backend_type, {}))
        place = location(kind, config, self._project)
        if (kind, place) != (root.backend_type, root.location):
            raise Invalid(
                [
                    Problem(
                        f"the backend in force after init is {kind} at {place}, and the blueprint "
                        f"wants {root.backend_type} at {root.location}",
                        Location(str(root.directory)),
                        "a backend or cloud block of the module wins over the blueprint's: "
                        "remove it from the module",
                    )
                ]
            )

    def _layout(self, root: WorkDir) -> _Layout:
        inside = root.directory.relative_to(self._work).parts
        return _Layout(self._work, self._work.joinpath(*inside[:3]), "/".join(inside[3:]) or ".")


def _wish(snapshot: Snapshot, generated: Generated, engine: str, early: str) -> Json:
    """
    What an init depends on, apart from the lock file: that one it may write itself.
    """
    text = json.dumps(dict(generated.files), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    wish = {"snapshot": snapshot.digest, "generated": digest, "engine": engine}
    return {**wish, "early": early} if early else wish


class _Layout:
    """
    A target's directory on disk, and our notes on what we put there.
    """

    def __init__(self, work: Path, top: Path, module_path: str) -> None:
        self._work = work
        self._top = top
        # Beside the module's files: a pattern of the module that matches everything meets no notes.
        self._notes = top.parent / _NOTES / top.name
        self.directory = top / module_path

    def lay_out(self, snapshot: Snapshot, generated: Generated, lock_file: bytes | None) -> None:
        """
        Make the tree that of the snapshot; a file that is as we left it is not touched.
        """
        _make_private(self._notes)
        _make_private(self.directory)
        self._take_over_notes()
        notes = self.read_note("layout") or {}
        known: dict[str, Json] = notes.get("files", {})
        own_lock: str | None = notes.get("lock")
        fresh = (
            notes.get("snapshot") == snapshot.digest
            and all(self._mark(path) == mark for path, mark in known.items())
            and (own_lock is None or (self.directory / LOCK_FILE).is_file())
        )
        if not fresh:
            entries = {entry.path: entry for entry in snapshots.entries_of(snapshot)}
            lock = entries.pop(f"{snapshot.module_path}/{LOCK_FILE}".removeprefix("./"), None)
            # Noted before anything is written: what a killed process leaves is still ours.
            started = {**notes, "snapshot": None, "files": dict.fromkeys([*known, *entries])}
            self.write_note("layout", started)
            self._replace(known, entries)
            self._bring_along(notes.get("module_path", snapshot.module_path))
            known = {path: self._mark(path) for path in entries}
            done = {
                "snapshot": snapshot.digest,
                "module_path": snapshot.module_path,
                "files": known,
                "lock": self._place_lock(lock, own_lock),
            }
            self.write_note("layout", done)
        if lock_file is not None:
            self._write_if_other(LOCK_FILE, lock_file)
        self._place_generated(generated.files)
        self._refuse_strangers(known)

    def _take_over_notes(self) -> None:
        """
        Move the notes of an earlier version of this tool, which lay among the module's files.
        """
        former = self._top / _NOTES
        if not former.is_dir():
            return
        for path in former.iterdir():
            path.replace(self._notes / path.name)
        former.rmdir()

    def _replace(self, known: Mapping[str, Json], entries: Mapping[str, Entry]) -> None:
        for path in known:
            if path not in entries:
                self._remove(path)
        for path, entry in entries.items():
            mark = self._mark(path)
            untouched = mark is not None and mark == known.get(path) and mark[2] == _mode(entry)
            if not (untouched and (self._top / path).read_bytes() == entry.data):
                self._write(path, entry.data, _mode(entry))

    def _bring_along(self, module_path: str) -> None:
        """
        Move what must not be lost from the module's earlier place in the tree.
        """
        for name in _KEPT:
            old, new = self._top / module_path / name, self.directory / name
            if old != new and old.exists() and not new.exists():
                old.rename(new)

    def _place_lock(self, lock: Entry | None, placed: str | None) -> str | None:
        """
        Put the module's own lock file where none is yet, or where it has changed since.
        """
        if lock is None:
            # What the module brought and took away again must not live on here; what init has
            # written since is its own choice.
            path = self.directory / LOCK_FILE
            own = placed is not None and path.is_file()
            if own and hashlib.sha256(read_regular(path)).hexdigest() == placed:
                path.unlink()
            return None
        digest = hashlib.sha256(lock.data).hexdigest()
        if digest != placed or not (self.directory / LOCK_FILE).is_file():
            self._write_if_other(LOCK_FILE, lock.data)
        return digest

    def _place_generated(self, files: Mapping[str, str]) -> None:
        for name in (*FORMER_BACKEND_FILES, *_PASSING):
            (self.directory / name).unlink(missing_ok=True)
        for name in _GENERATED:
            if name in files:
                self._write_if_other(name, files[name].encode())
            else:
                (self.directory / name).unlink(missing_ok=True)

    def _refuse_strangers(self, known: Mapping[str, Json]) -> None:
        """
        A file that the engine would load although it is not of the module changes what is applied.
        """
        strangers = [
            path
            for path in sorted(self.directory.iterdir())
            if is_loaded(path.name)
            and path.name not in _GENERATED
            and path.relative_to(self._top).as_posix() not in known
        ]
        if strangers:
            message = "is not of the module, but the engine would load it; move it away"
            raise Invalid([Problem(message, Location(str(path))) for path in strangers])

    def is_initialised(self) -> bool:
        """
        Whether the last successful init was for what is wanted now, and is still there.
        """
        done = self.read_note("initialised")
        return done is not None and done == self._init_digest() and self._has_plugins()

    def remember_init(self) -> None:
        """
        Note that init succeeded for what was wanted last.
        """
        self.write_note("initialised", self._init_digest())

    def _init_digest(self) -> str:
        try:
            lock = read_regular(self.directory / LOCK_FILE)
        except FileNotFoundError:
            lock = b""
        wanted = json.dumps(self.read_note("wanted"), sort_keys=True).encode()
        return hashlib.sha256(hashlib.sha256(lock).digest() + wanted).hexdigest()

    def _has_plugins(self) -> bool:
        """
        Whether what init installed is there; providers are links into a plugin cache at times.
        """
        installed = self.directory / ".terraform"
        links = (installed / "providers").glob("*/*/*/*/*")
        return installed.is_dir() and all(path.exists() for path in links)

    def copy_place(self, place: Path) -> Path:
        """
        Where `copy_to` puts the module's directory.
        """
        return place / "root" / self.directory.relative_to(self._top)

    def copy_to(self, place: Path, *, generated: bool = True) -> Path:
        """
        Copy what is loaded from here, with what we ``generated`` around it or without, and link
        what init installed; the module's directory there.
        """
        inside = self.directory.relative_to(self._top)
        target = place / "root"
        notes = self.read_note("layout") or {}
        ours = [(inside / name).as_posix() for name in (*_GENERATED, LOCK_FILE)]
        _make_private(target / inside / ".terraform")
        for path in (*notes.get("files", {}), *(ours if generated else ())):
            source = self._top / path
            if source.is_file():
                _make_private((target / path).parent)
                _write_private(target / path, source.read_bytes(), source.stat().st_mode & 0o700)
        for name in ("providers", "modules"):
            installed = self.directory / ".terraform" / name
            if installed.is_dir():
                (target / inside / ".terraform" / name).symlink_to(installed)
        return self.copy_place(place)

    def write_note(self, name: str, content: Json) -> None:
        """
        Keep a note, whole or not at all.
        """
        path = self._notes / f"{name}.json"
        temporary = path.with_suffix(".tmp")
        _write_private(temporary, json.dumps(content, sort_keys=True).encode(), 0o600)
        temporary.replace(path)

    def read_note(self, name: str) -> Json:
        """
        A note as it was written; None where there is none that can be read.
        """
        try:
            return json.loads(read_regular(self._notes / f"{name}.json"))
        except (FileNotFoundError, ValueError):
            return None  # never written, or damaged: lay out and init again

    def _mark(self, path: str) -> list[int] | None:
        """
        By which a changed file is noticed: its size, time in ns and mode.
        """
        try:
            found = os.lstat(self._top / path)
        except OSError:
            return None
        return [found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode)]

    def _write_if_other(self, name: str, data: bytes) -> None:
        path = self.directory / name
        if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
            _write_private(path, data, 0o600)

    def _write(self, path: str, data: bytes, mode: int) -> None:
        parent = self._top
        for part in Path(path).parts[:-1]:
            parent /= part
            # A link left by a provisioner must not lead our writing elsewhere.
            if parent.is_symlink() or parent.is_file():
                parent.unlink()
            parent.mkdir(mode=0o700, exist_ok=True)
        _write_private(self._top / path, data, mode)

    def _remove(self, path: str) -> None:
        full = self._top / path
        if full.is_dir() and not full.is_symlink():
            return  # something else took the place of our file
        with suppress(FileNotFoundError, NotADirectoryError):
            full.unlink()
        with suppress(OSError):  # not empty: what is in it is not ours
            for parent in Path(path).parents[:-1]:
                (self._top / parent).rmdir()


def _backend_in_force(
    directory: Path, wanted: Mapping[str, Json]
) -> tuple[str, Mapping[str, Json]]:
    """
    The type and the settings of the backend that the last ``init`` set up, as it notes them: those
    that are ``wanted`` or not null, for it lists every setting that there is.
    """
    path = directory / ".terraform" / "terraform.tfstate"
    try:
        backend = json.loads(read_regular(path))["backend"]
        config = {
            key: value
            for key, value in backend["config"].items()
            if key in wanted or value not in (None, [], {})
        }
        return str(backend["type"]), config
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
        message = "init has set up no backend that can be read"
        raise Invalid([Problem(message, Location(str(path)))]) from exc


def _mode(entry: Entry) -> int:
    return 0o700 if entry.executable else 0o600


def _make_private(directory: Path) -> None:
    for path in reversed([directory, *directory.parents]):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


def _write_private(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
