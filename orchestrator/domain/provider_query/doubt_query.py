"""
The queries for objects in doubt: by import id or by a search, or why neither is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.addresses import Address, parse_address
from orchestrator.domain.blueprint.blueprint import Step
from orchestrator.domain.blueprint.references import (
    Lookup,
    Reference,
    Resolved,
    Template,
    Unresolvable,
)
from orchestrator.domain.provider_query.query import Answer, ProviderQuery, QueryResult, Search
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, PlannedAction, ReadbackMethod
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace

#: A type whose objects have no remote side: any id "exists".
_WITHOUT_REMOTE = "terraform_data"


#: Searches by the key that declares them and, where they differ, by the key of the instance.
Searches = dict[tuple[str, str | None], Search]


class DoubtQuery(Struct, frozen=True):
    """
    An object in doubt and the ways to query it: its import id and where that comes from, and the
    number of a search. If the search is the instance's own, ``control`` is the number of the same
    search for another instance, which provider state holds. ``by_own_tag``: the search is for the
    target's own tag. ``obstacles`` say why a way is not possible.
    """

    doubt: Doubt
    address: Address
    import_id: str | None = None
    origin: Literal["identity", "id"] = "identity"
    search: int | None = None
    control: int | None = None
    by_own_tag: bool = False
    obstacles: tuple[str, ...] = ()


def doubt_queries(
    step: Step, doubts: Iterable[Doubt], lookup: Lookup, state: PulledState
) -> tuple[ProviderQuery, tuple[DoubtQuery, ...]]:
    """
    Return the query for the creates among ``doubts``, with the current provider state. ``lookup``
    resolves the references in the step's identity and search.
    """
    searches: Searches = {}
    queries = []
    for doubt in doubts:
        if doubt.action != "create":
            continue
        query = DoubtQuery(doubt, parse_address(doubt.address))
        for way in (_by_import, _by_search):
            try:
                query = way(query, step, lookup, state, searches)
            except Unresolvable as exc:
                query = replace(query, obstacles=(*query.obstacles, str(exc)))
        queries.append(query)
    imports = {i.doubt.address: i.import_id for i in queries if i.import_id is not None}
    provider_query = ProviderQuery(imports, tuple(searches.values()), state=state.raw)
    return provider_query, tuple(queries)


def question(item: DoubtQuery, query: ProviderQuery, method: ReadbackMethod) -> Json:
    """
    Return what identifies one way of querying an object: equal if the same query is made again.
    """
    if method != "search" or item.search is None:
        return ["import", item.import_id]
    search = query.searches[item.search]
    return ["search", search.data, dict(search.arguments), search.ids, search.provider]


def import_id(step: Step, address: Address, lookup: Lookup) -> str | None:
    """
    Return the import id of an object by the step's identity, None if it declares none. Raises
    Unresolvable if it has no value, is no text, or holds a secret.
    """
    key = declared(step.identity, address)
    if key is None:
        return None
    template = step.identity[key]
    if key != address.text and not _keyed(template):
        raise Unresolvable(f"the identity of {key} is no instance's: it needs ${{each.key}}")
    resolved = template.resolve(_with_key(lookup, address))
    if resolved.secrets:
        raise Unresolvable(f"the identity of {key} holds a secret, which no record may")
    if isinstance(resolved.value, bool) or not isinstance(resolved.value, str | int):
        raise Unresolvable(f"the identity of {key} is no text")
    if resolved.value == "":
        raise Unresolvable(f"the identity of {key} is empty")
    return str(resolved.value)


def _by_import(
    query: DoubtQuery,
    step: Step,
    lookup: Lookup,
    state: PulledState,
    _: Searches,
) -> DoubtQuery:
    doubt, address = query.doubt, query.address
    if doubt.id is None and declared(step.identity, address) is None:
        return query
    if address.type == _WITHOUT_REMOTE:
        raise Unresolvable(f"a {address.type} has no remote side: it would be found by any id")
    if doubt.address in state.addresses:
        raise Unresolvable("its address holds another object, so none can be found by import")
    identity = import_id(step, address, lookup)
    if identity is not None:
        return replace(query, import_id=identity)
    return replace(query, import_id=doubt.id, origin="id")


def _by_search(
    query: DoubtQuery,
    step: Step,
    lookup: Lookup,
    state: PulledState,
    searches: Searches,
) -> DoubtQuery:
    key = declared(step.search, query.address)
    if key is None:
        return query
    template = step.search[key]
    query = replace(query, by_own_tag=any(r.kind == "target_id" for r in template.references))
    if not _keyed(template):
        return replace(query, search=_number(searches, (key, None), template, lookup))
    own, resource = query.address, query.address.resource
    number = _number(searches, (key, own.key), template, _with_key(lookup, own))
    addresses = [parse_address(item.address) for item in state.objects if item.deposed is None]
    other = next((item for item in addresses if item.resource == resource and item != own), None)
    control = None
    if other is not None:
        control = _number(searches, (key, other.key), template, _with_key(lookup, other))
    return replace(query, search=number, control=control)


def _number(
    searches: Searches, key: tuple[str, str | None], template: Template, lookup: Lookup
) -> int:
    """
    Return the number of a search, adding it if it is new.
    """
    if key not in searches:
        value = template.resolve(lookup).value
        searches[key] = Search(
            data=value["data"],
            arguments=value.get("arguments") or {},
            ids=value["ids"],
            provider=value.get("provider"),
        )
    return list(searches).index(key)


def declared(by_address: Mapping[str, Template], address: Address) -> str | None:
    """
    Return the key of a declaration for an object: its own address or that of its resource.
    """
    return next((key for key in (address.text, address.resource) if key in by_address), None)


def declaration(step: Step, address: Address, inputs: Collection[str]) -> tuple[str, ...]:
    """
    Return lines of YAML with which the step could query the provider for an object, to be
    completed: ``inputs`` are the names that the identity may refer to. Empty if it declares either,
    or if the type has no remote side.
    """
    is_declared = declared(step.identity, address) or declared(step.search, address)
    if is_declared or address.type == _WITHOUT_REMOTE:
        return ()
    plain = re.fullmatch(r"[\w.-]+", address.resource)
    resource = address.resource if plain else f"'{address.resource}'"
    kind = address.type
    name = next((item for item in sorted(inputs) if re.search(r"(^|_)(name|bucket)$", item)), None)
    expression = f"${{inputs.{name}}}" if name else "ID"
    if address.key is not None:
        expression = "${each.key}"
    listed = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return (
        f'# its import id:\nidentity: {{{resource}: "{expression}"}}',
        f"# or the data source that lists ids:\nsearch:\n  {resource}:\n    data: {listed}",
        '    arguments: {tags: {orchestrator: "${target.id}"}}\n    ids: ids',
    )


def _keyed(template: Template) -> bool:
    return any(reference.kind == "each_key" for reference in template.references)


def _with_key(lookup: Lookup, address: Address) -> Lookup:
    def look_up(reference: Reference) -> Resolved:
        if reference.kind != "each_key":
            return lookup(reference)
        if address.key is None:
            raise Unresolvable(f"{address.text} has no instances: ${{each.key}} has no value")
        return Resolved(address.key)

    return look_up


# The question before a create: which of the planned objects the provider has already.
#
# Law: not ours until proven. An object that was absent just before a create and exists after it
# is ours; one that existed before is not.


#: Turns a question into what a record may hold of it.
Digest = Callable[[Json], str]


class ObjectsBefore(Struct, frozen=True):
    """
    The provider's answers about objects before their create, by address: the ids of those that
    ``exist``, the queries that found them ``absent``, and why others are ``unknown``.
    """

    exist: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


def to_be_created(planned: Iterable[PlannedAction]) -> tuple[Doubt, ...]:
    """
    Return the objects that a plan creates as doubts, so that they can be queried.
    """
    return tuple(
        Doubt(address=item.address, action="create", why="it is to be created")
        for item in planned
        if item.action == "create" and not item.imports
    )


def objects_before(
    queries: Iterable[DoubtQuery],
    query: ProviderQuery,
    result: QueryResult,
    *,
    managed: Collection[tuple[str, str | None]],
    leaving: Collection[tuple[str, str | None]],
    digest: Digest,
) -> ObjectsBefore:
    """
    Return what the answers mean. A search result that records or the step's provider state manage
    (type and id in ``managed``) is another object than the planned one; objects that the same plan
    deletes (``leaving``) are ignored.
    """
    exist: dict[str, tuple[str, ...]] = {}
    absent: dict[str, tuple[str, ...]] = {}
    unknown: dict[str, str] = {}
    for item in queries:
        address, kind = item.address.text, item.address.type
        answers: list[tuple[str, Answer]] = []
        if item.import_id is not None:
            question_digest = digest(question(item, query, item.origin))
            answers.append((question_digest, result.imports[address]))
        if item.search is not None:
            search_answer = result.searches[item.search]
            others = tuple(id_ for id_ in search_answer.ids if (kind, id_) not in managed)
            if search_answer.verdict != "unknown":
                search_answer = Answer("exists" if others else "absent", others)
            answers.append((digest(question(item, query, "search")), search_answer))
        ids = tuple(dict.fromkeys(id_ for _, answer in answers for id_ in answer.ids))
        if ids:
            if any((kind, id_) not in leaving for id_ in ids):
                exist[address] = ids
            continue
        missing = tuple(
            question_digest for question_digest, answer in answers if answer.verdict == "absent"
        )
        if missing:
            absent[address] = missing
        elif answers:
            unknown[address] = answers[-1][1].why
    return ObjectsBefore(exist, absent, unknown)


def whose(records: Iterable[OperationRecord], kind: str, ids: Collection[str]) -> tuple[str, bool]:
    """
    Return to whom the existing objects of this type belong, by the records, and whether no target
    manages them.
    """
    for record in records:
        target, resources = record.target, record.resources
        for ref in resources.inventory:
            if ref.type == kind and ref.id in ids:
                return f"it is {ref.name} of {target}", False
        for item in resources.released:
            if item.type == kind and item.id in ids:
                return f"it was {item.address} of {target}: {item.how} in run {item.run_id}", True
    return "it is not ours", True
