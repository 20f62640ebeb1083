"""
Bad input is Invalid, whatever it is.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Invalid
from orchestrator.loading.inputs import InputPolicy
from tests.fakes.project import ProjectOnDisk

WHOLE = {
    "version": 1,
    "name": "web",
    "engine": {"kind": "tofu", "version": ">= 1"},
    "backend": {"type": "local", "config": {"path": "${environment}/${step.name}"}},
    "operations": {"url": "ops.db"},
    "providers": {"aws": [{"alias": "a", "region": "${inputs.a}"}]},
    "moved_from": ["x"],
    "inputs": {
        "a": {"type": "object({x = optional(number)})", "default": {"x": 1}},
        "b": {"sensitive": True, "from": {"command": ["c"]}},
    },
    "environments": {
        "default": {"extends": "base", "inputs": {"a": {"x": 3}}, "steps": {"s": {"timeout": 1}}},
        "base": {
            "inputs_from": ["f.yaml"],
            "protected": True,
            "backend": {"config": {"path": "${blueprint.name}/${environment}/${step.name}"}},
        },
    },
    "steps": {
        "s": {
            "module": "../modules/plain",
            "inputs": {"x": "${inputs.a.x}", "y": ["${inputs.b}"]},
            "verify": [{"http": {"url": "${outputs.url}"}}],
            "retry": {"on": ["x"], "attempts": 2},
            "identity": {"a.b": "${inputs.x}"},
            "search": {"a.b": {"data": "d", "arguments": {}, "ids": "i"}},
            "retain": {"reason": "r", "owner": "o", "review_by": "2027-01-01"},
        },
        "t": {"module": "../modules/plain", "needs": ["s"], "owned_by": "s", "refused_on": ["x"]},
    },
}

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        ["${", "${inputs.a}", "${env.NO}", "${steps.t.outputs.id}", "../..", "a//b", "(", "a\0"]
    ),
    st.just([]),
    st.just({}),
    st.lists(st.integers() | st.just({}), max_size=2),
    st.dictionaries(st.text(st.characters(codec="ascii"), max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ProjectOnDisk:
    project = ProjectOnDisk(tmp_path_factory.mktemp("fuzz"))
    project.write("blueprints/f.yaml", "a: {x: 2}\n")
    return project


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, item in value.items() for place in places(item, (*path, key))]
    if isinstance(value, list):
        found += [place for n, item in enumerate(value) for place in places(item, (*path, n))]
    return found


def test_the_whole_blueprint_is_valid(project: ProjectOnDisk) -> None:
    """
    The blueprint that is damaged below is valid before.
    """
    project.write("blueprints/web.yaml", json.dumps(WHOLE))
    assert project.problems() == []


@given(st.data())
def test_a_damaged_blueprint_is_invalid_or_loads(
    project: ProjectOnDisk, data: st.DataObject
) -> None:
    """
    Any value put anywhere into a blueprint gives a deployment or Invalid with places, nothing else.
    """
    damaged = copy.deepcopy(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(damaged)))
        holder: dict[str | int, object] = damaged  # type: ignore[assignment]
        for part in path[:-1]:
            holder = holder[part]  # type: ignore[assignment]
        holder[path[-1]] = data.draw(junk)
    file: Path = project.write("blueprints/web.yaml", json.dumps(damaged))
    for need in (InputPolicy.REQUIRED, InputPolicy.CHECK_ONLY):
        try:
            project.load(str(file), need=need)
            project.outline(str(file))
        except Invalid as exc:
            assert all(problem.message for problem in exc.problems)
