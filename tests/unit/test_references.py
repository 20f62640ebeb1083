"""
What ``${...}`` means.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.domain.blueprint.references import (
    BadTemplate,
    Reference,
    Resolved,
    Template,
    Unresolvable,
)


def resolve(raw: object, values: Mapping[str, object], *secret: str) -> Resolved:
    def look_up(reference: Reference) -> Resolved:
        name = str(reference)
        return Resolved(values[name], {(): name} if name in secret else {})

    return Template(raw).resolve(look_up)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("${inputs.db_password}", Reference("input", ("db_password",))),
        ("${steps.net-1.outputs.id}", Reference("step_output", ("net-1", "id"))),
        ("${outputs.url}", Reference("own_output", ("url",))),
        ("${env.HOME}", Reference("env", ("HOME",))),
        ("${blueprint.name}", Reference("blueprint_name")),
        ("${environment}", Reference("environment")),
        ("${step.name}", Reference("step_name")),
        ("${ target.id }", Reference("target_id")),
        ("${steps.n.outputs.a[0].b}", Reference("step_output", ("n", "a"), (0, "b"))),
        ('${inputs.m["a b"]}', Reference("input", ("m",), ("a b",))),
    ],
)
def test_every_form_is_known(text: str, reference: Reference) -> None:
    """
    Each form of reference is parsed to its kind, names and path.
    """
    assert Template(text).references == (reference,)


@pytest.mark.parametrize("reference", ["inputs.a.b[0]", "steps.s.outputs.o", 'outputs.o["a b"]'])
def test_a_reference_prints_as_it_is_written(reference: str) -> None:
    """
    The text of a reference is what stands between the braces.
    """
    assert str(Template(f"${{{reference}}}").references[0]) == reference


@pytest.mark.parametrize(
    ("text", "offset", "hint"),
    [
        ("ab ${input.x}", 3, "did you mean 'inputs'?"),
        ("${inputs.x", 0, "$${"),
        ("${steps.net.output.id}", 0, "steps.STEP.outputs.NAME"),
        ("${}", 0, "$${"),
        ("${step.name.x}", 0, "step.name"),
        ("${upper(inputs.x)}", 0, "$${"),
    ],
)
def test_bad_syntax_says_where(text: str, offset: int, hint: str) -> None:
    """
    A malformed reference is an error with the character at which it begins and a hint.
    """
    with pytest.raises(BadTemplate) as caught:
        Template(text)
    (issue,) = caught.value.issues
    assert issue.offset == offset
    assert hint in issue.hint


def test_all_bad_references_are_told_at_once() -> None:
    """
    Every malformed reference in a structure is reported, with its path.
    """
    with pytest.raises(BadTemplate) as caught:
        Template({"a": ["${x}", "${inputs.ok}"], "b": "${y} ${z}", "${inputs.k}": 1})
    paths = [issue.path for issue in caught.value.issues]
    assert paths == [("a", 0), ("b",), ("b",), ("${inputs.k}",)]


@pytest.mark.parametrize("value", [True, 12, 1.5, None, [1, "a"], {"a": {"b": 1}}, "text"])
def test_a_whole_reference_keeps_its_type(value: object) -> None:
    """
    A value that is one whole reference is the value itself.
    """
    assert resolve("${inputs.x}", {"inputs.x": value}).value == value


@pytest.mark.parametrize(
    ("value", "text"), [(True, "a-true"), (12, "a-12"), (1.5, "a-1.5"), (2.0, "a-2"), ("b", "a-b")]
)
def test_inside_text_scalars_become_text_as_in_terraform(value: object, text: str) -> None:
    """
    Bools and numbers inside text are written as Terraform writes them.
    """
    assert resolve("a-${inputs.x}", {"inputs.x": value}).value == text


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_inside_text_structures_are_refused(value: object) -> None:
    """
    A list, map or null inside text is an error at the place of the text.
    """
    with pytest.raises(Unresolvable) as caught:
        resolve({"k": "a-${inputs.x}"}, {"inputs.x": value})
    assert caught.value.path == ("k",)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("$${inputs.x}", "${inputs.x}"),
        ("$$${inputs.x}", "$${inputs.x}"),
        ("a$b$", "a$b$"),
        ("$${a}${inputs.x}$${b}", "${a}v${b}"),
        ({"$${k}": "$${v}"}, {"${k}": "${v}"}),
        ("%{if}", "%{if}"),
    ],
)
def test_two_dollars_escape(raw: object, value: object) -> None:
    """
    ``$${`` stands for the text ``${``, in values and keys; nothing else is touched.
    """
    assert resolve(raw, {"inputs.x": "v"}).value == value


def test_secrets_are_known_by_leaf() -> None:
    """
    A sensitive structure marks each of its leaves; text around a secret is secret as a whole.
    """
    values = {"inputs.s": {"a": [1, "x"], "b": {}}, "inputs.p": "pw", "inputs.o": "open"}
    raw = {"all": "${inputs.s}", "url": "u:${inputs.p}@${inputs.o}", "n": ["${inputs.o}"]}
    assert resolve(raw, values, "inputs.s", "inputs.p").secrets == {
        ("all", "a", 0): "inputs.s",
        ("all", "a", 1): "inputs.s",
        ("all", "b"): "inputs.s",
        ("url",): "inputs.p",
    }


def test_a_part_of_a_secret_is_secret() -> None:
    """
    A path into a sensitive value gives a sensitive value.
    """
    resolved = Resolved({"a": [{"b": 1}], "c": 2}, {("a",): "inputs.x"})
    assert resolved.at(("a", 0, "b")) == Resolved(1, {(): "inputs.x"})
    assert resolved.at(("c",)) == Resolved(2, {})


@pytest.mark.parametrize("path", ["[3]", ".b", "[0].a", ".a.x"])
def test_a_path_that_leads_nowhere_is_an_error(path: str) -> None:
    """
    A path that the value does not have is an error that names it.
    """
    value: object = {"a": "text"} if path.startswith((".", "[0]")) else ["x"]
    with pytest.raises(Unresolvable, match="has nothing at"):
        Template(f"${{inputs.x{path}}}").resolve(lambda _: Resolved(value))
