"""
What of a blueprint is not as it was: steps and inputs by name, anything else for all.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.loading.affected_steps import ChangedParts, changed_parts

BEFORE: dict[str, Any] = {
    "version": 1,
    "name": "web",
    "inputs": {"a": {"default": 1}, "b": {"default": 2}},
    "environments": {
        "base": {"inputs": {"a": 3}},
        "prod": {"extends": "base", "steps": {"one": {"inputs": {"x": 1}}}},
        "other": {"inputs": {"a": 5}},
    },
    "steps": {"one": {"module": "m"}, "two": {"module": "m"}},
}


def changed(path: str, value: object) -> ChangedParts:
    """
    What differs in prod once this stands at a path of the blueprint.
    """
    first, *rest = path.split(".")

    def put(node: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        return {**node, keys[0]: put(node.get(keys[0], {}), keys[1:])}

    return changed_parts(BEFORE, put(BEFORE, [first, *rest]), "prod")


@pytest.mark.parametrize(
    ("path", "steps", "inputs", "everything"),
    [
        ("description", (), (), False),
        ("steps.two.module", ("two",), (), False),
        ("steps.three", ("three",), (), False),
        ("inputs.b.default", (), ("b",), False),
        ("environments.prod.steps.one.module", ("one",), (), False),
        ("environments.prod.inputs.b", (), ("b",), False),
        ("environments.base.inputs.a", (), ("a",), False),
        ("environments.base.protected", (), (), True),
        ("environments.other.inputs.a", (), (), False),
        ("environments.prod.extends", (), (), True),
        ("providers.aws", (), (), True),
        ("policy", (), (), True),
    ],
)
def test_what_changed_is_found_by_its_part(
    path: str, steps: tuple[str, ...], inputs: tuple[str, ...], everything: bool
) -> None:
    """
    Of the environment that is used and those that it extends; others are nobody's business.
    """
    found = changed(path, "new")
    assert (found.steps, found.inputs) == (frozenset(steps), frozenset(inputs))
    assert found.everything == everything


def test_what_was_no_blueprint_counts_as_changed() -> None:
    """
    Not knowing is not nothing.
    """
    assert changed_parts(None, BEFORE, "prod").everything
    assert changed_parts(BEFORE, [], "prod").everything
    assert changed_parts(BEFORE, BEFORE, "prod") == ChangedParts()
    more = {**BEFORE, "environments": {**BEFORE["environments"], "new": {}}}
    assert changed_parts(BEFORE, more, "new").everything
