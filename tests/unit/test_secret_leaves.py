"""
Law: secrets travel with values.
Which places in a value are secret, by what is known and by what was recorded of it.
"""

from __future__ import annotations

from orchestrator.domain.masking import MARK, Masker
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.secrets import secret_leaves, without_leaves
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.assessment import outputs_of_state
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry
from tests.fakes.journals import state

STAMP = EntryStamp(at=START, entry_id="new", actor=ACTOR)
SECRET = "hunter2secret"
VALUE: Json = {"region": "eu-west-1", "urls": ["http://a", f"http://u:{SECRET}@b"]}
LEAF = ("urls", 1)


def hides(value: Json) -> bool:
    masker = Masker()
    masker.add(SECRET)
    return masker.hides(value)


def nothing(_: Json) -> bool:
    return False


def test_a_leaf_that_holds_a_known_secret_is_secret_and_no_other() -> None:
    """
    One secret in a structure does not hide the rest of it.
    """
    assert secret_leaves(VALUE, hides) == {LEAF}
    assert without_leaves(VALUE, {LEAF}) == {"region": "eu-west-1", "urls": ["http://a", MARK]}


def test_a_leaf_that_was_secret_is_so_when_nobody_knows_why_any_more() -> None:
    """
    A later run may not see the secret that a value was made from: what was recorded of it tells. A
    leaf that was not there then is secret, too.
    """
    shape = without_leaves(VALUE, {LEAF})

    assert secret_leaves(VALUE, nothing, shape) == {LEAF}
    assert secret_leaves({**VALUE, "new": "x"}, nothing, shape) == {LEAF, ("new",)}
    assert secret_leaves(VALUE, nothing, {"region": "eu-west-1"}) == frozenset()


def test_a_map_with_a_secret_key_is_secret_as_a_whole() -> None:
    """
    A key cannot be replaced without losing what it names.
    """
    assert secret_leaves({"of": {SECRET: 1}, "x": 2}, hides) == {("of",)}
    assert secret_leaves({SECRET: 1}, hides) == {()}


def test_an_output_with_a_secret_in_it_is_recorded_as_sensitive_without_it() -> None:
    """
    It is not among the outputs; its shape stays, so that a later run knows where the secret was.
    """
    found = outputs_of_state(
        None, "r", state(outputs={"all": VALUE, "n": 1}).with_secrets(hides), STAMP
    )

    assert (found["outputs"], found["sensitive_outputs"]) == ({"n": 1}, ("all",))
    assert found["masked_outputs"] == {"all": without_leaves(VALUE, {LEAF})}


def test_only_an_apply_that_saw_all_secrets_makes_an_output_plain_again() -> None:
    """
    Evidence that is taken down by a run which knows no secrets leaves sensitive what was.
    """
    masked = {"all": without_leaves(VALUE, {LEAF})}
    before = entry(outputs={"n": 1}, masked_outputs=masked)
    seen = state(outputs={"all": VALUE, "n": 1})
    found = outputs_of_state(before, "r", seen, STAMP)

    assert (found["sensitive_outputs"], found["outputs"]) == (("all",), {"n": 1})
    assert outputs_of_state(before, "r", seen, STAMP, secrets_known=True)["outputs"] == {
        "all": VALUE,
        "n": 1,
    }
