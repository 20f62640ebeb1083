"""
Fixtures that the unit tests share.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.project import ProjectOnDisk
from tests.fakes.read_context import Desk


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    """
    A project directory without blueprints.
    """
    return ProjectOnDisk(tmp_path)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """
    What reading commands read with, over a store in memory.
    """
    return Desk(tmp_path)
