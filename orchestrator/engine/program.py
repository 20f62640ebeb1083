"""
The kind and version of an engine program, and whether they depend on the directory.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.errors import EngineFailed

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
    Kind and version as the program says them in a directory; ``version -json`` would not tell the
    kind. EngineFailed where it is no engine.
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


def varies(file: Path, directory: Path, asked_in: Path) -> bool:
    """
    Whether what is behind a program may be another engine in a directory than where it was asked:
    it is a version manager's shim (a script, or a link to the manager), or such managers heed
    another file there.
    """
    if fingerprint(file) is None:
        return True
    here, there = (directory, *directory.parents), (asked_in, *asked_in.parents)
    # Asked for every step: what both have in common decides nothing.
    return _nearest(p for p in here if p not in there) != _nearest(
        p for p in there if p not in here
    )


def version_file(directory: Path) -> Path | None:
    """
    The nearest file by which a version manager chooses the engine for a directory.
    """
    return _nearest((directory, *directory.parents))


def _nearest(places: Iterable[Path]) -> Path | None:
    files = (place / name for place in places for name in _VERSION_FILES)
    return next((file for file in files if file.exists()), None)


def fingerprint(file: Path) -> str | None:
    """
    What tells one build of a program from the next; None for shims: they stay the same while the
    version behind them changes.
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
