"""
What the provider's answers mean for an object in doubt: a table of cases, each with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
import yaml

from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.blueprint import Backend, Module, Step
from orchestrator.domain.blueprint.references import Reference, Resolved, Template, Unresolvable
from orchestrator.domain.provider_query.doubt_query import declaration, doubt_queries, question
from orchestrator.domain.provider_query.query import Answer, ProviderQuery, QueryResult
from orchestrator.domain.provider_query.readback import known_objects, read_back
from orchestrator.domain.record.objects import (
    Doubt,
    ManualSearch,
    Readback,
    Resources,
    SettledDoubt,
)
from orchestrator.domain.recovery.command_line import doubt_options
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from tests.fakes.clock import START
from tests.fakes.entries import entry
from tests.fakes.journals import refs, state

THIS, ONE, TWO = "s.a", 's.m["one"]', 's.m["two"]'
SEARCH: Json = {"data": "s_all", "arguments": {}, "ids": "ids"}


def lookup(reference: Reference) -> Resolved:
    match reference.names:
        case ("name",):
            return Resolved("acme")
        case () if reference.kind == "target_id":
            return Resolved("acme/web/prod/s")
        case ("secret",):
            return Resolved("s3cret", {(): "inputs.secret"})
        case _:
            raise Unresolvable("the step does not set it")


def step(identity: Mapping[str, Json], search: Mapping[str, Json]) -> Step:
    return Step(
        name="s",
        module_ref="m",
        module=Module("m", {}, {}),
        inputs={},
        needs=frozenset(),
        backend=Backend("local", Template({})),
        providers={},
        identity={key: Template(value) for key, value in identity.items()},
        search={key: Template(value) for key, value in search.items()},
    )


@dataclass(frozen=True)
class Case:
    why: str
    verdict: str
    said: str = ""
    ids: tuple[str, ...] = ()
    asked: tuple[str, ...] = (THIS,)
    identity: Mapping[str, Json] = field(default_factory=dict)
    search: Mapping[str, Json] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    listed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    managed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    adopted: frozenset[tuple[str, str]] = frozenset()
    named: bool = False
    astray: tuple[str, ...] = ()
    id: str | None = None
    left: float = 0
    existed: bool = False
    was_absent: bool = False
    ownership: str | None = None


BY_NAME = {THIS: "${inputs.name}"}
EACH = {"s.m": "${each.key}"}
MANY = {"s.m": SEARCH}
OWN = {"s.m": {"data": "s_all", "arguments": {"name": "${each.key}"}, "ids": "ids"}}
HERE = frozenset({THIS})

CASES = [
    Case("a found import id exists", "exists", ids=("acme",), identity=BY_NAME, found=HERE),
    Case(
        "a missing one is unknown while the identity never named an object: a name for an id",
        "unknown", "never been seen to be the id", identity=BY_NAME, missing=HERE,
    ),
    Case(
        "a missing one is absent once the identity has named one",
        "absent", "no object with the id acme", identity=BY_NAME, missing=HERE, named=True,
    ),
    Case(
        "or once an object found by it was adopted",
        "absent", identity=BY_NAME, missing=HERE, adopted=frozenset({(THIS, "identity")}),
    ),
    Case(
        "not before the settling time has passed",
        "unknown", "ask again in 41 s", identity=BY_NAME, missing=HERE, named=True, left=41,
    ),
    Case(
        "what exists exists, however young",
        "exists", ids=("acme",), identity=BY_NAME, found=HERE, left=41,
    ),
    Case(
        "not where something says that the provider may have queried elsewhere than it created",
        "unknown", "queried elsewhere", identity=BY_NAME, missing=HERE, named=True, astray=("s",),
    ),
    Case(
        "what is found there is found, and that is said beside it",
        "exists", "queried elsewhere", ids=("acme",), identity=BY_NAME, found=HERE, astray=("s",),
    ),
    Case(
        "an error is no answer, and the reason",
        "unknown", "AccessDenied", identity=BY_NAME, failed={THIS: "AccessDenied"},
    ),
    Case(
        "an id that is managed already is not the one",
        "unknown", "it is s.b of net", identity=BY_NAME, found=HERE,
        managed={("s", "acme"): "s.b of net"},
    ),
    Case(
        "an occupied address cannot be imported to",
        "unknown", "holds another object", identity=BY_NAME, held=("s.a old",),
    ),
    Case(
        "not even beside a deposed object",
        "unknown", "holds another object", identity=BY_NAME, held=("s.a old deposed=d1",),
    ),
    Case(
        "what a search finds there exists, and cannot be adopted",
        "exists", "cannot be adopted there", ids=("i-2",), search={THIS: SEARCH},
        listed={0: ("i-1", "i-2")}, held=("s.a i-1",),
    ),
    Case(
        "a type without a remote side is found by any id",
        "unknown", "no remote side", asked=("terraform_data.x",),
        identity={"terraform_data.x": "${inputs.name}"},
    ),
    Case(
        "the key of an instance fills its identity",
        "exists", ids=("one",), asked=(ONE,), identity=EACH, found=frozenset({ONE}),
    ),
    Case(
        "an identity of the resource that names no instance is none's",
        "unknown", "needs ${each.key}", asked=(ONE,), identity={"s.m": "x"},
    ),
    Case(
        "an instance's own identity wins",
        "exists", ids=("own",), asked=(ONE,), identity={**EACH, ONE: "own"},
        found=frozenset({ONE}),
    ),
    Case(
        "without instances there is no key",
        "unknown", "has no instances", identity={THIS: "${each.key}"},
    ),
    Case(
        "an identity without a value is none",
        "unknown", "does not set it", identity={THIS: "${inputs.x}"},
    ),
    Case(
        "an identity that would put a secret into the record",
        "unknown", "holds a secret", identity={THIS: "${inputs.secret}"},
    ),
    Case("an identity that is a list", "unknown", "is no text", identity={THIS: ["x"]}),
    Case("an empty identity", "unknown", "is empty", identity={THIS: ""}),
    Case(
        "the id that its create returned is asked for where there is no identity",
        "exists", ids=("id-9",), id="id-9", found=HERE,
    ),
    Case(
        "it proves nothing when it is missing: it may be no import id",
        "unknown", "never been seen", id="id-9", missing=HERE, named=True,
    ),
    Case(
        "a search finds the one that no state knows",
        "exists", ids=("i-2",), asked=(TWO,), search=MANY, listed={0: ("i-1", "i-2")},
        held=('s.m["one"] i-1',),
    ),
    Case(
        "several candidates for one doubt are all offered",
        "exists", "2 that no step has, for 1 in doubt", ids=("i-2", "i-3"), asked=(TWO,),
        search=MANY, listed={0: ("i-2", "i-3")},
    ),
    Case(
        "fewer candidates than doubts: one exists, and nobody knows which",
        "unknown", "attributes tell which is which", ids=("i-2",), asked=(ONE, TWO), search=MANY,
        listed={0: ("i-2",)},
    ),
    Case(
        "an instance's own search finds it",
        "exists", ids=("i-2",), asked=(TWO, ONE), search=OWN, listed={0: ("i-2",), 1: ()},
    ),
    Case(
        "and proves its absence where the same search for another instance finds that",
        "absent", asked=(TWO,), search=OWN, listed={0: (), 1: ("i-1",)}, held=('s.m["one"] i-1',),
    ),
    Case(
        "but not where it finds nothing there either",
        "unknown", "never been seen to find", asked=(TWO,), search=OWN, listed={0: (), 1: ()},
        held=('s.m["one"] i-1',),
    ),
    Case(
        "an empty search is unknown until it has been seen to find one",
        "unknown", "never been seen to find", search={THIS: SEARCH}, listed={0: ()},
    ),
    Case(
        "a search that finds the siblings proves the absence",
        "absent", asked=(TWO,), search=MANY, listed={0: ("i-1",)}, held=('s.m["one"] i-1',),
    ),
    Case(
        "objects of another resource prove nothing: they may carry the tag that this one lacks",
        "unknown", "never been seen to find", search={THIS: SEARCH}, listed={0: ("i-1",)},
        held=("s.other i-1",),
    ),
    Case(
        "a search by which one was found and adopted proves it too",
        "absent", search={THIS: SEARCH}, listed={0: ()}, adopted=frozenset({(THIS, "search")}),
    ),
    Case(
        "a search that was not read is no empty one",
        "unknown", "the search gave no answer", search={THIS: SEARCH},
    ),
    Case(
        "what one way finds exists, whatever the other says",
        "exists", ids=("i-1",), identity=BY_NAME, missing=HERE, named=True,
        search={THIS: SEARCH}, listed={0: ("i-1",)},
    ),
    Case(
        "what one way proves absent is absent, if the other finds nothing",
        "absent", identity=BY_NAME, missing=HERE, named=True, search={THIS: SEARCH},
        listed={0: ()},
    ),
    Case("without a way to ask it is unknown", "unknown", "neither `identity` nor `search`"),
]  # fmt: skip


def result(case: Case, query: ProviderQuery) -> QueryResult:
    def imported(address: str) -> Answer:
        if address in case.found:
            return Answer("exists", (query.imports[address],))
        if address in case.missing:
            return Answer("absent")
        return Answer(
            "unknown", why=case.failed.get(address, "the engine reported nothing about it")
        )

    def searched(number: int) -> Answer:
        if number not in case.listed:
            address = f"data.s_all.orchestrator_search_{number}"
            return Answer(
                "unknown", why=case.failed.get(address, "the engine reported nothing about it")
            )
        ids = case.listed[number]
        return Answer("exists" if ids else "absent", ids)

    return QueryResult(
        {address: imported(address) for address in query.imports},
        {number: searched(number) for number in range(len(query.searches))},
    )


def read(case: Case) -> Readback:
    doubts = [Doubt(address=a, action="create", id=case.id, why="x") for a in case.asked]
    held = state(case.held)
    query, queries = doubt_queries(step(case.identity, case.search), doubts, lookup, held)
    known = known_objects(entry(resources=Resources(in_doubt=tuple(doubts))), (), held)
    judged = read_back(
        queries,
        result(case, query),
        replace(known, managed={**known.managed, **case.managed}, adopted_methods=case.adopted),
        at=START,
        seconds_left=lambda _: case.left,
        has_named=lambda _: case.named,
        existed=lambda _: case.existed,
        was_absent=lambda *_: case.was_absent,
        scope_change=lambda name: "it moved" if name in case.astray else None,
        where_to_look=lambda doubt, provider: ManualSearch(
            until=START, provider={"name": provider}
        ),
    )
    found = judged[0].readback
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_verdicts(case: Case) -> None:
    """
    Exists with what may be adopted, absent only where that is proven, else unknown and
    why.
    """
    found = read(case)
    assert (found.verdict, found.ids) == (case.verdict, case.ids)
    assert case.said in found.why


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_a_person_is_told_where_to_look(case: Case) -> None:
    """
    Exactly where nothing was found and nothing is proven.
    """
    found = read(case)
    assert (found.look is not None) == (found.verdict == "unknown" and not found.ids)


TAGGED: Json = {"data": "s_all", "arguments": {"tag": "${target.id}"}, "ids": "ids"}

OWNERSHIPS = [
    Case(
        "the id that its create returned is ours", "exists", id="s-1", found=HERE,
        ownership="ours",
    ),
    Case(
        "a name that exists was found: who made it is not known",
        "exists", identity=BY_NAME, found=HERE, ownership="found",
    ),
    Case(
        "one that existed when it was to be created is foreign",
        "exists", identity=BY_NAME, found=HERE, existed=True, ownership="foreign",
    ),
    Case(
        "another than its create returned is foreign",
        "exists", identity=BY_NAME, found=HERE, id="s-1", ownership="foreign",
    ),
    Case(
        "what a search finds was found: the search asks for anybody's",
        "exists", search={THIS: SEARCH}, listed={0: ("i-1",)}, ownership="found",
    ),
    Case(
        "what carries the target's own tag is ours, though the provider said that it existed",
        "exists", search={THIS: TAGGED}, listed={0: ("i-1",)}, existed=True, ownership="ours",
    ),
    Case(
        "what was not there just before the create is ours",
        "exists", identity=BY_NAME, found=HERE, was_absent=True, ownership="ours",
    ),
    Case(
        "what was absent before and then said to exist may be of either",
        "exists", identity=BY_NAME, found=HERE, was_absent=True, existed=True, ownership="found",
    ),
    Case(
        "absent where another scope was asked proves nothing",
        "exists", identity=BY_NAME, found=HERE, was_absent=True, astray=("s",), ownership="found",
    ),
    Case(
        "another than its create returned is foreign, although it was absent before",
        "exists", identity=BY_NAME, found=HERE, id="s-1", was_absent=True, ownership="foreign",
    ),
    Case(
        "of two candidates nothing is said",
        "exists", search={THIS: TAGGED}, listed={0: ("i-1", "i-2")},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", OWNERSHIPS, ids=lambda case: case.why)
def test_whose_an_object_is(case: Case) -> None:
    """
    Law: not ours until proven.
    That an object exists proves nothing of who made it; only what is ours is adopted as offered.
    """
    found = read(case)
    assert (found.verdict, found.ownership) == (case.verdict, case.ownership)
    assert (found.adopts is not None) == (case.ownership == "ours")


def test_only_creates_are_asked_for() -> None:
    """
    What the state holds is answered by a refresh, what left it by a person.
    """
    doubts = [Doubt.model_validate({"address": THIS, "action": action, "why": "x"})
              for action in ("update", "delete", "forget")]  # fmt: skip
    assert doubt_queries(step(BY_NAME, {}), doubts, lookup, state())[1] == ()


def test_a_resource_is_searched_for_once() -> None:
    """
    Two instances share the search of their resource; one of their own is another search.
    """
    doubts = [Doubt(address=address, action="create", why="x") for address in (ONE, TWO, THIS)]
    asked, inquiries = doubt_queries(step({}, {**MANY, THIS: SEARCH}), doubts, lookup, state())
    assert len(asked.searches) == 2
    assert [inquiry.search for inquiry in inquiries] == [0, 0, 1]


def test_an_absence_is_only_that_of_what_was_asked_for() -> None:
    """
    Asked for by another identity, or by a search, the same object is another question.
    """
    doubts = [Doubt(address=THIS, action="create", why="x")]

    def asked(identity: Mapping[str, Json], search: Mapping[str, Json]) -> str:
        query, (item,) = doubt_queries(step(identity, search), doubts, lookup, state())
        return json.dumps(question(item, query, "search" if search else item.origin))

    assert asked({THIS: "one"}, {}) == asked({THIS: "one"}, {})
    assert len({asked({THIS: "one"}, {}), asked({THIS: "two"}, {}), asked({}, {THIS: SEARCH})}) == 3


def test_what_other_steps_have_is_managed() -> None:
    """
    Inventories of all records count, but not what this step's record still lists at an address in
    doubt: that may be the very object.
    """
    doubt = Doubt(address=THIS, action="create", why="x")
    resources = Resources(in_doubt=(doubt,), inventory=refs("s.a mine", "s.left gone"))
    own = entry(resources=resources)
    found = known_objects(own, [entry(resources=Resources(inventory=refs("s.b theirs")))], state())
    assert set(found.managed) == {("s", "gone"), ("s", "theirs")}


def test_an_adoption_proves_the_way_by_which_the_object_was_found() -> None:
    """
    Settled doubts are evidence: of their resource, with the method of their readback.
    """
    readback = Readback(verdict="exists", method="search", ids=("i-1",), why="x", at=START)
    doubt = Doubt(address=ONE, action="create", why="x", readback=readback)
    rows = [
        SettledDoubt(doubt=doubt, how="adopted", run_id="r", at=START),
        SettledDoubt(doubt=doubt.model_copy(update={"address": "s.x"}), how="forgotten", run_id="r",
                at=START),
    ]  # fmt: skip
    assert known_objects(entry(settled=tuple(rows)), (), state()).adopted_methods == {
        ("s.m", "search")
    }


def doubt(
    address: str,
    verdict: str,
    ids: Iterable[str],
    *,
    adoptable: bool = True,
    ownership: str | None = "ours",
) -> Doubt:
    readback = Readback.model_validate(
        {
            "verdict": verdict,
            "method": "search",
            "ids": tuple(ids),
            "adoptable": adoptable,
            "ownership": ownership,
            "evidence": "its tag",
            "why": "x",
            "at": START,
        }
    )
    return Doubt(address=address, action="create", why="x", readback=readback)


def test_choices() -> None:
    """
    What is proven ours is adopted in one command; candidates each have their own, and may be
    forgotten like what was not found, which a person may find all the same. What cannot be adopted
    is deleted by hand, then forgotten. An object in doubt twice is offered once; what is in the
    state already cannot be adopted.
    """
    found = doubt_options(
        [
            doubt("s.a", "exists", ["1"]),
            doubt("s.b", "exists", ["2"]),
            doubt("s.b", "exists", ["2"]),
            doubt("s.c", "unknown", ["3"]),
            doubt("s.g", "exists", ["5"], adoptable=False),
            Doubt(address="s.d", action="create", why="x"),
            Doubt(address="s.e", action="forget", id="5", why="x"),
            Doubt(address="s.f", action="update", id="6", why="x"),
            doubt("s.h", "unknown", [], adoptable=False),
        ]
    )
    assert [options for options, _ in found] == [
        ("--adopt-proven",),
        ("--adopt", "s.c=3", "--forget", "s.c"),
        ("--forget", "s.g"),
        ("--adopt", "s.d=ID", "--adopt", "s.e=5"),
        (
            "--forget",
            "s.c",
            "--forget",
            "s.d",
            "--forget",
            "s.e",
            "--forget",
            "s.f",
            "--forget",
            "s.h",
        ),
    ]


def test_one_proven_object_is_adopted_by_its_id() -> None:
    """
    In doubt twice it is still one.
    """
    one = doubt("s.a", "exists", ["1"])
    (adopt, _), *_ = doubt_options([one, one])
    assert adopt == ("--adopt", "s.a=1")


def test_only_one_sure_find_is_adopted() -> None:
    """
    Law: no guessing.
    Of several candidates nobody guesses, and a taken address takes no other.
    """
    cases = [
        doubt(THIS, "exists", ["1"]),
        doubt(THIS, "exists", ["1", "2"]),
        doubt(THIS, "exists", ["1"], adoptable=False),
        doubt(THIS, "unknown", ["1"]),
        doubt(THIS, "exists", ["1"], ownership="found"),
        doubt(THIS, "exists", ["1"], ownership="foreign"),
    ]
    adopted = [case.readback and case.readback.adopts for case in cases]
    assert adopted == ["1", None, None, None, None, None]


def test_what_is_not_proven_ours_is_offered_with_what_speaks_against_it() -> None:
    """
    Law: not ours until proven.
    A person may take it over all the same, and is told what that means.
    """
    found = doubt_options([doubt("s.a", "exists", ["1"], ownership="foreign")])
    (adopt, why), (forget, _) = found
    assert (adopt, forget) == (("--adopt", "s.a=1", "--forget", "s.a"), ("--forget", "s.a"))
    assert why.endswith("; its tag")
    assert "--accept-adopted" in why


def test_what_was_found_is_taken_over_in_one_command() -> None:
    """
    The word of a person closes the doubts that the adoption leaves open.
    """
    both = [doubt(address, "exists", ["1"], ownership="found") for address in ("s.a", "s.b")]
    (adopt, why), _ = doubt_options(both)
    assert adopt == ("--adopt", "s.a=1", "--forget", "s.a", "--adopt", "s.b=1", "--forget", "s.b")
    assert "--accept-adopted" in why


@pytest.mark.parametrize(
    ("address", "inputs", "identity", "data"),
    [
        (
            "aws_s3_bucket.this",
            ("size", "bucket"),
            '{aws_s3_bucket.this: "${inputs.bucket}"}',
            "aws_s3_buckets",
        ),
        ('aws_eip.a["x"]', ("name",), '{aws_eip.a: "${each.key}"}', "aws_eips"),
        ("aws_iam_policy.p", (), '{aws_iam_policy.p: "ID"}', "aws_iam_policies"),
        ('module.m["a"].aws_eip.a', ("size",), """{'module.m["a"].aws_eip.a': "ID"}""", "aws_eips"),
    ],
)
def test_lines_that_would_have_the_provider_asked_are_yaml_of_a_step(
    address: str, inputs: tuple[str, ...], identity: str, data: str
) -> None:
    """
    What is offered to be added to a step reads as the mapping that a step takes, with the name that
    the provider's list of that type is likely to have.
    """
    lines = declaration(step({}, {}), parse_address(address), inputs)
    read = yaml.safe_load("\n".join(lines))

    assert lines[0].endswith(f"\nidentity: {identity}")
    assert set(read) == {"identity", "search"}
    search = read["search"][parse_address(address).resource]
    assert (set(search), search["data"]) == ({"data", "arguments", "ids"}, data)


def test_no_lines_are_offered_to_a_step_that_has_them() -> None:
    """
    A declared identity or search that found nothing is not offered again; nor is one for a type
    that has no remote side.
    """
    named = step({THIS: "x"}, {})
    assert declaration(named, parse_address(THIS), ()) == ()
    assert declaration(step({}, {}), parse_address("terraform_data.a"), ()) == ()
