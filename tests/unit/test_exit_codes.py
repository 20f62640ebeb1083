"""
The table of exit codes against the classes of errors, and which code wins.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.errors import EXIT_CODES, PRECEDENCE, OrchestratorError, worst

#: If several apply, the first of these; what names a usage error applies alone.
ORDER = [1, 23, 21, 130, 143, 11, 10, 13, 12, 20, 22, 6, 5, 4, 3, 2, 0]

codes = st.lists(st.sampled_from(PRECEDENCE))


def classes(base: type[OrchestratorError] = OrchestratorError) -> Iterator[type[OrchestratorError]]:
    for found in base.__subclasses__():
        yield found
        yield from classes(found)


def test_the_table_holds_every_class_once_with_its_code() -> None:
    """
    Every class of error has exactly one row, that of its own exit code.
    """
    table = [(found, row.code) for row in EXIT_CODES for found in row.classes]

    assert sorted(table, key=lambda pair: pair[0].__name__) == sorted(
        ((found, found.exit_code) for found in classes()), key=lambda pair: pair[0].__name__
    )


def test_every_error_is_in_the_one_module() -> None:
    """
    One file holds them all: nobody adds an exit code elsewhere.
    """
    assert {found.__module__ for found in classes()} == {errors.__name__}


def test_every_code_has_one_row() -> None:
    """
    A code means one thing, and only success, our bug and changes present have no class.
    """
    listed = [row.code for row in EXIT_CODES]

    assert len(listed) == len(set(listed))
    assert {row.code for row in EXIT_CODES if not row.classes} == {0, 1, 2}
    assert set(listed) == {*PRECEDENCE, 64}


def test_every_class_says_what_it_is_for() -> None:
    """
    Class, stable code and exit code belong together; only the two signals share a code.
    """
    named: dict[str, set[int]] = {}
    for found in classes():
        assert inspect.getdoc(found)
        named.setdefault(found.code, set()).add(found.exit_code)

    assert {code: exits for code, exits in named.items() if len(exits) > 1} == {
        "stopped": {130, 143}
    }


def test_the_precedence_is_that_of_the_design() -> None:
    """
    The order in which codes win is a contract.
    """
    assert list(PRECEDENCE) == ORDER


@pytest.mark.parametrize("winner", ORDER)
def test_a_code_beats_all_that_come_after_it(winner: int) -> None:
    """
    Whatever else happened, the first of the list is what the caller sees.
    """
    weaker = ORDER[ORDER.index(winner) :]

    assert worst([*reversed(weaker), *weaker]) == winner


@given(codes, codes)
def test_the_winner_of_parts_is_the_winner_of_the_whole(some: list[int], others: list[int]) -> None:
    """
    It does not matter in which order or how grouped the steps of a run report.
    """
    assert worst([*some, *others]) == worst([worst(others), worst(some)])


def test_nothing_happened_is_success() -> None:
    """
    A run without steps ends with 0.
    """
    assert worst([]) == 0
