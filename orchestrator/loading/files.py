"""
Input files: YAML, JSON, ``.tfvars`` and ``.tfvars.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator import local_files
from orchestrator.domain.blueprint.yaml_tree import (
    INEXACT,
    MAX_DEPTH,
    Node,
    is_inexact,
    node_of,
    parse_document,
)
from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import Lines, check_nesting, json_value, too_deep

#: Lines and commas that a file may have: counted in no time, where a million list items take long.
MAX_SEPARATORS = 300_000

_HCL_PLACE = r"(?s)(?:invalid HCL: )?tmp\.hcl:(\d+),(\d+)(?:-[\d,]+)?: (.*)"


def read_text(path: Path, *, shown: str) -> str:
    """
    Return the text of a UTF-8 file. Raises Invalid if it cannot be read or decoded, or is too large
    to be parsed.
    """
    text = local_files.read_text(path, shown=shown)
    if text.count(",") + text.count("\n") > MAX_SEPARATORS:
        hint = f"it has more than {MAX_SEPARATORS:,} lines and commas"
        raise Invalid([Problem("is too large to be read", Location(shown), hint)])
    return text


def read_values(path: Path, *, shown: str) -> tuple[Mapping[str, Node], Mapping[str, Location]]:
    """
    Return the values in an input file by name, and where each name stands.

    Raises Invalid if the file cannot be read, has an unknown extension, or holds no map.
    """
    text = read_text(path, shown=shown)
    match path.suffix:
        case ".yaml" | ".yml":
            return _yaml(text, shown)
        case ".json":
            return _input_nodes(_json(text, shown), text, shown)
        case ".tfvars":
            return _input_nodes(_tfvars(text, shown), text, shown)
        case _:
            hint = "name it .yaml, .yml, .json, .tfvars or .tfvars.json"
            raise Invalid([Problem("the name has no known ending", Location(shown), hint)])


def _yaml(text: str, shown: str) -> tuple[Mapping[str, Node], Mapping[str, Location]]:
    node = parse_document(text, file=shown)
    if node.kind == "scalar" and node.value is None:
        return {}, {}
    if node.kind != "map":
        raise Invalid([Problem(f"must hold a map of inputs, not {node.shape}", node.at)])
    return node.fields, node.key_at


#: Numbers in JSON, and the texts that may hold the like of one.
_JSON_NUMBER = r'"(?:\\.|[^"\\])*"|(?P<number>-?\d[\d.eE+-]*)'
#: The parts of a .tfvars file; an ``operator`` is what no value is written with.
_TFVARS_PART = (
    r"(?s)(?:#|//)[^\n]*|/\*.*?\*/|\s+"
    r'|(?P<text>"(?:\\.|[^"\\])*"|<<-?(?P<end>\w+)\r?\n.*?\n[ \t]*(?P=end)\b)'
    r"|(?P<word>[^\W\d][\w-]*)|(?P<number>-?\d[\d.]*(?:[eE][+-]?\d+)?)"
    r"|(?P<mark>[=:,\[\]{}])|(?P<operator>.)"
)
#: What an expression has at least one of; a file without is not looked through part by part.
_SIGN_OF_EXPRESSION = r"""[-+*/%!?<>&|(.$]|\bfor\b|["\]}]\s*\[|=="""
#: The beginning of a template in a text, unless it is escaped.
_TEMPLATE = r"(?<!\$)(?:\$\$)*\$\{|(?<!%)(?:%%)*%\{"


def _check_numbers(text: str, shown: str, numbers: str) -> None:
    """
    Raise Invalid, with all places, if a float would round a number.
    """
    found = [
        match.start("number")
        for match in re.finditer(numbers, text)
        if match["number"] and is_inexact(match["number"])
    ]
    if found:
        lines = Lines(text, shown)
        raise Invalid([Problem(INEXACT, lines.at(start)) for start in found])


def _json(text: str, shown: str) -> Json:
    value = json_value(
        text,
        shown,
        object_pairs_hook=_unique,
        parse_constant=_no_constant,
        parse_int=_whole_number,
    )
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        problem = Problem("holds half a character (a lone surrogate)", Location(shown))
        raise Invalid([problem]) from exc
    _check_numbers(text, shown, _JSON_NUMBER)
    _check_depth(value, shown)
    return value


def _whole_number(digits: str) -> Json:
    try:
        return int(digits)
    except ValueError as exc:  # Python reads no more than so many
        raise ValueError(INEXACT) from exc


def _check_depth(value: Json, shown: str) -> None:
    """
    Raise Invalid if a value is nested more deeply than YAML values may be.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise too_deep(shown)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return values


def _no_constant(text: str) -> Json:
    raise ValueError(f"{text} is no JSON")


def _tfvars(text: str, shown: str) -> Json:
    import pygohcl

    check_nesting(text, shown)
    if "\0" in text:  # the parser is C underneath: it would not see what follows
        raise Invalid([Problem("holds a NUL character", Location(shown))])
    try:
        values = pygohcl.attributes_loads(text)
    except RecursionError as exc:
        raise too_deep(shown) from exc
    except pygohcl.HCLParseError as exc:
        match = re.match(_HCL_PLACE, str(exc))
        if match is None:
            raise Invalid([Problem(f"not valid: {exc}", Location(shown))]) from exc
        at = Location(shown, int(match[1]), int(match[2]))
        raise Invalid([Problem(f"not valid: {match[3].strip()}", at)]) from exc
    _check_no_expressions(text, shown)
    _check_numbers(text, shown, _TFVARS_PART)
    _check_depth(values, shown)
    return values


def _check_no_expressions(text: str, shown: str) -> None:
    """
    Raise Invalid if a value is an expression or a template: the parser returns those as text.
    """
    if not re.search(_SIGN_OF_EXPRESSION, text):
        return
    before = ""  # the part before: its text if it is a mark, else its kind
    for match in re.finditer(_TFVARS_PART, text):
        kind, part = match.lastgroup, match[0]
        if kind is None:
            continue
        ended = before in ("text", "number", "]", "}")
        if (
            kind == "operator"
            or (kind == "text" and re.search(_TEMPLATE, part))
            or (kind == "number" and part[0] == "-" and (ended or before == "word"))
            or (part == "[" and ended)
            or (part == "=" == before)
            or (part == "for" and before in ("[", "{"))
        ):
            message = "expressions and templates are not evaluated: write the value itself"
            hint = "a text with ${ in it is written with $${"
            at = Lines(text, shown).at(match.start())
            raise Invalid([Problem(message, at, hint)])
        before = part if kind == "mark" else kind


def _input_nodes(
    values: Json, text: str, shown: str
) -> tuple[Mapping[str, Node], Mapping[str, Location]]:
    if not isinstance(values, dict):
        raise Invalid([Problem("must hold a map of inputs", Location(shown, 1, 1))])
    lines = Lines(text, shown)
    places = {name: _place(name, text, lines) or Location(shown) for name in values}
    return {name: node_of(value, places[name]) for name, value in values.items()}, places


def _place(name: str, text: str, lines: Lines) -> Location | None:
    """
    Return where a top-level name first stands as a key: the parsers of these formats give no
    positions.
    """
    match = re.search(rf'(?:^|[{{,\s])("?{re.escape(name)}"?)\s*[:=]', text)
    return lines.at(match.start(1)) if match else None
