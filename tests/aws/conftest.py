"""
One cloud for the tests of a file, empty for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.cloud import Aws, aws_cloud


@pytest.fixture(scope="module")
def whole_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with aws_cloud(tmp_path_factory.mktemp("aws")) as found:
        yield found


@pytest.fixture
def aws(whole_cloud: Aws) -> Aws:
    """
    The cloud, empty.
    """
    whole_cloud.empty()
    return whole_cloud
