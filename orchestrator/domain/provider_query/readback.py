"""
Readback: what the provider's answers mean for the objects in doubt.

Absent is said only where the way of asking is proven: an identity that has named an object created
here, a search that finds others of the same resource. Whatever else is not found stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.provider_query.query import DoubtQuery
from orchestrator.domain.provider_query.query_plan import ProviderQuery, QueryResult
from orchestrator.domain.record.record import (
    Doubt,
    ManualSearch,
    OperationRecord,
    Readback,
    SettledDoubt,
)

Verdict = Literal["exists", "absent", "unknown"]
Method = Literal["identity", "id", "search", "none"]

#: Why an object that was found cannot be adopted.
OCCUPIED = "its address holds another object, so it cannot be adopted there"


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """
    What is known of objects that are not in doubt. ``managed`` tells under which target and address
    an object of a type with an id is; ``held`` are the ids in the step's provider state by
    resource; ``adopted`` the resources and methods by which an object was found that was then
    adopted; ``occupied`` the addresses at which that state holds an object.
    """

    managed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ids_in_state: Mapping[str, frozenset[str]] = field(default_factory=dict)
    adopted_methods: frozenset[tuple[str, str]] = frozenset()
    occupied_addresses: frozenset[str] = frozenset()


def known_objects(
    own: OperationRecord, others: Iterable[OperationRecord], state: PulledState
) -> KnownObjects:
    """
    What records and the step's provider state tell.
    """
    doubtful = {doubt.address for doubt in own.resources.in_doubt if doubt.action == "create"}
    managed = {
        (ref.type, ref.id): f"{ref.address} of {record.target.target}"
        for record in (*others, own)
        for ref in record.resources.inventory
        if ref.id is not None and not (record.target == own.target and ref.address in doubtful)
    }
    held: dict[str, set[str]] = {}
    for item in state.objects:
        if item.id is not None:
            held.setdefault(parse_address(item.address).resource, set()).add(item.id)
            managed[item.type, item.id] = f"{item.address} of {own.target.target}"
    return KnownObjects(
        managed,
        {resource: frozenset(ids) for resource, ids in held.items()},
        frozenset(_adoptions(own.settled)),
        state.addresses,
    )


@dataclass(frozen=True, slots=True)
class Moment:
    """
    When is asked, and for how many seconds more something of a doubt's call may be under way.
    """

    at: datetime
    left: Callable[[Doubt], float]


@dataclass(frozen=True, slots=True)
class _Finding:
    """
    What one way of asking says of an object.
    """

    verdict: Verdict
    method: Method
    why: str
    ids: tuple[str, ...] = ()


def read_back(
    inquiries: Sequence[DoubtQuery],
    questions: ProviderQuery,
    answers: QueryResult,
    known: KnownObjects,
    moment: Moment,
    *,
    named: Callable[[DoubtQuery], bool],
    astray: Callable[[str], str | None],
    look: Callable[[Doubt, str], ManualSearch],
) -> tuple[Doubt, ...]:
    """
    The doubts with their readbacks. ``named`` tells whether the identity of an object has named one
    that was created here; ``astray`` why the provider of a local name may ask elsewhere than it
    created, None where nothing says so; ``look`` where a person may look.
    """
    sharing = Counter(inquiry.search for inquiry in inquiries)
    doubts = []
    for inquiry in inquiries:
        ways = []
        if inquiry.import_id is not None:
            ways.append(_imported(inquiry, answers, known, named))
        if inquiry.search is not None:
            ways.append(_searched(inquiry, questions, answers, known, sharing[inquiry.search]))
        finding = _weigh(inquiry, ways, moment)
        provider = inquiry.address.provider_name
        elsewhere = astray(provider) if finding.verdict != "unknown" else None
        if elsewhere is not None:
            verdict: Verdict = "unknown" if finding.verdict == "absent" else finding.verdict
            why = f"{finding.why}; but {elsewhere}: it may have asked elsewhere"
            finding = replace(finding, verdict=verdict, why=why)
        adoptable = inquiry.address.text not in known.occupied_addresses
        blocked = finding.ids and not adoptable
        readback = Readback(
            verdict=finding.verdict,
            method=finding.method,
            ids=finding.ids,
            adoptable=adoptable,
            why=f"{finding.why}; {OCCUPIED}" if blocked else finding.why,
            at=moment.at,
            look=look(inquiry.doubt, provider)
            if finding.verdict == "unknown" and not finding.ids
            else None,
        )
        doubts.append(inquiry.doubt.model_copy(update={"readback": readback}))
    return tuple(doubts)


def _imported(
    inquiry: DoubtQuery,
    answers: QueryResult,
    known: KnownObjects,
    named: Callable[[DoubtQuery], bool],
) -> _Finding:
    address, asked, method = inquiry.address, inquiry.import_id, inquiry.origin
    assert asked is not None, "only what has an import id is asked for by it"
    if address.text in answers.found:
        owner = known.managed.get((address.type, asked))
        if owner is not None:
            return _Finding("unknown", method, f"{asked} exists, but it is {owner}")
        return _Finding(
            "exists", method, f"the provider has an object with the id {asked}", (asked,)
        )
    if address.text not in answers.missing:
        why = f"asked for {asked}, and got no answer: {answers.trouble(address.text)}"
        return _Finding("unknown", method, why)
    if (address.resource, method) in known.adopted_methods or (
        method == "identity" and named(inquiry)
    ):
        return _Finding("absent", method, f"the provider has no object with the id {asked}")
    return _Finding(
        "unknown",
        method,
        f"no object has the id {asked}, but that has never been seen to be the id of one: "
        "it may be a name where the provider wants an id",
    )


def _searched(
    inquiry: DoubtQuery,
    questions: ProviderQuery,
    answers: QueryResult,
    known: KnownObjects,
    sharing: int,
) -> _Finding:
    number, address = inquiry.search, inquiry.address
    assert number is not None, "only what has a search is searched for"
    if number not in answers.listed:
        trouble = answers.search_trouble(number, questions.searches[number])
        return _Finding("unknown", "search", f"the search gave no answer: {trouble}")
    listed = answers.listed[number]
    fresh = tuple(id_ for id_ in listed if (address.type, id_) not in known.managed)
    if len(fresh) == 1 and sharing == 1:
        return _Finding("exists", "search", "the search found one that no step has", fresh)
    if fresh:
        verdict: Verdict = "exists" if len(fresh) >= sharing else "unknown"
        why = f"the search found {len(fresh)} that no step has, for {sharing} in doubt"
        return _Finding(verdict, "search", f"{why}: attributes tell which is which", fresh)
    control = answers.listed.get(inquiry.control, ()) if inquiry.control is not None else ()
    seen = known.ids_in_state.get(address.resource, frozenset()).intersection((*listed, *control))
    if seen or (address.resource, "search") in known.adopted_methods:
        why = f"the search finds {len(seen)} others of {address.resource}, and not this one"
        return _Finding("absent", "search", why)
    return _Finding(
        "unknown", "search", "the search found nothing, but it has never been seen to find one"
    )


def _weigh(inquiry: DoubtQuery, ways: Sequence[_Finding], moment: Moment) -> _Finding:
    """
    What all ways together say: one that found it is believed before one that proves it absent.
    """
    for verdict in ("exists", "absent"):
        found = next((way for way in ways if way.verdict == verdict), None)
        if found is None:
            continue
        left = moment.left(inquiry.doubt)
        if verdict == "absent" and left > 0:
            why = f"{found.why}; a request may still be under way: ask again in {left:.0f} s"
            return _Finding("unknown", found.method, why)
        return found
    said = [*(way.why for way in ways), *inquiry.obstacles]
    if not said:
        said = [f"the step has neither `identity` nor `search` for {inquiry.address.resource}"]
    method: Method = ways[-1].method if ways else "none"
    candidates = tuple(id_ for way in ways for id_ in way.ids)
    return _Finding("unknown", method, "; ".join(said), candidates)


def _adoptions(settled: Iterable[SettledDoubt]) -> Iterable[tuple[str, str]]:
    for item in settled:
        readback = item.doubt.readback
        if item.how == "adopted" and readback is not None and readback.ids:
            yield parse_address(item.doubt.address).resource, readback.method


def doubt_options(doubts: Iterable[Doubt]) -> list[tuple[tuple[str, ...], str]]:
    """
    What a person may say of objects that evidence does not settle: options of ``reconcile``, and
    what for.
    """
    adopt: list[str] = []
    unknown: list[str] = []
    forget: list[str] = []
    found: list[tuple[tuple[str, ...], str]] = []
    for doubt in {doubt.address: doubt for doubt in doubts}.values():
        readback = doubt.readback
        ids = readback.ids if readback else ()
        adoptable = readback is None or readback.adoptable
        if ids and not adoptable:
            why = f"once you have deleted {' and '.join(ids)} by hand: {OCCUPIED}"
            found.append((("--forget", doubt.address), why))
        elif readback is not None and readback.adopts is not None:
            adopt += ["--adopt", f"{doubt.address}={readback.adopts}"]
        else:
            forget += ["--forget", doubt.address]
            if not ids and adoptable and doubt.action in ("create", "forget"):
                unknown += ["--adopt", f"{doubt.address}={doubt.id or 'ID'}"]
            for id_ in ids:
                one = ("--adopt", f"{doubt.address}={id_}")
                found.append((one, f"if {id_} is {doubt.address}: its attributes tell"))
    if adopt:
        why = "take over what was found; then it can be kept or destroyed"
        found.insert(0, (tuple(adopt), why))
    if unknown:
        why = "where you have found it, with the provider's id: take it over"
        found.append((tuple(unknown), why))
    if forget:
        why = "once you have looked, and know that it does not exist or does not matter"
        found.append((tuple(forget), why))
    return found
