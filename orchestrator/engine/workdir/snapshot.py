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

LOCK_FILE = ".terraform.lock.hcl"
IGNORE_FILE = ".terraformignore"

#: Names of files and directories, at any depth, that no snapshot holds: state, plans, variable
#: values, caches, editors' leavings. What they hold is secret, or another directory's.
_NAMES = (
    ".terraform", ".git", ".orchestrator*", "*.tfstate", "*.tfstate.*", "*.tfplan", "tfplan",
    "*.tfvars", "*.tfvars.json", ".env*", "crash.log", "crash.*.log", ".terraformrc",
    "terraform.rc", "__pycache__", "*.pyc", "*~", "*.sw[op]", ".#*", "#*#", ".DS_Store", ".idea",
    ".vscode",
)  # fmt: skip
_EXCLUDED = re.compile("|".join(map(translate, _NAMES)))
#: Files that an engine loads, and those that it treats as override files.
_LOADED = re.compile(r"(?:.*\.(?:tf|tofu)(?:\.json)?|terraform\.tfvars(?:\.json)?|"
                     r".*\.auto\.tfvars(?:\.json)?)")  # fmt: skip
_OVERRIDE = re.compile(r"(?:.*_)?override\.(?:tf|tofu)(?:\.json)?")

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
    directories = {Path(module.directory), *map(Path, module.local_modules)}
    if module.package:
        directories.add(Path(module.package))
    roots = sorted(p for p in directories if not any(q in p.parents for q in directories))
    base = Path(os.path.commonpath(roots))
    message = "a directory of this name is left out of snapshots; rename it"
    hidden = [
        p for p in sorted(directories) if p != base and not _is_safe(p.relative_to(base).as_posix())
    ]
    if hidden:
        raise Invalid([Problem(message, Location(str(path))) for path in hidden])
    entries = _collect(base, roots)
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
    return _sealed(entries, facts)


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
        elif _OVERRIDE.fullmatch(name) and is_loaded(name) and name > BACKEND_FILE:
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
    return _sealed([], facts)


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


def _collect(base: Path, roots: list[Path]) -> list[Entry]:
    """
    Return the files below the directories, sorted by their paths from ``base``. Raises Invalid if
    one cannot be read, or if they are too large together.
    """
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    size = 0
    inside = [Path(os.path.realpath(root)) for root in roots]
    for root in roots:
        for path in _files_below(root, inside, problems):
            try:
                info = path.stat()
                if not stat.S_ISREG(info.st_mode):
                    problems.append(Problem("neither a file nor a directory", Location(str(path))))
                    continue
                size += info.st_size
                data = read_regular(path, limit=MAX_BYTES) if size <= MAX_BYTES else b""
            except OSError as exc:
                problems.append(Problem(f"cannot be read: {exc.strerror}", Location(str(path))))
                continue
            # A saved plan may have any name, and holds secrets: it is a zip that begins with it.
            if not (data.startswith(b"PK\x03\x04") and data[30:36] == b"tfplan"):
                name = path.relative_to(base).as_posix()
                entries[name] = Entry(name, data, bool(info.st_mode & stat.S_IXUSR))
            if size > MAX_BYTES or len(entries) > MAX_FILES:
                message = (
                    f"holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB to copy; "
                    "name what the module does not need in its .terraformignore"
                )
                problems.append(Problem(message, Location(str(root))))
                break
    if problems:
        raise Invalid(problems)
    return [entries[name] for name in sorted(entries)]


def _files_below(root: Path, inside: list[Path], problems: list[Problem]) -> Iterator[Path]:
    """
    Yield the files below a directory that are not excluded. Symbolic links are followed to what is
    ``inside`` of the directories that are copied.
    """

    def note(path: Path, message: str, hint: str = "") -> None:
        problems.append(Problem(message, Location(str(path)), hint))

    ignored = ignore_rules(root)
    waiting: list[tuple[Path, tuple[str, ...]]] = [(root, ())]  # with the directories above
    while waiting:
        path, above = waiting.pop()
        is_directory, relative = path.is_dir(), path.relative_to(root).as_posix()
        if path != root and (is_excluded(path.name) or ignored(relative + "/" * is_directory)):
            continue
        if path != root and path.is_symlink():
            real = Path(os.path.realpath(path))
            places = [real.relative_to(top) for top in inside if real.is_relative_to(top)]
            if not places:
                note(
                    path,
                    f"a symlink out of the module, to {path.readlink()}",
                    "refer to the module as DIRECTORY//MODULE: what is before // is copied as a "
                    "whole",
                )
            # What is excluded by its own name is not copied under another.
            if not places or is_excluded(places[0].as_posix()):
                continue
        if is_directory:
            identity = os.path.realpath(path)
            if identity in above:
                note(path, "a symlink leads back to a directory above it")
                continue
            try:
                children = sorted(path.iterdir(), reverse=True)
            except OSError as exc:
                note(path, f"cannot be read: {exc.strerror}")
                continue
            waiting += [(child, (*above, identity)) for child in children]
        else:
            yield path


def is_excluded(path: str) -> bool:
    """
    Return whether the file at this relative path ("/" between parts) is left out of every snapshot.

    >>> is_excluded("envs/prod.tfvars"), is_excluded("templates/user-data.sh")
    (True, False)
    """
    return any(_EXCLUDED.match(part) for part in path.split("/"))


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


def is_loaded(name: str) -> bool:
    """
    Return whether an engine loads a file of this name if it is in the module's directory.
    """
    return _LOADED.fullmatch(name) is not None and not name.startswith((".", "#"))


def _digest(entries: list[Entry], facts: Mapping[str, Json]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for entry in entries:
        content = hashlib.sha256(entry.data).hexdigest()
        line = json.dumps([entry.path, entry.executable, content])
        digest.update(f"\n{line}".encode())
    return f"sha256:{digest.hexdigest()}"


def _sealed(entries: list[Entry], facts: Mapping[str, Json]) -> Snapshot:
    """
    Return the snapshot of these files and facts, with its archive.
    """
    digest = _digest(entries, facts)
    manifest = json.dumps({**facts, "digest": digest}, sort_keys=True).encode()
    members = [Entry(_MANIFEST, manifest, executable=False)]
    members += [Entry(_FILES + entry.path, entry.data, entry.executable) for entry in entries]
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in members:
            member = tarfile.TarInfo(entry.path)
            member.size = len(entry.data)
            member.mode = 0o755 if entry.executable else 0o644
            archive.addfile(member, io.BytesIO(entry.data))
    return _snapshot(facts, digest, buffer.getvalue())


def _read(archive: bytes) -> tuple[dict[str, Json], list[Entry]]:
    """
    Return the manifest and the files of an untrusted archive.
    """
    limit = MAX_BYTES + MAX_FILES * 2048
    text: bytes | None = None
    entries: dict[str, Entry] = {}
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(archive)) as packed:
            plain = packed.read(limit + 1)
        if len(plain) > limit:
            raise _damaged(f"it is larger than {limit >> 20} MiB")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as opened:
            for member in opened:
                regular = member.isreg() and not member.issparse()
                content = opened.extractfile(member) if regular else None
                if content is None:
                    raise _damaged(f"{member.name!r} is not a plain file")
                if member.name == _MANIFEST:
                    text = content.read()
                    continue
                name = member.name.removeprefix(_FILES)
                if name == member.name or name in entries or not _is_safe(name):
                    raise _damaged(f"it holds {member.name!r}")
                entries[name] = Entry(name, content.read(), bool(member.mode & stat.S_IXUSR))
    except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
        raise _damaged(str(exc)) from exc
    if text is None:
        raise _damaged("it has no manifest")
    try:
        manifest = json.loads(text)
    except ValueError as exc:
        raise _damaged("its manifest is not JSON") from exc
    if not isinstance(manifest, dict):
        raise _damaged("its manifest is not an object")
    for name in entries:
        parts = name.split("/")
        if any("/".join(parts[:n]) in entries for n in range(1, len(parts))):
            raise _damaged(f"it holds {name!r} below a file")
    return manifest, [entries[name] for name in sorted(entries)]


_PART = re.compile(r"[^/\\\x00-\x1f]+")


def _is_safe(name: str) -> bool:
    parts = name.split("/")
    return (
        all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
        and not is_excluded(name)
        and len(name) <= 4096
    )


def _snapshot(facts: Mapping[str, Json], digest: str, archive: bytes) -> Snapshot:
    path = facts.get("module_path")
    if path != "." and not (isinstance(path, str) and _is_safe(path)):
        raise _damaged(f"its module path is {path!r}")
    try:
        variables = [Variable(**variable) for variable in facts["variables"]]
        reach: dict[str, ProviderDependencies] | None = None
        if facts.get("provider_reach") is not None:
            reach = {
                name: ProviderDependencies(
                    frozenset(map(str, on["variables"])), bool(on["objects"])
                )
                for name, on in facts["provider_reach"].items()
            }
        return Snapshot(
            digest=digest,
            module_path=path,
            archive=archive,
            variables={variable.name: variable for variable in variables},
            provider_sources=dict(facts["provider_sources"]),
            provider_blocks=tuple(facts["provider_blocks"]),
            provider_uses=None if facts["provider_uses"] is None else dict(facts["provider_uses"]),
            provider_reach=reach,
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


def _damaged(why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"a stored module snapshot cannot be used: {why}",
        hint="another version of the tool wrote it, or the operation store is damaged: restore it",
    )
