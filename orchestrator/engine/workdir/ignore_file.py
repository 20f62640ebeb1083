"""
The files of a module that no snapshot holds: state, plans, variable values, caches, editors'
leavings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from pathlib import Path

from orchestrator.errors import Invalid, Location, Problem
from orchestrator.regular_files import read_regular

LOCK_FILE = ".terraform.lock.hcl"
IGNORE_FILE = ".terraformignore"

#: Names of files and directories, at any depth. What they hold is secret, or another directory's.
_NAMES = (
    ".terraform", ".git", ".orchestrator*", "*.tfstate", "*.tfstate.*", "*.tfplan", "tfplan",
    "*.tfvars", "*.tfvars.json", ".env*", "crash.log", "crash.*.log", ".terraformrc",
    "terraform.rc", "__pycache__", "*.pyc", "*~", "*.sw[op]", ".#*", "#*#", ".DS_Store", ".idea",
    ".vscode",
)  # fmt: skip
_EXCLUDED = re.compile("|".join(map(translate, _NAMES)))


def is_excluded(path: str) -> bool:
    """
    Whether a file at this relative path ("/" between parts) stays out of every snapshot.

    >>> is_excluded("envs/prod.tfvars"), is_excluded("templates/user-data.sh")
    (True, False)
    """
    return any(_EXCLUDED.match(part) for part in path.split("/"))


def is_plan(head: bytes) -> bool:
    """
    Whether a file that begins with ``head`` (36 bytes) is a saved plan: a zip whose first member is
    the plan. A plan may have any name and holds secrets.
    """
    return head.startswith(b"PK\x03\x04") and head[30:36] == b"tfplan"


def ignore_rules(directory: Path) -> Callable[[str], bool]:
    """
    Tells of a path relative to ``directory`` whether its ``.terraformignore`` names it.
    """
    path = directory / IGNORE_FILE
    try:
        text = read_regular(path).decode()
    except FileNotFoundError:
        return lambda _: False
    except OSError as exc:
        raise Invalid([Problem(f"cannot be read: {exc.strerror}", Location(str(path)))]) from exc
    except UnicodeDecodeError as exc:
        raise Invalid([Problem("is not UTF-8 text", Location(str(path)))]) from exc
    import pathspec

    try:
        return pathspec.GitIgnoreSpec.from_lines(text.splitlines()).match_file
    except ValueError as exc:  # a pattern such as a "!" alone
        raise Invalid([Problem(f"not valid: {exc}", Location(str(path)))]) from exc


_LOADED = re.compile(r"(?:.*\.(?:tf|tofu)(?:\.json)?|terraform\.tfvars(?:\.json)?|"
                     r".*\.auto\.tfvars(?:\.json)?)")  # fmt: skip


def is_loaded(name: str) -> bool:
    """
    Whether an engine reads a file of this name by itself when it finds it beside the module.
    """
    return _LOADED.fullmatch(name) is not None and not name.startswith((".", "#"))


_OVERRIDE = re.compile(r"(?:.*_)?override\.(?:tf|tofu)(?:\.json)?")


def is_override(name: str) -> bool:
    """
    Whether an engine lays a file of this name over the others of its module.
    """
    return _OVERRIDE.fullmatch(name) is not None and is_loaded(name)
