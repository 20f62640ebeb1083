"""
What is asked of a provider in one plan, and how its messages are read.
"""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.events.events import (
    Message,
    PlannedChange,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.provider_query.query import (
    Answer,
    ProviderQuery,
    QueryResult,
    Search,
    read_result,
    refused_imports,
)
from orchestrator.domain.record.record import Diagnostic
from tests.fakes.journals import messages, state

SEARCH = Search("aws_instances", {"tags": {"${k}": "%{v}"}}, "ids", "aws.west")
ASKED = ProviderQuery({"a_b.c": "id-1", 'a_b.d["x"]': "id-2"}, (SEARCH,))
DATA = "data.aws_instances.orchestrator_search_0"


def error(summary: str, detail: str = "", address: str | None = None) -> Diagnostic:
    return Diagnostic(summary=summary, detail=detail, address=address)


def missing(quoted: str) -> Diagnostic:
    said = f"While attempting to import an existing object to {quoted}, the provider detected"
    return error("Cannot import non-existent remote object", said)


def answered(*messages: Message, succeeded: bool = False) -> QueryResult:
    return read_result(ASKED, messages, succeeded=succeeded)


def imported(*messages: Message) -> Answer:
    return answered(*messages).imports["a_b.c"]


def searched(*messages: Message) -> Answer:
    return answered(*messages).searches[0]


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
    assert imported(message) == Answer("exists", ("id-1",))


def test_a_plan_to_create_is_no_answer() -> None:
    """
    Where the engine passes over an import it plans a create: nobody was asked.
    """
    planned = PlannedChange("a_b.c", "create", "a_b")
    assert imported(planned) == Answer("unknown", why="the engine reported nothing about it")


def test_missing_is_told_by_the_engines_own_words() -> None:
    """
    The address stands quoted in the detail; any other error is no answer.
    """
    said = answered(missing('"a_b.d[\\"x\\"]"'), error("not found", address="a_b.c"))
    assert said.imports == {
        "a_b.c": Answer("unknown", why="not found"),
        'a_b.d["x"]': Answer("absent"),
    }


def test_what_is_missing_was_not_found() -> None:
    """
    The engine reports that it asked before it says that nothing is there.
    """
    assert imported(RefreshComplete("a_b.c", "id-1"), missing('"a_b.c"')) == Answer("absent")


def test_an_error_that_names_nothing_asked_is_the_reason_for_all() -> None:
    """
    A configuration that cannot be planned answers nothing, and says why.
    """
    stopped = error("Invalid for_each", "it is unknown", address="a_b.other")
    assert imported(stopped) == Answer("unknown", why="Invalid for_each: it is unknown")
    assert searched(stopped) == Answer("unknown", why="Invalid for_each: it is unknown")


def test_the_error_of_one_object_is_not_told_of_another() -> None:
    """
    What the provider said of a neighbour is said to be elsewhere.
    """
    why = imported(error("AccessDenied", address='a_b.d["x"]')).why
    assert why == "the plan failed elsewhere: AccessDenied"


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
    said = searched(error("Resource postcondition failed", f"orchestrator:0:{text}"))
    verdict = "unknown" if ids is None else "exists" if ids else "absent"
    assert (said.verdict, said.ids) == (verdict, ids or ())


def test_a_search_that_fails_says_why() -> None:
    """
    The error of its data source is its own.
    """
    assert searched(error("AccessDenied", address=DATA)) == Answer("unknown", why="AccessDenied")


def test_warnings_answer_nothing() -> None:
    """
    Only errors tell that something is missing.
    """
    quoted = missing('"a_b.c"').model_copy(update={"severity": "warning"})
    assert imported(quoted).verdict == "unknown"


@pytest.mark.parametrize("asked_of", ["imports", "searches"])
def test_a_plan_that_succeeds_answers_nothing_by_itself(asked_of: str) -> None:
    """
    Exit codes decide nothing of imports and searches: an engine that passed over them ends well.
    """
    answers = getattr(answered(succeeded=True), asked_of)
    assert {answer.verdict for answer in answers.values()} == {"unknown"}


ALONE = {
    f"s.alone_{n}": item for n, item in enumerate(state(["s.a 1 by=eu", "s.b 2 by=us"]).objects)
}
SAVED = ProviderQuery(saved=ALONE)
LOST = ResourceDrift("s.alone_0", "delete", "s")


def saved(
    *more: Message | str, succeeded: bool = False, query: ProviderQuery = SAVED
) -> dict[str, tuple[str, str]]:
    told = [m for item in more for m in (messages(item) if isinstance(item, str) else [item])]
    result = read_result(query, told, succeeded=succeeded)
    return {address: (answer.verdict, answer.why) for (address, _), answer in result.saved.items()}


def test_a_saved_object_that_the_refresh_loses_is_absent() -> None:
    """
    Lost by the refresh is absent, the others exist: a plan that ended well has asked for all.
    """
    assert saved(LOST, succeeded=True) == {"s.a": ("absent", ""), "s.b": ("exists", "")}


def test_a_plan_that_failed_answers_only_for_what_it_read() -> None:
    """
    An error elsewhere leaves sound answers sound, and tells nothing of what was not read.
    """
    found = saved(RefreshComplete("s.alone_1", "2"), "error s.alone_0 boom")
    assert found == {"s.a": ("unknown", "boom"), "s.b": ("exists", "")}


def test_the_error_that_explains_is_the_objects_own_or_its_configurations() -> None:
    """
    At 3 a.m. the words that stand beside an object are about that object.
    """
    found = saved("error - first", "error by=us no route", "error s.alone_0 boom")
    assert found == {"s.a": ("unknown", "boom"), "s.b": ("unknown", "no route")}


def test_a_provider_made_from_the_steps_own_objects_proves_nothing() -> None:
    """
    Once the objects that it is configured from are gone, it asks somewhere else or nowhere.
    """
    lost = [ResourceDrift(name, "delete", "s") for name in ALONE]
    found = saved(
        *lost, succeeded=True, query=ProviderQuery(saved=ALONE, untrusted=frozenset({"by=us"}))
    )
    assert {address: verdict for address, (verdict, _) in found.items()} == {
        "s.a": "absent",
        "s.b": "unknown",
    }


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        (missing('"a_b.c"'), {"a_b.c"}),
        (missing(json.dumps('a_b.d["x"]')), {'a_b.d["x"]'}),
        (error("Denied", address='a_b.d["x"]'), {'a_b.d["x"]'}),
        (error("Unexpected import id 'id-2'", "expected A/B"), {'a_b.d["x"]'}),
        (error("Cannot read", "id-22 and a_b.cc and module.a_b.c are others"), set()),
        (error("Denied", "a_b.c is mentioned", address="a_b.other"), set()),
        (error("no such host"), set()),
    ],
)
def test_a_refused_import_is_told_by_its_address_or_its_id(
    said: Diagnostic, refused: set[str]
) -> None:
    """
    The error of one import is not told of another, and what is about none of them of nobody.
    """
    assert set(refused_imports(ASKED.imports, [said])) == refused
