"""
Fixtures that several files of engine tests share.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud, environment, install
from tests.project import Project


@pytest.fixture
def cloud(project: Project, tmp_path: Path) -> Iterator[Cloud]:
    """
    A cloud for the project, its provider in this process.
    """
    found = Cloud(tmp_path / "cloud.db")
    project.copy("fixtures/fakecloud/modules/server")
    shutil.move(project.root / "fixtures/fakecloud/modules/server", project.root / "modules/server")
    with found.attached() as reattach:
        project.environ = environment(install(tmp_path / "mirror"), found, project.environ)
        project.environ["TF_REATTACH_PROVIDERS"] = reattach
        yield found
