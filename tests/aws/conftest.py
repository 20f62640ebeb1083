"""
One cloud for the tests of a file, empty for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.cloud import Aws, aws_cloud


@pytest.fixture(scope="module")
def whole_cloud() -> Iterator[Aws]:
    with aws_cloud() as found:
        yield found


@pytest.fixture
def aws(whole_cloud: Aws) -> Aws:
    """
    The cloud, empty.
    """
    whole_cloud.empty()
    return whole_cloud
