"""
What is asked of a provider in one plan, and how its messages are read.
"""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.events.engine_messages import (
    DiagnosticMessage,
    Message,
    PlannedChange,
    RefreshComplete,
)
from orchestrator.domain.provider_query.query_plan import (
    ProviderQuery,
    QueryResult,
    Search,
    read_result,
)
from orchestrator.domain.record.record import Diagnostic

SEARCH = Search("aws_instances", {"tags": {"${k}": "%{v}"}}, "ids", "aws.west")
ASKED = ProviderQuery({"a_b.c": "id-1", 'a_b.d["x"]': "id-2"}, (SEARCH,))
DATA = "data.aws_instances.orchestrator_search_0"


def error(summary: str, detail: str = "", address: str | None = None) -> DiagnosticMessage:
    return DiagnosticMessage(Diagnostic(summary=summary, detail=detail, address=address))


def missing(quoted: str) -> DiagnosticMessage:
    said = f"While attempting to import an existing object to {quoted}, the provider detected"
    return error("Cannot import non-existent remote object", said)


def answered(*messages: Message) -> QueryResult:
    return read_result(ASKED, messages)


def test_nothing_in_a_question_is_interpreted() -> None:
    """
    Ids and arguments are literal: what looks like a template in them stays text.
    """
    files = ProviderQuery({"a_b.c": "${x}%{y}"}, (SEARCH,)).files({})
    content = json.loads(files["orchestrator_readback.tf.json"])
    block = content["data"]["aws_instances"]["orchestrator_search_0"]
    assert content["import"] == [{"to": "a_b.c", "id": "$${x}%%{y}"}]
    assert block["tags"] == {"$${k}": "%%{v}"}
    assert block["provider"] == "aws.west"


def test_a_provider_that_the_root_does_not_require_gets_its_source() -> None:
    """
    A search in the root for a provider that only a child module uses names where that comes from;
    others are left to the module.
    """
    files = ASKED.files({"aws": "acme/aws", "other": "acme/other"})
    content = json.loads(files["orchestrator_readback_override.tf.json"])
    assert content["terraform"]["required_providers"] == {"aws": {"source": "acme/aws"}}
    assert list(ASKED.files({"other": "acme/other"})) == ["orchestrator_readback.tf.json"]


def test_the_plan_asks_for_nothing_else() -> None:
    """
    It is limited to the addresses and data sources in question.
    """
    assert ASKED.targets == ("a_b.c", 'a_b.d["x"]', DATA)


@pytest.mark.parametrize(
    "message",
    [
        PlannedChange("a_b.c", "import", "a_b", importing="id-1"),
        PlannedChange("a_b.c", "update", "a_b", importing="id-1"),
        RefreshComplete("a_b.c", "id-1"),
    ],
    ids=["imported", "imported and changed", "read, whatever came of its plan"],
)
def test_found(message: Message) -> None:
    """
    An object exists that the plan would import, or that was read before the plan failed.
    """
    assert answered(message).found == {"a_b.c"}


def test_a_plan_to_create_is_no_answer() -> None:
    """
    Where the engine passes over an import it plans a create: nobody was asked.
    """
    said = answered(PlannedChange("a_b.c", "create", "a_b"))
    assert (said.found, said.missing) == (frozenset(), frozenset())
    assert said.trouble("a_b.c") == "the engine said nothing of it"


def test_missing_is_told_by_the_engines_own_words() -> None:
    """
    The address stands quoted in the detail; any other error is no answer.
    """
    said = answered(missing('"a_b.d[\\"x\\"]"'), error("not found", address="a_b.c"))
    assert said.missing == {'a_b.d["x"]'}
    assert said.trouble("a_b.c") == "not found"


def test_what_is_missing_was_not_found() -> None:
    """
    The engine reports that it asked before it says that nothing is there.
    """
    assert answered(RefreshComplete("a_b.c", "id-1"), missing('"a_b.c"')).found == frozenset()


def test_an_error_that_names_nothing_asked_is_the_reason_for_all() -> None:
    """
    A configuration that cannot be planned answers nothing, and says why.
    """
    said = answered(error("Invalid for_each", "it is unknown", address="a_b.other"))
    assert said.trouble("a_b.c") == "Invalid for_each: it is unknown"
    assert said.search_trouble(0, SEARCH) == "Invalid for_each: it is unknown"


LISTS = [
    ('["i-1","i-2","i-1"]', ("i-1", "i-2")),
    ("[]", ()),
    ('"i-1"', ("i-1",)),
    ("[7]", ("7",)),
    ("null", None),
    ('[{"id":"i-1"}]', None),
    ('["i-1"', None),
]


@pytest.mark.parametrize(("text", "ids"), LISTS, ids=[text for text, _ in LISTS])
def test_a_search_is_read_from_the_error_it_ends_in(text: str, ids: tuple[str, ...] | None) -> None:
    """
    A list of ids or one id, as text; anything else is no answer, never an empty one.
    """
    said = answered(error("Resource postcondition failed", f"orchestrator:0:{text}"))
    assert said.listed.get(0) == ids
    assert (0 in said.listed) == (ids is not None)


def test_a_search_that_fails_says_why() -> None:
    """
    The error of its data source is its own.
    """
    said = answered(error("AccessDenied", address=DATA))
    assert said.listed == {}
    assert said.search_trouble(0, SEARCH) == "AccessDenied"


def test_warnings_answer_nothing() -> None:
    """
    Only errors tell that something is missing.
    """
    quoted = missing('"a_b.c"').diagnostic.model_copy(update={"severity": "warning"})
    assert answered(DiagnosticMessage(quoted)).missing == frozenset()
