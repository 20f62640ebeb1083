"""
Content-addressed module snapshots, and the archives in which they are stored.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import (
    Module,
    ProtectedResource,
    ProviderDependencies,
    Variable,
)
from orchestrator.domain.text import Json
from orchestrator.engine.workdir.generated import BACKEND_FILE, PROVIDER_FILE
from orchestrator.errors import Invalid, Location, Problem, StoreUnavailable
from orchestrator.local_files import read_regular
from orchestrator.ports.workdir import Snapshot

# The files of a module that no snapshot holds: state, plans, variable values, caches, editors'
# leavings.


LOCK_FILE = ".terraform.lock.hcl"
IGNORE_FILE = ".terraformignore"

#: Names of files and directories, at any depth. What they hold is secret, or another directory's.
_NAMES = (
    ".terraform", ".git", ".orchestrator*", "*.tfstate", "*.tfstate.*", "*.tfplan", "tfplan",
    "*.tfvars", "*.tfvars.json", ".env*", "crash.log", "crash.*.log", ".terraformrc",
    "terraform.rc", "__pycache__", "*.pyc", "*~", "*.sw[op]", ".#*", "#*#", ".DS_Store", ".idea",
    ".vscode",
)  # fmt: skip
_EXCLUDED = re.compile("|".join(map(translate, _NAMES)))


def is_excluded(path: str) -> bool:
    """
    Return whether the file at this relative path ("/" between parts) is left out of every snapshot.

    >>> is_excluded("envs/prod.tfvars"), is_excluded("templates/user-data.sh")
    (True, False)
    """
    return any(_EXCLUDED.match(part) for part in path.split("/"))


def is_plan(head: bytes) -> bool:
    """
    Return whether a file that begins with ``head`` (36 bytes) is a saved plan: a zip whose first
    member is the plan. A plan may have any name and contains secrets.
    """
    return head.startswith(b"PK\x03\x04") and head[30:36] == b"tfplan"


def ignore_rules(directory: Path) -> Callable[[str], bool]:
    """
    Return a predicate that tells whether the ``.terraformignore`` in ``directory`` excludes a path
    relative to it.
    """
    path = directory / IGNORE_FILE
    try:
        text = read_regular(path).decode()
    except FileNotFoundError:
        return lambda _: False
    except OSError as exc:
        raise Invalid([Problem(f"cannot be read: {exc.strerror}", Location(str(path)))]) from exc
    except UnicodeDecodeError as exc:
        raise Invalid([Problem("is not UTF-8 text", Location(str(path)))]) from exc
    import pathspec

    try:
        return pathspec.GitIgnoreSpec.from_lines(text.splitlines()).match_file
    except ValueError as exc:  # a pattern such as a "!" alone
        raise Invalid([Problem(f"not valid: {exc}", Location(str(path)))]) from exc


_LOADED = re.compile(r"(?:.*\.(?:tf|tofu)(?:\.json)?|terraform\.tfvars(?:\.json)?|"
                     r".*\.auto\.tfvars(?:\.json)?)")  # fmt: skip


def is_loaded(name: str) -> bool:
    """
    Return whether an engine loads a file of this name if it is in the module's directory.
    """
    return _LOADED.fullmatch(name) is not None and not name.startswith((".", "#"))


_OVERRIDE = re.compile(r"(?:.*_)?override\.(?:tf|tofu)(?:\.json)?")


def is_override(name: str) -> bool:
    """
    Return whether an engine treats a file of this name as an override file.
    """
    return _OVERRIDE.fullmatch(name) is not None and is_loaded(name)


MAX_BYTES = 256 * 1024 * 1024
MAX_FILES = 20_000
_MANIFEST = "manifest.json"
_FILES = "files/"
_SCHEMA = "orchestrator.snapshot/1"
#: All but its place: that depends on where the module was read from.
_VARIABLE_FACTS = ("name", "type", "required", "sensitive", "ephemeral", "nullable")


class Entry(Struct, frozen=True):
    """
    A file of a snapshot. ``path`` is relative with "/".
    """

    path: str
    data: bytes
    executable: bool


def pack(module: Module) -> Snapshot:
    """
    Return the snapshot of a module, its local modules and its package. Equal files give equal
    digests. Raises Invalid if a file cannot be read, or if they are too large together.
    """
    if module.backend == "cloud":
        message = (
            "the module has a cloud block, which decides by itself where its state is; "
            "remove it: the blueprint's backend takes its place"
        )
        raise Invalid([Problem(message, Location(module.directory))])
    roots = _roots(module)
    base = Path(os.path.commonpath(roots))
    collector = _Collector(base, [Path(os.path.realpath(root)) for root in roots])
    for root in roots:
        collector.add(root)
    if collector.problems:
        raise Invalid(collector.problems)
    entries = sorted(collector.entries.values(), key=lambda entry: entry.path)
    path = os.path.relpath(module.directory, base).replace(os.sep, "/")
    if problems := list(_name_problems(entries, path, module.directory)):
        raise Invalid(problems)
    early = sorted({*module.early_variables, *module.passed_elsewhere})
    facts: dict[str, Json] = {
        "schema": _SCHEMA,
        "module_path": path,
        "variables": [
            {fact: getattr(variable, fact) for fact in _VARIABLE_FACTS}
            for _, variable in sorted(module.variables.items())
        ],
        "provider_sources": dict(sorted(module.provider_sources.items())),
        "provider_blocks": sorted(module.provider_blocks),
        "provider_uses": module.provider_uses and dict(sorted(module.provider_uses.items())),
        "provider_reach": {
            name: {"variables": sorted(reach.variables), "objects": reach.managed_objects}
            for name, reach in sorted(module.provider_reach.items())
        },
        "protected": [
            [item.address, item.at.file, item.at.line, item.at.column]
            for item in sorted(module.protected, key=lambda item: item.address)
        ],
        "locked": any(e.path == f"{path}/{LOCK_FILE}".removeprefix("./") for e in entries),
        # Only where there are any: what the digest of other modules says stays what it was.
        **({"early": early} if early else {}),
        **({"encryption": module.encryption} if module.encryption else {}),
        **({"partial_backend": module.partial_backend} if module.partial_backend else {}),
    }
    digest = _digest(entries, facts)
    return _snapshot(facts, digest, _archive(entries, {**facts, "digest": digest}))


def pack_problems(modules: Iterable[Module]) -> list[Problem]:
    """
    Return the problems that prevent modules from being packed; each directory is checked once.
    """
    problems: dict[Problem, None] = {}
    for module in {(item.directory, item.package): item for item in modules}.values():
        try:
            pack(module)
        except Invalid as exc:
            problems |= dict.fromkeys(exc.problems)
    return list(problems)


def _name_problems(entries: list[Entry], path: str, directory: str) -> Iterator[Problem]:
    """
    Yield a problem for each module file that has the name of a generated one.
    """
    for entry in entries:
        parent, _, name = entry.path.rpartition("/")
        if (parent or ".") != path:
            continue
        if name in (BACKEND_FILE, PROVIDER_FILE):
            message = f"the module holds {name}, a name that is kept for a generated file"
            yield Problem(message, Location(f"{directory}/{name}"))
        elif is_override(name) and name > BACKEND_FILE:
            message = (
                f"{name} is read after the generated {BACKEND_FILE}, and could move the state "
                "elsewhere; rename it"
            )
            yield Problem(message, Location(f"{directory}/{name}"))


def empty_snapshot() -> Snapshot:
    """
    Return the snapshot of a module without files and providers.
    """
    facts: dict[str, Json] = {
        "schema": _SCHEMA,
        "module_path": ".",
        "variables": [],
        "provider_sources": {},
        "provider_blocks": [],
        "provider_uses": {},
        "locked": False,
    }
    digest = _digest([], facts)
    return _snapshot(facts, digest, _archive([], {**facts, "digest": digest}))


def unpack(archive: bytes) -> Snapshot:
    """
    Return the snapshot in a stored archive. Raises StoreUnavailable if it is damaged or not ours.
    """
    manifest, entries = _read(archive)
    digest = manifest.pop("digest", None)
    if manifest.get("schema") != _SCHEMA:
        raise _damaged(f"its schema is {manifest.get('schema')!r}, this version reads {_SCHEMA!r}")
    if digest != _digest(entries, manifest):
        raise _damaged("its content does not have the digest it states")
    return _snapshot(manifest, digest, archive)


def entries_of(snapshot: Snapshot) -> list[Entry]:
    """
    Return the files of a snapshot, sorted by path. Raises StoreUnavailable if its archive is
    damaged.
    """
    return _read(snapshot.archive)[1]


def read_archived(archive: bytes, name: str) -> str:
    """
    Return the text of a file in the directory of an archived module; "" if there is none.
    """
    snapshot = unpack(archive)
    path = f"{snapshot.module_path}/{name}".removeprefix("./")
    contents = (entry.data for entry in entries_of(snapshot) if entry.path == path)
    return next(contents, b"").decode(errors="replace")


def _roots(module: Module) -> list[Path]:
    """
    Return the directories to copy; none is inside another.
    """
    directories = {Path(module.directory), *map(Path, module.local_modules)}
    if module.package:
        directories.add(Path(module.package))
    return sorted(p for p in directories if not any(q in p.parents for q in directories))


class _Collector:
    """
    Collects the files below directories. Symbolic links are followed if they stay inside them.
    """

    def __init__(self, base: Path, inside: list[Path]) -> None:
        self._base = base
        self._inside = inside
        self._size = 0
        self.entries: dict[str, Entry] = {}
        self.problems: list[Problem] = []

    def add(self, root: Path) -> None:
        """
        Add the files below ``root`` that are not excluded.
        """
        ignored = ignore_rules(root)
        for path, relative in self._walk(root, "", ignored, (os.path.realpath(root),)):
            try:
                self._take(path, (root.relative_to(self._base) / relative).as_posix())
            except OSError as exc:
                self._note(path, f"cannot be read: {exc.strerror}")
            if self._size > MAX_BYTES or len(self.entries) > MAX_FILES:
                self._note(
                    root,
                    f"holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB to copy; "
                    "name what the module does not need in its .terraformignore",
                )
                return

    def _walk(
        self, directory: Path, prefix: str, ignored: Callable[[str], bool], above: tuple[str, ...]
    ) -> Iterator[tuple[Path, str]]:
        try:
            paths = sorted(directory.iterdir())
        except OSError as exc:
            self._note(directory, f"cannot be read: {exc.strerror}")
            return
        for path in paths:
            relative = f"{prefix}{path.name}"
            is_directory = path.is_dir()
            if is_excluded(path.name) or ignored(relative + "/" * is_directory):
                continue
            if path.is_symlink() and not self._stays(path):
                continue
            if not is_directory:
                yield path, relative
                continue
            real = os.path.realpath(path)
            if real in above:
                self._note(path, "a symlink leads back to a directory above it")
                continue
            yield from self._walk(path, f"{relative}/", ignored, (*above, real))

    def _stays(self, link: Path) -> bool:
        """
        Return whether a symbolic link leads to something that is copied, too. A file that is
        excluded by its own name is not copied under another.
        """
        real = Path(os.path.realpath(link))
        for root in self._inside:
            if real.is_relative_to(root):
                return not is_excluded(real.relative_to(root).as_posix())
        self._note(
            link,
            f"a symlink out of the module, to {link.readlink()}",
            "refer to the module as DIRECTORY//MODULE: what is before // is copied as a whole",
        )
        return False

    def _take(self, path: Path, name: str) -> None:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            self._note(path, "neither a file nor a directory")
            return
        self._size += info.st_size
        if self._size > MAX_BYTES:
            return
        data = read_regular(path, limit=MAX_BYTES)
        if not is_plan(data[:36]):
            self.entries[name] = Entry(name, data, bool(info.st_mode & stat.S_IXUSR))

    def _note(self, path: Path, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, Location(str(path)), hint))


def _digest(entries: list[Entry], facts: Mapping[str, Json]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for entry in entries:
        content = hashlib.sha256(entry.data).hexdigest()
        line = json.dumps([entry.path, entry.executable, content])
        digest.update(f"\n{line}".encode())
    return f"sha256:{digest.hexdigest()}"


def _archive(entries: list[Entry], manifest: Mapping[str, Json]) -> bytes:
    buffer = io.BytesIO()
    text = json.dumps(manifest, sort_keys=True).encode()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, Entry(_MANIFEST, text, executable=False))
        for entry in entries:
            _add(archive, Entry(_FILES + entry.path, entry.data, entry.executable))
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.size = len(entry.data)
    member.mode = 0o755 if entry.executable else 0o644
    archive.addfile(member, io.BytesIO(entry.data))


def _read(archive: bytes) -> tuple[dict[str, Json], list[Entry]]:
    """
    Return the manifest and the files of an untrusted archive.
    """
    limit = MAX_BYTES + MAX_FILES * 2048
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(archive)) as packed:
            plain = packed.read(limit + 1)
        if len(plain) > limit:
            raise _damaged(f"it is larger than {limit >> 20} MiB")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as opened:
            members = [(member, _content(opened, member)) for member in opened]
    except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
        raise _damaged(str(exc)) from exc
    manifest: Json = None
    entries: dict[str, Entry] = {}
    for member, data in members:
        if member.name == _MANIFEST:
            manifest = _manifest(data)
            continue
        name = member.name.removeprefix(_FILES)
        if name == member.name or name in entries or not _is_safe(name):
            raise _damaged(f"it holds {member.name!r}")
        entries[name] = Entry(name, data, bool(member.mode & stat.S_IXUSR))
    if manifest is None:
        raise _damaged("it has no manifest")
    for name in entries:
        parts = name.split("/")
        if any("/".join(parts[:n]) in entries for n in range(1, len(parts))):
            raise _damaged(f"it holds {name!r} below a file")
    return manifest, [entries[name] for name in sorted(entries)]


def _content(opened: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = opened.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise _damaged(f"{member.name!r} is not a plain file")
    return content.read()


_PART = re.compile(r"[^/\\\x00-\x1f]+")


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return (
        all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
        and not is_excluded(name)
        and len(name) <= 4096
    )


def _manifest(data: bytes) -> dict[str, Json]:
    try:
        manifest = json.loads(data)
    except ValueError as exc:
        raise _damaged("its manifest is not JSON") from exc
    if not isinstance(manifest, dict):
        raise _damaged("its manifest is not an object")
    return manifest


def _snapshot(facts: Mapping[str, Json], digest: str, archive: bytes) -> Snapshot:
    path = facts.get("module_path")
    if path != "." and not (isinstance(path, str) and _is_safe(path)):
        raise _damaged(f"its module path is {path!r}")
    try:
        variables = [Variable(**variable) for variable in facts["variables"]]
        return Snapshot(
            digest=digest,
            module_path=path,
            archive=archive,
            variables={variable.name: variable for variable in variables},
            provider_sources=dict(facts["provider_sources"]),
            provider_blocks=tuple(facts["provider_blocks"]),
            provider_uses=None if facts["provider_uses"] is None else dict(facts["provider_uses"]),
            provider_reach=_reach(facts.get("provider_reach")),
            protected=tuple(
                ProtectedResource(str(address), Location(str(file), int(line), int(column)))
                for address, file, line, column in facts.get("protected", ())
            ),
            has_lock_file=bool(facts.get("locked")),
            early_variables=tuple(map(str, facts.get("early", ()))),
            encryption=str(facts.get("encryption", "")),
            partial_backend=str(facts.get("partial_backend", "")),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise _damaged(f"its manifest is incomplete: {exc}") from exc


def _reach(facts: Json) -> dict[str, ProviderDependencies] | None:
    if facts is None:
        return None
    return {
        name: ProviderDependencies(frozenset(map(str, reach["variables"])), bool(reach["objects"]))
        for name, reach in facts.items()
    }


def _damaged(why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"a stored module snapshot cannot be used: {why}",
        hint="another version of the tool wrote it, or the operation store is damaged: restore it",
    )
