"""
Notes on a project before anything runs: files and variables that a plain engine would read and that
are not read here, and the missing name of the project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.loading.inputs import unread_variables
from orchestrator.loading.project import ProjectFiles, project_files
from orchestrator.project import ProjectContext
from orchestrator.regular_files import read_regular
from orchestrator.settings import DEFAULT_PROJECT

_VALUES = re.compile(r"terraform\.tfvars(\.json)?|.*\.auto\.tfvars(\.json)?")
_STATE = "terraform.tfstate"
_MAX_STATE = 64 * 1024 * 1024


def project_notes(
    project: ProjectContext, deployment: Deployment, *, current_modules: bool
) -> list[str]:
    """
    A sentence for each. ``current_modules`` tells that the modules are those of the project, not of
    a record.
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
    A sentence for each file of values, and each provider state, that lies in the directory of a
    module; whoever used the module before expects them to count.
    """
    modules = {step.module.directory: step.name for step in deployment.steps_and_hooks().values()}
    return [
        sentence
        for directory, step in sorted(modules.items())
        for sentence in _sentences(Path(directory), files.show(Path(directory)), step)
    ]


def _sentences(directory: Path, shown: str, step: str) -> Iterator[str]:
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
    for place in (directory / _STATE, *sorted((directory / f"{_STATE}.d").glob(f"*/{_STATE}"))):
        if _holds_objects(place):
            yield (
                f"{shown}/{place.relative_to(directory)} is a provider state of earlier use, with "
                f"objects in it, that step {step!r} does not know of: point its backend there and "
                "take it over with `orchestrator adopt`, or an apply makes everything again"
            )


def _holds_objects(path: Path) -> bool:
    try:
        return bool(json.loads(read_regular(path, limit=_MAX_STATE)).get("resources"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return path.is_file()  # it cannot be told: better named once too often
