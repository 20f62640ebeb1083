"""
The project that a command works in: where it begins, and what its ``orchestrator.yaml`` says.

```yaml
project: shop                       # names the records in a shared store; "default" if not given
operations: {url: "sqlite:ops.db"}
engine: tofu                        # terraform, tofu, embedded, or the path of a program
allow_environment: [TF_WORKSPACE]   # variables that are refused otherwise
module_roots: [../shared-modules]   # further directories that modules may lie in
jobs: 4                             # steps at once
timeout: 2h                         # deadline of a step's mutation; none if not given
grace: 30m                          # from the one SIGINT to SIGKILL; none: wait as long as it takes
store_grace: 5m                     # from an outcome that a store does not take to the spool
settle_seconds: 60                  # before an object in doubt may be called absent
gogc: 300                           # garbage collection of engines and providers; Go's own is 100
```
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document
from orchestrator.domain.store_location import STORE_URLS, StoreLocation, store_url_problem
from orchestrator.domain.target import NAME, is_name
from orchestrator.domain.text import did_you_mean, is_text, seconds, shown_text
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.local_files import read_regular, read_text
from orchestrator.trust import Trust, read_trust

if TYPE_CHECKING:
    from orchestrator.app.services import Limits


FILE = "orchestrator.yaml"
DEFAULT_PROJECT, DEFAULT_JOBS, DEFAULT_SETTLE = "default", 4, 60.0
SHARED_GRACE = 60.0  # seconds for which an outcome waits for a shared store that is away
#: Large providers take a fifth to a third less time and CPU with it, and some 90 MB more.
DEFAULT_GOGC = 300

_KEYS = (
    "project",
    "operations",
    "engine",
    "allow_environment",
    "module_roots",
    "jobs",
    "timeout",
    "grace",
    "store_grace",
    "settle_seconds",
    "gogc",
)
BLUEPRINTS = "blueprints"
_SUFFIXES = (".yaml", ".yml")
_NAME_LINE = re.compile(r"^name:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_STEPS_LINE = re.compile(r"^(?:steps|\"steps\")[ \t]*:", re.MULTILINE)
_ALLOWABLE = re.compile(r"TF_WORKSPACE|TF_CLI_ARGS(_[a-z_]+)?")


class Settings(Struct, frozen=True):
    """
    The settings of a project. Paths are absolute, times in seconds.

    ``engine`` is a value for ``--engine``. ``file`` is None if there is no settings file.
    """

    project_dir: Path
    file: Path | None = None
    project: str = DEFAULT_PROJECT
    operations_url: str | None = None
    engine: str | None = None
    allow_environment: frozenset[str] = frozenset()
    module_roots: tuple[Path, ...] = ()
    jobs: int = DEFAULT_JOBS
    timeout: float | None = None
    grace: float | None = None
    store_grace: float | None = None
    settle_seconds: float = DEFAULT_SETTLE
    gogc: int = DEFAULT_GOGC
    trust: Trust = field(default_factory=Trust)


def read_settings(start: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """
    Return the settings for directory ``start``: from the nearest ``orchestrator.yaml`` upwards, as
    far as the trust file named in ``environ`` allows them.

    Without a settings file, the project directory is the nearest one with ``blueprints/``, else
    ``start``. Raises Invalid with every problem of the file, or if ``start`` is no directory.
    """
    here = Path(os.path.realpath(start))
    if not is_text(str(here)):
        message = f"the path of the project is not UTF-8 text: {shown_text(str(here))}"
        raise Invalid([Problem(message, hint="give the directory another name")])
    if not here.is_dir():
        raise Invalid([Problem(f"{start} is not a directory", hint="give -C a directory")])
    ancestry = (here, *here.parents)
    for directory in ancestry:
        if os.path.lexists(directory / FILE):  # whatever it is: read, or told that it cannot be
            return _parse(directory, environ or {})
    root = next((each for each in ancestry if (each / BLUEPRINTS).is_dir()), here)
    return Settings(project_dir=root, trust=read_trust(environ or {}, root))


def _parse(root: Path, environ: Mapping[str, str]) -> Settings:
    trust, problems = read_trust(environ, root), Problems()
    document = parse_document(read_text(root / FILE, shown=FILE), file=FILE)
    fields = problems.fields(document, _KEYS, what="the settings")
    settings: dict[str, Any] = {}
    for name in _KEYS:
        node = fields.get(name)
        if node is None:
            continue
        match name:
            case "project" | "engine":
                text = settings[name] = problems.text(node, what=name)
                if name == "project" and text and not is_name(text):
                    problems.add(f"project {text!r} must match {NAME.pattern}", node.at)
                elif name == "engine" and os.sep in text:
                    trust.check_command(f"the engine {text!r}", node.at, problems)
            case "operations":
                settings["operations_url"] = _operations(node, root, trust, environ, problems)
            case "allow_environment":
                settings[name] = _allowed(node, problems)
            case "module_roots":
                settings[name] = _module_roots(node, root, trust, problems)
            case "jobs" | "gogc":
                settings[name] = number = node.value
                if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                    problems.add(f"{name} must be a whole number from 1", node.at)
            case "settle_seconds" if node.value == 0 and node.value is not False:
                settings[name] = 0.0
            case _:
                try:
                    settings[name] = seconds(node.plain)
                except ValueError as exc:
                    problems.add(f"{name}: {exc}", node.at)
    problems.check()
    given = {name: value for name, value in settings.items() if value not in (None, "")}
    return Settings(project_dir=root, file=root / FILE, trust=trust, **given)


def _operations(
    node: Node, root: Path, trust: Trust, environ: Mapping[str, str], problems: Problems
) -> str | None:
    fields = problems.fields(node, ("url",), what="operations")
    if "url" not in fields:
        return None
    url = problems.url(fields["url"], what="operations.url") or None
    if url is not None and (wrong := store_url_problem(url, environ)) is not None:
        problems.add(f"operations.url: {wrong}", fields["url"].at, hint=f"use {STORE_URLS}")
    elif url is not None:
        trust.check_store(url, root, fields["url"].at, problems)
    return url


def _allowed(node: Node, problems: Problems) -> frozenset[str]:
    entries = problems.entries(node, what="allow_environment")
    for name, item in entries:
        if not _ALLOWABLE.fullmatch(name):
            hint = "only TF_WORKSPACE and TF_CLI_ARGS or TF_CLI_ARGS_<command> are refused"
            problems.add(f"{name!r} needs no permission, or cannot be given one", item.at, hint)
    return frozenset(name for name, _ in entries)


def _module_roots(node: Node, root: Path, trust: Trust, problems: Problems) -> tuple[Path, ...]:
    directories = []
    for name, item in problems.entries(node, what="module_roots"):
        directory = Path(os.path.realpath(root / name))
        if not directory.is_dir():
            problems.add(f"{name!r} is not a directory", item.at)
        trust.check_module_root(directory, root, item.at, problems)
        directories.append(directory)
    return tuple(directories)


class ProjectContext(Struct, frozen=True):
    """
    The context of a call: the directory, the project's settings, the environment variables.
    Relative paths on the command line are relative to ``directory``.
    """

    directory: Path
    settings: Settings
    environ: Mapping[str, str]

    @property
    def project_dir(self) -> Path:
        return self.settings.project_dir

    @property
    def called_in(self) -> str:
        """
        The ``-C`` directory for offered commands; "" if it is the current one.
        """
        here = Path.cwd()
        return "" if self.directory == here else os.path.relpath(self.directory, here)

    @property
    def operations(self) -> StoreLocation:
        """
        The operation store of the project, for what belongs to no blueprint.
        """
        return StoreLocation(url=self.settings.operations_url)

    def limits(self, operations: StoreLocation, store_grace: float | None) -> Limits:
        """
        Return the time limits of a run with this operation store, by the settings; ``store_grace``
        is the command-line option, if given.
        """
        from orchestrator.app.services import Limits  # here: reading commands must not wait for it

        settings = self.settings
        waits = (store_grace, settings.store_grace, SHARED_GRACE * operations.is_shared)
        return Limits(
            timeout=settings.timeout,
            grace=settings.grace,
            settle=settings.settle_seconds,
            store_grace=next(seconds for seconds in waits if seconds is not None),
        )

    def show(self, path: Path) -> str:
        """
        Return the path for messages: relative to the project if it is inside, with "/".
        """
        normal = Path(os.path.normpath(path))
        for candidate in (normal, real_path(path)):
            if candidate.is_relative_to(self.project_dir):
                return candidate.relative_to(self.project_dir).as_posix()
        return str(path)

    def blueprints(self) -> Mapping[str, list[Path]]:
        """
        Return the blueprint files under ``blueprints/`` by the name they declare.

        Only the line with the name is searched; a file is parsed when it is loaded.
        """
        by_name: dict[str, list[Path]] = {}
        for path in self.blueprint_files():
            try:
                text = read_regular(path).decode(errors="replace")
            except OSError:
                continue  # not readable: it is told when it is asked for
            name = _NAME_LINE.search(text)
            if name is not None and _STEPS_LINE.search(text):
                by_name.setdefault(name[1], []).append(path)
        return by_name

    def blueprint_files(self) -> list[Path]:
        """
        Return the files under ``blueprints/`` that a blueprint may be in.
        """
        directory = self.project_dir / BLUEPRINTS
        return sorted(path for path in directory.rglob("*") if path.suffix in _SUFFIXES)

    def find_blueprint(self, wanted: str) -> Path:
        """
        Return the blueprint file for ``wanted``: a path relative to ``directory`` or the project,
        or a name under ``blueprints/``.

        Raises Invalid if there is none, several have the name, or it lies outside the project.
        """
        path = None
        if "/" in wanted or os.sep in wanted or wanted.endswith(_SUFFIXES):
            places = (self.directory / wanted, self.project_dir / wanted)
            path = next((place for place in places if os.path.lexists(place)), None)
            if path is not None and not os.path.isfile(path):  # noqa: PTH113 - pathlib raises
                raise Invalid([Problem(f"blueprint {wanted!r} is not a regular file")])
        if path is None:
            by_name = self.blueprints()
            paths = by_name.get(wanted)
            paths = paths or [file for file in self.blueprint_files() if file.stem == wanted]
            if len(paths) > 1:
                shown = ", ".join(self.show(each) for each in paths)
                raise Invalid([Problem(f"several blueprints are called {wanted!r}: {shown}")])
            if not paths:
                stems = (file.stem for file in self.blueprint_files())
                names = [*by_name, *(stem for stem in stems if stem not in by_name)]
                hint = did_you_mean(wanted, names)
                hint = hint or f"there is none under {BLUEPRINTS}/; give the path of one"
                raise Invalid([Problem(f"there is no blueprint {wanted!r}", hint=hint)])
            path = paths[0]
        if not self.contains(path):
            hint = f"the project is {self.project_dir}; choose another with -C"
            raise Invalid([Problem(f"the blueprint {wanted!r} is outside of it", hint=hint)])
        normal = Path(os.path.normpath(path.absolute()))
        return normal if normal.is_relative_to(self.project_dir) else real_path(path)

    def contains(self, path: Path) -> bool:
        """
        Return whether a path lies in the project, wherever symbolic links lead.
        """
        return real_path(path).is_relative_to(self.project_dir)

    def module_directory(
        self, name: str, at: Location, *, base: Path, problems: Problems
    ) -> Path | None:
        """
        Return the directory of a module; None, with a problem, if it may not be used or does not
        exist.
        """
        path = Path(os.path.normpath(base / name))
        roots = (self.project_dir, *self.settings.module_roots)
        if not any(real_path(path).is_relative_to(root) for root in roots):
            hint = "allow its directory by `module_roots` in orchestrator.yaml"
            problems.add(f"the module {name!r} is outside of the project", at, hint)
            return None
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib raises for names that cannot be
            hint, above = f"{path.parent} does not exist either", path.parent
            if os.path.isdir(above):  # noqa: PTH112 - as above
                names = sorted(each.name for each in above.iterdir() if each.is_dir())
                hint = did_you_mean(path.name, names)
            problems.add(f"there is no module directory {name!r}", at, hint)
            return None
        return path

    @property
    def own_dir(self) -> Path:
        """
        The tool's own directory in the project.
        """
        return self.project_dir / ".orchestrator"

    def seen_stores(self) -> dict[str, frozenset[tuple[str, str]]]:
        """
        Return the operation stores that this machine has used, by URL, with the blueprints and
        environments whose entries it saw there.
        """
        stores = {}
        for file in sorted((self.own_dir / "seen").glob("*.json")):
            # A memory that cannot be read is none.
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                document = json.loads(read_regular(file))
                targets = (target.split("/") for target in document["targets"])
                places = frozenset((blueprint, name) for blueprint, name, *_ in targets)
                stores[str(document["store"])] = places
        return stores


def real_path(path: Path) -> Path:
    """
    Return the path with symbolic links resolved. A name that no file can have is returned as it is.
    """
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL character
        return path


class BlueprintSelection(Struct, frozen=True):
    """
    A blueprint by name or path, its environment, and the inputs of the command line: ``variables``
    are the NAME=VALUE of ``-i``, ``engine_option`` is that of ``--engine``.
    """

    blueprint: str
    environment: str | None = None
    variables: tuple[str, ...] = ()
    input_files: tuple[Path, ...] = ()
    engine_option: str | None = None


def project_context(directory: Path) -> ProjectContext:
    """
    Return the project of a directory. Raises Invalid if its settings are wrong.
    """
    return ProjectContext(
        directory=directory, settings=read_settings(directory, os.environ), environ=os.environ
    )
