"""
Notes on a project before anything runs: files that look like blueprints and are none, files and
variables that a plain engine would read and that are not read here, a project without a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.yaml_tree import parse_document
from orchestrator.errors import Invalid
from orchestrator.loading.inputs import unread_variables
from orchestrator.local_files import read_regular
from orchestrator.project import DEFAULT_PROJECT, ProjectContext

_BLUEPRINT_KEYS = ("version", "steps", "environments")


def stray_files(project: ProjectContext) -> list[str]:
    """
    Return the files under ``blueprints/`` that look like blueprints, or are damaged, and have no
    name to find them by: without name or steps, empty, binary.
    """
    named = {path for paths in project.blueprints().values() for path in paths}
    return [
        project.show(path)
        for path in project.blueprint_files()
        if path not in named and _is_stray(path)
    ]


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
    notes = unread_files(project, deployment) if current_modules else []
    if deployment.operations.is_shared and project.settings.project == DEFAULT_PROJECT:
        notes.append(
            "the project has no name (`project:` in orchestrator.yaml): in a shared store "
            "another project without one would meet the same records"
        )
    return notes + unread_variables(project.environ, deployment.inputs)


def unread_files(project: ProjectContext, deployment: Deployment) -> list[str]:
    """
    Return a note for each values file in a module's directory, and for each provider state there or
    beside a module that it calls: whoever used the module before expects them to count.
    """
    steps = list(deployment.steps_and_hooks().values())
    modules = {Path(step.module.directory): step.name for step in steps}
    called = {Path(path): step.name for step in steps for path in step.module.local_modules}
    sentences: list[str] = []
    for directory, step in sorted(modules.items()):
        shown = project.show(directory)
        with suppress(OSError):
            sentences += (
                f"{shown}/{name} is not read: give its values under the step's `inputs`, or to "
                "the blueprint's inputs with --input-file"
                for name in sorted(path.name for path in directory.iterdir())
                if _VALUES.fullmatch(name)
            )
        sentences += (
            f"{shown}/{state} is a provider state of earlier use, with objects in it, that step "
            f"{step!r} does not know of: point its backend there and adopt it "
            "with `orchestrator adopt`, or an apply creates everything again"
            for state in _left_states(directory)
        )
    for directory, step in sorted(called.items()):
        if directory not in modules:
            shown = project.show(directory)
            sentences += (
                f"{shown}/{state} is a provider state of earlier use, with objects "
                f"in it, that step {step!r}, whose module calls that one, does not know "
                "of: import them with `orchestrator import`, or an apply creates them again"
                for state in _left_states(directory)
            )
    return sentences


def _left_states(directory: Path) -> Iterator[Path]:
    """
    Yield the provider states with objects in a module's directory, relative to it.
    """
    for path in (directory / _STATE, *sorted((directory / f"{_STATE}.d").glob(f"*/{_STATE}"))):
        if _holds_objects(path):
            yield path.relative_to(directory)


def _holds_objects(path: Path) -> bool:
    try:
        return bool(json.loads(read_regular(path, limit=_MAX_STATE)).get("resources"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return path.is_file()  # it cannot be told: better named once too often
