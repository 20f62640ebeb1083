"""
Code, schemas and tests refer to documents that ship, and to laws by their names.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from orchestrator.domain.record.record import Phase
from orchestrator.domain.record.states import Condition, Status, StepStatus, Verdict
from tests.project import REPOSITORY

DESIGN = (REPOSITORY / "docs/design.md").read_text(encoding="utf-8")
ARCHITECTURE = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")

#: References to working papers that are not part of this repository.
_ELSEWHERE = re.compile(
    r"\b(?:DESIGN|STYLE|CASES|FIELD|ENGINE_FACTS)(?:\.md\b| \d)|\b[Ll]aws? \d|\bissue #?\d",
)
_CITATION = re.compile(r"\b[Ll]aws?: (?P<names>[a-z][^.):\n]*(?:\n[\s#:]*[a-z][^.):\n]*)?)[.)]")


def _texts() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = REPOSITORY / name
        ours = path.suffix in {".py", ".md", ".json", ".sql", ".toml", ".yaml", ".tf", ".sh", ""}
        if ours and path.is_file() and path != Path(__file__):
            yield path.relative_to(REPOSITORY), path.read_text(encoding="utf-8")


TEXTS = dict(_texts())


def _laws() -> list[str]:
    section = DESIGN.split("\n## Laws\n", 1)[1].split("\n## ", 1)[0]
    return [name.lower() for name in re.findall(r"^### (.+)$", section, re.MULTILINE)]


def test_nothing_refers_to_a_document_that_does_not_ship() -> None:
    """
    No text cites a working paper, an issue, or a law by its number.
    """
    places = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in TEXTS.items()
        for match in _ELSEWHERE.finditer(text)
    ]
    assert places == []


def test_every_cited_law_stands_in_the_design() -> None:
    """
    ``law: NAME`` in a comment or docstring is the heading of a law in docs/design.md.
    """
    laws = _laws()
    cited = {
        (" ".join(re.sub(r"[#:]", "", name).split()), str(path))
        for path, text in TEXTS.items()
        if path.suffix == ".py"
        for match in _CITATION.finditer(text)
        for name in match["names"].split(";")
    }
    assert len(laws) == 25
    assert len({name for name, _ in cited}) > 10, "the pattern finds no citations any more"
    assert sorted(place for place in cited if place[0] not in laws) == []


@pytest.mark.parametrize("kind", [Status, StepStatus, Condition, Verdict])
def test_every_status_stands_in_the_design(
    kind: type[Status | StepStatus | Condition | Verdict],
) -> None:
    """
    docs/design.md names each status, condition and verdict.
    """
    section = DESIGN.split("\n## Statuses\n", 1)[1].split("\n## ", 1)[0]
    assert [str(value) for value in kind if f"`{value}`" not in section] == []


def test_every_phase_stands_in_the_design() -> None:
    """
    docs/design.md says of each phase what a failure in it leaves.
    """
    section = DESIGN.split("\n## Phases\n", 1)[1].split("\n## ", 1)[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", section, re.MULTILINE)))
    assert sorted(named) == sorted(get_args(Phase))


def test_the_architecture_names_what_is_there() -> None:
    """
    Every path that docs/architecture.md names exists.
    """
    named = re.findall(
        r"`((?:orchestrator|tests|docs|fixtures|benchmarks)/[\w/.-]*)`", ARCHITECTURE
    )
    assert len(named) > 20
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_every_folder_stands_in_the_architecture() -> None:
    """
    docs/architecture.md says of each folder of the package what it is for.
    """
    folders = {
        f"{path.parent.relative_to(REPOSITORY)}/"
        for path in (REPOSITORY / "orchestrator").glob("*/**/__init__.py")
    }
    assert len(folders) > 15
    assert sorted(folder for folder in folders if f"`{folder}`" not in ARCHITECTURE) == []


def test_the_composition_root_stays_small() -> None:
    """
    It names concrete classes and does nothing else, so 150 lines are enough.
    """
    text = (REPOSITORY / "orchestrator/composition.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
