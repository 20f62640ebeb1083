"""
The plugin cache under many inits at once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fixtures.fakecloud import install
from orchestrator.engine.process.environment import (
    child_environment,
    filling_plugin_cache,
    plugin_cache,
)
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import CallSpec, Init
from tests.engine.programs import real_engine
from tests.fakes.stops import Stop

MODULE = """
terraform {
  required_providers {
    fakecloud = { source = "test/fakecloud" }
  }
}
"""


def init(engine: TerraformEngine, place: Path, number: int) -> str:
    """
    What an init in a directory of its own says; empty where it ended well.
    """
    directory = place / f"root-{number}"
    directory.mkdir(exist_ok=True)
    (directory / "main.tf").write_text(MODULE)
    spec = CallSpec(directory, place / f"evidence-{number}-{os.urandom(4).hex()}", "init")
    result = engine.call(Init(), spec, stop=Stop(), observe=lambda _: None)
    return "" if result.exit_code == 0 else f"{result.stderr_text}{result.messages}"


@pytest.mark.parametrize("kind", ["terraform"])
def test_an_empty_cache_is_filled_by_many_inits_at_once(tmp_path: Path, kind: str) -> None:
    """
    All of two tools: each ends well, uses the package in the cache, and leaves nothing else there;
    a package that is in the cache is never written again.
    """
    info = real_engine(kind, tmp_path).info
    config = install(tmp_path / "mirror")
    environment, _ = child_environment({**os.environ, "TF_CLI_CONFIG_FILE": str(config)})
    cache = tmp_path / "plugins"
    engines = [TerraformEngine(info, environment=environment, plugin_cache=cache) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda n: init(engines[n % 2], tmp_path, n), range(8)))
    assert said == [""] * 8
    (package,) = cache.glob("*/test/fakecloud/*/*")
    made = package.lstat()
    again = [init(engines[0], tmp_path, number) for number in (0, 8)]

    assert again == [""] * 2
    assert [path.name for path in cache.iterdir()] == [package.relative_to(cache).parts[0]]
    links = [*tmp_path.glob("root-*/.terraform/providers/*/*/*/*/*")]
    assert len(links) == 9
    assert {link.readlink() for link in links} == {package}
    assert (package.lstat().st_ino, package.lstat().st_mtime_ns) == (
        made.st_ino,
        made.st_mtime_ns,
    )


def test_the_cache_of_the_user_is_used(tmp_path: Path) -> None:
    """
    By environment variable before the CLI configuration; a project that sets none has its own.
    """
    config = tmp_path / "rc"
    config.write_text('plugin_cache_dir = "$HOME/plugins"\n')
    home = {"HOME": str(tmp_path)}
    default = tmp_path / "default"

    def chosen(**environment: str) -> Path:
        with filling_plugin_cache(plugin_cache(home | environment, default), tmp_path) as told:
            return Path(told["TF_PLUGIN_CACHE_DIR"]).parent

    assert chosen() == default
    assert chosen(TF_CLI_CONFIG_FILE=str(config)) == tmp_path / "plugins"
    both = chosen(TF_CLI_CONFIG_FILE=str(config), TF_PLUGIN_CACHE_DIR=str(tmp_path / "mine"))
    assert both == tmp_path / "mine"


def test_a_cache_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    """
    The init goes on as the user has configured it.
    """
    (tmp_path / "file").touch()
    with filling_plugin_cache(tmp_path / "file" / "cache", tmp_path) as told:
        assert told == {}


def test_every_directory_of_a_new_cache_is_private(tmp_path: Path) -> None:
    """
    Also those above it that were not there yet, whatever the umask.
    """
    with filling_plugin_cache(tmp_path / "own" / "cache" / "providers", tmp_path):
        pass
    made = [tmp_path / "own", tmp_path / "own/cache", tmp_path / "own/cache/providers"]
    assert [oct(place.stat().st_mode & 0o777) for place in made] == ["0o700"] * 3
