"""
Readback: what the provider's answers mean for the objects in doubt.

Absence is concluded only if the query is proven: an identity that has found an object created here,
a search that finds others of the same resource. Otherwise an object that is not found stays
unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.provider_query.doubt_query import DoubtQuery
from orchestrator.domain.provider_query.query import Answer, QueryResult, Verdict
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import (
    OCCUPIED,
    Doubt,
    ManualSearch,
    Ownership,
    Readback,
    ReadbackMethod,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.values import replace

# Whose an object is that the provider has (law: not ours until proven).
#
# That it exists proves that something is there, not that this target made it.


#: The provider has it already: it was there before, or an earlier request of ours made it.
_ALREADY_EXISTS = re.compile(
    r"already\s*exists|AlreadyExist|EntityExists|BucketAlreadyOwned|Duplicate|\bConflict\b.*exist",
    re.IGNORECASE,
)


def ownership_of(
    query: DoubtQuery, object_id: str, *, by_search: bool, existed: bool, was_absent: bool
) -> tuple[Ownership, str]:
    """
    Return whose the only object found for a doubt is, and the evidence. ``existed``: the provider
    refused the create because the object existed; ``was_absent``: the same query did not find it
    just before the create.

    The target's own tag outweighs ``existed``: the provider plugin may have sent the create twice.
    """
    if query.doubt.id is not None and object_id == query.doubt.id:
        return "ours", "its create returned this id"
    if by_search and query.by_own_tag:
        return "ours", "it carries the tag of this target"
    if existed and was_absent:
        return "found", (
            "the provider did not have it just before the create, and then said that it existed"
        )
    if existed:
        return "foreign", (
            "not this target's: when it was to be created, the provider said that it existed"
        )
    if query.doubt.id is not None:
        return "foreign", f"not this target's: its create returned {query.doubt.id}"
    if was_absent:
        return "ours", "the provider did not have it just before its create"
    return "found", (
        "nothing proves that this target made it: its create returned no id, and it was not found "
        "by a `search` for the target's own tag"
    )


def existed_before(record: OperationRecord, doubt: Doubt) -> bool:
    """
    Return whether the provider said, in this run or in an earlier query, that the object in doubt
    existed when it was to be created.
    """
    faults = [record.error, record.last_attempt.error if record.last_attempt else None]
    diagnostics = [item for fault in faults if fault for item in fault.diagnostics]
    if any(
        item.address == doubt.address and _ALREADY_EXISTS.search(f"{item.summary}\n{item.detail}")
        for item in diagnostics
    ):
        return True
    earlier = doubt.readback
    return doubt.id is None and earlier is not None and earlier.ownership == "foreign"


class KnownObjects(Struct, frozen=True):
    """
    Objects that are not in doubt. ``managed`` returns the target and address of an object by type
    and id; ``ids_in_state`` are the ids in the step's provider state by resource;
    ``adopted_methods`` are resources and the methods by which an object was found that was then
    adopted; ``occupied_addresses`` are the addresses in that state.
    """

    managed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ids_in_state: Mapping[str, frozenset[str]] = field(default_factory=dict)
    adopted_methods: frozenset[tuple[str, str]] = frozenset()
    occupied_addresses: frozenset[str] = frozenset()


def known_objects(
    own: OperationRecord, others: Iterable[OperationRecord], state: PulledState
) -> KnownObjects:
    """
    Return the objects in records and in the step's provider state.
    """
    doubtful = {doubt.address for doubt in own.resources.in_doubt if doubt.action == "create"}
    managed = {
        (ref.type, ref.id): f"{ref.address} of {record.target}"
        for record in (*others, own)
        for ref in record.resources.inventory
        if ref.id is not None and not (record.target == own.target and ref.address in doubtful)
    }
    ids_in_state: dict[str, set[str]] = {}
    for item in state.objects:
        if item.id is not None:
            ids_in_state.setdefault(parse_address(item.address).resource, set()).add(item.id)
            managed[item.type, item.id] = f"{item.address} of {own.target}"
    return KnownObjects(
        managed,
        {resource: frozenset(ids) for resource, ids in ids_in_state.items()},
        frozenset(_adoptions(own)),
        state.addresses,
    )


class _Conclusion(Struct, frozen=True):
    """
    The meaning of one query's answer for an object.
    """

    verdict: Verdict
    method: ReadbackMethod
    why: str
    ids: tuple[str, ...] = ()


def read_back(
    queries: Sequence[DoubtQuery],
    result: QueryResult,
    known: KnownObjects,
    *,
    at: datetime,
    seconds_left: Callable[[Doubt], float],
    has_named: Callable[[DoubtQuery], bool],
    existed: Callable[[Doubt], bool],
    was_absent: Callable[[DoubtQuery, ReadbackMethod], bool],
    scope_change: Callable[[str], str | None],
    where_to_look: Callable[[Doubt, str], ManualSearch],
) -> tuple[Doubt, ...]:
    """
    Return the doubts with their readbacks, queried ``at`` that time; ``seconds_left`` says for how
    long a request of the call that left a doubt may be under way.

    ``existed``: whether the provider refused the create because the object existed; ``was_absent``:
    whether the same query found none just before. ``has_named``: whether the identity of an object
    has found one that was created here. ``scope_change``: why the provider with a local name may be
    queried elsewhere than it created, None if nothing says so. ``where_to_look``: where a person
    may look.
    """
    sharing = Counter(query.search for query in queries)
    doubts = []
    for query in queries:
        ways = []
        if query.import_id is not None:
            answer = result.imports[query.address.text]
            ways.append(_by_import_id(query, answer, known, has_named))
        if query.search is not None:
            ways.append(_by_search(query, result.searches, known, sharing[query.search]))
        conclusion = _combined(query, ways, seconds_left)
        provider = query.address.provider_name
        elsewhere = scope_change(provider) if conclusion.verdict != "unknown" else None
        if elsewhere is not None:
            verdict: Verdict = "unknown" if conclusion.verdict == "absent" else conclusion.verdict
            why = f"{conclusion.why}; but {elsewhere}: it may have queried elsewhere"
            conclusion = replace(conclusion, verdict=verdict, why=why)
        adoptable = query.address.text not in known.occupied_addresses
        ownership: Ownership | None = None
        evidence = None
        if conclusion.verdict == "exists" and len(conclusion.ids) == 1:
            ownership, evidence = ownership_of(
                query,
                conclusion.ids[0],
                by_search=conclusion.method == "search",
                existed=existed(query.doubt),
                was_absent=elsewhere is None and was_absent(query, conclusion.method),
            )
        blocked = conclusion.ids and not adoptable
        is_unknown = conclusion.verdict == "unknown" and not conclusion.ids
        readback = Readback(
            verdict=conclusion.verdict,
            method=conclusion.method,
            ids=conclusion.ids,
            adoptable=adoptable,
            why=f"{conclusion.why}; {OCCUPIED}" if blocked else conclusion.why,
            at=at,
            look=where_to_look(query.doubt, provider) if is_unknown else None,
            ownership=ownership,
            evidence=evidence,
        )
        doubts.append(query.doubt.model_copy(update={"readback": readback}))
    return tuple(doubts)


def _by_import_id(
    query: DoubtQuery,
    answer: Answer,
    known: KnownObjects,
    has_named: Callable[[DoubtQuery], bool],
) -> _Conclusion:
    address, import_id, method = query.address, query.import_id, query.origin
    assert import_id is not None, "only what has an import id is asked for by it"
    if answer.verdict == "exists":
        owner = known.managed.get((address.type, import_id))
        if owner is not None:
            return _Conclusion("unknown", method, f"{import_id} exists, but it is {owner}")
        return _Conclusion(
            "exists", method, f"the provider has an object with the id {import_id}", (import_id,)
        )
    if answer.verdict == "unknown":
        why = f"asked for {import_id}, and got no answer: {answer.why}"
        return _Conclusion("unknown", method, why)
    proven = (address.resource, method) in known.adopted_methods
    if proven or (method == "identity" and has_named(query)):
        return _Conclusion("absent", method, f"the provider has no object with the id {import_id}")
    return _Conclusion(
        "unknown",
        method,
        f"no object has the id {import_id}, but that has never been seen to be the id of one: "
        "it may be a name where the provider wants an id",
    )


def _by_search(
    query: DoubtQuery, searches: Mapping[int, Answer], known: KnownObjects, sharing: int
) -> _Conclusion:
    number, address = query.search, query.address
    assert number is not None, "only what has a search is searched for"
    answer = searches[number]
    if answer.verdict == "unknown":
        return _Conclusion("unknown", "search", f"the search gave no answer: {answer.why}")
    unmanaged = tuple(id_ for id_ in answer.ids if (address.type, id_) not in known.managed)
    if len(unmanaged) == 1 and sharing == 1:
        return _Conclusion("exists", "search", "the search found one that no step has", unmanaged)
    if unmanaged:
        verdict: Verdict = "exists" if len(unmanaged) >= sharing else "unknown"
        why = f"the search found {len(unmanaged)} that no step has, for {sharing} in doubt"
        return _Conclusion(verdict, "search", f"{why}: attributes tell which is which", unmanaged)
    control = searches[query.control].ids if query.control is not None else ()
    own = known.ids_in_state.get(address.resource, frozenset())
    others = own.intersection((*answer.ids, *control))
    if others or (address.resource, "search") in known.adopted_methods:
        why = f"the search finds {len(others)} others of {address.resource}, and not this one"
        return _Conclusion("absent", "search", why)
    return _Conclusion(
        "unknown", "search", "the search found nothing, but it has never been seen to find one"
    )


def _combined(
    query: DoubtQuery, ways: Sequence[_Conclusion], seconds_left: Callable[[Doubt], float]
) -> _Conclusion:
    """
    Return the conclusion from all queries: one that found the object outweighs one that proves it
    absent.
    """
    for verdict in ("exists", "absent"):
        way = next((way for way in ways if way.verdict == verdict), None)
        if way is None:
            continue
        seconds = seconds_left(query.doubt)
        if verdict == "absent" and seconds > 0:
            why = f"{way.why}; a request may still be under way: ask again in {seconds:.0f} s"
            return _Conclusion("unknown", way.method, why)
        return way
    reasons = [*(way.why for way in ways), *query.obstacles]
    if not reasons:
        reasons = [f"the step has neither `identity` nor `search` for {query.address.resource}"]
    method: ReadbackMethod = ways[-1].method if ways else "none"
    candidates = tuple(id_ for way in ways for id_ in way.ids)
    return _Conclusion("unknown", method, "; ".join(reasons), candidates)


def _adoptions(record: OperationRecord) -> Iterable[tuple[str, str]]:
    """
    Yield resources and the methods by which an object of them was found and then adopted: as proven
    ours, or because a person said that it is the one in doubt.
    """
    adopted = {item.key for item in record.adopted}
    for item in record.settled:
        doubt, readback = item.doubt, item.doubt.readback
        if readback is None or not readback.ids:
            continue
        by_word = any((doubt.address, id_) in adopted for id_ in readback.ids)
        if item.how == "adopted" or (item.how == "forgotten" and by_word):
            yield parse_address(doubt.address).resource, readback.method
