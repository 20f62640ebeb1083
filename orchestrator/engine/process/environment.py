"""
The environment variables of engine processes, without those that would silently change where and
what is applied.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE
from orchestrator.domain.blueprint.inputs import KEY_VARIABLE
from orchestrator.errors import Refused
from orchestrator.local_files import make_private, read_regular

_OVERRIDES = re.compile(r"^[^#/\n]*\bdev_overrides\b", re.MULTILINE)
_FIXED = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}


def child_environment(
    environ: Mapping[str, str], *, allow: Collection[str] = (), gogc: int | None = None
) -> tuple[dict[str, str], list[str]]:
    """
    Return the environment for engine processes, and notes for the user on what was left out.

    ``gogc`` sets GOGC if the caller's environment does not: providers inherit it. Raises Refused
    for ``TF_WORKSPACE`` and ``TF_CLI_ARGS*`` unless ``allow`` names the variable.
    """
    refused, dropped = [], []
    for name, value in sorted(environ.items()):
        changes = name == "TF_CLI_ARGS" or name.startswith("TF_CLI_ARGS_")
        if name == "TF_WORKSPACE":
            changes = value != "default"
        if value and changes and name not in allow:
            refused.append(name)
        if name == "TF_DATA_DIR" or name.startswith("TF_VAR_"):
            dropped.append(name)
    if refused:
        raise Refused(
            "environment",
            f"{', '.join(refused)} in the environment would silently change where or what is "
            "applied",
            hint="unset it, or name it under `allow_environment: [...]` in orchestrator.yaml",
        )
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
    Return the CLI configuration files that engines read, with their text.
    """
    configured, home = environ.get("TF_CLI_CONFIG_FILE"), Path(environ.get("HOME", "/"))
    files = []
    for file in [Path(configured)] if configured else [home / ".tofurc", home / ".terraformrc"]:
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
    Return the secrets in an engine's environment: passphrases and keys in ``TF_ENCRYPTION``.

    >>> environment_secrets({"TF_ENCRYPTION": 'key_provider "p" "k" { passphrase = "s3cret" }'})
    ['s3cret']
    >>> environment_secrets({"TF_ENCRYPTION": "passphrase = <<-END\\n  s3cret\\n  END\\n"})
    ['s3cret']
    """
    settings = _SECRET_SETTING.findall(environ.get("TF_ENCRYPTION", ""))
    return [_unquote(quoted) if quoted else heredoc.strip() for quoted, _, heredoc in settings]


def _unquote(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:  # an escape that only HCL has
        return text[1:-1]


# The plugin cache: installed providers that several working directories, and tools, share.
#
# Terraform and OpenTofu write into it in place, so that two inits at once break each other's, or
# a provider that runs. Here each init fills a directory of its own, and what it installed is
# moved into the cache by rename: what is in the cache never changes.


_VARIABLE = "TF_PLUGIN_CACHE_DIR"
_STAGING = ".filling-"
_ABANDONED = 24 * 3600.0  # seconds after which the staging directory of a killed init is removed
_SETTING = re.compile(r'^\s*plugin_cache_dir\s*=\s*"([^"]+)"', re.MULTILINE)
_LOCKED = re.compile(r'^provider "([^"]+)" \{\s*\n\s*version\s*=\s*"([^"]+)"', re.MULTILINE)
#: host/namespace/type/version/platform
_PACKAGES = "*/*/*/*/*"


@contextlib.contextmanager
def filling_plugin_cache(cache: Path, work_dir: Path) -> Iterator[Mapping[str, str]]:
    """
    Yield the environment for an ``init`` in a working directory. The init finds the packages that
    its lock file names in the ``cache``; afterwards, what it installed is moved there, by host,
    namespace, type, version and platform, and linked.

    If the cache is not writable, nothing is shared.
    """
    cache = cache.absolute()
    try:
        make_private(cache)
        for path in cache.glob(f"{_STAGING}*"):
            with contextlib.suppress(OSError):  # removed by somebody else
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache))
    except OSError:
        yield {}
        return
    try:
        _offer_locked(cache, work_dir, staging)
        yield {_VARIABLE: str(staging)}
        _publish(cache, work_dir, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _offer_locked(cache: Path, work_dir: Path, staging: Path) -> None:
    try:
        text = (work_dir / ".terraform.lock.hcl").read_text(errors="replace")
    except OSError:
        return
    for address, version in _LOCKED.findall(text):
        cached = cache / address / version
        if cached.is_dir():
            offered = staging / address / version
            offered.mkdir(parents=True)
            for package in cached.iterdir():
                (offered / package.name).symlink_to(package)


def _publish(cache: Path, work_dir: Path, staging: Path) -> None:
    """
    Move the packages that the working directory uses from ``staging`` to the cache, and link them.
    """
    for link in (work_dir / ".terraform" / "providers").glob(_PACKAGES):
        if not link.is_symlink():
            continue
        source = Path(os.path.normpath(link.parent / link.readlink()))
        if not source.is_relative_to(staging):
            continue
        package = cache / source.relative_to(staging)
        package.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not package.exists():
            # Another init may have been first: its package is as good.
            with contextlib.suppress(OSError):
                source.rename(package)
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(package)
        fresh.replace(link)


def plugin_cache(environment: Mapping[str, str], default: Path) -> Path:
    """
    Return the cache that the user configured by environment or CLI configuration, else one in
    ``default``.
    """
    chosen = environment.get(_VARIABLE)
    for _, text in () if chosen else cli_configuration(environment):
        match = _SETTING.search(text)
        if match is not None:
            chosen = match[1].replace("$HOME", environment.get("HOME", "/"))
            break
    return Path(chosen) if chosen else default
