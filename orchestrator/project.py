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
from typing import TYPE_CHECKING

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import (
    STORE_URLS,
    StoreLocation,
    store_url_problem,
)
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document
from orchestrator.domain.target import NAME, is_name
from orchestrator.domain.text import is_text, seconds, shown_text
from orchestrator.errors import Invalid, Problem
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
    root = next((each for each in ancestry if (each / "blueprints").is_dir()), here)
    return Settings(project_dir=root, trust=read_trust(environ or {}, root))


def _parse(root: Path, environ: Mapping[str, str]) -> Settings:
    file, trust = root / FILE, read_trust(environ, root)
    text = read_text(file, shown=FILE)
    problems = Problems()
    fields = problems.fields(parse_document(text, file=FILE), _KEYS, what="the settings")
    settings = Settings(
        project_dir=root,
        file=file,
        project=_project(fields.get("project"), problems),
        operations_url=_operations(fields.get("operations"), root, trust, environ, problems),
        engine=_engine(fields.get("engine"), trust, problems),
        allow_environment=_allowed(fields.get("allow_environment"), problems),
        module_roots=_module_roots(fields.get("module_roots"), root, trust, problems),
        jobs=_positive(fields.get("jobs"), DEFAULT_JOBS, problems, what="jobs"),
        timeout=_seconds(fields.get("timeout"), problems, what="timeout"),
        grace=_seconds(fields.get("grace"), problems, what="grace"),
        store_grace=_seconds(fields.get("store_grace"), problems, what="store_grace"),
        settle_seconds=_settle(fields.get("settle_seconds"), problems),
        gogc=_positive(fields.get("gogc"), DEFAULT_GOGC, problems, what="gogc"),
        trust=trust,
    )
    problems.check()
    return settings


def _text(node: Node | None, problems: Problems, *, what: str) -> str | None:
    return None if node is None else problems.text(node, what=what) or None


def _project(node: Node | None, problems: Problems) -> str:
    name = _text(node, problems, what="project")
    if node is not None and name is not None and not is_name(name):
        problems.add(f"project {name!r} must match {NAME.pattern}", node.at)
    return name or DEFAULT_PROJECT


def _engine(node: Node | None, trust: Trust, problems: Problems) -> str | None:
    name = _text(node, problems, what="engine")
    if node is not None and name is not None and os.sep in name:
        trust.check_command(f"the engine {name!r}", node.at, problems)
    return name


def _operations(
    node: Node | None, root: Path, trust: Trust, environ: Mapping[str, str], problems: Problems
) -> str | None:
    if node is None:
        return None
    fields = problems.fields(node, ("url",), what="operations")
    if "url" not in fields:
        return None
    url = problems.url(fields["url"], what="operations.url") or None
    if url is not None and (wrong := store_url_problem(url, environ)) is not None:
        problems.add(f"operations.url: {wrong}", fields["url"].at, hint=f"use {STORE_URLS}")
    elif url is not None:
        trust.check_store(url, root, fields["url"].at, problems)
    return url


def _allowed(node: Node | None, problems: Problems) -> frozenset[str]:
    if node is None:
        return frozenset()
    entries = problems.entries(node, what="allow_environment")
    for name, item in entries:
        if not _ALLOWABLE.fullmatch(name):
            hint = "only TF_WORKSPACE and TF_CLI_ARGS or TF_CLI_ARGS_<command> are refused"
            problems.add(f"{name!r} needs no permission, or cannot be given one", item.at, hint)
    return frozenset(name for name, _ in entries)


def _module_roots(
    node: Node | None, root: Path, trust: Trust, problems: Problems
) -> tuple[Path, ...]:
    if node is None:
        return ()
    directories = []
    for name, item in problems.entries(node, what="module_roots"):
        directory = Path(os.path.realpath(root / name))
        if not directory.is_dir():
            problems.add(f"{name!r} is not a directory", item.at)
        trust.check_module_root(directory, root, item.at, problems)
        directories.append(directory)
    return tuple(directories)


def _positive(node: Node | None, default: int, problems: Problems, *, what: str) -> int:
    if node is None:
        return default
    if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < 1:
        problems.add(f"{what} must be a whole number from 1", node.at)
        return 1
    return node.value


def _settle(node: Node | None, problems: Problems) -> float:
    if node is not None and node.value == 0 and not isinstance(node.value, bool):
        return 0.0
    seconds = _seconds(node, problems, what="settle_seconds")
    return DEFAULT_SETTLE if seconds is None else seconds


def _seconds(node: Node | None, problems: Problems, *, what: str) -> float | None:
    if node is None:
        return None
    try:
        return seconds(node.plain)
    except ValueError as exc:
        problems.add(f"{what}: {exc}", node.at)
        return None


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
