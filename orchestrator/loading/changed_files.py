"""
What changed in the project's repository since a revision, uncommitted and new files included.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator.domain.blueprint.affected_steps import (
    Change,
    ChangedParts,
    changed_parts,
    module_places,
)
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.yaml_tree import parse_document
from orchestrator.errors import Invalid, Usage
from orchestrator.settings import FILE

_PATIENCE = 60.0  # seconds for one question to git


def changes_since(revision: str, deployment: Deployment) -> Change:
    """
    What changed since a revision. Usage where git does not know it, or there is no repository.
    """
    project = Path(deployment.project_dir)
    top = Path(_git(project, "rev-parse", "--show-toplevel").strip())
    verify = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    commit = _git(project, *verify).strip()
    # Without renames: a module that moved away has changed where it was.
    diff = _git(top, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    new = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    names = sorted({name for text in (diff, new) for name in text.split("\0") if name})
    changed = [(top / name).resolve() for name in names]
    blueprint = _blueprint(deployment)
    parts = ChangedParts()
    if blueprint in changed:
        parts = _blueprint_parts(top, commit, blueprint, deployment.environment)
    return _change(deployment, changed, parts)


def changes_of(files: Sequence[Path], deployment: Deployment) -> Change:
    """
    The change of these files; of a blueprint file nobody knows which part of it.
    """
    changed = [file.resolve() for file in files]
    return _change(deployment, changed, ChangedParts(everything=_blueprint(deployment) in changed))


def _change(deployment: Deployment, changed: Sequence[Path], parts: ChangedParts) -> Change:
    """
    The change of these files, by all names that the deployment has for them: the project, and each
    of its modules, may lie behind a link.
    """
    project, blueprint = Path(deployment.project_dir), _blueprint(deployment)
    places = {place for step in deployment.steps.values() for place in module_places(step)}
    targets = {place: Path(place).resolve() for place in sorted({*places, str(project)})}
    files: dict[str, None] = {}
    for file in changed:
        named = [
            str(Path(place) / file.relative_to(target))
            for place, target in targets.items()
            if file.is_relative_to(target)
        ]
        files.update(dict.fromkeys(named if file != blueprint else ()))
        files.update(dict.fromkeys(() if named else [str(file)]))
    settings = (FILE,) if (project / FILE).resolve() in changed else ()
    return Change(tuple(files), parts, settings)


def _blueprint(deployment: Deployment) -> Path:
    return (Path(deployment.project_dir) / deployment.path).resolve()


def _blueprint_parts(top: Path, commit: str, blueprint: Path, environment: str) -> ChangedParts:
    try:
        before = _git(top, "show", f"{commit}:{blueprint.relative_to(top).as_posix()}")
        old = parse_document(before, file="before").plain
        new = parse_document(blueprint.read_text(encoding="utf-8"), file="now").plain
    except (Usage, Invalid, OSError, ValueError):
        return ChangedParts(everything=True)  # it was not there, or was no blueprint
    return changed_parts(old, new, environment)


def _git(directory: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", "-C", str(directory), *arguments),
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Usage(f"git could not be asked what changed: {exc}") from exc
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Usage(
            f"git could not be asked what changed: {lines[0]}",
            hint="in a shallow clone, fetch the revision first",
        )
    return done.stdout
