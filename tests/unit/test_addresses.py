"""
Resource addresses taken apart.
"""

from __future__ import annotations

import pytest

from orchestrator.domain.addresses import parse_address

CASES = [
    ("a_b.c", "a_b.c", "a_b", None),
    ("a_b.c[0]", "a_b.c", "a_b", "0"),
    ('a_b.c["x"]', "a_b.c", "a_b", "x"),
    ('a_b.c["x.y[\\"z\\"]"]', "a_b.c", "a_b", 'x.y["z"]'),
    ('a_b.c["$${x}"]', "a_b.c", "a_b", "${x}"),
    ("module.m.a_b.c", "module.m.a_b.c", "a_b", None),
    ('module.m["k.v"].module.n[1].a_b.c["x"]', 'module.m["k.v"].module.n[1].a_b.c', "a_b", "x"),
    ('a_b.c["\\U0001f600"]', "a_b.c", "a_b", "\\U0001f600"),
    ("no address", "no address", "no address", None),
]


@pytest.mark.parametrize(("text", "resource", "type_", "key"), CASES, ids=[c[0] for c in CASES])
def test_an_address_is_taken_apart(text: str, resource: str, type_: str, key: str | None) -> None:
    """
    Resource, type and instance key, with dots and brackets in keys; what has another form is its
    own resource.
    """
    found = parse_address(text)
    assert (found.text, found.resource, found.type, found.key) == (text, resource, type_, key)
