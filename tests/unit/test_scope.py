"""
Where a provider is asked: region and account, never credentials.
"""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.blueprint.references import Resolved
from orchestrator.domain.provider_query.scope import Scope, differing, scope
from orchestrator.domain.text import Json

AWS = "registry.terraform.io/hashicorp/aws"
THEN = {"AWS_REGION": "eu", "AWS_SESSION_TOKEN": "one", "GOOGLE_PROJECT": "p", "HOME": "/root"}


def now(environ: dict[str, str], *, configured: Json = None, providers: str = AWS) -> Scope:
    found = {} if configured is None else {"aws": configured}
    return scope(providers.split(), environ, found, json.dumps)


def changed(environ: dict[str, str]) -> list[str]:
    return differing(now(THEN), now(environ), [AWS])


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        (THEN, []),
        (THEN | {"AWS_REGION": "us"}, ["AWS_REGION"]),
        (THEN | {"AWS_PROFILE": "other"}, ["AWS_PROFILE"]),
        ({"HOME": "/root"}, ["AWS_REGION"]),
        (THEN | {"AWS_SESSION_TOKEN": "two", "AWS_SECRET_ACCESS_KEY": "x"}, []),
        (THEN | {"HOME": "/home/ada", "GOOGLE_PROJECT": "q"}, []),
    ],
)
def test_what_scopes_a_provider_in_the_environment(
    environ: dict[str, str], names: list[str]
) -> None:
    """
    Its own variables, set, unset or changed; not credentials, which are renewed, and not those of
    others.
    """
    assert changed(environ) == names


def test_the_blueprints_configuration_counts_without_its_secrets() -> None:
    """
    Another region in `providers:` is another scope, another token is not.
    """

    def configured(region: str, token: str) -> Scope:
        value = Resolved({"region": region, "list": [token]}, {("list", 0): "env.TOKEN"})
        return now({}, configured=value)

    first = configured("eu", "one")
    assert differing(first, configured("eu", "two"), [AWS]) == []
    assert differing(first, configured("us", "one"), [AWS]) == ["providers.aws"]


def test_a_provider_that_has_nothing_left_to_ask_for_does_not_count() -> None:
    """
    Scope is compared for the providers of the objects that are asked for.
    """
    both = now(THEN, providers=f"{AWS} hashicorp/google")
    assert differing(both, now(THEN), [AWS]) == []
    assert differing(both, now(THEN), ["hashicorp/google"]) == ["GOOGLE_PROJECT"]
