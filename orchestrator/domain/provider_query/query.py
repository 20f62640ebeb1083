"""
A provider query: one engine plan that writes nothing, and how its messages answer.

There are three ways to query an object: an import block with its id, a data source that lists ids,
and the refresh of a saved provider state that holds it. A data source has a postcondition that
always fails and lists the ids in its error, so that no further engine call is needed to read them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.references import escaped
from orchestrator.domain.events.events import (
    Message,
    PlannedChange,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState, StateObject
from orchestrator.domain.record.objects import ObjectKey
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json

Verdict = Literal["exists", "absent", "unknown"]

#: The engine's own words, on which alone a missing object is told from one that cannot be read.
_MISSING = "Cannot import non-existent remote object"
_MISSING_ADDRESS = re.compile(r'existing object to ("(?:[^"\\]|\\.)*"), the provider')
_SEARCH = "orchestrator_search_{}"
_FOUND = re.compile(r"orchestrator:(\d+):(.*)", re.DOTALL)
#: The configuration that asks; in a target's own directory for one call at most.
QUERY_FILE = "orchestrator_readback.tf.json"
_OVERRIDE = "orchestrator_readback_override.tf.json"


class Search(Struct, frozen=True):
    """
    A data source to read: its type, arguments, the attribute with the ids, and the provider
    configuration if it is not the default one.
    """

    data: str
    arguments: Mapping[str, Json]
    ids: str
    provider: str | None = None

    @property
    def provider_name(self) -> str:
        """
        The local name of its provider.
        """
        return (self.provider or self.data).partition("." if self.provider else "_")[0]


class ProviderQuery(Struct, frozen=True):
    """
    A query: ``imports`` are import ids by address; a search is identified by its index in
    ``searches``.

    ``saved`` are objects of a saved provider state by their address in ``state``
    (`Engine.isolated_state`); ``untrusted`` are their provider configurations whose answers prove
    nothing. A query has either these, or imports and searches: a refresh-only plan accepts no
    import blocks.
    """

    imports: Mapping[str, str] = field(default_factory=dict)
    searches: tuple[Search, ...] = ()
    saved: Mapping[str, StateObject] = field(default_factory=dict)
    untrusted: frozenset[str] = frozenset()
    state: bytes = b""

    @property
    def targets(self) -> tuple[str, ...]:
        """
        The ``-target`` addresses of the plan; empty for a refresh of saved objects.
        """
        return (*self.imports, *(_data_address(n, s) for n, s in enumerate(self.searches)))

    def files(self, sources: Mapping[str, str]) -> dict[str, str]:
        """
        Return the configuration of the query by file name. ``sources`` are the sources of providers
        that the root itself does not require, by local name.
        """
        content: dict[str, Json] = {}
        if self.imports:
            content["import"] = [
                {"to": address, "id": _literal(id_)} for address, id_ in self.imports.items()
            ]
        data: dict[str, dict[str, Json]] = {}
        for number, search in enumerate(self.searches):
            data.setdefault(search.data, {})[_SEARCH.format(number)] = _block(number, search)
        if data:
            content["data"] = data
        files = {QUERY_FILE: json.dumps(content, indent=1)} if content else {}
        names = {search.provider_name for search in self.searches} & sources.keys()
        if names:
            required = {name: {"source": sources[name]} for name in sorted(names)}
            files[_OVERRIDE] = json.dumps({"terraform": {"required_providers": required}})
        return files


class Answer(Struct, frozen=True):
    """
    The answer for one import, search or saved object. ``ids`` are those that the provider returned;
    a search without results is ``absent``. ``why`` is the reason for ``unknown``.
    """

    verdict: Verdict
    ids: tuple[str, ...] = ()
    why: str = ""


class QueryResult(Struct, frozen=True):
    """
    The answers: for each import by address, for each search by number, for each saved object by
    key.
    """

    imports: dict[str, Answer] = field(default_factory=dict)
    searches: dict[int, Answer] = field(default_factory=dict)
    saved: dict[ObjectKey, Answer] = field(default_factory=dict)


def unanswered(query: ProviderQuery, why: str) -> QueryResult:
    """
    Return the result of a query that could not be made.
    """
    unknown = Answer("unknown", why=why)
    return QueryResult(
        dict.fromkeys(query.imports, unknown),
        dict.fromkeys(range(len(query.searches)), unknown),
        {item.key: unknown for item in query.saved.values()},
    )


def read_result(
    query: ProviderQuery, messages: Iterable[Message], *, succeeded: bool
) -> QueryResult:
    """
    Return the answers in the messages of the plan. ``succeeded`` matters only for saved objects
    (all were refreshed); it does not tell whether an import exists.
    """
    read = _PlanMessages.of(messages, targets=frozenset((*query.targets, *query.saved)))
    result = QueryResult()
    for address, id_ in query.imports.items():
        # The engine reports the read before it says that nothing is there: missing outweighs it.
        if address in read.missing:
            result.imports[address] = Answer("absent")
        elif address in read.present:
            result.imports[address] = Answer("exists", (id_,))
        else:
            result.imports[address] = Answer("unknown", why=read.reason(address))
    for number, search in enumerate(query.searches):
        ids = read.lists.get(number)
        if ids is None:
            why = read.reason(_data_address(number, search))
            result.searches[number] = Answer("unknown", why=why)
        else:
            result.searches[number] = Answer("exists" if ids else "absent", ids)
    for address, item in query.saved.items():
        if item.configuration in query.untrusted:
            why = "its provider is configured from objects of this step"
            answer = Answer("unknown", why=why)
        elif address in read.lost:
            answer = Answer("absent")
        elif address in read.present or succeeded:
            answer = Answer("exists", (item.id,) if item.id is not None else ())
        else:
            answer = Answer("unknown", why=read.reason(address, item.configuration))
        result.saved[item.key] = answer
    return result


def refused_imports(
    imports: Mapping[str, str], diagnostics: Iterable[Diagnostic]
) -> dict[str, str]:
    """
    Return why a plan with import blocks (ids by address) failed, by the address of each error. The
    engine names the address or nothing, a provider names the id. Errors about anything else are
    ignored.
    """
    errors = [item for item in diagnostics if item.severity == "error"]
    reasons: dict[str, str] = {}
    for address, id_ in imports.items():
        words = "|".join(map(re.escape, (address, id_)))
        pattern = re.compile(rf"(?<![\w.\]/-])(?:{words})(?![\w\[/-]|\.\w)")
        for error in errors:
            text = f"{error.summary}\n{error.detail}".replace('\\"', '"')  # it quotes addresses
            if error.address == address or (not error.address and pattern.search(text)):
                reasons.setdefault(address, _line(error))
    return reasons


class _PlanMessages(Struct, frozen=True):
    """
    The messages of a plan by meaning: ``present`` are addresses where the provider has an object,
    ``lost`` those where the refresh lost one, ``missing`` those whose import id does not exist,
    ``lists`` the ids by search.
    """

    present: frozenset[str]
    lost: frozenset[str]
    missing: frozenset[str]
    lists: Mapping[int, tuple[str, ...]]
    errors: tuple[Diagnostic, ...]
    targets: frozenset[str]

    @classmethod
    def of(cls, messages: Iterable[Message], *, targets: frozenset[str]) -> _PlanMessages:
        present: set[str] = set()
        vanished: set[str] = set()
        missing: set[str] = set()
        lists: dict[int, tuple[str, ...]] = {}
        errors: dict[Diagnostic, None] = {}
        for message in messages:
            match message:
                case PlannedChange(address, importing=str()) | RefreshComplete(address):
                    present.add(address)
                case ResourceDrift(address, "delete"):
                    vanished.add(address)
                case Diagnostic() as diagnostic if diagnostic.severity == "error":
                    absent, listed = _missing_address(diagnostic), _listed(diagnostic)
                    if absent is not None:
                        missing.add(absent)
                    elif listed is not None:
                        lists[listed[0]] = listed[1]
                    else:
                        errors[diagnostic] = None
                case _:
                    pass
        return cls(
            frozenset(present),
            frozenset(vanished),
            frozenset(missing),
            lists,
            tuple(errors),
            targets,
        )

    def reason(self, *addresses: str) -> str:
        """
        Return why there is no answer: the error at the first of these addresses that has one, else
        the errors that concern no queried object and so stopped the plan.
        """
        for address in addresses:
            for error in self.errors:
                if error.address == address:
                    return _line(error)
        general = [_line(error) for error in self.errors if error.address not in self.targets]
        if general:
            return "; ".join(dict.fromkeys(general))
        if self.errors:
            return f"the plan failed elsewhere: {_line(self.errors[0])}"
        return "the engine reported nothing about it"


def _block(number: int, search: Search) -> dict[str, Json]:
    block: dict[str, Json] = {k: _literal(v) for k, v in search.arguments.items()}
    if search.provider:
        block["provider"] = search.provider
    block["lifecycle"] = {
        "postcondition": {
            "condition": "${self == null}",
            "error_message": f"orchestrator:{number}:${{jsonencode(self.{search.ids})}}",
        }
    }
    return block


def _literal(value: Json) -> Json:
    """
    Return the value in Terraform's JSON syntax, escaped.
    """
    match value:
        case str():
            return escaped(value)
        case dict():
            return {_literal(key): _literal(item) for key, item in value.items()}
        case list():
            return [_literal(item) for item in value]
        case _:
            return value


def _data_address(number: int, search: Search) -> str:
    return f"data.{search.data}.{_SEARCH.format(number)}"


def _missing_address(diagnostic: Diagnostic) -> str | None:
    if diagnostic.summary != _MISSING:
        return None
    quoted = _MISSING_ADDRESS.search(diagnostic.detail)
    try:
        return str(json.loads(quoted[1])) if quoted else None
    except ValueError:  # an escape that JSON does not have: unanswered, not missing
        return None


def _listed(diagnostic: Diagnostic) -> tuple[int, tuple[str, ...]] | None:
    """
    Return a search and the ids it found, None for any other diagnostic.
    """
    match = _FOUND.fullmatch(diagnostic.detail.strip())
    if match is None:
        return None
    try:
        value = json.loads(match[2])
    except ValueError:  # cut, or masked
        return None
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int) for item in items):
        return None
    return int(match[1]), tuple(dict.fromkeys(map(str, items)))


def _line(diagnostic: Diagnostic) -> str:
    return " ".join(f"{diagnostic.summary}: {diagnostic.detail}".split()).removesuffix(":")[:400]


# Which objects of a provider state a refresh saw, and which provider configurations saw nothing:
# in another region or account, or with other credentials, every object reads as gone.


class RefreshResult(Struct, frozen=True):
    """
    The result of a refresh. ``missing`` are objects that it did not find; ``unexplained`` are those
    of them whose provider configuration found nothing else to vouch for it: the scope may be wrong.
    """

    missing: tuple[StateObject, ...] = ()
    unexplained: tuple[StateObject, ...] = ()

    def without(self, deleted: Collection[StateObject]) -> RefreshResult:
        """
        Return the result without objects that are missing because a delete removed them.
        """
        return RefreshResult(
            tuple(item for item in self.missing if item not in deleted),
            tuple(item for item in self.unexplained if item not in deleted),
        )


def refresh_result(
    journal: Journal, state: PulledState, *, destroying: bool, targeted: bool
) -> RefreshResult:
    """
    Return what the plan of a step found of ``state``, the one before its refresh.

    The plan of a destroy reports no drift, and no plan reports that of deposed objects: those that
    it would not delete have vanished. A ``targeted`` plan answers only for objects that it reports
    as found or lost.
    """
    vanished = {item.address for item in journal.drifted if item.action == "delete"}
    planned = {item.address for item in journal.planned}
    gone, present = [], []
    for item in state.objects:
        if item.deposed is None and not destroying:
            missing = item.address in vanished
        else:
            missing = not targeted and item.address not in planned
        if missing:
            gone.append(item)
        elif not targeted or item.address in journal.refreshed:
            present.append(item)
    return RefreshResult(tuple(gone), unexplained(gone, present))


def unexplained(
    gone: Collection[StateObject], present: Collection[StateObject]
) -> tuple[StateObject, ...]:
    """
    Return those of ``gone`` whose provider configuration is not trusted: it found nothing at all,
    or lost two or more objects of types of which it found none.

    In a wrong region a provider still finds global objects (roles, policies, buckets), which proves
    nothing for objects of other types. A single object may be gone.
    """
    configurations = {item.configuration for item in present}
    kinds = {(item.configuration, item.type) for item in present}
    vanished = [item for item in gone if (item.configuration, item.type) not in kinds]
    count = Counter(item.configuration for item in vanished)
    return tuple(
        item
        for item in vanished
        if item.configuration not in configurations or count[item.configuration] > 1
    )
