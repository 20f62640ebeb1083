"""
docs/oncall.md shows what the screen really says.

``ORCHESTRATOR_GOLDEN=write pytest tests/docs/test_oncall.py`` plays the cases and writes them into
the page; look at the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.oncall import CASES, PAGE, blocks, play, write


def telling(screen: str) -> list[str]:
    """
    The lines of a screen that people act upon: what was typed, how it ended, what is offered. Where
    the others break depends on the length of paths.
    """
    found = re.findall(r"^(?:\$ | *orchestrator |.*: exit \d|verdict: ).*$", screen, re.MULTILINE)
    return [line.strip() for line in found]


@pytest.mark.engine
@pytest.mark.parametrize("case", CASES)
def test_the_page_shows_what_the_screen_says(case: str, tmp_path: Path) -> None:
    """
    Each case, played again, ends as the page says, by the commands that it shows and offers.
    """
    screen = play(case, tmp_path)
    if os.environ.get("ORCHESTRATOR_GOLDEN") == "write":
        write(case, screen)

    assert telling(blocks()[case]) == telling(screen)


def test_every_case_is_on_the_page_and_found_from_its_top() -> None:
    """
    The page has a block for each case and no other, and its table leads to every heading by what
    the screen says.
    """
    page = PAGE.read_text("utf-8")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    links = re.findall(r"\(#([a-z-]+)\)", page)

    assert list(blocks()) == list(CASES)
    assert links == [
        re.sub(r"[^a-z ]", "", name.lower()).replace(" ", "-")
        for name in headings
        if name != "When it is over"
    ]
