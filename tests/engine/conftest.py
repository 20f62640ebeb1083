"""
Fixtures that the engine tests share.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import attached
from tests.engine.postgres import Postgres, postgres_server
from tests.engine.programs import standin_tofu
from tests.engine.readback_project import Place
from tests.project import ENGINES, PROGRAMS, Project, is_within, require_engine
from tests.servers import ObjectServer, s3_server


@pytest.fixture(scope="module", params=PROGRAMS)
def engine(request: pytest.FixtureRequest) -> str:
    """
    The value of ``--engine``: each program on PATH; a named skip where it is missing. With the mark
    ``every_engine`` the embedded one too.
    """
    return require_engine(request.param)


@pytest.fixture(scope="module", params=ENGINES)
def each_engine(request: pytest.FixtureRequest) -> str:
    """
    The same of every engine, for stories whose rules rest on what each of them does.
    """
    return require_engine(request.param)


@pytest.fixture(params=["standin", "tofu"])
def tofu(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """
    The value of ``--engine`` for what only OpenTofu does: the program that stands for it, and
    OpenTofu itself; a named skip where that is missing.
    """
    if request.param == "standin":
        return str(standin_tofu(tmp_path / "bin"))
    return require_engine("tofu")


@pytest.fixture
def tmp_path(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """
    The same directory for each test, because what `Project.prepare` keeps holds paths. After the
    test it is moved to where it would have been, and what still runs in it is killed.
    """
    place = tmp_path_factory.getbasetemp() / "test"
    place.mkdir()
    yield place
    while running := [pid for pid in psutil.pids() if is_within(pid, place)]:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    place.rename(tmp_path / "test")


@pytest.fixture
def project(tmp_path: Path, engine: str) -> Project:
    """
    An empty project of that engine.
    """
    return Project(tmp_path / "project", engine=engine)


@pytest.fixture
def cloud(project: Project, tmp_path: Path) -> Iterator[Cloud]:
    """
    A cloud for the project, its provider in this process.
    """
    found = Cloud(tmp_path / "cloud.db")
    project.copy("fixtures/fakecloud/modules/server")
    shutil.move(project.root / "fixtures/fakecloud/modules/server", project.root / "modules/server")
    with attached(project, found, tmp_path):
        yield found


@pytest.fixture
def place(tmp_path: Path, engine: str) -> Iterator[Place]:
    """
    A place with a provider that is there already.
    """
    found = Place(tmp_path, engine)
    with found.cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as found:
        yield found


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server
