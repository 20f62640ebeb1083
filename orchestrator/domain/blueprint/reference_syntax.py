"""
The syntax of ``${...}``: parses text into references with their offsets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from orchestrator.domain.text import ValuePath, did_you_mean

ReferenceKind = Literal[
    "input",
    "step_output",
    "own_output",
    "env",
    "blueprint_name",
    "environment",
    "step_name",
    "target_id",
    "each_key",
    "run_id",
]
_WORD = r"[A-Za-z_][A-Za-z0-9_-]*"
_FORMS: Mapping[ReferenceKind, str] = {
    "input": "inputs.NAME",
    "step_output": "steps.STEP.outputs.NAME",
    "own_output": "outputs.NAME",
    "env": "env.VARIABLE",
    "blueprint_name": "blueprint.name",
    "environment": "environment",
    "step_name": "step.name",
    "target_id": "target.id",
    "each_key": "each.key",
    "run_id": "run.id",
}
#: What the words in capitals stand for.
_NAMES = {
    "NAME": _WORD,
    "STEP": r"[A-Za-z0-9_][A-Za-z0-9_-]*",
    "VARIABLE": r"[A-Za-z_][A-Za-z0-9_]*",
}
_PLACEHOLDER = re.compile("|".join(_NAMES))
_PATTERNS = {
    kind: re.compile(_PLACEHOLDER.sub(lambda name: f"({_NAMES[name[0]]})", re.escape(form)))
    for kind, form in _FORMS.items()
}
_PATH = re.compile(rf'\.(?P<key>{_WORD})|\[(?P<index>\d{{1,9}})\]|\["(?P<quoted>[^"\\]*)"\]')
_WITH_PATH = ("input", "step_output", "own_output")


class Reference(Struct, frozen=True):
    """
    One reference. ``names`` are (input), (step, output), (output) or (variable), else empty;
    ``path`` leads into the value.
    """

    kind: ReferenceKind
    names: tuple[str, ...] = ()
    path: ValuePath = ()

    def __str__(self) -> str:
        names = iter(self.names)
        base = _PLACEHOLDER.sub(lambda _: next(names), _FORMS[self.kind])
        return base + path_text(self.path)


class Issue(Struct, frozen=True):
    """
    A syntax error: path in the value, offset in the text, message and hint.
    """

    path: ValuePath
    offset: int
    message: str
    hint: str = ""


def path_text(path: ValuePath) -> str:
    texts = []
    for part in path:
        if isinstance(part, int):
            texts.append(f"[{part}]")
        elif re.fullmatch(_WORD, part):
            texts.append(f".{part}")
        else:
            texts.append(f'["{part}"]')
    return "".join(texts)


class Text(Struct, frozen=True):
    """
    A text with references: its parts and the offset of each.
    """

    parts: tuple[str | Reference, ...]
    offsets: tuple[int, ...]


def parse_text(raw: str, path: ValuePath, issues: list[Issue]) -> Text | str:
    parts: list[str | Reference] = []
    offsets: list[int] = []
    text, position = "", 0
    while position < len(raw):
        start = raw.find("${", position)
        if start < 0:
            text += raw[position:]
            break
        if start > position and raw[start - 1] == "$":
            text += raw[position : start - 1] + "${"
            position = start + 2
            continue
        text += raw[position:start]
        end = raw.find("}", start)
        if end < 0:
            hint = "write $${ for the text ${ itself"
            issues.append(Issue(path, start, "a reference that has no closing brace", hint))
            return raw
        reference = _parse_reference(raw[start + 2 : end], path, start, issues)
        if reference is not None:
            if text:
                parts.append(text)
                offsets.append(position)
            parts.append(reference)
            offsets.append(start)
            text = ""
        position = end + 1
    if text:
        parts.append(text)
        offsets.append(position)
    if not any(isinstance(part, Reference) for part in parts):
        return "".join(str(part) for part in parts)
    return Text(tuple(parts), tuple(offsets))


def _parse_reference(
    inner: str, path: ValuePath, start: int, issues: list[Issue]
) -> Reference | None:
    body = inner.strip()
    for kind, pattern in _PATTERNS.items():
        match = pattern.match(body)
        if match is None:
            continue
        rest, steps = body[match.end() :], []
        while rest and (part := _PATH.match(rest)):
            steps.append(int(part["index"]) if part["index"] else part["key"] or part["quoted"])
            rest = rest[part.end() :]
        if rest or (steps and kind not in _WITH_PATH):
            continue
        return Reference(kind, match.groups(), tuple(steps))
    head = body.split(".")[0].split("(")[0]
    hint = did_you_mean(head, dict.fromkeys(form.partition(".")[0] for form in _FORMS.values()))
    if any(form.startswith(f"{head}.") or form == head for form in _FORMS.values()):
        hint = "references are " + ", ".join(_FORMS.values())
    if not hint.startswith("did"):
        hint += "; write $${ for the text ${ itself"
    issues.append(Issue(path, start, f"'${{{inner}}}' is not a reference", hint))
    return None
