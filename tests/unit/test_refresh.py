"""
What a refresh saw: the provider configurations that found nothing are not believed.
"""

from __future__ import annotations

from orchestrator.domain.events.events import RefreshComplete, ResourceDrift
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_query.query import RefreshResult, refresh_result
from orchestrator.domain.provider_state import PulledState
from tests.fakes.journals import journal, state


def applying(
    held: PulledState, *lost: str, targeted: bool = False, seen: str = ""
) -> RefreshResult:
    found = [RefreshComplete(address, "1") for address in seen.split()]
    drift = [ResourceDrift(address, "delete", "s") for address in lost]
    told = Journal.of([*found, *drift], whole=True)
    return refresh_result(told, held, destroying=False, targeted=targeted)


def destroying(held: PulledState, *plan: str) -> RefreshResult:
    return refresh_result(journal(*plan), held, destroying=True, targeted=False)


def names(seen: RefreshResult) -> tuple[list[str], list[str]]:
    return [item.address for item in seen.missing], [item.address for item in seen.unexplained]


def test_a_configuration_that_sees_others_is_believed() -> None:
    """
    An object that vanished counts as gone if the same configuration saw others.
    """
    held = state(["s.a 1 by=eu", "s.b 2 by=eu", "s.c 3 by=us"])
    assert names(applying(held, "s.a")) == (["s.a"], [])


def test_a_configuration_that_sees_nothing_is_not_believed() -> None:
    """
    Law: state moved without us.
    One alias in the wrong region loses only its own objects, and all of them.
    """
    held = state(["s.a 1 by=eu", "s.c 3 by=us"])
    assert names(applying(held, "s.c")) == (["s.c"], ["s.c"])


def test_what_has_no_region_does_not_vouch_for_what_has_one() -> None:
    """
    Law: state moved without us.
    In a wrong region a role is still found, and the network and what is in it are not. One
    object of a type of its own may have gone; one of several of a type as well.
    """
    held = state(["role.a 1", "vpc.a 2", "subnet.a 3", "subnet.b 4"])
    assert names(applying(held, "vpc.a", "subnet.a", "subnet.b"))[1] == [
        "vpc.a",
        "subnet.a",
        "subnet.b",
    ]
    assert names(applying(held, "vpc.a", "subnet.a"))[1] == []
    assert names(applying(held, "vpc.a"))[1] == []


def test_a_destroy_tells_what_vanished_by_what_it_would_delete() -> None:
    """
    Its plan holds a delete for everything that the refresh found.
    """
    held = state(["s.a 1", "s.b 2"])
    assert names(destroying(held, "plan delete s.a")) == (["s.b"], [])


def test_a_deposed_object_that_no_plan_would_delete_has_vanished() -> None:
    """
    Law: state moved without us.
    No plan reports the drift of a deposed object. One that is found is planned for delete
    at its address, in every plan.
    """
    held = state(["s.a 1 deposed=d1"])
    assert names(destroying(held)) == (["s.a"], ["s.a"])
    assert names(applying(held)) == (["s.a"], ["s.a"])
    assert names(destroying(held, "plan delete s.a")) == ([], [])


def test_what_a_targeted_plan_does_not_ask_for_vouches_for_nothing() -> None:
    """
    Law: state moved without us.
    An apply with --target in the wrong region asks for one object and loses it; the others
    were not seen.
    """
    held = state(["s.a 1", "s.b 2"])
    assert names(applying(held, "s.a", targeted=True)) == (["s.a"], ["s.a"])
    assert names(applying(held, "s.a", targeted=True, seen="s.b")) == (["s.a"], [])
