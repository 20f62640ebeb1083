"""
Which providers of a snapshot may be configured from managed objects.
"""

from __future__ import annotations

import pytest

from orchestrator.domain.blueprint.blueprint import ProviderDependencies
from orchestrator.ports.workdir import Snapshot

FROM_OBJECTS, PLAIN = ProviderDependencies(managed_objects=True), ProviderDependencies()
CASES = [
    ({"kubernetes": FROM_OBJECTS, "aws": PLAIN}, ("kubernetes", "aws"), "kubernetes", True),
    ({"kubernetes": FROM_OBJECTS, "aws": PLAIN}, ("kubernetes", "aws"), "aws", False),
    ({"kubernetes": FROM_OBJECTS}, ("kubernetes", "aws"), "aws", False),
    ({"aws": PLAIN, "aws.grown": FROM_OBJECTS}, ("aws",), "aws", True),
    ({"module.aws": FROM_OBJECTS}, ("aws",), "aws", True),
    ({"kubernetes": FROM_OBJECTS}, ("kubernetes",), "k8s", True),
    ({"aws": PLAIN}, ("aws",), "k8s", False),
    (None, ("aws",), "aws", True),
    (None, (), "aws", False),
]


@pytest.mark.parametrize(("reach", "names", "name", "may"), CASES)
def test_a_provider_may_reach_objects(
    reach: dict[str, ProviderDependencies] | None, names: tuple[str, ...], name: str, may: bool
) -> None:
    """
    By its own configuration; under a name that the module does not have it may be any of them, and
    a snapshot of before that was noted may configure every provider that it has a block for.
    """
    snapshot = Snapshot(
        digest="sha256:0",
        module_path=".",
        archive=b"",
        variables={},
        provider_sources=dict.fromkeys(names, "acme/x"),
        provider_blocks=names,
        provider_reach=reach,
    )
    assert snapshot.provider_may_depend_on_resources(name) == may
