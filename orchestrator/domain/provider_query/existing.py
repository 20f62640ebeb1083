"""
The question before a create: which of the planned objects the provider has already.

Law: not ours until proven. An object that was absent just before a create and exists after it is
ours; one that existed before is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field

from orchestrator.domain.provider_query.doubt_query import DoubtQuery, question
from orchestrator.domain.provider_query.query import Answer, ProviderQuery, QueryResult
from orchestrator.domain.record.objects import Doubt, PlannedAction
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.text import Json

#: Turns a question into what a record may hold of it.
Digest = Callable[[Json], str]


class ObjectsBefore(Struct, frozen=True):
    """
    The provider's answers about objects before their create, by address: the ids of those that
    ``exist``, the questions that were answered with ``absent``, and why others are ``unknown``.
    """

    exist: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


def to_be_created(planned: Iterable[PlannedAction]) -> tuple[Doubt, ...]:
    """
    The objects that a plan creates, as doubts: in the form in which the provider is asked.
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
    The meaning of the answers. A search result that records or the step's provider state manage, by
    type and id in ``managed``, is another object than the planned one; an object that the same plan
    deletes (``leaving``) is left out.
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


def whose(records: Iterable[OperationRecord], kind: str, ids: Collection[str]) -> str:
    """
    Who owns, by the records, the existing objects of this type that a plan would create.
    """
    for record in records:
        target, resources = record.target.target, record.resources
        for ref in resources.inventory:
            if ref.type == kind and ref.id in ids:
                return f"it is {ref.name} of {target}"
        for item in resources.released:
            if item.type == kind and item.id in ids:
                return f"it was {item.address} of {target}: {item.how} in run {item.run_id}"
    return "it is not ours"
