"""
Laws of the graph over random graphs.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.blueprint.graph import CycleFound, Graph

NAMES = [f"s{number}" for number in range(8)]


@st.composite
def acyclic(draw: st.DrawFn) -> dict[str, list[str]]:
    """
    Needs that only point to earlier names, declared in any order.
    """
    needs = {
        name: draw(st.lists(st.sampled_from(NAMES[:number]), unique=True)) if number else []
        for number, name in enumerate(NAMES)
    }
    return {name: needs[name] for name in draw(st.permutations(NAMES))}


any_needs = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3), min_size=8, max_size=8
)


@given(acyclic())
def test_order_holds_every_step_once_after_its_needs(needs: dict[str, list[str]]) -> None:
    """
    The order is a permutation of the steps in which each stands after all that it needs.
    """
    order = Graph(needs).order
    assert sorted(order) == NAMES
    assert all(order.index(up) < order.index(step) for step, ups in needs.items() for up in ups)


@given(acyclic())
def test_dependents_and_upstreams_are_one_relation(needs: dict[str, list[str]]) -> None:
    """
    A is upstream of B exactly if B is a dependent of A; reversing swaps them.
    """
    graph = Graph(needs)
    back = graph.reversed()
    for one in NAMES:
        assert graph.upstreams(one) == back.dependents(one)
        for other in NAMES:
            assert (one in graph.upstreams(other)) == (other in graph.dependents(one))


@given(acyclic(), st.sets(st.sampled_from(NAMES)))
def test_a_subset_orders_as_the_whole_does(needs: dict[str, list[str]], kept: set[str]) -> None:
    """
    Which kept step must come before which is the same in a subset as in the whole graph.
    """
    graph = Graph(needs)
    part = graph.subset(kept)
    assert all(part.upstreams(step) == graph.upstreams(step) & kept for step in kept)


@given(any_needs)
def test_a_cycle_that_is_named_is_one(needs: dict[str, list[str]]) -> None:
    """
    Either there is an order, or the named path is a circle in which each step needs the next.
    """
    try:
        assert sorted(Graph(needs).order) == NAMES
    except CycleFound as exc:
        assert exc.path[0] == exc.path[-1]
        assert len(set(exc.path)) == len(exc.path) - 1
        pairs = zip(exc.path, exc.path[1:], strict=False)
        assert all(after in needs[before] for before, after in pairs)
