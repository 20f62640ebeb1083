"""
Finds the steps that changed since a git revision, by the files that changed (uncommitted and new
ones included).
"""

from __future__ import annotations

import glob
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.yaml_tree import parse_document
from orchestrator.errors import Invalid, Usage
from orchestrator.project import FILE

# Which steps a change of files touches.


class ChangedParts(Struct, frozen=True):
    """
    The changed parts of a blueprint file: steps and inputs by name, or parts that all steps depend
    on.
    """

    steps: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    everything: bool = False


def changed_parts(before: object, after: object, environment: str) -> ChangedParts:
    """
    Return the differences between two contents of a blueprint file that concern an environment and
    those it extends. If the environment is new, everything in it is.
    """
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ChangedParts(everything=True)
    old, new = dict(before), dict(after)
    parts = [_named(old.pop("steps", None), new.pop("steps", None))]
    inputs = _named(old.pop("inputs", None), new.pop("inputs", None))
    was, now = _map(old.pop("environments", None)), _map(new.pop("environments", None))
    everything = any(old.get(key) != new.get(key) for key in {*old, *new} - {"description"})
    everything = everything or (environment in was) != (environment in now)
    for name in {*_chain(was, environment), *_chain(now, environment)}:
        one, other = dict(_map(was.get(name))), dict(_map(now.get(name)))
        parts.append(_named(one.pop("steps", None), other.pop("steps", None)))
        inputs |= _named(one.pop("inputs", None), other.pop("inputs", None))
        everything = everything or one != other
    return ChangedParts(frozenset().union(*parts), inputs, everything)


def affected_steps(
    deployment: Deployment, changed: Sequence[Path], parts: ChangedParts
) -> Mapping[str, tuple[str, ...]]:
    """
    Return the steps that a change of files, and of parts of the blueprint file, affects and their
    dependents, in order, each with the reasons.
    """
    files = _known_paths(deployment, changed)
    settings_changed = (Path(deployment.project_dir) / FILE).resolve() in changed
    reasons: dict[str, dict[str, None]] = {}
    for name, step in deployment.steps.items():
        why = list(_changed_files(deployment, step, files))
        if settings_changed:
            why.append(f"{FILE} changed")
        if parts.everything:
            why.append("the blueprint changed")
        elif name in parts.steps:
            why.append("its part of the blueprint changed")
        why += (f"input {item} changed" for item in sorted(_inputs(step) & parts.inputs))
        reasons[name] = dict.fromkeys(why)
    touched = {name for name, why in reasons.items() if why}
    affected: dict[str, tuple[str, ...]] = {}
    for name in deployment.graph.order:
        upstream = sorted(touched & deployment.graph.upstreams(name))
        needs = (f"needs {', '.join(upstream)}",) if upstream else ()
        if reasons[name] or needs:
            affected[name] = (*reasons[name], *needs)
    return affected


def _changed_files(deployment: Deployment, step: Step, files: Iterable[str]) -> Iterator[str]:
    """
    Yield the reasons of the files (a directory if git reports it as one) that belong to a step's
    modules or that its inputs come from.
    """
    places = list(module_places(step))
    for file in files:
        shown = file.removeprefix(f"{deployment.project_dir}/")
        if any(f"{file}/".startswith(f"{p}/") or f"{p}/".startswith(f"{file}/") for p in places):
            yield f"{shown} changed"
        for name in sorted(_inputs(step)):
            value = deployment.inputs.get(name)
            if value is not None and value.origin in (shown, file):
                yield f"{shown} changed, which input {name} comes from"


def _known_paths(deployment: Deployment, changed: Sequence[Path]) -> Iterable[str]:
    """
    Return the files, without the blueprint's, under every path that the deployment knows them by:
    the project, and each module, may be reached through a symbolic link.
    """
    places = {module for step in deployment.steps.values() for module in module_places(step)}
    targets = {
        module: Path(module).resolve() for module in sorted({*places, deployment.project_dir})
    }
    blueprint, files = _blueprint(deployment), dict[str, None]()
    for file in changed:
        common = [
            str(Path(module) / file.relative_to(target))
            for module, target in targets.items()
            if file.is_relative_to(target)
        ]
        files.update(dict.fromkeys(common if file != blueprint else ()))
        files.update(dict.fromkeys(() if common else [str(file)]))
    return files


def module_places(step: Step) -> Iterator[str]:
    """
    Yield the directories that the modules of a step and its hooks consist of.
    """
    for root in step.roots():
        yield from (root.module.directory, *root.module.local_modules)
        if root.module.package is not None:
            yield root.module.package


def _inputs(step: Step) -> frozenset[str]:
    templates = (*step.inputs.values(), *step.providers.values(), step.backend.config)
    return frozenset().union(*(template.names("input") for template in templates))


def _chain(environments: Mapping[object, object], name: object) -> Iterator[object]:
    """
    Yield an environment and those that it extends; a cycle is followed once.
    """
    seen: set[object] = set()
    while name is not None and name not in seen:
        seen.add(name)
        yield name
        name = _map(environments.get(name)).get("extends")


def _named(before: object, after: object) -> frozenset[str]:
    """
    Return the keys with different values.
    """
    old, new = _map(before), _map(after)
    return frozenset(str(name) for name in {*old, *new} if old.get(name) != new.get(name))


def _map(value: object) -> dict[object, object]:
    return value if isinstance(value, dict) else {}


_PATIENCE = 60.0  # seconds for one question to git


def affected_since(revision: str, deployment: Deployment) -> Mapping[str, tuple[str, ...]]:
    """
    Return the steps that what changed since a revision affects, with the reasons. Raises Usage if
    git does not know it, or there is no repository.
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
    blueprint, parts = _blueprint(deployment), ChangedParts()
    if blueprint in changed:
        try:
            before = _git(top, "show", f"{commit}:{blueprint.relative_to(top).as_posix()}")
            old = parse_document(before, file="before").plain
            now = parse_document(blueprint.read_text(encoding="utf-8"), file="now").plain
            parts = changed_parts(old, now, deployment.environment)
        except (Usage, Invalid, OSError, ValueError):  # it was not there, or was no blueprint
            parts = ChangedParts(everything=True)
    return affected_steps(deployment, changed, parts)


def affected_by(files: Sequence[Path], deployment: Deployment) -> Mapping[str, tuple[str, ...]]:
    """
    Return the steps that a change of these files affects, with the reasons. Which part of a
    blueprint file changed is not known. Raises Usage for a pattern, which would be taken for a file
    that affects nothing.
    """
    for file in files:
        if glob.has_magic(str(file)) and not file.exists():
            raise Usage(f"{file} is no file", hint="leave the pattern to the shell: no quotes")
    changed = [file.resolve() for file in files]
    parts = ChangedParts(everything=_blueprint(deployment) in changed)
    return affected_steps(deployment, changed, parts)


def _blueprint(deployment: Deployment) -> Path:
    return (Path(deployment.project_dir) / deployment.path).resolve()


def _git(directory: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ("git", "-C", str(directory), *arguments),
            capture_output=True,
            text=True,
            errors="backslashreplace",  # a name of a file may be anything
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Usage(f"git failed: {exc}") from exc
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Usage(
            f"git failed: {lines[0]}",
            hint="in a shallow clone, fetch the revision first",
        )
    return done.stdout
