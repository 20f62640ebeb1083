"""
What the documentation says of the engines is held by tests, and by the recordings of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from docs.generate import engine_facts
from orchestrator.domain.engine_commands import TAKE_VARIABLES
from orchestrator.ports.engine import EngineInfo
from tests.project import REPOSITORY

FACTS: list[dict[str, Any]] = engine_facts()["fact"]
VERSIONS: dict[str, list[str]] = engine_facts()["versions"]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["what"])
def test_each_fact_is_held_by_a_test(fact: dict[str, Any]) -> None:
    """
    It says what each engine does and what the tool makes of it, and its test exists.
    """
    assert fact.keys() == {"what", "terraform", "tofu", "here", "held_by"}
    file, _, name = fact["held_by"].partition("::")
    source = (REPOSITORY / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", source, re.MULTILINE)


def test_the_versions_are_those_of_the_recordings() -> None:
    """
    What was recorded of OpenTofu was recorded of a version that is named.
    """
    recorded = {
        json.loads(path.read_text())["opentofu"]
        for path in REPOSITORY.glob("tests/recordings/opentofu/*.json")
    }
    assert recorded == set(VERSIONS["tofu"])


def test_each_recording_is_replayed() -> None:
    """
    What the real program said stands for it where it is missing.
    """
    tests = "\n".join(path.read_text() for path in REPOSITORY.glob("tests/unit/*.py"))
    names = {path.stem for path in REPOSITORY.glob("tests/recordings/opentofu/*.json")}

    assert [name for name in sorted(names) if f'"{name}' not in tests] == []


def test_from_which_version_on_variables_are_needed_is_so_in_the_code() -> None:
    """
    What the facts say of each engine is what its calls are made by.
    """
    early = next(fact for fact in FACTS if "depends on variables" in fact["what"])
    since = early["terraform"].removeprefix("from ").partition(":")[0]
    before = f"1.{int(since.partition('.')[2]) - 1}.9"
    for version, expected in ((before, False), (f"{since}.0", True)):
        info = EngineInfo("terraform", version, ("x",), "path", "")
        assert info.evaluates_early == expected
    assert early["tofu"].startswith("from 1.8")
    assert TAKE_VARIABLES["terraform"] < TAKE_VARIABLES["tofu"]
