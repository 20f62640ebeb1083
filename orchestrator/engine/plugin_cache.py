"""
The plugin cache: installed providers that several working directories, and tools, share.

Terraform and OpenTofu write into it in place, so that two inits at once break each other's, or a
provider that runs. Here each init fills a directory of its own, and what it installed is moved into
the cache by rename: what is in the cache never changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.engine.process.environment import cli_configuration

_VARIABLE = "TF_PLUGIN_CACHE_DIR"
_STAGING = ".filling-"
_ABANDONED = 24 * 3600.0  # seconds after which the staging directory of a killed init is removed
_SETTING = re.compile(r'^\s*plugin_cache_dir\s*=\s*"([^"]+)"', re.MULTILINE)
_LOCKED = re.compile(r'^provider "([^"]+)" \{\s*\n\s*version\s*=\s*"([^"]+)"', re.MULTILINE)
#: host/namespace/type/version/platform
_PACKAGES = "*/*/*/*/*"


class PluginCache:
    """
    A directory of packages by host, namespace, type, version and platform.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    @contextlib.contextmanager
    def filling(self, work_dir: Path) -> Iterator[Mapping[str, str]]:
        """
        The environment for an ``init`` in a working directory. It finds the cached packages that
        its lock file names; at the end what it installed is in the cache, and linked from there.

        Nothing is shared where the cache cannot be written.
        """
        try:
            # One by one: `parents=True` makes those in between with the permissions of the umask.
            for place in (*reversed(self._directory.parents), self._directory):
                place.mkdir(mode=0o700, exist_ok=True)
            self._remove_abandoned()
            staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self._directory))
        except OSError:
            yield {}
            return
        try:
            self._offer_locked(work_dir, staging)
            yield {_VARIABLE: str(staging)}
            self._publish(work_dir, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _offer_locked(self, work_dir: Path, staging: Path) -> None:
        try:
            text = (work_dir / ".terraform.lock.hcl").read_text(errors="replace")
        except OSError:
            return
        for address, version in _LOCKED.findall(text):
            cached = self._directory / address / version
            if not cached.is_dir():
                continue
            (staging / address / version).mkdir(parents=True)
            for package in cached.iterdir():
                (staging / address / version / package.name).symlink_to(package)

    def _publish(self, work_dir: Path, staging: Path) -> None:
        """
        Move what the working directory uses of ``staging`` into the cache, and link it from there.
        """
        for link in (work_dir / ".terraform" / "providers").glob(_PACKAGES):
            if not link.is_symlink():
                continue
            source = Path(os.path.normpath(link.parent / link.readlink()))
            if not source.is_relative_to(staging):
                continue
            package = self._directory / source.relative_to(staging)
            package.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not package.exists():
                # Another init may have been first: its package is as good.
                with contextlib.suppress(OSError):
                    source.rename(package)
            fresh = link.with_name(f".{link.name}.{os.getpid()}")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(package)
            fresh.replace(link)

    def _remove_abandoned(self) -> None:
        for path in self._directory.glob(f"{_STAGING}*"):
            with contextlib.suppress(OSError):  # removed by somebody else
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)


def plugin_cache(environment: Mapping[str, str], default: Path) -> PluginCache:
    """
    The cache that the user sets, by environment or CLI configuration, else one in ``default``.
    """
    chosen = environment.get(_VARIABLE) or _configured(environment)
    return PluginCache(Path(chosen) if chosen else default)


def _configured(environment: Mapping[str, str]) -> str | None:
    for _, text in cli_configuration(environment):
        match = _SETTING.search(text)
        if match is not None:
            return match[1].replace("$HOME", environment.get("HOME", "/"))
    return None
