"""
YAML with places, and YAML that we write ourselves.
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.blueprint.inputs import to_yaml
from orchestrator.domain.blueprint.yaml_tree import parse_document
from orchestrator.domain.text import seconds
from orchestrator.errors import Invalid

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["on", "010", "1e3", "~", "2027-06-30", "1:30", "<<", "=", "a\n", "-", "!x"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def problems(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        parse_document(text, file="f.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("word", ["on", "yes", "no", "off", "2027-06-30", "1:30", "010", "0x1F"])
def test_what_yaml_1_1_would_change_stays_text(word: str) -> None:
    """
    Words that YAML 1.1 takes for bools, dates or numbers of other bases are text, also as keys.
    """
    assert parse_document(f"{word}: {word}", file="f").plain == {word: word}


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-1.50", -1.5), ("1e3", 1000.0), ("true", True), ("~", None), ("'12'", "12")],
)
def test_plain_scalars(text: str, value: object) -> None:
    """
    Null, true, false and decimal numbers are values; quoted text is text.
    """
    assert parse_document(f"a: {text}", file="f").plain == {"a": value}


def test_every_node_and_key_knows_its_place() -> None:
    """
    Places are line and column from 1 of the node itself.
    """
    node = parse_document('a: 1\nb:\n  - x: "two ${c}"\n', file="f.yaml")
    assert str(node.key_at["b"]) == "f.yaml:2:1"
    assert str(node.find(("b", 0, "x")).at) == "f.yaml:3:8"
    assert str(node.location(("b", 0, "x"), 4)) == "f.yaml:3:13"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: duplicate key 'a': first at line 1"),
        ("a: !!python/object:os.system x", "f.yaml:1:4: tags such as"),
        ("a: !x 1", "f.yaml:1:4: tags such as '!x'"),
        ("? [a]\n: 1", "f.yaml:1:3: a key must be text"),
        ("a: &x [*x]", "an alias refers to what contains it"),
        ("a: [", "f.yaml:2:1: not valid YAML"),
        ("a: 1\n---\nb: 1", "another document"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("a: \x07", "not valid YAML"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    """
    Duplicate keys, tags, odd keys, circles and broken YAML are errors with their place.
    """
    assert said in problems(text)[0]


def test_aliases_cannot_blow_up() -> None:
    """
    A document that is small on disk and huge once its aliases are expanded is refused.
    """
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert any("too large" in line for line in problems("\n".join(lines)))


def test_anchors_and_merge_keys_work() -> None:
    """
    An alias is its anchor's value; ``<<`` adds keys that are not given.
    """
    node = parse_document("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a", file="f")
    assert node.plain == {"a": {"x": 1, "y": 2}, "b": {"y": 3, "x": 1}, "c": {"x": 1, "y": 2}}


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values))
def test_what_we_write_reads_back(values: dict[str, object]) -> None:
    """
    YAML text that we write gives the same values here and in a YAML 1.1 reader.
    """
    text = to_yaml(values, header="x")
    assert parse_document(text, file="f").plain == values
    assert yaml.safe_load(text) == values


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """
    Any text is either a document or Invalid.
    """
    try:
        parse_document(text, file="f")
    except Invalid as exc:
        assert exc.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), (12, 12), (1.5, 1.5)],
)
def test_durations(text: object, value: float) -> None:
    """
    A duration is a number of seconds or units in a row.
    """
    assert math.isclose(seconds(text), value)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "5 m", "-1s", 0, -1, True, None, "1d", [1], "9999999999h"]
)
def test_what_is_no_duration(text: object) -> None:
    """
    Anything else is a ValueError.
    """
    with pytest.raises(ValueError, match="duration"):
        seconds(text)


def test_yaml_of_others_is_read_as_without_us() -> None:
    """
    The patterns of PyYAML that libyaml does not need are compiled late, in a process that imports
    the tool first: its own reader still refuses and resolves what it did.
    """
    program = (
        "import re, orchestrator.domain.blueprint.yaml_tree, yaml\n"
        "late = not isinstance(yaml.reader.Reader.NON_PRINTABLE, re.Pattern)\n"
        "day = yaml.load('2026-12-01', yaml.SafeLoader)\n"
        "try: yaml.load('bell \\x07', yaml.SafeLoader)\n"
        "except yaml.reader.ReaderError: print(late, day, re.compile('a'))\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert output.stdout == "True 2026-12-01 re.compile('a')\n", output.stderr
