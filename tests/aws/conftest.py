"""
One cloud for the tests of a file, empty for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.cloud import Aws, attached_provider, aws_cloud


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


@pytest.fixture(scope="module")
def provider(whole_cloud: Aws) -> Iterator[str]:
    """
    The AWS provider of the cloud, for projects that configure it once.
    """
    with attached_provider(whole_cloud) as found:
        yield found
