"""
The files of a project: where blueprints are, how they are named, which paths stay inside.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.domain.text import did_you_mean
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.inputs import unread_variables
from orchestrator.local_files import read_regular
from orchestrator.project import DEFAULT_PROJECT, ProjectContext

BLUEPRINTS = "blueprints"
_SUFFIXES = (".yaml", ".yml")
_NAME_LINE = re.compile(r"^name:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_STEPS_LINE = re.compile(r"^(?:steps|\"steps\")[ \t]*:", re.MULTILINE)


class ProjectFiles(Struct, frozen=True):
    """
    A project directory (absolute); ``module_roots`` are further directories for modules.
    """

    project_dir: Path
    module_roots: tuple[Path, ...] = ()

    def show(self, path: Path) -> str:
        """
        Return the path for messages: relative to the project if it is inside, with "/".
        """
        normal = Path(os.path.normpath(path))
        for candidate in (normal, _real(path)):
            if candidate.is_relative_to(self.project_dir):
                return candidate.relative_to(self.project_dir).as_posix()
        return str(path)

    def blueprints(self) -> Mapping[str, list[Path]]:
        """
        Return the blueprint files under ``blueprints/`` by the name they declare.

        Only the line with the name is searched; a file is parsed when it is loaded.
        """
        by_name: dict[str, list[Path]] = {}
        for path in self._files():
            try:
                text = read_regular(path).decode(errors="replace")
            except OSError:
                continue  # not readable: it is told when it is asked for
            name = _NAME_LINE.search(text)
            if name is not None and _STEPS_LINE.search(text):
                by_name.setdefault(name[1], []).append(path)
        return by_name

    def _files(self) -> Iterable[Path]:
        directory = self.project_dir / BLUEPRINTS
        return sorted(path for path in directory.rglob("*") if path.suffix in _SUFFIXES)

    def stray_files(self) -> list[str]:
        """
        Return the files under ``blueprints/`` that look like blueprints, or are damaged, and have
        no name to find them by: without name or steps, empty, binary.
        """
        by_name = {path for paths in self.blueprints().values() for path in paths}
        return [
            self.show(path) for path in self._files() if path not in by_name and _is_stray(path)
        ]

    def find(self, wanted: str, *, directory: Path) -> Path:
        """
        Return the blueprint file for ``wanted``: a path relative to ``directory`` or the project,
        or a name under ``blueprints/``.

        Raises Invalid if there is none, several have the name, or it lies outside the project.
        """
        if "/" in wanted or os.sep in wanted or wanted.endswith(_SUFFIXES):
            for base in (directory, self.project_dir):
                path = base / wanted
                if os.path.isfile(path):  # noqa: PTH113 - pathlib raises for names that cannot be
                    return self._inside(path, wanted)
                if os.path.lexists(path):
                    raise Invalid([Problem(f"blueprint {wanted!r} is not a regular file")])
        by_name = self.blueprints()
        paths = by_name.get(wanted) or [path for path in self._files() if path.stem == wanted]
        if len(paths) == 1:
            return self._inside(paths[0], wanted)
        if paths:
            shown = ", ".join(self.show(path) for path in paths)
            raise Invalid([Problem(f"several blueprints are called {wanted!r}: {shown}")])
        names = [*by_name, *(path.stem for path in self._files() if path.stem not in by_name)]
        hint = did_you_mean(wanted, names)
        hint = hint or f"there is none under {BLUEPRINTS}/; give the path of one"
        raise Invalid([Problem(f"there is no blueprint {wanted!r}", hint=hint)])

    def _inside(self, path: Path, wanted: str) -> Path:
        normal = Path(os.path.normpath(path.absolute()))
        if not _real(path).is_relative_to(_real(self.project_dir)):
            hint = f"the project is {self.project_dir}; choose another with -C"
            raise Invalid([Problem(f"the blueprint {wanted!r} is outside of it", hint=hint)])
        return normal if normal.is_relative_to(self.project_dir) else _real(path)

    def check_unique(self, name: str, path: Path, at: Location, problems: Problems) -> None:
        """
        Add a problem if another blueprint of the project has the same name.
        """
        for other in self.blueprints().get(name, ()):
            if _real(other) != _real(path):
                message = f"the blueprint {self.show(other)} is called {name!r} too"
                problems.add(message, at, "two of one name would share their records")

    def confined(
        self, name: str, at: Location, *, base: Path, problems: Problems, what: str
    ) -> Path | None:
        """
        Return the path of ``name`` relative to ``base``; None, with a problem, if it lies outside
        the project.
        """
        path = Path(os.path.normpath(base / name))
        if not _real(path).is_relative_to(_real(self.project_dir)):
            problems.add(f"{what} {name!r} is outside of the project", at)
            return None
        return path

    def module_directory(
        self, name: str, at: Location, *, base: Path, problems: Problems
    ) -> Path | None:
        """
        Return the directory of a module; None, with a problem, if it may not be used or does not
        exist.
        """
        path = Path(os.path.normpath(base / name))
        allowed = (_real(self.project_dir), *self.module_roots)
        if not any(_real(path).is_relative_to(root) for root in allowed):
            hint = "allow its directory by `module_roots` in orchestrator.yaml"
            problems.add(f"the module {name!r} is outside of the project", at, hint)
            return None
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib raises for names that cannot be
            problems.add(f"there is no module directory {name!r}", at, _neighbours(path))
            return None
        return path


def project_files(project: ProjectContext) -> ProjectFiles:
    return ProjectFiles(project.project_dir.resolve(), project.settings.module_roots)


_BLUEPRINT_KEYS = ("version", "steps", "environments")


def _is_stray(path: Path) -> bool:
    """
    Return whether a YAML file without a name was probably meant as a blueprint, and holds no input
    values.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
        node = parse_document(text, file=path.name)
    except (OSError, UnicodeDecodeError, Invalid):
        return True
    return node.kind != "map" or any(key in node.fields for key in _BLUEPRINT_KEYS)


def _real(path: Path) -> Path:
    """
    Return the path with symbolic links resolved. A name that no file can have is returned as it is.
    """
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL character
        return path


def _neighbours(path: Path) -> str:
    if not os.path.isdir(path.parent):  # noqa: PTH112 - as above
        return f"{path.parent} does not exist either"
    return did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir() if p.is_dir()))


# Notes on a project before anything runs: files and variables that a plain engine would read and
# that are not read here, and the missing name of the project.


_VALUES = re.compile(r"terraform\.tfvars(\.json)?|.*\.auto\.tfvars(\.json)?")
_STATE = "terraform.tfstate"
_MAX_STATE = 64 * 1024 * 1024


def project_notes(
    project: ProjectContext, deployment: Deployment, *, current_modules: bool
) -> list[str]:
    """
    Return notes for the user. ``current_modules`` is true if the modules are those of the project,
    not recorded ones.
    """
    notes = unread_files(deployment, project_files(project)) if current_modules else []
    if deployment.operations.is_shared and project.settings.project == DEFAULT_PROJECT:
        notes.append(
            "the project has no name (`project:` in orchestrator.yaml): in a shared store "
            "another project without one would meet the same records"
        )
    return notes + unread_variables(project.environ, deployment.inputs)


def unread_files(deployment: Deployment, files: ProjectFiles) -> list[str]:
    """
    Return a note for each values file in a module's directory, and for each provider state there or
    beside a module that it calls: whoever used the module before expects them to count.
    """
    steps = list(deployment.steps_and_hooks().values())
    modules = {Path(step.module.directory): step.name for step in steps}
    called = {Path(path): step.name for step in steps for path in step.module.local_modules}
    sentences: list[str] = []
    for directory, step in sorted(modules.items()):
        shown = files.show(directory)
        sentences += _unread_values(directory, shown)
        sentences += (
            f"{shown}/{state} is a provider state of earlier use, with objects in it, that step "
            f"{step!r} does not know of: point its backend there and adopt it "
            "with `orchestrator adopt`, or an apply creates everything again"
            for state in _left_states(directory)
        )
    for directory, step in sorted(called.items()):
        if directory not in modules:
            sentences += (
                f"{files.show(directory)}/{state} is a provider state of earlier use, with objects "
                f"in it, that step {step!r}, whose module calls that one, does not know "
                "of: import them with `orchestrator import`, or an apply creates them again"
                for state in _left_states(directory)
            )
    return sentences


def _unread_values(directory: Path, shown: str) -> Iterator[str]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return
    for name in names:
        if _VALUES.fullmatch(name):
            yield (
                f"{shown}/{name} is not read: give its values under the step's `inputs`, or to "
                "the blueprint's inputs with --input-file"
            )


def _left_states(directory: Path) -> Iterator[Path]:
    """
    Yield the provider states with objects in a module's directory, relative to it.
    """
    for place in (directory / _STATE, *sorted((directory / f"{_STATE}.d").glob(f"*/{_STATE}"))):
        if _holds_objects(place):
            yield place.relative_to(directory)


def _holds_objects(path: Path) -> bool:
    try:
        return bool(json.loads(read_regular(path, limit=_MAX_STATE)).get("resources"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return path.is_file()  # it cannot be told: better named once too often
