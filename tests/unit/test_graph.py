"""
Order and selection of steps.
"""

from __future__ import annotations

import pytest

from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.errors import Usage

GRAPH = Graph({"dns": ["app"], "net": [], "db": ["net"], "app": ["net", "db"], "log": []})


def test_order_follows_needs_then_declaration() -> None:
    """
    A step comes after those it needs; otherwise the order is that of the declaration.
    """
    assert GRAPH.order == ("net", "db", "app", "dns", "log")


def test_closures_are_transitive() -> None:
    """
    Upstreams and dependents hold what is needed, or needs, indirectly; needs only the direct ones.
    """
    assert GRAPH.upstreams("dns") == {"app", "db", "net"}
    assert GRAPH.dependents("net") == {"db", "app", "dns"}
    assert GRAPH.needs("dns") == {"app"}


def test_reversed_takes_down_dependents_first() -> None:
    """
    In the reversed graph each step comes after its dependents.
    """
    assert GRAPH.reversed().order == ("log", "dns", "app", "db", "net")
    assert GRAPH.reversed().reversed() == GRAPH


def test_a_cycle_is_named() -> None:
    """
    Steps that need each other are an error that names the whole circle: each needs the next.
    """
    with pytest.raises(CycleFound) as caught:
        Graph({"x": [], "a": ["b", "x"], "b": ["c"], "c": ["a"]})
    assert caught.value.path == ("a", "b", "c", "a")
    assert "a -> b -> c -> a" in str(caught.value)


def test_a_step_that_needs_itself_is_a_cycle() -> None:
    """
    The smallest circle is a step that needs itself.
    """
    with pytest.raises(CycleFound) as caught:
        Graph({"a": ["a"]})
    assert caught.value.path == ("a", "a")


def test_needs_must_be_steps() -> None:
    """
    A graph over names that are no steps cannot be made.
    """
    with pytest.raises(ValueError, match="'b', which is no step"):
        Graph({"a": ["b"]})


@pytest.mark.parametrize(
    ("patterns", "exclude", "chosen"),
    [
        ([], [], ("net", "db", "app", "dns", "log")),
        (["db"], [], ("db",)),
        (["db+"], [], ("db", "app", "dns")),
        (["+db"], [], ("net", "db")),
        (["+app+"], [], ("net", "db", "app", "dns")),
        (["d*"], [], ("db", "dns")),
        (["log", "db"], [], ("db", "log")),
        ([], ["app+"], ("net", "db", "log")),
        (["net+"], ["db"], ("net", "app", "dns")),
        (["db"], ["db"], ()),
    ],
)
def test_selection(patterns: list[str], exclude: list[str], chosen: tuple[str, ...]) -> None:
    """
    ``S``, ``S+``, ``+S``, ``+S+`` and globs choose steps; exclusions take away; order stays.
    """
    assert GRAPH.select(patterns, exclude) == chosen


@pytest.mark.parametrize(
    ("pattern", "hint"), [("ap", "did you mean 'app'?"), ("+dnss+", "did you mean 'dns'?")]
)
def test_an_unknown_step_is_an_error_with_a_suggestion(pattern: str, hint: str) -> None:
    """
    A name that is no step is refused, and the closest one offered.
    """
    with pytest.raises(Usage) as caught:
        GRAPH.select([pattern])
    assert caught.value.hint == hint


@pytest.mark.parametrize(("patterns", "exclude"), [(["x*"], []), ([], ["x*"]), (["+"], [])])
def test_a_pattern_that_matches_nothing_is_an_error(
    patterns: list[str], exclude: list[str]
) -> None:
    """
    A selection never silently becomes empty because a pattern was mistyped.
    """
    with pytest.raises(Usage):
        GRAPH.select(patterns, exclude)


def test_a_subset_keeps_what_is_needed_through_a_left_out_step() -> None:
    """
    In a subset a step still comes after what it needs through a step that was left out.
    """
    assert GRAPH.subset(["dns", "net"]).needs("dns") == {"net"}
