"""
What is asked of a provider in one plan that writes nothing, and what its messages answer.

Import blocks ask whether an object with an id exists; data sources, by a postcondition that always
fails, say in its error which ids they found: no further engine call is needed to read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.domain.events.engine_messages import (
    DiagnosticMessage,
    Message,
    PlannedChange,
    RefreshComplete,
)
from orchestrator.domain.record.record import Diagnostic, Json

#: The engine's own words, on which alone a missing object is told from one that cannot be read.
_MISSING = "Cannot import non-existent remote object"
_MISSING_ADDRESS = re.compile(r'existing object to ("(?:[^"\\]|\\.)*"), the provider')
_SEARCH = "orchestrator_search_{}"
_FOUND = re.compile(r"orchestrator:(\d+):(.*)", re.DOTALL)
_FILE, _OVERRIDE = "orchestrator_readback.tf.json", "orchestrator_readback_override.tf.json"


@dataclass(frozen=True, slots=True)
class Search:
    """
    A data source to read: its type, its arguments, the attribute that holds the ids, and the
    provider configuration where it is not the default one.
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


@dataclass(frozen=True, slots=True)
class ProviderQuery:
    """
    Import ids by address, and searches; a search is known by its place in the list.
    """

    imports: Mapping[str, str] = field(default_factory=dict)
    searches: tuple[Search, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """
        What the plan is limited to: nothing else is asked.
        """
        return (*self.imports, *(_data_address(n, s) for n, s in enumerate(self.searches)))

    def files(self, sources: Mapping[str, str]) -> dict[str, str]:
        """
        The configuration that asks them, by file name. ``sources`` are those of the providers that
        the root itself does not require, by local name.
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
        files = {_FILE: json.dumps(content, indent=1)}
        names = {search.provider_name for search in self.searches} & sources.keys()
        if names:
            required = {name: {"source": sources[name]} for name in sorted(names)}
            files[_OVERRIDE] = json.dumps({"terraform": {"required_providers": required}})
        return files


@dataclass(frozen=True, slots=True)
class QueryResult:
    """
    What one plan answered. ``found`` and ``missing`` are addresses whose import id was asked for;
    ``listed`` the ids by search; ``failed`` the errors that name an address or a search's;
    ``other`` those that name nothing asked.
    """

    found: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    listed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    other: tuple[str, ...] = ()

    def trouble(self, address: str) -> str:
        """
        Why there is no answer for an address.
        """
        if address in self.failed:
            return self.failed[address]
        return "; ".join(self.other) or "the engine said nothing of it"

    def search_trouble(self, number: int, search: Search) -> str:
        """
        Why a search has no answer.
        """
        return self.trouble(_data_address(number, search))


def read_result(questions: ProviderQuery, messages: Iterable[Message]) -> QueryResult:
    """
    The answers in the messages of the plan; whether it ended well decides nothing.
    """
    found: set[str] = set()
    missing: set[str] = set()
    listed: dict[int, tuple[str, ...]] = {}
    failed: dict[str, str] = {}
    other: dict[str, None] = {}
    for message in messages:
        match message:
            case PlannedChange(address, importing=str()) | RefreshComplete(address):
                found.add(address)
            case DiagnosticMessage(diagnostic) if diagnostic.severity == "error":
                lost, ids = _missing_address(diagnostic), _listed(diagnostic)
                if lost is not None:
                    missing.add(lost)
                elif ids is not None:
                    listed[ids[0]] = ids[1]
                elif diagnostic.address in questions.targets:
                    failed.setdefault(diagnostic.address, _line(diagnostic))
                else:
                    other[_line(diagnostic)] = None
            case _:
                pass
    asked = questions.imports.keys()
    return QueryResult(
        found=frozenset(found & asked - missing),
        missing=frozenset(missing & asked),
        listed=listed,
        failed=failed,
        other=tuple(other),
    )


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
    The value in Terraform's JSON syntax with nothing in it to interpret.
    """
    match value:
        case str():
            return value.replace("${", "$${").replace("%{", "%%{")
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
    The search and the ids that it found; None where the diagnostic says something else.
    """
    said = _FOUND.fullmatch(diagnostic.detail.strip())
    if said is None:
        return None
    try:
        value = json.loads(said[2])
    except ValueError:  # cut, or masked
        return None
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int) for item in items):
        return None
    return int(said[1]), tuple(dict.fromkeys(map(str, items)))


def _line(diagnostic: Diagnostic) -> str:
    return " ".join(f"{diagnostic.summary}: {diagnostic.detail}".split()).removesuffix(":")[:400]
