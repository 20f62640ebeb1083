"""
The environment that engines run in: what silently changes where and what is applied stays out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE
from orchestrator.domain.blueprint.inputs import KEY_VARIABLE
from orchestrator.errors import Refused
from orchestrator.regular_files import read_regular

_OVERRIDES = re.compile(r"^[^#/\n]*\bdev_overrides\b", re.MULTILINE)
_FIXED = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}


def child_environment(
    environ: Mapping[str, str], *, allow: Collection[str] = (), gogc: int | None = None
) -> tuple[dict[str, str], list[str]]:
    """
    The environment for engine processes, and notes for the user on what was left out.

    ``gogc`` is what GOGC is where the caller's environment has none: providers inherit it. Refused
    for ``TF_WORKSPACE`` and ``TF_CLI_ARGS*`` unless ``allow`` names the variable.
    """
    refused = [name for name in sorted(environ) if _is_refused(name, environ[name], allow)]
    if refused:
        raise Refused(
            "environment",
            f"{', '.join(refused)} in the environment would silently change where or what is "
            "applied",
            hint="unset it, or name it under `allow_environment: [...]` in orchestrator.yaml",
        )
    dropped = [
        name for name in sorted(environ) if name == "TF_DATA_DIR" or name.startswith("TF_VAR_")
    ]
    notes = []
    if dropped:
        notes.append(f"not passed on to the engine: {', '.join(dropped)}")
    if environ.get("TF_REATTACH_PROVIDERS"):
        notes.append(
            "TF_REATTACH_PROVIDERS is set: the providers that it names are the running processes, "
            "whatever versions the modules and their lock files ask for"
        )
    overridden = [file for file, text in cli_configuration(environ) if _OVERRIDES.search(text)]
    if overridden:
        notes.append(
            f"dev_overrides in {overridden[0]}: a provider named there is the one built there, "
            "whatever versions the modules and their lock files ask for. `init` looks for it all "
            "the same: have any version of it in a mirror"
        )
    fixed = dict(_FIXED)
    config = environ.get("TF_CLI_CONFIG_FILE")
    if config and not Path(config).exists():
        notes.append(f"TF_CLI_CONFIG_FILE names a file that does not exist: {config}")
        fixed["TF_CLI_CONFIG_FILE"] = os.devnull  # the same to the engine, but it warns once: here
    inherited = {
        name: value
        for name, value in environ.items()
        if name not in dropped
        and not name.startswith(INPUT_VARIABLE)  # they reach the engine in a file
        and name != KEY_VARIABLE
    }
    garbage = {} if gogc is None or inherited.get("GOGC") else {"GOGC": str(gogc)}
    return inherited | fixed | garbage, notes


def cli_configuration(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    """
    The files of the CLI configuration that engines read, with their text.
    """
    named, home = environ.get("TF_CLI_CONFIG_FILE"), Path(environ.get("HOME", "/"))
    files = []
    for file in [Path(named)] if named else [home / ".tofurc", home / ".terraformrc"]:
        with contextlib.suppress(OSError):
            files.append((file, read_regular(file).decode(errors="replace")))
    return files


#: A setting of a key provider that is secret by its name, in HCL or JSON: quoted, or a heredoc.
_SECRET_SETTING = re.compile(
    r'\b\w*(?:passphrase|password|secret|token|key)"?\s*[=:]\s*'
    r'(?:("(?:[^"\\\n]|\\.)*")|<<-?(\w+)\n(.*?)\n\s*\2\b)',
    re.IGNORECASE | re.DOTALL,
)


def environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """
    What is secret in the environment of an engine by what it is for: passphrases and keys in
    ``TF_ENCRYPTION``.

    >>> environment_secrets({"TF_ENCRYPTION": 'key_provider "p" "k" { passphrase = "s3cret" }'})
    ['s3cret']
    >>> environment_secrets({"TF_ENCRYPTION": "passphrase = <<-END\\n  s3cret\\n  END\\n"})
    ['s3cret']
    """
    settings = _SECRET_SETTING.findall(environ.get("TF_ENCRYPTION", ""))
    return [_unquoted(quoted) if quoted else heredoc.strip() for quoted, _, heredoc in settings]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:  # an escape that only HCL has
        return text[1:-1]


def _is_refused(name: str, value: str, allow: Collection[str]) -> bool:
    if name in allow or not value:
        return False
    if name == "TF_WORKSPACE":
        return value != "default"
    return name == "TF_CLI_ARGS" or name.startswith("TF_CLI_ARGS_")
