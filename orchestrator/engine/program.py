"""
The kind and version of an engine program, which may depend on the directory.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from orchestrator.domain.blueprint.blueprint import Constraint, Deployment
from orchestrator.errors import EngineFailed, Invalid, Problem
from orchestrator.ports.engine import EngineInfo

Kind = Literal["terraform", "tofu"]

#: OpenTofu prints warnings about the CLI configuration before it.
_VERSION_LINE = re.compile(r"^(Terraform|OpenTofu) v(\d\S*)", re.MULTILINE)
KINDS: dict[str, Kind] = {"Terraform": "terraform", "OpenTofu": "tofu"}
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
    return KINDS[match[1]], match[2]


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


def _version_file_in(directory: Path) -> Path | None:
    """
    Return the file in a directory by which a version manager chooses the engine there.
    """
    files = (directory / name for name in _VERSION_FILES)
    return next((file for file in files if file.exists()), None)


def version_file(directory: Path) -> Path | None:
    """
    Return the nearest file by which a version manager chooses the engine for a directory.
    """
    files = map(_version_file_in, (directory, *directory.parents))
    return next((file for file in files if file is not None), None)


def fingerprint(file: Path) -> str | None:
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


class VersionManager:
    """
    Tells in which directories a program may be another engine than where its version was asked: it
    is a version manager's shim (a script, or a link to the manager), or another version file
    applies there.
    """

    def __init__(self, program: Path, asked_in: Path) -> None:
        self._program = program
        self._asked_in = asked_in
        # Asked for every step: what lies above their directories is looked at once.
        self._version_file = cache(version_file)

    def may_differ_in(self, directory: Path) -> bool:
        """
        Return whether the program may be another engine in a directory.
        """
        applies = _version_file_in(directory) or self._version_file(directory.parent)
        return self._is_shim or applies != self._version_file(self._asked_in)

    @cached_property
    def _is_shim(self) -> bool:
        return fingerprint(self._program) is None


# Version constraints as Terraform reads them, and the check of an engine against them.


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
    problems: dict[Problem, None] = {}
    steps = deployment.steps_and_hooks().values()
    infos = {item: info_in(Path(item)) for item in {step.module.directory for step in steps}}
    for step in steps:
        info = infos[step.module.directory]
        if step.module.read_for not in (None, info.kind):
            message = (
                f"module {step.module_ref} of step {step.name} has .tofu files, and was read as "
                f"{step.module.read_for} reads it; the engine is {info.kind} {info.version}"
            )
            hint = f"say `engine: {{kind: {info.kind}}}` in the blueprint, or --engine {info.kind}"
            problems[Problem(message, hint=hint)] = None
        owner = f"module {step.module_ref} of step {step.name}"
        constraints = [
            (owner, constraint)
            for constraint in step.module.required_versions
            if not _is_over(info, constraint)
        ]
        if deployment.engine.version is not None:
            constraints.insert(0, (f"blueprint {deployment.blueprint}", deployment.engine.version))
        problems |= dict.fromkeys(check_versions(info, constraints))
    if problems:
        raise Invalid(list(problems))


def _is_over(info: EngineInfo, constraint: Constraint) -> bool:
    """
    Return whether the engine is too new for the constraint to apply.
    """
    until = constraint.until if info.kind == "tofu" else None
    return until is not None and satisfies(info.version, f">= {until}")


def check_versions(
    info: EngineInfo, constraints: Sequence[tuple[str, Constraint]]
) -> list[Problem]:
    """
    Return the version constraints that this engine violates, as problems; ``constraints`` are pairs
    of owner and constraint.
    """
    problems = []
    for owner, constraint in constraints:
        try:
            fits = satisfies(info.version, constraint.text)
        except BadConstraint as exc:
            problems.append(
                Problem(f"{owner}: version constraint {constraint.text!r}: {exc}", constraint.at)
            )
            continue
        if not fits:
            problems.append(
                Problem(
                    f"{owner} requires {info.kind} {constraint.text}; "
                    f"the engine is {info.kind} {info.version} ({info.why})",
                    constraint.at,
                    hint="choose another engine with --engine PATH, or change the constraint",
                )
            )
    return problems


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
