"""
Working directories: one per target, made of a snapshot and the configuration generated around it.

A target's directory holds the snapshot's tree; the engine runs in the module's directory in it, so
that relative paths, addresses and state are those of plain Terraform. Files that the engine or a
provisioner left there are kept; only files of an earlier snapshot are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from orchestrator.backend_location import location, render
from orchestrator.domain.blueprint.blueprint import Module
from orchestrator.domain.record.record import ProviderState
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.engine.state import parse_state
from orchestrator.engine.workdir import snapshot as snapshots
from orchestrator.engine.workdir.generated import BACKEND_FILE, backend_text, generate
from orchestrator.engine.workdir.layout import (
    Layout,
    providers_are_there,
    work_path,
)
from orchestrator.engine.workdir.snapshot import LOCK_FILE, entries_of
from orchestrator.errors import Busy, EngineFailed, Invalid, Location, OrchestratorError, Problem
from orchestrator.local_files import check_regular, make_private, read_regular, write_private
from orchestrator.ports.workdir import Snapshot, WorkDir, WorkDirConfig

#: The kernel's struct flock: only to ask who holds the lock that engines take on a state file.
_FLOCK = "hhqqi4x"

#: The setting of a backend that only says where in it the provider state is: what `init` does is
#: the same for each value of it.
_PLACE = {"local": "path"}

#: Beside the steps of a blueprint in an environment: what `init` did in their last composed root,
#: and what it did it for.
_COMPOSED_INIT, _COMPOSED_KEY = ".composed", "key"

#: A provider in a lock file.
_PROVIDER = re.compile(r'^provider "([^"]+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_VERSION = re.compile(r'^\s*version\s*=\s*"([^"]+)"', re.MULTILINE)
#: What one made of several begins with.
_HEADER = "# Made of the lock files of the steps.\n\n"

#: Where the engine leaves a provider state that it could not save.
ERRORED = "errored.tfstate"


class DirectoryWorkDirs:
    """
    Working directories below ``work``; relative backend paths are relative to ``project_root``.

    Different targets can be prepared concurrently; whoever prepares a target holds its claim.
    """

    unpack = staticmethod(snapshots.unpack)
    empty_snapshot = staticmethod(snapshots.empty_snapshot)

    def __init__(self, work: Path, project_root: Path) -> None:
        self._work = work.absolute()
        self._project = project_root.absolute()
        # Threads that work on many small files at once take the interpreter from each other at
        # each of them: one after the other they are done sooner.
        self._small_files = threading.Lock()

    @contextlib.contextmanager
    def lock(self, blueprint: str, environment: str) -> Iterator[None]:
        directory = self._work / blueprint / environment
        with _failure_in("init", directory):
            make_private(directory)
            descriptor = os.open(
                directory / ".held", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600
            )
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise Busy(
                    f"another command uses the working directories of {blueprint}/{environment}",
                    hint="a run waits for it with --wait; to work beside it takes a checkout "
                    "of its own",
                ) from exc
            yield
        finally:
            os.close(descriptor)

    def snapshot(self, module: Module) -> Snapshot:
        try:
            return snapshots.pack(module)
        except Invalid as exc:
            shown = [item.shown_from(str(self._project)) for item in exc.problems]
            raise Invalid(shown) from exc

    def prepare(
        self, target: Target, snapshot: Snapshot, setup: WorkDirConfig, engine: str
    ) -> WorkDir:
        kind = setup.backend_type
        backend = render(kind, setup.backend_config, self._project)
        where = location(kind, setup.backend_config, self._project)
        generated = generate(snapshot, setup, backend=backend, shown=str(target))
        what = f"cannot prepare the working directory of {target}: "
        with _failure_in("init", self._work, what):
            layout = Layout(self._work / work_path(target), snapshot.module_path)
            with self._small_files:
                layout.lay_out(snapshot, generated.files, setup.lock_file)
                if kind == "local":
                    make_private(Path(backend["path"]).parent)
                    check_regular(Path(backend["path"]))  # the engine waits for a FIFO's writer
                layout.write_note("terraform", dict(generated.terraform))
                backend_file = layout.write_backend(generated.backend)
                # What an init depends on, except the lock file, which init may write itself.
                basis = {
                    "snapshot": snapshot.digest,
                    "engine": engine,
                    "generated": _digest([dict(generated.files), generated.backend]),
                }
                if setup.early_digest:
                    basis["early"] = setup.early_digest
                layout.write_note("wanted", basis)
                init_needed = True
                with contextlib.suppress(Invalid):  # somebody may have run another init there
                    in_force = layout.is_initialised() and self._in_force(layout, kind)
                    init_needed = in_force != (kind, where)
                if init_needed:
                    layout.forget_init()
            init_key = ""
            if kind in _PLACE:
                alike: Json = {k: v for k, v in backend.items() if k != _PLACE[kind]}
                text = json.dumps(alike, sort_keys=True)
                alike = {**basis, "generated": _digest([dict(generated.files), text])}
                init_key = layout.init_digest(alike)
        return WorkDir(
            directory=layout.directory,
            location=where,
            backend_type=kind,
            variables=generated.variables,
            init_needed=init_needed,
            early_values=setup.early_values,
            required_providers=generated.terraform.get("required_providers", {}),
            provider_blocks=generated.provider_blocks,
            init_key=init_key,
            backend_file=backend_file,
        )

    def copy_init(self, twin: WorkDir, root: WorkDir) -> bool:
        layout, name = self._layout(root), _PLACE[root.backend_type]
        backend = layout.read_note("terraform")["backend"][root.backend_type]
        try:
            layout.copy_init(self._layout(twin), {name: backend[name]})
            self.mark_initialised(root)
        except (OSError, ValueError, OrchestratorError):
            return False  # an init of its own decides
        return layout.is_initialised()

    def mark_initialised(self, root: WorkDir) -> None:
        layout = self._layout(root)
        kind, address = self._in_force(layout, root.backend_type)
        # Before the note: a directory whose backend is another one must not pass for initialised.
        if (kind, address) != (root.backend_type, root.location):
            raise Invalid(
                [
                    Problem(
                        f"the backend in force after init is {kind} at {address}, and the "
                        f"blueprint wants {root.backend_type} at {root.location}",
                        Location(str(root.directory)),
                        "a backend or cloud block of the module wins over the blueprint's: "
                        "remove it from the module",
                    )
                ]
            )
        with _failure_in("init", root.directory):
            done = layout.init_digest(layout.read_note("wanted"))
            layout.write_note("initialised", done)

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
        file = self._project / state.location
        backup = file.with_name(f"{file.name}.backup")
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
        keys = document.keys() & {"version", "encrypted_data"} if isinstance(document, dict) else ()
        return None if keys else path

    def set_aside(self, file: Path, directory: Path) -> Path:
        target = directory / file.name
        number = 1
        while target.exists():  # of an earlier attempt: both are evidence
            number += 1
            target = directory / f"{number}-{file.name}"
        with _failure_in("surgery", file):
            file.chmod(0o600)
            shutil.move(file, target)
        return target

    @contextlib.contextmanager
    def with_files(self, root: WorkDir, files: Mapping[str, str]) -> Iterator[None]:
        paths = [root.directory / name for name in files]
        try:
            with _failure_in("plan", root.directory):
                for path, text in zip(paths, files.values(), strict=True):
                    write_private(path, text.encode())
                yield
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def scratch_copy(self, root: WorkDir, place: Path, *, extra: Mapping[str, str]) -> WorkDir:
        """
        Copy the configuration of ``root`` to the directory ``place``, with an empty local backend.

        Installed providers and modules are shared with ``root``, so that its ``init`` downloads
        nothing.
        """
        with _failure_in("readback", place):
            directory = self._layout(root).copy_to(place / "root")
            state_file = place / "private.tfstate"
            backend = {"local": {"path": str(state_file)}}
            settings = {**self._layout(root).read_note("terraform"), "backend": backend}
            files = {BACKEND_FILE: backend_text(settings), **extra}
            for name, text in files.items():
                write_private(directory / name, text.encode())
        return replace(
            root,
            directory=directory,
            location=str(state_file),
            backend_type="local",
            init_needed=True,
            backend_file=None,
        )

    def state_locked(self, root: WorkDir) -> bool:
        if root.backend_type != "local" or sys.platform != "linux":
            return False
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            with (self._project / root.location).open("rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, request)
        except OSError:
            return False
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def not_composable(self, roots: Mapping[str, tuple[Snapshot, WorkDir]]) -> Set[str]:
        reasons: dict[str, str] = {}  # by the module, which several steps may use
        for snapshot, _ in roots.values():
            if snapshot.digest not in reasons:
                reasons[snapshot.digest] = not_composable(snapshot)
        _, others = self._merged_lock_files({step: root for step, (_, root) in roots.items()})
        return others | {
            step
            for step, (snapshot, root) in roots.items()
            # What it loads may depend on variables.
            if root.early_values or reasons[snapshot.digest]
        }

    def _merged_lock_files(self, roots: Mapping[str, WorkDir]) -> tuple[bytes, set[str]]:
        """
        Return one lock file for all, and the steps left out: those whose lock file selects another
        version of a provider than an earlier one.
        """
        blocks: dict[str, tuple[str, str]] = {}
        others = set()
        for step, root in roots.items():
            content = self.lock_file(root) or b""
            chosen: dict[str, tuple[str, str]] = {}
            for block in _PROVIDER.finditer(content.decode(errors="replace")):
                version = _VERSION.search(block[2])
                chosen[block[1]] = version[1] if version else "", block[0]
            if any(blocks.get(source, own)[0] != own[0] for source, own in chosen.items()):
                others.add(step)
            else:
                blocks = {**chosen, **blocks}
        text = _HEADER + "\n\n".join(block for _, block in blocks.values()) + "\n"
        return text.encode(), others

    def module_source(self, name: str, root: WorkDir) -> str:
        relative = self._layout(root).copy_place(Path(name)).as_posix()
        return f"./{relative}"

    def composed_root(
        self, place: Path, content: Json, *, state: bytes, modules: Mapping[str, WorkDir]
    ) -> WorkDir:
        lock_file, _ = self._merged_lock_files(modules)
        rest = {name: block for name, block in content.items() if name != "module"}
        files = {LOCK_FILE: lock_file.decode(), "main.tf.json": json.dumps(rest, indent=1)}
        # Each call in a file of its own: an error in one names the file.
        for name, call in content.get("module", {}).items():
            files[f"{name}.call.tf.json"] = json.dumps({"module": {name: call}}, indent=1)
        configurations = {
            name: self._layout(root).read_note("wanted") for name, root in modules.items()
        }
        key = _digest([files, configurations])
        with _failure_in("plan", place):
            for name, text in files.items():
                write_private(place / name, text.encode())
            write_private(place / "terraform.tfstate", state)
            init_needed = not self._link_composed_init(place, modules, key)
            for name, root in modules.items():
                directory = self._layout(root).copy_to(place / name, generated=False)
                if root.required_providers:
                    text = backend_text({"required_providers": root.required_providers})
                    write_private(directory / BACKEND_FILE, text.encode())
        return WorkDir(
            directory=place,
            location=str(place / "terraform.tfstate"),
            backend_type="local",
            variables={},
            init_needed=init_needed,
            init_key=key,
        )

    def keep_composed_init(self, root: WorkDir) -> None:
        with contextlib.suppress(OSError):  # the next one has to do it again
            write_private(root.directory / ".terraform" / _COMPOSED_KEY, root.init_key.encode())

    def _link_composed_init(
        self, directory: Path, modules: Mapping[str, WorkDir], key: str
    ) -> bool:
        """
        Link the init of the previous composed root into this one. Returns whether that root was the
        same and its plan succeeded; this one must prove itself again.
        """
        parts = next(iter(modules.values())).directory.relative_to(self._work).parts
        shared = self._work.joinpath(*parts[:2], _COMPOSED_INIT)
        note = shared / _COMPOSED_KEY
        same = note.is_file() and note.read_text() == key and providers_are_there(shared)
        if same:
            note.unlink()
        else:
            shutil.rmtree(shared, ignore_errors=True)
            make_private(shared)
        (directory / ".terraform").symlink_to(shared)
        return same

    def _in_force(self, layout: Layout, backend_type: str) -> tuple[str, str]:
        """
        Return the type and location of the backend that the last ``init`` set up. Raises Invalid if
        it cannot be read.
        """
        settings = layout.read_note("terraform")["backend"].get(backend_type, {})
        path = layout.directory / ".terraform" / "terraform.tfstate"
        try:
            backend = json.loads(read_regular(path))["backend"]
            kind = str(backend["type"])
            # Init lists every possible setting.
            config = {
                key: value
                for key, value in backend["config"].items()
                if key in settings or value not in (None, [], {})
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
            message = "init has set up no backend that can be read"
            raise Invalid([Problem(message, Location(str(path)))]) from exc
        return kind, location(kind, config, self._project)

    def _layout(self, root: WorkDir) -> Layout:
        parts = root.directory.relative_to(self._work).parts
        return Layout(self._work.joinpath(*parts[:3]), "/".join(parts[3:]) or ".")


@contextlib.contextmanager
def _failure_in(phase: str, directory: Path, what: str = "") -> Iterator[None]:
    """
    Convert errors of the file system to EngineFailed in a phase.
    """
    try:
        yield
    except OSError as exc:
        message = f"{what}{exc.filename or directory}: {exc.strerror}"
        raise EngineFailed(phase, message) from exc


def _digest(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Which modules can be called from another one without changing their plan.

#: A module called by another one is not at the root: these say where it is.
_COMPOSED = re.compile(r"\bpath\.(root|cwd|module)\b")
_FILE = (
    r"\b(?:file|fileexists|fileset|templatefile|file(?:base64|md5|sha1|sha256|sha512)"
    r"|filebase64sha(?:256|512))"
)
#: Where the place of a module only leads to a file whose content is read, it changes nothing.
_READS = re.compile(_FILE + r'\(\s*"?(?:\$\{)?\s*path\.module\b')
#: Its own directory holds what is generated and installed there, too: called by another one it
#: finds other names.
_LISTS = re.compile(r'\bfileset\(\s*"?(?:\$\{)?\s*path\.module\s*(?:\}[/.]*")?\s*,')
#: Any other path may be one from the directory that the engine works in.
_ELSEWHERE = re.compile(_FILE + r"\(|\babspath\(")
_LOCAL_MODULE = re.compile(r'\bsource\s*=\s*"\$\{path\.module\}')
_ONLY_AT_ROOT = re.compile(
    r"^\s*(import|encryption|ephemeral)\b[^\n{=]*\{"  # or as JSON has it
    r'|"(import|encryption|ephemeral)"\s*:\s*[\[{]',
    re.MULTILINE,
)


def not_composable(snapshot: Snapshot) -> str:
    """
    Return why a module cannot be called from another one without changing its plan; "" if it can.
    """
    if snapshot.has_ephemeral_variables:
        return "it has ephemeral variables"
    for entry in entries_of(snapshot):
        if not entry.path.endswith((".tf", ".tofu", ".tf.json", ".tofu.json")):
            continue
        text = entry.data.decode(errors="replace")
        rest = _READS.sub("", _LOCAL_MODULE.sub("", text))
        if _LISTS.search(text):
            return f"{entry.path} lists the files of its own directory"
        reference = _COMPOSED.search(rest)
        if reference:
            return f"{entry.path} uses {reference[0]}"
        elsewhere = _ELSEWHERE.search(rest)
        if elsewhere:
            return f"{entry.path} may use {elsewhere[0]}...) with a path from its root"
        block = _ONLY_AT_ROOT.search(text)
        if block:
            return f"{entry.path} has an {block[1] or block[2]} block"
    return ""
