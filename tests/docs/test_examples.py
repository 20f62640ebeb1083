"""
The examples in docstrings do what they show.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "orchestrator").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_hold(module: str) -> None:
    """
    Who changes a function sees that its example has changed.
    """
    found = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 0) == (0, True)
